package checkpointd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/peertls"
	"muster/internal/testutil"
	"muster/internal/wire"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// hurt is what somebody who has the token asks for, in the form of one frame.
type hurt struct {
	name string
	text string
}

// closed waits until the other end has closed a connection, and whatever it says meanwhile.
func closed(t *testing.T, conn net.Conn, what string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: the connection was not closed", what)
	}
}

// everything are the names and texts below a directory.
func everything(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		text := []byte(nil)
		if d.Type().IsRegular() {
			if text, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		all[path] = string(text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// victim makes a directory that no job has anything to do with. It is to be as it was when the test ends.
func victim(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "victim")
	for _, path := range []string{"a/b", ".muster/stage-x", ".muster/trash-y"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a/b/thesis"), []byte("chapter 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := everything(t, dir)
	t.Cleanup(func() {
		after := everything(t, dir)
		for path, text := range before {
			if after[path] != text {
				t.Errorf("%s was touched", path)
			}
		}
		if len(after) != len(before) {
			t.Errorf("%d files and directories, %d before: %v", len(after), len(before), after)
		}
	})
	return dir
}

// TestHostileReports: a node that has the token tells the leader what no node of ours does. That costs it its
// connection, with a reason in the log; the others' work goes on.
func TestHostileReports(t *testing.T) {
	t.Parallel()
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	set := func(fields string) string {
		return `{"seq":1,"addr":"ADDR","sets":[{"dir":"` + elsewhere +
			`","shards":2,"begun":{"step":-1},"committed":{"step":-1},"next_at":{"step":-1}` + fields + `}]}`
	}
	shards := func(n, dir string) string {
		return fmt.Sprintf(`{"seq":1,"addr":"ADDR","sets":[{"dir":%q,"shards":%s,"saves":[0],"loads":1}]}`, dir, n)
	}
	for _, h := range []hurt{
		{"negative shards", shards("-1", "/d")},
		{"no shards", shards("0", "/d")},
		{"shards beyond memory", shards("2000000000", "/d")},
		{"shards beyond numbers", shards("1e30", "/d")},
		{"a relative directory", shards("2", "ckpt/../../..")},
		{"a directory above", shards("2", "/tmp/../etc")},
		{"the root", shards("2", "/")},
		{"no directory", shards("2", "")},
		{"a directory of two lines", shards("2", "/a\nb")},
		{"a shard beyond the set", set(`,"copies":[{"shard":2,"at":{"era":1,"step":1}}]`)},
		{"a negative shard", set(`,"saves":[-1]`)},
		{"a negative step", set(`,"copies":[{"shard":1,"at":{"era":1,"step":-7}}]`)},
		{"more shards than there are", set(`,"saves":[0,0,0]`)},
		{"loads", set(`,"loads":2000000000`)},
		{"negative loads", set(`,"loads":-1`)},
		{"an attempt above", set(`,"attempt":"../../x"`)},
		{"the next attempt above", set(`,"next":"../x"`)},
		{"a shard written beyond", set(`,"written":[{"shard":9}]`)},
		{"a digest that is none", set(`,"sums":[{"shard":0,"at":{"step":1},"digest":"abc"}]`)},
		{"wants beyond", set(`,"want":[{"shard":7,"at":{"step":1}}]`)},
		{"keeping less than none", set(`,"keep":-5`)},
		{"no JSON", `{"seq":1,`},
		{"deep JSON", strings.Repeat("[", 20_000)},
		{"another kind", `{"seq":"x"}`},
		{"another's address", `{"seq":1,"addr":"127.0.0.1:1/aaaaaaaaaaaaaaaaaaaa"}`},
		{"many sets", `{"seq":1,"addr":"ADDR","sets":[` + strings.Repeat(`{"dir":"/d","shards":1},`, 1000) + `{"dir":"/d","shards":1}]}`},
	} {
		t.Run(h.name, func(t *testing.T) {
			c := newNodesUnderTest(t, 1, nil)
			c.round++
			space := memstore.NewSpace()
			defer space.Close()
			board := space.Client()
			if err := say(t.Context(), board, nodeStateKey(1), nodeState{}); err != nil {
				t.Fatal(err)
			}
			if err := c.nodes[0].BeginRound(t.Context(), rendezvous.Round{GroupWorldSize: 2}, board, false); err != nil {
				t.Fatal(err)
			}
			us := peertls.NewIdentity("127.0.0.1:9")
			conn, err := dialPeer(t.Context(), c.nodes[0].cfg.domain(), c.nodes[0].participant.id, greeting{Op: "join", Rank: 1, From: us})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, framed(strings.ReplaceAll(h.text, "ADDR", string(us)))); err != nil {
				t.Fatal(err)
			}
			closed(t, conn, h.name)
			if !strings.Contains(c.logs[0].String(), peerMisbehaved) {
				t.Errorf("the log does not say so: %s", c.logs[0])
			}
			if _, err := os.Lstat(elsewhere); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it had a directory made: %v", err)
			}
			c.begin(0) // the agent is well
			c.save(1, true)
			c.onDisk(1)
			c.end(0)
		})
	}
}

// TestHostileDirectory: a node that has the token names a directory, and says what it has written there, in a form that
// is right. The leader's workers have named another one.
func TestHostileDirectory(t *testing.T) {
	dir := filepath.Join(victim(t), "a")
	c := newNodesUnderTest(t, 1, nil)
	c.round++
	space := memstore.NewSpace()
	defer space.Close()
	board := space.Client()
	if err := say(t.Context(), board, nodeStateKey(1), nodeState{}); err != nil {
		t.Fatal(err)
	}
	s := c.nodes[0]
	if err := s.BeginRound(t.Context(), rendezvous.Round{GroupWorldSize: 2}, board, false); err != nil {
		t.Fatal(err)
	}
	us := peertls.NewIdentity("127.0.0.1:9")
	conn, err := dialPeer(t.Context(), s.cfg.domain(), s.participant.id, greeting{Op: "join", Rank: 1, From: us})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	at := moment{Era: s.round << eraShift, Step: 1}
	r := planner.Report{Seq: 1, Addr: string(us), Sets: []planner.SetReport{{
		Key: planner.Key{Dir: dir, Shards: 1}, Copies: []planner.Copy{{At: at, Persist: true}}, Saves: []int{0}, Begun: at,
		Committed: planner.Never, NextAt: planner.Never, Keep: 1, Loads: 1,
	}}}
	if err := wire.Write(conn, r); err != nil {
		t.Fatal(err)
	}
	var v planner.View
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	for len(v.Sets) == 0 {
		if err := wire.Read(conn, peerLimit, &v); err != nil {
			t.Fatal(err)
		}
	}
	if v.Sets[0].Open || v.Sets[0].Write != nil {
		t.Errorf("the directory was opened: %+v", v.Sets[0])
	}
	w := dial(t, s).hello(c.dir, 0, 1) // a worker of the leader comes
	w.save(3, 0, size, false)
	w.close()
	s.RoundOver("a test") // its workers have ended: nobody is to name it any more
	for v.Sets == nil || v.Sets[0].Dir != dir && v.Sets[len(v.Sets)-1].Dir != dir ||
		!slices.ContainsFunc(v.Sets, func(s planner.SetView) bool { return s.Dir == dir && s.Err != "" }) {
		v = planner.View{}
		if err := wire.Read(conn, peerLimit, &v); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHostileResults: what a node says it has written leads elsewhere. The leader neither looks there nor renames
// anything.
func TestHostileResults(t *testing.T) {
	dir := victim(t)
	s, _ := testService(t, nil)
	ours := filepath.Join(t.TempDir(), "ckpt")
	s.dirs[ours] = true
	a := planner.Action{Kind: planner.Commit, Key: planner.Key{Dir: ours, Shards: 1}, At: moment{Step: 1}, Attempt: "aaaa"}
	file := func(path string) File {
		return File{Shard: 0, Path: path, Size: 9, CRC32C: "00000000", Attempt: "aaaa"}
	}
	good := partResult{StepDir: "1", Files: []File{file("1/rank_0.pt")}, Trackers: [][2]string{{"latest", "1"}}}
	if err := good.check(s, &a, 0); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*partResult){
		"a step above":                  func(r *partResult) { r.StepDir = ".." },
		"a step that is the directory":  func(r *partResult) { r.StepDir = "." },
		"our own directory":             func(r *partResult) { r.StepDir = ".muster" },
		"an absolute step":              func(r *partResult) { r.StepDir = dir },
		"no step":                       func(r *partResult) { r.StepDir = "" },
		"a file above":                  func(r *partResult) { r.Files[0].Path = "1/../../x" },
		"a file beside":                 func(r *partResult) { r.Files[0].Path = "2/x" },
		"an absolute file":              func(r *partResult) { r.Files[0].Path = dir + "/a/b/thesis" },
		"an absolute file, elsewhere":   func(r *partResult) { r.Files[0].Path, r.Elsewhere = dir+"/a/b/thesis", true },
		"a file above, elsewhere":       func(r *partResult) { r.Files[0].Path, r.Elsewhere = "../victim/a/b/thesis", true },
		"our own manifest":              func(r *partResult) { r.Files[0].Path, r.Elsewhere = ".muster/1.json", true },
		"the tracker as file":           func(r *partResult) { r.Files[0].Path, r.Elsewhere = trackerName, true },
		"a tracker above":               func(r *partResult) { r.Trackers[0][0] = "../latest" },
		"an absolute tracker":           func(r *partResult) { r.Trackers[0][0] = dir + "/x" },
		"our own tracker":               func(r *partResult) { r.Trackers[0][0] = trackerName },
		"another shard's file":          func(r *partResult) { r.Files[0].Shard = 1 },
		"another attempt's file":        func(r *partResult) { r.Files[0].Attempt = "../x" },
		"a negative size":               func(r *partResult) { r.Files[0].Size = -1 },
		"a checksum that is none":       func(r *partResult) { r.Files[0].CRC32C = "/../../x" },
		"a tracker of so many bytes":    func(r *partResult) { r.Trackers[0][1] = strings.Repeat("x", 1<<20) },
		"a file with a name of no file": func(r *partResult) { r.Files[0].Path = "1/a\x00b" },
	} {
		bad := partResult{StepDir: good.StepDir, Files: slices.Clone(good.Files), Trackers: slices.Clone(good.Trackers)}
		change(&bad)
		if err := bad.check(s, &a, 0); err == nil {
			t.Errorf("%s was taken", name)
		}
		text, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		l := &leading{s: s, ctx: t.Context()}
		a.Results = []json.RawMessage{text}
		if err := l.commit(a); err == nil {
			t.Errorf("%s was committed", name)
		}
	}
	a.Dir = dir
	own := s.participant
	s.participant = &participant{ended: true} // its workers
	defer func() { s.mu.Lock(); s.participant = own; s.mu.Unlock() }()
	if err := (&leading{s: s, ctx: t.Context()}).commit(a); !errors.Is(err, errNotNamed) {
		t.Errorf("a directory that nobody has named: %v", err)
	}
	if _, err := os.Lstat(ours); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

// TestHostileJoins: who has the token takes no rank that there is not, and nobody's place.
func TestHostileJoins(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, true)
	c.onDisk(1)
	s := c.nodes[0]
	for _, g := range []greeting{
		{Rank: -1}, {Rank: 2}, {Rank: 1 << 40}, {Rank: 1}, {Rank: 0}, {Rank: 1, From: "x"}, {Rank: 1, Round: -1},
	} {
		g.Op = "join"
		if g.From == "" {
			g.From = peertls.NewIdentity("127.0.0.1:9")
		}
		conn, err := dialPeer(t.Context(), s.cfg.domain(), s.participant.id, g)
		if err != nil {
			t.Fatal(err)
		}
		closed(t, conn, fmt.Sprint(g.Rank))
		conn.Close()
	}
	c.save(2, true) // both are members still
	c.onDisk(2)
	c.end(0, 1)
}

// TestHostileViews: whoever leads has the token, and asks a node for what no leader of ours does.
func TestHostileViews(t *testing.T) {
	victim(t) // beside the directories of checkpoints
	key := func(c *nodesUnderTest) string {
		return fmt.Sprintf(`"dir":%q,"shards":1,"next_at":{},"committed":{"step":-1},"failed_at":{}`, c.dir)
	}
	for name, set := range map[string]func(*nodesUnderTest) string{
		"an attempt above": func(c *nodesUnderTest) string {
			return `{` + key(c) + `,"write":{"at":{"era":1,"step":1},"attempt":"../../../victim/a","shards":[0]}}`
		},
		"no attempt": func(c *nodesUnderTest) string {
			return `{` + key(c) + `,"write":{"at":{"era":1,"step":1},"attempt":"","shards":[0]}}`
		},
		"shards that are none": func(c *nodesUnderTest) string {
			return `{` + key(c) + `,"write":{"at":{"step":1},"attempt":"a","shards":[-1]}}`
		},
		"negative shards": func(*nodesUnderTest) string {
			return `{"dir":"/d","shards":-1,"fetch":[{"shard":0,"at":{"step":1},"from":0}]}`
		},
		"many shards": func(*nodesUnderTest) string {
			return `{"dir":"/d","shards":999999999,"fetch":[{"shard":0,"at":{"step":1},"from":0}]}`
		},
		"a directory above": func(*nodesUnderTest) string {
			return `{"dir":"/d/../e","shards":1,"fetch":[{"shard":0,"at":{"step":1},"from":0}]}`
		},
		"from nobody": func(c *nodesUnderTest) string {
			return `{` + key(c) + `,"fetch":[{"shard":0,"at":{"step":1},"from":99}]}`
		},
		"a head of a path": func(c *nodesUnderTest) string { return `{` + key(c) + `,"open":true,"head":"../../x"}` },
		"a decision from nobody": func(c *nodesUnderTest) string {
			return `{` + key(c) + `,"open":true,"decisions":[{"source":"memory","at":{"step":1},"from":[77]}]}`
		},
		"a decision of nothing": func(c *nodesUnderTest) string {
			return `{` + key(c) + `,"open":true,"decisions":[{"source":"exec","at":{"step":1}}]}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newNodesUnderTest(t, 1, nil)
			s := c.nodes[0]
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			id := peertls.NewIdentity(l.Addr().String())
			a := s.cfg.domain().Acceptor(id)
			space := memstore.NewSpace()
			defer space.Close()
			board := space.Client()
			if err := say(t.Context(), board, leaderKey, roundCall{Addr: string(id), Lineage: 7, Era: firstEra(1, 1)}); err != nil {
				t.Fatal(err)
			}
			joined := make(chan error, 1)
			go func() {
				joined <- s.BeginRound(t.Context(), rendezvous.Round{GroupRank: 1, GroupWorldSize: 2}, board, false)
			}()
			raw, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			conn, err := a.Server(t.Context(), raw)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-joined; err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			s.dirs[c.dir] = true
			s.sets = append(s.sets, newSet(c.dir, 1))
			s.mu.Unlock()
			if _, err := io.WriteString(conn, framed(`{"seen":1,"addrs":["",""],"sets":[`+set(c)+`]}`)); err != nil {
				t.Fatal(err)
			}
			closed(t, conn, name)
			if !strings.Contains(c.logs[0].String(), "says what cannot be") {
				t.Errorf("the log does not say so: %s", c.logs[0])
			}
		})
	}
}

// TestHostileCopies: a copy that is not what the node that made it has is not used, and named; another node's is, where
// there is one.
func TestHostileCopies(t *testing.T) {
	c := newNodesUnderTest(t, 3, nil)
	c.begin(0, 1, 2)
	c.save(1, false)
	at := moment{Era: c.nodes[0].round << eraShift, Step: 1}
	get := func(n, from int) {
		s := c.nodes[n]
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sets[0].fetchErr = nil
		s.fetchLocked(s.sets[0], 0, at, from)
		s.notifyLocked()
	}
	await := func(n int, what string, done func(*set) bool) {
		t.Helper()
		testutil.Eventually(t, 20*time.Second, what, func() bool {
			s := c.nodes[n]
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.participant.addrs) == 3 && done(s.sets[0])
		})
	}
	here := func(st *set) bool { return st.slots.at(0, at) != nil }
	for n := range 3 {
		await(n, "the addresses of all", func(*set) bool { return !slices.Contains(c.nodes[n].participant.addrs, "") })
	}
	get(1, 0)
	await(1, "a copy", here)

	s := c.nodes[0] // somebody changes what it has, so that it does not notice
	s.mu.Lock()
	m := s.sets[0].mem[s.sets[0].slots.at(0, at)]
	m.put32(headerBlocks, 0)
	m.bytes[headerSize+77] ^= 16
	s.mu.Unlock()
	get(2, 0)
	await(2, "the copy is found to be another one", func(st *set) bool { return st.fetchErr != nil })
	if text := c.logs[2].String(); !strings.Contains(text, "shard 0 of step 1 from "+s.participant.id.Addr()) ||
		!strings.Contains(text, "SHA-256") {
		t.Errorf("the log does not name it: %s", text)
	}
	await(2, "it is not here", func(st *set) bool { return !here(st) && len(st.bad) == 1 })
	get(2, 0)
	await(2, "it is not asked for again", func(st *set) bool { return st.fetchErr != nil && len(st.fetching) == 0 && !here(st) })
	get(2, 1)
	await(2, "another node's copy", here)
	testutil.Eventually(t, 20*time.Second, "the leader gives the first one up", func() bool {
		l := c.nodes[0].participant.leads()
		l.mu.Lock()
		defer l.mu.Unlock()
		return !slices.Contains(l.planner.Holders(planner.Key{Dir: c.dir, Shards: 3}, 0, at), 0)
	})
}

// TestHostileHeads: what comes before a copy is bounded.
func TestHostileHeads(t *testing.T) {
	good := copyHead{Used: 100, MetaOff: headerSize + 50, MetaLen: 50, Parts: 1}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*copyHead){
		"a negative size":    func(h *copyHead) { h.Used = -1 },
		"a size beyond":      func(h *copyHead) { h.Used = 1 << 62 },
		"a list in front":    func(h *copyHead) { h.MetaOff = 0 },
		"a list behind":      func(h *copyHead) { h.MetaOff = headerSize + 51 },
		"a list that wraps":  func(h *copyHead) { h.MetaLen = 1<<63 - 1 },
		"a negative list":    func(h *copyHead) { h.MetaLen = -1 },
		"no parts":           func(h *copyHead) { h.Parts = 0 },
		"many parts":         func(h *copyHead) { h.Parts = 1 << 30 },
		"an error of escape": func(h *copyHead) { h.Error = "\x1b[2J" },
	} {
		bad := good
		change(&bad)
		if err := bad.check(); err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, used := range []int64{0, 1, digestBlock - 1, digestBlock, digestBlock + 1, 7 * digestBlock, 7*digestBlock + 5, copyLimit} {
		for parts := 1; parts <= maxParts; parts++ {
			end := int64(0)
			for part := range parts {
				from, to := partOf(used, part, parts)
				if from != end || to < from || from%digestBlock != 0 && from != used {
					t.Errorf("part %d of %d of %d bytes is [%d, %d)", part, parts, used, from, to)
				}
				end = to
			}
			if end != used {
				t.Errorf("%d parts of %d bytes end at %d", parts, used, end)
			}
		}
	}
}

// TestManyPeersWithoutToken: connections that prove nothing leave room for the nodes of the job.
func TestManyPeersWithoutToken(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	for range 500 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
		conn, err := d.Dial("tcp", c.nodes[0].participant.id.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	c.begin(0, 1)
	c.save(1, true)
	c.onDisk(1)
	if n := c.nodes[0].participant.listener.Unproven(); n > 16 {
		t.Errorf("%d connections are unproven", n)
	}
	c.end(0, 1)
}

// FuzzView: a frame from a leader that is no view harms nobody.
func FuzzView(f *testing.F) {
	f.Add(`{"seen":1,"addrs":["a","b"],"sets":[{"dir":"/d","shards":2,` +
		`"write":{"at":{"step":1},"attempt":"../x","shards":[5]},"fetch":[{"shard":-1,"from":9}]}]}`)
	f.Add(`{"addrs":[""],"sets":[{"dir":"/d","shards":1,"open":true,` +
		`"decisions":[{"source":"memory","at":{"step":1},"from":[0]}],"complete":[{"step":1}],"pin":[{"step":-1}]}]}`)
	s := &Service{cfg: Config{disk: noDir{}}, dirs: map[string]bool{}, sessions: map[*session]bool{}, changed: make(chan struct{})}
	s.participant = &participant{s: s}
	f.Fuzz(func(t *testing.T, text string) {
		var v planner.View
		if wire.Read(strings.NewReader(framed(text)), peerLimit, &v) != nil || v.Check() != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sets, s.retired = nil, nil
		for i := range v.Sets {
			v.Sets[i].Fetch = nil // it would connect
			if v.Sets[i].Shards < 1<<10 {
				s.sets = append(s.sets, newSet(v.Sets[i].Dir, v.Sets[i].Shards))
			}
			v.Sets[i].Verify = nil
			s.carryOutLocked(&v.Sets[i])
			if o := v.Sets[i].Write; o != nil && !planner.IsAttempt(o.Attempt) {
				t.Errorf("attempt %q was taken", o.Attempt)
			}
		}
	})
}

// FuzzGreeting: no bytes of a node that has the token are taken for a greeting that could do harm.
func FuzzGreeting(f *testing.F) {
	f.Add(`{"op":"join","rank":1,"round":0,"from":"127.0.0.1:1/aaaaaaaaaaaaaaaa"}`)
	f.Add(`{"op":"fetch","dir":"/d","shards":2,"at":{"era":1,"step":1},"shard":-1}`)
	f.Add(`{"op":"find","dir":"/d/..","shards":-2,"path":"x"}`)
	f.Fuzz(func(t *testing.T, text string) {
		var g greeting
		if wire.Read(strings.NewReader(framed(text)), greetingLimit, &g) != nil || g.check() != nil {
			return
		}
		if g.Op != "join" && (g.Shard < 0 || g.Shard >= g.Shards || g.Shards > planner.MaxShards || !filepath.IsAbs(g.Dir) ||
			g.Part >= max(1, g.Parts)) || g.Rank < 0 && g.Op == "join" {
			t.Errorf("%+v was taken", g)
		}
	})
}

// FuzzCopyHead: no head leads out of the copy.
func FuzzCopyHead(f *testing.F) {
	f.Add(`{"used":100,"meta_offset":4096,"meta_length":100,"parts":1}`)
	f.Add(`{"used":-1,"meta_offset":9223372036854775807,"meta_length":9223372036854775807,"parts":1000}`)
	f.Fuzz(func(t *testing.T, text string) {
		var h copyHead
		if wire.Read(strings.NewReader(framed(text)), greetingLimit, &h) != nil || h.check() != nil {
			return
		}
		if h.MetaOff < headerSize || h.MetaOff+h.MetaLen > headerSize+h.Used || h.Used > copyLimit {
			t.Errorf("%+v was taken", h)
		}
		if h.Used < 1<<30 {
			for part := range h.Parts {
				if from, to := partOf(h.Used, part, h.Parts); from < 0 || to < from || to > h.Used {
					t.Errorf("part %d of %+v is [%d, %d)", part, h, from, to)
				}
			}
		}
	})
}

// FuzzPartResult: what another node says it has written leads nowhere else.
func FuzzPartResult(f *testing.F) {
	f.Add(`{"files":[{"shard":0,"path":"1/rank_0.pt","size":9,"crc32c":"00000000","attempt":"aaaa"}],` +
		`"step_dir":"1","trackers":[["latest","1"]]}`)
	f.Add(`{"files":[{"path":"../x"}],"step_dir":".."}`)
	f.Add(`{"elsewhere":true,"files":[{"path":"/etc/passwd","crc32c":"00000000","attempt":"aaaa"}],"step_dir":"1"}`)
	s := &Service{dirs: map[string]bool{}, places: map[string]bool{}}
	a := planner.Action{Key: planner.Key{Dir: "/d", Shards: 1}, Attempt: "aaaa"}
	f.Fuzz(func(t *testing.T, text string) {
		var r partResult
		if json.Unmarshal([]byte(text), &r) != nil || r.check(s, &a, 0) != nil {
			return
		}
		c := &commitment{dir: a.Dir, attempt: a.Attempt, stepDir: r.StepDir}
		for i := range r.Files {
			for _, path := range []string{
				c.stagedPath(&r.Files[i], r.Elsewhere), r.Files[i].place(a.Dir),
				filepath.Join(a.Dir, r.StepDir),
			} {
				if rel, err := filepath.Rel(a.Dir, path); err != nil || !filepath.IsLocal(rel) || rel == "." {
					t.Errorf("%q leads to %s", r.Files[i].Path, path)
				}
			}
		}
	})
}
