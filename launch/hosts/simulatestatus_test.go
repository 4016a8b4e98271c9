package hosts

import (
	"testing"
	"time"

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
