package c10d

import "time"

// Instant is one point in time on both clocks of this host.
type Instant struct {
	// Mono is the time since some fixed moment of this agent, by a clock that is never set.
	Mono time.Duration
	// Wall is the same moment as the calendar has it, which is what other hosts read in the state.
	Wall time.Time
}

// maxSkew bounds how far we follow a clock that runs ahead of ours. What is further ahead is not a clock but a mistake,
// and would make our own heartbeats last that long.
const maxSkew = time.Hour

// warnSkew is the difference of clocks from which on a person should hear of it (c10d.md §2.10).
const warnSkew = 2 * time.Second

// Observer remembers when this agent saw each node's heartbeat change, by this host's own clock. Upstream compares
// other hosts' timestamps with its own clock instead: there a difference of 15 s between two clocks removes living
// nodes, and the other way round lets dead ones live on (§9 row 22). Ours needs no agreement about the time at all.
//
// Only time in which we looked counts. When the store stood still or this process was stopped, nobody's heartbeat could
// reach us, and its absence proves nothing.
//
// An Observer belongs to one process and is not safe for concurrent use.
type Observer struct {
	ours     Nodes
	settings Settings
	looked   bool
	last     time.Duration // when we looked last, by our clock
	round    int           // the highest round seen, -1 before
	nodes    map[Node]*sighting

	deadline      time.Time     // as it stood in the state last
	deadlineSince time.Duration // since when it stands there
	places        int           // how many spares the state had room for
	vacancySince  time.Duration // since when it has room for any
}

// sighting is what we know of one node.
type sighting struct {
	stamp   time.Time     // its last heartbeat, by its clock
	changed time.Duration // when we saw that first, by ours
	silent  time.Duration // how long we have looked since without seeing another one
	present bool          // whether the state mentions it now
	before  bool          // whether the state before did
	newest  time.Time     // the newest heartbeat of anybody in the first state that no longer mentioned it
	// What is known of its clock minus ours: it lies between low and high. The heartbeat was written after we looked
	// before and until we looked now.
	low, high time.Duration
	bounded   bool // whether high is known
}

// NewObserver returns an observer whose own nodes are ours.
func NewObserver(settings Settings, ours ...Node) *Observer {
	o := &Observer{settings: settings, round: -1, nodes: map[Node]*sighting{}, ours: make(Nodes, len(ours))}
	for _, n := range ours {
		o.ours[n] = struct{}{}
	}
	return o
}

// SetOurs says which nodes are ours from now on: members of a round, and those that leave it. It keeps the set.
func (o *Observer) SetOurs(ours Nodes) { o.ours = ours }

// Observe takes in the state st as it was read, or was left by our own write, at the moment at. It must see every state
// that Step is asked about, before Step. A nil st is no state.
func (o *Observer) Observe(st *State, at Instant) {
	gap := at.Mono - o.last
	first := !o.looked
	o.looked, o.last = true, at.Mono
	for _, s := range o.nodes {
		s.before, s.present = s.present, false
		if !first {
			s.silent += min(gap, o.settings.KeepAlive)
		}
	}
	if st == nil {
		st = NewState()
	} else {
		o.round = max(o.round, st.Round)
	}
	var newest time.Time
	for _, stamp := range st.LastHeartbeats {
		if stamp.After(newest) {
			newest = stamp
		}
	}
	for n := range st.everyNode {
		stamp := st.LastHeartbeats[n] // zero for a member without one: it is dead when it stays without
		s := o.nodes[n]
		if s == nil {
			s = &sighting{stamp: stamp, changed: at.Mono, low: stamp.Sub(at.Wall)}
			o.nodes[n] = s
		} else if !s.stamp.Equal(stamp) {
			low := stamp.Sub(at.Wall)
			*s = sighting{stamp: stamp, changed: at.Mono, low: low, high: low + gap, bounded: true}
		}
		s.present = true
	}
	for n, s := range o.nodes {
		if s.before && !s.present {
			s.newest = newest
		}
		if !s.present && s.silent >= o.settings.DeadAfter() {
			delete(o.nodes, n)
		}
	}
	if !st.Deadline.Equal(o.deadline) {
		o.deadline, o.deadlineSince = st.Deadline, at.Mono
	}
	places := o.placesIn(st)
	if (places > 0) != (o.places > 0) {
		o.vacancySince = at.Mono
	}
	o.places = places
}

