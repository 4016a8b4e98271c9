package meet

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/membership"
	"muster/rendezvous/tcpstore"
	"muster/test/drive"
)

// attacker stands between an agent and the store of a job, whose token it does not have: it reads along which keys
// there are, and has a connection of its own to the store.
type attacker struct {
	t     *testing.T
	relay net.Listener
	store string // host:port of the real store
	wg    sync.WaitGroup

	mu   sync.Mutex
	keys map[string]bool
	said map[string][][]byte // what agents have sent for each key, in its order: also what did not come to count
}

// newAttacker begins to relay what comes to its address, to the store at host:port.
func newAttacker(t *testing.T, store string) *attacker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &attacker{t: t, relay: l, store: store, keys: map[string]bool{}, said: map[string][][]byte{}}
	a.wg.Go(a.serve)
	t.Cleanup(func() { _ = l.Close(); a.wg.Wait() })
	return a
}

func (a *attacker) serve() {
	for {
		client, err := a.relay.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", a.store)
		if err != nil {
			_ = client.Close()
			continue
		}
		a.wg.Go(func() { a.pass(client, server); _ = server.Close() })
		a.wg.Go(func() { a.pass(server, client); _ = client.Close() })
	}
}

// pass copies bytes, and notes the keys of agents among them.
func (a *attacker) pass(from, to net.Conn) {
	defer func() { _ = to.Close() }()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		a.note(buf[:n])
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

// note finds strings that begin with muster/, behind their lengths. It returns the end of b, which goes on in what
// comes next.
func (a *attacker) note(b []byte) (rest []byte) {
	prefix := []byte(membership.KeyPrefix)
	for at := 0; ; at++ {
		i := bytes.Index(b[at:], prefix)
		if i < 0 {
			return bytes.Clone(b[max(at, len(b)-requestHead-len(prefix)+1):])
		}
		if at += i; at < requestHead {
			continue
		}
		request := b[at-requestHead:]
		if n := binary.LittleEndian.Uint64(request[1:]); n > 512 { // no key
			continue
		}
		key, more := chunk(request[1:])
		if key == nil {
			return bytes.Clone(request)
		}
		value, more := chunk(more)
		if request[0] == compareAndSet { // that was what it expects
			value, _ = chunk(more)
		}
		if wanted := request[0] == set || request[0] == compareAndSet; wanted && value == nil && len(request) < maxRequest {
			return bytes.Clone(request)
		}
		a.mu.Lock()
		a.keys[string(key)] = true
		if len(value) > 0 {
			a.said[string(key)] = append(a.said[string(key)], bytes.Clone(value))
		}
		a.mu.Unlock()
	}
}

// A request of the store is its number, a key behind its length, and maybe a value behind its length.
const (
	set, compareAndSet = 1, 2
	requestHead        = 1 + 8
	maxRequest         = 1 << 20 // of those that agents send
)

// chunk cuts bytes off that stand behind their length, nil where there are none: the layout of requests since PyTorch
// 2.2.
func chunk(b []byte) (chunk, rest []byte) {
	if len(b) < 8 {
		return nil, nil
	}
	n := binary.LittleEndian.Uint64(b)
	if n > uint64(len(b)-8) {
		return nil, nil
	}
	return b[8 : 8+n : 8+n], b[8+n:]
}

// connect reaches the store as anybody can.
func (a *attacker) connect(ctx context.Context) (*tcpstore.Client, error) {
	return tcpstore.Dial(ctx, a.store, tcpstore.ClientConfig{Private: membership.KeyPrefix})
}

// known are the keys that were seen so far.
func (a *attacker) known() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.keys))
}

// record reads what is under the keys that were seen, and those that every job has.
func (a *attacker) record(ctx context.Context, s *tcpstore.Client, into map[string][]byte) {
	for _, key := range append(a.known(), victim+"members", victim+"term", victim+"host", victim+"tickets") {
		if value := peekStore(ctx, s, key); value != nil {
			into[key] = value
		}
	}
}

