package c10d

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// Errors that a Bridge ends with, to be found by errors.Is.
var (
	// ErrClosed means that the rendezvous is closed: no round follows, ever.
	ErrClosed = errors.New("the rendezvous is closed")
	// ErrSpared means that the job has ended while all nodes of ours were spares: nothing went wrong.
	ErrSpared = errors.New("the job has ended while all nodes here were spares")
	// ErrTimeout means that no round came about within the join timeout.
	ErrTimeout = errors.New("the join timeout has passed")
)

// RoundOverError says that a round has ended, and why.
type RoundOverError struct {
	Round  int
	Reason string
}

func (e *RoundOverError) Error() string {
	return fmt.Sprintf("round %d is over: %s", e.Round, e.Reason)
}

// Peer is one node of ours.
type Peer struct {
	// Node is different for each peer and stays the same from round to round.
	Node Node
	Role string
	// LocalWorldSize is the number of its workers, ≥ 1.
	LocalWorldSize int
}

// BridgeConfig is what a Bridge needs.
type BridgeConfig struct {
	// Store is the one that the agents of torchrun have as --rdzv-endpoint.
	Store rendezvous.Store
	// RunID is their --rdzv-id.
	RunID string
	// Settings.Legacy counts only where no agent of torchrun has written a state before us.
	Settings Settings
	// ReadTimeout bounds each answer of the store, and how long an agent may take to say what it brings into a round; 0
	// means 60 s, as upstream.
	ReadTimeout time.Duration
	Log         zerolog.Logger
	// ClockOffset is added to the time of the calendar, for tests of clocks that differ.
	ClockOffset time.Duration
}

// Bridge takes part in the rendezvous of real torchrun agents on behalf of many nodes of ours: one process, one write
// for all of them. Its methods are called one at a time, but for Progress. None leaves anything running behind it:
// between two calls nobody keeps our nodes alive, and after Settings.DeadAfter the others take them for dead.
//
// The life of a job is Join, Stay until the round is over, Hold until all workers of ours have stopped, Join again;
// where all workers of ours have succeeded, Barrier and Close.
type Bridge struct {
	cfg      BridgeConfig
	key      string
	begin    time.Time
	seen     *Observer
	text     []byte    // what the store held when we looked last; nil before
	state    *State    // the same, read
	ours     Nodes     // our nodes that may be in the state
	peers    []Peer    // as it was when the last decision was made
	joined   *round    // what Join returned last, nil before
	last     Round     // the round that was completed with us last
	master   master    // where the workers of that round met
	own      ownMaster // what the caller's function returned last
	opened   opening
	skewed   Nodes // whose clocks were told of
	progress atomic.Pointer[progress]
}

// opening is since when a round has been open.
type opening struct {
	round int
	since time.Duration
}

// NewBridge returns a bridge that has not touched the store yet.
func NewBridge(cfg BridgeConfig) (*Bridge, error) {
	if cfg.RunID == "" {
		return nil, errhint.Usagef("the run id is empty")
	}
	if err := cfg.Settings.Validate(); err != nil {
		return nil, errhint.Usagef("cannot take part in rendezvous %q: %w", cfg.RunID, err)
	}
	if cfg.ReadTimeout <= 0 {
		cfg.ReadTimeout = time.Minute
	}
	b := &Bridge{
		cfg: cfg, key: "/torch.rendezvous." + cfg.RunID, begin: time.Now(), seen: NewObserver(cfg.Settings),
		ours: Nodes{}, skewed: Nodes{}, opened: opening{round: -2},
	}
	b.tell(progress{})
	return b, nil
}

// Appeared returns once an agent of torchrun has come to the store under this run id. It is of use only before any
// other method, all of which look like one.
func (b *Bridge) Appeared(ctx context.Context) error {
	if err := b.cfg.Store.Wait(ctx, b.key); err != nil {
		return fmt.Errorf("cannot wait for agents of torchrun: %w", err)
	}
	return nil
}

// Stay keeps all of ours alive, and returns why the round that Join returned is over: a member was lost or has left, or
// somebody waits to join. The error is ErrClosed where an agent has closed the rendezvous: its workers have failed for
// good. See Join for peers and changed; whoever is new among the peers is put on the list of those who wait.
func (b *Bridge) Stay(ctx context.Context, peers func() []Peer, changed <-chan struct{}) (reason string, err error) {
	if b.joined == nil {
		return "", errors.New("cannot stay in a round: none was joined")
	}
	b.tell(progress{phase: phaseStay})
	d, err := b.drive(ctx, &goal{want: WantStay, peers: peers, changed: changed, excused: b.finished})
	if err != nil && !errors.Is(err, ErrClosed) {
		return "", err
	}
	return d.Reason, err
}

