package planner

import (
	"maps"
	"slices"
)

// Leader has the reports of all nodes and decides for them. It is not safe for concurrent use.
type Leader struct {
	// Replicas is on how many nodes a copy of each shard is to be, including the one whose worker saved it; 0 and 1:
	// one.
	Replicas int
	// Local says that no node may have a copy from another one. Workers of several nodes may save one shard, and
	// restore from memory where each node has all that its workers read; else from disk, where what is in memory is
	// written first.
	Local bool
	// More says that another round may come: nodes that leave one whose workers have ended bring what they have to the
	// next.
	More bool
	// NewAttempt makes the name of a writing.
	NewAttempt func() string

	size    int             // of the round
	era     uint64          // the first of the round
	nodes   map[int]*Report // by group rank: those that have reported in this round
	gone    map[int]bool    // those that have left it; true for those that have never come
	why     string          // why what was saved before the round is wanted on disk
	sets    map[Key]*set
	heads   map[string]string // by directory that was opened: what its trackers name
	ended   bool              // the end of this round was seen
	actions []Action
}

// set is what the leader knows of one set besides the nodes' reports.
type set struct {
	Key
	reshards    bool
	replicas    int
	keep        int
	every       int64
	opening     bool
	open        bool
	err         string
	complete    []Moment // newest first
	whole       []Moment // the same, and those that a node has yet to come to: see awaited
	dead        []Moment
	decisions   []Decision
	verify      []Moment
	choosing    bool
	running     *flush
	pending     *flush
	next        string // the attempt that was begun last, and what it writes
	nextAt      Moment
	tried       Moment // the newest that a writing of was begun
	trigger     string // why the newest complete step is wanted on disk
	urgent      map[int]int
	committed   Moment
	failed      string
	failedAt    Moment // what could not be written; lost where copies of it are no more
	lost        bool
	saved       map[int]bool // shards that somebody has saved in this round
	replicating Moment
	replicated  Moment
	spreadAgain bool // nodes may be gone that had copies of it

	across   bool   // ranks read what others have saved
	fellBack Moment // what was to be written since not all nodes had it

	wanted map[Copy]bool // copies whose digest somebody wants, without Persist
	sums   map[Copy]Sum  // what was stated
	bad    map[Bad]bool  // what nodes say now
}

// NewLeader returns a leader without nodes.
func NewLeader(replicas int, newAttempt func() string) *Leader {
	return &Leader{Replicas: replicas, NewAttempt: newAttempt, nodes: map[int]*Report{}, sets: map[Key]*set{}, heads: map[string]string{}}
}

// BeginRound begins a round of so many nodes, whose eras begin with era. What is being written goes on; what workers
// had saved before and is not on disk is wanted there, unless why is empty.
func (l *Leader) BeginRound(size int, era uint64, why string) {
	l.era = era
	l.size, l.nodes, l.gone, l.ended, l.why = size, map[int]*Report{}, map[int]bool{}, false, why
	for _, s := range l.sets {
		s.decisions, s.verify, s.choosing, s.urgent, s.saved = nil, nil, false, map[int]int{}, map[int]bool{}
		if !s.open {
			s.err = "" // it may go now: another node's lock ends with it
		}
		s.complete, s.whole, s.dead = nil, nil, nil
		s.spreadAgain, s.fellBack = true, Never
		if s.running != nil {
			s.running.retries = 0
		}
		if why != "" {
			s.trigger = why
		}
	}
}

// Report takes a node's report, unless a newer one is known. The caller has checked it. Of sets beyond those that a
// leader of other nodes knows at most nothing is heard.
func (l *Leader) Report(node int, r *Report) {
	if old := l.nodes[node]; node < 0 || node >= l.size || old != nil && old.Seq >= r.Seq {
		return
	}
	l.nodes[node] = r
	if _, left := l.gone[node]; left { // it came after all
		delete(l.gone, node)
		l.ended = false
	}
	for i := range r.Sets {
		sr := &r.Sets[i]
		s := l.sets[sr.Key]
		if s == nil && l.size > 1 && (len(l.sets) >= maxSets || sr.Check() != nil) {
			continue
		}
		if s == nil {
			s = &set{
				Key: sr.Key, committed: Never, tried: Never, replicating: Never, replicated: Never, fellBack: Never, urgent: map[int]int{},
				saved: map[int]bool{}, trigger: l.why,
				wanted: map[Copy]bool{}, sums: map[Copy]Sum{},
			}
			l.sets[sr.Key] = s
		}
		s.across = s.across || sr.Across
		if (len(sr.Saves) > 0 || l.size == 1) &&
			(!l.Local || node == 0) { // whoever leads is node 0, and believes nobody else without a token
			s.reshards, s.replicas, s.keep, s.every = sr.Reshards, max(l.Replicas, sr.Replicas), sr.Keep, sr.Every
		}
		for _, shard := range sr.Saves {
			s.saved[shard] = true
		}
		if sr.Urgent > s.urgent[node] {
			s.urgent[node], s.trigger = sr.Urgent, sr.Why
		}
		s.collect(sr)
		s.hear(sr)
	}
	l.step()
}

