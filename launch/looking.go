package launch

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control"
	"muster/launch/evidence"
	"muster/launch/evidence/gather"
	"muster/launch/report"
	"muster/rendezvous"
)

const (
	// lookTime is how long the other nodes have for what they see of their workers.
	lookTime = 3 * time.Second
	// What nodes say of that is compressed. mostSeen bounds the words of all nodes together, in bytes, seenOfNode and
	// leastSeen those of one. They may become plainTimes as many.
	mostSeen   = 4 << 20
	seenOfNode = 256 << 10
	leastSeen  = 4 << 10
	plainTimes = 12
)

// The nodes of a round are asked what their workers do by a note under lookKey, with a number that grows; each says it
// under seenKey. Two nodes that ask at the same moment use the same number, and get the same answers.
func lookKey(n int) string { return "control/look/" + strconv.Itoa(n) }

func seenKey(n, groupRank int) string {
	return "control/seen/" + strconv.Itoa(n) + "/" + strconv.Itoa(groupRank)
}

// lookNote is what stands under lookKey: who asks.
type lookNote struct {
	GroupRank int `json:"groupRank"`
	// Native says that py-spy is wanted, too.
	Native bool `json:"native,omitempty"`
}

// Look implements control.Looker.
func (v served) Look(ctx context.Context, scope control.Scope, native bool) (control.Looked, error) {
	if scope == control.World {
		return v.s.lookWorld(ctx, native)
	}
	n, err := v.s.lookHere(ctx, native)
	if err != nil {
		return control.Looked{}, err
	}
	return control.Looked{Nodes: []evidence.Node{n}}, nil
}

// lookHere looks at the workers of this node, one look at a time, with native by py-spy, too.
func (s *Steering) lookHere(ctx context.Context, native bool) (evidence.Node, error) {
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-time.After(gather.Limit / 2):
		return evidence.Node{},
			errhint.Code(errhint.With(fmt.Errorf("others look at the workers of node %s", s.plan.Hostname), "try again"),
				errhint.TryAgain)
	}
	workers := s.workersRunning()
	if len(workers) == 0 {
		return evidence.Node{}, errhint.Code(errhint.With(fmt.Errorf("no worker runs on node %s", s.plan.Hostname),
			"muster status shows how the job stands"), errhint.TryAgain)
	}
	s.mu.Lock()
	lives, spins := s.lives, s.spins
	s.mu.Unlock()
	list := make([]gather.Worker, len(workers))
	for i, w := range workers {
		list[i] = gather.Worker{Rank: w.Rank, PID: w.proc.PID(), Silent: -1}
		if last, known := lives[w]; known {
			list[i].Silent = time.Since(last).Seconds()
		}
		list[i].Spins = spins[w].Seconds()
		if r, told := w.progress.Read(); told && r.Steps {
			list[i].Step = &r.Step
		}
	}
	n := gather.Look(ctx, s.plan.Hostname, list, gather.Options{Native: native})
	if wants(&n) {
		s.mu.Lock()
		s.coresWished = time.Now()
		s.mu.Unlock()
	}
	return n, nil
}

// wants reports whether a worker would use processors if it got them, but for those that get nowhere by it.
func wants(seen *evidence.Node) bool {
	for _, r := range seen.Ranks {
		sum := 0.0
		if r.Spins > 0 {
			continue
		}
		for i := range r.Processes {
			sum += r.Processes[i].Wants
		}
		if sum >= livingWish {
			return true
		}
	}
	return false
}