// Hold keeps all of ours alive until ctx ends, whatever becomes of the round: while their workers stop. Then it returns
// nil.
func (b *Bridge) Hold(ctx context.Context, peers func() []Peer) error {
	if b.joined == nil {
		return errors.New("cannot hold a round: none was joined")
	}
	_, err := b.drive(ctx, &goal{want: WantStay, peers: peers, hold: true})
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// Leave takes all of ours out of the rendezvous, which stays open for the others.
func (b *Bridge) Leave(ctx context.Context) error {
	b.tell(progress{phase: phaseLeave})
	if _, err := b.drive(ctx, &goal{want: WantExit, deadline: b.deadline(WantExit)}); err != nil {
		return fmt.Errorf("cannot leave rendezvous %q: %w", b.cfg.RunID, err)
	}
	b.ours, b.joined = Nodes{}, nil
	return nil
}

// Close closes the rendezvous: agents of torchrun that are not done yet end with an error, spares without. Where one of
// them served the store, and everybody has passed the exit barrier, it may have gone, and there is nobody to tell.
func (b *Bridge) Close(ctx context.Context) error {
	b.tell(progress{phase: phaseLeave})
	if _, err := b.drive(ctx, &goal{want: WantClose, deadline: b.deadline(WantClose)}); err != nil {
		if errors.Is(err, rendezvous.ErrStoreClosed) && b.joined != nil && b.joined.passed {
			return nil
		}
		return fmt.Errorf("cannot close rendezvous %q: %w", b.cfg.RunID, err)
	}
	return nil
}

// goal is what drive is after.
type goal struct {
	want     Want
	deadline time.Duration
	peers    func() []Peer   // nil for nobody
	changed  <-chan struct{} // nil for never
	excused  func(context.Context) (int, error)
	nobody   int             // how many excused said last
	hold     bool            // whether to go on when the round is over
	done     <-chan struct{} // ends the goal when it is closed
	lost     func() string   // says why the round is over that Step cannot know, "" for no reason
}

// drive looks at the state, asks Step, and writes what it says, until that ends the goal: then it returns the last
// decision, with an error where it is one.
func (b *Bridge) drive(ctx context.Context, p *goal) (Decision, error) {
	for fresh := false; ; {
		if !fresh {
			if err := b.read(ctx); err != nil {
				return Decision{}, err
			}
		}
		d, err := b.decide(ctx, p)
		if err != nil {
			return d, err
		}
		p.deadline = d.Deadline
		switch d.Action {
		case ActionSync:
		case ActionNewRound:
			if !p.hold {
				return d, nil
			}
			d.Wait = pollInterval
		case ActionFinish:
			return d, nil
		case ActionSpared:
			return d, ErrSpared
		case ActionErrorClosed:
			return d, ErrClosed
		case ActionErrorTimeout:
			return d, ErrTimeout
		default:
			if err := b.write(ctx, d); err != nil {
				return d, err
			}
			fresh = true
			continue
		}
		fresh = false
		timer := time.NewTimer(d.Wait)
		select {
		case <-timer.C:
		case <-p.changed:
		case <-p.done:
			timer.Stop()
			return d, nil
		case <-ctx.Done():
			timer.Stop()
			return d, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// decide asks Step about the state as it was read last, and adds what Step leaves to us: who is excused, and what a
// rendezvous that was closed means.
func (b *Bridge) decide(ctx context.Context, p *goal) (Decision, error) {
	var members []Node
	ours := make(Nodes, len(b.ours))
	b.peers = nil
	if p.peers != nil {
		b.peers = p.peers()
	}
	for _, f := range b.peers {
		if !ours.Has(f.Node) {
			members, ours[f.Node] = append(members, f.Node), struct{}{}
		}
	}
	var leaving []Node
	for n := range b.ours {
		if !ours.Has(n) {
			leaving, ours[n] = append(leaving, n), struct{}{}
		}
	}
	b.ours = ours
	now := b.now()
	b.seen.SetOurs(ours)
	b.seen.Observe(b.state, now)
	b.warnOfClocks()
	in := Input{
		State: b.state, Members: members, Leaving: leaving, Settings: b.cfg.Settings, Now: now, Want: p.want, Deadline: p.deadline,
		Round: b.last, Successors: true, HeadStart: b.headStart(), Excused: p.nobody, Seen: b.seen,
	}
	b.show()
	if p.want == WantJoin && b.holdsBack(members, now) {
		return Decision{Action: ActionSync, Wait: holdPoll, Deadline: p.deadline}, nil
	}
	d := Step(in)
	if p.want != WantStay || p.hold {
		return d, nil
	}
	over := d.Action == ActionNewRound
	closed := b.state != nil && b.state.Closed
	if (over || closed) && p.excused != nil {
		n, err := p.excused(ctx)
		if err != nil {
			return d, err
		}
		if n != p.nobody {
			p.nobody, in.Excused = n, n
			d = Step(in)
		}
	}
	if closed && (p.excused == nil || p.nobody < b.joined.others()) {
		// Whoever closes it after a good end has been in the exit barrier, where we are expected.
		d.Reason = "an agent of torchrun has closed the rendezvous: its workers have failed for good, or it met an error itself"
		return d, ErrClosed
	}
	if p.lost != nil && d.Action == ActionSync {
		if why := p.lost(); why != "" {
			d.Action, d.Reason = ActionNewRound, why
		}
	}
	return d, nil
}

func (b *Bridge) now() Instant {
	now := time.Now()
	return Instant{Mono: now.Sub(b.begin), Wall: now.Add(b.cfg.ClockOffset)}
}

func (b *Bridge) deadline(w Want) time.Duration { return b.cfg.Settings.Deadline(w, b.now().Mono) }

// answer bounds one call of the store.
func answer(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("the store has not answered for %v", d))
}

// read takes in what the store holds. It is upstream's way to begin: where the key is missing, also because the store
// has lost it, the value that means "no state" is put there.
func (b *Bridge) read(ctx context.Context) error {
	ctx, cancel := answer(ctx, b.cfg.ReadTimeout)
	defer cancel()
	text, err := b.cfg.Store.CompareAndSet(ctx, b.key, nil, []byte(NoState))
	if err != nil {
		return fmt.Errorf("cannot read the state of rendezvous %q: %w", b.cfg.RunID, err)
	}
	return b.take(text)
}

// write puts the decision's state there, and takes in what stands there afterwards.
func (b *Bridge) write(ctx context.Context, d Decision) error {
	desired, err := Encode(d.State)
	if err != nil {
		return err
	}
	ctx, cancel := answer(ctx, b.cfg.ReadTimeout)
	defer cancel()
	text, err := b.cfg.Store.CompareAndSet(ctx, b.key, b.text, desired)
	if err != nil {
		return fmt.Errorf("cannot write the state of rendezvous %q: %w", b.cfg.RunID, err)
	}
	if bytes.Equal(text, desired) {
		b.text, b.state = text, d.State
		b.cfg.Log.Debug().Stringer("action", d.Action).Str("reason", d.Reason).Int("round", d.State.Round).Msg("rendezvous state written")
		return nil
	}
	if bytes.Equal(text, b.text) {
		// A store that lost the key echoes what we expected there. The next read puts the key back.
		return b.read(ctx)
	}
	return b.take(text)
}

func (b *Bridge) take(text []byte) error {
	if b.text != nil && bytes.Equal(text, b.text) {
		return nil
	}
	state, err := Decode(text)
	if err != nil {
		return b.foreign(text, err)
	}
	b.text, b.state = text, state
	if state != nil && len(state.LastHeartbeats) > 0 {
		b.cfg.Settings.Legacy = state.Naive || state.FQDN // should the store lose it
	}
	return nil
}

// foreign is the error for a value that no agent has written.
func (b *Bridge) foreign(text []byte, err error) error {
	const most = 40
	shown := text[:min(len(text), most)]
	more := ""
	if len(shown) < len(text) {
		more = "..."
	}
	err = fmt.Errorf("key %q of the store holds %d bytes that no agent of a rendezvous writes (%.*q%s): %w", b.key, len(text), most,
		shown, more, err)
	return errhint.With(err,
		fmt.Sprintf("another program, or a job of another kind, uses run id %q on this store: choose another --rdzv-id or another port; "+
			"nothing of what it wrote was run", b.cfg.RunID))
}

// warnOfClocks tells of each node's clock once.
func (b *Bridge) warnOfClocks() {
	if b.state == nil {
		return
	}
	for n := range b.state.LastHeartbeats {
		if b.ours.Has(n) || b.skewed.Has(n) {
			continue
		}
		if skew, warn := b.seen.Skew(n); warn {
			b.skewed[n] = struct{}{}
			b.cfg.Log.Warn().Str("node", n.String()).Dur("ahead_ms", skew).
				Msg("this node's clock differs from ours: agents of torchrun take each other for dead when it is too much")
		}
	}
}
