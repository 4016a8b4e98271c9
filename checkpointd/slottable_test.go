package checkpointd

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"muster/checkpointd/planner"
)

// ledTable is a table of slots, and the leader of a job of one node whose workers save to them.
type ledTable struct {
	*slotTable
	leader *planner.Leader
	key    planner.Key
	seq    uint64
}

func newLedTable(shards int) *ledTable {
	b := &ledTable{
		slotTable: newSlotTable(shards), key: planner.Key{Dir: "/d", Shards: shards},
		leader: planner.NewLeader(0, func() string { return "a" }),
	}
	b.leader.Local = true
	b.leader.BeginRound(1, 0, "")
	b.hear()
	b.leader.Opened(b.key, "", nil)
	b.hear()
	return b
}

// hear has the leader say what is complete now.
func (b *ledTable) hear() {
	b.seq++
	sr := planner.SetReport{
		Key: b.key, Begun: slices.MinFunc(b.begun, moment.Compare), Begins: slices.Clone(b.begun),
		Committed: planner.Never,
	}
	for shard, slots := range b.shards {
		sr.Saves = append(sr.Saves, shard)
		for _, s := range slots {
			if s.State == slotReady {
				sr.Copies = append(sr.Copies, planner.Copy{Shard: shard, At: s.At})
			}
		}
	}
	b.leader.Report(0, &planner.Report{Seq: b.seq, Sets: []planner.SetReport{sr}})
	b.told = &toldMoments{}
	for _, v := range b.leader.View(0).Sets {
		b.told = &toldMoments{v.Complete, v.Dead}
	}
}

func (b *ledTable) complete() []moment {
	b.hear()
	return b.slotTable.complete()
}

func (b *ledTable) victim(shard int, rules slotRules) (victimKind, *slot) {
	b.hear()
	return b.slotTable.victim(shard, rules)
}

// TestBook plays ranks that save, die and load, a disk that is slow, and memory that is short, in any order. A step
// that was complete must stay so until a newer one is, unless there is but one slot.
func TestBook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.IntRange(1, 3).Draw(t, "shards")
		room := rapid.Bool().Draw(t, "room")
		rules := slotRules{Slots: rapid.IntRange(1, 2).Draw(t, "slots"), Room: func() bool { return room }}
		b := newLedTable(shards)
		step := make([]int64, shards)
		writing := make([]*slot, shards)
		era := uint64(0)
		var pinned []*slot
		var holds []*slot
		newest := moment{Step: -1}

		check := func(t *rapid.T) {
			complete := b.complete()
			for i := 1; i < len(complete); i++ {
				if complete[i-1].Compare(complete[i]) <= 0 {
					t.Fatalf("complete steps are out of order: %v", complete)
				}
			}
			for shard := range b.shards {
				if n := len(b.shards[shard]); n > rules.Slots+extraSlots {
					t.Fatalf("shard %d has %d slots", shard, n)
				}
			}
			if len(complete) > 0 && complete[0].Compare(newest) > 0 {
				newest = complete[0]
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				shard := rapid.IntRange(0, shards-1).Draw(t, "shard")
				if writing[shard] != nil {
					t.Skip()
				}
				before := b.complete()
				kind, s := b.victim(shard, rules)
				if kind != takeSlot {
					return
				}
				if s == nil {
					s = b.add(shard, 1)
				}
				if s.Pins > 0 || s.Holds > 0 || s.State == slotWriting {
					t.Fatalf("slot %+v is in use", *s)
				}
				step[shard]++
				b.begin(shard, s, moment{Era: era, Step: step[shard]}, shard)
				writing[shard] = s
				after := b.complete()
				switch {
				case len(before) == 0:
				case len(after) == 0 && len(b.shards[shard]) > 1:
					t.Fatalf("shard %d gave up the only complete step %v with %d slots", shard, before[0], len(b.shards[shard]))
				case len(after) > 0 && after[0] != before[0] && (room && rules.Slots > 1 || pinned == nil && len(holds) == 0):
					t.Fatalf("shard %d gave up the newest step %v though nobody needed another one", shard, before[0])
				}
			},
			"ready": func(t *rapid.T) {
				shard := rapid.IntRange(0, shards-1).Draw(t, "shard")
				if writing[shard] == nil {
					t.Skip()
				}
				writing[shard].State = slotReady
				writing[shard] = nil
			},
			"restart": func(*rapid.T) { // some died while they copied
				era++
				complete := b.complete()
				b.leader.BeginRound(1, era, "")
				for shard, s := range writing {
					if s != nil {
						s.State = slotTorn
					}
					writing[shard] = nil
					step[shard] = 0
					if len(complete) > 0 {
						step[shard] = complete[0].Step
					}
				}
				for _, s := range holds {
					s.Holds--
				}
				holds = nil
			},
			"hold": func(t *rapid.T) {
				complete := b.complete()
				if len(complete) == 0 || len(holds) > 0 {
					t.Skip()
				}
				for shard := range b.shards {
					s := b.at(shard, complete[0])
					s.Holds++
					holds = append(holds, s)
				}
			},
			"release": func(*rapid.T) {
				for _, s := range holds {
					s.Holds--
				}
				holds = nil
			},
			"flush": func(t *rapid.T) {
				complete := b.complete()
				if pinned != nil || len(complete) == 0 {
					t.Skip()
				}
				pinned = b.pin(complete[0])
			},
			"flushed": func(*rapid.T) {
				for _, s := range pinned {
					s.Pins--
				}
				pinned = nil
			},
			"memory": func(*rapid.T) { room = !room },
			"":       check,
		})
	})
}

// A rank must not wait for ever for one that has skipped a step.
func TestSkippedStep(t *testing.T) {
	b := newLedTable(2)
	rules := slotRules{Slots: 2, Room: func() bool { return true }}
	save := func(shard int, step int64) bool {
		kind, s := b.victim(shard, rules)
		if kind != takeSlot {
			return false
		}
		if s == nil {
			s = b.add(shard, 1)
		}
		b.begin(shard, s, moment{Step: step}, shard)
		s.State = slotReady
		return true
	}
	for _, shard := range []int{0, 1} {
		if !save(shard, 1) {
			t.Fatal("the first step was refused")
		}
	}
	if !save(0, 2) {
		t.Fatal("rank 0 was refused step 2")
	}
	if save(0, 3) {
		t.Fatal("rank 0 may not give up step 2, which rank 1 may still save, nor step 1")
	}
	if !save(1, 3) || !save(0, 3) {
		t.Fatal("step 2 can become complete no more: step 3 takes its place")
	}
	if got := b.complete(); len(got) != 2 || got[0].Step != 3 || got[1].Step != 1 {
		t.Fatalf("complete: %v", got)
	}
}
