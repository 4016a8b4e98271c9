package elastic_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/internal/errhint"
	"muster/internal/testutil"
)

// Most of these are the cases of horovod 0.28.1's test_elastic_driver.py, played by workers that speak HTTP.

var unlimited = elastic.Rules{NP: 2, MinNP: 2, MaxNP: 4, ResetLimit: -1}

func with(rules elastic.Rules, change func(*elastic.Rules)) elastic.Rules {
	change(&rules)
	return rules
}

func TestFirstWorld(t *testing.T) {
	w := begin(t, unlimited, "host-1:2 host-2:2")
	for i, p := range w.running(4, "host-1:0", "host-1:1", "host-2:0", "host-2:1") {
		want := []string{"0,4,0,2,0,2", "1,4,1,2,0,2", "2,4,0,2,1,2", "3,4,1,2,1,2"}[i]
		if p.place() != want {
			t.Errorf("%s has %s, want %s", p.key, p.place(), want)
		}
		if p.env["HOROVOD_GLOO_RENDEZVOUS_ADDR"]+":"+p.env["HOROVOD_GLOO_RENDEZVOUS_PORT"] != w.addr {
			t.Errorf("%s finds the rendezvous at %v", p.key, p.env)
		}
		defer p.exit(0)
	}
}

func TestSuccess(t *testing.T) {
	w := begin(t, unlimited, "host-1:2 host-2:2")
	for _, p := range w.running(4, "host-1:0", "host-1:1", "host-2:0", "host-2:1") {
		p.exit(0)
	}
	w.wantEnd(0, "")
}

func TestAllWorkersFail(t *testing.T) {
	w := begin(t, unlimited, "host-1:2 host-2:2")
	for i, p := range w.running(4, "host-2:0", "host-1:0", "host-1:1", "host-2:1") {
		p.exit(7 + i)
		if i == 0 {
			testutil.Eventually(t, patience, "the first failure is seen",
				func() bool { return strings.Contains(w.log.String(), "worker failed") })
		}
	}
	w.wantEnd(7, "the worker of rank 2 on host-2 (local rank 0) ended with status 7, and 3 more failed; all workers failed")
}

// The sequence that was seen with Horovod itself: a worker fails, its host is left out, the others go on as they are.
func TestFailedHostIsLeftOut(t *testing.T) {
	w := begin(t, unlimited, "A:2 B:2")
	p := w.running(4, "A:0", "A:1", "B:0", "B:1")
	p[3].exit(5)
	a0, a1, b0 := w.ask("A:0"), w.ask("A:1"), w.ask("B:0")
	w.want("A:0", a0, "0,2,0,2,0,1")
	w.want("A:1", a1, "1,2,1,2,0,1")
	w.want("B:0", b0, horovod.NoPlace)
	<-p[2].done
	if !p[2].killed {
		t.Error("the other worker of the host was not ended")
	}
	p[0].exit(0)
	w.want("late", w.ask("B:1"), horovod.NoPlace)
	p[1].exit(0)
	w.wantEnd(0, "")
	w.running(4) // nothing was started anew
}

// The other one: a host is added, then the first one is taken away.
func TestHostsComeAndGo(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.MaxNP = 0 }), "A:2")
	p := w.running(2, "A:0", "A:1")
	first := w.listens("A:0", 0)
	w.source.set("A:2 B:2", nil)
	change, at := first.change(t)
	if change != "2" {
		t.Errorf("rank 0 was told %s, want 2 (added)", change)
	}
	a0, a1 := w.ask("A:0"), w.ask("A:1")
	w.want("A:0", a0, "0,4,0,2,0,2")
	w.want("A:1", a1, "1,4,1,2,0,2")
	for i, b := range w.running(4, "B:0", "B:1") {
		if want := []string{"2,4,0,2,1,2", "3,4,1,2,1,2"}[i]; b.place() != want {
			t.Errorf("%s: %s, want %s", b.key, b.place(), want)
		}
	}
	w.source.set("B:2", nil)
	change, again := first.change(t)
	if change != "3" { // and not 1: then old workers would not synchronize with new ones
		t.Errorf("rank 0 was told %s, want 3 (mixed)", change)
	}
	if again <= at {
		t.Errorf("told at %d and then at %d: the worker ignores that", at, again)
	}
	asked := map[string]<-chan string{}
	for _, key := range []string{"A:0", "A:1", "B:0", "B:1"} {
		asked[key] = w.ask(key)
	}
	w.want("A:0", asked["A:0"], horovod.NoPlace)
	w.want("A:1", asked["A:1"], horovod.NoPlace)
	w.want("B:0", asked["B:0"], "0,2,0,2,0,1")
	w.want("B:1", asked["B:1"], "1,2,1,2,0,1")
	p[0].exit(1)
	p[1].exit(1)
	for _, b := range w.running(4, "B:0", "B:1") {
		b.exit(0)
	}
	w.wantEnd(0, "")
}

