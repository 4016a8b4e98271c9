package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/report"
)

// fakeJob is a job that counts what it is asked.
type fakeJob struct {
	id       string
	size     int // of its name, in bytes
	asked    atomic.Int64
	mu       sync.Mutex
	requests []string // by whom, and what
	events   Events
	hold     chan struct{} // Status waits until it is closed; nil: it does not
}

func (j *fakeJob) Status(ctx context.Context, scope Scope) (report.Status, error) {
	j.asked.Add(1)
	if j.hold != nil {
		select {
		case <-j.hold:
		case <-ctx.Done():
		}
	}
	return report.Status{Version: 1, RunID: j.id, Name: strings.Repeat("x", j.size), Message: string(scope), Phase: report.PhaseRunning},
		nil
}

func (j *fakeJob) Rank(_ context.Context, rank int) (Rank, error) {
	if rank != 3 {
		return Rank{}, errhint.With(errhint.Usagef("there is no rank %d", rank), "there is rank 3")
	}
	return Rank{Rank: rank, Env: []string{"ODD=\xff\x01", "PATH=/bin"}, Dir: "/"}, nil
}

func (j *fakeJob) Asked(r Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.requests = append(j.requests, fmt.Sprint(r.By.UID, " ", r.String()))
}

func (j *fakeJob) Refused(r Request, err error) { j.events.Add(r.Refusal(err)) }

func (j *fakeJob) Do(_ context.Context, r Request) (string, error) {
	switch r.What { //nolint:exhaustive // all others are no request
	case StopRequested:
		return "it ends", nil
	case RestartRequested:
		return "", errhint.Code(errors.New("it does not run"), errhint.TryAgain)
	case PauseRequested:
		return "it pauses", nil
	case ResumeRequested:
		return fmt.Sprintf("it runs %q", []string(r.Command)), nil
	case ScaleRequested:
		return fmt.Sprintf("it has %d nodes", r.Nodes), nil
	case KillRequested:
		return "lost is " + r.Node, nil
	}
	return "", errors.New("nobody asks for " + string(r.What))
}

func (j *fakeJob) Events() *Events { return &j.events }

// serve serves a job in a run directory of its own, as cfg says.
func serve(t *testing.T, cfg Config) string {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg.Log = zerolog.New(io.Discard)
	s, err := Serve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return cfg.Dir
}

// manyRanks is a job whose ranks are everywhere.
type manyRanks struct{ fakeJob }

func (j *manyRanks) Status(ctx context.Context, scope Scope) (report.Status, error) {
	d, err := j.fakeJob.Status(ctx, scope)
	d.Ranks, d.Tasks = []report.Rank{{}, {Rank: 1, Restarts: 2}, {Rank: 2}}, []report.Task{{Node: "far"}}
	return d, err
}

// A launcher runs no ranks itself: who looks for jobs is not told of those of all nodes. An agent tells of its own.
func TestNodeScope(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		role  Role
		scope Scope
		ranks int
	}{{Launcher, Node, 0}, {Simulation, Node, 0}, {Driver, Node, 0}, {Launcher, World, 3}, {Agent, Node, 3}, {Agent, World, 3}} {
		dir := serve(t, Config{Served: &manyRanks{fakeJob: fakeJob{id: "it"}}, Muster: Muster{Role: c.role}})
		a, err := Dial(dir).Status(t.Context(), c.scope)
		if err != nil || len(a.Ranks) != c.ranks || (len(a.Tasks) > 0) != (c.ranks > 0) || a.Phase != report.PhaseRunning {
			t.Errorf("%s, %s: %+v, %v", c.role, c.scope, a, err)
		}
	}
}

