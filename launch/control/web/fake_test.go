package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/report"
)

// world is a job of many ranks that take steps.
type world struct {
	mu     sync.Mutex
	status report.Status
	events control.Events
	logs   map[int][]control.LogFiles
	asked  atomic.Int64
	peers  []control.Peer
	still  bool // nothing changes between two looks
}

// newWorld is a job of so many ranks, eight on each node.
func newWorld(ranks int) *world {
	perNode := min(8, max(1, ranks/2))
	w := &world{logs: map[int][]control.LogFiles{}}
	began := time.Now().Add(-50 * time.Minute).UTC()
	w.status = report.Status{
		Version: 1, RunID: "train-7", Name: "train.py", Phase: report.PhaseRunning, StartTime: &began, Generation: 2, RestartCount: 2,
		Nodes: (ranks + perNode - 1) / perNode, WorldSize: ranks, Tasks: []report.Task{}, Conditions: []report.Condition{},
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same each time
	for i := range ranks {
		cpu, bytes, step, out := random.Float64()*1000, int64(2e9+random.Float64()*1e9), 0.21+random.Float64()*0.02, began
		used, total, busy := int64(30e9+random.Float64()*40e9), int64(81559<<20), 0.7+random.Float64()*0.3
		w.status.Ranks = append(w.status.Ranks, report.Rank{
			Devices: []report.DeviceUse{{Index: i % perNode, MemoryBytes: &used, MemoryTotalBytes: &total, Utilization: &busy}},
			Node:    fmt.Sprintf("node-%d", i/perNode), Rank: i, LocalRank: i % perNode, PID: 4000 + i, Phase: report.PhaseRunning,
			Restarts:  2,
			StartTime: &began, CPUSeconds: &cpu, ResidentBytes: &bytes, LastOutput: &out,
			Progress: &report.Progress{
				Step: 12000, Total: 50000, StepSeconds: &step, Values: map[string]float64{"loss": 2.31},
				Time: began,
			},
		})
	}
	for node := range w.status.Nodes {
		first, last := node*perNode, min(ranks, node*perNode+perNode)-1
		w.status.Tasks = append(w.status.Tasks, report.Task{
			Node: fmt.Sprintf("node-%d", node), Ranks: fmt.Sprintf("%d-%d", first, last), Phase: report.PhaseRunning,
		})
	}
	return w
}

func (w *world) Status(context.Context, control.Scope) (report.Status, error) {
	w.asked.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.status
	if !w.still {
		now := time.Now().UTC()
		for i := range w.status.Ranks {
			r := &w.status.Ranks[i]
			if r.Phase != report.PhaseRunning {
				continue
			}
			cpu, p := *r.CPUSeconds+0.09, *r.Progress
			p.Step, p.Time = p.Step+1, now
			r.CPUSeconds, r.LastOutput, r.Progress = &cpu, &now, &p
		}
	}
	d.Ranks = slices.Clone(w.status.Ranks)
	return d, nil
}

func (w *world) Rank(_ context.Context, rank int) (control.Rank, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if rank >= len(w.status.Ranks) {
		return control.Rank{}, errhint.Usagef("the job has no rank %d", rank)
	}
	return control.Rank{RunID: "train-7", Rank: rank, Logs: w.logs[rank], Env: []string{"SECRET=hidden"}}, nil
}

func (w *world) Asked(r control.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.What == control.StopRequested {
		w.peers = append(w.peers, r.By)
	}
}

func (w *world) Refused(control.Request, error) {}

func (w *world) Do(_ context.Context, r control.Request) (string, error) {
	switch r.What { //nolint:exhaustive // the others have the same form
	case control.StopRequested:
		return "the job is being stopped", nil
	case control.RestartRequested:
		return "", errhint.Code(errors.New("the workers do not run"), errhint.TryAgain)
	case control.ScaleRequested:
		return "it scales", nil
	case control.KillRequested:
		return "one is lost", nil
	case control.PauseRequested:
		return "it pauses", nil
	}
	return fmt.Sprintf("it goes on with %q", []string(r.Command)), nil
}

func (w *world) Events() *control.Events { return &w.events }

// writes makes the log file of a rank.
func (w *world) writes(t *testing.T, rank int, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), fmt.Sprintf("rank-%d.log", rank))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logs[rank] = append([]control.LogFiles{{Began: time.Now(), Stdout: path}}, w.logs[rank]...)
	return path
}

// serve serves a job at a free port of loopback.
func serve(t *testing.T, cfg Config) *Server {
	t.Helper()
	return serveAt(t, "127.0.0.1:0", cfg)
}

func serveAt(t *testing.T, address string, cfg Config) *Server {
	t.Helper()
	l, err := Listen(t.Context(), address, len(cfg.Token) > 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Muster.RunDir, cfg.Log = t.Name(), zerolog.New(io.Discard)
	s := Serve(l, cfg)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask asks for a path, with headers as name and value in turn.
func ask(t *testing.T, s *Server, method, path string, body io.Reader, headers ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path[1:], body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}
