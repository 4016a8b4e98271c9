package policy_test

import (
	"strings"
	"testing"
	"time"

	"muster/launch/job"
	"muster/launch/policy"
)

// A driver's policy goes by the same rules as that of agents.
func TestDrivenPolicy(t *testing.T) {
	at := time.Unix(1000, 0)
	rules := job.RestartRules{
		Policy: job.RestartOnFailure, ReplaceLimit: -1, BackoffLimit: -1, Delay: time.Second, DelayFactor: 2, Success: job.QuorumAll,
		Fail: job.QuorumAny,
	}
	type exit struct {
		rank, status int
		lost         bool
		after        time.Duration
		world        bool // the next one begins behind it
	}
	for name, c := range map[string]struct {
		change func(*job.RestartRules)
		exits  []exit
		want   policy.Ruling // of the last exit; Why is contained in what is said
	}{
		"a failure": {nil, []exit{{rank: 1, status: 3}}, policy.Ruling{Anew: true}},
		"another": {
			nil,
			[]exit{{rank: 1, status: 3, world: true}, {rank: 0, status: 3}},
			policy.Ruling{Anew: true, Delay: time.Second},
		},
		"in its wake": {nil, []exit{{rank: 1, status: 3}, {rank: 0, status: 4}}, policy.Ruling{}},
		"fatal": {
			func(r *job.RestartRules) { r.Fatal, _ = job.ParseExitCodes("4") },
			[]exit{{rank: 1, status: 3}, {rank: 0, status: 4}},
			policy.Ruling{Over: true, Status: 4, Why: "--fatal-exit-codes"},
		},
		"all succeed": {nil, []exit{{rank: 1}, {rank: 0}}, policy.Ruling{Over: true, Success: true}},
		"one succeeds": {
			func(r *job.RestartRules) { r.Success, r.Linger = job.QuorumAny, 7 },
			[]exit{{rank: 1}},
			policy.Ruling{Over: true, Success: true, Linger: 7},
		},
		"borne": {func(r *job.RestartRules) { r.Fail = job.QuorumRank0 }, []exit{{rank: 1, status: 3}}, policy.Ruling{}},
		"never": {
			func(r *job.RestartRules) { r.Policy = job.RestartNever },
			[]exit{{rank: 1, status: 3}},
			policy.Ruling{Over: true, Rank: 1, Status: 3, Why: "--restart-policy never"},
		},
		"lost, never": {
			func(r *job.RestartRules) { r.Policy = job.RestartNever },
			[]exit{{rank: 1, status: 137, lost: true}},
			policy.Ruling{Over: true, Rank: 1, Status: 137, Why: "never"},
		},
		"lost, exit code": {
			func(r *job.RestartRules) { r.Policy = job.RestartExitCode },
			[]exit{{rank: 1, status: 137, lost: true}},
			policy.Ruling{Anew: true},
		},
		"lost too often": {
			func(r *job.RestartRules) { r.ReplaceLimit = 1 },
			[]exit{{rank: 1, status: 137, lost: true, world: true}, {rank: 0, status: 75, lost: true}},
			policy.Ruling{Over: true, Limit: true, Status: 75, Why: "--restart-limit"},
		},
		"both count": {
			func(r *job.RestartRules) { r.BackoffLimit = 1 },
			[]exit{{rank: 1, status: 137, lost: true, world: true}, {rank: 0, status: 3}},
			policy.Ruling{Over: true, Limit: true, Status: 3, Why: "--backoff-limit"},
		},
		"in a window": {
			func(r *job.RestartRules) { r.BackoffLimit, r.Window, r.Delay = 1, time.Minute, 0 },
			[]exit{{rank: 1, status: 3, world: true}, {rank: 0, status: 3, after: time.Hour}},
			policy.Ruling{Anew: true},
		},
		"always": {
			func(r *job.RestartRules) { r.Policy = job.RestartAlways },
			[]exit{{rank: 1}, {rank: 0}},
			policy.Ruling{Anew: true},
		},
	} {
		r := rules
		if c.change != nil {
			c.change(&r)
		}
		p := policy.NewDriven(r, func() float64 { return 0 })
		now, got := at, policy.Ruling{}
		p.World(now, 2)
		for _, e := range c.exits {
			now = now.Add(time.Millisecond + e.after)
			if e.lost {
				got = p.Lost(now, e.rank, e.status)
			} else {
				got = p.Exited(now, e.rank, e.status)
			}
			if e.world {
				p.World(now, 2)
			}
		}
		said := got.Why
		if got.Why = c.want.Why; got != c.want || !strings.Contains(said, c.want.Why) || said == "" != (c.want.Why == "") {
			t.Errorf("%s: %+v, %q; want %+v", name, got, said, c.want)
		}
	}
}

// A world that follows failures which the policy bears counts as every restart does; one that only hosts have changed
// does not.
func TestDrivenPolicyCountsWhatItBears(t *testing.T) {
	rules := job.RestartRules{
		Policy: job.RestartOnFailure, BackoffLimit: 1, ReplaceLimit: -1, Delay: time.Second, DelayFactor: 2, Success: job.QuorumAll,
		Fail: job.QuorumNone,
	}
	borne := func(p *policy.Driven, at time.Time) policy.Ruling {
		p.World(at, 2)
		if got := p.Exited(at, 1, 9); got != (policy.Ruling{}) {
			t.Errorf("a failure that is borne: %+v", got)
		}
		return p.Next(at)
	}
	at := time.Unix(1000, 0)
	p := policy.NewDriven(rules, func() float64 { return 0 })
	p.World(at, 2)
	if got := p.Next(at); got != (policy.Ruling{}) {
		t.Errorf("hosts have changed: %+v", got)
	}
	if got := borne(p, at); !got.Anew || got.Delay != 0 {
		t.Errorf("the first failure: %+v", got)
	}
	if got := p.Next(at); got != (policy.Ruling{}) {
		t.Errorf("it counts twice: %+v", got)
	}
	if got := borne(p, at); !got.Over || !got.Limit || got.Rank != 1 || got.Status != 9 || !strings.Contains(got.Why, "--backoff-limit") {
		t.Errorf("the second one: %+v", got)
	}
	rules.BackoffLimit = -1
	p = policy.NewDriven(rules, func() float64 { return 0 })
	borne(p, at)
	if got := borne(p, at); !got.Anew || got.Delay != time.Second {
		t.Errorf("the second one without a limit: %+v", got)
	}
	rules.Policy = job.RestartNever
	if got := borne(policy.NewDriven(rules, func() float64 { return 0 }), at); !got.Over || got.Status != 9 ||
		!strings.Contains(got.Why, "--restart-policy never") {
		t.Errorf("nothing is restarted: %+v", got)
	}
}

// A world that hosts have joined or left has lost nothing: its workers are judged as those of the first.
func TestDrivenPolicyOfChangedWorld(t *testing.T) {
	at := time.Unix(1000, 0)
	rules := job.RestartRules{Policy: job.RestartOnFailure, BackoffLimit: 1, ReplaceLimit: -1, Success: job.QuorumAll, Fail: job.QuorumAny}
	p := policy.NewDriven(rules, func() float64 { return 0 })
	p.World(at, 2)
	p.World(at, 4)
	if got := p.Exited(at, 3, 1); !got.Anew {
		t.Errorf("the first failure: %+v", got)
	}
	p.World(at, 3)
	p.World(at, 4)
	if got := p.Exited(at, 0, 1); !got.Over || !got.Limit {
		t.Errorf("the second one: %+v", got)
	}
}