func TestOneSuccessWaitsForTheOthers(t *testing.T) {
	w := begin(t, unlimited, "A:2")
	p := w.running(2, "A:0", "A:1")
	p[0].exit(0)
	answer := w.ask("A:1") // it is ready for a world that does not come
	w.want("A:1", answer, horovod.NoPlace)
	w.wantEnd(0, "") // although its process was ended
	if !p[1].killed {
		t.Error("the waiting worker was not ended")
	}
}

func TestSuccessBesideFailure(t *testing.T) {
	w := begin(t, unlimited, "A:2")
	p := w.running(2, "A:0", "A:1")
	p[1].exit(9)
	p[0].exit(0)
	w.wantEnd(9, "rank 1 on A")
}

func TestEveryHostFailed(t *testing.T) {
	w := begin(t, unlimited, "A:2 B:2")
	p := w.running(4, "A:0", "A:1", "B:0", "B:1")
	p[0].exit(3)
	testutil.Eventually(t, patience, "the first failure is seen", func() bool { return strings.Contains(w.log.String(), "worker failed") })
	p[2].exit(4)
	w.ask("A:1")
	w.ask("B:1")
	w.wantEnd(3, "workers failed on every host")
}

func TestWaitsForSlots(t *testing.T) {
	w := begin(t, elastic.Rules{NP: 16, MinNP: 1, ResetLimit: -1}, "")
	for _, hosts := range []string{"", "host-1:4", "host-1:4 host-2:8", "host-1:4 host-2:8 host-3:2"} {
		w.source.set(hosts, nil)
		n := w.source.count()
		testutil.Eventually(t, patience, "a discovery", func() bool { return w.source.count() > n+1 })
		w.running(0)
	}
	w.source.set("host-1:4 host-2:8 host-3:2 host-4:2", nil)
	for _, p := range w.running(16, "host-4:1") {
		if p.place() != "15,16,1,2,3,4" {
			t.Errorf("the last worker has %s", p.place())
		}
	}
}

func TestTooFewSlotsInTime(t *testing.T) {
	w := begin(t, elastic.Rules{NP: 4, MinNP: 1, ResetLimit: -1, Timeout: 300 * time.Millisecond}, "A:2")
	w.wantEnd(errhint.TryAgain, "only 2 slots of the 4 needed within 300ms")
	w.running(0)
}

// Below the minimum the workers wait, and a new host brings the next world.
func TestWaitsBelowTheMinimum(t *testing.T) {
	w := begin(t, unlimited, "A:1 B:1")
	p := w.running(2, "A:0", "B:0")
	p[1].exit(1)
	a := w.ask("A:0")
	testutil.Eventually(t, patience, "it waits", func() bool { return strings.Contains(w.log.String(), "waiting for slots") })
	w.parked(a)
	w.source.set("A:1 B:1 C:1", nil)
	w.want("A:0", a, "0,2,0,1,0,2")
	for _, c := range w.running(3, "C:0") {
		if c.place() != "1,2,0,1,1,2" {
			t.Errorf("C has %s", c.place())
		}
		c.exit(0)
	}
	p[0].exit(0)
	w.wantEnd(0, "")
}

