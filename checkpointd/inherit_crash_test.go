package checkpointd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"muster/internal/testutil"
)

// life is a step as a round's workers have saved it: it comes again after a rollback, with other contents.
type life struct {
	step int64
	salt int // of the contents; the number of the round
}

func (l life) state(shard int) []byte { return state(l.step+1000*int64(l.salt), shard, size) }

// restore has all workers of a round restore, and makes sure that they have one step of one life among those that all
// had saved; the salt is -1 where it came from disk, the step 0 where there was none.
func (c *nodesUnderTest) restore(whole []life) (found life) {
	c.t.Helper()
	type answer struct {
		rank int
		reply
		err error
	}
	answers := make(chan answer)
	for rank, w := range c.workers {
		go func() {
			rep, err := w.ask(request{Op: "load"})
			answers <- answer{rank, rep, err}
		}()
	}
	all := make([]answer, len(c.workers))
	for range c.workers {
		a := <-answers
		if all[a.rank] = a; a.err != nil {
			c.t.Fatal(a.err)
		}
	}
	if slices.ContainsFunc(all, func(a answer) bool { return a.Source != all[0].Source || a.Step != all[0].Step }) {
		c.t.Fatalf("not all restore the same: %+v", all)
	}
	switch all[0].Source {
	case fromNone:
		return life{0, -1}
	case fromDisk:
		return life{all[0].Step, -1}
	}
	for _, l := range slices.Backward(whole) {
		has := func(a answer) bool {
			return string(c.workers[a.rank].maps[a.Slot][headerSize:headerSize+size]) == string(l.state(a.rank))
		}
		if l.step == all[0].Step && !slices.ContainsFunc(all, func(a answer) bool { return !has(a) }) {
			for _, a := range all { // else it takes the place of a newer one
				if _, err := c.workers[a.rank].ask(request{Op: "release", Slot: a.Slot}); err != nil {
					c.t.Fatal(err)
				}
			}
			return l
		}
	}
	c.t.Fatalf("step %d was put together of several lives", all[0].Step)
	return found
}

// TestInheritCrashes kills one, some or all nodes by turns, loses one now and then, and moves ranks. All restore what
// all had saved, of one life; and where no host was lost, the newest.
func TestInheritCrashes(t *testing.T) {
	testutil.Long(t)
	lives := 25
	if testutil.Soak() {
		lives = 500
	}
	const nodes = 3
	random := rand.New(rand.NewPCG(3, 8))
	c := newNodesUnderTest(t, nodes, nil)
	order := []int{0, 1, 2}
	var whole []life // what all ranks have saved
	newest, lost := life{0, -1}, false
	memory := 0 // how often a step came from there
	for salt := range lives {
		c.begin(order...)
		found := c.restore(whole)
		if !lost && (found.step != newest.step || newest.salt >= 0 && found.salt != newest.salt) {
			t.Fatalf("life %d: restored %+v, want %+v", salt, found, newest)
		}
		if found.salt >= 0 {
			memory++
		}
		newest = found
		for range random.IntN(5) {
			l := life{newest.step + 1, salt}
			persist := random.IntN(4) == 0
			ranks := nodes
			if random.IntN(4) == 0 { // the others do not come so far
				ranks = 1 + random.IntN(nodes-1)
			}
			for _, rank := range random.Perm(nodes)[:ranks] {
				w := c.workers[rank]
				slot, err := w.begin(l.step, l.state(rank), persist)
				if err == nil {
					err = w.ready(slot, l.step, size, persist)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if ranks < nodes {
				break
			}
			newest = l
			whole = append(whole, l)
		}
		dead := random.Perm(nodes)[:random.IntN(nodes+1)]
		lost = len(dead) > 0 && random.IntN(4) == 0
		var places []string
		for i, rank := range dead {
			if lost && i == 0 { // its host, with all that is in its memory
				memory := c.nodes[order[rank]].cfg.Memory
				c.kill(order[rank])
				if err := os.RemoveAll(memory); err != nil || os.Mkdir(memory, 0o700) != nil {
					t.Fatal(err)
				}
				places = append(places, shm(t))
				continue
			}
			places = append(places, c.sigkill(order[rank]))
		}
		if len(dead) == nodes {
			c.round = -1
		}
		for i, successor := range c.successors(places...) {
			order[dead[i]] = successor
		}
		random.Shuffle(nodes, func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	if memory < lives/2 {
		t.Errorf("only %d of %d times a step came from memory", memory, lives)
	}
	var places []string
	for _, n := range order {
		places = append(places, c.nodes[n].cfg.Memory)
	}
	c.begin(order...)
	last := c.restore(whole).step + 1
	c.save(last, false) // parts of a step, of which others went with their host, stay until there is a newer one
	c.end(order...)
	c.onDisk(last)
	c.nothingIn(places...)
	t.Log(fmt.Sprint(memory, " of ", lives, " from memory"))
}
