package rehearsal

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/wording"
)

// trigger says when a fault is there. The zero value but for probability: always.
type trigger struct {
	attempts    []int   // rounds in which it is there; nil: all
	probability float64 // that it is there in a round
	calls       int     // of the NVML probe that come before it
	seconds     int     // after a process began
	step        int     // after which a worker has it
	once        bool    // one process of the node has it, one time
}

// The words for triggers. The first two go with every fault, since each round looks at everything anew.
const (
	onAttempts    = "attempts"
	onProbability = "probability"
	onCalls       = "after_calls"
	onSeconds     = "after_s"
	onStep        = "after_step"
	onOnce        = "once"
)

var allTriggers = []string{onAttempts, onProbability, onCalls, onSeconds, onStep, onOnce}

// whyNot is why a trigger goes with some kinds only.
var whyNot = map[string]string{
	onCalls:   "it counts what the NVML probe calls and reads; attempts: says in which rounds a fault is there",
	onSeconds: "it is for what goes on while a job runs; attempts: says in which rounds a fault is there",
	onStep:    "only workers make steps; attempts: says in which rounds a fault is there",
	onOnce:    "it is for what ends or stops a process; attempts: [0] says that it is there in the first round alone",
}

// Limits of triggers.
const (
	maxAttempts = 1000    // in a list
	maxRound    = 1 << 30 // that a list names
	maxSeconds  = 1 << 30
	maxSteps    = 1 << 40
)

// trigger reads one key of a fault into t. Kinds that it does not go with are told so.
func (r *specReader) trigger(e entry, where, kind string, goes []string, t *trigger) {
	if why := whyNot[e.key]; why != "" && !slices.Contains(goes, e.key) {
		r.add(e.line, "%s: %s does not go with %s: %s", where, e.key, kind, why)
		return
	}
	where += "." + e.key
	switch e.key {
	case onAttempts:
		t.attempts = r.attempts(e.value, where)
	case onProbability:
		t.probability = r.real(e.value, where, 0, 1)
	case onCalls:
		most := maxReadings - 1 // after the last of them there is none that would show it
		if strings.HasPrefix(kind, "probe-") {
			most = maxSteps
		}
		t.calls = r.number(e.value, where, 0, most)
	case onSeconds:
		t.seconds = r.number(e.value, where, 0, maxSeconds)
	case onStep:
		t.step = r.number(e.value, where, 0, maxSteps)
	case onOnce:
		t.once = r.truth(e.value, where)
	}
}

// attempts reads the rounds in which something is so.
func (r *specReader) attempts(n *yaml.Node, where string) []int {
	list := []int{}
	for i, v := range r.sequence(n, where, maxAttempts) {
		list = append(list, r.number(v, fmt.Sprintf("%s[%d]", where, i), 0, maxRound))
	}
	if len(list) == 0 {
		r.add(n.Line, "%s names no round: leave the fault out, or name rounds (0 is the first start)", where)
	}
	return list
}

// real reads a number between lowest and highest, which may have a fraction.
func (r *specReader) real(n *yaml.Node, where string, lowest, highest float64) float64 {
	line := n.Line
	n = deref(n)
	var v float64
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" && n.ShortTag() != "!!float" || n.Decode(&v) != nil {
		r.add(line, "%s must be a number, not %s", where, describe(n))
		return lowest
	}
	if !(lowest <= v && v <= highest) { // nor is .nan
		r.add(line, "%s is %s, not between %g and %g", where, wording.Clip(n.Value), lowest, highest)
		return lowest
	}
	return v
}

// truth reads true or false.
func (r *specReader) truth(n *yaml.Node, where string) bool {
	line := n.Line
	n = deref(n)
	var v bool
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(&v) != nil {
		r.add(line, "%s must be true or false, not %s", where, describe(n))
	}
	return v
}

// occurs reports whether the i-th fault of a node is there in a round. Chance is the seed's: the same in every process.
func (t *trigger) occurs(seed int64, node string, i, round int) bool {
	if t.attempts != nil && !slices.Contains(t.attempts, round) {
		return false
	}
	return t.probability >= 1 || chance(seed, node, "fault", i, round) < t.probability
}

// chance is a number of 0 up to 1 that follows from what it is about.
func chance(seed int64, node, what string, i, round int) float64 {
	h := sha256.Sum256(fmt.Appendf(nil, "%d\x00%s\x00%s\x00%d\x00%d", seed, node, what, i, round))
	return float64(binary.BigEndian.Uint64(h[:])>>11) / math.Exp2(53)
}

// At is the fake as it is in a round, counted from 0 as MUSTER_ROUND is. A fake that was just loaded is as in round 0.
func (f *Fake) At(round int) *Fake {
	now := *f
	now.round = round
	now.spec = f.whole.at(f.node, round)
	return &now
}

// at is what a spec says of a node in a round.
func (s *spec) at(node string, round int) nodeSpec {
	own, ok := s.nodes[node]
	if !ok {
		own = s.defaults
	}
	var faults []fault
	for _, f := range own.faults {
		if f.when.occurs(s.seed, node, f.number, round) {
			faults = append(faults, f)
		}
	}
	own.faults = faults
	return own
}

// triggersOf lists the triggers that go with a kind, for messages.
func (k faultKind) triggersOf() string {
	return strings.Join(append([]string{onAttempts, onProbability}, k.triggers...), ", ")
}