// TestAnswers asks everything that can be asked.
func TestAnswers(t *testing.T) {
	t.Parallel()
	j := &fakeJob{id: "train-7"}
	c := Dial(serve(t, Config{Served: j, Muster: Muster{Role: Launcher}}))
	a, err := c.Status(t.Context(), Node)
	if err != nil || a.RunID != "train-7" || a.Message != "node" || a.Muster.Role != Launcher || a.Muster.PID != os.Getpid() {
		t.Errorf("%+v, %v", a, err)
	}
	if c.pid != os.Getpid() {
		t.Errorf("the kernel says %d", c.pid)
	}
	r, err := c.Rank(t.Context(), 3)
	if err != nil || r.Env[0] != "ODD=\xff\x01" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err = c.Rank(t.Context(), 4); errhint.CodeOf(err) != errhint.Usage || err.Error() != "there is no rank 4" ||
		errhint.Of(err) != "there is rank 3" {
		t.Errorf("%v", err)
	}
	if s, err := c.Do(t.Context(), Request{What: RestartRequested}); errhint.CodeOf(err) != errhint.TryAgain ||
		err.Error() != "it does not run" {
		t.Errorf("%q, %v", s, err)
	}
	for want, r := range map[string]Request{
		"it ends":                  {What: StopRequested, Wanted: Wanted{Now: true}},
		"it has 3 nodes":           {What: ScaleRequested, Wanted: Wanted{Nodes: 3}},
		"lost is node7":            {What: KillRequested, Wanted: Wanted{Node: "node7"}},
		"it pauses":                {What: PauseRequested},
		`it runs ["a b" "\"c"]`:    {What: ResumeRequested, Wanted: Wanted{Command: []string{"a b", "\"c"}}},
		`it runs ["\xff" "a\x01"]`: {What: ResumeRequested, Wanted: Wanted{Command: []string{"\xff", "a\x01"}}},
	} {
		r.By.UID = os.Geteuid() + 1 // who asks is known to who answers
		if s, err := c.Do(t.Context(), r); err != nil || s != want {
			t.Errorf("%q, %v, want %q", s, err, want)
		}
	}
	var want []string
	for _, r := range []string{
		"pause the job", "rehearse the loss of node7", "restart the workers", "resume the job", "resume the job",
		"scale the job to 3 nodes",
		"stop the job without grace",
	} {
		want = append(want, fmt.Sprint(os.Geteuid(), " ", r))
	}
	if slices.Sort(j.requests); !slices.Equal(j.requests, want) {
		t.Errorf("asked for %q, want %q", j.requests, want)
	}
}

// talk writes bytes to a socket, and returns the first line of the answer and all of it.
func talk(t *testing.T, dir, text string) (first, all string) {
	t.Helper()
	conn, err := net.Dial("unix", dir+"/"+socketName)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, text) }() // who is cut off reads no more
	answer, _ := io.ReadAll(conn)
	first, _, _ = strings.Cut(string(answer), "\r\n")
	return first, string(answer)
}

// TestWrongRequests: what is not a request of ours is refused with a sentence, whatever its size.
func TestWrongRequests(t *testing.T) {
	t.Parallel()
	j := &fakeJob{id: "a"}
	dir := serve(t, Config{Served: j})
	post := func(path, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	}
	for name, c := range map[string]struct{ text, first, says string }{
		"no path":      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 404 Not Found", `there is no \"/\"`},
		"path upwards": {"GET /api/v1/rank/../../x HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 Bad Request", "is no rank"},
		"scope": {
			"GET /api/v1/status?scope=all HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 Bad Request",
			"neither world nor node",
		},
		"method":        {post("/api/v1/status", "{}"), "HTTP/1.1 405 Method Not Allowed", "is asked by GET"},
		"stop by GET":   {"GET /api/v1/stop HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 405 Method Not Allowed", "is asked by POST"},
		"rank":          {"GET /api/v1/rank/-1 HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 Bad Request", "is no rank"},
		"large rank":    {"GET /api/v1/rank/99999999999999999999 HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 Bad Request", "is no rank"},
		"empty body":    {post("/api/v1/stop", ""), "HTTP/1.1 400 Bad Request", "cannot be read"},
		"unknown field": {post("/api/v1/stop", `{"soon":true}`), "HTTP/1.1 400 Bad Request", "unknown field"},
		"large body": {
			post("/api/v1/stop", `{"now":"`+strings.Repeat("x", 16<<20)+`"}`), "HTTP/1.1 400 Bad Request",
			"cannot be read",
		},
		"large header": {
			"GET /api/v1/status HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("x", 1<<20),
			"HTTP/1.1 431 Request Header Fields Too Large", "",
		},
		"no HTTP":         {"\x00\x01\x02\r\n\r\n", "HTTP/1.1 400 Bad Request", ""},
		"HTTP/2 preface":  {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 404 Not Found", ""},
		"no host, HTTP/1": {"GET /api/v1/status HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request: missing required Host header", ""},
	} {
		if first, all := talk(t, dir, c.text); first != c.first || !strings.Contains(all, c.says) {
			t.Errorf("%s: %q, want %q with %q:\n%s", name, first, c.first, c.says, all)
		}
	}
	if len(j.requests) > 0 || j.asked.Load() > 0 {
		t.Errorf("the job was asked: %q, %d", j.requests, j.asked.Load())
	}
}

// TestOtherUsers: another user is told that it is one, and the job hears nothing of it; root is heard.
func TestOtherUsers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		peer  Peer
		err   error
		heard bool
	}{
		"another user": {Peer{UID: os.Geteuid() + 4711}, nil, false},
		"nobody knows": {Peer{UID: -1}, errors.New("no such option"), false},
		"root":         {Peer{UID: 0, PID: 1}, nil, true},
		"ourselves":    {Peer{UID: os.Geteuid()}, nil, true},
	} {
		j := &fakeJob{id: "a"}
		dir := serve(t, Config{Served: j, Peer: func(*net.UnixConn) (Peer, error) { return c.peer, c.err }})
		_, err := Dial(dir).Do(t.Context(), Request{What: StopRequested})
		if heard := len(j.requests) == 1; heard != c.heard || heard != (err == nil) {
			t.Errorf("%s: heard %v, %v", name, heard, err)
		}
		if !c.heard && (errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "belongs to another user")) {
			t.Errorf("%s: status %d, %v", name, errhint.CodeOf(err), err)
		}
	}
}

