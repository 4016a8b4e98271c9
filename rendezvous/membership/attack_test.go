package membership_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// The attacker reaches the store, reads and writes every key, keeps what an earlier job of the same run id and token
// has written, and may sit before the store, where nothing arrives as it was sent. It has no token. What it may achieve
// is nothing, another round, or an error with a name.

var jobToken = []byte("a token of sixteen bytes or more")

// trial is one job under attack: each node does its work in a round, of which the first one ends with a failure.
type trial struct {
	*job
	nodes int

	mu       sync.Mutex
	said     map[string]bool         // what agents have told each other: on the board, in reports, agreed
	finished map[string]map[int]bool // ranks whose workers have succeeded, by round
	ends     map[string]string       // how each node ended
	restarts int                     // that a node has proposed
	sums     map[string]rendezvous.Tally
	joiners  map[string]map[int]string // who has which rank in a round
}

func newTrial(t *testing.T, nodes int) *trial {
	tr := &trial{
		job: newJob(t, nodes, nodes), nodes: nodes, said: map[string]bool{}, finished: map[string]map[int]bool{}, ends: map[string]string{},
		sums: map[string]rendezvous.Tally{}, joiners: map[string]map[int]string{},
	}
	tr.cfg.Token, tr.cfg.Log, tr.cfg.JoinTimeout = jobToken, zerolog.Nop(), time.Minute
	return tr
}

func (tr *trial) note(f func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	f()
}

// worked reports whether in some round the workers of every node have succeeded.
func (tr *trial) worked() bool {
	for _, ranks := range tr.finished {
		if len(ranks) == tr.nodes {
			return true
		}
	}
	return false
}

// live is a node's life.
func (tr *trial) live(ctx context.Context, a *agent) {
	defer a.Close()
	for rounds := 0; ; rounds++ {
		n := <-a.begin(ctx)
		var over *rendezvous.OverError
		switch {
		case errors.As(n.err, &over):
			tr.note(func() {
				tr.ends[a.name] = string(over.Verdict.Kind) + ": " + over.Verdict.Reason
				if over.Verdict.Kind == rendezvous.Succeed && !tr.worked() {
					tr.t.Errorf("%s is told that the job has succeeded, and it has not", a.name)
				}
			})
			return
		case n.err != nil:
			tr.note(func() {
				if tr.ends[a.name] = "error: " + n.err.Error(); strings.Contains(n.err.Error(), "internal error") ||
					len(n.err.Error()) < 20 {
					tr.t.Errorf("%s ends without a name for it: %v", a.name, n.err)
				}
			})
			return
		case rounds > 40:
			tr.t.Errorf("%s is in its %dth round", a.name, rounds)
			return
		}
		if v := tr.round(ctx, a, n.round); v.Kind == rendezvous.Succeed || v.Kind == rendezvous.Fail {
			tr.note(func() {
				tr.ends[a.name] = string(v.Kind) + ": " + v.Reason
				if v.Kind == rendezvous.Succeed && !tr.worked() {
					tr.t.Errorf("%s hears that the job has succeeded, and it has not", a.name)
				}
				if v.Kind == rendezvous.Fail && v.Reason != "JobElsewhere" && v.Reason != "QuorumLost" && v.Reason != "RecordsLost" {
					tr.t.Errorf("%s hears that the job has failed: %+v", a.name, v)
				}
			})
			return
		}
	}
}

