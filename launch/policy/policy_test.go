package policy

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"muster/internal/testutil"
	"muster/launch/job"
	"muster/rendezvous"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestPolicyTranscripts replays testdata/*.txt. A line "rules ..." starts a policy, every other line at the left margin
// is an event, and the indented line below it is the decision. Without chance, delays are the largest possible. "keep"
// is no event and has no decision. "world" in the rules are the workers of this node, on the line "started" those of
// all nodes.
func TestPolicyTranscripts(t *testing.T) {
	testutil.Transcripts(t, "testdata/*.txt", *update, replay)
}

func replay(t *testing.T, transcript string) string {
	t.Helper()
	var out strings.Builder
	var p *Policy
	for line := range strings.Lines(transcript) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue // a decision of the last time
		}
		out.WriteString(line + "\n")
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "keep":
			p.Keep()
		case "", "#":
		case "rules":
			rules, world := parseRules(t, rest)
			p = New(rules, world, func() float64 { return 0 })
		default:
			fmt.Fprintf(&out, "  %s\n", describe(p.Step(parseEvent(t, word, rest))))
		}
	}
	return out.String()
}

func parseEvent(t *testing.T, word, rest string) Event {
	t.Helper()
	fields := strings.Fields(rest)
	after, err := time.ParseDuration(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	e := Event{At: time.Unix(0, 0).Add(after)}
	value := func(name string, missing int) int {
		for _, f := range fields[1:] {
			if text, ok := strings.CutPrefix(f, name+"="); ok {
				n, err := strconv.Atoi(text)
				if err != nil {
					t.Fatalf("%q: %v", rest, err)
				}
				return n
			}
		}
		return missing
	}
	switch word {
	case "started":
		e.Kind = GroupStarted
		e.World, e.Restarts, e.Replacements = value("world", 0), value("restarts", 0), value("replaced", 0)
	case "all-ended":
		e.Kind = WorldEnded
		e.Failed, e.Rank, e.Status = value("failed", 0), value("rank", -1), value("status", 0)
	case "said", "agreed": // by another node; what this one proposed
		e.Kind, e.Own = VerdictHeard, word == "agreed"
		e.Said = rendezvous.Verdict{
			Kind: rendezvous.VerdictKind(fields[1]), Reason: fields[2], Message: "why it is so", Node: "node-b",
			Rank: value("rank", -1), Status: value("status", 0), Restarts: value("restarts", 0),
			Delay: time.Duration(value("delay-s", 0)) * time.Second, Linger: time.Duration(value("linger-s", 0)) * time.Second,
		}
	case "deadline":
		e.Kind = DeadlineReached
	case "stop":
		e.Kind = StopRequested
	case "exit":
		e.Kind = WorkerExited
		if _, err := fmt.Sscanf(strings.Join(fields[1:3], " "), "rank=%d status=%d", &e.Rank, &e.Status); err != nil {
			t.Fatalf("%q: %v", rest, err)
		}
		e.Stopped = len(fields) > 3 && fields[3] == "stopped"
		e.Echo = len(fields) > 3 && fields[3] == "echo"
		e.Further = len(fields) > 3 && fields[3] == "further"
		if slices.Contains(fields, "exclude") {
			e.Exclude = rendezvous.Expulsion{GroupRank: 1, Node: "node-b", Status: 80}
		}
	case "hang":
		e.Kind, e.StartAgain, e.Status, e.Text = WorkersHang, slices.Contains(fields, "restart"), 124, "nobody lives"
		e.Borne = slices.Contains(fields, "borne")
		if slices.Contains(fields, "exclude") {
			e.Exclude = rendezvous.Expulsion{GroupRank: 1, Node: "node-b", Status: 80}
		}
	case "waited":
		e.Kind = WaitedEnough
	default:
		t.Fatalf("unknown event %q", word)
	}
	return e
}

func parseRules(t *testing.T, text string) (job.RestartRules, int) {
	t.Helper()
	rules := job.RestartRules{
		Policy: job.RestartOnFailure, BackoffLimit: -1, Delay: time.Second, DelayFactor: 2, DelayMax: time.Minute,
		Success: job.QuorumAll, Fail: job.QuorumAny,
	}
	world := 2
	for item := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(item, "=")
		var err error
		switch name {
		case "world":
			world, err = strconv.Atoi(value)
		case "scope":
			rules.Scope = job.RestartScope(value)
		case "policy":
			rules.Policy = job.RestartPolicy(value)
		case "max":
			rules.MaxRestarts, err = strconv.Atoi(value)
		case "loop":
			rules.CrashLoop, err = strconv.Atoi(value)
		case "backoff":
			rules.BackoffLimit, err = strconv.Atoi(value)
		case "window":
			rules.Window, err = time.ParseDuration(value)
		case "delay":
			rules.Delay, err = time.ParseDuration(value)
		case "delay-max":
			rules.DelayMax, err = time.ParseDuration(value)
		case "linger":
			rules.Linger, err = time.ParseDuration(value)
		case "retryable":
			rules.Retryable, err = job.ParseExitCodes(value)
		case "fatal":
			rules.Fatal, err = job.ParseExitCodes(value)
		case "success":
			rules.Success = job.Quorum(value)
		case "fail":
			rules.Fail = job.Quorum(value)
		default:
			t.Fatalf("unknown rule %q", item)
		}
		if err != nil {
			t.Fatalf("%q: %v", item, err)
		}
	}
	return rules, world
}

func describe(d Decision) string {
	text := map[Verdict]string{
		CarryOn: "continue", Restart: "restart", Succeed: "success", Fail: "fail", StopForNow: "stop",
		Reassemble: "reassemble", RestartNode: "restart this node", RestartWorker: "restart this worker", Tally: "tally", Hold: "hold",
	}[d.Verdict]
	if d.Verdict == Restart || d.Verdict == RestartNode || d.Verdict == RestartWorker {
		text += fmt.Sprintf(" %d after %v", d.Restarts, d.Delay)
	}
	if d.Exclude.Any() {
		text += " without " + d.Exclude.Node
	}
	if d.Linger > 0 {
		text += fmt.Sprintf(" after at most %v", d.Linger)
	}
	if d.Reason != "" {
		text += fmt.Sprintf(": %s", d.Reason)
	}
	if d.Rank >= 0 {
		text += fmt.Sprintf(", rank %d with %d", d.Rank, d.Status)
	}
	return text
}

func exitCodes(text string) job.ExitCodes {
	set, err := job.ParseExitCodes(text)
	if err != nil {
		panic(err)
	}
	return set
}

// TestPolicyInvariants drives random policies through random lives.
func TestPolicyInvariants(t *testing.T) {
	quorums := rapid.SampledFrom([]job.Quorum{job.QuorumAll, job.QuorumAny, job.QuorumRank0, job.QuorumNone})
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 5).Draw(t, "world")
		rules := job.RestartRules{
			Policy: rapid.SampledFrom([]job.RestartPolicy{
				job.RestartNever, job.RestartOnFailure, job.RestartAlways, job.RestartExitCode,
			}).Draw(t, "policy"),
			MaxRestarts:  rapid.IntRange(0, 4).Draw(t, "max"),
			BackoffLimit: rapid.IntRange(-1, 4).Draw(t, "backoff"),
			Window:       time.Duration(rapid.IntRange(0, 100).Draw(t, "window")) * time.Second,
			Delay:        time.Second, DelayFactor: 2, DelayMax: 5 * time.Second,
			Retryable: exitCodes("2-3"), Fatal: exitCodes("3-4"),
			Success: quorums.Draw(t, "success"), Fail: quorums.Draw(t, "fail"),
			Linger: time.Second,
		}
		p := New(rules, world, func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "chance") })
		now := time.Unix(0, 0)
		var restarts []time.Time
		var final *Decision
		seen := make(map[int]int)       // the round's exits that were not ours
		started, pending := false, true // a group has been started; a start would be the next one
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 50_000).Draw(t, "ms")) * time.Millisecond)
			e := Event{
				Kind: rapid.SampledFrom([]EventKind{
					GroupStarted, WorkerExited, WorkerExited, WorkerExited, WorkerExited, DeadlineReached, StopRequested,
				}).Draw(t, "kind"),
				At: now, Rank: rapid.IntRange(0, world-1).Draw(t, "rank"),
				Status:  rapid.SampledFrom([]int{0, 0, 1, 2, 3, 4, 137}).Draw(t, "status"),
				Stopped: rapid.IntRange(0, 3).Draw(t, "stopped") == 0,
			}
			if e.Kind >= DeadlineReached && rapid.IntRange(0, 5).Draw(t, "rare") > 0 {
				continue
			}
			d := p.Step(e)
			if e.Kind == GroupStarted && d.Verdict != CarryOn {
				t.Fatalf("a start decided %+v", d)
			}
			if final != nil && d.Verdict != CarryOn && (final.Verdict != Succeed || d.Verdict != Succeed) {
				t.Fatalf("%+v after the job was decided: %+v", d, *final)
			}
			if e.Kind == WorkerExited && (e.Stopped || !started) && d.Verdict != CarryOn {
				t.Fatalf("an exit that counts for nothing decided %+v", d)
			}
			if e.Kind == WorkerExited && !e.Stopped && started {
				if _, again := seen[e.Rank]; !again {
					seen[e.Rank] = e.Status
				}
			}
			if e.Kind == GroupStarted && pending {
				started, pending, seen = true, false, make(map[int]int)
			}
			if d.Rank >= 0 && (d.Status == 0 || seen[d.Rank] != d.Status) {
				t.Fatalf("%+v blames a rank that did not end so: %v", d, seen)
			}
			switch d.Verdict {
			case CarryOn:
				continue
			case Restart:
				for rank, status := range seen {
					if rules.Fatal.Has(status) && status != 0 {
						t.Fatalf("restart although rank %d ended with the fatal %d", rank, status)
					}
				}
				if rules.Policy == job.RestartNever {
					t.Fatalf("restart under never: %+v", d)
				}
				if rules.Policy == job.RestartExitCode && !rules.Retryable.Has(d.Status) {
					t.Fatalf("restart of status %d", d.Status)
				}
				if d.Status == 0 && rules.Policy != job.RestartAlways {
					t.Fatalf("restart without a failure: %+v", d)
				}
				if len(restarts) == 0 && d.Delay != 0 || d.Delay < 0 || d.Delay > rules.DelayMax {
					t.Fatalf("restart %d after %v", len(restarts)+1, d.Delay)
				}
				restarts, pending = append(restarts, now), true
				if d.Restarts != len(restarts) {
					t.Fatalf("restart %d counts as %d", len(restarts), d.Restarts)
				}
				within := 0
				for _, at := range restarts {
					if rules.Window == 0 || now.Sub(at) < rules.Window {
						within++
					}
				}
				if within > rules.MaxRestarts || rules.BackoffLimit >= 0 && within > rules.BackoffLimit {
					t.Fatalf("%d restarts within the window", within)
				}
			case Succeed:
				if rules.Success == job.QuorumRank0 && seen[0] != 0 || rules.Success == job.QuorumAll && len(seen) < world {
					t.Fatalf("success with %v", seen)
				}
				final, pending = &d, false
			case Fail, StopForNow:
				final, pending = &d, false
			default:
				t.Fatalf("a node that is alone decides %+v", d)
			}
		}
	})
}

// TestPoliciesAgree lets the policies of several nodes decide about the same rounds, where the first proposal counts:
// all count the same restarts, and no limit is broken.
func TestPoliciesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const workers = 2
		nodes := rapid.IntRange(2, 4).Draw(t, "nodes")
		rules := job.RestartRules{
			Policy: job.RestartOnFailure, MaxRestarts: rapid.IntRange(0, 3).Draw(t, "max"),
			BackoffLimit: rapid.IntRange(-1, 4).Draw(t, "backoff"),
			Success:      job.QuorumAll, Fail: job.QuorumAny, Delay: time.Second, DelayFactor: 1,
		}
		policies := make([]*Policy, nodes)
		caused := make([]int, nodes)
		for i := range policies {
			policies[i] = New(rules, workers, func() float64 { return 0 })
		}
		now, restarts, lost := time.Unix(0, 0), 0, 0
		for {
			now = now.Add(time.Second)
			for _, p := range policies {
				p.Step(Event{Kind: GroupStarted, At: now, World: nodes * workers, Restarts: restarts, Replacements: lost})
			}
			// Some nodes see a failure at the same time, and a node may be lost before any of them has said so.
			var said *rendezvous.Verdict
			by := -1
			if rapid.IntRange(0, 3).Draw(t, "lost") == 0 && lost < 5 {
				said = &rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Rank: -1}
				lost++
			}
			failing := rapid.SliceOfNDistinct(rapid.IntRange(0, nodes-1), 1, nodes, rapid.ID[int]).Draw(t, "failing")
			for _, i := range failing {
				echo := rapid.Bool().Draw(t, "echo")
				d := policies[i].Step(Event{Kind: WorkerExited, At: now, Rank: i * workers, Status: 1, Echo: echo})
				if echo != (d.Verdict == Hold) {
					t.Fatalf("node %d decides %+v of a failure that is an echo: %v", i, d, echo)
				}
				switch {
				case echo && said != nil:
					continue // it is told in time
				case echo && rapid.Bool().Draw(t, "waited"):
					d = policies[i].Step(Event{Kind: WaitedEnough, At: now})
				case echo:
					d = policies[i].Step(Event{Kind: WorkerExited, At: now, Rank: i*workers + 1, Status: 1})
				}
				if again := policies[i].Step(Event{Kind: WaitedEnough, At: now}); again.Verdict != CarryOn {
					t.Fatalf("node %d decides %+v, and then %+v", i, d, again)
				}
				if v := d.Proposal(fmt.Sprint(i)); said == nil {
					said, by = &v, i
				}
			}
			for i, p := range policies {
				d := p.Step(Event{Kind: VerdictHeard, At: now, Said: *said, Own: i == by})
				if again := p.Step(Event{Kind: VerdictHeard, At: now, Said: *said, Own: i == by}); again != d {
					t.Fatalf("told twice, node %d decides %+v and %+v", i, d, again)
				}
				if want := DecisionOf(*said).Verdict; d.Verdict != want || d.Restarts != said.Restarts && d.Verdict == Restart {
					t.Fatalf("node %d decides %+v of %+v", i, d, *said)
				}
			}
			switch said.Kind {
			case rendezvous.Restart:
				if restarts++; said.Restarts != restarts {
					t.Fatalf("restart %d is counted as %d", restarts, said.Restarts)
				}
				caused[by]++
			case rendezvous.Fail:
				full := caused[by] >= rules.MaxRestarts || rules.BackoffLimit >= 0 && restarts+lost >= rules.BackoffLimit
				if !full {
					t.Fatalf("node %d ends the job after %v restarts of %d and %d losses", by, caused, restarts, lost)
				}
				return
			default:
			}
			for i, n := range caused {
				if n > rules.MaxRestarts {
					t.Fatalf("node %d caused %d restarts", i, n)
				}
			}
			if by >= 0 && rules.BackoffLimit >= 0 && restarts+lost > rules.BackoffLimit {
				t.Fatalf("%d restarts and %d losses", restarts, lost)
			}
		}
	})
}

// TestDelayGrowsAndStays shows the pauses of a crash loop, and that jitter takes away at most half.
func TestDelayGrowsAndStays(t *testing.T) {
	rules := job.RestartRules{
		Policy: job.RestartOnFailure, MaxRestarts: 100, BackoffLimit: -1,
		Delay: time.Second, DelayFactor: 2, DelayMax: time.Minute,
	}
	for _, c := range []struct {
		chance float64
		want   string
	}{
		{0, "[0s 1s 2s 4s 8s 16s 32s 1m0s 1m0s]"},
		{0.5, "[0s 750ms 1.5s 3s 6s 12s 24s 45s 45s]"},
	} {
		p := New(rules, 1, func() float64 { return c.chance })
		var delays []time.Duration
		for range 9 {
			p.Step(Event{Kind: GroupStarted})
			delays = append(delays, p.Step(Event{Kind: WorkerExited, Status: 1}).Delay)
		}
		if got := fmt.Sprint(delays); got != c.want {
			t.Errorf("chance %v: delays %v, want %v", c.chance, got, c.want)
		}
	}
}

// TestDelayOfHealthyGroups: pauses cost a tenth of the time at most. A group that ran ten times as long as the pause
// that is due starts at once, and pauses grow anew.
func TestDelayOfHealthyGroups(t *testing.T) {
	p := New(job.RestartRules{
		Policy: job.RestartOnFailure, MaxRestarts: 100, BackoffLimit: -1,
		Delay: time.Second, DelayFactor: 2, DelayMax: time.Minute,
	}, 1, func() float64 { return 0 })
	now := time.Now()
	var delays []time.Duration
	for _, ran := range []int{20, 20, 20, 9, 19, 39, 40, 9, 10} {
		p.Step(Event{Kind: GroupStarted, At: now})
		now = now.Add(time.Duration(ran) * time.Second)
		delays = append(delays, p.Step(Event{Kind: WorkerExited, Status: 1, At: now}).Delay)
	}
	if got, want := fmt.Sprint(delays), "[0s 0s 0s 1s 2s 4s 8s 16s 32s]"; got != want {
		t.Errorf("delays %v, want %v", got, want)
	}
	p.Step(Event{Kind: GroupStarted, At: now})
	now = now.Add(10 * time.Minute)
	if d := p.Step(Event{Kind: WorkerExited, Status: 1, At: now}).Delay; d != 0 {
		t.Errorf("after ten minutes a pause of %v", d)
	}
}

// TestDelayNeverOverflows covers settings that multiply past what a Duration holds, and a factor below 1.
func TestDelayNeverOverflows(t *testing.T) {
	for _, rules := range []job.RestartRules{
		{Delay: time.Hour, DelayFactor: 1e300},
		{Delay: time.Hour, DelayFactor: 1e300, DelayMax: time.Minute},
		{Delay: time.Second, DelayFactor: 0, DelayMax: time.Minute},
	} {
		rules.Policy, rules.MaxRestarts, rules.BackoffLimit = job.RestartOnFailure, 1000, -1
		p := New(rules, 1, func() float64 { return 0 })
		last := time.Duration(0)
		for range 1000 {
			p.Step(Event{Kind: GroupStarted})
			d := p.Step(Event{Kind: WorkerExited, Status: 1}).Delay
			if d < last {
				t.Fatalf("%+v: delay fell from %v to %v", rules, last, d)
			}
			last = d
		}
		if last == 0 || rules.DelayMax > 0 && last > rules.DelayMax {
			t.Errorf("%+v: last delay %v", rules, last)
		}
	}
}

func TestDecisionMessage(t *testing.T) {
	for _, c := range []struct {
		d    Decision
		want string
	}{
		{Decision{Verdict: Succeed, Reason: job.ReasonSucceeded, Rank: -1}, "the workers succeeded"},
		{Decision{Verdict: Restart, Reason: job.ReasonFinished, Rank: -1, Restarts: 1}, "the workers succeeded; restart 1"},
		{
			Decision{
				Verdict: Restart, Reason: job.ReasonWorkerFailed, Rank: 3, Status: 137, Restarts: 2,
				Delay: 1234567 * time.Microsecond,
			},
			"rank 3 ended with status 137; restart 2 after 1.235s",
		},
		{Decision{Verdict: Fail, Reason: job.ReasonWorkerFailed, Rank: 0, Status: 1}, "rank 0 ended with status 1"},
		{Decision{Verdict: Fail, Reason: job.ReasonFatal, Rank: 0, Status: 3}, "rank 0 ended with status 3, which is fatal"},
		{
			Decision{Verdict: Fail, Reason: job.ReasonMaxRestarts, Rank: 0, Status: 1},
			"rank 0 ended with status 1, and no restart is left",
		},
		{
			Decision{Verdict: Fail, Reason: job.ReasonBackoffLimit, Rank: 0, Status: 1},
			"rank 0 ended with status 1, and the backoff limit is reached",
		},
		{Decision{Verdict: Fail, Reason: job.ReasonDeadline, Rank: -1}, "the deadline was reached"},
		{Decision{Verdict: StopForNow, Reason: job.ReasonStopped, Rank: -1}, "muster was asked to stop"},
	} {
		if got := c.d.Message(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.d, got, c.want)
		}
	}
}

// TestAccount checks what is said of restarts at the end of a job.
func TestAccount(t *testing.T) {
	rules := job.RestartRules{Policy: job.RestartOnFailure, MaxRestarts: 3, BackoffLimit: -1}
	exitCode := rules
	exitCode.Policy = job.RestartExitCode
	unlimited := rules
	unlimited.MaxRestarts = job.Unlimited
	now := time.Unix(0, 0)
	for want, c := range map[string]struct {
		rules job.RestartRules
		d     Decision
		job   int
	}{
		"none was asked for": {job.RestartRules{}, Decision{Reason: job.ReasonWorkerFailed}, 2},
		"2 used, of any number: status 9 is fatal (--fatal-exit-codes)": {unlimited, Decision{Reason: job.ReasonFatal, Status: 9}, 2},
		"2 of 3 used: none is left":                                     {rules, Decision{Reason: job.ReasonMaxRestarts}, 2},
		"2 of 3 used on node here, 4 by the whole job: none is left": {
			rules,
			Decision{Reason: job.ReasonMaxRestarts, Node: "here"},
			4,
		},
		"2 of 3 used on node here, 4 by the whole job: node there has decided": {rules, Decision{Node: "there"}, 4},
		"2 of 3 used: status 9 is fatal (--fatal-exit-codes)": {
			rules,
			Decision{Reason: job.ReasonFatal, Status: 9},
			2,
		},
		"2 of 3 used: --restart-policy exit-code starts nothing again after status 9": {
			exitCode,
			Decision{Reason: job.ReasonWorkerFailed, Status: 9},
			2,
		},
	} {
		p := New(c.rules, 1, func() float64 { return 0 })
		p.own, p.restarts = []time.Time{now, now}, c.job
		if got := p.Account(c.d, "here"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestStopEverywhere: who asks for the end of the whole job has it proposed to all nodes, as long as nothing else is
// decided; a signal ends this node's part alone.
func TestStopEverywhere(t *testing.T) {
	for name, c := range map[string]struct {
		before []Event
		asked  Event
		want   Verdict
	}{
		"a signal":   {nil, Event{Kind: StopRequested}, StopForNow},
		"asked":      {nil, Event{Kind: StopRequested, Everywhere: true, Text: "somebody", Status: 143}, Fail},
		"not agreed": {nil, Event{Kind: NotAgreed, Everywhere: true, Text: "somebody", Status: 143}, Fail},
		"lingering":  {[]Event{{Kind: WorkerExited, Rank: 0}}, Event{Kind: StopRequested, Everywhere: true}, Succeed},
		"decided":    {[]Event{{Kind: WorkerExited, Rank: 0, Status: 3}}, Event{Kind: StopRequested, Everywhere: true}, CarryOn},
		"asked, paused": {
			[]Event{{Kind: VerdictHeard, Said: rendezvous.Verdict{Kind: rendezvous.Restart, Rank: -1}}},
			Event{Kind: StopRequested, Everywhere: true, Status: 143},
			Fail,
		},
	} {
		policy := New(job.RestartRules{Success: job.QuorumAny, Linger: time.Hour}, 2, func() float64 { return 0 })
		for _, e := range append([]Event{{Kind: GroupStarted, World: 4}}, c.before...) {
			policy.Step(e)
		}
		d := policy.Step(c.asked)
		if d.Verdict != c.want {
			t.Errorf("%s: %+v", name, d)
		}
		if c.want != Fail {
			continue
		}
		v := d.Proposal("node-1")
		if again := DecisionOf(v); !d.Stops() || v.Kind != rendezvous.Fail || v.Status != 143 || v.Reason != "StopRequested" ||
			!again.Stops() || again.Status != 143 || again.Text != d.Message() {
			t.Errorf("%s: %+v, %+v", name, v, again)
		}
	}
}

// What nodes are told of one that has to leave is what they do, made fit for a terminal; of what starts nothing again it
// is nothing.
func TestExclusionIsTold(t *testing.T) {
	for verdict, want := range map[Verdict]string{Restart: "slow", Reassemble: "slow", Fail: ""} {
		d := Decision{Verdict: verdict, Rank: -1, Exclude: rendezvous.Expulsion{
			GroupRank: 2, Node: "slow\x1b", Status: 81,
			Reason: "why\x1b",
		}}
		e := DecisionOf(d.Proposal("node-1")).Exclude
		if want == "" {
			if e.Any() {
				t.Errorf("%v: %+v leaves", verdict, e)
			}
			continue
		}
		if e.GroupRank != 2 || e.Status != 81 || !strings.HasPrefix(e.Node, want) || strings.Contains(e.Node+e.Reason, "\x1b") {
			t.Errorf("%v: %+v", verdict, e)
		}
	}
}

// TestLostNodeReachesBackoffLimit: a verdict that counts a lost node says which, and not that workers have failed.
func TestLostNodeReachesBackoffLimit(t *testing.T) {
	const lost = "node b is not heard of for 4s, and the backoff limit of 0 is reached"
	v := rendezvous.Verdict{Kind: rendezvous.Fail, Reason: "BackoffLimitReached", Rank: -1, Status: 75, Message: lost}
	if d := DecisionOf(v); d.Message() != lost {
		t.Errorf("%q, want %q", d.Message(), lost)
	}
}
