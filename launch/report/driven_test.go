package report_test

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/launch/job"
	"muster/launch/report"
)

// What a host tells of its workers counts for the processes that run there now, whatever ranks they have.
func TestDrivenUsed(t *testing.T) {
	t.Parallel()
	var told report.Status
	d, err := report.OpenDriven(job.Job{RunID: "r"}, "here", nil, "", func(s report.Status) { told = s }, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	seen := func(pid, local int, cpu float64) report.Status {
		bytes, at := int64(4096), time.Unix(1, 0)
		return report.Status{
			Ranks: []report.Rank{{
				Node: "other", Rank: 7, LocalRank: local, PID: pid,
				CPUSeconds: &cpu, ResidentBytes: &bytes, UsageTime: &at, LastOutput: &at,
			}},
			Tasks: []report.Task{{Node: "other", Traffic: []report.Traffic{{Interface: "eth0", SentBytes: 9}}}},
		}
	}
	d.World(1, []report.DrivenHost{{Name: "a", Ranks: []int{0}}, {Name: "b", Ranks: []int{1, 2}}})
	d.Used("b", seen(12, 1, 1)) // before it is known which process that is
	d.Started("a", 0, 10)
	d.Started("b", 0, 11)
	d.Started("b", 1, 12)
	before := told
	d.Used("b", seen(12, 1, 3))
	d.Used("b", seen(99, 0, 5)) // a process that was there before
	if before.Ranks[2].CPUSeconds != nil {
		t.Error("what was told before has changed")
	}
	for rank, r := range told.Ranks {
		has := r.CPUSeconds != nil && *r.CPUSeconds == 3 && r.ResidentBytes != nil && r.UsageTime != nil && r.LastOutput != nil
		if has != (rank == 2) || r.Rank != rank {
			t.Errorf("rank %d: %+v", rank, r)
		}
	}
	if len(told.Tasks[0].Traffic) != 0 || len(told.Tasks[1].Traffic) != 1 {
		t.Errorf("traffic: %+v", told.Tasks)
	}
	d.Gone("a", 0, 10, report.PhaseUnknown)
	d.World(2, []report.DrivenHost{{Name: "b", Ranks: []int{0, 1}}})
	if r := told.Ranks[1]; r.PID != 12 || r.CPUSeconds == nil || *r.CPUSeconds != 3 || len(told.Tasks[0].Traffic) != 1 {
		t.Errorf("in the next world: %+v %+v", r, told.Tasks)
	}
	d.Ended(report.DrivenEnd{Size: 2})
	ended := told
	d.Used("b", seen(12, 1, 8))
	if *told.Ranks[1].CPUSeconds != 3 || ended.EndTime == nil {
		t.Errorf("a job that has ended: %+v", told.Ranks[1])
	}
}

// A worker that has ended runs no more, also before a next world begins, and one that is started in its place does.
func TestDrivenGone(t *testing.T) {
	t.Parallel()
	var told report.Status
	d, err := report.OpenDriven(job.Job{RunID: "r"}, "here", nil, "", func(s report.Status) { told = s }, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	d.World(1, []report.DrivenHost{{Name: "a", Ranks: []int{0}}, {Name: "b", Ranks: []int{1}}})
	d.Started("a", 0, 10)
	d.Started("b", 0, 11)
	cpu := 1.5
	d.Used("b", report.Status{Ranks: []report.Rank{{PID: 11, CPUSeconds: &cpu}}})
	before := told
	d.Gone("b", 0, 9, report.PhaseFailed) // one that was there before
	if r := told.Ranks[1]; r.Phase != report.PhaseRunning || r.CPUSeconds == nil {
		t.Errorf("%+v", r)
	}
	d.Gone("b", 0, 11, report.PhaseUnknown)
	if r := told.Ranks[1]; r.Phase != report.PhaseUnknown || r.CPUSeconds != nil || told.Ranks[0].Phase != report.PhaseRunning {
		t.Errorf("%+v", told.Ranks)
	}
	if before.Ranks[1].Phase != report.PhaseRunning {
		t.Error("what was told before has changed")
	}
	d.World(2, []report.DrivenHost{{Name: "a", Ranks: []int{0}}, {Name: "b", Ranks: []int{1}}})
	if r := told.Ranks[1]; r.PID != 0 {
		t.Errorf("it is still there: %+v", r)
	}
	d.Gone("a", 0, 10, report.PhaseStopped)
	d.Started("a", 0, 12)
	d.Started("b", 0, 13)
	if r := told.Ranks[0]; r.PID != 12 || r.Phase != report.PhaseRunning {
		t.Errorf("the next one does not run: %+v", r)
	}
}
