package c10d_test

import (
	"bufio"
	"encoding/json"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/c10d"
)

// oracle is a Python process that drives the real rendezvous code of a torch: testdata/upstream.py. It keeps nothing from
// one request to the next, and serves all tests: it has imported torch once, and ends with the test binary.
type oracle struct {
	sync.Mutex
	in  *json.Encoder
	out *json.Decoder
}

var (
	oraclesLock sync.Mutex
	oracles     = map[string]*oracle{} // by interpreter
)

// upstream is what a test asks an oracle by.
type upstream struct {
	t testing.TB
	*oracle
}

// askUpstream returns the oracle of python.
func askUpstream(t testing.TB, python string) *upstream {
	t.Helper()
	oraclesLock.Lock()
	defer oraclesLock.Unlock()
	if oracles[python] == nil {
		in, out := testutil.StartPiped(t, exec.Command(python, "testdata/upstream.py"))
		oracles[python] = &oracle{in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out))}
	}
	return &upstream{t: t, oracle: oracles[python]}
}

// ask sends request and reads the answer into answer.
func (u *upstream) ask(request, answer any) {
	u.t.Helper()
	u.Lock()
	defer u.Unlock()
	if err := u.in.Encode(request); err != nil {
		u.t.Fatal(err)
	}
	if err := u.out.Decode(answer); err != nil {
		u.t.Fatal(err)
	}
}

type (
	jsonNode  = []any
	jsonRank  = []any
	jsonState struct {
		Round      int            `json:"round"`
		Complete   bool           `json:"complete"`
		Deadline   *int64         `json:"deadline"`
		Closed     bool           `json:"closed"`
		Part       []jsonRank     `json:"participants"`
		Wait       []jsonNode     `json:"wait_list"`
		Spare      []jsonNode     `json:"redundancy_list"`
		Heartbeats []jsonRank     `json:"last_heartbeats"`
		Ranks      []jsonRank     `json:"ranks"`
		RanksRound int            `json:"ranks_round"`
		Extra      map[string]any `json:"extra"`
	}
)

func nodeJSON(n c10d.Node) jsonNode { return jsonNode{n.Addr, float64(n.PID), float64(n.LocalID)} }

func ranksJSON(m map[c10d.Node]int) []jsonRank {
	out := []jsonRank{}
	for _, n := range slices.SortedFunc(maps.Keys(m), c10d.Node.Compare) {
		out = append(out, jsonRank{nodeJSON(n), float64(m[n])})
	}
	return out
}

func nodesJSON(s c10d.Nodes) []jsonNode {
	out := []jsonNode{}
	for _, n := range s.Sorted() {
		out = append(out, nodeJSON(n))
	}
	return out
}

// stateJSON is s as upstream.py shows it.
func stateJSON(s *c10d.State, extra map[string]any) jsonState {
	j := jsonState{
		Round: s.Round, Complete: s.Complete, Closed: s.Closed, Part: ranksJSON(s.Participants),
		Wait: nodesJSON(s.WaitList), Spare: nodesJSON(s.RedundancyList), Heartbeats: []jsonRank{},
		RanksRound: s.RanksRound, Extra: extra,
	}
	if !s.Deadline.IsZero() {
		us := s.Deadline.UnixMicro()
		j.Deadline = &us
	}
	for _, n := range slices.SortedFunc(maps.Keys(s.LastHeartbeats), c10d.Node.Compare) {
		j.Heartbeats = append(j.Heartbeats, jsonRank{nodeJSON(n), float64(s.LastHeartbeats[n].UnixMicro())})
	}
	if s.RanksRound >= 0 {
		j.Ranks = ranksJSON(s.Ranks)
	}
	return j
}

// dump returns what the real classes' pickle of j is.
func (u *upstream) dump(j jsonState, protocol int) []byte {
	u.t.Helper()
	var answer struct{ Text string }
	u.ask(map[string]any{"do": "dump", "state": j, "protocol": protocol}, &answer)
	return []byte(answer.Text)
}

// load returns what the real classes make of text.
func (u *upstream) load(text []byte) jsonState {
	u.t.Helper()
	var answer struct{ State jsonState }
	u.ask(map[string]any{"do": "load", "text": string(text)}, &answer)
	return answer.State
}

// upstreamStep asks what the real operation does. A nil text is no state.
type upstreamStep struct {
	Do       string   `json:"do"`
	Want     string   `json:"want"`
	Text     *string  `json:"text"`
	Node     jsonNode `json:"node"`
	Min      int      `json:"min"`
	Max      int      `json:"max"`
	Wall     int64    `json:"wall"`     // µs
	Mono     float64  `json:"mono"`     // s
	Deadline float64  `json:"deadline"` // s
}

type upstreamAnswer struct {
	Action   string
	Text     *string
	Deadline float64
	Waiting  int
}

func (u *upstream) step(s upstreamStep) upstreamAnswer {
	u.t.Helper()
	s.Do = "step"
	var answer upstreamAnswer
	u.ask(s, &answer)
	return answer
}

// torches are the real interpreters, by the version they have.
var torches = map[string]func(testing.TB) string{
	"torch " + testutil.TorchVersion: testutil.Torch,
	"torch 1.13.1":                   testutil.DebianTorch,
}

// someTime is a moment with all digits of a datetime.
var someTime = time.Date(2026, 11, 21, 1, 51, 34, 29595000, time.UTC)
