package dlrover

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/internal/pickle"
)

// fake is as much of a master as these tests need, spoken to by HTTP. The tests of cmd/muster have the real one.
type fake struct {
	*httptest.Server
	min, max int

	mu      sync.Mutex
	round   int
	waiting map[int]int
	world   map[int]int
	kv      map[string]any
	said    []string // classes of what was asked and reported, with what tells them apart
	actions []message
	state   []string // of the pre-check, the last one for ever
	answer  func(class string) []byte
	lost    func(ask object) bool // says that the answer gets lost on its way
	down    bool
	patient time.Duration
	stop    bool // the job is stopping
	check   checkFake
}

// checkFake is the network check of a fake: agents of DLRover with some ranks come to each round of it, one worker each.
type checkFake struct {
	agents  []int
	open    bool // they wait there
	without bool // they are tested without any other node
	world   map[int]int
	rounds  int
	asked   bool                  // the first question after a round has no answer yet
	verdict func() ([]any, []any) // who is at fault, and who slow; nil: nobody
	running int
}

// join has a node take part; a round is complete with it.
func (c *checkFake) join(rank, workers int) {
	if c.world = map[int]int{rank: workers}; c.without {
		c.world = map[int]int{}
	}
	for _, r := range c.agents {
		c.world[r] = 1
	}
	c.rounds++
	c.open, c.asked = false, false
}

// result answers a question for what was found.
func (c *checkFake) result(slow bool) *message {
	nodes, reason := []any{}, ""
	if !c.asked {
		c.asked, reason = true, reasonWaiting
	} else if c.verdict != nil {
		faulty, slowest := c.verdict()
		if nodes = faulty; slow {
			nodes = slowest
		}
	}
	return &message{"NetworkCheckResult", []attr{{"nodes", nodes}, {"reason", reason}}}
}

func newFake(t *testing.T, minimum, maximum int) *fake {
	t.Helper()
	f := &fake{
		min: minimum, max: maximum, waiting: map[int]int{}, world: map[int]int{}, kv: map[string]any{}, state: []string{checkDisabled},
		patient: 2 * time.Second,
	}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) addr() string { return strings.TrimPrefix(f.URL, "http://") }

