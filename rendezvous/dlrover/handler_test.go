package dlrover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/pickle"
	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/tcpstore"
)

// node is a node of ours at a fake master.
type node struct {
	*Handler
	t    *testing.T
	rank int
}

func config(f *fake, c *Client, rank int) Config {
	return Config{
		Client: c, Min: f.min, Max: f.max, Unit: 1, NodeRank: rank, Node: fmt.Sprintf("node-%d", rank), Addr: "127.0.0.1",
		JoinTimeout: time.Minute, LastCall: time.Second, Each: 50 * time.Millisecond, Log: zerolog.Nop(),
		Listen: func(context.Context) (Server, error) {
			return tcpstore.Listen(tcpstore.ServerConfig{Hosts: []string{"127.0.0.1"}, Private: membership.KeyPrefix})
		},
		Dial: func(ctx context.Context, addr string) (Conn, error) {
			return tcpstore.Dial(ctx, addr, tcpstore.ClientConfig{Private: membership.KeyPrefix})
		},
	}
}

func open(t *testing.T, f *fake, rank int) *node {
	t.Helper()
	h, err := Open(t.Context(), config(f, f.client(t, rank), rank))
	if err != nil {
		t.Fatal(err)
	}
	n := &node{h, t, rank}
	t.Cleanup(n.close)
	return n
}

func (n *node) close() {
	if n.Handler == nil {
		return
	}
	if err := n.Close(); err != nil {
		n.t.Errorf("node %d: %v", n.rank, err)
	}
	n.Handler = nil
}

// next has all nodes meet, and returns their rounds in the same order.
func next(t *testing.T, nodes ...*node) []rendezvous.Round {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rounds := make([]rendezvous.Round, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			var err error
			if rounds[i], err = n.Next(ctx, rendezvous.Member{Role: "trainer", LocalWorldSize: n.rank + 1}); err != nil {
				t.Errorf("node %d: %v", n.rank, err)
			}
		})
	}
	if wg.Wait(); t.Failed() {
		t.FailNow()
	}
	return rounds
}

// verdict waits for what a round's handler says of its end.
func verdict(t *testing.T, r rendezvous.Round) rendezvous.Verdict {
	t.Helper()
	select {
	case v := <-r.Verdict():
		return v
	case <-time.After(time.Minute):
		t.Fatal("no verdict")
		return rendezvous.Verdict{}
	}
}

func tally(t *testing.T, r rendezvous.Round, want rendezvous.Tally) {
	t.Helper()
	select {
	case got := <-r.Tallied():
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody has counted the workers")
	}
}

// Nodes that are all ours share a store that the first of them serves, and the master hears how each has ended.
func TestRoundOfOurs(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	f.state = []string{"CHECKING", checkFailed, checkPassed}
	a, b := open(t, f, 0), open(t, f, 1)
	rounds := next(t, a, b)
	for i, r := range rounds {
		if r.Number != 0 || r.GroupRank != i || r.GroupWorldSize != 2 || r.BaseRank != i || r.WorldSize != 3 || r.BaseRoleRank != i ||
			r.RoleWorldSize != 3 || !r.AgentStore || r.MasterAddr != "127.0.0.1" || r.MasterPort != rounds[0].MasterPort ||
			r.HostRank != 0 {
			t.Errorf("node %d: %+v", i, r)
		}
	}
	ctx := t.Context()
	if err := rounds[1].Board().Set(ctx, "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if got, err := rounds[0].Board().Get(ctx, "k"); err != nil || string(got) != "v" {
		t.Errorf("%q, %v", got, err)
	}
	for i, r := range rounds {
		if got, err := r.Agree(ctx, []byte{byte('a' + i)}); err != nil || string(got) != "a" {
			t.Errorf("node %d agrees on %q, %v", i, got, err)
		}
		if err := errors.Join(r.Report(ctx, []byte("report"+fmt.Sprint(i))), r.Tally(ctx, rendezvous.Tally{Ended: i + 1})); err != nil {
			t.Error(err)
		}
	}
	if all, err := rounds[1].Reports(ctx); err != nil || len(all) != 2 || string(all[0]) != "report0" {
		t.Errorf("%q, %v", all, err)
	}
	tally(t, rounds[0], rendezvous.Tally{Ended: 3})
	a.Progress(17, time.Now())
	end := rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}
	if v, err := rounds[0].Propose(ctx, end); err != nil || v.Kind != rendezvous.Succeed {
		t.Errorf("%+v, %v", v, err)
	}
	if v := verdict(t, rounds[1]); v.Kind != rendezvous.Succeed {
		t.Errorf("%+v", v)
	}
	testutil.Eventually(t, time.Minute, "heartbeats, resources and steps arrive",
		func() bool { return f.heard("HeartBeat") && f.heard("ResourceStats") && f.heard("GlobalStep") })
	a.close()
	b.close()
	if !f.heard("NodeEvent WAIT_PRE_CHECK") || !f.heard("NodeEvent SUCCEEDED_EXITED") || f.heard("NodeEvent FAILED_EXITED") {
		t.Errorf("the master has heard %q", f.said)
	}
}