// A worker that dies while it waits for the next world must not be waited for in it (horovod/horovod#3014).
func TestWaitingWorkerDies(t *testing.T) {
	w := begin(t, unlimited, "A:1 B:1 C:1")
	p := w.running(3, "A:0", "B:0", "C:0")
	w.source.set("A:1 B:1", nil)
	p[2].exit(1)
	a := w.ask("A:0")
	w.parked(a)
	w.source.set("A:1", nil)
	n := w.source.count()
	testutil.Eventually(t, patience, "a discovery", func() bool { return w.source.count() > n+1 })
	b := w.ask("B:0")
	testutil.Eventually(t, patience, "it waits", func() bool { return strings.Contains(w.log.String(), "waiting for slots") })
	p[0].exit(9)
	testutil.Eventually(t, patience, "its end is known", func() bool { return strings.Contains(w.log.String(), `"exit_code":9`) })
	w.source.set("A:1 B:1 D:1", nil)
	w.want("B:0", b, "0,2,0,1,0,2")
	w.running(4, "D:0")
	w.want("A:0", w.ask("A:0"), horovod.NoPlace)
}

func TestTimeoutBetweenWorlds(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.Timeout = 300 * time.Millisecond }), "A:1 B:1")
	p := w.running(2, "A:0", "B:0")
	p[1].exit(42)
	a := w.ask("A:0")
	w.want("A:0", a, horovod.NoPlace)
	w.wantEnd(42, "only 1 slots of the 2 needed")
}

func TestResetLimit(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.ResetLimit, r.MinNP = 1, 1 }), "A:1 B:1 C:1")
	p := w.running(3, "A:0", "B:0", "C:0")
	p[2].exit(1)
	a, b := w.ask("A:0"), w.ask("B:0")
	w.want("A:0", a, "0,2,0,1,0,2")
	w.want("B:0", b, "1,2,0,1,1,2")
	p[1].exit(6)
	w.want("A:0", w.ask("A:0"), horovod.NoPlace)
	w.wantEnd(6, "the number of resets has reached the limit, 1")
}

// A failure that the job's rules call final ends it at once, while others of the world run.
func TestFinalFailure(t *testing.T) {
	final := ruled{3: {Over: true, Rank: 1, Status: 3, Why: "3 is final"}}
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.Judge, r.MinNP = final, 1 }), "A:1 B:1 C:1")
	p := w.running(3, "A:0", "B:0", "C:0")
	p[2].exit(1)
	p[1].exit(3)
	w.wantEnd(3, "the worker of rank 1 on B (local rank 0) ended with status 3; 3 is final")
}

// ruled is a judge that goes by exit statuses alone.
type ruled map[int]elastic.Ruling

func (r ruled) World(time.Time, int) {}

func (r ruled) Exited(_ time.Time, _, status int) elastic.Ruling { return r[status] }

func (r ruled) Lost(time.Time, int, int) elastic.Ruling { return elastic.Ruling{Anew: true} }

func (r ruled) Ended(time.Time) elastic.Ruling { return elastic.Ruling{Over: true, Success: true} }

func (r ruled) Next(time.Time) elastic.Ruling { return elastic.Ruling{} }

// A worker that failed is started anew on its host, and the others keep their state.
func TestProcessScope(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.Judge, r.Scope = ruled{5: {Anew: true}}, elastic.ScopeProcess }), "A:2")
	p := w.running(2, "A:0", "A:1")
	p[1].exit(5)
	a0 := w.ask("A:0")
	again := w.running(3, "A:1")[0]
	w.want("A:0", a0, "0,2,0,2,0,1")
	if again.place() != "1,2,1,2,0,1" || p[0].killed {
		t.Errorf("the worker is started anew with %s; the other one was ended: %v", again.place(), p[0].killed)
	}
	// The only one that has the state, and rank 0 could only be a new worker: all begin anew.
	p[0].exit(5)
	w.ask("A:1")
	for _, p := range w.running(5, "A:0", "A:1") {
		p.exit(0)
	}
	if !again.killed {
		t.Error("a worker of the world before runs on")
	}
	w.wantEnd(0, "")
}

