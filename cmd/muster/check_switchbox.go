package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"muster/cmd/dialect"
	"muster/internal/check"
	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/job"
	"muster/netcheck/devicecheck"
	"muster/netcheck/switchbox"
)

// boxFlags are those of "muster check" about the links between accelerators.
type boxFlags struct {
	on           bool
	pairs        []string
	minBandwidth float64
	minChannels  int
	python       string
	given        func(flag string) bool
}

func (f *boxFlags) add(flags *pflag.FlagSet) {
	f.given = flags.Changed
	flags.BoolVar(&f.on, "switchbox-check", false, "test the links between pairs of accelerators too, by copies that Python's torch makes")
	flags.StringArrayVar(&f.pairs, "box-pairs", []string{job.DefaultBoxPairs},
		"pairs of devices for --switchbox-check, with blanks or commas between; may be repeated")
	flags.Float64Var(&f.minBandwidth, "min-bandwidth", dialect.DefaultMinBandwidth,
		"what each pair has to reach in both directions, in MB/s of 10^6 bytes")
	flags.IntVar(&f.minChannels, "min-channels", dialect.DefaultMinChannels, "how many healthy pairs the node needs")
	flags.StringVar(&f.python, "python", "", "interpreter that has torch (default python3 or python)")
}

// needed refuses what was given for a test that does not take place.
func (f *boxFlags) needed() error {
	if f.on {
		return nil
	}
	for _, flag := range []string{"box-pairs", "min-bandwidth", "min-channels", "python"} {
		if f.given(flag) {
			return errhint.With(errhint.Usagef("--%s has no effect without --switchbox-check", flag), "give --switchbox-check too")
		}
	}
	return nil
}

// rules reads the flags.
func (f *boxFlags) rules() (switchbox.Rules, error) {
	pairs, err := dialect.ParsePairs(strings.Join(f.pairs, " "))
	switch {
	case err != nil:
		return switchbox.Rules{}, errhint.Usagef("--box-pairs: %w", err)
	case f.minBandwidth < 0 || f.minBandwidth != f.minBandwidth: // NaN
		return switchbox.Rules{}, errhint.Usagef("--min-bandwidth %v: not below 0", f.minBandwidth)
	case f.minChannels > len(pairs) && !f.given("min-channels"):
		return switchbox.Rules{},
			errhint.With(errhint.Usagef("--box-pairs has %d of the %d pairs that a healthy node needs", len(pairs), f.minChannels),
				"name more pairs, or say how many are needed: --min-channels")
	case f.minChannels < 0 || f.minChannels > len(pairs):
		return switchbox.Rules{}, errhint.Usagef("--min-channels %d: from 0 to the number of pairs, which is %d", f.minChannels, len(pairs))
	}
	return switchboxRules(job.SwitchboxRules{Pairs: pairs, MinBandwidth: f.minBandwidth, MinChannels: f.minChannels}), nil
}

// switchbox tests the links between the accelerators of a node. What could not be tested is skipped.
func (f *boxFlags) switchbox(ctx context.Context, a *app, here *hardware, rules switchbox.Rules) (results []check.Result, err error) {
	result := func(id string, status check.Status, reason, try string) {
		results = append(results, check.Result{ID: id, Status: status, Reason: reason, Try: try, Source: "L2"})
	}
	path, err := f.interpreter(a)
	if err != nil {
		result("switchbox", check.Skip, err.Error(), "name an interpreter that has torch: --python")
		return results, nil
	}
	log := a.logger(zerolog.InfoLevel)
	now := a.newProgress(log, "test of the links")
	defer now.end()
	tree, err := proc.Open(proc.Config{Log: log, Guardian: []string{"/proc/self/exe", guardianArg}})
	if err != nil {
		return nil, fmt.Errorf("cannot look after processes: %w", err)
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	environ := slices.Clone(a.environ)
	cfg := devicecheck.Config{
		Tree: tree, Python: []string{path}, Env: func(int) []string { return environ },
		Progress: now.process, Log: log,
	}
	if here.fake != nil {
		cfg.Fake, cfg.NoTorch = linksOf(here.fake), here.fake.NoTorch()
		for name, value := range here.fake.Env() {
			environ = append(environ, name+"="+value)
		}
	}
	program, err := devicecheck.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, program.Close()) }() //nolint:contextcheck // whatever became of ctx
	box, err := switchbox.Test(ctx, program, rules)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case noDevice(err):
		result("switchbox", check.Skip, err.Error(), "")
		return results, nil
	case errors.Is(err, devicecheck.ErrNoTorch):
		result("switchbox", check.Skip, err.Error(), "name an interpreter that has torch: --python")
		return results, nil
	case err != nil:
		result("switchbox", check.Fail, err.Error(), "")
		return results, nil
	}
	for _, bad := range box.Bad() {
		result("switchbox-link", check.Warn, bad, "check the cable and the port of the device that is named")
	}
	for _, odd := range box.Odd() {
		result("switchbox-link", check.Warn, odd, "compare the link's cable and port with those of the other pairs")
	}
	if why := box.Fault(); why != "" {
		result("switchbox", check.Fail, why, "exclude the node until its box was repaired")
	} else {
		result("switchbox", check.Pass,
			fmt.Sprintf("%d of %d channels are healthy, %d are needed", box.Healthy, len(box.Links), rules.MinChannels), "")
	}
	return results, nil
}

// noDevice reports that a test failed because this node has no accelerator.
func noDevice(err error) bool {
	fault, ok := errors.AsType[*devicecheck.DeviceError](err)
	return ok && fault.Cause == devicecheck.NoDevice
}

// interpreter returns the path of a Python.
func (f *boxFlags) interpreter(a *app) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	names := []string{"python3", "python"}
	if f.python != "" {
		names = []string{f.python}
	}
	for _, name := range names {
		var path string
		if path, err = proc.LookPath(name, dir, a.environ); err == nil {
			return path, nil
		}
	}
	return "", err
}
