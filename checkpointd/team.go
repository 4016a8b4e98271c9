package checkpointd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/admission"
	"muster/internal/peertls"
	"muster/rendezvous"
)

// joinLimit is how long nodes wait for each other when a round begins. That they all meet was settled before.
const joinLimit = time.Minute

// team is this node's part among the nodes of a job: it reports to the leader what there is in memory, and does what
// the leader's view asks for. Its fields are guarded by Service.mu, but those that never change.
type team struct {
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

	direct bool  // agents of torchrun take part: workers write by themselves
	err    error // why this node has no part in the round
	conn   net.Conn
	size   int  // of the round
	ended  bool // no worker is left of the round
	seq    uint64
	report planner.Report // the newest, with seq
	last   []byte         // the same as text, without seq
	unsent bool
	poke   chan struct{} // has an item when there is something to send
	seen   uint64        // the newest report that the leader has answered
	addrs  []string      // of all nodes, by group rank
	drain  bool          // the leader says that nothing is left to be written
	// hurried says that nobody waits for the last step any more.
	hurried bool
	serve   sync.WaitGroup
}

func newTeam(s *Service) *team {
	return &team{s: s, id: peertls.NewIdentity("board"), poke: make(chan struct{}, 1)}
}

// open begins to listen for the other nodes, where they have a token.
func (t *team) open(ctx context.Context) error {
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
	if t.acceptor, err = s.cfg.domain().Acceptor(t.id); err != nil {
		return errors.Join(err, l.Close())
	}
	s.wg.Go(t.accept)
	return nil
}

// BeginRound is told of the round whose workers are about to start, and of the board that only its agents share: nil
// where agents of others take part. again says that the round goes on, and only this node's workers start again.
func (s *Service) BeginRound(ctx context.Context, r rendezvous.Round, board rendezvous.Board, again bool) error {
	t := s.team
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
func (t *team) begin(ctx context.Context, r rendezvous.Round, board rendezvous.Board) error {
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
			st.repin(nil)
			st.release()
		}
	}
	s.mu.Unlock()
	if direct {
		t.endSearch()
		if l := t.lead(nil); l != nil {
			s.wg.Go(l.close)
		}
		s.cfg.Log.Warn().Msg("agents of torchrun take part: workers write their checkpoints to disk at once, and none are kept in memory")
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
	call, err := meet(ctx, r, board, t.standing(left))
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
				call.Apart).Msg("nodes have different --ckpt-dir, and none of these gets a step of all nodes: give them one that all share, by the same name")
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
	t.conn, t.size, t.seq, t.last, t.unsent, t.seen = conn, r.GroupWorldSize, 0, nil, false, 0
	t.serve.Go(func() { t.send(conn) })
	t.serve.Go(func() { t.receive(conn) })
	s.notifyLocked()
	return nil
}