// spy begins to record all that a job writes. What stands in the store for a moment only, at the end, it waits for. The
// returned function ends that, and returns what was recorded.
func (a *attacked) spy(ctx context.Context, s *tcpstore.Client) (recorded func() map[string][]byte) {
	all, last := map[string][]byte{}, map[string][]byte{}
	ctx, stop := context.WithCancel(ctx)
	var mu sync.Mutex
	var watching sync.WaitGroup
	watching.Go(func() {
		waits := map[string]bool{}
		for ctx.Err() == nil {
			a.record(ctx, s, all)
			for _, key := range lastWords(a.known()) {
				if waits[key] {
					continue
				}
				waits[key] = true
				watching.Go(func() {
					if value, err := s.Get(ctx, key); err == nil {
						mu.Lock()
						defer mu.Unlock()
						last[key] = value
					}
				})
			}
			time.Sleep(5 * time.Millisecond) // as often as the store is asked
		}
	})
	return func() map[string][]byte {
		stop()
		watching.Wait()
		maps.Copy(all, a.heard())
		maps.Copy(all, last)
		return all
	}
}

// victim begins the keys of the attacked job.
const victim = membership.KeyPrefix + "victim/"

var (
	roundOfKey = regexp.MustCompile(`^` + regexp.QuoteMeta(victim) + `[0-9]+\.[a-z0-9]+/`) // what keys of a round begin with
	nonceInKey = regexp.MustCompile(`\.[a-z0-9]{20,}`)
	agentInKey = regexp.MustCompile(`/(beat|left)/[a-z0-9]+`)
)

// kindOf is a key as it is in every incarnation of a job: without what is drawn by lot.
func kindOf(key string) string {
	return agentInKey.ReplaceAllString(nonceInKey.ReplaceAllString(key, ""), "/$1")
}