// round is a node's part in a round; it returns how that ended.
func (tr *trial) round(ctx context.Context, a *agent, r rendezvous.Round) rendezvous.Verdict {
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	board := a.Board()
	word := func(rank int) string { return fmt.Sprintf("word of rank %d in round %d", rank, r.Number) }
	name := fmt.Sprintf("round %d of %s", r.Number, r.MasterAddr)
	tr.note(func() {
		if tr.joiners[name] == nil {
			tr.joiners[name] = map[int]string{}
		}
		if by := tr.joiners[name][r.GroupRank]; by != "" && by != a.name || r.GroupWorldSize != tr.nodes || r.WorldSize != 2*tr.nodes {
			tr.t.Errorf("%s is in %+v; its rank is that of %q", a.name, r, by)
		}
		tr.joiners[name][r.GroupRank] = a.name
		if r.Restarts > tr.restarts {
			tr.t.Errorf("%s: %d restarts, and %d were proposed", a.name, r.Restarts, tr.restarts)
		}
	})
	if err := board.Set(limited, "word/"+strconv.Itoa(r.GroupRank), []byte(word(r.GroupRank))); err == nil {
		for rank := range r.GroupWorldSize {
			if text, err := board.Get(limited, "word/"+strconv.Itoa(rank)); err == nil && string(text) != word(rank) {
				tr.t.Errorf("%s reads %q on the board", a.name, text)
			}
		}
	}
	select {
	case v := <-a.Verdict():
		return v
	case <-time.After(3 * time.Second):
	}
	if r.Restarts == 0 && r.GroupRank == tr.nodes-1 {
		tr.note(func() { tr.restarts = 1 })
		v, err := a.Propose(ctx, rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 1, Status: 1, Restarts: 1})
		if err != nil {
			return rendezvous.Verdict{Kind: rendezvous.Reassemble}
		}
		tr.report(a, r)
		return v
	}
	tr.note(func() {
		if tr.finished[name] == nil {
			tr.finished[name] = map[int]bool{}
		}
		tr.finished[name][r.GroupRank] = true
	})
	if err := a.Tally(ctx, rendezvous.Tally{Ended: 2}); err != nil {
		return rendezvous.Verdict{Kind: rendezvous.Reassemble}
	}
	var v rendezvous.Verdict
	select {
	case v = <-a.Verdict():
	case sum := <-a.Tallied():
		if want := (rendezvous.Tally{Ended: 2 * tr.nodes}); sum != want {
			tr.t.Errorf("%s: the sum is %+v", a.name, sum)
		}
		var err error
		if v, err = a.Propose(ctx, rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}); err != nil {
			return rendezvous.Verdict{Kind: rendezvous.Reassemble}
		}
	case <-time.After(10 * time.Minute):
		tr.t.Errorf("%s does not hear how the round ends", a.name)
		return rendezvous.Verdict{Kind: rendezvous.Fail, Reason: "QuorumLost"}
	}
	if v.Kind == rendezvous.Restart || v.Kind == rendezvous.Succeed {
		tr.report(a, r)
	}
	return v
}

// report tells and asks for reports, and agrees on something.
func (tr *trial) report(a *agent, r rendezvous.Round) {
	ctx, cancel := context.WithTimeout(tr.t.Context(), 2*time.Second)
	defer cancel()
	text := fmt.Sprintf("report of %s in round %d", a.name, r.Number)
	tr.note(func() { tr.said[text] = true })
	_ = a.Report(ctx, []byte(text))
	reports, _ := a.Reports(ctx)
	agreed, err := a.Agree(tr.t.Context(), []byte(text))
	if err == nil {
		reports = append(reports, agreed)
	}
	tr.note(func() {
		for _, report := range reports {
			if !tr.said[string(report)] || !strings.HasSuffix(string(report), fmt.Sprintf("in round %d", r.Number)) {
				tr.t.Errorf("%s reads the report %q", a.name, report)
			}
		}
	})
}

// run lets all nodes live until each of them has ended.
func (tr *trial) run() {
	var lives sync.WaitGroup
	for i := range tr.nodes {
		a := tr.start(string(rune('a'+i)), func(c *membership.Config) { c.At = "store:1" })
		lives.Go(func() { tr.live(tr.t.Context(), a) })
		synctest.Wait() // a is the coordinator
	}
	lives.Wait()
	tr.note(func() {
		for i := range tr.nodes {
			if tr.ends[string(rune('a'+i))] == "" {
				tr.t.Errorf("node %d has no end", i)
			}
		}
	})
}

// succeeded reports whether every node has.
func (tr *trial) succeeded() bool {
	for i := range tr.nodes {
		if !strings.HasPrefix(tr.ends[string(rune('a'+i))], "succeed") {
			return false
		}
	}
	return true
}

var (
	nonce  = regexp.MustCompile(`\.[a-z0-9]{20,}`)
	agents = regexp.MustCompile(`/(beat|left|door)/[a-z0-9]+`)
	number = regexp.MustCompile(`[0-9]+`)
)

// class is what keys of one purpose have in common.
func class(key string) string {
	return number.ReplaceAllString(agents.ReplaceAllString(nonce.ReplaceAllString(key, ".<nonce>"), "/$1/<agent>"), "<n>")
}

// record is what was written under a key, in its order.
type record struct {
	key, class string
	value      []byte
}

// earlier returns everything that an undisturbed job has written.
func earlier(t *testing.T, nodes int) (all []record) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, nodes)
		tr.space.Tamper(func(key string, value []byte) ([]byte, bool) {
			all = append(all, record{key, class(key), value})
			return value, true
		})
		tr.run()
		if !tr.succeeded() {
			t.Fatalf("an undisturbed job: %v", tr.ends)
		}
	})
	return all
}