// join connects to the leader of a round, which may be this node.
func (t *team) join(ctx context.Context, r rendezvous.Round, board rendezvous.Board, call roundCall) (net.Conn, error) {
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
func (t *team) leave() {
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

func (t *team) wake() {
	select {
	case t.poke <- struct{}{}:
	default:
	}
}

// close ends the node's part. It returns what it has led, with the locks of its directories.
func (t *team) close() *leading {
	if t.listener != nil {
		_ = t.listener.Close()
	}
	t.endSearch()
	t.leave()
	l := t.lead(nil)
	l.end()
	return l
}

// leads is what this node leads, nil where another one does.
func (t *team) leads() *leading {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.leading
}

// lead sets what this node leads, and returns what it has led.
func (t *team) lead(l *leading) (before *leading) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	before, t.leading = t.leading, l
	return before
}

// led reports whether this node hears what its leader decides.
func (t *team) led() bool { return t.conn != nil || t.alone && !t.s.closed }

// errSilent says that the leader has not said something.
func (t *team) errSilent(what string) error {
	if t.s.ctx.Err() != nil {
		return errEnds
	}
	return fmt.Errorf("the node that leads in checkpoints does not say %s", what)
}

// loadLimit is when a worker that asks where to restore from gives up. Whoever leads itself knows that it reads, however
// long that takes.
func (t *team) loadLimit() time.Time {
	if t.alone {
		return time.Now().AddDate(1, 0, 0)
	}
	return time.Now().Add(waitSave)
}

// reportLocked has the leader told what has changed, and returns the number of the report that says what is now.
func (t *team) reportLocked() uint64 {
	if !t.led() {
		return t.seq
	}
	r := planner.Report{Addr: string(t.id), Ended: t.ended}
	for _, st := range t.s.allSetsLocked() {
		r.Sets = append(r.Sets, t.s.setReportLocked(st))
	}
	text, err := json.Marshal(r)
	if err != nil || bytes.Equal(text, t.last) {
		return t.seq
	}
	t.seq++
	r.Seq = t.seq
	t.report, t.last, t.unsent = r, text, true
	if t.alone {
		t.consultLocked()
	} else {
		t.wake()
	}
	return t.seq
}

// setReportLocked is what there is of a set on this node.
func (s *Service) setReportLocked(st *set) planner.SetReport {
	sr := planner.SetReport{
		Key: planner.Key{Dir: st.dir, Shards: st.shards}, Reshards: st.reshards, Replicas: st.replicas, Keep: st.keep.Latest,
		Every:    st.keep.Every,
		Verified: st.verified, Attempt: st.attempt, Written: st.written, Committed: st.committed, Next: st.next, NextAt: st.nextAt,
		Full:   st.told["replicas"],
		Urgent: st.urgent, Why: st.why, Begun: planner.Never, Want: st.wanting(), Bad: st.bad,
	}
	if t := s.team; t.local {
		sr.Replicas, sr.Across = 0, st.across
		for i := range min(s.cfg.Workers, st.shards) {
			sr.Reads = append(sr.Reads, (t.base+i)%st.shards)
		}
	}
	for shard, slots := range st.slots.shards {
		for _, slot := range slots {
			if slot.State == slotReady {
				of := st.copies[slot]
				sr.Copies = append(sr.Copies, planner.Copy{Shard: shard, At: slot.At, Persist: of.persist})
				if st.writtenBefore(slot) && !slices.Contains(sr.Same, slot.At) {
					sr.Same = append(sr.Same, slot.At)
				}
				if of.digest != nil {
					sr.Sums = append(sr.Sums, planner.Sum{Shard: shard, At: slot.At, Digest: *of.digest, Made: of.made()})
				}
			}
		}
	}
	for c := range s.sessions {
		if c.set == st && c.saves {
			begun := st.slots.begun[c.shard]
			if st.slots.refused(c.shard, begun) {
				sr.Refused = append(sr.Refused, begun)
			}
			if len(sr.Saves) == 0 || begun.Compare(sr.Begun) < 0 {
				sr.Begun = begun
			}
			sr.Saves = append(sr.Saves, c.shard)
		}
	}
	slices.Sort(sr.Saves)
	for _, shard := range sr.Saves {
		sr.Begins = append(sr.Begins, st.slots.begun[shard])
	}
	slices.SortFunc(sr.Refused, moment.Compare) // sessions come in no order, and the same is not said twice
	for _, n := range st.loads {
		sr.Loads = max(sr.Loads, n)
	}
	return sr
}

// send sends the newest report whenever there is another one.
func (t *team) send(conn net.Conn) {
	s := t.s
	for range t.poke {
		s.mu.Lock()
		if t.conn != conn {
			s.mu.Unlock()
			return
		}
		r, unsent := t.report, t.unsent
		t.unsent = false
		s.mu.Unlock()
		if unsent && writeFrame(conn, r) != nil {
			_ = conn.Close() // receive tells
			return
		}
	}
}

// receive takes the leader's views.
func (t *team) receive(conn net.Conn) {
	s := t.s
	for {
		var v planner.View
		err := readFrame(conn, peerLimit, &v)
		if err == nil {
			err = t.check(&v)
			if err != nil {
				s.cfg.Log.Warn().Err(err).Msg("the node that leads in checkpoints says what cannot be: it is not heard any more")
			}
		}
		s.mu.Lock()
		if t.conn != conn {
			s.mu.Unlock()
			return
		}
		if err != nil {
			_ = conn.Close()
			t.conn = nil
			if t.err == nil && !t.drain {
				t.err = errors.New("the node that leads in checkpoints is gone")
			}
			s.notifyLocked()
			s.mu.Unlock()
			t.wake()
			return
		}
		t.seen, t.addrs, t.drain = v.Seen, v.Addrs, v.Drained
		for i := range v.Sets {
			s.carryOutLocked(&v.Sets[i])
		}
		s.notifyLocked()
		s.mu.Unlock()
	}
}

// check returns an error where a view is none that the leader of this round could show.
func (t *team) check(v *planner.View) error {
	if err := v.Check(); err != nil {
		return err
	}
	if len(v.Addrs) != t.size {
		return fmt.Errorf("it shows %d nodes, and this round has %d", len(v.Addrs), t.size)
	}
	gives := func(d planner.Decision) bool { return len(d.From) > 0 }
	for i := range v.Sets {
		if t.local && (len(v.Sets[i].Fetch) > 0 || slices.ContainsFunc(v.Sets[i].Decisions, gives)) {
			return errNoToken
		}
	}
	return nil
}

// answeredLocked waits until the leader's view follows from what is now, and tells whether it came.
func (t *team) answeredLocked(until time.Time, gone <-chan struct{}) bool {
	for seq := t.reportLocked(); t.seen < seq; {
		if !t.led() || !t.s.awaitLocked(until, gone) {
			return false
		}
	}
	return true
}

// drained waits until the leader says that nothing is to be written any more.
func (t *team) drained(ctx context.Context) error {
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

// drainedLocked reports whether nothing is to be written any more. Of several nodes the leader says so, when the workers
// of all have ended.
func (t *team) drainedLocked() bool {
	if t.alone {
		return !slices.ContainsFunc(t.s.allSetsLocked(), func(st *set) bool { return st.view.Busy })
	}
	return t.conn == nil || t.drain && t.seen >= t.reportLocked()
}

// lost reports whether the leader has gone before this node.
func (t *team) lost() bool { return t.conn == nil && t.err != nil }

// leaveLast leaves, the node that leads after all others: they have heard then that all is done.
func (t *team) leaveLast(ctx context.Context) {
	t.byeLeader()
	t.leave()
	if l := t.leads(); l != nil {
		l.awaitMembers(ctx)
	}
}

// byeLeader has the node that leads hear that this one leaves, where no connection breaks by that.
func (t *team) byeLeader() {
	t.s.mu.Lock()
	own, ok := t.conn.(*boardConn)
	t.s.mu.Unlock()
	if ok {
		own.bye()
	}
}

// bye is byeLeader; whoever leads has the others hear that it leaves.
func (t *team) bye() {
	t.byeLeader()
	if l := t.leads(); l != nil {
		var said sync.WaitGroup
		for _, link := range l.links {
			said.Go(link.bye)
		}
		said.Wait()
	}
}

// accept serves the other nodes.
func (t *team) accept() {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			return // it was closed: others pass
		}
		conns.Go(func() {
			stop := context.AfterFunc(t.s.ctx, func() { _ = conn.Close() })
			defer stop()
			defer func() { _ = conn.Close() }()
			proven, err := t.acceptor.Server(t.s.ctx, conn)
			if err == nil && admission.Proven(conn) { // else a stranger, of whom there is nothing to say
				t.answer(proven)
			}
		})
	}
}

