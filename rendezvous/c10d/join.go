package c10d

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

const (
	// holdBack is how long we let others into an open round before us, holdPoll how often we look whether they are in.
	holdBack = 3 * time.Second
	holdPoll = 100 * time.Millisecond
	// firstWord is how long we let an agent of torchrun write the first state of a job: an agent does within a second
	// after it has come, and only then its state is of the kind that its PyTorch reads, which differs between 1.x and
	// 2.x.
	firstWord = 5 * time.Second
	// headStart is how much sooner we take a last call for over than the others, who look every second.
	headStart = 1500 * time.Millisecond
)

// Master says where the workers of a round meet if f's agent serves the store. For one node it must return the same
// address every time: agents of torchrun 2.6 and newer ask once in a job, and send the workers of all later rounds to
// what they heard then (c10d.md §3.3). So the store there is emptied between rounds, not replaced; and f is the node
// that served it before, as long as that takes part, even if it is not worker 0's.
//
// With served, an agent of ours serves the store, and it does before Master returns. Without, where the other agents
// are of PyTorch 1.x, worker 0 opens it itself, and nobody may listen at that port; then any address will do each time.
type Master func(ctx context.Context, f Peer, served bool) (addr string, port int, err error)

// Joined is a round that our nodes take part in.
type Joined struct {
	// Round counts from 0. Torchrun's agents count the same rounds.
	Round                     int
	GroupWorldSize, WorldSize int
	MasterAddr                string
	MasterPort                int
	// AgentStore says that an agent serves the workers' store there: what a worker's TORCHELASTIC_USE_AGENT_STORE must
	// say.
	AgentStore bool
	// Ranks has one entry for each of ours, by group rank; those that are spare or wait are not in it.
	Ranks []Assignment
	// Others is how many of the nodes are torchrun's.
	Others int
	// Names are the addresses of all nodes, by group rank.
	Names []string
	// Exit are keys of the store: when all of them exist, every agent has entered the exit barrier, and may be gone.
	Exit []string
}

// Assignment is what a round gives to one node of ours.
type Assignment struct {
	Peer
	GroupRank, BaseRank, BaseRoleRank, RoleWorldSize int
}

// round is a complete round with what we need to know of it.
type round struct {
	Round
	order   []Node // by rank
	peers   map[Node]Peer
	prefix  string // of its keys
	legacy  bool   // of the family 1.13 to 2.3
	entered bool   // whether we are in its exit barrier
	passed  bool   // whether everybody is
}

func (r *round) others() int { return len(r.order) - len(r.peers) }

// key is what an agent writes under name by its rank.
func (r *round) key(name string, rank int) string { return r.prefix + name + strconv.Itoa(rank) }

// exit are the keys that exist when nobody needs the store any more. In the family 1.13 to 2.3 everybody says that it
// has read what all have written: what ours say tells us nothing.
func (r *round) exit() []string {
	if !r.legacy {
		return []string{r.prefix + keyPassed}
	}
	var keys []string
	for rank, n := range r.order {
		if _, ours := r.peers[n]; !ours {
			keys = append(keys, r.key(keyOldBarrier, rank)+fin)
		}
	}
	return keys
}

// Join takes all of ours out of the round before, whose workers must have stopped, and into the next one. It returns
// when that is complete and all agents have said what they bring into it.
//
// peers returns the nodes of ours as they are now, the most important first; it is asked whenever there is something
// to decide. Who is too many becomes a spare. A value on changed, which may be nil, says that the peers have changed.
//
// It returns ErrClosed, ErrSpared or ErrTimeout when no round follows. After any other error our nodes are still where
// they were, and others may begin a round with them: Leave, or Join again.
func (b *Bridge) Join(ctx context.Context, peers func() []Peer, changed <-chan struct{}, where Master) (Joined, error) {
	b.joined = nil
	deadline := b.deadline(WantJoin)
	for {
		b.tell(progress{phase: phaseJoin})
		if _, err := b.drive(ctx, &goal{want: WantExit, deadline: deadline}); err != nil {
			return Joined{}, b.notJoined(err)
		}
		d, err := b.drive(ctx, &goal{want: WantJoin, deadline: deadline, peers: peers, changed: changed})
		if err != nil {
			return Joined{}, b.notJoined(err)
		}
		if b.joined, err = b.begun(d.Round); err != nil {
			return Joined{}, err
		}
		j, err := b.share(ctx, peers, where)
		over, again := errors.AsType[*RoundOverError](err)
		if !again {
			if err != nil {
				b.joined = nil
				return Joined{}, b.notJoined(err)
			}
			b.cfg.Log.Info().Int("round", j.Round).Int("group_world_size", j.GroupWorldSize).Int("world_size",
				j.WorldSize).Int("torchrun", j.Others).
				Msg("round joined with agents of torchrun")
			return j, nil
		}
		b.cfg.Log.Warn().Int("round", over.Round).Str("reason", over.Reason).Msg("round is over before it has begun")
		if deadline < b.now().Mono {
			return Joined{}, b.notJoined(fmt.Errorf("%w: %w", ErrTimeout, err))
		}
	}
}