// lastWords are the keys by which rounds and jobs end, of the rounds that keys were seen of.
func lastWords(seen []string) (keys []string) {
	for _, key := range seen {
		if round := roundOfKey.FindString(key); round != "" {
			for _, name := range []string{"verdict", "decided", "reported", "agreed", "settled"} {
				keys = append(keys, round+name)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// heard is one of the values that agents have sent for each key.
func (a *attacker) heard() map[string][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	heard := map[string][]byte{}
	for key, values := range a.said {
		heard[key] = values[rand.IntN(len(values))]
	}
	return heard
}

// peekStore reads a key that may not be there, nil for none.
func peekStore(ctx context.Context, s *tcpstore.Client, key string) []byte {
	if there, err := s.Check(ctx, key); err != nil || !there {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	value, err := s.Get(ctx, key)
	if err != nil {
		return nil
	}
	return value
}

// assault is one way to change what is under a key. values are those of now.
type assault func(ctx context.Context, s *tcpstore.Client, key string, values map[string][]byte, past past)

// past is what was under keys once.
type past struct {
	before map[string][][]byte // in earlier incarnations of the job, by kind
	heard  map[string][]byte   // in this one, by key
}

// verdictLies are plain records that an agent may write, as somebody without the token can write them, too.
var verdictLies = []string{
	`{"kind":"succeed","reason":"WorkersSucceeded","rank":-1}`,
	`{"kind":"fail","reason":"WorkerFailed","rank":0,"status":99}`,
	`{"stage":"failed","err":"forged"}`,
	`{"agent":"x","node":"x"}`,
	"left", "4294967299", "1", "0",
}

var assaults = map[string]assault{
	"forge": func(ctx context.Context, s *tcpstore.Client, key string, _ map[string][]byte, _ past) {
		_ = s.Set(ctx, key, []byte(verdictLies[rand.IntN(len(verdictLies))]))
	},
	"replay": func(ctx context.Context, s *tcpstore.Client, key string, _ map[string][]byte, past past) {
		if values := past.before[kindOf(key)]; len(values) > 0 {
			_ = s.Set(ctx, key, values[rand.IntN(len(values))])
		}
	},
	"replay this one": func(ctx context.Context, s *tcpstore.Client, key string, _ map[string][]byte, past past) {
		if value, ok := past.heard[key]; ok {
			_ = s.Set(ctx, key, value)
		}
	},
	"swap": func(ctx context.Context, s *tcpstore.Client, key string, values map[string][]byte, _ past) {
		for other, value := range values { // any
			if other != key {
				_ = s.Set(ctx, key, value)
				return
			}
		}
	},
	"delete": func(ctx context.Context, s *tcpstore.Client, key string, _ map[string][]byte, _ past) {
		_, _ = s.Delete(ctx, key)
	},
	"cut short": func(ctx context.Context, s *tcpstore.Client, key string, values map[string][]byte, _ past) {
		if v := values[key]; len(v) > 1 {
			_ = s.Set(ctx, key, v[:len(v)/2])
		}
	},
	"garbage": func(ctx context.Context, s *tcpstore.Client, key string, _ map[string][]byte, _ past) {
		b := make([]byte, rand.IntN(200))
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		_ = s.Set(ctx, key, b)
	},
	"add": func(ctx context.Context, s *tcpstore.Client, key string, _ map[string][]byte, _ past) {
		_, _ = s.Add(ctx, key, 1_000_000_000)
	},
}

// foreseen are keys that agents of a job write once, before anybody has, of the rounds that keys were seen of; and
// those that agents wrote in earlier versions.
func foreseen(seen []string) (keys []string) {
	for round := range 3 {
		for _, name := range []string{
			"verdict", "ended", "stopped", "reports", "reported", "agreed", "passed", "report/1", "report/2",
			"heard", "allheard",
		} {
			keys = append(keys, fmt.Sprintf("%s%d/%s", victim, round, name))
		}
	}
	return append(append(keys, lastWords(seen)...), victim+"elsewhere", victim+"members", victim+"host")
}

// attacked is a job of two nodes with a token, of which one comes through an attacker.
type attacked struct {
	*drive.Meet
	*attacker
}

// workHonestly is a worker that waits at the gate, and leaves a note that its work is done. A rank FAILS fails after
// it.
const workHonestly = drive.UntilGate + `: > "$OUT/done.$RANK"; [ "$RANK" != "$FAILS" ] || exit 7`

// startAttacked starts a job that keeps checkpoints. Python has torch: without it a network check tells little.
func startAttacked(t *testing.T, token, fails string, flags ...string) *attacked {
	t.Helper()
	port := drive.FreePort(t)
	a := &attacked{attacker: newAttacker(t, "127.0.0.1:"+port)}
	a.Meet = drive.NewMeet(t, workHonestly, append(flags, "--nnodes=2", "--run-id=victim", "--join-timeout=15s", "--token-file="+token,
		"--ckpt=on", "--ckpt-dir="+t.TempDir(), "--ckpt-replicas=1")...)
	a.Native = true
	a.Env = []string{"FAILS=" + fails, "PATH=" + filepath.Dir(testutil.DebianTorch(t)) + ":" + os.Getenv("PATH")}
	a.Start(0, "--rdzv=muster://127.0.0.1:"+port)
	a.Start(1, "--rdzv=muster://"+a.relay.Addr().String())
	return a
}

// done reports whether every worker has done its work.
func (a *attacked) done() bool {
	for rank := range 2 {
		if _, err := os.Stat(filepath.Join(a.Out, fmt.Sprintf("done.%d", rank))); err != nil {
			return false
		}
	}
	return true
}

// withCheck are the flags of the jobs that have a check: of those that go well, the one that is recorded and one that is
// struck, as the check's programs import torch. In the others the attacker has all his time for the work, and its end.
func withCheck(fails string, wanted bool) []string {
	if fails == "none" && (wanted || testutil.Soak()) {
		return []string{"--network-check"}
	}
	return nil
}

// notRecorded is a key that the attacks need and that was not recorded, "" for none.
func notRecorded(before map[string][][]byte) string {
	for _, name := range []string{
		"members", "term", "t0/coordinator", "beat", "0/board/hello/1", "0/board/plan/0", "0/board/result/0/1", "0/board/ckpt/leader",
		"0/board/ckpt/node/1",
		"0/ended/1", "0/verdict", "0/decided", "0/reported", "0/agreed", "0/settled",
	} {
		if before[victim+name] == nil {
			return name
		}
	}
	return ""
}

// TestAttackStore has somebody without the job's token change each key of a running job, in every way: nobody believes
// it. The job does its work and says so, or ends with a named error.
func TestAttackStore(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a token that the attacker lacks"), 0o600); err != nil {
		t.Fatal(err)
	}
	before, keys := map[string][][]byte{}, map[string]bool{}
	for range 3 { // who listens misses a key now and then that is there for moments
		for fails, status := range map[string]int{"none": 0, "1": 7} { // the work of one of them is done
			early := startAttacked(t, token, fails, withCheck(fails, true)...)
			recorded := early.spy(t.Context(), early.reach(t))
			early.Seen(0, 0, 0)
			early.Seen(1, 0, 0)
			early.Open()
			for _, j := range early.Agents {
				early.Ends(j, status)
			}
			for key, value := range recorded() {
				keys[key], before[kindOf(key)] = true, append(before[kindOf(key)], value)
			}
		}
		if notRecorded(before) == "" {
			break
		}
	}
	if name := notRecorded(before); name != "" {
		t.Errorf("nothing was recorded for %s, only for %q", name, slices.Sorted(maps.Keys(before)))
	}
	checked := 2 * rand.IntN(len(assaults)/2) // one of those that strike a job that goes well
	for i, name := range slices.Sorted(maps.Keys(assaults)) {
		strike := assaults[name]
		for n, fails := range []string{"none", "1"} {
			if !testutil.Soak() && n != i%2 {
				continue // half of the assaults strike a job that goes well
			}
			t.Run(name+", "+fails+" fails", func(t *testing.T) {
				t.Parallel()
				a := startAttacked(t, token, fails, withCheck(fails, i == checked)...)
				s := a.reach(t)
				ctx, stop := context.WithCancel(t.Context())
				var striking sync.WaitGroup
				striking.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						values := map[string][]byte{}
						a.record(ctx, s, values)
						keys := slices.Concat(slices.Collect(maps.Keys(values)), slices.Collect(maps.Keys(keys)), foreseen(a.known()))
						strike(ctx, s, keys[rand.IntN(len(keys))], values, past{before, a.heard()})
						select {
						case <-time.After(50 * time.Millisecond): // the job is to get somewhere in between
						case <-ctx.Done():
						}
					}
				})
				time.Sleep(time.Duration(1+rand.IntN(3)) * time.Second) // for the attack; the gate is closed as long
				if a.done() {
					t.Error("workers went through a closed gate")
				}
				a.Open()
				for _, j := range a.Agents {
					got := j.End()
					a.judge(t, got, fails)
				}
				stop()
				striking.Wait()
			})
		}
	}
}

// judge fails the test where an agent has believed the attacker.
func (a *attacked) judge(t *testing.T, got drive.Outcome, fails string) {
	t.Helper()
	t.Logf("status %d after %v", got.Status, got.Elapsed)
	switch {
	case strings.Contains(got.Stderr, "panic:"), strings.Contains(got.Stderr, "internal error"):
		t.Errorf("the agent broke:\n%s", got.Stderr)
	case got.Status == 0 && fails == "none" && a.done(), got.Status == 7 && fails == "1":
	case got.Status == 75 || got.Status == 2 || got.Status == 82: // a named error
		if !strings.Contains(got.Stderr, "error") {
			t.Errorf("status %d without an error:\n%s", got.Status, got.Stderr)
		}
	default:
		t.Errorf("status %d; work done: %v\n%s", got.Status, a.done(), got.Stderr)
	}
}

// reach connects to the store as soon as it is there.
func (a *attacked) reach(t *testing.T) *tcpstore.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := a.connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
