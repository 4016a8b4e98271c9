package hosts

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
)

// TestSimulatedEnding: a node that its launcher has told to end takes that for a request to stop the job. The launcher
// knows why it did so, and says that, while the job ends and afterwards.
func TestSimulatedEnding(t *testing.T) {
	t.Parallel()
	s := simulatedStatus{began: time.Now()}
	s.take("node-0", report.Status{Phase: report.PhaseRunning, Nodes: 2})
	s.ends(job.ReasonNotMet, "too few are left")
	stopping := report.Status{Phase: report.PhaseTerminating, Reason: job.ReasonStopped, Message: "muster was asked to stop", Nodes: 1}
	d := s.take("node-0", stopping)
	if d.Phase != report.PhaseTerminating || d.Reason != job.ReasonNotMet || d.Message != "too few are left" {
		t.Errorf("while it ends: %+v", d)
	}
	s.end(nil, report.Status{}, report.Outcome{Reason: job.ReasonNotMet, Status: 75})
	if d, ok := s.known(); !ok || d.Phase != report.PhaseFailed || d.Reason != job.ReasonNotMet {
		t.Errorf("at the end: %+v", d)
	}
}

// TestSimulatedNodeLeaves: a node that leaves a smaller job may have ended before anybody says that it was asked to. Its
// status is not that of the job.
func TestSimulatedNodeLeaves(t *testing.T) {
	t.Parallel()
	tree, err := proc.Open(proc.Config{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tree.Close() }()
	s := &simulation{config: SimulationConfig{Job: job.Job{Nodes: job.Range{Min: 1, Max: 2}}}}
	for i, script := range []string{"exit 143", "exit 0"} {
		p, err := tree.Start(proc.Spec{Path: "/bin/sh", Args: []string{"sh", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		s.nodes = append(s.nodes, &simulatedNode{Process: p, index: i})
	}
	dir := t.TempDir()
	server, err := control.Serve(control.Config{Dir: dir, Log: zerolog.Nop(), Served: &smallerJob{leave: func() { s.left(s.nodes[1]) }}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	fewer := control.Request{What: control.ScaleRequested, Wanted: control.Wanted{Nodes: 1}}
	if _, err := s.scale(t.Context(), control.Dial(dir), fewer); err != nil {
		t.Fatal(err)
	}
	if err := s.outcome(t.Context()); !errors.Is(err, errhint.StatusError(143)) {
		t.Errorf("the job ends as the node that left it: %v", err)
	}
	if _, err := s.scale(t.Context(), control.Dial(dir), fewer); err == nil || s.leaving != 0 {
		t.Errorf("%d nodes are to leave by a request that was refused: %v", s.leaving, err)
	}
}

// smallerJob is a node of two, of which another one leaves as it is asked for one, once.
type smallerJob struct {
	control.Served
	leave func()
}

func (j *smallerJob) Status(context.Context, control.Scope) (report.Status, error) {
	return report.Status{Phase: report.PhaseRunning, Nodes: 2}, nil
}
func (j *smallerJob) Asked(control.Request)          {}
func (j *smallerJob) Refused(control.Request, error) {}
func (j *smallerJob) Do(context.Context, control.Request) (string, error) {
	if j.leave == nil {
		return "", errors.New("not again")
	}
	j.leave()
	j.leave = nil
	return "of the others (1) leave", nil
}