// notJoined says what a join was about.
func (b *Bridge) notJoined(err error) error {
	err = fmt.Errorf("cannot join rendezvous %q: %w", b.cfg.RunID, err)
	switch {
	case errors.Is(err, ErrTimeout):
		err = fmt.Errorf("%w (%s)", err, b.Progress())
		return errhint.Code(errhint.With(err, "do all agents use the same run id, endpoint and number of nodes?"), errhint.TryAgain)
	case errors.Is(err, ErrClosed):
		return errhint.With(err, "a run id is used up when its job has ended: choose another --rdzv-id, or start the store anew")
	}
	return err
}

// begun makes a round of what Step has joined.
func (b *Bridge) begun(r Round) (*round, error) {
	b.last = r
	j := &round{
		Round: r, order: make([]Node, len(r.Ranks)), peers: make(map[Node]Peer),
		prefix: b.prefix(r.Number), legacy: b.state.Naive || b.state.FQDN,
	}
	for n, rank := range r.Ranks {
		j.order[rank] = n
	}
	for _, f := range b.peers {
		if _, in := r.Ranks[f.Node]; in {
			if f.LocalWorldSize < 1 {
				return nil, fmt.Errorf("node %s has %d workers, want at least 1", f.Node, f.LocalWorldSize)
			}
			j.peers[f.Node] = f
		}
	}
	return j, nil
}

// prefix is what the keys of a round begin with.
func (b *Bridge) prefix(number int) string { return fmt.Sprintf("%s.%d/", b.key, number) }

// headStart lets us complete a round, and so give the ranks, before an agent of upstream does: that sorts all nodes
// anew, and may make a node rank 0 whose address the others never ask for.
func (b *Bridge) headStart() time.Duration {
	if b.cfg.Settings.LastCall <= 2*headStart {
		return 0
	}
	return headStart
}

// holdsBack reports whether we let others go first: with the first state, see firstWord, and into a later round that is
// open, as long as there is a place for all: whoever fills the last one gives the ranks, see headStart. The others are
// those who wait for it, and those of the round before.
func (b *Bridge) holdsBack(members []Node, now Instant) bool {
	st := b.state
	number := -1
	if st != nil {
		number = st.Round
	}
	if b.opened.round != number {
		b.opened = opening{number, now.Mono}
	}
	switch open := now.Mono - b.opened.since; {
	case st == nil:
		return open < firstWord
	case st.Complete || st.Closed || st.Round == 0 || open >= holdBack:
		return false
	}
	coming := 0
	expect := func(n Node) {
		if _, in := st.Participants[n]; !in && !b.ours.Has(n) && b.seen.Alive(n) {
			coming++
		}
	}
	for n := range st.WaitList {
		expect(n)
	}
	for n := range st.Ranks {
		if !st.WaitList.Has(n) {
			expect(n)
		}
	}
	if coming == 0 || len(st.Participants)+coming+len(members) > b.cfg.Settings.MaxNodes {
		return false
	}
	return !slices.ContainsFunc(members, func(n Node) bool { _, in := st.Participants[n]; return in })
}

// share does what all agents of a complete round do together, while ours are kept alive. A round that ends meanwhile is
// a *RoundOverError.
func (b *Bridge) share(ctx context.Context, peers func() []Peer, where Master) (Joined, error) {
	x := &exchange{
		log: b.cfg.Log, store: b.cfg.Store, timeout: b.cfg.ReadTimeout, round: b.joined, where: where, before: b.master, own: b.own,
		prefix: b.prefix, rendezvous: b.key,
	}
	b.tell(progress{phase: phaseShare, waits: x.waits.Load})
	err := b.meanwhile(ctx, &goal{
		// All may be silent: whoever waits for a key does not write.
		peers: peers, nobody: len(b.joined.order), lost: func() string { return b.lostInExchange(x.waits.Load()) },
	}, x.run)
	if err != nil {
		return Joined{}, err
	}
	b.master, b.own = x.master, x.own
	return x.joined, nil
}

// answerGrace is how long an answer may still take of a store that is lost.
const answerGrace = time.Second

// meanwhile runs f beside p, which stays in the round that was joined last. It returns f's error, or a *RoundOverError.
func (b *Bridge) meanwhile(ctx context.Context, p *goal, f func(context.Context) error) error {
	run, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = f(run)
	}()
	p.want, p.done = WantStay, done
	d, err := b.drive(ctx, p)
	var over error
	if err == nil && d.Action == ActionNewRound {
		over = &RoundOverError{b.joined.Number, d.Reason}
	}
	if errors.Is(err, rendezvous.ErrStoreClosed) { // what f waits for may have come before the store went
		select {
		case <-done:
		case <-time.After(answerGrace):
		}
	}
	cancel(errors.Join(over, err)) // it may have ended already: then this does nothing
	<-done
	switch {
	case result == nil:
		return nil // it came through, whatever happened at the same time
	case over != nil:
		return over
	case err != nil:
		return err
	}
	return result
}

// lostInExchange says why the node that the exchange waits for will not come: all may be silent meanwhile, but not one
// that has nothing to wait for itself.
func (b *Bridge) lostInExchange(w *waitFor) string {
	if w == nil || !w.owes || b.seen.Alive(w.node) || b.now().Mono-w.since.Sub(b.begin) < b.cfg.Settings.DeadAfter() {
		return ""
	}
	return fmt.Sprintf("node %s (group rank %d) is not heard of for %v, and has not said %s", w.node, w.rank,
		b.cfg.Settings.DeadAfter(), w.what)
}
