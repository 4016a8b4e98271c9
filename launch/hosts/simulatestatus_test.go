package hosts

import (
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/proc"
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

// TestSimulatedNodeLeaves: the status of a node that left a job which was to have fewer is not that of the job. Only such a node
// says that it left.
func TestSimulatedNodeLeaves(t *testing.T) {
	t.Parallel()
	tree, err := proc.Open(proc.Config{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tree.Close() }()
	for said, want := range map[string]int{
		`{"phase":"Succeeded","reason":"ScaledDown"}`:   143,
		`{"phase":"Succeeded","reason":"JobSucceeded"}`: 0,
		"": 0,
	} {
		s := &simulation{config: SimulationConfig{Job: job.Job{Nodes: job.Range{Min: 2, Max: 3}}}}
		for i, script := range []string{"exit 143", "exit 0", "exit 143"} {
			p, err := tree.Start(proc.Spec{Path: "/bin/sh", Args: []string{"sh", "-c", script}})
			if err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			s.nodes = append(s.nodes, &simulatedNode{Process: p, index: i})
		}
		s.nodes[1].state = said
		for _, n := range s.nodes {
			s.left(n)
		}
		got := errhint.OK
		if status, is := errors.AsType[errhint.StatusError](s.outcome(t.Context())); is {
			got = int(status)
		}
		if got != want {
			t.Errorf("a node has said %s: the job ends with %d, want %d", said, got, want)
		}
	}
}