// The first failure ends all workers; the next world begins when none of them runs any more, and after its pause.
func TestWorldScope(t *testing.T) {
	pause := 700 * time.Millisecond
	judge := ruled{5: {Anew: true, Delay: pause}}
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.Judge, r.Scope = judge, elastic.ScopeWorld }), "A:2 B:1")
	p := w.running(3, "A:0", "A:1", "B:0")
	waits := w.ask("A:1")
	began := time.Now()
	p[2].exit(5)
	w.want("A:1", waits, horovod.NoPlace)
	again := w.running(6, "A:0", "A:1", "B:0")
	if took := time.Since(began); took < pause {
		t.Errorf("the next world begins after %v", took)
	}
	if !p[0].killed || !p[1].killed || again[2].place() != "2,3,0,1,1,2" {
		t.Errorf("ended: %v, %v; anew: %s", p[0].killed, p[1].killed, again[2].place())
	}
	for _, p := range again {
		p.exit(0)
	}
	w.wantEnd(0, "")
}

// In every scope a host that was lost is left out.
func TestLostHostIsLeftOut(t *testing.T) {
	for _, scope := range []elastic.Scope{elastic.ScopeHost, elastic.ScopeProcess, elastic.ScopeWorld} {
		w := begin(t, with(unlimited, func(r *elastic.Rules) { r.Judge, r.Scope, r.MinNP = ruled{}, scope, 1 }), "A:1 B:1")
		p := w.running(2, "A:0", "B:0")
		p[1].lost = true
		p[1].exit(137)
		if scope == elastic.ScopeWorld {
			<-p[0].done
			p = w.running(3, "A:0")
		} else {
			w.want("A:0", w.ask("A:0"), "0,1,0,1,0,1")
		}
		p[0].exit(0)
		w.wantEnd(0, "")
	}
}

// A success that is one for the whole job leaves the others time, and after that ends them.
func TestEarlySuccess(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.Judge = ruled{0: {Over: true, Success: true, Linger: time.Hour}} }), "A:3")
	p := w.running(3, "A:0", "A:1", "A:2")
	p[0].exit(0)
	w.want("A:1", w.ask("A:1"), horovod.NoPlace)
	p[1].exit(9) // which counts no more
	p[2].exit(0)
	w.wantEnd(0, "")
	w = begin(t, with(unlimited, func(r *elastic.Rules) { r.Judge = ruled{0: {Over: true, Success: true}} }), "A:2")
	p = w.running(2, "A:0", "A:1")
	p[1].exit(0)
	w.wantEnd(0, "")
	if !p[0].killed {
		t.Error("the other worker was not ended")
	}
}

// Workers of a job that is decided are waited for, unless somebody ends the job.
func TestDecidedJobWaits(t *testing.T) {
	rules := with(unlimited, func(r *elastic.Rules) {
		r.Judge, r.Wait = ruled{3: {Over: true, Rank: 1, Status: 3, Why: "final"}}, true
	})
	for _, ends := range []bool{true, false} {
		w := begin(t, rules, "A:2")
		p := w.running(2, "A:0", "A:1")
		p[1].exit(3)
		testutil.Eventually(t, patience, "it is told", func() bool { return strings.Contains(w.log.String(), "--clean-policy none") })
		if ends {
			p[0].exit(0)
		} else {
			w.stop(context.Canceled)
		}
		w.wantEnd(3, "final")
		if p[0].killed == ends {
			t.Errorf("the other worker was ended: %v", p[0].killed)
		}
	}
}

func TestResetLimitWithoutFailure(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.ResetLimit = 0 }), "A:2")
	w.running(2)
	a0, a1 := w.ask("A:0"), w.ask("A:1")
	w.want("A:0", a0, horovod.NoPlace)
	w.want("A:1", a1, horovod.NoPlace)
	w.wantEnd(errhint.DoNotRetry, "limit, 0")
}

