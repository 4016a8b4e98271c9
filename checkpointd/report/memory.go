package report

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"muster/checkpointd"
	"muster/internal/errhint"
	"muster/internal/printable"
)

// InMemory returns the steps in the memory of jobs of this machine: of one with a run id, and of one directory of
// checkpoints, where these are not empty.
func InMemory(memory, runID, dir string) ([]checkpointd.MemoryStep, error) {
	all, err := checkpointd.ListMemory(memory)
	if err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	var chosen []checkpointd.MemoryStep
	for _, m := range all {
		if (runID == "" || m.RunID == runID) && (dir == "" || m.Dir == dir) {
			chosen = append(chosen, m)
		}
	}
	return chosen, nil
}

// Agents returns a step of each agent among steps: the newest that is complete, where there is one. What an agent has in
// memory is saved and given up as a whole. It is an error if there is none.
func Agents(steps []checkpointd.MemoryStep) ([]checkpointd.MemoryStep, error) {
	var agents []checkpointd.MemoryStep
	for _, m := range steps {
		i := slices.IndexFunc(agents, func(o checkpointd.MemoryStep) bool { return o.Agent() == m.Agent() })
		if i < 0 {
			agents = append(agents, m)
		} else if !agents[i].Complete() && m.Complete() {
			agents[i] = m
		}
	}
	if len(agents) == 0 {
		return nil, errhint.Code(errhint.With(errors.New("no such checkpoint is in memory"), "muster ckpt ls shows what is"), 1)
	}
	return agents, nil
}

// MemoryStep is a step in memory in JSON.
type MemoryStep struct {
	RunID  string     `json:"run_id"`
	Dir    string     `json:"dir"`
	Step   int64      `json:"step"` // -1: none
	Shards int        `json:"shards"`
	Whole  int        `json:"shards_in_memory"`
	Bytes  int64      `json:"bytes"`
	Saved  *time.Time `json:"saved,omitempty"`
	State  string     `json:"state"`
	Memory bool       `json:"memory"` // always
	// SeveralNodes says that other nodes may have the shards that are missing.
	SeveralNodes bool `json:"several_nodes,omitempty"`
}

// Memory are the reports of steps in memory.
func Memory(steps []checkpointd.MemoryStep) []MemoryStep {
	reports := make([]MemoryStep, len(steps))
	for i, m := range steps {
		reports[i] = MemoryStep{
			RunID: m.RunID, Dir: m.Dir, Step: m.Step, Shards: m.Shards, Whole: m.Whole, Bytes: m.Bytes, State: stateOf(&m),
			Memory:       true,
			SeveralNodes: m.Several,
		}
		if m.Step >= 0 {
			reports[i].Saved = &m.Saved
		}
	}
	return reports
}

// stateOf says what is to be said of a step in memory.
func stateOf(m *checkpointd.MemoryStep) string {
	state := "its job has ended"
	switch {
	case m.Running:
		state = "its job runs"
	case m.Saving:
		state = "its job has ended, and it is being saved"
	}
	switch {
	case m.Problem != nil:
		return state + "; " + printable.Line(m.Problem.Error(), 300)
	case m.Step < 0:
		return state + "; no step is whole"
	case m.Several && m.Whole < m.Shards && !m.OnDisk:
		return state + "; " + strconv.Itoa(m.Whole) + " of " + strconv.Itoa(m.Shards) + " shards, the others are on other nodes"
	case m.Whole < m.Shards && !m.Several:
		return state + "; " + strconv.Itoa(m.Whole) + " of " + strconv.Itoa(m.Shards) + " shards"
	case m.OnDisk:
		return state + "; on disk"
	}
	return state + "; only in memory"
}

// WriteMemory writes a table of steps in memory.
func WriteMemory(w io.Writer, steps []checkpointd.MemoryStep) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format, args...) } // Flush tells what failed
	printf("IN MEMORY OF\tSTEP\tSHARDS\tSIZE\tSAVED\tDIRECTORY\tSTATE\n")
	for _, m := range steps {
		step, saved := "-", "-"
		if m.Step >= 0 {
			step, saved = strconv.FormatInt(m.Step, 10), m.Saved.Local().Format(time.DateTime)
		}
		printf("%s\t%s\t%d\t%s\t%s\t%s\t%s\n",
			printable.Line(m.RunID, 100), step, m.Shards, Mebibytes(m.Bytes), saved, printable.Line(m.Dir, 4096), stateOf(&m))
	}
	return table.Flush()
}
