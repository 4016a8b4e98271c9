package dialect

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// groupCheck is the help text's heading over the tests before a start.
const groupCheck = "Tests before the workers start"

// Defaults of the checks, as they would be typed.
const (
	defaultBudget       = "120s"
	defaultFactorSlow   = "2"
	defaultNetBandwidth = 100
	defaultQuarantine   = "10m"
	quarantineTime      = 10 * time.Minute // the same
)

// Defaults of the test of the links between accelerators, which are MetaX's as job.DefaultBoxPairs: MB/s and healthy
// pairs.
const (
	DefaultMinBandwidth = 10000
	DefaultMinChannels  = 2
)

// checkSettings say what is tested before workers start. They are a launcher's own flags only in dlrover-run.
func checkSettings(w *ownWords) []option {
	check := func(r *Request) *job.CheckRules { return &r.Job.Check }
	return []option{
		{
			name: "network-check", word: &w.NetworkCheck, frequent: true, dlrover: true, kind: kindFlag, def: "false", group: groupCheck,
			anywhere: true, use: always,
			help: "Test each node by itself and then pairs of nodes, before the first start and before each new round. A node at fault " +
				"leaves the job with status 80, and only the guilty one is blamed.",
			set: func(r *Request, text string) error { return setSwitch(&check(r).Network, text) },
		},
		{
			name: "network-check-full", word: &w.NetworkCheckFull, kind: kindFlag, def: "false", group: groupCheck, anywhere: true,
			use:  always,
			help: "Test every pair of nodes, so that every link is judged; implies --network-check.",
			set:  func(r *Request, text string) error { return setSwitch(&check(r).Full, text) },
		},
		{
			name: "network-check-timeout", word: &w.NetworkCheckTimeout, kind: kindTime, arg: "TIME", def: defaultBudget,
			group: groupCheck, anywhere: true,
			use:  use{anyCheck},
			help: "What one node's own tests, and each round of pairs, may take.",
			set:  func(r *Request, text string) error { return setPositive(&check(r).Budget, text, time.Millisecond) },
		},
		{
			name: "straggler-factor", word: &w.StragglerFactor, kind: kindFloat, arg: "X", def: defaultFactorSlow, group: groupCheck,
			anywhere: true,
			use:      use{checked, losable},
			help:     "How many times slower than the others a node is that counts as a straggler.",
			set: func(r *Request, text string) error {
				f, err := pyFloat(text)
				if err != nil || !(f >= 1) || math.IsInf(f, 0) {
					return errors.New("give a number from 1, such as 2 or 1.5")
				}
				check(r).StragglerFactor = f
				return nil
			},
		},
		{
			name: "straggler-rule", word: &w.StragglerRule, arg: "mean|median", def: "mean", group: groupCheck, anywhere: true,
			use:  use{checked, losable},
			help: "What a node's time is compared with: the mean of the others, or the median of all, as DLRover does.",
			set: func(r *Request, text string) error {
				check(r).StragglerMedian = text == "median"
				return oneOf(text, "mean", "median")
			},
		},
		{
			name: "exclude-straggler", word: &w.ExcludeStraggler, dlrover: true, kind: kindFlag, def: "false", group: groupCheck,
			anywhere: true,
			use:      use{trained, losable},
			help: "A straggler leaves the job with status 81; otherwise it is only told. One that the network check finds leaves at " +
				"once, one that holds up the steps of the training at the next restart, if the job can do without it (--nnodes " +
				"MIN:MAX, --spares).",
			set: func(r *Request, text string) error { return setSwitch(&check(r).ExcludeStraggler, text) },
		},
		{
			name: "comm-perf-test", word: &w.CommPerfTest, dlrover: true, kind: kindFlag, def: "false", group: groupCheck, anywhere: true,
			use:  use{checked},
			help: "Once the network check was passed, measure and print the bandwidth of all nodes together.",
			set:  func(r *Request, text string) error { return setSwitch(&check(r).CommPerf, text) },
		},
		{
			name: "min-net-bandwidth", word: &w.MinNetBandwidth, kind: kindFloat, arg: "MB/s", def: fmt.Sprint(defaultNetBandwidth),
			group:    groupCheck,
			anywhere: true, use: use{measured, losable, tokened},
			help: "What --comm-perf-test wants of a TCP stream between two nodes, where the job has a token; less is told, and nobody " +
				"leaves for it. 1 MB is 10^6 bytes.",
			set: func(r *Request, text string) error { return setBandwidth(&check(r).MinNetBandwidth, text) },
		},
		{
			name: "switchbox-check", word: &w.SwitchboxCheck, dlrover: true, kind: kindFlag, def: "false", group: groupCheck,
			anywhere: true, use: always,
			help: "Test the links between pairs of accelerators of this node.",
			set:  checkSwitch, // settleCheck fills in the rest
		},
		{
			name: "box-pairs", word: &w.BoxPairs, dlrover: true, kind: kindPairs, separator: " ", arg: "A:B ...", def: job.DefaultBoxPairs,
			group:    groupCheck,
			anywhere: true, use: use{boxed},
			help: "Pairs of devices for --switchbox-check, by their numbers on this node: in one word with blanks or commas between, in " +
				"several words, or with the flag repeated.",
			set: func(r *Request, text string) (err error) {
				check(r).Switchbox.Pairs, err = ParsePairs(text)
				return err
			},
		},
		{
			name: "min-bandwidth", word: &w.MinBandwidth, dlrover: true, kind: kindFloat, arg: "MB/s",
			def: fmt.Sprint(DefaultMinBandwidth), group: groupCheck, anywhere: true,
			use:  use{boxed},
			help: "What each pair has to reach in both directions; 1 MB is 10^6 bytes.",
			set:  func(r *Request, text string) error { return setBandwidth(&check(r).Switchbox.MinBandwidth, text) },
		},
		{
			name: "min-channels", word: &w.MinChannels, dlrover: true, kind: kindInt, arg: "N", def: fmt.Sprint(DefaultMinChannels),
			group: groupCheck, anywhere: true,
			use:  use{boxed},
			help: "How many healthy pairs a node needs; with fewer it is at fault.",
			set:  func(r *Request, text string) error { return setCount(&check(r).Switchbox.MinChannels, text) },
		},
		{
			name: "on-node-fault", word: &w.OnNodeFault, arg: "CMD", group: groupCheck, anywhere: true, use: use{leaves},
			help: "Command for the shell, run by the node with group rank 0 for each node that has to leave: MUSTER_NODE, " +
				"MUSTER_VERDICT (faulty, straggler, undecided), MUSTER_STATUS and MUSTER_REASON tell it which and why. It could cordon " +
				"the node.",
			set: func(r *Request, text string) error { check(r).OnNodeFault = text; return nil },
		},
		{
			name: "quarantine", word: &w.Quarantine, kind: kindTime, arg: "TIME", def: defaultQuarantine, group: groupCheck, anywhere: true,
			use: use{byAgents, leaves, severalNodes, comeBack, spareNodes},
			help: "How long a node that had to leave may not come back: twice as long with each time. It is known by its name and by " +
				"the ids of its accelerators. 0: it may at once.",
			set: func(r *Request, text string) error { return setTime(&check(r).Quarantine, text) },
		},
		{
			name: "health-endpoint", word: &w.HealthEndpoint, arg: "unix:PATH", group: groupCheck, anywhere: true, use: use{byAgents},
			help: "Ask a health service of the site at a Unix socket whether this node is fit, before it takes part in a round, in the " +
				"protocol of NVIDIA's resiliency extension (nvhcd.HealthCheckService). A node that is not leaves with status 80; an " +
				"answer that cannot be used changes nothing.",
			set: func(r *Request, text string) (err error) {
				r.Job.Health.Socket, err = job.SocketPath(text)
				return err
			},
		},
		{
			name: "health-command", word: &w.HealthCommand, arg: "CMD", group: groupCheck, anywhere: true, use: use{byAgents},
			help: "Command for the shell that says by its exit status whether this node is fit, before it takes part in a round: 0 that " +
				"it is; any other that it is not, and its last line says why: the node leaves with status 80. A command that cannot be " +
				"run, is killed, or takes longer than 60 s changes nothing. It has MUSTER_NODE, MUSTER_RUN_ID and MUSTER_ROUND.",
			set: func(r *Request, text string) error { r.Job.Health.Command = text; return notBlank(text, "a command") },
		},
		{
			name: "report", word: &w.Report, arg: "DIR", group: groupCheck, anywhere: true, use: use{anyCheck},
			help: "Write the results of the tests to DIR.",
			set:  func(r *Request, text string) error { check(r).ReportDir = text; return nil },
		},
	}
}