// TestRealOtherUser has a process of another user ask at a socket to which somebody has opened the way.
func TestRealOtherUser(t *testing.T) {
	t.Parallel()
	dir := testutil.ReachedDir(t, 0o755)
	j := &fakeJob{id: "a"}
	s, err := Serve(Config{Dir: dir, Served: j, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Chmod(dir+"/"+socketName, 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := testutil.OtherUser(t, "python3", "-c", `import socket,sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
s.sendall(b"POST /api/v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
sys.stdout.write(s.recv(4096).decode())`, dir+"/"+socketName)
	out, err := cmd.CombinedOutput()
	if len(j.requests) > 0 || err == nil && !strings.Contains(string(out), "403 Forbidden") {
		t.Errorf("stops %q, %v: %s", j.requests, err, out)
	}
}

// TestCrowd: a thousand clients that say nothing, or read nothing, get no more than their places; when they are gone
// everybody is answered again, and the server ends at once beside them.
func TestCrowd(t *testing.T) {
	j := &fakeJob{id: "a", size: 1 << 20} // more than a socket takes
	dir := serve(t, Config{Served: j})
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	refused := 0
	for i := range 1000 {
		conn, err := net.Dial("unix", dir+"/"+socketName)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		if i%2 == 0 { // who asks for 1 MiB and reads nothing of it
			_, _ = io.WriteString(conn, "GET /api/v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil && strings.Contains(line, "503") || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			refused++
		}
	}
	if refused < 1000/2 { // those in their places give them up when their time is over
		t.Errorf("only %d of 1000 were refused", refused)
	}
	if n := j.asked.Load(); n > 1000/4 {
		t.Errorf("the job was asked %d times", n)
	}
	testutil.Eventually(t, time.Minute, "somebody else is answered", func() bool {
		conn, err := net.Dial("unix", dir+"/"+socketName)
		if err != nil {
			return false
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /api/v1/rank/3 HTTP/1.1\r\nHost: x\r\n\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		return err == nil && strings.Contains(line, "200 OK")
	})
}

// TestCloseBesideClients ends a server while one request is under way and a client says nothing.
func TestCloseBesideClients(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := &fakeJob{id: "a", hold: make(chan struct{})}
	s, err := Serve(Config{Dir: dir, Served: j, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", dir+"/"+socketName)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	asked := make(chan error, 1)
	go func() {
		_, err := Dial(dir).Status(context.Background(), World)
		asked <- err
	}()
	testutil.Eventually(t, time.Minute, "it is asked", func() bool { return j.asked.Load() > 0 })
	began := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-asked; err == nil {
		t.Error("an answer came from a server that was closed")
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	var none *Server
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}