// Gone says that a node is not there any more in this round.
func (l *Leader) Gone(node int) {
	if node < 0 || node >= l.size {
		return
	}
	delete(l.nodes, node)
	l.gone[node] = false
	l.step()
}

// GiveUp says that nodes which have not reported in this round will not.
func (l *Leader) GiveUp() {
	for n := range l.size {
		if _, left := l.gone[n]; l.nodes[n] == nil && !left {
			l.gone[n] = true
		}
	}
	l.step()
}

// Last says that no other round will come.
func (l *Leader) Last() {
	l.More = false
	l.step()
}

// Opened tells the outcome of Open, and what the trackers of the directory name: what is known already was written
// since.
func (l *Leader) Opened(k Key, head string, err error) {
	if _, known := l.heads[k.Dir]; !known && err == nil {
		l.heads[k.Dir] = head
	}
	if s := l.sets[k]; s != nil {
		s.open = err == nil
		s.opening = false
		if err != nil {
			s.err = err.Error()
		}
		l.step()
	}
}

// Chosen tells the outcome of Choose: a decision of FromDisk or FromNone.
func (l *Leader) Chosen(k Key, d Decision) {
	if s := l.sets[k]; s != nil && s.choosing {
		s.choosing = false
		s.decisions = append(s.decisions, d)
		l.step()
	}
}

// Committed tells the outcome of Commit.
func (l *Leader) Committed(k Key, attempt string, err error) {
	s := l.sets[k]
	if s == nil || s.running == nil || s.running.attempt != attempt {
		return
	}
	if err != nil {
		s.failed, s.failedAt, s.lost = err.Error(), s.running.at, false
	} else {
		s.failed, l.heads[k.Dir] = "", attempt
		if s.running.at.Compare(s.committed) > 0 {
			s.committed = s.running.at
		}
	}
	s.running = nil
	l.step()
}

// Actions returns what is to be done since it was asked last.
func (l *Leader) Actions() []Action {
	a := l.actions
	l.actions = nil
	return a
}

// act asks for something to be done about a set.
func (l *Leader) act(kind ActionKind, s *set, change func(*Action)) {
	a := Action{Kind: kind, Key: s.Key, Reshards: s.reshards, Keep: s.keep, Every: s.every}
	if change != nil {
		change(&a)
	}
	l.actions = append(l.actions, a)
}

// all reports whether every node of the round has reported.
func (l *Leader) all() bool { return l.size > 0 && len(l.nodes) == l.size }

// allEnded reports whether the workers of every node that is there have ended.
func (l *Leader) allEnded() bool {
	for _, r := range l.nodes {
		if !r.Ended {
			return false
		}
	}
	return len(l.nodes) > 0 && len(l.nodes)+len(l.gone) == l.size
}

// report returns what a node says of a set, nil where it says nothing.
func (l *Leader) report(node int, k Key) *SetReport {
	r := l.nodes[node]
	if r == nil {
		return nil
	}
	for i := range r.Sets {
		if r.Sets[i].Key == k {
			return &r.Sets[i]
		}
	}
	return nil
}

// order returns the nodes that are there, by group rank.
func (l *Leader) order() []int { return slices.Sorted(maps.Keys(l.nodes)) }

// step has everything follow from what is known.
func (l *Leader) step() {
	if ended := l.allEnded(); ended && !l.ended {
		l.ended = true
		for _, s := range l.sets {
			s.trigger = "the workers have ended"
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(l.sets), func(a, b Key) int { return cmpKey(a, b) }) {
		s := l.sets[k]
		if !s.open {
			if !s.opening && s.err == "" {
				s.opening = true
				l.act(Open, s, nil)
			}
			continue
		}
		l.learn(s)
		l.tally(s)
		l.flush(s)
		l.decide(s)
		l.replicate(s)
	}
}

func cmpKey(a, b Key) int {
	if a.Dir != b.Dir {
		if a.Dir < b.Dir {
			return -1
		}
		return 1
	}
	return a.Shards - b.Shards
}
