package main

import (
	"strings"
	"testing"
	"time"
)

func TestLastStampOfAnAttempt(t *testing.T) {
	at := func(second int64, rank, attempt int) stamp {
		return stamp{at: time.Unix(second, 0), rank: rank, attempt: attempt}
	}
	for name, c := range map[string]struct {
		stamps []stamp
		want   int64
		err    string
	}{
		"the latest, in whatever order": {[]stamp{at(5, 1, 1), at(9, 0, 1), at(7, 2, 1)}, 9, ""},
		"other attempts do not count":   {[]stamp{at(1, 0, 0), at(5, 0, 1), at(4, 1, 1), at(3, 2, 1), at(99, 0, 2)}, 5, ""},
		"a worker is missing":           {[]stamp{at(5, 0, 1), at(4, 2, 1), at(3, 1, 0)}, 0, "rank 1 of 3 has no stamp"},
		"a worker said it twice": {
			[]stamp{at(5, 0, 1), at(4, 1, 1), at(3, 1, 1), at(6, 2, 1)},
			0,
			"rank 1 of 3 has a stamp too many",
		},
		"a worker too many": {
			[]stamp{at(5, 0, 1), at(4, 1, 1), at(3, 2, 1), at(6, 3, 1)},
			0,
			"rank 3 of 3 has a stamp too many",
		},
		"nobody": {nil, 0, "rank 0 of 3 has no stamp"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lastOf(c.stamps, 1, 3)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Unix() != c.want {
				t.Errorf("last stamp at %d, want %d", got.Unix(), c.want)
			}
		})
	}
}

func TestBudgetIsAPartOfThePeer(t *testing.T) {
	for _, c := range []struct {
		part   int
		ours   float64
		budget string
		pass   bool
	}{
		{4, 25, "≤ 1/4", true},
		{4, 25.5, "≤ 1/4", false},
		{1, 100, "≤ 1.0", true},
		{1, 101, "≤ 1.0", false},
		{0, 1000, "information", true},
	} {
		r := atMost(c.part, "start", "s", measured{"warm", []float64{c.ours}}, measured{"cold", []float64{100, 90, 110}})
		if r.Budget != c.budget || r.Pass != c.pass || *r.Peer != 100 {
			t.Errorf("%v of 100, part %d: %+v; want budget %q, pass %v", c.ours, c.part, r, c.budget, c.pass)
		}
	}
}

func TestNoteTellsTheSpread(t *testing.T) {
	r := atMost(4, "start", "s", measured{"warm", []float64{1.5, 1.25, 2}}, measured{"torchrun", []float64{12, 10, 11}}, "on a Sunday")
	if want := "warm 1.25 to 2 s; torchrun 10.0 to 12.0 s; on a Sunday"; r.Note != want {
		t.Errorf("note is %q, want %q", r.Note, want)
	}
}
