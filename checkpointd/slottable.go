package checkpointd

import (
	"slices"

	"muster/checkpointd/planner"
)

// moment orders copies of a state: by era, and in it by step.
type moment = planner.Moment

// slot is what is known of one copy's place.
type slot struct {
	ID    int
	State slotState
	At    moment // of what is, or was being, copied
	Size  int64  // bytes that it has room for
	Pins  int    // who writes it to disk, or is about to
	Kept  bool   // one of the pins is the leader's, with other nodes
	Holds int    // workers that look at it
	Owner int    // the connection that copies, while State is slotWriting
}

func (s *slot) free() bool { return s.Pins == 0 && s.Holds == 0 && s.State != slotWriting }

// slotTable decides which memory a save may use, and which steps are complete. It is pure: what it says is done by set.
type slotTable struct {
	shards [][]*slot
	begun  []moment // the newest that each shard has begun
	nextID int
	// told is what the leader says of moments, nil for what a dead agent has left.
	told *toldMoments
}

// toldMoments are the newest moments of which all shards have copies on some node, the newest first, and those that
// cannot become complete any more.
type toldMoments struct{ complete, dead []moment }

func newSlotTable(shards int) *slotTable {
	b := &slotTable{shards: make([][]*slot, shards), begun: make([]moment, shards)}
	for i := range b.begun {
		b.begun[i] = planner.Never
	}
	return b
}

// find returns a slot of a shard by its id, nil where there is none.
func (b *slotTable) find(shard, id int) *slot {
	for _, s := range b.shards[shard] {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// at returns the slot of a shard with a whole copy of a moment, nil where there is none.
func (b *slotTable) at(shard int, m moment) *slot {
	for _, s := range b.shards[shard] {
		if s.State == slotReady && s.At == m {
			return s
		}
	}
	return nil
}

// complete returns the moments of which every shard has a whole copy, newest first.
func (b *slotTable) complete() []moment {
	if b.told != nil {
		return b.told.complete
	}
	var found []moment
	for _, s := range b.shards[0] {
		if s.State != slotReady || slices.Contains(found, s.At) {
			continue
		}
		whole := true
		for shard := range b.shards {
			whole = whole && b.at(shard, s.At) != nil
		}
		if whole {
			found = append(found, s.At)
		}
	}
	slices.SortFunc(found, func(a, b moment) int { return b.Compare(a) })
	return found
}

// refused reports whether a shard has come to a moment and has no copy of it, nor is making one: there was no memory.
func (b *slotTable) refused(shard int, m moment) bool {
	return b.begun[shard].Compare(m) >= 0 &&
		!slices.ContainsFunc(b.shards[shard], func(s *slot) bool { return s.At == m && (s.State == slotReady || s.State == slotWriting) })
}

// dead reports whether the leader says that a moment cannot become complete any more.
func (b *slotTable) dead(m moment) bool { return b.told != nil && slices.Contains(b.told.dead, m) }

// missing are the shards without a whole copy of a moment, as far as this node knows.
func (b *slotTable) missing(m moment) (shards []int) {
	for shard := range b.shards {
		if b.at(shard, m) == nil {
			shards = append(shards, shard)
		}
	}
	return shards
}

// slotRules bound what victim may answer.
type slotRules struct {
	// Slots is how many slots a shard has where memory allows: 2, and another one for each of up to extraSlots that are
	// being written to disk or looked at. 1: saves overwrite the only copy.
	Slots int
	// Room says whether there is memory for another slot.
	Room func() bool
}

// extraSlots are one for the step that is being written, and one for that which waits for it.
const extraSlots = 2

// victimKind is the outcome of a request for memory.
type victimKind int

const (
	takeSlot victimKind = iota // the slot that was returned; nil: a new one
	waitDisk                   // none before a step was written to disk or let go
	waitRank                   // none before another rank has saved its shard of the step in the slot that was returned
)

// victim returns the slot of a shard that a new copy may overwrite. It keeps the newest complete step, unless that
// would leave nothing to write to and an older complete one is kept by whoever writes that to disk; or unless there is
// but one slot.
func (b *slotTable) victim(shard int, rules slotRules) (victimKind, *slot) {
	slots := b.shards[shard]
	complete := b.complete()
	var newest, stale *slot
	for _, s := range slots {
		switch {
		case len(complete) > 0 && s.State == slotReady && s.At == complete[0]:
			newest = s
		case !s.free():
		case s.State != slotReady:
			return takeSlot, s
		case len(complete) > 0 && s.At.Compare(complete[0]) < 0 || b.dead(s.At):
			if stale == nil || s.At.Compare(stale.At) < 0 {
				stale = s
			}
		}
	}
	if stale != nil {
		return takeSlot, stale
	}
	taken := 0 // by others than savers
	var awaited *slot
	for _, s := range slots {
		if s.Pins > 0 || s.Holds > 0 {
			taken++
		} else if s != newest && s.State == slotReady && (awaited == nil || s.At.Compare(awaited.At) < 0) {
			awaited = s
		}
	}
	allowed := rules.Slots
	if allowed > 1 {
		allowed += min(taken, extraSlots)
	}
	if len(slots) == 0 || len(slots) < allowed && rules.Room() {
		return takeSlot, nil
	}
	switch {
	case awaited != nil:
		return waitRank, awaited
	case newest != nil && newest.free() && (len(complete) > 1 || len(slots) == 1):
		return takeSlot, newest
	case len(slots) == 1 && slots[0].free():
		return takeSlot, slots[0]
	}
	return waitDisk, nil
}

// add makes a new slot.
func (b *slotTable) add(shard int, size int64) *slot {
	b.nextID++
	s := &slot{ID: b.nextID, Size: size}
	b.shards[shard] = append(b.shards[shard], s)
	return s
}

// drop forgets a slot.
func (b *slotTable) drop(shard int, s *slot) {
	b.shards[shard] = slices.DeleteFunc(b.shards[shard], func(o *slot) bool { return o == s })
}

// begin says that a copy is being written to a slot.
func (b *slotTable) begin(shard int, s *slot, m moment, owner int) {
	s.State, s.At, s.Owner = slotWriting, m, owner
	b.begun[shard] = m
}

// pin keeps the slots of a complete moment from being overwritten, and returns them by shard.
func (b *slotTable) pin(m moment) []*slot {
	pinned := make([]*slot, len(b.shards))
	for shard := range b.shards {
		pinned[shard] = b.at(shard, m)
		pinned[shard].Pins++
	}
	return pinned
}
