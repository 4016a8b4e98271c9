package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"muster/rendezvous"
)

// testHandler is a Handler of fixed agents: every node that has not left is in every round, ranks follow the
// indexes, and nobody is found to be lost. What agents tell each other goes through any Store. A spare is in no round.
//
// A test can play the handler's own part: the value under r<round>/push/<index> is delivered to that node as a verdict.
type testHandler struct {
	Store        rendezvous.Store
	Index, Nodes int
	Spare        bool
	LossNotice   time.Duration // of rounds of several nodes
	Lasts        time.Duration // each round's lease; 0: none
	Deaf         int           // the round in which the verdict is heard only in answer to a proposal; 0: none
	Done         func() error  // closes what Store needs

	round        int // the current one; -1 before the first
	members      []int
	world        int
	restarts     int
	orders       rendezvous.Orders
	replacements int
	verdicts     chan rendezvous.Verdict
	sum          chan rendezvous.Tally
	leases       chan time.Time
	stopWatch    func()
	proposed     chan struct{} // has a value once this node has proposed
}

func (h *testHandler) key(format string, args ...any) string {
	return fmt.Sprintf("r%d/", h.round) + fmt.Sprintf(format, args...)
}

func (h *testHandler) Next(ctx context.Context, m rendezvous.Member) (rendezvous.Round, error) {
	h.stopWatching()
	if h.members != nil {
		var last rendezvous.Verdict
		text, err := h.Store.Get(ctx, h.key("verdict"))
		if err == nil {
			err = json.Unmarshal(text, &last)
		}
		if err != nil {
			return rendezvous.Round{}, err
		}
		h.orders.Learn(last.Orders)
		switch {
		case last.Kind == rendezvous.Restart:
			h.restarts = last.Restarts
		case last.Reason == "NodeLost":
			h.replacements++
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		text, err := h.Store.Get(ctx, "over")
		var v rendezvous.Verdict
		if err == nil && json.Unmarshal(text, &v) == nil {
			cancel(&rendezvous.OverError{Verdict: v})
		}
	})
	if h.Spare {
		<-ctx.Done()
		return rendezvous.Round{}, context.Cause(ctx)
	}
	if h.members == nil {
		h.round = -1
		for i := range h.Nodes {
			h.members = append(h.members, i)
		}
	}
	h.round++
	own, err := json.Marshal(m)
	if err != nil {
		return rendezvous.Round{}, err
	}
	if err := h.Store.Set(ctx, h.key("node/%d", h.Index), own); err != nil {
		return rendezvous.Round{}, err
	}
	r := rendezvous.Round{
		Number: h.round, Restarts: h.restarts, Replacements: h.replacements, MasterAddr: "node-0", MasterPort: 29500, AgentStore: true,
		Exchange: h, Orders: h.orders,
	}
	var stay []int
	for _, i := range h.members {
		text, err := h.Store.Get(ctx, h.key("node/%d", i))
		if err != nil {
			return rendezvous.Round{}, err
		}
		if string(text) == "left" {
			continue
		}
		var other rendezvous.Member
		if err := json.Unmarshal(text, &other); err != nil {
			return rendezvous.Round{}, err
		}
		if i == h.Index {
			r.GroupRank, r.BaseRank, r.BaseRoleRank = len(stay), r.WorldSize, r.WorldSize
		}
		r.WorldSize += other.LocalWorldSize
		stay = append(stay, i)
	}
	h.members, h.world, h.sum = stay, r.WorldSize, make(chan rendezvous.Tally, 1)
	r.RoleWorldSize, r.GroupWorldSize = r.WorldSize, len(stay)
	if len(stay) > 1 {
		r.LossNotice = h.LossNotice
	}
	if h.Lasts > 0 {
		h.leases = make(chan time.Time, 4)
		h.leases <- time.Now().Add(h.Lasts)
	}
	h.watch()
	return r, nil
}

// watch delivers the round's verdict, and what the test says in the handler's place.
func (h *testHandler) watch() {
	h.verdicts = make(chan rendezvous.Verdict, 2)
	verdicts, leases := h.verdicts, h.leases
	h.proposed = make(chan struct{}, 1)
	proposed, round := h.proposed, h.round
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i, key := range []string{h.key("verdict"), h.key("push/%d", h.Index)} {
		wg.Go(func() {
			var v rendezvous.Verdict
			if round > 0 && round == h.Deaf && i == 0 {
				select {
				case <-proposed:
				case <-ctx.Done():
				}
			}
			if text, err := h.Store.Get(ctx, key); err == nil && json.Unmarshal(text, &v) == nil {
				if leases != nil && (v.Kind == rendezvous.Succeed || v.Kind == rendezvous.Fail) {
					leases <- time.Time{}
				}
				verdicts <- v
			}
		})
	}
	h.stopWatch = func() { cancel(); wg.Wait() }
}

func (h *testHandler) stopWatching() {
	if h.stopWatch != nil {
		h.stopWatch()
		h.stopWatch = nil
	}
}

func (h *testHandler) Verdict() <-chan rendezvous.Verdict { return h.verdicts }

func (h *testHandler) Lease() <-chan time.Time { return h.leases }

func (h *testHandler) Propose(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	defer func() {
		select {
		case h.proposed <- struct{}{}:
		default: // it had before
		}
	}()
	text, err := json.Marshal(v)
	if err != nil {
		return v, err
	}
	if text, err = h.Store.CompareAndSet(ctx, h.key("verdict"), nil, text); err != nil {
		return v, err
	}
	var said rendezvous.Verdict
	if err := json.Unmarshal(text, &said); err != nil {
		return v, err
	}
	if said.Kind == rendezvous.Succeed || said.Kind == rendezvous.Fail {
		err = h.Store.Set(ctx, "over", text)
	}
	return said, err
}

func (h *testHandler) Tally(ctx context.Context, t rendezvous.Tally) error {
	const shift = 32
	sum, err := h.Store.Add(ctx, h.key("tally"), int64(t.Ended)+int64(t.Failed)<<shift)
	all := rendezvous.Tally{Ended: int(sum & (1<<shift - 1)), Failed: int(sum >> shift)}
	if all.Ended == h.world {
		h.sum <- all
	}
	return err
}

func (h *testHandler) Tallied() <-chan rendezvous.Tally { return h.sum }

func (h *testHandler) Report(ctx context.Context, report []byte) error {
	return h.Store.Set(ctx, h.key("report/%d", h.Index), append([]byte("="), report...))
}

func (h *testHandler) Reports(ctx context.Context) ([][]byte, error) {
	var reports [][]byte
	for _, i := range h.members {
		key := h.key("report/%d", i)
		text, err := h.Store.Get(ctx, key)
		if ctx.Err() != nil {
			// What is there is told without waiting: a compare-and-set that cannot match changes nothing.
			text, err = h.Store.CompareAndSet(context.WithoutCancel(ctx), key, []byte("?"), []byte("?"))
		}
		if err != nil {
			return nil, err
		}
		if report, there := strings.CutPrefix(string(text), "="); there {
			reports = append(reports, []byte(report))
		}
	}
	return reports, nil
}

func (h *testHandler) Agree(ctx context.Context, value []byte) ([]byte, error) {
	return h.Store.CompareAndSet(ctx, h.key("agree"), nil, value)
}

func (h *testHandler) Board() rendezvous.Board { return h.Store }

func (h *testHandler) Close() error {
	h.stopWatching()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	if !h.Spare {
		if h.members == nil {
			h.round = -1
		}
		h.round++
		err = h.Store.Set(ctx, h.key("node/%d", h.Index), []byte("left"))
	}
	return errors.Join(err, h.Done())
}
