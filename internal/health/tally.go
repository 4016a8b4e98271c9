package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/check"
)

// tally collects what a check says of several devices: each that is not well, a PASS where none is, and a SKIP for each
// reason why some could not be judged.
type tally struct {
	id      string
	devices string // what they are called
	of      int    // how many there are
	bad     []check.Result
	judged  bool
	whys    []string            // in the order in which they came
	unknown map[string][]string // indices by reason
}

func newTally(id, devices string, of int) *tally {
	return &tally{id: id, devices: devices, of: of, unknown: map[string][]string{}}
}

// add takes what a look at a device has made of r: a Reason where it is not well. unknown is why it cannot be judged,
// "" where it can: a value that is not available is no health.
func (t *tally) add(index int, r check.Result, unknown string) {
	switch {
	case unknown != "":
		if t.unknown[unknown] == nil {
			t.whys = append(t.whys, unknown)
		}
		t.unknown[unknown] = append(t.unknown[unknown], strconv.Itoa(index))
	case r.Reason != "":
		t.bad = append(t.bad, r)
	default:
		t.judged = true
	}
}

func (t *tally) results() []check.Result {
	results := slices.Clone(t.bad)
	if t.judged && results == nil {
		results = pass(t.id)
		results[0].Source = "L1"
	}
	for _, why := range t.whys {
		r := skip(t.id, why)[0]
		if len(t.unknown[why]) < t.of {
			r.Reason = fmt.Sprintf("%s %s: %s", t.devices, strings.Join(t.unknown[why], ", "), why)
		}
		results = append(results, r)
	}
	return results
}
