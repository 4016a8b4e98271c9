package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"muster/cmd/dialect"
	"muster/internal/check"
	"muster/internal/errhint"
	"muster/internal/hardware"
	"muster/internal/proc"
	"muster/netcheck/devicecheck"
	"muster/netcheck/switchbox"
)

// Links say whether the links between accelerators are tested, too, and by what: the words of the flags of muster check.
type Links struct {
	On           bool
	Pairs        []string
	MinBandwidth float64
	MinChannels  int
	Python       string // empty: python3, or python
	Given        func(flag string) bool
}

// Needed refuses what was given for a test that does not take place.
func (f *Links) Needed() error {
	if f.On {
		return nil
	}
	for _, flag := range []string{"box-pairs", "min-bandwidth", "min-channels", "python"} {
		if f.Given(flag) {
			return errhint.With(errhint.Usagef("--%s has no effect without --switchbox-check", flag), "give --switchbox-check too")
		}
	}
	return nil
}

// rules reads the flags.
func (f *Links) rules() (switchbox.Rules, error) {
	pairs, err := dialect.ParsePairs(strings.Join(f.Pairs, " "))
	switch {
	case err != nil:
		return switchbox.Rules{}, errhint.Usagef("--box-pairs: %w", err)
	case f.MinBandwidth < 0 || f.MinBandwidth != f.MinBandwidth: // NaN
		return switchbox.Rules{}, errhint.Usagef("--min-bandwidth %v: not below 0", f.MinBandwidth)
	case f.MinChannels > len(pairs) && !f.Given("min-channels"):
		return switchbox.Rules{},
			errhint.With(errhint.Usagef("--box-pairs has %d of the %d pairs that a healthy node needs", len(pairs), f.MinChannels),
				"name more pairs, or say how many are needed: --min-channels")
	case f.MinChannels < 0 || f.MinChannels > len(pairs):
		return switchbox.Rules{}, errhint.Usagef("--min-channels %d: from 0 to the number of pairs, which is %d", f.MinChannels, len(pairs))
	}
	rules := switchbox.Rules{MinBandwidth: f.MinBandwidth, MinChannels: f.MinChannels}
	for _, p := range pairs {
		rules.Pairs = append(rules.Pairs, devicecheck.Pair(p))
	}
	return rules, nil
}

// test tests the links between the accelerators of a node.
func (f *Links) test(ctx context.Context, by *Tools, here *hardware.Hardware, rules switchbox.Rules) (results []check.Result, err error) {
	path, err := f.interpreter(by.Environ)
	if err != nil {
		return switchbox.Skipped(err), nil
	}
	log := by.Log()
	now := by.Progress(log, "test of the links")
	defer now.End()
	tree, err := proc.Open(proc.Config{Log: log, Guardian: by.Guardian})
	if err != nil {
		return nil, fmt.Errorf("cannot look after processes: %w", err)
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	environ := slices.Clone(by.Environ)
	cfg := devicecheck.Config{
		Tree: tree, Python: []string{path}, Env: func(int) []string { return environ },
		Progress: func(local int, step string) { now.Detail(devicecheck.StepText(local, step)) }, Log: log,
	}
	if here.Fake != nil {
		cfg.Fake, cfg.NoTorch = fakeLinks(here.Fake), here.Fake.NoTorch()
		for name, value := range here.Fake.Env() {
			environ = append(environ, name+"="+value)
		}
	}
	return switchbox.Check(ctx, cfg, rules)
}

// interpreter returns the path of a Python.
func (f *Links) interpreter(environ []string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	names := []string{"python3", "python"}
	if f.Python != "" {
		names = []string{f.Python}
	}
	for _, name := range names {
		var path string
		if path, err = proc.LookPath(name, dir, environ); err == nil {
			return path, nil
		}
	}
	return "", err
}
