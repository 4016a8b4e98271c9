package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"muster/internal/accel"
	"muster/internal/check"
	"muster/internal/errhint"
	"muster/launch/devices"
	"muster/netcheck/switchbox"
)

// checkFlags are those of "muster check".
type checkFlags struct {
	acceleratorFlags

	policy, onSkip, workers string
	waive, limits           []string
	strict, all, asJSON     bool
	box                     boxFlags
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
` + listChecks(),
		Example:     "  muster check --all\n  muster check --strict --waive shm-size,pcie-width@node-3:2\n  muster check --nproc-per-node 8 --json\n  muster check --switchbox-check --box-pairs 0:1,2:4 --min-bandwidth 10000",
		Annotations: map[string]string{exitAnnotation: "  0    no check failed\n  2    usage error, or the policy or spec cannot be used\n  80   a check failed; with --strict also after a warning\n  125  internal error of muster\n"},
		Args:        cobra.NoArgs,
		PreRunE:     func(*cobra.Command, []string) error { return f.box.needed() },
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.check(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	f.add(flags, a)
	flags.StringVar(&f.workers, "nproc-per-node", "auto",
		"workers that are to run here: a number, auto, cpu, gpu or another kind of device")
	f.box.add(flags)
	flags.BoolVar(&f.strict, "strict", false, "a warning is a failure")
	flags.StringVar(&f.onSkip, "on-skip", "ignore", "what a check that could not be judged counts as: ignore, warn or fail")
	flags.StringSliceVar(&f.waive, "waive", nil,
		"checks whose result is taken for passed: CHECK, CHECK@NODE or CHECK@NODE:GPU, with commas between")
	flags.StringSliceVar(&f.limits, "limit", nil, "limits of checks: CHECK=NUMBER, with commas between")
	flags.StringVar(&f.policy, "policy", "", "YAML file that says what results mean")
	flags.BoolVar(&f.all, "all", false, "show what passed, too")
	flags.BoolVar(&f.asJSON, "json", false, "write JSON")
	fixedWords(cmd,
		map[string][]string{"on-skip": {"ignore", "warn", "fail"}, "nproc-per-node": {"auto", "cpu", "gpu"}, "probe-exec": probeWords})
	return cmd
}

func listChecks() string {
	var b strings.Builder
	for _, id := range check.IDs() {
		if id.Apart && !strings.HasPrefix(id.Name, "switchbox") {
			continue
		}
		limit := ""
		if id.Unit != "" {
			limit = fmt.Sprintf(" (%d %s)", id.Limit, id.Unit)
		}
		fmt.Fprintf(&b, "  %-18s %-5v %s%s\n", id.Name, id.Default, id.Text, limit)
	}
	return strings.TrimRight(b.String(), "\n")
}

// moments is how often a GPU must be found slowed down to be judged so.
const moments = 3

func (a *app) check(ctx context.Context, f checkFlags) error {
	policy, err := f.read()
	if err != nil {
		return err
	}
	var rules switchbox.Rules
	if f.box.on {
		if rules, err = f.box.rules(); err != nil {
			return err
		}
	}
	here, err := f.look(ctx, a, moments)
	if err != nil {
		return err
	}
	if err := devices.PairsFit(rules.Pairs, here.Inventory); err != nil {
		return err
	}
	cpus, _ := accel.CPUs(here.Root)
	workers, err := strconv.Atoi(f.workers)
	switch {
	case err != nil:
		if workers, _, err = accel.Workers(f.workers, here.Inventory, cpus); err != nil {
			return err
		}
	case workers < 1:
		return errhint.Usagef("--nproc-per-node %d: at least 1", workers)
	}
	node := here.Health(ctx)
	node.Workers, node.CPUs, node.Policy = workers, cpus, &policy
	results := node.Check()
	if err := context.Cause(ctx); err != nil {
		return err // what was not asked any more would be told as a skip
	}
	if f.box.on {
		links, err := f.box.test(ctx, a, &here, rules)
		if err != nil {
			return err
		}
		results = append(results, links...)
	}
	report := policy.Judge(here.Host, results)
	report.Fake = here.Inventory.Fake
	if here.NVML != nil && here.NVML.SMI { // any other reason is that of the checks that were skipped
		report.Notes = append(report.Notes, here.Degraded())
	}
	if f.asJSON {
		err = writeJSON(a.stdout, report)
	} else {
		err = report.Write(a.stdout, f.all)
	}
	if err == nil && report.Status == check.Fail {
		return errhint.StatusError(errhint.Faulty)
	}
	return err
}

// read makes a policy of the flags; they add to what the file says.
func (f *checkFlags) read() (check.Policy, error) {
	var p check.Policy
	if f.policy != "" {
		var err error
		if p, err = check.LoadPolicy(f.policy); err != nil {
			return p, err
		}
	}
	p.Strict = p.Strict || f.strict
	onSkip, err := check.ParseOnSkip(f.onSkip)
	if err != nil {
		return p, errhint.Usagef("--on-skip: %w", err)
	}
	p.OnSkip = max(p.OnSkip, onSkip)
	for _, text := range f.waive {
		w, err := check.ParseWaiver(text)
		if err != nil {
			return p, errhint.Usagef("--waive: %w", err)
		}
		p.Waive = append(p.Waive, w)
	}
	for _, text := range f.limits {
		if err := p.ParseLimit(text); err != nil {
			return p, errhint.Usagef("--limit: %w", err)
		}
	}
	return p, nil
}
