package preempt

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"muster/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch is a watch of one source, which is asked again at once.
type watch struct {
	t    *testing.T
	told chan Notice
	log  *testutil.Buffer
}

// start watches a source until the test ends, or stop is called.
func start(t *testing.T, s *Source) (w *watch, stop func()) {
	t.Helper()
	if s.every > 0 {
		s.every = 5 * time.Millisecond
	}
	w = &watch{t: t, told: make(chan Notice, 16), log: &testutil.Buffer{}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, zerolog.New(w.log), func(n Notice) { w.told <- n }, s)
	}()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("the watch did not end")
		}
	}
	t.Cleanup(stop)
	return w, stop
}

// hear waits for a notice.
func (w *watch) hear() Notice {
	w.t.Helper()
	select {
	case n := <-w.told:
		return n
	case <-time.After(time.Minute):
		w.t.Fatalf("no notice came\n%s", w.log)
		return Notice{}
	}
}

// silent fails where a notice came.
func (w *watch) silent() {
	w.t.Helper()
	select {
	case n := <-w.told:
		w.t.Errorf("a notice too many: %+v", n)
	default:
	}
}

// logged waits until the log has a text.
func (w *watch) logged(text string) {
	w.t.Helper()
	testutil.Eventually(w.t, time.Minute, "the log has "+text, func() bool { return strings.Contains(w.log.String(), text) })
}

// counted counts how often a source is asked.
func counted(s *Source) (*Source, func() int64) {
	var n counter
	ask := s.ask
	s.ask = func(ctx context.Context) (*Notice, error) {
		defer n.Add(1)
		return ask(ctx)
	}
	return s, n.Load
}

// again waits until a source was asked twice more, so that what was there when it is called was seen.
func again(t *testing.T, asked func() int64) {
	t.Helper()
	from := asked()
	testutil.Eventually(t, time.Minute, "it was asked again", func() bool { return asked() >= from+2 })
}

func TestSignals(t *testing.T) {
	c := make(chan syscall.Signal, 2)
	w, _ := start(t, Signals(c))
	for range 2 { // each is a notice of its own
		c <- syscall.SIGUSR1
		if n := w.hear(); n.What != "SIGUSR1" || n.Source != "signal" {
			t.Errorf("%+v", n)
		}
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "going")
	write := func() {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write() // left over
	s, asked := counted(File(path))
	w, _ := start(t, s)
	again(t, asked)
	w.silent()
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if n := w.hear(); !strings.Contains(n.What, path) {
		t.Errorf("%+v", n)
	}
	again(t, asked)
	w.silent() // it stays
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	again(t, asked)
	write()
	w.hear()
	again(t, asked)
	w.silent()
}

func TestFileCannotBeLookedFor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, asked := counted(File(filepath.Join(file, "below")))
	w, _ := start(t, s)
	w.logged(`"level":"warn"`)
	again(t, asked)
	if n := strings.Count(w.log.String(), `"level":"warn"`); n != 1 {
		t.Errorf("%d warnings\n%s", n, w.log)
	}
}

// What cannot work is told at the first question, of which there may be no second one before the machine goes.
func TestTold(t *testing.T) {
	for name, s := range map[string]*Source{
		"a directory":  File(t.TempDir()),
		"no such tool": Command("no-such-tool-here", "no-such-tool-here", []string{"PATH=" + os.Getenv("PATH")}),
	} {
		t.Run(name, func(t *testing.T) {
			once := s.ask
			questions := 0
			s.ask = func(ctx context.Context) (*Notice, error) {
				if questions++; questions > 1 {
					<-ctx.Done()
				}
				return once(ctx)
			}
			w, _ := start(t, s)
			w.logged(`"level":"warn"`)
		})
	}
}

func TestCommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "going")
	s, asked := counted(Command("echo noise; test -e $FILE", "test -e (6 characters, not shown)",
		[]string{"PATH=" + os.Getenv("PATH"), "FILE=" + path}))
	w, _ := start(t, s)
	again(t, asked)
	w.silent()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := w.hear(); n.Source != "command test -e (6 characters, not shown)" {
		t.Errorf("%+v", n)
	}
	again(t, asked)
	w.silent()
	if log := w.log.String(); log != "" {
		t.Error(log)
	}
}

// TestCommandHangs has a command that ignores what asks it to end: it is killed, and is asked again.
func TestCommandHangs(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	w, stop := start(t, commandWithin(200*time.Millisecond, "trap '' TERM INT; echo $$ >> "+mark+"; while :; do sleep 1000; done", nil))
	w.logged("ran longer than 200ms and was killed")
	testutil.Eventually(t, time.Minute, "it runs again", func() bool {
		text, _ := os.ReadFile(mark)
		return strings.Count(string(text), "\n") > 1
	})
	w.silent()
	stop()
	text, _ := os.ReadFile(mark)
	for pid := range strings.FieldsSeq(string(text)) {
		testutil.Eventually(t, time.Minute, "it is gone", func() bool { _, err := os.Stat("/proc/" + pid); return err != nil })
	}
}

// TestCommandEnds ends a watch whose command hangs.
func TestCommandEnds(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	_, stop := start(t, commandWithin(time.Hour, "echo >"+mark+"; sleep 1000", nil))
	testutil.Eventually(t, time.Minute, "it runs", func() bool { _, err := os.Stat(mark); return err == nil })
	stop()
}

func TestCommandNotThere(t *testing.T) {
	w, _ := start(t, Command("no-such-command-anywhere", "x", nil))
	w.logged("status 127")
	w.logged("--ckpt-on-command")
	w.silent()
}
