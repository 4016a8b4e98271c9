package switchbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"muster/netcheck/devicecheck"
	"muster/netcheck/switchbox"
)

// box is devices with a link each, of the bandwidth given.
type box struct {
	mbps    map[int]float64
	back    map[devicecheck.Pair]float64 // where it differs
	corrupt int                          // device, -1: none
	hang    int
	asked   [][]devicecheck.Pair
}

func (b *box) Switchbox(_ context.Context, pairs []devicecheck.Pair) ([]devicecheck.LinkResult, error) {
	b.asked = append(b.asked, pairs)
	if b.mbps == nil {
		return nil, errors.New("no torch")
	}
	var all []devicecheck.LinkResult
	for _, p := range pairs {
		rate := func(d int) float64 {
			if v, ok := b.mbps[d]; ok {
				return v
			}
			return 20000
		}
		way := devicecheck.Way{MBps: min(rate(p[0]), rate(p[1])), Corrupt: slices.Contains(p[:], b.corrupt)}
		r := devicecheck.LinkResult{Pair: p, There: way, Back: way}
		if v, ok := b.back[p]; ok {
			r.Back.MBps = v
		}
		if slices.Contains(p[:], b.hang) {
			r.Err = errors.New("hung")
		}
		all = append(all, r)
	}
	return all, nil
}

var usual = switchbox.Rules{Pairs: []devicecheck.Pair{{0, 1}, {2, 4}, {3, 5}, {6, 7}}, MinBandwidth: 10000, MinChannels: 2}

// TestRules is the guide's: a pair below the bandwidth is a faulty link, fewer healthy pairs than wanted a faulty node.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		name    string
		box     box
		healthy int
		fault   bool
		last    string
		ends    [][]int
	}{
		{"all well", box{mbps: map[int]float64{}, corrupt: -1, hang: -1}, 4, false, "PASS", [][]int{nil, nil, nil, nil}},
		{
			"just enough, and far behind the others",
			box{mbps: map[int]float64{4: 10000}, corrupt: -1, hang: -1},
			4, false, "WARN",
			[][]int{nil, nil, nil, nil},
		},
		{"near the others", box{mbps: map[int]float64{4: 14000}, corrupt: -1, hang: -1}, 4, false, "PASS", [][]int{nil, nil, nil, nil}},
		{
			"one way slower",
			box{mbps: map[int]float64{}, back: map[devicecheck.Pair]float64{{3, 5}: 14999}, corrupt: -1, hang: -1},
			4, false,
			"WARN",
			[][]int{nil, nil, nil, nil},
		},
		{
			"one way a little slower",
			box{mbps: map[int]float64{}, back: map[devicecheck.Pair]float64{{3, 5}: 15000}, corrupt: -1, hang: -1},
			4, false, "PASS",
			[][]int{nil, nil, nil, nil},
		},
		{"just not", box{mbps: map[int]float64{4: 9999}, corrupt: -1, hang: -1}, 3, false, "WARN", [][]int{nil, {4}, nil, nil}},
		{
			"two healthy pairs",
			box{mbps: map[int]float64{1: 10, 2: 10, 4: 10}, corrupt: -1, hang: -1},
			2, false, "WARN",
			[][]int{{1}, {2, 4}, nil, nil},
		},
		{"one", box{mbps: map[int]float64{0: 10, 2: 10, 5: 10}, corrupt: -1, hang: -1}, 1, true, "FAIL", [][]int{{0}, {2}, {5}, nil}},
		{"none", box{mbps: map[int]float64{0: 1, 2: 1, 5: 1, 7: 1}, corrupt: -1, hang: -1}, 0, true, "FAIL", [][]int{nil, nil, nil, nil}},
		{"corrupt", box{mbps: map[int]float64{}, corrupt: 6, hang: -1}, 3, false, "WARN", [][]int{nil, nil, nil, {6}}},
		{"hanging", box{mbps: map[int]float64{}, corrupt: -1, hang: 3}, 3, false, "WARN", [][]int{nil, nil, nil, nil}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := switchbox.Test(t.Context(), &c.box, usual)
			if err != nil {
				t.Fatal(err)
			}
			lines := r.Lines()
			if r.Healthy != c.healthy || (r.Fault() != "") != c.fault || !strings.HasSuffix(lines[len(lines)-1], c.last) ||
				len(r.Bad()) != 4-c.healthy {
				t.Errorf("%d healthy, fault %q:\n%s", r.Healthy, r.Fault(), strings.Join(lines, "\n"))
			}
			for i, l := range r.Links {
				if !slices.Equal(l.Ends, c.ends[i]) {
					t.Errorf("pair %s: bad ends %v, want %v", l.Pair, l.Ends, c.ends[i])
				}
			}
			if c.healthy == 4 && len(c.box.asked) != 1 {
				t.Errorf("asked %v", c.box.asked)
			}
		})
	}
	if _, err := switchbox.Test(t.Context(), &box{}, usual); err == nil {
		t.Error("nothing was measured, and it is no error")
	}
}
