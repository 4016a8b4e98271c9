package launch

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/preempt"
	"muster/internal/python"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous"
)

// keeper is a Checkpoints that remembers what it was told to save.
type keeper struct{ saved chan string }

func (k keeper) BeginRound(context.Context, rendezvous.Round, rendezvous.Board, bool) error {
	return nil
}
func (k keeper) RoundOver(string)                                {}
func (k keeper) Save(why string)                                 { k.saved <- why }
func (k keeper) Label() string                                   { return "" }
func (k keeper) Wrote() (parts, bytes int64, took time.Duration) { return 0, 0, 0 }
func (k keeper) Drain(context.Context) error                     { return nil }
func (k keeper) Close() error                                    { return nil }

// TestNotice has a cloud say when its machine will end. The agent saves, tells the deadline, and makes the file for
// workers.
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
	a := Agent{Plan: &plan.Plan{RunDir: t.TempDir()}, Log: zerolog.New(log), Notices: preempt.Cloud("aws", cloud.URL), checkpoints: k}
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

// The package dlrover of a job that does not want it is not there.
func TestCheckpointShim(t *testing.T) {
	for shim, want := range map[python.Shim]bool{python.ShimAuto: true, python.ShimAlways: true, python.ShimNever: false} {
		dir := t.TempDir()
		p, err := plan.New(job.Job{
			Procs: "1", Command: job.Command{Name: "true"}, Environ: []string{"PATH=" + os.Getenv("PATH")},
			Checkpoint: job.CheckpointRules{On: true, Shim: shim},
		}, plan.Machine{Dir: dir, RuntimeDir: dir, TempDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{Plan: p}
		if err := a.openCheckpoints(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(p.PythonDir(), "dlrover", "__init__.py")); (err == nil) != want {
			t.Errorf("shim %q: %v", shim, err)
		}
	}
}