func TestHostComesBackAfterCooldown(t *testing.T) {
	cooldown := discovery.Cooldown{Min: 200 * time.Millisecond, Max: time.Second}
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.MinNP, r.Cooldown = 1, cooldown }), "A:1 B:1")
	p := w.running(2, "A:0", "B:0")
	p[0].exit(1) // rank 0's host
	w.want("B:0", w.ask("B:0"), "0,1,0,1,0,1")
	told := w.listens("B:0", 0)
	if change, _ := told.change(t); change != "2" {
		t.Errorf("told %s when the host came back", change)
	}
	w.want("B:0", w.ask("B:0"), "0,2,0,1,0,2") // it has the state, so it keeps rank 0
	for _, a := range w.running(3, "A:0") {
		if a.place() != "1,2,0,1,1,2" {
			t.Errorf("A came back as %s", a.place())
		}
	}
}

// A change is told until it is heard, to a worker that is there late or hangs up.
func TestChangeIsToldAgain(t *testing.T) {
	w := begin(t, unlimited, "A:2")
	w.running(2)
	w.source.set("A:2 B:2", nil)
	n := w.source.count()
	testutil.Eventually(t, patience, "a discovery", func() bool { return w.source.count() > n+1 })
	first := w.listens("A:0", 5)
	if change, _ := first.change(t); change != "2" {
		t.Errorf("told %s", change)
	}
	w.source.set("A:2", nil) // as it was: nothing to tell
	w.source.set("A:2 B:1", nil)
	if change, _ := first.change(t); change != "2" && change != "3" {
		t.Errorf("told %s", change)
	}
	// Only rank 0 is told, and nothing that changes no world.
	other := w.listens("A:1", 0)
	w.source.set("A:2 B:2 C:1", nil)
	n = w.source.count()
	testutil.Eventually(t, patience, "a discovery", func() bool { return w.source.count() > n+1 })
	select {
	case text := <-other.got:
		t.Errorf("rank 1 was told %s", text)
	default:
	}
}

// A change is told again until the workers ask for their places: one that begins a world throws away what it has heard.
func TestChangeIsToldUntilTheyAsk(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	w := begin(t, unlimited, "A:2")
	p := w.running(2, "A:0", "A:1")
	first := w.listens("A:0", 0)
	w.source.set("A:2 B:1", nil)
	for range 2 {
		if change, _ := first.change(t); change != "2" {
			t.Errorf("told %s", change)
		}
	}
	w.source.set("A:2", nil) // the next world is as this one
	n := w.source.count()
	testutil.Eventually(t, patience, "a discovery", func() bool { return w.source.count() > n+1 })
	one := w.ask("A:1")
	w.want("A:0", w.ask("A:0"), "0,2,0,2,0,1")
	w.want("A:1", one, "1,2,1,2,0,1")
	p[0].exit(0)
	p[1].exit(0)
	w.wantEnd(0, "")
}

// A worker whose connection broke asks again; that is not another readiness.
func TestAskingAgain(t *testing.T) {
	w := begin(t, unlimited, "A:2")
	p := w.running(2, "A:0", "A:1")
	one, two := w.ask("A:0"), w.ask("A:0")
	w.parked(one)
	w.parked(two)
	w.want("A:1", w.ask("A:1"), "1,2,1,2,0,1")
	w.want("A:0", one, "0,2,0,2,0,1")
	w.want("A:0", two, "0,2,0,2,0,1")
	p[0].exit(0)
	p[1].exit(0)
	w.wantEnd(0, "")
	if r := w.end(); r.Worlds != 2 {
		t.Errorf("%d worlds, want 2", r.Worlds)
	}
}

// However often a slot's place is asked for, few of those requests wait, the newest ones: the worker's is not among
// those that it has given up itself.
func TestAskingWithoutEnd(t *testing.T) {
	w := begin(t, unlimited, "A:2")
	p := w.running(2, "A:0", "A:1")
	const many = 60
	got := make(chan string, many)
	for range many {
		go func() {
			place, err := w.do(t.Context(), "GET", "/rank_and_size/A:0", "")
			if err != nil {
				place = "given up"
			}
			got <- place
		}()
	}
	for range many - 16 {
		w.want("A:0", got, "given up")
	}
	w.want("A:1", w.ask("A:1"), "1,2,1,2,0,1")
	for range 16 {
		w.want("A:0", got, "0,2,0,2,0,1")
	}
	p[0].exit(0)
	p[1].exit(0)
	w.wantEnd(0, "")
}

