package checkpointd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/admission"
	"muster/internal/peertls"
	"muster/rendezvous"
)

// joinLimit is how long nodes wait for each other when a round begins. That they all meet was settled before.
const joinLimit = time.Minute

// participant is this node's part among the nodes of a job: it reports to the leader what there is in memory, and does what
// the leader's view asks for. Its fields are guarded by Service.mu, but those that never change.
type participant struct {
	s *Service
	// alone says that the job has this node only, which leads itself: see consultLocked.
	alone      bool
	consulting bool

	listener *admission.Gate // nil without a token
	acceptor *peertls.Acceptor
	id       peertls.Identity // where the other nodes reach this one

	// local says that there is no token: nodes agree through the rounds' boards, and copies stay on the node that made
	// them.
	local bool
	base  int // the round's rank of this node's first worker

	leading *leading // on the node with group rank 0

	lineage int64            // that this node takes part in; 0: it has been in no round
	joined  uint64           // the era of the first round of this node
	search  chan []*leftover // has an item when it is known what was left here; nil: nobody looks. It is the agent's alone

	direct bool  // agents of torchrun or DLRover take part: workers write by themselves
	err    error // why this node has no part in the round
	conn   net.Conn
	size   int  // of the round
	ended  bool // no worker is left of the round
	seq    uint64
	report planner.Report // the newest, with seq
	unsent bool
	poke   chan struct{} // has an item when there is something to send
	seen   uint64        // the newest report that the leader has answered
	addrs  []string      // of all nodes, by group rank
	drain  bool          // the leader says that nothing is left to be written
	// hurried says that nobody waits for the last step any more.
	hurried bool
	serve   sync.WaitGroup
}

func newParticipant(s *Service) *participant {
	return &participant{s: s, id: peertls.NewIdentity("board"), poke: make(chan struct{}, 1)}
}

// open begins to listen for the other nodes, where they have a token.
func (t *participant) open(ctx context.Context) error {
	s := t.s
	if !s.cfg.Several {
		t.leadAlone()
		return nil
	}
	if s.cfg.Token == nil {
		t.local = true
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(s.cfg.Addr, "0"))
	if err != nil {
		return fmt.Errorf("cannot listen for the checkpoints of other nodes: %w", err)
	}
	t.id = peertls.NewIdentity(l.Addr().String())
	t.listener = admission.Listener(l, admission.Config{Time: peertls.Time, Refuse: peertls.Refuse})
	t.acceptor = s.cfg.domain().Acceptor(t.id)
	s.wg.Go(t.accept)
	return nil
}

// BeginRound is told of the round whose workers are about to start, and of the board that only its agents share: nil
// where agents of others take part. again says that the round goes on, and only this node's workers start again.
func (s *Service) BeginRound(ctx context.Context, r rendezvous.Round, board rendezvous.Board, again bool) error {
	t := s.participant
	if t.alone { // its rounds begin where the ones before end
		return nil
	}
	if !again {
		return t.begin(ctx, r, board)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.ended = false
	s.notifyLocked()
	return nil
}

// begin joins the leader of a round.
func (t *participant) begin(ctx context.Context, r rendezvous.Round, board rendezvous.Board) error {
	s := t.s
	t.leave()
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	s.mu.Lock()
	t.direct, t.err, t.ended, t.drain, t.base = r.GroupWorldSize > 1 && board == nil, nil, false, false, r.BaseRank
	for _, st := range s.allSetsLocked() {
		st.beginRound()
	}
	direct := t.direct
	if direct { // steps that workers write now are newer than what is in memory
		for _, st := range s.allSetsLocked() {
			st.giveUp()
		}
	}
	s.mu.Unlock()
	if direct {
		t.endSearch()
		if l := t.lead(nil); l != nil {
			s.wg.Go(l.close)
		}
		s.cfg.Log.Warn().Msg(
			"agents of torchrun or DLRover take part: workers write their checkpoints to disk at once, and none are kept in memory")
		return nil
	}
	left := t.awaitLeft(ctx)
	defer closeAll(left)
	if ctx.Err() != nil { // a round that is over is not to be the first of a lineage
		s.mu.Lock()
		defer s.mu.Unlock()
		t.err = fmt.Errorf("cannot reach the node that leads in checkpoints: %w", context.Cause(ctx))
		return t.err
	}
	meet := t.callRound
	if r.GroupRank != 0 {
		if l := t.lead(nil); l != nil {
			s.wg.Go(l.close) // a disk may hang; whoever leads now waits for the lock
		}
		meet = t.follow
	}
	call, err := meet(ctx, r, board, t.nodeState(left))
	var conn net.Conn
	if err == nil {
		s.mu.Lock()
		if t.lineage == 0 {
			t.joined = call.Era
		}
		s.round = call.Era >> eraShift
		t.inheritLocked(left, call)
		if call.Apart != "" {
			s.cfg.Log.Warn().Str("reason",
				call.Apart).Msg("nodes have different --ckpt-dir, and none of these gets a step of all nodes: give them one that all " +
				"share, by the same name")
		}
		s.mu.Unlock()
		t.endSearch()
		conn, err = t.join(ctx, r, board, call)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		t.err = fmt.Errorf("cannot reach the node that leads in checkpoints: %w", err)
		return t.err
	}
	t.conn, t.size, t.seq, t.report, t.unsent, t.seen = conn, r.GroupWorldSize, 0, planner.Report{}, false, 0
	t.serve.Go(func() { t.send(conn) })
	t.serve.Go(func() { t.receive(conn) })
	s.notifyLocked()
	return nil
}

// join connects to the leader of a round, which may be this node.
func (t *participant) join(ctx context.Context, r rendezvous.Round, board rendezvous.Board, call roundCall) (net.Conn, error) {
	g := greeting{Op: "join", Rank: r.GroupRank, Round: r.Number, From: t.id}
	if !t.local {
		conn, err := dialPeer(ctx, t.s.cfg.domain(), peertls.Identity(call.Addr), g)
		if err != nil {
			return nil, err
		}
		return conn, nil
	}
	if l := t.leads(); l != nil {
		own, other := net.Pipe()
		t.s.wg.Go(func() { l.serve(other, &g) })
		return own, nil
	}
	own, their := reportKey(r.GroupRank), viewKey(r.GroupRank)
	//nolint:contextcheck // it lives on when the round has begun
	return dialBoard(t.s.ctx, board, own, their, string(t.id), r.GroupWorldSize, t.s.cfg.beat), nil
}

// leave ends the connection to the leader of the round before.
func (t *participant) leave() {
	t.s.mu.Lock()
	conn := t.conn
	t.conn = nil
	t.s.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	t.wake()
	t.serve.Wait()
}

func (t *participant) wake() {
	select {
	case t.poke <- struct{}{}:
	default:
	}
}

// close ends the node's part. It returns what it has led, with the locks of its directories.
func (t *participant) close() *leading {
	if t.listener != nil {
		_ = t.listener.Close()
	}
	t.endSearch()
	t.leave()
	l := t.leads()
	l.end()
	return l
}

// leads is what this node leads, nil where another one does.
func (t *participant) leads() *leading {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.leading
}

// lead sets what this node leads, and returns what it has led.
func (t *participant) lead(l *leading) (before *leading) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	before, t.leading = t.leading, l
	return before
}