// bare are the keys whose value needs no seal: hints.
func bare(key string) bool { return strings.HasSuffix(key, "/tickets") || key == "muster/ids" }

// forgeries make of what an agent writes what the attacker puts in its place; nil: nothing.
func forgeries(old []record, rnd *rand.Rand) map[string]func(r record, now map[string][]byte) []byte {
	body := func(v []byte) []byte {
		if i := bytes.LastIndexByte(v, '\n'); i >= 0 {
			return v[:i]
		}
		return v
	}
	pick := func(is func(record) bool) []byte {
		var of []record
		for _, r := range old {
			if is(r) {
				of = append(of, r)
			}
		}
		if len(of) == 0 {
			return nil
		}
		return of[rnd.IntN(len(of))].value
	}
	return map[string]func(record, map[string][]byte) []byte{
		"plain": func(r record, _ map[string][]byte) []byte { return body(r.value) },
		"other token": func(r record, _ map[string][]byte) []byte {
			return membership.Seal("job7", []byte("another token"), "abcdefghijkl", r.key, body(r.value))
		},
		"replayed": func(r record, _ map[string][]byte) []byte {
			return pick(func(o record) bool { return o.class == r.class })
		},
		"of another purpose": func(r record, _ map[string][]byte) []byte {
			return pick(func(o record) bool { return o.class != r.class && !bare(o.key) })
		},
		"swapped": func(r record, now map[string][]byte) []byte {
			for _, key := range slices.Sorted(maps.Keys(now)) {
				if key != r.key && class(key) == r.class {
					return now[key]
				}
			}
			return nil
		},
		"removed":   func(record, map[string][]byte) []byte { return nil },
		"truncated": func(r record, _ map[string][]byte) []byte { return r.value[:len(r.value)/2] },
		"garbage":   func(record, map[string][]byte) []byte { return []byte("\x00\xff garbage \n:") },
		"absent":    func(record, map[string][]byte) []byte { return []byte("\x00absent") },
		"number":    func(record, map[string][]byte) []byte { return []byte("1000000000") },
	}
}

// soak reports whether the tests run with their full counts.
// racing reports whether few worlds are to do, as the race detector is on: which of them are wrong is found without it,
// as make test runs this package for the second time.
func racing() bool { return testutil.RaceDetector && !testutil.Soak() }

// thin reports whether world n of a simulation is left out: fifteen of sixteen are under the race detector, and seven of
// eight of the short tests.
func thin(n int) bool {
	return racing() && n%16 != 0 || testutil.Few(8) == 1 && n%8 != 0
}

// TestForgedRecords does everything that is no right of the attacker to every kind of key that agents write: instead of
// the agent's own value, once and again and again, or some time after it. Each kind of key is forged in each way at one
// of these moments, and at each of them in some way; with MUSTER_SOAK=1 at all of them in each way. Under the race detector
// each kind is forged in one way at one moment, and each way and each moment is there.
func TestForgedRecords(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		old := earlier(t, nodes)
		classes := map[string]bool{}
		for _, r := range old {
			if strings.HasPrefix(r.key, membership.KeyPrefix) {
				classes[r.class] = true
			}
		}
		if len(classes) < 15 {
			t.Fatalf("agents write %d kinds of keys: %v", len(classes), slices.Sorted(maps.Keys(classes)))
		}
		for k, of := range slices.Sorted(maps.Keys(classes)) {
			for w, what := range slices.Sorted(maps.Keys(forgeries(nil, nil))) {
				for m, when := range []string{"once", "always", "later"} {
					switch {
					case racing():
						if (k+k/10+w)%10 != 0 || k%2 != nodes-2 || k/2%3 != m {
							continue
						}
					case testing.Short() && when != "once" || !testutil.Soak() && (k+w+nodes)%3 != m || thin(2*k+w):
						continue
					}
					t.Run(fmt.Sprintf("%d nodes/%s/%s/%s", nodes, strings.ReplaceAll(of, "/", ":"), what, when), func(t *testing.T) {
						t.Parallel()
						synctest.Test(t, func(t *testing.T) { forge(t, nodes, old, of, what, when) })
					})
				}
			}
		}
	}
}

