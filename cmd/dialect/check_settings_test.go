package dialect_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/launch/job"
)

// checks are the rules of a job that tests its network, changed by the functions.
func checks(change ...func(*job.CheckRules)) job.CheckRules {
	c := job.CheckRules{Network: true, Budget: 2 * time.Minute, StragglerFactor: 2, MinNetBandwidth: 100, Quarantine: 10 * time.Minute}
	for _, f := range change {
		f(&c)
	}
	return c
}

func switchbox(c *job.CheckRules) {
	c.Switchbox = job.SwitchboxRules{Pairs: [][2]int{{0, 1}, {2, 4}, {3, 5}, {6, 7}}, MinBandwidth: 10000, MinChannels: 2}
}

func TestChecks(t *testing.T) {
	boxOnly := checks(switchbox, func(c *job.CheckRules) { c.Network = false })
	for _, c := range []struct {
		name, args, config string
		env                []string
		want               job.CheckRules
	}{
		{name: "nothing is tested unasked"},
		{name: "network", args: "--network-check", want: checks()},
		{name: "underscores", args: "--network_check", want: checks()},
		{name: "full implies it", args: "--network-check-full", want: checks(func(c *job.CheckRules) { c.Full = true })},
		{name: "the switchbox alone", args: "--switchbox-check", want: boxOnly},
		{name: "both", args: "--switchbox-check --network-check", want: checks(switchbox)},
		{
			name: "variables", env: []string{"MUSTER_NETWORK_CHECK=1", "PET_EXCLUDE_STRAGGLER=1"},
			want: checks(func(c *job.CheckRules) { c.ExcludeStraggler = true }),
		},
		{name: "variables of a test that is off", env: []string{"MUSTER_ON_NODE_FAULT=x", "MUSTER_BOX_PAIRS=0:1", "MUSTER_REPORT=d"}},
		{
			name: "a file", args: "--config conf.yaml",
			config: "switchbox-check: true\nbox-pairs: ['0:1', '2:3']\nmin-bandwidth: 1.5\nstraggler-factor: 3\n",
			want: job.CheckRules{
				Budget: 2 * time.Minute, StragglerFactor: 3, MinNetBandwidth: 100, Quarantine: 10 * time.Minute,
				Switchbox: job.SwitchboxRules{Pairs: [][2]int{{0, 1}, {2, 3}}, MinBandwidth: 1.5, MinChannels: 2},
			},
		},
		{
			name: "no demands", args: "--switchbox-check --min-bandwidth 0 --min-channels 0",
			want: checks(switchbox, func(c *job.CheckRules) {
				c.Network, c.Switchbox.MinBandwidth, c.Switchbox.MinChannels = false, 0, 0
			}),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(strings.Fields(c.args), "prog")
			if diff := cmp.Diff(c.want, accepted(t, c.env, c.config, args...).Job.Check); diff != "" {
				t.Errorf("run %q (-want +got):\n%s", args, diff)
			}
		})
	}
}

