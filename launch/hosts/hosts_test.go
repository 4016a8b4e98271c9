package hosts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/testutil"
)

// pipeConn is an agent in this process: its end of the connection is given to a function.
type pipeConn struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	ended  chan struct{}
	status int
	lost   error
	said   string
}

func (c *pipeConn) Stdin() io.WriteCloser { return c.stdin }
func (c *pipeConn) Stdout() io.Reader     { return c.stdout }
func (c *pipeConn) Stderr() string        { return c.said }
func (c *pipeConn) Wait() (int, error)    { <-c.ended; return c.status, c.lost }
func (c *pipeConn) Close() error          { return errors.Join(c.stdin.Close(), c.stdout.Close()) }

// agentConn starts agent with its end of a new connection.
func agentConn(agent func(l *Link) int) *pipeConn {
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	c := &pipeConn{stdin: stdin, stdout: stdout, ended: make(chan struct{})}
	go func() {
		link := openLink(in, out)
		c.status = agent(link)
		link.Close()
		_ = out.Close()
		_ = in.Close()
		close(c.ended)
	}()
	return c
}

// obedient is an agent that ends with a result when it may start.
func obedient(r Result) func(l *Link) int {
	return func(l *Link) int {
		ctx := context.Background()
		_ = l.Hello(Hello{Version: "test", Port: 1})
		if _, err := l.Order(ctx); err != nil {
			return 1
		}
		_ = l.Ready(Ready{})
		if l.Go(ctx) != nil {
			return 1
		}
		_ = l.Result(r)
		<-l.Lost()
		return 0
	}
}

func newFleet(t *testing.T, machines ...Machine) (*Fleet, *testutil.Buffer) {
	t.Helper()
	var shown testutil.Buffer
	return openFleet(Config{
		Machines: machines, Min: len(machines), StartTimeout: 30 * time.Second, Linger: 30 * time.Second,
		Transient: func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) },
		Output:    &Output{Stdout: &shown, Stderr: &shown, Log: &shown}, Log: zerolog.New(&shown),
	}), &shown
}

func machine(name string, agents ...func(l *Link) int) Machine {
	next := 0
	return Machine{Name: name, Start: func(context.Context) (Conn, error) {
		if next == len(agents) {
			return nil, errors.New("there are no more agents")
		}
		next++
		return agentConn(agents[next-1]), nil
	}}
}

func run(t *testing.T, f *Fleet) Outcome {
	t.Helper()
	if err := f.Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Prepare(t.Context(), func(int) Order { return Order{} }); err != nil {
		t.Fatal(err)
	}
	return f.Run(t.Context())
}

func TestOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		results []Result
		status  int
		report  string
	}{
		"success":                {[]Result{{}, {}}, 0, ""},
		"a failed worker":        {[]Result{{Status: 7, Report: "rank 0"}, {Status: 7, Report: "rank 0"}}, 7, "rank 0"},
		"one left, others go on": {[]Result{{Status: errhint.Faulty, Report: "bad GPU"}, {}}, 0, ""},
		"all were at fault": {
			[]Result{{Status: errhint.Faulty, Report: "bad GPU"}, {Status: errhint.Faulty}},
			errhint.Faulty, "bad GPU",
		},
		"not all came": {
			[]Result{{Status: errhint.TryAgain, Error: "nobody"}, {Status: errhint.TryAgain, Error: "nobody"}},
			errhint.TryAgain, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var machines []Machine
			for i, r := range c.results {
				machines = append(machines, machine(fmt.Sprint("node", i), obedient(r)))
			}
			f, _ := newFleet(t, machines...)
			o := run(t, f)
			if o.Status != c.status || o.Report != c.report {
				t.Errorf("status %d report %q, want %d %q", o.Status, o.Report, c.status, c.report)
			}
			if len(o.Unclean) > 0 {
				t.Errorf("not clean: %v", o.Unclean)
			}
		})
	}
}

// A job that succeeded has succeeded, also where the node that left it was heard first and too few seemed to be left.
func TestOutcomeOfTooFew(t *testing.T) {
	for _, c := range []struct{ other, want int }{{errhint.OK, errhint.OK}, {143, errhint.Faulty}} {
		f, _ := newFleet(t, machine("node0", nil), machine("node1", nil))
		f.begun, f.nodes[1].session = true, &session{}
		f.finished(f.nodes[0], &Result{Status: errhint.Faulty})
		if !f.hopeless {
			t.Fatal("one node of two is enough")
		}
		f.finished(f.nodes[1], &Result{Status: c.other})
		f.nodes[1].at = f.first.Add(time.Second)
		if o := f.outcome(); o.Status != c.want {
			t.Errorf("status %d of a job whose other node said %d, want %d", o.Status, c.other, c.want)
		}
	}
}

