package dlrover

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"muster/rendezvous"
)

const (
	// beginPatience is how long the first node of a round may take to say how it begins.
	beginPatience = time.Minute
	// storePatience is how long it may take to reach its store: less than lostAfter, as nobody hears of this node before.
	storePatience = 10 * time.Second
)

// beginRecord is what the first node of a round says to the others of ours.
type beginRecord struct {
	// Nonce is of this beginning; Mixed says that agents of DLRover take part.
	Nonce string `json:"nonce"`
	// Number is that of the round, which is larger than all before: a master that has begun anew counts from 0 again.
	Number int  `json:"number"`
	Mixed  bool `json:"mixed,omitempty"`
	// Addr is where the store of the round is; the workers' too.
	Addr     string            `json:"addr"`
	Port     int               `json:"port"`
	Restarts int               `json:"restarts,omitempty"`
	Orders   rendezvous.Orders `json:"orders,omitzero"`
}

func beginKey(round int) string { return "muster/begin/" + strconv.Itoa(round) }

// torchKey is where an agent of DLRover keeps a key of a round.
func torchKey(round int, key string) string { return storeKey(training, round, 0, key) }

// storeKey is the same of a group in any rendezvous.
func storeKey(name string, round, group int, key string) string {
	return fmt.Sprintf("%s/torch.rendezvous.%s.%d.%d/%s", name, name, round, group, key)
}

// Keys of a round that agents of torchelastic know (torch 2.4 and newer).
const (
	keyMasterAddr = "MASTER_ADDR"
	keyMasterPort = "MASTER_PORT"
	keyBarrier    = "torchelastic/agent/terminal_state/num_members"
	keyPassed     = "torchelastic/agent/terminal_state/last_member"
)

// begin makes a round of what the master says, once its nodes agree on where their workers meet.
func (h *Handler) begin(ctx context.Context, w world) (rendezvous.Round, error) {
	r := &round{h: h, world: w, verdict: make(chan rendezvous.Verdict, 8), tallied: make(chan rendezvous.Tally, 1)}
	r.ctx, r.cancel = context.WithCancel(h.done)
	out := rendezvous.Round{
		GroupWorldSize: len(w.nodes), HostRank: -1, LeadRank: -1,
	}
	for i, p := range w.nodes {
		if p.rank == h.cfg.NodeRank {
			out.GroupRank, out.BaseRank = i, out.WorldSize
		}
		out.WorldSize += p.workers
	}
	out.BaseRoleRank, out.RoleWorldSize = out.BaseRank, out.WorldSize // all workers of an ElasticJob have one role
	r.me = out.GroupRank
	rec, err := h.agreeOn(ctx, r)
	if err == nil && !rec.Mixed && len(w.nodes) > 1 {
		err = r.share(ctx, rec)
	}
	if err != nil {
		r.cancel()
		return rendezvous.Round{}, err
	}
	if out.MasterAddr, out.MasterPort, out.AgentStore = rec.Addr, rec.Port, !rec.Mixed; r.store != nil {
		out.HostRank, out.LeadRank, out.LossNotice = 0, 0, h.cfg.LostAfter+2*h.cfg.LostAfter/beats
	}
	r.mixed, out.Number = rec.Mixed, rec.Number
	h.mu.Lock()
	h.last = rec.Number
	h.restarts = max(h.restarts, rec.Restarts)
	h.orders.Learn(rec.Orders)
	out.Restarts, out.Orders = h.restarts, h.orders
	if rec.Mixed { // agents of DLRover know of no orders
		out.Orders = rendezvous.Orders{}
	}
	h.round = r
	h.mu.Unlock()
	r.watch()
	out.Exchange = r
	level := zerolog.DebugLevel
	if rec.Mixed {
		level = zerolog.InfoLevel
	}
	h.cfg.Log.WithLevel(level).Int("round", out.Number).Int("group_rank", r.me).Int("group_world_size", len(w.nodes)).Bool("mixed",
		rec.Mixed).
		Msg("round of DLRover's master")
	return out, nil
}

// agreeOn returns how the round begins: the first node says it, where it is ours, else each of ours knows it.
func (h *Handler) agreeOn(ctx context.Context, r *round) (rec beginRecord, err error) {
	after := r.world.round - 1
	if r.me == 0 {
		return h.beginFirst(ctx, r)
	}
	var first []byte
	err = h.c.insist(ctx, func(ctx context.Context) error {
		first, err = h.c.lookUp(ctx, helloKey(r.world.nodes[0].rank, after))
		return err
	})
	if err != nil {
		return rec, err
	}
	if len(first) == 0 { // an agent of DLRover
		keys := []string{torchKey(r.world.round, keyMasterAddr), torchKey(r.world.round, keyMasterPort)}
		found, err := h.awaitKeys(ctx, r, keys)
		if err != nil {
			return rec, err
		}
		port, err := strconv.Atoi(string(found[keys[1]]))
		if err != nil || port < 1 || port > 65535 {
			return rec, fmt.Errorf("%w: the first node says that workers meet at port %.20q", errAgain, found[keys[1]])
		}
		return beginRecord{Mixed: true, Number: max(after, h.last+1), Addr: string(found[keys[0]]), Port: port}, nil
	}
	key := beginKey(r.world.round)
	found, err := h.awaitKeys(ctx, r, []string{key})
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(found[key], &rec); err != nil || rec.Addr == "" || rec.Port < 1 || rec.Port > 65535 || rec.Nonce == "" ||
		rec.Number < 0 || rec.Number > math.MaxInt32 {
		return rec, fmt.Errorf("%w: the first node's word of it cannot be read", errAgain)
	}
	return rec, nil
}

