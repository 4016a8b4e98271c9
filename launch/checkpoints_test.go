package launch

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/preempt"
	"muster/internal/python"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/rendezvous"
)

// keeper is a Checkpoints that remembers what it was told to save.
type keeper struct{ saved chan string }

func (k keeper) BeginRound(context.Context, rendezvous.Round, rendezvous.Board, bool) error {
	return nil
}
func (k keeper) RoundOver(string)            {}
func (k keeper) Save(why string)             { k.saved <- why }
func (k keeper) Label() string               { return "" }
func (k keeper) Drain(context.Context) error { return nil }
func (k keeper) Close() error                { return nil }

// TestNotice has a cloud say when its machine will end. The agent saves, tells the deadline, and makes the file for workers.
func TestNotice(t *testing.T) {
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/latest/api/token":
			_, _ = fmt.Fprint(w, "token")
		case "/latest/meta-data/spot/instance-action":
			_, _ = fmt.Fprint(w, `{"action": "terminate", "time": "2026-11-22T18:22:00Z"}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer cloud.Close()
	log, k := &testutil.Buffer{}, keeper{make(chan string, 1)}
	a := Agent{Plan: &Plan{RunDir: t.TempDir()}, Log: zerolog.New(log), Notices: preempt.Cloud("aws", cloud.URL), checkpoints: k}
	stop := a.watchNotices(t.Context())
	select {
	case why := <-k.saved:
		if !strings.Contains(why, "AWS") || !strings.Contains(why, "terminate") {
			t.Error(why)
		}
	case <-time.After(time.Minute):
		t.Fatalf("nothing was saved\n%s", log)
	}
	stop()
	if text := log.String(); !strings.Contains(text, "2026-11-22T18:22:00Z") || !strings.Contains(text, "terminate") {
		t.Error(text)
	}
	if _, err := os.Stat(filepath.Join(a.Plan.RunDir, preemptedFile)); err != nil {
		t.Error(err)
	}
}

func TestCheckpointEnvironment(t *testing.T) {
	m := testMachine(t.TempDir())
	dir := filepath.Join(m.RuntimeDir, "muster/job-job 7_a/python")
	for name, try := range map[string]struct {
		rules job.CheckpointRules
		old   []string
		nodes int
		want  map[string]string
	}{
		"off":                        {job.CheckpointRules{}, nil, 1, map[string]string{"MUSTER_SOCKET": "", "PYTHONPATH": ""}},
		"on":                         {job.CheckpointRules{On: true}, nil, 1, map[string]string{"MUSTER_SOCKET": filepath.Join(filepath.Dir(dir), "socket"), "PYTHONPATH": dir, "MUSTER_CKPT_DIR": ""}},
		"behind others":              {job.CheckpointRules{On: true, Dir: "/ck"}, []string{"PYTHONPATH=/a:/b"}, 1, map[string]string{"PYTHONPATH": "/a:/b:" + dir, "MUSTER_CKPT_DIR": "/ck"}},
		"empty":                      {job.CheckpointRules{On: true}, []string{"PYTHONPATH="}, 1, map[string]string{"PYTHONPATH": dir}}, // an empty entry would be the working directory
		"several nodes with a token": {job.CheckpointRules{On: true}, []string{"token"}, 2, map[string]string{"PYTHONPATH": dir, "MUSTER_SOCKET": filepath.Join(filepath.Dir(dir), "socket")}},
		"in front of others":         {job.CheckpointRules{On: true, Shim: python.ShimAlways}, []string{"PYTHONPATH=/a:/b"}, 1, map[string]string{"PYTHONPATH": dir + ":/a:/b"}},
		"several nodes":              {job.CheckpointRules{On: true}, nil, 2, map[string]string{"PYTHONPATH": dir, "MUSTER_SOCKET": filepath.Join(filepath.Dir(dir), "socket")}},
		"no saver":                   {job.CheckpointRules{Shim: python.ShimBarred}, []string{"PYTHONPATH=/a"}, 1, map[string]string{"PYTHONPATH": dir + ":/a", "MUSTER_SOCKET": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			j := testJob("1")
			j.Checkpoint, j.Nodes = try.rules, job.Range{Min: try.nodes, Max: try.nodes}
			m := m
			if slices.Equal(try.old, []string{"token"}) {
				try.old, m.Token = nil, true
			}
			j.Environ = append(j.Environ, try.old...)
			p, err := NewPlan(j, m)
			if err != nil {
				t.Fatal(err)
			}
			w, err := p.Worker(testRound(1), 0, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			set := w.Env.set()
			for name, want := range try.want {
				if set[name] != want {
					t.Errorf("%s=%q, want %q", name, set[name], want)
				}
			}
		})
	}
}

// The package dlrover of a job that does not want it is not there.
func TestCheckpointShim(t *testing.T) {
	for shim, want := range map[python.Shim]bool{python.ShimAuto: true, python.ShimAlways: true, python.ShimNever: false} {
		j := testJob("1")
		j.Checkpoint = job.CheckpointRules{On: true, Shim: shim}
		p, err := NewPlan(j, testMachine(t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{Plan: p}
		if err := a.openCheckpoints(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(p.RunDir, pythonDir, "dlrover", "__init__.py")); (err == nil) != want {
			t.Errorf("shim %q: %v", shim, err)
		}
	}
}

// TestWrongPath: a disk that is in trouble is not the user's mistake.
func TestWrongPath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":      {nil, false},
		"a file":       {writable(file), true},
		"below a file": {writable(filepath.Join(file, "a", "b")), true},
		"a disk fails": {&os.PathError{Op: "stat", Path: "/data", Err: unix.EIO}, false},
		"a stale one":  {&os.PathError{Op: "stat", Path: "/data", Err: unix.ESTALE}, false},
	} {
		if got := isWrongPath(c.err); got != c.want {
			t.Errorf("%s: %v is said to be the user's mistake: %t", name, c.err, got)
		}
	}
}