// Every machine that cannot be reached is named, in the order of the hosts; one that is not up yet is waited for.
func TestReach(t *testing.T) {
	var mu sync.Mutex
	tries := 0
	late := Machine{Name: "late", Start: func(context.Context) (Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries < 3 {
			return nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
		}
		return agentConn(obedient(Result{})), nil
	}}
	f, _ := newFleet(t, late, machine("good", obedient(Result{})))
	if o := run(t, f); o.Status != 0 {
		t.Errorf("status %d", o.Status)
	}
	bad := func(name string) Machine {
		return Machine{Name: name, Start: func(context.Context) (Conn, error) {
			return nil, errhint.With(errors.New("permission denied"), "add a key")
		}}
	}
	f, _ = newFleet(t, bad("b"), machine("good", obedient(Result{})), bad("a"), bad("c"))
	err := f.Reach(t.Context())
	f.Close()
	if err == nil {
		t.Fatal("reached machines that cannot be")
	}
	if errhint.CodeOf(err) != errhint.TryAgain {
		t.Errorf("status %d", errhint.CodeOf(err))
	}
	b, a, c := strings.Index(err.Error(), "on b: permission"), strings.Index(err.Error(), "on a: permission"),
		strings.Index(err.Error(), "on c: permission")
	if b < 0 || a < b || c < a || strings.Contains(err.Error(), "good") {
		t.Errorf("the machines are not named in their order: %v", err)
	}
}

