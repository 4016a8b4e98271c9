package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
)

// A summary says what became of a job, in a file and, where it was long, in a line.
func TestSummary(t *testing.T) {
	slow, fast, status := 0.84, 0.5, 0
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var rounds Rounds
	for i, nodes := range []int{0, 4, 4, 3, 3, 5} {
		rounds.Take(&Status{Nodes: nodes, WorldSize: 2 * nodes, Generation: i}, began.Add(time.Duration(i)*time.Minute))
	}
	d := Status{
		RunID: "a", Phase: PhaseSucceeded, ExitStatus: &status, StartTime: &began, EndTime: &began,
		Accounting: &Accounting{
			WallSeconds: 550, Goodput: 0.9, Seconds: map[string]float64{"good": 495, "import": 33, "restart": 22, "check": 0, "stop": 0.01},
			Restarts: map[job.Reason]int{"WorkerFailed": 2, "NodeLost": 1}, Checkpoints: &WrittenParts{Parts: 3, Bytes: 12e9, Seconds: 4},
		},
		Ranks: []Rank{
			{Rank: 0, Node: "n1", Progress: &Progress{Step: 9, StepSeconds: &fast}},
			{Rank: 1, Node: "n2"},
			{Rank: 5, Node: "n\n2", Progress: &Progress{Step: 8, StepSeconds: &slow}},
		},
	}
	s := NewSummary(d, rounds)
	want := `9m10s: 90.0% good, 6.0% import, 4.0% restart; 3 restarts; 2 nodes came, 1 went; 3 parts of checkpoints written (12.0 GB); ` +
		`slowest: rank 5 on n\n2 (0.84 s a step)`
	if got := s.Text(); got != want {
		t.Errorf("%s\n%s", got, want)
	}
	d.Accounting.WallSeconds = 59
	if got := s.Text(); got != "" {
		t.Errorf("of a short job: %s", got)
	}
	path := filepath.Join(t.TempDir(), "summary")
	if err := s.WriteTo(path); err != nil {
		t.Fatal(err)
	}
	var back Summary
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &back) != nil || len(back.Rounds) != 3 || back.Rounds[2].Nodes != 5 || back.Slowest[0].Rank != 5 {
		t.Errorf("%v %s", err, text)
	}
	for _, wrong := range []string{t.TempDir(), filepath.Join(path, "x"), "/nowhere/summary"} {
		if err := CheckSummary(wrong, nil); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	if err := CheckSummary(path, nil); err != nil {
		t.Error(err)
	}
	out, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := CheckSummary(path, []*os.File{out}); err == nil {
		t.Error("it is where our output goes")
	}
	for i := range 2 * mostRounds {
		rounds.Take(&Status{Nodes: 1 + i%2}, began)
	}
	if n := len(NewSummary(d, rounds).Rounds); n != mostRounds {
		t.Errorf("%d rounds", n)
	}
}