// setBandwidth reads a number of MB/s.
func setBandwidth(to *float64, text string) error {
	f, err := pyFloat(text)
	if err != nil || !(f >= 0) || math.IsInf(f, 0) {
		return errors.New("give a number of MB/s from 0")
	}
	*to = f
	return nil
}

// pairWord is a word that can only be a pair of devices: as such it still belongs to the --box-pairs in front of it.
var pairWord = lazyregexp.New(`^[0-9]+:[0-9]+$`)

// ParsePairs reads the pairs of --box-pairs, of devices with blanks or commas between.
func ParsePairs(text string) ([][2]int, error) {
	items := strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' || c == '\n' })
	if len(items) == 0 {
		return nil, errors.New("give pairs of devices, such as 0:1 2:4")
	}
	var pairs [][2]int
	var seen []int
	for _, item := range items {
		left, right, ok := strings.Cut(item, ":")
		a, errA := pyInt(left)
		b, errB := pyInt(right)
		switch {
		case !ok || errA != nil || errB != nil || a < 0 || b < 0:
			return nil, fmt.Errorf("%q is no pair of devices: write two numbers from 0, as in 0:1", item)
		case a == b:
			return nil, fmt.Errorf("%q pairs a device with itself", item)
		}
		for _, device := range [2]int{a, b} {
			if slices.Contains(seen, device) {
				return nil, fmt.Errorf("%q: device %d is in another pair already", item, device)
			}
			seen = append(seen, device)
		}
		pairs = append(pairs, [2]int{a, b})
	}
	return pairs, nil
}