// What speaks before the agent, or in its place, is no message.
func TestNoise(t *testing.T) {
	for name, text := range map[string]string{
		"words": "Welcome to node1!\n", "a long message": "\x10\xff\xff\xff\xff",
		"as long as an order": "\x10\x02\x00\x00\x00" + strings.Repeat(" ", 32<<20) + "{}", "the wrong message": "\x15\x00\x00\x00\x02{}",
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := newFleet(t, Machine{Name: "odd", Start: func(context.Context) (Conn, error) {
				_, stdin := io.Pipe()
				stdout, out := io.Pipe()
				c := &pipeConn{stdin: stdin, stdout: stdout, ended: make(chan struct{}), said: "sh: muster: not found\n"}
				go func() {
					_, _ = io.WriteString(out, text)
					_ = out.Close()
					close(c.ended)
				}()
				return c, nil
			}})
			err := f.Reach(t.Context())
			if err == nil || !strings.Contains(err.Error(), "on odd") || !strings.Contains(err.Error(), "sh: muster: not found") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// An agent that is lost is started again while the others go on, and gets its order anew.
func TestLostMachine(t *testing.T) {
	vanish := make(chan struct{})
	lost := func(l *Link) int {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
		<-vanish
		return 137
	}
	again := make(chan struct{})
	back := func(l *Link) int {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
		close(again)
		_ = l.Result(Result{})
		<-l.Lost()
		return 0
	}
	stays := func(l *Link) int {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
		close(vanish)
		<-again
		_ = l.Result(Result{})
		<-l.Lost()
		return 0
	}
	f, shown := newFleet(t, machine("stays", stays), machine("lost", lost, back))
	if o := run(t, f); o.Status != 0 {
		t.Errorf("%+v\n%s", o, shown.String())
	}
	for _, words := range []string{"node lost", "status 137", "the node is there again"} {
		if !strings.Contains(shown.String(), words) {
			t.Errorf("nobody was told %q:\n%s", words, shown.String())
		}
	}
}

// A job that has ended for all nodes, as one too many was lost, is over for the agent that was started again, too: it would
// look for the others. What they have said is the outcome.
func TestLostMachineTooMany(t *testing.T) {
	vanish, again := make(chan struct{}), make(chan struct{})
	begin := func(l *Link) {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
	}
	lost := func(l *Link) int {
		begin(l)
		<-vanish
		return 137
	}
	back := func(l *Link) int {
		begin(l)
		close(again)
		select {
		case <-l.Signals():
		case <-time.After(20 * time.Second):
			t.Error("the agent that looks for the others is not ended")
		}
		_ = l.Result(Result{Status: 143})
		<-l.Lost()
		return 0
	}
	stays := func(l *Link) int {
		begin(l)
		close(vanish)
		<-again
		_ = l.Result(Result{Status: errhint.TryAgain, Error: "the backoff limit is reached", Over: true})
		<-l.Lost()
		return 0
	}
	f, shown := newFleet(t, machine("stays", stays), machine("lost", lost, back))
	f.Min, f.Linger = 1, time.Millisecond
	if o := run(t, f); o.Status != errhint.TryAgain || o.Decided != 0 {
		t.Errorf("%+v\n%s", o, shown.String())
	}
}

// An agent whose launcher is gone is told so.
func TestLauncherLost(t *testing.T) {
	in, stdin := io.Pipe()
	link := openLink(in, io.Discard)
	defer link.Close()
	_ = stdin.Close()
	select {
	case <-link.Lost():
		if !errors.Is(link.Why(), errLauncherLost) {
			t.Errorf("why: %v", link.Why())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the agent has not noticed that its launcher is gone")
	}
	if _, err := link.Order(t.Context()); !errors.Is(err, errLauncherLost) {
		t.Errorf("waiting for an order: %v", err)
	}
}

// A launcher that says nothing, though its connection stands, is gone too.
func TestLauncherSilent(t *testing.T) {
	testutil.Long(t)
	in, stdin := io.Pipe()
	defer func() { _ = stdin.Close() }()
	link := openLink(in, io.Discard)
	defer link.Close()
	select {
	case <-link.Lost():
		if !strings.Contains(link.Why().Error(), "nothing came") {
			t.Errorf("why: %v", link.Why())
		}
	case <-time.After(Patience + 30*time.Second):
		t.Fatal("the agent has not noticed that its launcher is silent")
	}
}

func TestOutput(t *testing.T) {
	var out, errs testutil.Buffer
	o := &Output{Stdout: &out, Stderr: &errs, Log: io.Discard}
	o.output(kindStdout, "a", []byte("one\ntw"))
	o.output(kindStdout, "b", []byte("other\n"))
	o.output(kindStderr, "a", []byte("10%\r"))
	o.output(kindStdout, "a", []byte("o\n"))
	o.output(kindStdout, "a", []byte("the end"))
	o.finish("a")
	if got, want := out.String(), "one\nother\ntwo\nthe end"; got != want {
		t.Errorf("standard output %q, want %q", got, want)
	}
	if got := errs.String(); got != "10%\r" {
		t.Errorf("standard error %q", got)
	}
	o.output(kindStdout, "b", []byte("prompt> "))
	testutil.Eventually(t, 30*time.Second, "the beginning of a line is shown",
		func() bool { return strings.HasSuffix(out.String(), "prompt> ") })
}

// What an agent says in its log reaches a terminal as lines of JSON, whatever it is; so does why the job has ended, as
// text.
func TestOutputOfTheLog(t *testing.T) {
	var log testutil.Buffer
	o := &Output{Stdout: io.Discard, Stderr: io.Discard, Log: &log}
	o.output(kindLog, "a", []byte(`{"level":"info","message":"größe \u001b[2J"}`+"\n"+"\x1b]0;title\a\x1b[2Jtext\n"))
	o.output(kindLog, "a", []byte("{\"level\":\"info\",\"message\":\"\u009b2J\x9b2J\"}"))
	o.output(kindLog, "b\x1b[2J", []byte("{\"level\":\"info\",\"message\":\"\u009b2J\"}\n\n\x1b"))
	want := []string{
		`{"level":"info","message":"größe \u001b[2J"}`,
		`{"level":"warn","agent":"a","message":"\\x1b]0;title\\a\\x1b[2Jtext"}`,
		`{"level":"warn","agent":"a","message":"{\"level\":\"info\",\"message\":\"\\u009b2J\\x9b2J\"}"}`,
		`{"level":"info","message":"\u009b2J"}`,
		`{"level":"warn","agent":"b\\x1b[2J","message":"\\x1b"}`,
	}
	if got := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n"); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestPrefix(t *testing.T) {
	for text, want := range map[string]string{"": "", "a\nb": "> a\n> b\n", "1%\r2%\r\n": "> 1%\r> 2%\r> \n", "é\n": "> é\n"} {
		var out bytes.Buffer
		prefixLines(&out, strings.NewReader(text), func() string { return "> " })
		if out.String() != want {
			t.Errorf("%q becomes %q, want %q", text, out.String(), want)
		}
	}
}

// Log files come home below their node's name, and nowhere else.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	var told testutil.Buffer
	f := collectLogs(dir, 1<<30, zerolog.New(&told))
	f.begin("node0", fileMessage{Path: "attempt_0/1/stdout.log"})
	f.data("node0", []byte("hello "))
	f.data("node0", []byte("world"))
	f.data("node0", nil)
	got, err := os.ReadFile(filepath.Join(dir, "node0", "attempt_0", "1", "stdout.log"))
	if err != nil || string(got) != "hello world" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "node0", "out")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"../escaped", "/tmp/escaped", "a/../../escaped", "", "out/tmp/muster-escaped"} {
		f.begin("node0", fileMessage{Path: path})
		f.data("node0", []byte("x"))
		f.close("node0")
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "escaped")); len(found) > 0 {
		t.Error("a file came out of its directory")
	}
	if _, err := os.Stat("/tmp/muster-escaped"); err == nil {
		t.Error("a link led out of the directory")
	}
	if !strings.Contains(told.String(), "could not be collected") {
		t.Errorf("nobody was told: %q", told.String())
	}
}