// A node whose workers have failed for good ends alone; the others meet the one that the master puts in its place.
func TestNodeIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	a, b := open(t, f, 0), open(t, f, 1)
	rounds := next(t, a, b)
	again := rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 2, Status: 5, Restarts: 1, Message: "rank 2"}
	if v, err := rounds[1].Propose(t.Context(), again); err != nil || v.Kind != rendezvous.Restart || v.Node != "node-1" {
		t.Fatalf("%+v, %v", v, err)
	}
	if v := verdict(t, rounds[0]); v.Kind != rendezvous.Restart || v.Restarts != 1 {
		t.Errorf("%+v", v)
	}
	if !f.heard(`NodeFailure process_error {"2":{`) || !strings.Contains(strings.Join(f.said, "\n"), `"exitcode":5,"local_rank":1`) {
		t.Errorf("the master has heard %q", f.said)
	}
	rounds = next(t, a, b)
	if rounds[0].Number != 1 || rounds[0].Restarts != 1 || rounds[1].Restarts != 1 {
		t.Errorf("%+v", rounds)
	}
	fail := rendezvous.Verdict{Kind: rendezvous.Fail, Rank: 1, Status: 5, Message: "rank 1 ended with status 5"}
	if v, err := rounds[1].Propose(t.Context(), fail); err != nil || v.Kind != rendezvous.Fail {
		t.Fatalf("%+v, %v", v, err)
	}
	if v := verdict(t, rounds[0]); v.Kind != rendezvous.Reassemble || v.Reason != "NodeReplaced" ||
		!strings.Contains(v.Message, "status 5") {
		t.Errorf("%+v", v)
	}
	a.leave() // who has parted is not kept waiting by what nobody answers any more
	if _, err := rounds[1].Board().Get(t.Context(), "nobody says this"); !errors.Is(err, rendezvous.ErrStoreClosed) {
		t.Error(err)
	}
	b.close()
	if !f.heard("NodeEvent FAILED_EXITED") {
		t.Errorf("the master has heard %q", f.said)
	}
	rounds = next(t, a, open(t, f, 1))
	if rounds[1].Number != 2 || rounds[1].Restarts != 1 { // who comes anew learns what the job has had
		t.Errorf("%+v", rounds[1])
	}
}

// The loss of the node that serves the store ends the round for the others, and so does a silent one.
func TestNodeIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(a, b *node){
		"host": func(a, _ *node) { _ = a.server.Close() },
		"node": func(_, b *node) { b.leave() }, // its beats end with the round
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, 2, 2)
			a, b := open(t, f, 0), open(t, f, 1)
			a.cfg.LostAfter = 3 * time.Second
			b.cfg.LostAfter = a.cfg.LostAfter
			rounds := next(t, a, b)
			lose(a, b)
			other := rounds[map[string]int{"host": 1, "node": 0}[name]]
			if v := verdict(t, other); v.Kind != rendezvous.Reassemble || v.Reason != "NodeLost" {
				t.Errorf("%+v", v)
			}
		})
	}
}

// agent is an agent of DLRover at the fake master.
func agent(t *testing.T, f *fake, rank, workers int) *Client {
	t.Helper()
	c := f.client(t, rank)
	if err := c.join(t.Context(), training, rank, workers); err != nil {
		t.Fatal(err)
	}
	return c
}

