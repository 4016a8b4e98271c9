package horovod_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"muster/horovod"
)

// The vectors were taken from horovod 0.28.1, horovod/runner/common/util/hosts.py.
func TestAllocate(t *testing.T) {
	got, err := horovod.Allocate([]horovod.Host{{Name: "a", Slots: 1}, {Name: "b", Slots: 3}, {Name: "c", Slots: 2}}, 6, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []horovod.Slot{
		{Host: "a", Rank: 0, LocalRank: 0, CrossRank: 0, Size: 6, LocalSize: 1, CrossSize: 3},
		{Host: "b", Rank: 1, LocalRank: 0, CrossRank: 1, Size: 6, LocalSize: 3, CrossSize: 3},
		{Host: "b", Rank: 2, LocalRank: 1, CrossRank: 0, Size: 6, LocalSize: 3, CrossSize: 2},
		{Host: "b", Rank: 3, LocalRank: 2, CrossRank: 0, Size: 6, LocalSize: 3, CrossSize: 1},
		{Host: "c", Rank: 4, LocalRank: 0, CrossRank: 2, Size: 6, LocalSize: 2, CrossSize: 3},
		{Host: "c", Rank: 5, LocalRank: 1, CrossRank: 1, Size: 6, LocalSize: 2, CrossSize: 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a:1,b:3,c:2 (-want +got):\n%s", diff)
	}
	got, err = horovod.Allocate([]horovod.Host{{Name: "a", Slots: 3}, {Name: "b", Slots: 2}, {Name: "c", Slots: 1}}, 1, 5)
	if err != nil {
		t.Fatal(err)
	}
	want = []horovod.Slot{
		{Host: "a", Rank: 0, LocalRank: 0, CrossRank: 0, Size: 5, LocalSize: 3, CrossSize: 2},
		{Host: "a", Rank: 1, LocalRank: 1, CrossRank: 0, Size: 5, LocalSize: 3, CrossSize: 2},
		{Host: "a", Rank: 2, LocalRank: 2, CrossRank: 0, Size: 5, LocalSize: 3, CrossSize: 1},
		{Host: "b", Rank: 3, LocalRank: 0, CrossRank: 1, Size: 5, LocalSize: 2, CrossSize: 2},
		{Host: "b", Rank: 4, LocalRank: 1, CrossRank: 1, Size: 5, LocalSize: 2, CrossSize: 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a:3,b:2,c:1 of at most 5 (-want +got):\n%s", diff)
	}
	if _, err := horovod.Allocate([]horovod.Host{{Name: "a", Slots: 2}}, 3, 0); !errors.Is(err, horovod.ErrTooFewSlots) {
		t.Errorf("3 workers in 2 slots: %v", err)
	}
}

func TestPlace(t *testing.T) {
	s := horovod.Slot{Host: "n1", Rank: 4, Size: 6, LocalRank: 1, LocalSize: 2, CrossRank: 3, CrossSize: 5}
	if got := s.Place(); got != "4,6,1,2,3,5" {
		t.Errorf("Place() = %s", got)
	}
	want := []string{
		"HOROVOD_HOSTNAME=n1", "HOROVOD_RANK=4", "HOROVOD_SIZE=6", "HOROVOD_LOCAL_RANK=1", "HOROVOD_LOCAL_SIZE=2",
		"HOROVOD_CROSS_RANK=3", "HOROVOD_CROSS_SIZE=5",
	}
	if diff := cmp.Diff(want, s.Env()); diff != "" {
		t.Errorf("Env() (-want +got):\n%s", diff)
	}
}

// What must hold of every world: ranks without gaps, and in each scope every member number exactly once.
func TestAllocateInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var hosts []horovod.Host
		for i, n := range rapid.SliceOfN(rapid.IntRange(0, 5), 1, 8).Draw(t, "slots") {
			hosts = append(hosts, horovod.Host{Name: string(rune('a' + i)), Slots: n})
		}
		most := rapid.IntRange(0, 20).Draw(t, "most")
		slots, err := horovod.Allocate(hosts, 0, most)
		if err != nil {
			t.Fatal(err)
		}
		want := horovod.Total(hosts)
		if most > 0 {
			want = min(want, most)
		}
		if len(slots) != want {
			t.Fatalf("%d slots, want %d", len(slots), want)
		}
		local, cross := map[horovod.Host]bool{}, map[[2]int]bool{}
		scopes := horovod.Scopes(slots)
		for i, s := range slots {
			if s.Rank != i || s.Size != len(slots) {
				t.Fatalf("%+v at %d of %d", s, i, len(slots))
			}
			l, c := horovod.Host{Name: s.Host, Slots: s.LocalRank}, [2]int{s.LocalRank, s.CrossRank}
			if local[l] || cross[c] || s.LocalRank >= s.LocalSize || s.CrossRank >= s.CrossSize {
				t.Fatalf("%+v", s)
			}
			local[l], cross[c] = true, true
			if scopes["local_"+s.Host] != s.LocalSize {
				t.Fatalf("%+v in %v", s, scopes)
			}
		}
		sum := 0
		for name, n := range scopes {
			if name[:1] == "l" {
				sum += n
			}
		}
		if sum != len(slots) {
			t.Fatalf("the hosts' scopes have %d members, the world %d", sum, len(slots))
		}
	})
}
