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
	"muster/internal/hardware"
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
	rules := switchbox.Rules{MinBandwidth: f.minBandwidth, MinChannels: f.minChannels}
	for _, p := range pairs {
		rules.Pairs = append(rules.Pairs, devicecheck.Pair(p))
	}
	return rules, nil
}

// test tests the links between the accelerators of a node.
func (f *boxFlags) test(ctx context.Context, a *app, here *hardware.Hardware, rules switchbox.Rules) (results []check.Result, err error) {
	path, err := f.interpreter(a)
	if err != nil {
		return switchbox.Skipped(err), nil
	}
	log := a.logger(zerolog.InfoLevel)
	now := a.progress(log, "test of the links")
	defer now.End()
	tree, err := proc.Open(proc.Config{Log: log, Guardian: []string{"/proc/self/exe", guardianArg}})
	if err != nil {
		return nil, fmt.Errorf("cannot look after processes: %w", err)
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	environ := slices.Clone(a.environ)
	cfg := devicecheck.Config{
		Tree: tree, Python: []string{path}, Env: func(int) []string { return environ },
		Progress: func(local int, step string) { now.Detail(devicecheck.StepText(local, step)) }, Log: log,
	}
	if here.Fake != nil {
		cfg.Fake, cfg.NoTorch = linksOf(here.Fake), here.Fake.NoTorch()
		for name, value := range here.Fake.Env() {
			environ = append(environ, name+"="+value)
		}
	}
	return switchbox.Check(ctx, cfg, rules)
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