// drained waits until the leader says that nothing is to be written any more.
func (t *participant) drained(ctx context.Context) error {
	s := t.s
	told := time.NewTimer(time.Second)
	defer told.Stop()
	if l := t.leads(); l != nil {
		l.tell((*planner.Leader).Last)
	}
	for {
		s.mu.Lock()
		done := t.drainedLocked()
		var failed []error
		busy := ""
		if t.lost() && len(s.sets) > 0 {
			failed = append(failed, fmt.Errorf("whether the last checkpoint is on disk is not known: %w", t.err))
		}
		for _, st := range s.allSetsLocked() {
			if st.view.Busy {
				busy = st.dir
			}
			if err := st.failure(); err != nil {
				failed = append(failed, err)
			}
		}
		changed := s.changed
		s.mu.Unlock()
		if done {
			t.leaveLast(ctx)
			return errors.Join(failed...)
		}
		select {
		case <-changed:
		case <-told.C:
			told.Reset(drainTold)
			s.cfg.Log.Info().Str("path", busy).Msg("waiting until the last checkpoint is on disk (a second signal gives it up)")
		case <-ctx.Done():
			s.mu.Lock()
			t.hurried = true
			s.mu.Unlock()
			return fmt.Errorf("the last checkpoint in memory was not written: %w", context.Cause(ctx))
		}
	}
}

// drainedLocked reports whether nothing is to be written any more. Of several nodes the leader says so, when the
// workers of all have ended.
func (t *participant) drainedLocked() bool {
	if t.alone {
		return !slices.ContainsFunc(t.s.allSetsLocked(), func(st *set) bool { return st.view.Busy })
	}
	return t.conn == nil || t.drain && t.seen >= t.reportLocked()
}

// lost reports whether the leader has gone before this node.
func (t *participant) lost() bool { return t.conn == nil && t.err != nil }

// leaveLast leaves, the node that leads after all others: they have heard then that all is done.
func (t *participant) leaveLast(ctx context.Context) {
	t.byeLeader()
	t.leave()
	if l := t.leads(); l != nil {
		l.awaitMembers(ctx)
	}
}

// byeLeader has the node that leads hear that this one leaves, where no connection breaks by that.
func (t *participant) byeLeader() {
	t.s.mu.Lock()
	own, ok := t.conn.(*boardConn)
	t.s.mu.Unlock()
	if ok {
		own.bye()
	}
}

// bye is byeLeader; whoever leads has the others hear that it leaves.
func (t *participant) bye() {
	t.byeLeader()
	if l := t.leads(); l != nil {
		var said sync.WaitGroup
		for _, link := range l.links {
			said.Go(link.bye)
		}
		said.Wait()
	}
}