// awaitKeys waits for keys that the first node of the round sets.
func (h *Handler) awaitKeys(ctx context.Context, r *round, keys []string) (found map[string][]byte, err error) {
	began := time.Now()
	for look := shortestLook; ; look = min(look*3/2, longestLook) {
		var waiting int
		err := h.c.insist(ctx, func(ctx context.Context) (err error) {
			if found, err = h.c.lookUpAll(ctx, keys); err == nil && found == nil {
				waiting, err = h.othersWait(ctx)
			}
			return err
		})
		switch {
		case err != nil || found != nil:
			return found, err
		case waiting > 0:
			return nil, fmt.Errorf("%w: %d nodes wait for the next one", errAgain, waiting)
		case time.Since(began) > beginPatience:
			return nil, fmt.Errorf("%w: node rank %d has not said for %v where workers meet", errAgain, r.world.nodes[0].rank,
				beginPatience)
		}
		if err := sleep(ctx, look); err != nil {
			return nil, err
		}
	}
}

// beginFirst says how a round begins whose first node this is.
func (h *Handler) beginFirst(ctx context.Context, r *round) (rec beginRecord, err error) {
	rec = beginRecord{Nonce: rand.Text(), Number: max(r.world.round-1, h.last+1), Addr: h.cfg.Addr}
	keys := make([]string, len(r.world.nodes))
	for i, p := range r.world.nodes {
		keys[i] = helloKey(p.rank, r.world.round-1)
	}
	err = h.c.insist(ctx, func(ctx context.Context) error {
		hellos, err := h.c.lookUpAll(ctx, keys)
		rec.Mixed = hellos == nil
		for _, text := range hellos {
			var said hello
			if json.Unmarshal(text, &said) == nil { // a word that cannot be read adds nothing
				rec.Restarts, rec.Number = max(rec.Restarts, said.Restarts), max(rec.Number, min(said.Last, math.MaxInt32-1)+1)
				rec.Orders.Learn(said.Orders)
			}
		}
		return err
	})
	if err != nil {
		return rec, err
	}
	if rec.Mixed {
		err = h.withoutServer(ctx, &rec)
	} else {
		err = h.withServer(ctx, &rec)
	}
	if err != nil || len(r.world.nodes) == 1 {
		return rec, err
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return rec, err
	}
	for _, kv := range []struct {
		key   string
		value []byte
	}{
		{torchKey(r.world.round, keyMasterAddr), []byte(rec.Addr)},
		{torchKey(r.world.round, keyMasterPort), strconv.AppendInt(nil, int64(rec.Port), 10)},
		{beginKey(r.world.round), text},
	} {
		if err := h.c.insist(ctx, func(ctx context.Context) error { return h.c.set(ctx, kv.key, kv.value) }); err != nil {
			return rec, err
		}
	}
	return rec, nil
}

// withServer empties this node's store, or opens it, for a round in which agents serve workers.
func (h *Handler) withServer(ctx context.Context, rec *beginRecord) error {
	if h.server != nil {
		h.server.Reset()
		h.server.Forget(boards) // the nodes of this round have left those before it
	} else {
		s, err := h.cfg.Listen(ctx)
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.server = s
		h.mu.Unlock()
	}
	rec.Port = h.server.Port()
	return nil
}

// withoutServer finds a port for the store that worker 0 will serve, as those of DLRover's agents take for granted.
func (h *Handler) withoutServer(ctx context.Context, rec *beginRecord) (err error) {
	if h.server != nil {
		err = h.server.Close()
		h.mu.Lock()
		h.server = nil
		h.mu.Unlock()
	}
	if err == nil {
		rec.Port, err = h.freePort(ctx)
	}
	return err
}

// share reaches the store of a round whose nodes are all ours.
func (r *round) share(ctx context.Context, rec beginRecord) error {
	bounded, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	store, err := r.h.cfg.Dial(bounded, net.JoinHostPort(rec.Addr, strconv.Itoa(rec.Port)))
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w: %w: %w", errAgain, errNoStore, err)
	}
	r.store, r.prefix = store, boards+rec.Nonce+"/"
	return nil
}