// lookWorld has all nodes of the round look at their workers at the same moment. An error says why nothing at all could
// be looked at.
func (s *Steering) lookWorld(ctx context.Context, native bool) (control.Looked, error) {
	own := s.Status()
	s.mu.Lock()
	b, n := s.board, s.nextLook
	s.mu.Unlock()
	if own.Nodes <= 1 {
		return served{s}.Look(ctx, control.Node, native)
	}
	seen, names := make([]*evidence.Node, own.Nodes), make([]string, own.Nodes)
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() { names = s.nodeNames(ctx, own) })
	here := func() *evidence.Node {
		at, err := s.lookHere(ctx, native)
		if err != nil {
			failed, at = err, s.seesNothing(err)
		}
		seen[own.GroupRank] = &at
		return &at
	}
	if b.Board == nil || b.nodes != own.Nodes {
		here()
	} else {
		asked, cancel := context.WithTimeout(ctx, lookTime)
		defer cancel()
		text, err := json.Marshal(lookNote{b.groupRank, native})
		if err == nil {
			err = ask(asked, b.Board, lookKey(n), text)
		}
		if err != nil {
			s.log.Debug().Err(err).Msg("the other nodes cannot be asked what their workers do")
			cancel()
		}
		wg.Go(func() { s.tellSeen(asked, b, n, here()) }) // others may have asked, too
		forEach(b.nodes, func(i int) {
			if i != b.groupRank {
				seen[i] = hearSeen(asked, b.Board, n, i, own.WorldSize)
			}
		})
	}
	wg.Wait()
	var all control.Looked
	ranks := 0
	for i, at := range seen {
		if at == nil {
			all.Missing = append(all.Missing, names[i])
			continue
		}
		at.GroupRank = i
		all.Nodes = append(all.Nodes, *at)
		ranks += len(at.Ranks)
	}
	if ranks > 0 {
		failed = nil
	}
	return all, failed
}

// seesNothing is what this node says where nothing of its workers can be seen.
func (s *Steering) seesNothing(err error) evidence.Node {
	return evidence.Node{Node: s.plan.Hostname, At: moment(time.Now()), Ranks: []evidence.Rank{}, Notes: []string{err.Error()}}
}

// nodeNames are the names of the round's nodes, by group rank, as far as they are known.
func (s *Steering) nodeNames(ctx context.Context, own report.Status) []string {
	names := make([]string, own.Nodes)
	for i, t := range s.world(ctx, own).Tasks {
		if i < len(names) {
			names[i] = t.Node
		}
	}
	return names
}

// listenLooks looks at the workers here whenever a node of the round asks for it.
func (s *Steering) listenLooks(ctx context.Context, b roundBoard) {
	for n := 0; ; n++ {
		s.mu.Lock()
		s.nextLook = n
		s.mu.Unlock()
		var asked lookNote
		if !awaitNote(ctx, b.Board, lookKey(n), func(text []byte) bool { return json.Unmarshal(text, &asked) == nil }) {
			return
		}
		if asked.GroupRank == b.groupRank {
			continue // who asks looks
		}
		seen, err := s.lookHere(ctx, asked.Native)
		if err != nil {
			seen = s.seesNothing(err)
		}
		s.tellSeen(ctx, b, n, &seen)
	}
}

// tellSeen tells the other nodes what was seen here for a number, and takes back what was told before the last one.
func (s *Steering) tellSeen(ctx context.Context, b roundBoard, n int, seen *evidence.Node) {
	text, err := packSeen(seen, max(leastSeen, min(seenOfNode, mostSeen/b.nodes)))
	if err == nil {
		err = note(ctx, b.Board, seenKey(n, b.groupRank), text)
	}
	if err == nil && n > 1 {
		err = note(ctx, b.Board, seenKey(n-2, b.groupRank), nil)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Debug().Err(err).Msg("the other nodes do not hear what the workers here do")
	}
}

// hearSeen is what another node says it has seen, nil for nothing that can be used.
func hearSeen(ctx context.Context, b rendezvous.Board, n, groupRank, worldSize int) *evidence.Node {
	text, err := b.Get(ctx, seenKey(n, groupRank))
	if err != nil {
		return nil
	}
	seen, err := unpackSeen(text, worldSize)
	if err != nil {
		return nil
	}
	return seen
}

// packSeen compresses what was seen into so many bytes, and leaves out of it what takes the most room and tells the
// least, until it fits: a note says so.
func packSeen(seen *evidence.Node, most int) ([]byte, error) {
	n := *seen
	for level := 0; ; level++ {
		if aboutSize(&n) > 2*plainTimes*most { // to write it would take long, and be in vain
			n = thinned(seen, level)
			continue
		}
		plain, err := json.Marshal(&n)
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(plain); err != nil {
			return nil, err
		}
		if err := z.Close(); err != nil {
			return nil, err
		}
		if b.Len() <= most && len(plain) <= plainTimes*most {
			return b.Bytes(), nil
		}
		if len(n.Ranks) == 0 {
			return nil, fmt.Errorf("what was seen takes %d bytes, and may take %d", b.Len(), most)
		}
		n = thinned(seen, level)
	}
}

