package elastic_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/horovod/kv"
	"muster/internal/pickle"
	"muster/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for.
const patience = 30 * time.Second

// source finds what the test says.
type source struct {
	mu    sync.Mutex
	hosts []horovod.Host
	err   error
	runs  int
}

func (s *source) Find(context.Context) ([]horovod.Host, []string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	return s.hosts, nil, s.err
}

func (s *source) String() string { return "the test" }

func (s *source) set(text string, err error) {
	hosts, _, wrong := discovery.ParseHosts(strings.ReplaceAll(text, " ", "\n"), 0)
	if wrong != nil {
		panic(wrong)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts, s.err = hosts, err
}

func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

// world is a job with workers that the test plays.
type world struct {
	t      *testing.T
	source *source
	addr   string
	ctx    context.Context
	stop   context.CancelCauseFunc
	result chan elastic.Result
	err    error
	log    testutil.Buffer

	mu      sync.Mutex
	workers map[string]*worker // the last of each slot
	starts  int
	looking int              // workers that have not yet begun to look for the others
	refuse  map[string]error // hosts on which nothing can be started
	unheard map[string]error // hosts where the rendezvous is not served
	slow    bool             // started workers do not begin by themselves
}

// worker is a process that only the test knows.
type worker struct {
	w      *world
	key    string
	env    map[string]string
	done   chan struct{}
	status int
	once   sync.Once
	killed bool
	lost   bool
}

func (p *worker) Done() <-chan struct{} { return p.done }
func (p *worker) Status() int           { return p.status }
func (p *worker) Lost() bool            { return p.lost }
func (p *worker) Stop(time.Duration)    { p.killed = true; p.exit(143) }

func (p *worker) exit(status int) {
	p.once.Do(func() {
		p.status = status
		close(p.done)
	})
}

func (w *world) Start(_ context.Context, host string, local int, env []string, label string) (elastic.Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refuse[host]; err != nil {
		return nil, err
	}
	p := &worker{w: w, key: horovod.Key(host, local), env: map[string]string{}, done: make(chan struct{})}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		p.env[name] = value
	}
	if p.env["HOROVOD_RANK"] != label || p.env["HOROVOD_HOSTNAME"] != host || p.env["HOROVOD_ELASTIC"] != "1" {
		w.t.Errorf("worker %s has label %s and %v", p.key, label, env)
	}
	w.starts++
	w.workers[p.key] = p
	if !w.slow {
		w.looking++
		go func() { // it begins to look for the others
			_, _ = w.do(w.ctx, "PUT", "/global/rank_"+label, "host")
			w.mu.Lock()
			w.looking--
			w.mu.Unlock()
		}()
	}
	return p, nil
}

// begin starts a job on hosts.
func begin(t *testing.T, rules elastic.Rules, hosts string) *world {
	t.Helper()
	s := &source{}
	s.set(hosts, nil)
	return beginFrom(t, rules, s)
}

