package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/job"
)

// Summary is what is told of a job when it has ended. docs/metrics.md describes it for its readers: fields are added,
// never renamed.
type Summary struct {
	Version      int        `json:"version"`
	RunID        string     `json:"runId"`
	Name         string     `json:"name"`
	Phase        Phase      `json:"phase"`
	Reason       job.Reason `json:"reason,omitempty"`
	Message      string     `json:"message,omitempty"`
	ExitStatus   *int       `json:"exitStatus"`
	StartTime    *time.Time `json:"startTime"`
	EndTime      *time.Time `json:"endTime"`
	WorldSize    int        `json:"worldSize"`
	RestartCount int        `json:"restartCount"`
	Replacements int        `json:"replacements"`
	// Rounds are the newest mostRounds in which the number of nodes or workers was another one: nodes came, or went.
	Rounds []SummaryRound `json:"rounds"`
	// Accounting is what time went to.
	Accounting *Accounting `json:"accounting,omitempty"`
	// Slowest are ranks by their step time, the slowest first, at most mostSlow.
	Slowest []SummaryRank `json:"slowestRanks,omitempty"`
}

// SummaryRound is a round that had another number of nodes or workers than the one before.
type SummaryRound struct {
	Generation int       `json:"generation"`
	Time       time.Time `json:"time"`
	Nodes      int       `json:"nodes"`
	WorldSize  int       `json:"worldSize"`
}

// SummaryRank is a rank and the median time of its last steps.
type SummaryRank struct {
	Rank        int     `json:"rank"`
	Node        string  `json:"node"`
	Step        int64   `json:"step"`
	StepSeconds float64 `json:"stepSeconds"`
}

// mostRounds and mostSlow bound a summary.
const (
	mostRounds = 256
	mostSlow   = 8
)

// Rounds gathers what a Summary tells of rounds. The zero value has none.
type Rounds struct{ list []SummaryRound }

// Take takes in how the job stands.
func (r *Rounds) Take(d *Status, now time.Time) {
	if d.Nodes == 0 {
		return
	}
	if n := len(r.list); n > 0 && r.list[n-1].Nodes == d.Nodes && r.list[n-1].WorldSize == d.WorldSize {
		return
	}
	if len(r.list) == mostRounds {
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, SummaryRound{d.Generation, now.UTC().Round(time.Millisecond), d.Nodes, d.WorldSize})
}

// NewSummary is the summary of a job that has ended.
func NewSummary(d Status, rounds Rounds) Summary {
	s := Summary{
		Version: 1, RunID: d.RunID, Name: d.Name, Phase: d.Phase, Reason: d.Reason, Message: d.Message, ExitStatus: d.ExitStatus,
		StartTime: d.StartTime, EndTime: d.EndTime, WorldSize: d.WorldSize, RestartCount: d.RestartCount, Replacements: d.Replacements,
		Rounds: append([]SummaryRound{}, rounds.list...), Accounting: d.Accounting,
	}
	for _, r := range d.Ranks {
		if p := r.Progress; p != nil && p.StepSeconds != nil {
			s.Slowest = append(s.Slowest, SummaryRank{r.Rank, r.Node, p.Step, *p.StepSeconds})
		}
	}
	slices.SortStableFunc(s.Slowest, func(a, b SummaryRank) int { return cmp.Compare(b.StepSeconds, a.StepSeconds) })
	s.Slowest = s.Slowest[:min(len(s.Slowest), mostSlow)]
	return s
}

// CheckSummary refuses a file to which no summary could be written; empty is none. outputs are muster's own output.
func CheckSummary(path string, outputs []*os.File) error {
	if path == "" {
		return nil
	}
	target, err := replaceable(path, outputs)
	if err == nil {
		err = unix.Access(filepath.Dir(target), unix.W_OK)
	}
	if err == nil {
		return nil
	}
	return errhint.With(errhint.Usagef("cannot write the summary %q: %w", path, err),
		"give a regular file in a directory that exists and is writable")
}

// WriteTo replaces a file with the summary as JSON.
func (s *Summary) WriteTo(path string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write the summary: %w", err)
	}
	target, err := durable.Target(path)
	if err == nil {
		err = durable.Replace(target, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot write the summary %q: %w", path, err)
	}
	return nil
}

// longJob is how long a job has to last for its summary to be told in the log.
const longJob = time.Minute

// Text is the summary as a line for people; empty where the job was short, or nothing is known of its time.
func (s *Summary) Text() string {
	a := s.Accounting
	if a == nil || a.WallSeconds < longJob.Seconds() {
		return ""
	}
	wall := time.Duration(a.WallSeconds * float64(time.Second)).Round(time.Second)
	parts := []string{fmt.Sprintf("%v: %.1f%% good", wall, 100*a.Goodput)}
	causes := slices.Collect(maps.Keys(a.Seconds))
	slices.SortFunc(causes, func(x, y string) int {
		return cmp.Or(cmp.Compare(a.Seconds[y], a.Seconds[x]), cmp.Compare(x, y))
	})
	for _, c := range causes {
		if share := a.Seconds[c] / a.WallSeconds; c != "good" && share >= 0.001 {
			parts = append(parts, fmt.Sprintf("%.1f%% %s", 100*share, c))
		}
	}
	line := strings.Join(parts, ", ")
	restarts := 0
	for _, n := range a.Restarts {
		restarts += n
	}
	if restarts > 0 {
		line += "; " + wording.Plural(restarts, "restart")
	}
	came, went := s.moved()
	if came+went > 0 {
		line += fmt.Sprintf("; %s came, %d went", wording.Plural(came, "node"), went)
	}
	if c := a.Checkpoints; c != nil {
		line += fmt.Sprintf("; %s of checkpoints written (%.1f GB)", wording.Plural(int(c.Parts), "part"), float64(c.Bytes)/1e9)
	}
	if n := len(s.Slowest); n > 1 {
		r := s.Slowest[0]
		line += fmt.Sprintf("; slowest: rank %d on %s (%.3g s a step)", r.Rank, printable.Output(r.Node), r.StepSeconds)
	}
	return line
}

// moved is how many nodes came after the first round, and how many went.
func (s *Summary) moved() (came, went int) {
	for i := 1; i < len(s.Rounds); i++ {
		if d := s.Rounds[i].Nodes - s.Rounds[i-1].Nodes; d > 0 {
			came += d
		} else {
			went -= d
		}
	}
	return came, went
}