// In a round with an agent of DLRover each node decides for itself, and all wait for each other at the end.
func TestMixedRound(t *testing.T) {
	t.Parallel()
	for _, theirs := range []int{0, 1} {
		t.Run(fmt.Sprint("agent ", theirs), func(t *testing.T) {
			t.Parallel()
			f := newFake(t, 2, 2)
			c, ctx := agent(t, f, theirs, 4), t.Context()
			if theirs == 0 {
				if err := errors.Join(c.set(ctx, torchKey(1, keyMasterAddr), []byte("10.0.0.7")),
					c.set(ctx, torchKey(1, keyMasterPort), []byte("4711"))); err != nil {
					t.Fatal(err)
				}
			}
			n := open(t, f, 1-theirs)
			r := next(t, n)[0]
			if r.AgentStore || r.Board() != nil || r.HostRank != -1 || r.WorldSize != 4+n.rank+1 {
				t.Errorf("%+v", r)
			}
			if theirs == 0 && (r.MasterAddr != "10.0.0.7" || r.MasterPort != 4711 || r.BaseRank != 4) {
				t.Errorf("%+v", r)
			}
			if port, err := c.lookUp(ctx, torchKey(1, keyMasterPort)); theirs == 1 &&
				(err != nil || string(port) != fmt.Sprint(r.MasterPort)) {
				t.Errorf("the agent is told port %q, %v, want %d", port, err, r.MasterPort)
			}
			if err := r.Tally(ctx, rendezvous.Tally{Ended: 2}); err != nil {
				t.Fatal(err)
			}
			testutil.Eventually(t, time.Minute, "our node waits in the barrier", func() bool {
				n, err := c.add(ctx, torchKey(1, keyBarrier), 0)
				return err == nil && n == 1
			})
			if err := c.set(ctx, torchKey(1, keyPassed), []byte("x")); err != nil {
				t.Fatal(err)
			}
			tally(t, r, rendezvous.Tally{Ended: 2})
			agent(t, f, theirs, 4) // it meets again: its workers have failed
			if v := verdict(t, r); v.Kind != rendezvous.Reassemble || v.Reason != "PeersChanged" {
				t.Errorf("%+v", v)
			}
		})
	}
}

func want(class, content string) message {
	return message{"DiagnosisAction", []attr{{"action_cls", class}, {"action_content", content}}}
}

// What the master wants is done, in a round and out of one; what is not known is not.
func TestActions(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, 1)
	n := open(t, f, 0)
	r := next(t, n)[0]
	f.mu.Lock()
	f.actions = []message{
		want("EventAction", `{"action_type":"event","event_type":"x","event_labels":{"device":3}}`), want("Unknown", `{}`),
		want("NodeAction", `]`),
		want("NodeAction", `{"action_type":"restart_worker","instance":-2}`),
	}
	f.mu.Unlock()
	if v := verdict(t, r); v.Kind != rendezvous.Reassemble || v.Reason != "MasterRestart" {
		t.Errorf("%+v", v)
	}
	if !f.heard("Event x") {
		t.Errorf("the master has heard %q", f.said)
	}
	r = next(t, n)[0]
	relaunch := want("NodeAction", `{"action_type":"relaunch_worker"}`)
	f.mu.Lock()
	f.actions = []message{relaunch}
	f.mu.Unlock()
	if v := verdict(t, r); v.Kind != rendezvous.Fail || v.Reason != "MasterRelaunch" || v.Status != errhint.TryAgain {
		t.Errorf("%+v", v)
	}
	g := newFake(t, 2, 2)
	m := open(t, g, 0)
	g.mu.Lock()
	g.actions = []message{relaunch}
	g.mu.Unlock()
	_, err := m.Next(t.Context(), rendezvous.Member{LocalWorldSize: 1})
	if over, is := errors.AsType[*rendezvous.OverError](err); !is || over.Verdict.Reason != "MasterRelaunch" {
		t.Errorf("%v", err)
	}
}

// A master that is away keeps workers running. Who wants a round then gives up in the end, and so does who waits alone.
func TestMasterIsAway(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	f := newFake(t, 1, 1)
	n := open(t, f, 0)
	r := next(t, n)[0]
	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
	select {
	case v := <-r.Verdict():
		t.Errorf("%+v", v)
	case <-time.After(2500 * time.Millisecond): // heartbeats and looks fail meanwhile
	}
	if _, err := n.Next(t.Context(), rendezvous.Member{LocalWorldSize: 1}); errhint.CodeOf(err) != errhint.TryAgain ||
		errhint.Of(err) == "" {
		t.Errorf("%v", err)
	}
	f.mu.Lock()
	f.down, f.min, f.max = false, 2, 2
	f.mu.Unlock()
	n.cfg.JoinTimeout = 100 * time.Millisecond
	_, err := n.Next(t.Context(), rendezvous.Member{LocalWorldSize: 1})
	if errhint.CodeOf(err) != errhint.TryAgain || !strings.Contains(fmt.Sprint(err), "1 nodes wait, 1 to 1 are needed") ||
		!f.heard("NodeFailure rdzv_error") {
		t.Errorf("%v; the master has heard %q", err, f.said)
	}
	f.mu.Lock()
	f.stop = true
	f.mu.Unlock()
	_, err = n.Next(t.Context(), rendezvous.Member{LocalWorldSize: 1})
	if over, is := errors.AsType[*rendezvous.OverError](err); !is || over.Verdict.Kind != rendezvous.Fail ||
		over.Verdict.Reason != "JobStopping" {
		t.Errorf("%v", err)
	}
}

