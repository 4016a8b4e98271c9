package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/node"
	"muster/launch/plan"
	"muster/rendezvous/place"
)

// here is a machine whose facts are those of the test.
type here struct {
	dir     string
	problem error // of looking at it
	workers int   // that its devices are for
	unbound error
	printed []error
}

func (h *here) Machine(job.Job, zerolog.Logger) (plan.Machine, error) {
	return plan.Machine{
		Dir: h.dir, Hostname: "node-7", RuntimeDir: h.dir, TempDir: h.dir,
		CountWorkers: func(string) (int, string, error) {
			if h.workers == 0 {
				return 0, "", errors.New("there is no device")
			}
			return h.workers, "of the test", nil
		},
		CountDevices: func() int { return h.workers },
		BindWorkers:  func(string, int) ([][]int, error) { return nil, h.unbound },
	}, h.problem
}

func (h *here) Meeting(p *plan.Plan, log zerolog.Logger) place.Config {
	return place.Config{Job: &p.Job, RunID: p.RunID, Hostname: p.Hostname, MasterHost: p.MasterHost(), Log: log}
}

func (h *here) Checker(context.Context, *plan.Plan, place.Reach, zerolog.Logger) launch.Checker {
	return nil
}

func (h *here) Examiner(*plan.Plan, place.Reach, zerolog.Logger) func(context.Context) launch.Checker {
	return nil
}

func (h *here) Agent(*plan.Plan, place.Reach, *launch.Interrupts, zerolog.Logger) *launch.Agent {
	return &launch.Agent{}
}

func (h *here) Launched() bool { return false }

func (h *here) PassEvents() func([]byte) { return nil }

func (h *here) PrintError(err error) { h.printed = append(h.printed, err) }

func aJob(procs string) job.Job {
	return job.Job{
		Dialect: "run", RunID: "one", Procs: procs, Role: "trainer", Command: job.Command{Kind: job.Program, Name: "true"},
		Environ: []string{"PATH=/usr/bin:/bin"}, Nodes: job.Range{Min: 1, Max: 1},
	}
}

// TestPlan: who starts a job is told how many workers muster has taken for a word.
func TestPlan(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p, err := node.Plan(t.Context(), aJob("gpu"), &here{dir: t.TempDir(), workers: 3}, zerolog.New(&log))
	if err != nil || p.Procs != 3 || p.Hostname != "node-7" {
		t.Fatalf("%+v, %v", p, err)
	}
	if !strings.Contains(log.String(), `"local_world_size":3,"reason":"of the test"`) {
		t.Errorf("log %s", log.String())
	}
	log.Reset()
	if _, err := node.Plan(t.Context(), aJob("2"), &here{dir: t.TempDir()}, zerolog.New(&log)); err != nil || log.Len() > 0 {
		t.Errorf("a number was announced: %s, %v", log.String(), err)
	}
	for problem, h := range map[string]*here{
		"no directory": {problem: errors.New("no directory")}, "there is no device": {dir: t.TempDir()},
	} {
		if p, err := node.Plan(t.Context(), aJob("gpu"), h, zerolog.Nop()); p != nil || err == nil ||
			!strings.Contains(err.Error(), problem) {
			t.Errorf("%+v, %v", p, err)
		}
	}
}

// TestPreflight: a node that cannot be planned has facts all the same, which say why, with hint and status.
func TestPreflight(t *testing.T) {
	t.Parallel()
	p, facts, err := node.Preflight(t.Context(), aJob("2"), &here{dir: t.TempDir()}, zerolog.Nop())
	if err != nil || p == nil || facts == nil || facts.Problem != "" {
		t.Errorf("%+v, %+v, %v", p, facts, err)
	}
	missing := aJob("2")
	missing.Command.Name = "/gone/program"
	p, facts, err = node.Preflight(t.Context(), missing, &here{dir: t.TempDir()}, zerolog.Nop())
	if p != nil || facts == nil || err == nil || facts.Problem != err.Error() || errhint.CodeOf(err) != facts.Status ||
		errhint.Of(err) != facts.Hint || facts.Status == errhint.OK {
		t.Errorf("%+v, %+v, %v", p, facts, err)
	}
	problem := errors.New("no directory")
	if _, facts, err := node.Preflight(t.Context(), aJob("2"), &here{problem: problem}, zerolog.Nop()); facts != nil ||
		!errors.Is(err, problem) {
		t.Errorf("%+v, %v", facts, err)
	}
}

// TestStopped: a signal that ends the meeting is the status of muster, anything else an error.
func TestStopped(t *testing.T) {
	t.Parallel()
	err := node.Stopped(fmt.Errorf("cannot meet: %w", &launch.SignalError{Signal: syscall.SIGTERM}))
	if status, ok := errors.AsType[errhint.StatusError](err); !ok || int(status) != 128+15 {
		t.Errorf("%v", err)
	}
	other := errors.New("nobody came")
	if err := node.Stopped(other); !errors.Is(err, other) {
		t.Errorf("%v", err)
	}
}

// TestMeet: the agent of a job on one node has a plan, a handler and what the signals of muster do.
func TestMeet(t *testing.T) {
	h := &here{dir: t.TempDir()}
	p, err := node.Plan(t.Context(), aJob("1"), h, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, in := launch.WatchSignals(t.Context(), []syscall.Signal{syscall.SIGTERM}, 0)
	defer in.Close()
	agent, err := node.Meet(ctx, p, h, in, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if agent.Steering == nil || agent.Plan != p || agent.Handler == nil || agent.Checker != nil || agent.Hurry == nil ||
		agent.Forward == nil {
		t.Errorf("%+v", agent)
	}
	if err := errors.Join(agent.Handler.Close(), agent.Steering.Close()); err != nil {
		t.Error(err)
	}
}

// TestCompat: a job that is to fail as under other launchers ends with status 1 and its error printed once; refused input
// keeps its status.
func TestCompat(t *testing.T) {
	t.Parallel()
	failed, refused := errors.New("it failed"), errhint.Usagef("no such flag")
	for _, c := range []struct {
		compat  bool
		err     error
		want    int
		printed int
	}{
		{false, failed, errhint.CodeOf(failed), 0},
		{true, failed, 1, 1},
		{true, refused, errhint.Usage, 0},
		{true, nil, errhint.OK, 0},
		{true, errhint.StatusError(75), 1, 0}, // about which all has been said
	} {
		h := &here{}
		got := node.Compat(&job.Job{CompatExit: c.compat}, c.err, h.PrintError)
		status := errhint.CodeOf(got)
		if s, ok := errors.AsType[errhint.StatusError](got); ok {
			status = int(s)
		}
		if status != c.want || len(h.printed) != c.printed || (got == nil) != (c.err == nil) {
			t.Errorf("%+v: status %d, %v, printed %v", c, status, got, h.printed)
		}
	}
}