// A node may have any name: its directory lies right in the one for all of them, and is no other node's.
func TestFilesOfNamedNodes(t *testing.T) {
	for _, node := range []string{"..", ".", "", "/", "a/../../b", "a\x1b[2J", "a\nb", "\xff", strings.Repeat("n", 400), ".hidden"} {
		dir := filepath.Join(t.TempDir(), "logs")
		f := collectLogs(dir, 0, zerolog.Nop())
		f.begin(node, fileMessage{Path: "stdout.log"})
		f.data(node, []byte("text"))
		f.close(node)
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("%q: %v, %v", node, entries, err)
			continue
		}
		name := entries[0].Name()
		if printable.Line(name, 255) != name || strings.HasPrefix(name, ".") {
			t.Errorf("%q is called %q", node, name)
		}
		if text, err := os.ReadFile(filepath.Join(dir, name, "stdout.log")); err != nil || string(text) != "text" {
			t.Errorf("%q: %q, %v", node, text, err)
		}
		if beside, _ := os.ReadDir(filepath.Dir(dir)); len(beside) != 1 {
			t.Errorf("%q: %v", node, beside)
		}
	}
	if dirName("a/b") == dirName("a_b") || dirName("node0") != "node0" || dirName("2001:db8::1") != "2001:db8::1" {
		t.Error("names of directories")
	}
}