// Everybody writes pairs in another way, and the guide does not say in which.
func TestBoxPairs(t *testing.T) {
	want := [][2]int{{0, 1}, {2, 4}, {10, 5}}
	for _, args := range [][]string{
		{"--box-pairs", "0:1 2:4 10:5"},
		{"--box-pairs", " 0:1,2:4,\t10:5 "},
		{"--box-pairs", "0:1", "2:4", "10:5"},
		{"--box_pairs=0:1", "2:4", "--box-pairs", "10:5"},
		{"--box-pairs=0:1,2:4", "10:5"},
		{"--box-pairs", "0:1", "--box-pairs", "2:4", "10:5"},
	} {
		native := append([]string{"--switchbox-check"}, args...)
		for _, native := range [][]string{
			append(slices.Clip(native), "prog", "9:8"), append(slices.Clip(native), "--", "prog", "9:8"),
			append(slices.Clip(native), "--role", "r", "prog", "9:8"),
			append(slices.Clip(args), "--switchbox-check", "prog", "9:8"),
		} {
			job := accepted(t, nil, "", native...).Job
			if diff := cmp.Diff(want, job.Check.Switchbox.Pairs); diff != "" {
				t.Errorf("run %q (-want +got):\n%s", native, diff)
			}
			if job.Command.Name != "prog" || len(job.Command.Args) != 1 {
				t.Errorf("run %q: the command is %q %q", native, job.Command.Name, job.Command.Args)
			}
		}
		own, rest, err := dialect.ParseOwn(append(native, "torchrun", "x.py", "9:8"))
		if err != nil || len(rest) != 3 {
			t.Fatalf("%q: rest %q, %v", native, rest, err)
		}
		req, err := dialect.Torchrun(dialect.Invocation{Args: rest[1:], Own: own})
		if err != nil {
			t.Fatalf("%q: %v", native, err)
		}
		if diff := cmp.Diff(want, req.Job.Check.Switchbox.Pairs); diff != "" {
			t.Errorf("%q in front of torchrun (-want +got):\n%s", native, diff)
		}
	}
	if job := accepted(t, nil, "", "--switchbox-check", "--box-pairs", "0:1 2:3", "--", "4:5").Job; job.Command.Name != "4:5" {
		t.Errorf("the command behind -- is %q", job.Command.Name)
	}
	if job := accepted(t, nil, "", "--role", "r", "4:5").Job; job.Command.Name != "4:5" {
		t.Errorf("the command is %q", job.Command.Name)
	}
}

func TestChecksRefused(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--switchbox-check --box-pairs 0:1,0:2", `"0:2": device 0 is in another pair`},
		{"--switchbox-check --box-pairs 0:1,1:0", `"1:0": device 1 is in another pair`},
		{"--switchbox-check --box-pairs 0:1 --box-pairs 2:2", `"2:2" pairs a device with itself`},
		{"--switchbox-check --box-pairs -1:2", `"-1:2" is no pair`},
		{"--switchbox-check --box-pairs 0:1,2-4", `"2-4" is no pair`},
		{"--switchbox-check --box-pairs 0:x", `"0:x" is no pair`},
		{"--switchbox-check --box-pairs 0:1:2", `"0:1:2" is no pair`},
		{"--switchbox-check --box-pairs=", "give pairs of devices"},
		{"--switchbox-check --box-pairs ,", "give pairs of devices"},
		{"--switchbox-check --min-channels 5", "--min-channels 5 with --box-pairs 0:1 2:4 3:5 6:7 (the default): it has fewer pairs"},
		{"--switchbox-check --box-pairs 0:1", "--min-channels 2 (the default) with --box-pairs 0:1"},
		{"--switchbox-check --min-channels -1", "--min-channels -1"},
		{"--switchbox-check --min-bandwidth -1", "--min-bandwidth -1"},
		{"--switchbox-check --min-bandwidth nan", "--min-bandwidth nan"},
		{"--switchbox-check --min-bandwidth inf", "--min-bandwidth inf"},
		{"--network-check --straggler-factor 0.5", "--straggler-factor 0.5"},
		{"--network-check --straggler-factor nan", "--straggler-factor nan"},
		{"--network-check --straggler-factor inf", "--straggler-factor inf"},
		{"--network-check --straggler-rule mode", "choose one of mean, median"},
		{"--network-check --network-check-timeout 0", "--network-check-timeout 0"},
		{"--network-check --network-check-timeout -1", "--network-check-timeout -1"},
		{"--network-check --comm-perf-test --min-net-bandwidth -5", "--min-net-bandwidth -5"},
		{"--network-check --min-net-bandwidth 5", "no effect without --comm-perf-test"},
		{"--exclude-straggler", "no effect without --network-check"},
		{"--comm-perf-test --switchbox-check", "no effect without --network-check"},
		{"--network-check --box-pairs 0:1", "no effect without --switchbox-check"},
		{"--on-node-fault x", "no effect where no node has to leave"},
	} {
		_, err := native(nil, "", append(strings.Fields(c.args), "prog")...)
		wantRefused(t, err, c.want)
	}
}