// Alive reports whether n has been heard of within the time that a node may be silent. We are always alive.
func (o *Observer) Alive(n Node) bool {
	if o.ours.Has(n) {
		return true
	}
	s := o.nodes[n]
	return s != nil && s.silent < o.settings.DeadAfter()
}

// dead returns the nodes that the observed state mentions and that are not alive.
func (o *Observer) dead() Nodes {
	var dead Nodes
	for n, s := range o.nodes {
		if s.present && s.silent >= o.settings.DeadAfter() && !o.ours.Has(n) {
			if dead == nil {
				dead = Nodes{}
			}
			dead[n] = struct{}{}
		}
	}
	return dead
}

// Stamp returns the heartbeat to write at the moment at: our clock, or that of the node whose clock is furthest ahead
// of ours among those that live. An agent of upstream drops nodes whose heartbeats look older than 15 s to its clock,
// so a node whose clock is behind would never take part (§9 row 22). A heartbeat from the future harms nobody.
func (o *Observer) Stamp(at Instant) time.Time {
	var ahead time.Duration
	for n, s := range o.nodes {
		if !o.ours.Has(n) && s.present && o.Alive(n) && s.low <= maxSkew {
			ahead = max(ahead, s.low)
		}
	}
	return at.Wall.Add(ahead).UTC().Truncate(time.Microsecond)
}

// Skew returns by how much n's clock differs from ours at least (positive where it is ahead), and whether that is worth
// a warning. It says nothing of nodes of ours that follow a faster clock, see Stamp; they see the skew themselves.
func (o *Observer) Skew(n Node) (time.Duration, bool) {
	s := o.nodes[n]
	switch {
	case s == nil || s.stamp.IsZero() || o.ours.Has(n):
		return 0, false
	case s.low > 0:
		return s.low, s.low > warnSkew
	case s.bounded && s.high < 0:
		return s.high, s.high < -warnSkew
	}
	return 0, false
}

// keepAliveIn returns how long the heartbeat of n, one of ours, is still good in st; 0 or less when a new one is due.
func (o *Observer) keepAliveIn(n Node, st *State, at Instant) time.Duration {
	s := o.nodes[n]
	if _, has := st.LastHeartbeats[n]; !has || s == nil {
		return 0
	}
	return s.changed + o.settings.KeepAlive - at.Mono
}

// lastCallIn returns how long an incomplete round is still open for more nodes. The deadline in the state is a time of
// the clock of whoever set it; how long it has stood there, everybody can tell by his own.
func (o *Observer) lastCallIn(at Instant) time.Duration {
	return o.deadlineSince + o.settings.LastCall - at.Mono
}

// evicted reports whether n, which the state mentions no more, looks like a living node that an agent of upstream
// dropped because of its clock: its last heartbeat was that much older than the newest. Such a node comes back by
// itself.
func (o *Observer) evicted(n Node) bool {
	s := o.nodes[n]
	return s != nil && !s.present && o.Alive(n) && s.newest.Sub(s.stamp) >= o.settings.DeadAfter()-o.settings.KeepAlive
}

// spareGrace is how long a spare waits before it takes a free place. A participant that restarts its workers leaves the
// round and comes back with its next write; upstream's spares take its place meanwhile, and the restarted node, with
// its data and its rank, becomes the spare. Long enough for a write over a slow link, and no longer than a poll.
const spareGrace = time.Second

// placesIn returns how many more living nodes may take part than do or are about to.
func (o *Observer) placesIn(st *State) int {
	n := 0
	for p := range st.Participants {
		if o.Alive(p) {
			n++
		}
	}
	for w := range st.WaitList {
		if _, in := st.Participants[w]; !in && o.Alive(w) {
			n++
		}
	}
	return max(0, o.settings.MaxNodes-n)
}

// vacancyIn returns how long a spare still has to wait before it may take a free place; ok is false while there is
// none.
func (o *Observer) vacancyIn(at Instant) (left time.Duration, ok bool) {
	return o.vacancySince + spareGrace - at.Mono, o.places > 0
}