// What is collected has a bound over all nodes, which is told once, and at the end of the file that it cuts.
func TestFilesLimit(t *testing.T) {
	dir := t.TempDir()
	var told testutil.Buffer
	f := collectLogs(dir, dirCost+3*fileCost, zerolog.New(&told))
	for _, node := range []string{"a", "b"} {
		for i := range 100 {
			f.begin(node, fileMessage{Path: fmt.Sprint(i, ".log")})
			f.data(node, bytes.Repeat([]byte("x"), 700))
			f.data(node, nil)
		}
	}
	var files, size int64
	cut := ""
	if err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files, size = files+1, size+int64(len(text))
		if strings.HasSuffix(string(text), cutOff+"\n") {
			cut += path
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if files != 2 || size > 3*fileCost || cut != filepath.Join(dir, "a", "1.log") {
		t.Errorf("%d files with %d bytes; cut off is %q", files, size, cut)
	}
	if n := strings.Count(told.String(), "\n"); n != 1 || !strings.Contains(told.String(), "--collect-logs-limit") {
		t.Errorf("told: %s", told.String())
	}
}

// Directories take their part of the limit, each once, and are not deep.
func TestFilesLimitOfDirectories(t *testing.T) {
	dir := t.TempDir()
	var told testutil.Buffer
	f := collectLogs(dir, 100*dirCost, zerolog.New(&told))
	for i := range 300 {
		f.begin("a", fileMessage{Path: fmt.Sprintf("%d/deep/er/file", i)})
		f.data("a", nil)
		f.begin("b", fileMessage{Path: fmt.Sprintf("file%d", i%20)})
		f.data("b", nil)
	}
	f.begin("a", fileMessage{Path: strings.Repeat("d/", deepest) + "file"})
	f.begin("a", fileMessage{Path: strings.Repeat("d/", deepest+1) + "file"})
	dirs := 0
	if err := filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs++
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if dirs < 60 || dirs > 101 {
		t.Errorf("%d directories were made", dirs)
	}
	if text := told.String(); strings.Count(text, "\n") != 2 ||
		!strings.Contains(text, "no more log files are collected") || !strings.Contains(text, "in more than 32 directories") {
		t.Errorf("told: %s", text)
	}
}

// What others have put where a log file goes is not written to.
func TestFilesPlanted(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.WriteFile(victim, []byte("old"), 0o600), os.Mkdir(filepath.Join(dir, "a"), 0o700),
		os.Symlink(victim, filepath.Join(dir, "a", "link")), unix.Mkfifo(filepath.Join(dir, "a", "fifo"), 0o600),
		os.Mkdir(filepath.Join(dir, "a", "other"), 0o700), os.Symlink("other", filepath.Join(dir, "a", "inside"))); err != nil {
		t.Fatal(err)
	}
	f := collectLogs(dir, 0, zerolog.Nop())
	for _, path := range []string{"link", "fifo", "inside/file", "x\x1b[2J", "."} {
		f.begin("a", fileMessage{Path: path})
		f.data("a", []byte("new"))
		f.close("a")
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "old" {
		t.Errorf("%q, %v", text, err)
	}
	if in, _ := os.ReadDir(filepath.Join(dir, "a", "other")); len(in) > 0 {
		t.Errorf("through a link: %v", in)
	}
	if in, _ := os.ReadDir(filepath.Join(dir, "a")); len(in) != 4 {
		t.Errorf("made: %v", in)
	}
}

// FuzzLogLine: whatever an agent says in its log is shown as a line of JSON, in which nothing speaks to a terminal.
func FuzzLogLine(f *testing.F) {
	f.Add("a", []byte(`{"level":"info","message":"m"}`))
	f.Add("\x1b[2J", []byte("\x1b]0;x\a\n\xff"))
	f.Fuzz(func(t *testing.T, node string, line []byte) {
		shown := strings.TrimSuffix(string(logLine(node, line)), "\n")
		if !json.Valid([]byte(shown)) || printable.Line(shown, len(shown)) != shown {
			t.Errorf("%q of %q becomes %q", line, node, shown)
		}
	})
}

// FuzzCollected: whatever a node calls its files, they lie below its directory.
func FuzzCollected(f *testing.F) {
	f.Add("node0", "attempt_0/1/stdout.log")
	f.Add("..", "../x")
	f.Add("a/b", "d/../../x")
	f.Add("\x00", "\x00")
	f.Fuzz(func(t *testing.T, node, path string) {
		above := t.TempDir()
		logs := collectLogs(filepath.Join(above, "logs"), 1<<20, zerolog.Nop())
		logs.begin(node, fileMessage{Path: path})
		logs.data(node, []byte("x"))
		logs.close(node)
		if err := filepath.WalkDir(above, func(at string, e os.DirEntry, err error) error {
			rel, _ := filepath.Rel(above, at)
			if parts := strings.Split(rel, "/"); err == nil && (parts[0] != "." && parts[0] != "logs" || !e.IsDir() && len(parts) < 3) {
				t.Errorf("%q of node %q is at %q", path, node, rel)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x10\x00\x00\x00\x02{}"))
	f.Add([]byte("\x12\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		w := frames{r: bytes.NewReader(data), most: maxFrame}
		for {
			_, payload, err := w.receive()
			if err != nil {
				return
			}
			if len(payload) > len(data) {
				t.Fatalf("%d bytes of %d", len(payload), len(data))
			}
		}
	})
}

// An order that no agent would take is told, and waits for nobody.
func TestOrderTooLong(t *testing.T) {
	f, _ := newFleet(t, machine("node0", obedient(Result{})))
	defer f.Close()
	if err := f.Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := f.Prepare(t.Context(), func(int) Order { return Order{Dir: strings.Repeat("x", maxFrame)} })
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "node0") {
			t.Errorf("error %v", err)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("the launcher waits for an answer to an order that it could not send")
	}
}

// An agent that has more to say than a launcher takes at once is not taken for noise: its node is well.
func TestAnswerTooLong(t *testing.T) {
	long := strings.Repeat("\x01", maxAnswer) // each is six bytes as JSON
	said := make(chan error, 1)
	f, shown := newFleet(t, machine("node0", func(l *Link) int {
		_ = l.Hello(Hello{Version: "test", Port: 1})
		if _, err := l.Order(context.Background()); err != nil {
			return 1
		}
		_ = l.Ready(Ready{})
		if l.Go(context.Background()) != nil {
			return 1
		}
		said <- l.Status(make([]byte, maxAnswer+1))
		if l.Result(Result{Status: 7, Report: "it begins so" + long, Error: long, Hint: long}) != nil {
			return 1
		}
		<-l.Lost()
		return 0
	}))
	o := run(t, f)
	if err := <-said; !errors.Is(err, errTooLong) {
		t.Errorf("the status: %v", err)
	}
	if o.Status != 7 || !strings.HasPrefix(o.Report, "it begins so") || len(o.Report) >= maxAnswer {
		t.Errorf("status %d, report %.40q of %d bytes\n%.1000s", o.Status, o.Report, len(o.Report), shown.String())
	}
}

// When the job ends while a lost machine is being reached again, the reason that is told is why it was lost.
func TestLostReason(t *testing.T) {
	trying := make(chan struct{})
	lost := func(l *Link) int {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
		return 137
	}
	stays := func(l *Link) int {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
		<-trying
		_ = l.Result(Result{Status: errhint.TryAgain, Error: "too few"})
		<-l.Lost()
		return 0
	}
	starts := 0
	away := Machine{Name: "away", Start: func(ctx context.Context) (Conn, error) {
		if starts++; starts == 1 {
			return agentConn(lost), nil
		}
		close(trying)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}}
	f, _ := newFleet(t, machine("stays", stays), away)
	o := run(t, f)
	if o.Errors == nil || !strings.Contains(o.Errors.Error(), "status 137") || strings.Contains(o.Errors.Error(), "canceled") {
		t.Errorf("%+v", o)
	}
}

// When a machine is given up and too few are left, the others are not left waiting for it: the job ends with 75, and
// the machine is named.
func TestTooFewLeft(t *testing.T) {
	testutil.Long(t)
	lost := func(l *Link) int {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
		return 137
	}
	var asked atomic.Bool
	waits := func(l *Link) int {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
		select {
		case <-l.Signals():
			asked.Store(true)
			_ = l.Result(Result{Status: 143})
			<-l.Lost()
		case <-l.Lost():
		}
		return 0
	}
	f, shown := newFleet(t, machine("waits", waits), machine("away", lost))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := f.Reach(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Prepare(ctx, func(int) Order { return Order{} }); err != nil {
		t.Fatal(err)
	}
	o := f.Run(ctx)
	if ctx.Err() != nil || !asked.Load() {
		t.Fatalf("the node that is left was not asked to end: %+v\n%s", o, shown.String())
	}
	if o.Status != errhint.TryAgain || o.Errors == nil || !strings.Contains(o.Errors.Error(), "node away was lost") || o.Decided != -1 {
		t.Errorf("%+v", o)
	}
	if !strings.Contains(shown.String(), "too few nodes are left") || !strings.Contains(shown.String(), `"away"`) {
		t.Errorf("nobody has said so:\n%s", shown.String())
	}
}

// pieces is a file that comes a little at a time.
type pieces int

func (p *pieces) Read(b []byte) (int, error) {
	if *p--; *p < 0 {
		return 0, io.EOF
	}
	time.Sleep(100 * time.Millisecond) // the pace of a slow disk
	return copy(b, bytes.Repeat([]byte("x"), maxOutput)), nil
}

// Log files that take longer to come home than nodes may take to end are brought home whole.
func TestFilesTakeTheirTime(t *testing.T) {
	slow := pieces(30)
	brings := func(l *Link) int {
		_ = l.Hello(Hello{})
		_, _ = l.Order(context.Background())
		_ = l.Ready(Ready{})
		_ = l.Go(context.Background())
		_ = l.File("big.log", 30*maxOutput, &slow)
		_ = l.Result(Result{})
		<-l.Lost()
		return 0
	}
	dir := t.TempDir()
	f, shown := newFleet(t, machine("short", obedient(Result{})), machine("long", brings))
	f.Linger, f.Logs = time.Second, collectLogs(dir, 1<<30, zerolog.Nop())
	o := run(t, f)
	if st, err := os.Stat(filepath.Join(dir, "long", "big.log")); err != nil || st.Size() != 30*maxOutput {
		t.Errorf("%v %v", st, err)
	}
	if o.Status != 0 || len(o.Unclean) > 0 {
		t.Errorf("%+v\n%s", o, shown.String())
	}
}