// aboutSize is about how many bytes of JSON there are, rather less than more.
func aboutSize(n *evidence.Node) (size int) {
	for i := range n.Ranks {
		size += 64
		for j := range n.Ranks[i].Processes {
			p := &n.Ranks[i].Processes[j]
			size += 64 + 64*(len(p.Threads)+len(p.Sockets))
			for k := range p.Stacks {
				for _, f := range p.Stacks[k].Frames {
					size += 32 + len(f.Func) + len(f.File) + len(f.Text)
				}
			}
		}
	}
	return size
}

// thinned is what is left of what was seen at a level. The first levels keep what a verdict is made of.
func thinned(seen *evidence.Node, level int) evidence.Node {
	n := *seen
	n.Notes = slices.Clone(n.Notes[:min(len(n.Notes), 8)])
	n.Ranks = make([]evidence.Rank, len(seen.Ranks))
	ofRank, stacks, frames, threads := 16, 16, 64, 32
	switch level {
	case 0:
	case 1:
		ofRank, stacks, frames, threads = 8, 4, 32, 8
	default:
		ofRank, stacks, frames, threads = 1, 1, 16, 1
	}
	for i, r := range seen.Ranks {
		r.Processes = slices.Clone(r.Processes[:min(len(r.Processes), ofRank)])
		for j := range r.Processes {
			p := &r.Processes[j]
			p.Stacks = slices.Clone(p.Stacks[:min(len(p.Stacks), stacks)])
			for k := range p.Stacks {
				s := &p.Stacks[k]
				s.Frames = slices.Clone(s.Frames[max(0, len(s.Frames)-frames):]) // the innermost are the last
			}
			mainLast := slices.Clone(p.Threads)
			slices.SortStableFunc(mainLast, func(a, b evidence.Thread) int { return firstIf(a.TID == p.PID, b.TID == p.PID) })
			p.Threads = mainLast[:min(len(mainLast), threads)]
			for k := range p.Threads {
				if p.Threads[k].TID != p.PID || level > 1 {
					p.Threads[k].Kernel = nil
				}
			}
			p.Sockets = slices.DeleteFunc(slices.Clone(p.Sockets), func(s evidence.Socket) bool {
				return s.Send == 0 && s.Retransmits == 0
			})
		}
		n.Ranks[i] = r
	}
	note := "not all that was seen is told to other nodes: it is too much"
	if level > 2 { // half of the ranks each time
		left := len(n.Ranks) >> (level - 2)
		note = fmt.Sprintf("only %d of %d ranks are told to other nodes: it is too much", left, len(n.Ranks))
		n.Ranks = n.Ranks[:left]
	}
	n.Notes = append(n.Notes, note)
	return n
}

// firstIf orders what is so before what is not.
func firstIf(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// unpackSeen reads what another node has seen. It is that node's word: it takes no more memory than what nodes say of
// that, and there is no rank in it that the world does not have, or twice.
func unpackSeen(text []byte, worldSize int) (*evidence.Node, error) {
	if len(text) > seenOfNode {
		return nil, fmt.Errorf("%d bytes are more than a node says", len(text))
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	const most = plainTimes * seenOfNode
	plain, err := io.ReadAll(io.LimitReader(z, most+1))
	if err != nil {
		return nil, err
	}
	if len(plain) > most {
		return nil, fmt.Errorf("it is more than %d bytes", most)
	}
	var n evidence.Node
	if err := json.Unmarshal(plain, &n); err != nil {
		return nil, err
	}
	n.Node = printable.Line(strings.TrimSpace(n.Node), mostName)
	had := map[int]bool{}
	n.Ranks = slices.DeleteFunc(n.Ranks[:min(len(n.Ranks), mostRanks)], func(r evidence.Rank) bool {
		bad := r.Rank < 0 || r.Rank >= worldSize || had[r.Rank]
		had[r.Rank] = true
		return bad
	})
	for i := range n.Ranks {
		n.Ranks[i].Node = n.Node
	}
	return &n, nil
}

// mostName bounds the name of another node, in bytes.
const mostName = 256