func (f *fake) client(t *testing.T, rank int) *Client {
	t.Helper()
	c, err := NewClient(ClientConfig{
		Addr: f.addr(), Service: HTTP, NodeID: rank, NodeType: "worker", NodeIP: "127.0.0.1", Timeout: 5 * time.Second, Patience: f.patient,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// heard reports whether something was said that begins so.
func (f *fake) heard(begin string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.said, func(s string) bool { return strings.HasPrefix(s, begin) })
}

// waits reports whether a node waits for the training.
func (f *fake) waits(rank int) (waits bool) {
	f.with(func() { _, waits = f.waiting[rank] })
	return waits
}

// forget makes the fake a master that has begun anew.
func (f *fake) forget() {
	f.round, f.world, f.waiting, f.kv, f.said = 0, map[int]int{}, map[int]int{}, map[string]any{}, nil
	f.check = checkFake{agents: f.check.agents, running: f.check.running, without: f.check.without}
}

// with does something to the fake.
func (f *fake) with(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

var requests = []string{
	"RendezvousParams", "NodeEvent", "NodeMeta", "PreCheckRequest", "CommWorldRequest", "JoinRendezvousRequest", "WaitingNodeNumRequest",
	"NetworkReadyRequest", "StragglerExistRequest", "RunningNodesRequest",
	"KeyValuePair", "KeyValuePairs", "HeartBeat", "ResourceStats", "NodeFailure", "GlobalStep", "Event", "ElasticRunConfigRequest",
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Data string `json:"data"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	data, err := base64.StdEncoding.DecodeString(in.Data)
	var classes []*pickle.Class
	for _, name := range requests {
		classes = append(classes, &pickle.Class{Module: module, Name: name})
	}
	var v any
	if err == nil {
		v, err = pickle.Read(data, classes...)
	}
	o, is := v.(*pickle.Object)
	if err != nil || !is {
		http.Error(w, "not a message", http.StatusInternalServerError)
		return
	}
	ask, err := asObject(o, o.Class.Name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	if f.answer != nil {
		if raw := f.answer(ask.class); raw != nil {
			_, _ = w.Write(pickled(message{"BaseResponse", []attr{{"success", true}, {"data", raw}}}))
			return
		}
	}
	response := message{"BaseResponse", []attr{{"success", true}, {"data", []byte{}}}}
	if said := f.handle(ask); said != nil {
		response.attrs[1].value = pickled(*said)
	}
	if f.lost != nil && f.lost(ask) {
		http.Error(w, "lost", http.StatusBadGateway)
		return
	}
	_, _ = w.Write(pickled(response))
}

// handle does what the master does with a message; f.mu is held.
func (f *fake) handle(ask object) *message {
	text := func(name string) string { s, _ := ask.text(name); return s }
	number := func(name string) int { n, _ := ask.number(name); return n }
	f.said = append(f.said, strings.TrimSpace(ask.class+" "+text("event_type")+text("level")+" "+text("error_data")))
	state := func(waiting int, world dict) *message {
		return &message{"RendezvousState", []attr{{"world", world}, {"waiting_num", waiting}, {"round", f.round}, {"group", 0}}}
	}
	worldOf := func(ranks map[int]int) (world dict) {
		for _, rank := range slices.Sorted(maps.Keys(ranks)) {
			world = append(world, pickle.Pair{Key: rank, Value: ranks[rank]})
		}
		return world
	}
	if text("rdzv_name") == networkCheck {
		waiting := 0
		switch {
		case ask.class == "JoinRendezvousRequest":
			f.check.join(number("node_rank"), number("local_world_size"))
			f.waiting = map[int]int{} // as the master does
		case f.stop:
			waiting = -1
		case f.check.open:
			waiting = len(f.check.agents)
		}
		return &message{"RendezvousState", []attr{
			{"world", worldOf(f.check.world)}, {"waiting_num", waiting}, {"round", f.check.rounds}, {"group", 3},
		}}
	}
	switch ask.class {
	case "NetworkReadyRequest", "StragglerExistRequest":
		return f.check.result(ask.class != "NetworkReadyRequest")
	case "RunningNodesRequest":
		return &message{"RunningNodes", []attr{{"nodes", slices.Repeat([]any{message{"NodeMeta", []attr{{"rank", 0}}}}, f.check.running)}}}
	case "JoinRendezvousRequest":
		if _, waits := f.waiting[number("node_rank")]; !waits {
			f.waiting[number("node_rank")] = number("local_world_size")
			f.world = map[int]int{}
		}
		return state(0, nil)
	case "CommWorldRequest":
		if len(f.world) == 0 && len(f.waiting) >= f.min && len(f.waiting) <= f.max {
			f.world, f.waiting = f.waiting, map[int]int{}
			f.round++
		}
		return state(0, worldOf(f.world))
	case "WaitingNodeNumRequest":
		if f.stop {
			return state(-1, nil)
		}
		return state(len(f.waiting), nil)
	case "KeyValuePair":
		key, value := text("key"), ask.attrs["value"]
		switch text("op") {
		case "set":
			f.kv[key] = value
			return nil
		case "add":
			n, _ := f.kv[key].(int64)
			d, _ := value.(int64)
			f.kv[key] = n + d
		}
		value, there := f.kv[key]
		if !there {
			value = []byte{}
		}
		return &message{"KeyValuePair", []attr{{"key", key}, {"value", value}, {"op", ""}}}
	case "KeyValuePairs":
		items, _ := ask.dict("kvs")
		var found dict
		for _, p := range items {
			key, _ := p.Key.(string)
			value, there := f.kv[key]
			if !there {
				found = nil
				break
			}
			found = append(found, pickle.Pair{Key: key, Value: value})
		}
		return &message{"KeyValuePairs", []attr{{"kvs", found}, {"op", ""}}}
	case "PreCheckRequest":
		now := f.state[0]
		if len(f.state) > 1 {
			f.state = f.state[1:]
		}
		return &message{"PreCheckResponse", []attr{{"status", now}, {"reason", ""}}}
	case "HeartBeat":
		act := message{"DiagnosisAction", []attr{{"action_cls", "NoAction"}, {"action_content", "{}"}}}
		if len(f.actions) > 0 {
			act, f.actions = f.actions[0], f.actions[1:]
		}
		return &message{"HeartbeatResponse", []attr{{"action", act}}}
	case "ElasticRunConfigRequest":
		return &message{"ElasticRunConfig", []attr{{"configs", dict{{Key: "network_check", Value: ""}}}}}
	}
	return nil
}