// forge is one job with one kind of forgery.
func forge(t *testing.T, nodes int, old []record, of, what, when string) {
	rnd := rand.New(rand.NewPCG(uint64(len(of)), uint64(len(what)+len(when))))
	tr := newTrial(t, nodes)
	forgeOf := forgeries(old, rnd)[what]
	now, struck, which := map[string][]byte{}, 0, rnd.IntN(2)
	tr.space.Tamper(func(key string, value []byte) ([]byte, bool) {
		r := record{key, class(key), value}
		defer func() { now[key] = value }()
		if r.class != of {
			return value, true
		}
		struck++
		forged := forgeOf(r, now)
		switch {
		case when == "later":
			time.AfterFunc(time.Duration(rnd.IntN(4000))*time.Millisecond, func() { tr.space.Put(key, forged) })
			return value, true
		case when == "once" && struck != 1+which:
			return value, true
		}
		return forged, forged != nil
	})
	tr.run()
	t.Log(tr.ends)
}

// TestReplayedJob puts an earlier job's records back, all of them or those by which it has ended, before a job of the
// same run id and token begins and at moments of its life. It does its work.
func TestReplayedJob(t *testing.T) {
	old := earlier(t, 2)
	ended := func(r record) bool {
		return strings.HasSuffix(r.key, "/members") || strings.HasSuffix(r.key, "/verdict")
	}
	for name, is := range map[string]func(record) bool{
		"how it ended": ended,
		"all but its beginning": func(r record) bool {
			return !strings.HasSuffix(r.key, "/term") && !strings.HasSuffix(r.key, "/coordinator")
		},
	} {
		for after := time.Duration(0); after < 16*time.Second; after += 500 * time.Millisecond {
			if thin(int(after / (500 * time.Millisecond))) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", name, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tr := newTrial(t, 2)
					time.AfterFunc(after, func() {
						for _, r := range old {
							if is(r) {
								tr.space.Put(r.key, r.value)
							}
						}
					})
					tr.run()
					if !tr.succeeded() || !tr.worked() {
						t.Errorf("%v", tr.ends)
					}
				})
			})
		}
	}
}

// TestReplayedAndDeposed is the worst moment for how an earlier job ended: the coordinator of this one is lost, and who
// follows it in leadership reads the last round. It was told the nonce of its own job.
func TestReplayedAndDeposed(t *testing.T) {
	old := earlier(t, 2)
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 1, 2)
		j.cfg.Token = jobToken
		j.mustMeetLater(t, func(a, b *agent) {
			for _, r := range old {
				if strings.HasSuffix(r.key, "/members") || strings.HasSuffix(r.key, "/verdict") {
					j.space.Put(r.key, r.value)
				}
			}
			a.die()
			if v := b.verdict(); v.Kind != rendezvous.Reassemble {
				t.Errorf("%+v", v)
			}
			if n := <-b.begin(t.Context()); n.err != nil || n.round.GroupWorldSize != 1 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		})
	})
}

// TestUsurpedLeadership: the record of the coordinator is removed, and a second agent takes the leadership. Two worlds
// do not go on unnoticed.
func TestUsurpedLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 1, 4)
		j.cfg.Token = jobToken
		j.mustMeetLater(t, func(a, _ *agent) {
			j.space.Put("muster/job7/t0/coordinator", nil)
			time.Sleep(time.Second)
			n := <-a.begin(t.Context())
			if n.err == nil || !strings.Contains(n.err.Error(), "coordinator") {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		})
	})
}

// TestTicketsChanged: somebody counts the tickets up, sets them back or makes no number of them while nodes come. They
// meet.
func TestTicketsChanged(t *testing.T) {
	for _, value := range []string{"1000000000", "9000000000000000000", "0", "1", "-5", "3000", "no number"} {
		t.Run(value, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 3, 3)
				j.cfg.Token = jobToken
				first := j.start("a").begin(t.Context())
				synctest.Wait()
				second := j.start("b").begin(t.Context())
				time.Sleep(time.Second)
				j.space.Put(j.leadership(0)+"tickets", []byte(value))
				third := j.start("c").begin(t.Context())
				for _, c := range []chan next{first, second, third} {
					if n := <-c; n.err != nil || n.round.GroupWorldSize != 3 {
						t.Errorf("%+v, %v", n.round, n.err)
					}
				}
			})
		})
	}
}

// TestLostAnswer: the answer by which a round begins does not arrive. Its agent asks again, and gets the same.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.cfg.Token = jobToken
		lost := ""
		j.space.Tamper(func(key string, value []byte) ([]byte, bool) {
			if strings.Contains(key, "/answer/2/") && lost == "" {
				lost = key
				return nil, false
			}
			return value, true
		})
		a := j.start("a")
		first := a.begin(t.Context())
		synctest.Wait()
		b := j.start("b")
		second := b.begin(t.Context())
		for _, c := range []chan next{first, second} {
			if n := <-c; n.err != nil || n.round.Number != 0 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		}
		if lost == "" {
			t.Error("no answer was lost")
		}
	})
}