// The answer was lost on its way: the worker has not begun to look for the others, and gets the same place at once.
func TestAnswerIsLost(t *testing.T) {
	w := begin(t, unlimited, "A:1 B:1")
	w.running(2)
	got := make(chan string, 2)
	for range 2 {
		go func() {
			place, err := w.do(t.Context(), "GET", "/rank_and_size/A:0", "")
			if err != nil {
				place = err.Error()
			}
			got <- place
		}()
	}
	w.want("B:0", w.ask("B:0"), "1,2,0,1,1,2")
	w.want("A:0", got, "0,2,0,1,0,2")
	w.want("A:0", got, "0,2,0,1,0,2")
	again, err := w.do(t.Context(), "GET", "/rank_and_size/A:0", "")
	if err != nil || again != "0,2,0,1,0,2" {
		t.Errorf("asked again: %s %v", again, err)
	}
}

func TestHostThatCannotBeReached(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.NP, r.MinNP = 1, 1 }), "A:1")
	w.running(1)
	told := w.listens("A:0", 0)
	w.mu.Lock()
	w.refuse["B"] = errhint.Code(errors.New("no route to B"), errhint.TryAgain)
	w.mu.Unlock()
	w.source.set("A:1 B:1", nil)
	told.change(t)
	w.want("A:0", w.ask("A:0"), "0,1,0,1,0,1") // it sees nothing of the failure
	if !strings.Contains(w.log.String(), "no route to B") {
		t.Error("the failure was not told")
	}
	w.running(1, "A:0")[0].exit(0)
	w.wantEnd(0, "")
}

// Where the rendezvous cannot be served at the address that a host would be told, no worker starts there: somebody else
// may listen.
func TestHostWithoutRendezvous(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.NP, r.MinNP = 1, 1 }), "A:1")
	w.running(1)
	told := w.listens("A:0", 0)
	w.mu.Lock()
	w.unheard["B"] = errors.New("address already in use")
	w.mu.Unlock()
	w.source.set("A:1 B:1", nil)
	told.change(t)
	w.want("A:0", w.ask("A:0"), "0,1,0,1,0,1")
	if !strings.Contains(w.log.String(), "address already in use") {
		t.Error("the failure was not told")
	}
	w.running(1, "A:0")[0].exit(0)
	w.wantEnd(0, "")
}

// A worker that registers anew, as one that took another's place, is told at once, although nobody answers where the
// one before said that it listens: 199 addresses that take 15 s each.
func TestSilentRegistration(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.NP, r.MinNP, r.MaxNP = 1, 1, 0 }), "A:1")
	p := w.running(1, "A:0")
	silent, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var hosts []string
	for i := range 199 {
		hosts = append(hosts, fmt.Sprintf("127.0.1.%d", i+1))
	}
	w.register("A:0", make([]byte, 32), silent.Addr().(*net.TCPAddr).Port, hosts...)
	w.source.set("A:1 B:1", nil)
	conn, err := silent.Accept() // it is being told
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if change, _ := w.listens("A:0", 0).change(t); change != "2" {
		t.Errorf("the worker was told %s, want 2 (added)", change)
	}
	p[0].exit(0)
	w.wantEnd(0, "")
}

func TestDiscoveryFails(t *testing.T) {
	s := &source{}
	s.set("", errors.New("no script"))
	w := beginFrom(t, unlimited, s)
	if w.wantEnd(errhint.Usage, "no script"); w.err == nil {
		t.Error("no error")
	}

	s = &source{}
	s.set("A:2", nil)
	w = beginFrom(t, unlimited, s)
	p := w.running(2, "A:0", "A:1")
	s.set("", errors.New("broken later"))
	testutil.Eventually(t, patience, "a warning", func() bool { return strings.Contains(w.log.String(), "broken later") })
	a0, a1 := w.ask("A:0"), w.ask("A:1")
	w.want("A:0", a0, "0,2,0,2,0,1")
	w.want("A:1", a1, "1,2,1,2,0,1")
	if n := strings.Count(w.log.String(), "broken later"); n != 1 {
		t.Errorf("warned %d times", n)
	}
	p[0].exit(0)
	p[1].exit(0)
	w.wantEnd(0, "")
}