// peerMisbehaved is said of a node that has the token, and says what no node of ours does.
const peerMisbehaved = "a node says about checkpoints what cannot be: its connection was ended"

// answer serves one connection of another node.
func (t *team) answer(conn *peertls.Conn) {
	_ = conn.SetDeadline(time.Now().Add(peerTime))
	var g greeting
	if readFrame(conn, greetingLimit, &g) != nil {
		return // it has gone, or is none of ours
	}
	if err := g.check(); err != nil {
		t.s.cfg.Log.Warn().Err(err).Stringer("addr", conn.RemoteAddr()).Msg(peerMisbehaved)
		if g.Op != "join" {
			_ = writeFrame(conn, copyHead{Error: err.Error()})
		}
		return
	}
	_ = conn.SetDeadline(time.Time{})
	switch g.Op {
	case "join":
		if l := t.leads(); l != nil {
			l.serve(conn, &g)
		}
	case "fetch":
		t.giveCopy(conn, g)
	case "find":
		t.s.mu.Lock()
		head := copyHead{Error: "there is no such file"}
		if st := t.s.findSetLocked(g.Key); st != nil {
			if shard, ok := st.shardOf(g.Path, g.At); ok {
				head = copyHead{Shard: shard}
			}
		}
		t.s.mu.Unlock()
		_ = writeFrame(conn, head)
	}
}

// giveCopy sends a copy to another node.
func (t *team) giveCopy(conn net.Conn, g greeting) {
	s := t.s
	s.mu.Lock()
	var slot *slot
	st := s.findSetLocked(g.Key)
	if st != nil {
		slot = st.slots.at(g.Shard, g.At)
	}
	if slot == nil {
		s.mu.Unlock()
		_ = writeFrame(conn, copyHead{Error: fmt.Sprintf("shard %d of step %d is not in memory any more", g.Shard, g.At.Step)})
		return
	}
	slot.Pins++
	m, of := st.mem[slot], st.copies[slot]
	s.mu.Unlock()
	err := guarded(func() error { return sendCopy(conn, m, of, g.Part, g.Parts) })
	s.mu.Lock()
	defer s.mu.Unlock()
	slot.Pins--
	s.notifyLocked()
	if err != nil && !strings.Contains(err.Error(), "reset by peer") {
		s.cfg.Log.Debug().Err(err).Int("shard", g.Shard).Msg("a copy of a checkpoint was not sent to its end")
	}
}