// TestOldAnswer: somebody sets the counter of tickets back, so that a node draws one that it has had before, and puts
// there what it was answered then: its place in a round that is over. It has no part in that.
func TestOldAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.cfg.Token = jobToken
		old, counter := map[string][]byte{}, ""
		j.space.Tamper(func(key string, value []byte) ([]byte, bool) {
			if strings.Contains(key, "/answer/2/") {
				old[key] = value
			}
			if strings.HasSuffix(key, "/tickets") {
				counter = key
			}
			return value, true
		})
		a := j.start("a")
		first := a.begin(t.Context())
		synctest.Wait()
		b := j.start("b")
		second := b.begin(t.Context())
		for _, c := range []chan next{first, second} {
			if n := <-c; n.err != nil || n.round.Number != 0 {
				t.Fatalf("%+v, %v", n.round, n.err)
			}
		}
		if _, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Restarts: 1}); err != nil {
			t.Fatal(err)
		}
		b.verdict()
		first = a.begin(t.Context())
		synctest.Wait()
		j.space.Tamper(nil)
		if len(old) == 0 || counter == "" {
			t.Fatal("b has had another ticket than 2")
		}
		for key, value := range old {
			j.space.Put(key, value)
			j.space.Put(key[:strings.Index(key, "/answer/")]+"/join/2", nil)
		}
		j.space.Put(counter, []byte("1"))
		second = b.begin(t.Context())
		for _, c := range []chan next{second, first} {
			if n := <-c; n.err != nil || n.round.Number != 1 {
				t.Errorf("round %+v, %v", n.round, n.err)
			}
		}
	})
}

// TestEverythingIsSealed: over a life with all that agents say to each other, each value that is written can be made
// with the token only.
func TestEverythingIsSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]bool{}
		var mu sync.Mutex
		watch := func(s *memstore.Space) {
			s.Tamper(func(key string, value []byte) ([]byte, bool) {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasPrefix(key, membership.KeyPrefix) && !bare(key) && !membership.Sealed("job7", jobToken, key, value) {
					t.Errorf("not sealed: %q is %.80q", key, value)
				}
				seen[class(key)] = true
				return value, true
			})
		}
		tr := newTrial(t, 2) // board, tally, reports, restart
		watch(tr.space)
		tr.run()

		n := newNetwork(t, 2, 3) // a coordinator that is lost with the store, which moves; a spare
		n.cfg.Token, n.cfg.Spares = jobToken, 1
		for _, name := range []string{"a", "b", "c", "d"} {
			n.spaces[name] = memstore.NewSpace()
			watch(n.spaces[name])
		}
		var lives sync.WaitGroup
		all := n.come("a b c", n.live, &lives)
		time.Sleep(20 * time.Second)
		d := n.node("d", "a")
		n.live(d, &lives)
		time.Sleep(20 * time.Second)
		n.split("a", "b c d")
		time.Sleep(time.Minute)
		n.end(append(all, d)...)
		lives.Wait()
		for _, want := range []string{
			"board", "ended", "stopped", "report/", "reported", "agreed", "verdict", "open", "members", "elected",
			"vote/", "host", "beat", "lobby", "answer", "left",
		} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(c string) bool { return strings.Contains(c, want) }) {
				t.Errorf("nothing was written that has to do with %q: the test shows less than it says", want)
			}
		}
	})
}

// TestStoreDoesNotGrow: what a round needs is deleted two rounds later, by whoever wrote it.
func TestStoreDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.cfg.Token = jobToken
		j.mustMeetLater(t, func(a, b *agent) {
			var counts []int
			for i := range 12 {
				for _, x := range []*agent{a, b} {
					if err := x.Board().Set(t.Context(), "from "+x.name, []byte("x")); err != nil {
						t.Fatal(err)
					}
					if err := x.Tally(t.Context(), rendezvous.Tally{Ended: 2}); err != nil {
						t.Fatal(err)
					}
				}
				<-a.Tallied()
				a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Restarts: i + 1})
				for _, x := range []*agent{a, b} {
					x.verdict()
					x.Report(t.Context(), []byte("why"))
					x.Agree(t.Context(), []byte("1"))
				}
				meet(t.Context(), a, b)
				synctest.Wait()
				counts = append(counts, j.space.NumKeys())
			}
			if counts[5] < counts[11] {
				t.Errorf("keys after each round: %v\n%v", counts, slices.Sorted(maps.Keys(j.space.Keys())))
			}
		})
	})
}