func beginFrom(t *testing.T, rules elastic.Rules, s *source) *world {
	t.Helper()
	l, err := kv.Listen(t.Context(), "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, source: s, addr: l.Addr().String(), result: make(chan elastic.Result, 1), workers: map[string]*worker{},
		refuse: map[string]error{}, unheard: map[string]error{},
	}
	w.ctx, w.stop = context.WithCancelCause(context.Background())
	if rules.MinNP == 0 {
		rules.MinNP = rules.NP
	}
	if rules.Timeout == 0 {
		rules.Timeout = patience
	}
	d, err := elastic.New(elastic.Config{
		Rules: rules, Log: zerolog.New(&w.log), Source: w.source, Interval: 10 * time.Millisecond, Spawner: w,
		Listener: l, Advertise: "127.0.0.1", Grace: time.Second,
		Env: func(host string) ([]string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return nil, w.unheard[host]
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		r, err := d.Run(w.ctx)
		w.err = err
		w.result <- r
	}()
	t.Cleanup(func() {
		w.stop(context.Canceled)
		select {
		case <-w.result:
		case <-time.After(patience):
			t.Error("the driver does not end")
		}
		if t.Failed() {
			t.Logf("the driver's log:\n%s", w.log.String())
		}
	})
	return w
}

// end waits for the result.
func (w *world) end() elastic.Result {
	w.t.Helper()
	select {
	case r := <-w.result:
		w.result <- r
		return r
	case <-time.After(patience):
		w.t.Fatal("the job does not end")
		return elastic.Result{}
	}
}

func (w *world) wantEnd(status int, reason string) {
	w.t.Helper()
	if r := w.end(); r.Status != status || !strings.Contains(r.Reason, reason) || status == 0 && r.Reason != "" {
		w.t.Errorf("the job ended with %+v, want status %d and %q", r, status, reason)
	}
}

// running waits until as many workers were started, and have begun to look for the others as a worker does before it asks
// for anything, and returns those of the keys.
func (w *world) running(starts int, keys ...string) []*worker {
	w.t.Helper()
	testutil.Eventually(w.t, patience, fmt.Sprintf("%d starts", starts), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.starts >= starts && w.looking == 0
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.starts != starts {
		w.t.Fatalf("%d workers were started, want %d: %v", w.starts, starts, slices.Sorted(maps.Keys(w.workers)))
	}
	var found []*worker
	for _, key := range keys {
		p := w.workers[key]
		if p == nil {
			w.t.Fatalf("no worker %s among %v", key, slices.Sorted(maps.Keys(w.workers)))
		}
		found = append(found, p)
	}
	return found
}

func (p *worker) place() string {
	var values []string
	for _, name := range []string{"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"} {
		values = append(values, p.env["HOROVOD_"+name])
	}
	return strings.Join(values, ",")
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (w *world) do(ctx context.Context, method, path, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+w.addr+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	return string(answer), nil
}

// ask begins to ask for a slot's place, as a worker does that initializes itself again. A worker that gets one begins
// to look for the others.
func (w *world) ask(key string) <-chan string {
	answer := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		place, err := w.do(ctx, "GET", "/rank_and_size/"+key, "")
		if err != nil {
			place = err.Error()
		}
		if rank, _, _ := strings.Cut(place, ","); err == nil && rank != "-1" {
			if _, err := w.do(ctx, "PUT", "/global/rank_"+rank, "host"); err != nil {
				place = err.Error()
			}
		}
		answer <- place
	}()
	return answer
}

func (w *world) want(what string, answer <-chan string, place string) {
	w.t.Helper()
	select {
	case got := <-answer:
		if got != place {
			w.t.Errorf("%s: %s, want %s", what, got, place)
		}
	case <-time.After(patience):
		w.t.Errorf("%s: no answer", what)
	}
}

// parked checks that a request is not answered yet. It cannot know that it never will be; the job's log tells that all
// has happened that could.
func (w *world) parked(answer <-chan string) {
	w.t.Helper()
	select {
	case got := <-answer:
		w.t.Errorf("answered too early: %s", got)
		return
	case <-time.After(50 * time.Millisecond): // some discoveries
	}
}

// listener is a worker's notification service.
type listener struct {
	got  chan string
	deaf int // connections that it closes at first
}

var ack, _ = hex.DecodeString(
	"80059539000000000000008c22686f726f766f642e72756e6e65722e636f6d6d6f6e2e7574696c2e6e6574776f726b" +
		"948c0b41636b526573706f6e73659493942981942e")

// listens registers a notification service for a slot.
func (w *world) listens(key string, deaf int) *listener {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	secret := bytes.Repeat([]byte{7}, 32)
	sign := func(body []byte) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write(body)
		return binary.LittleEndian.AppendUint32(mac.Sum(nil), uint32(len(body)))
	}
	s := &listener{got: make(chan string, 100), deaf: deaf}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			head := make([]byte, 36)
			if s.deaf--; s.deaf < 0 {
				if _, err := io.ReadFull(conn, head); err == nil {
					body := make([]byte, binary.LittleEndian.Uint32(head[32:]))
					_, _ = io.ReadFull(conn, body)
					if bytes.Equal(sign(body), head) && len(body) > 4 {
						s.got <- fmt.Sprintf("%d at %d", body[len(body)-4],
							binary.LittleEndian.Uint32(body[bytes.Index(body, []byte("timestamp"))+10:]))
						_, _ = conn.Write(append(sign(ack), ack...))
					}
				}
			}
			conn.Close()
		}
	}()
	w.t.Cleanup(func() { l.Close(); <-done })
	w.register(key, secret, l.Addr().(*net.TCPAddr).Port, "127.0.0.1")
	return s
}

// register says for a slot's worker where it listens.
func (w *world) register(key string, secret []byte, port int, hosts ...string) {
	w.t.Helper()
	text := func(s string) []byte { return append([]byte{pickle.OpShortBinUnicode, byte(len(s))}, s...) }
	// ({"lo": [(host, port), …]}, secret), as pickle.dumps writes it.
	p := append([]byte{pickle.OpProto, 4, pickle.OpEmptyDict, pickle.OpMark}, text("lo")...)
	p = append(p, pickle.OpEmptyList, pickle.OpMark)
	for _, host := range hosts {
		p = append(append(p, text(host)...), pickle.OpBinInt2, byte(port), byte(port>>8), pickle.OpTuple2)
	}
	p = append(p, pickle.OpAppends, pickle.OpSetItems, pickle.OpShortBinBytes, byte(len(secret)))
	p = append(append(p, secret...), pickle.OpTuple2, pickle.OpStop)
	if _, err := w.do(w.t.Context(), "PUT", "/worker_addresses/"+key, base64.StdEncoding.EncodeToString(p)); err != nil {
		w.t.Fatal(err)
	}
}

// change waits for the next message and returns its change and time.
func (s *listener) change(t *testing.T) (change string, at int64) {
	t.Helper()
	select {
	case text := <-s.got:
		change, rest, _ := strings.Cut(text, " at ")
		if _, err := fmt.Sscan(rest, &at); err != nil {
			t.Fatal(err)
		}
		return change, at
	case <-time.After(patience):
		t.Fatal("no message")
		return "", 0
	}
}