// settleCheck fills in what is tested where nothing else was said. What was given for a test that does not take place
// counts for nothing, which the settings' uses tell.
func settleCheck(r *Request, words *ownWords, wrong *problems) {
	c := &r.Job.Check
	if full := words.NetworkCheckFull; c.Full && !c.Network {
		if r.staysOff(words.NetworkCheck, full, wrong) {
			c.Full = false
		} else {
			c.Network = true
			r.tell(&words.NetworkCheck, "true", full.source)
		}
	}
	box := words.SwitchboxCheck.switched()
	if box && !c.Network && r.Job.Dialect == dlroverRun {
		if word := &words.SwitchboxCheck; word.ours() {
			r.Job.Warnings = append(r.Job.Warnings, word.written()+" has no effect without --network-check: it is a part of it")
		} else {
			wrong.add(errhint.With(fmt.Errorf("cannot use %s without --network-check: it is a part of it", word.typed()),
				"give --network-check too; muster run takes --switchbox-check alone"))
		}
		box = false
	}
	if !c.Network && !box {
		kept := job.CheckRules{}
		if r.Job.Excludes() {
			kept.OnNodeFault, kept.Quarantine, kept.ExcludeStraggler = c.OnNodeFault, c.Quarantine, c.ExcludeStraggler && !r.driven()
			if !words.Quarantine.given {
				kept.Quarantine = quarantineTime
			}
		}
		*c = kept
		return
	}
	for _, s := range settings() { // what nobody gave has its default, as if it were typed
		if s.group == groupCheck && s.def != "" && s.kind != kindFlag && !s.of(words).given {
			if err := s.set(r, s.def); err != nil {
				panic("internal error: the default of --" + s.name + ": " + err.Error())
			}
		}
	}
	if !box {
		c.Switchbox = job.SwitchboxRules{}
		return
	}
	if b := c.Switchbox; len(b.Pairs) > 0 && b.MinChannels > len(b.Pairs) {
		wrong.add(fmt.Errorf("cannot use %s with %s: it has fewer pairs", words.MinChannels.writtenOr(fmt.Sprint(b.MinChannels)),
			words.BoxPairs.writtenOr(job.DefaultBoxPairs)))
	}
}

// staysOff reports whether somebody has switched a test off, in as strong a place as another word that asks for it. That
// word is refused if it is a flag; else a warning says that it has no effect.
func (r *Request) staysOff(test, by value, wrong *problems) bool {
	switch {
	case !test.given || test.switched() || test.source.Kind < by.source.Kind:
		return false
	case by.source.Kind == job.FromFlag:
		wrong.add(fmt.Errorf("cannot use %s and %s together: give one of them", test.written(), by.typed()))
	default:
		r.Job.Warnings = append(r.Job.Warnings, fmt.Sprintf("%s has no effect beside %s", by.written(), test.written()))
	}
	return true
}

// writtenOr is how the setting was given, or would have been.
func (v value) writtenOr(def string) string {
	if v.given {
		return v.written()
	}
	return "--" + v.option.name + " " + def + " (the default)"
}
