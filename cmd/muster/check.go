package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"muster/internal/accel"
	"muster/internal/check"
	"muster/internal/errhint"
	"muster/internal/health"
)

// checkFlags are those of "muster check".
type checkFlags struct {
	acceleratorFlags

	policy, onSkip, workers string
	waive                   []string
	strict, all, asJSON     bool
}

// newCheckCmd is "muster check": whether this node is fit for training.
func newCheckCmd(a *app) *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check [--strict] [--waive CHECK[@NODE[:GPU]],...] [--policy FILE] [--json]",
		Short: "Check whether this node is fit for training",
		Long: `Check this node by what its files and limits say: its accelerators on the bus and their
drivers, /dev/shm, locked memory, open files, CPUs, disk, and variables that slow
training down. Each check ends as PASS, WARN, FAIL, or SKIP with the reason why it
could not be judged.

A policy file holds the same in YAML, and may give checks a status of their own:

  strict: false
  on-skip: warn
  status: {pcie-width: FAIL, open-files: PASS}
  waive: [gpu-node, numa-unknown@node-3:2]

The checks:
` + listChecks(),
		Example:     "  muster check --all\n  muster check --strict --waive shm-size,pcie-width@node-3:2\n  muster check --nproc-per-node 8 --json",
		Annotations: map[string]string{exitAnnotation: "  0    no check failed\n  2    usage error, or the policy or spec cannot be used\n  80   a check failed; with --strict also after a warning\n  125  internal error of muster\n"},
		Args:        cobra.NoArgs,
		RunE:        func(*cobra.Command, []string) error { return a.check(f) },
	}
	flags := cmd.Flags()
	f.add(flags, a)
	flags.StringVar(&f.workers, "nproc-per-node", "auto", "workers that are to run here: a number, auto, cpu, gpu or another kind of device")
	flags.BoolVar(&f.strict, "strict", false, "a warning is a failure")
	flags.StringVar(&f.onSkip, "on-skip", "ignore", "what a check that could not be judged counts as: ignore, warn or fail")
	flags.StringSliceVar(&f.waive, "waive", nil, "checks whose result is taken for passed: CHECK, CHECK@NODE or CHECK@NODE:GPU, with commas between")
	flags.StringVar(&f.policy, "policy", "", "YAML file that says what results mean")
	flags.BoolVar(&f.all, "all", false, "show what passed, too")
	flags.BoolVar(&f.asJSON, "json", false, "write JSON")
	return cmd
}

func listChecks() string {
	var b strings.Builder
	for _, id := range check.IDs() {
		fmt.Fprintf(&b, "  %-18s %-5v %s\n", id.Name, id.Default, id.Text)
	}
	return strings.TrimRight(b.String(), "\n")
}

func (a *app) check(f checkFlags) error {
	policy, err := f.read()
	if err != nil {
		return err
	}
	here, err := f.look(a)
	if err != nil {
		return err
	}
	cpus, _ := accel.CPUs(here.root)
	workers, err := strconv.Atoi(f.workers)
	switch {
	case err != nil:
		if workers, _, err = accel.Workers(f.workers, here.inv, cpus); err != nil {
			return err
		}
	case workers < 1:
		return errhint.Usagef("--nproc-per-node %d: at least 1", workers)
	}
	node := &health.Node{
		Root: here.root, Machine: health.Real(), Inventory: here.inv, Lookup: a.lookupEnv, Workers: workers, CPUs: cpus, TempDir: os.TempDir(),
	}
	report := policy.Judge(here.host, node.Check())
	report.Fake = here.inv.Fake
	if f.asJSON {
		err = writeJSON(a.stdout, report)
	} else {
		err = report.Write(a.stdout, f.all)
	}
	if err == nil && report.Status == check.Fail {
		return statusError(errhint.Faulty)
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
	return p, nil
}