func TestInterrupted(t *testing.T) {
	w := begin(t, unlimited, "A:2")
	p := w.running(2, "A:0", "A:1")
	a := w.ask("A:0")
	w.parked(a)
	w.stop(errhint.Code(errors.New("stopped by a signal"), 130))
	w.want("A:0", a, horovod.NoPlace)
	w.wantEnd(130, "stopped by a signal")
	if !p[0].killed || !p[1].killed {
		t.Error("workers were left behind")
	}
}

// Who stays waits until new workers have begun to look for it, and not in gloo with its time-out.
func TestStartingWorkersAreWaitedFor(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.MinNP, r.NP = 1, 1 }), "A:1")
	first := w.running(1, "A:0")[0]
	told := w.listens("A:0", 0)
	w.mu.Lock()
	w.slow = true
	w.mu.Unlock()
	w.source.set("A:1 B:1 C:1", nil)
	told.change(t)
	a := w.ask("A:0")
	p := w.running(3, "B:0", "C:0")
	w.parked(a)
	if _, err := w.do(t.Context(), "PUT", "/global/rank_1", "host"); err != nil {
		t.Fatal(err)
	}
	w.parked(a)
	// One fails before all have begun: its host is left out, the other one begins anew.
	p[1].exit(1)
	w.running(4)
	if <-p[0].done; !p[0].killed {
		t.Error("B waits for a world that has not begun")
	}
	w.parked(a)
	w.source.set("A:1 B:1 C:1 D:1", nil) // while all wait
	n := w.source.count()
	testutil.Eventually(t, patience, "a discovery", func() bool { return w.source.count() > n+1 })
	if _, err := w.do(t.Context(), "PUT", "/global/rank_1", "host"); err != nil {
		t.Fatal(err)
	}
	w.want("A:0", a, "0,2,0,1,0,2")
	if change, _ := told.change(t); change != "2" {
		t.Errorf("told %s of the host that came meanwhile", change)
	}
	first.exit(0)
	w.running(4, "B:0")[0].exit(0)
	w.wantEnd(0, "")
}

// Slots that become fewer and more again: the dying worker of a slot has ended before its successor starts.
func TestSlotIsTakenAgain(t *testing.T) {
	w := begin(t, with(unlimited, func(r *elastic.Rules) { r.MinNP, r.NP = 1, 1 }), "A:2")
	p := w.running(2, "A:0", "A:1")
	w.source.set("A:1", nil)
	n := w.source.count()
	testutil.Eventually(t, patience, "a discovery", func() bool { return w.source.count() > n+1 })
	a0, a1 := w.ask("A:0"), w.ask("A:1")
	w.want("A:0", a0, "0,1,0,1,0,1")
	w.want("A:1", a1, horovod.NoPlace)
	w.source.set("A:2", nil)
	n = w.source.count()
	testutil.Eventually(t, patience, "a discovery", func() bool { return w.source.count() > n+1 })
	w.want("A:0", w.ask("A:0"), "0,2,0,2,0,1")
	next := w.running(3, "A:1")[0]
	if next == p[1] || next.place() != "1,2,1,2,0,1" {
		t.Errorf("A:1 has %s", next.place())
	}
	<-p[1].done
	p[0].exit(0)
	next.exit(0)
	w.wantEnd(0, "")
}

func TestRefused(t *testing.T) {
	for _, rules := range []elastic.Rules{{}, {NP: 1}, {NP: 1, MinNP: 2}, {NP: 3, MinNP: 1, MaxNP: 2}} {
		if _, err := elastic.New(elastic.Config{Rules: rules}); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%+v: %v", rules, err)
		}
	}
	if got := fmt.Sprint(elastic.Result{Verdict: elastic.Verdict{Status: 3, Reason: "why"}}); got != "status 3: why" {
		t.Error(got)
	}
}