// A node that a check has excluded is to be replaced: the master hears that, and not that it has merely failed.
func TestExcludedNode(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, 1)
	n := open(t, f, 0)
	next(t, n)
	gone := []rendezvous.Exclusion{{Node: "other"}, {Node: "node-0", Reason: "its accelerator computes wrongly"}}
	if err := n.Exclude(t.Context(), gone, true); err != nil {
		t.Fatal(err)
	}
	n.close()
	if !f.heard("NodeFailure node_error CheckFailure") || !f.heard("NodeEvent NODE_CHECK_FAILED") || f.heard("NodeEvent FAILED_EXITED") {
		t.Errorf("the master has heard %q", f.said)
	}
}

// Answers that no master gives are refused by name, and nothing in them is run.
func TestHostileAnswers(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	state := func(world any) []byte {
		return pickled(message{"RendezvousState", []attr{{"world", world}, {"waiting_num", 0}, {"round", 1}, {"group", 0}}})
	}
	many := dict{}
	for i := range maxPlaces + 1 {
		many = append(many, pickle.Pair{Key: i, Value: 1})
	}
	whole := pickled(message{"RendezvousState", nil})
	var wg sync.WaitGroup
	defer wg.Wait()
	for name, answer := range map[string][]byte{
		`global "os.system" is not allowed`:         []byte("\x80\x04cos\nsystem\n\x8c\x04true\x85R."),
		`global "builtins.eval" is not allowed`:     []byte("\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R."),
		"it ends at offset":                         whole[:len(whole)-1],
		"want a RendezvousState":                    pickled(message{"KeyValuePair", nil}),
		"it is None":                                {0x80, 4, 'N', '.'},
		"PROTO must be first":                       []byte("no pickle at all"),
		"round of its RendezvousState is None":      pickled(message{"RendezvousState", nil}),
		"is no dict of node ranks":                  state(dict{{Key: 0, Value: -1}}),
		"want a str or an int":                      state(dict{{Key: 1.5, Value: 1}}),
		"world of its RendezvousState is a str":     state("x"),
		fmt.Sprint("limit is ", maxPlaces):          state(many),
		"int of 255 bytes":                          append([]byte{0x80, 4, 0x8a, 255}, make([]byte, 256)...),
		"cannot use the answer of DLRover's master": []byte("\x80\x04" + strings.Repeat("(", 1<<20) + "."),
	} {
		f := newFake(t, 1, 1)
		f.patient = 3 * time.Second
		f.answer = func(class string) []byte {
			if class == "CommWorldRequest" {
				return answer
			}
			return nil
		}
		n := open(t, f, 0)
		wg.Go(func() { // they are at once: each waits
			began := time.Now()
			_, err := n.Next(t.Context(), rendezvous.Member{LocalWorldSize: 1})
			if errhint.CodeOf(err) != errhint.TryAgain || !strings.Contains(fmt.Sprint(err), name) {
				t.Errorf("%s: %v", name, err)
			}
			if len(fmt.Sprint(err)) > 2000 || time.Since(began) > time.Minute {
				t.Errorf("%s: %d bytes after %v", name, len(fmt.Sprint(err)), time.Since(began))
			}
		})
	}
}

// What is pickled here is read back as it was.
func TestPickled(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{0, -1, 1<<31 - 1, -1 << 31, 1 << 31, -1 << 40, 1<<63 - 1} {
		v, err := pickle.Read(append(appendValue([]byte{pickle.OpProto, 3}, n), pickle.OpStop))
		if err != nil || v != any(n) {
			t.Errorf("%d: %v, %v", n, v, err)
		}
	}
	o, err := unpickled(pickled(message{"KeyValuePair", []attr{
		{"key", "ä"}, {"value", []byte{0, 255}}, {"f", 0.25}, {"b", true}, {"no", false}, {"none", nil}, {"list", []any{1, "x"}},
	}}), "KeyValuePair")
	if err != nil {
		t.Fatal(err)
	}
	list, _ := o.attrs["list"].(*pickle.List)
	if o.attrs["key"] != "ä" || string(o.attrs["value"].([]byte)) != "\x00\xff" || o.attrs["f"] != 0.25 || o.attrs["b"] != true ||
		o.attrs["no"] != false || o.attrs["none"] != nil || list == nil || !slices.Equal(list.Items, []any{int64(1), "x"}) {
		t.Errorf("%+v", o.attrs)
	}
}

// Any bytes in the place of a message of protobuf are read within bounds.
func TestFields(t *testing.T) {
	t.Parallel()
	first, content, err := fields([]byte("\x08\x01\x12\x02hi\x1a\x03abc\x21aaaaaaaa\x2dbbbb"), 3)
	if !first || string(content) != "abc" || err != nil {
		t.Errorf("%v %q %v", first, content, err)
	}
	for _, bad := range []string{"\x08", "\xff", "\x1a\x05abc", "\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x0b", "\x21a"} {
		if _, _, err := fields([]byte(bad), 3); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
