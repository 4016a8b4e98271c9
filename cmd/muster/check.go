package main

import (
	"context"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"muster/cmd/dialect"
	"muster/cmd/here"
	"muster/cmd/nodecheck"
	"muster/internal/check"
	"muster/internal/errhint"
	"muster/internal/hardware"
	"muster/launch/job"
)

// checkFlags are those of "muster check".
type checkFlags struct {
	at          acceleratorFlags
	what        nodecheck.Config
	all, asJSON bool
}

// newCheckCmd is "muster check": whether this node is fit for training.
func newCheckCmd(a *app) *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check [--strict] [--waive CHECK[@NODE[:GPU]],...] [--policy FILE] [--json]",
		Short: "Check whether this node is fit for training",
		Long: `Check this node by what its files and limits say, by what NVIDIA's library NVML or the
tool of another vendor says of its devices, and by the kernel's log: memory errors,
links, heat, what is left of other jobs, drivers, /dev/shm, locked memory, open files,
CPUs, disk, and variables that slow training down. Each check ends as PASS, WARN, FAIL, or
SKIP with the reason why it could not be judged. Nothing runs on a GPU, but for
--switchbox-check.

NVML is asked by a program of its own, which may hang or crash without harm. Where there
is none, nvidia-smi is asked, which tells less. Of other vendors, npu-smi and hccn_tool
(Ascend), hl-smi (Gaudi) and mx-smi (MetaX) are asked in the same way. Devices that a
visibility variable hides are not asked about.

A policy file holds the same in YAML, gives checks a status of their own, and moves their
limits:

  strict: false
  on-skip: warn
  status: {pcie-width: FAIL, open-files: PASS}
  waive: [gpu-node, numa-unknown@node-3:2]
  limits: {gpu-busy: 4096, remap-many: 256}
  xids: {109: PASS, 63: FAIL}

The checks, and what each is if it does not pass:
` + nodecheck.List(),
		Example: "  muster check --all\n  muster check --strict --waive shm-size,pcie-width@node-3:2\n" +
			"  muster check --nproc-per-node 8 --json\n  muster check --switchbox-check --box-pairs 0:1,2:4 --min-bandwidth 10000",
		Annotations: map[string]string{exitAnnotation: "  0    no check failed\n" +
			"  2    usage error, or the policy or spec cannot be used\n  80   a check failed; with --strict also after a warning\n" +
			"  125  internal error of muster\n"},
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return f.what.Links.Needed() },
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.check(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	f.at.add(flags, a)
	flags.StringVar(&f.what.Workers, "nproc-per-node", "auto",
		"workers that are to run here: a number, auto, cpu, gpu or another kind of device")
	f.what.Links.Given = flags.Changed
	flags.BoolVar(&f.what.Links.On, "switchbox-check", false,
		"test the links between pairs of accelerators too, by copies that Python's torch makes")
	flags.StringArrayVar(&f.what.Links.Pairs, "box-pairs", []string{job.DefaultBoxPairs},
		"pairs of devices for --switchbox-check, with blanks or commas between; may be repeated")
	flags.Float64Var(&f.what.Links.MinBandwidth, "min-bandwidth", dialect.DefaultMinBandwidth,
		"what each pair has to reach in both directions, in MB/s of 10^6 bytes")
	flags.IntVar(&f.what.Links.MinChannels, "min-channels", dialect.DefaultMinChannels, "how many healthy pairs the node needs")
	flags.StringVar(&f.what.Links.Python, "python", "", "interpreter that has torch (default python3 or python)")
	flags.BoolVar(&f.what.Strict, "strict", false, "a warning is a failure")
	flags.StringVar(&f.what.OnSkip, "on-skip", "ignore", "what a check that could not be judged counts as: ignore, warn or fail")
	flags.StringSliceVar(&f.what.Waive, "waive", nil,
		"checks whose result is taken for passed: CHECK, CHECK@NODE or CHECK@NODE:GPU, with commas between")
	flags.StringSliceVar(&f.what.Limits, "limit", nil, "limits of checks: CHECK=NUMBER, with commas between")
	flags.StringVar(&f.what.Policy, "policy", "", "YAML file that says what results mean")
	flags.BoolVar(&f.all, "all", false, "show what passed, too")
	flags.BoolVar(&f.asJSON, "json", false, "write JSON")
	fixedWords(cmd,
		map[string][]string{"on-skip": {"ignore", "warn", "fail"}, "nproc-per-node": {"auto", "cpu", "gpu"}, "probe-exec": probeWords})
	return cmd
}

// check checks this node, and shows what was found.
func (a *app) check(ctx context.Context, f checkFlags) error {
	f.what.Look = func(ctx context.Context, moments int) (hardware.Hardware, error) { return f.at.look(ctx, a, moments) }
	f.what.By = nodecheck.Tools{
		Environ: a.here.Environ, Guardian: here.Guardian(), Progress: a.console.Progress,
		Log: func() zerolog.Logger { return a.console.Logger(zerolog.InfoLevel) },
	}
	report, err := f.what.Run(ctx)
	switch {
	case err != nil:
		return err
	case f.asJSON:
		err = writeJSON(a.stdout, report)
	default:
		err = report.Write(a.stdout, f.all)
	}
	if err == nil && report.Status == check.Fail {
		err = errhint.StatusError(errhint.Faulty)
	}
	return err
}
