// Package report is what muster ckpt tells of checkpoints: which steps it is about, those of a directory and those in the
// memory of jobs, as JSON for programs and as tables for people.
package report

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"text/tabwriter"
	"time"

	"al.essio.dev/pkg/shellescape"

	"muster/checkpointd"
	"muster/internal/errhint"
	"muster/internal/printable"
)

// Steps are those of a directory, as checkpointd.List has them.
func Steps(dir string) ([]checkpointd.Step, error) {
	steps, err := checkpointd.List(dir)
	if _, number := strconv.ParseUint(dir, 10, 63); number == nil && errors.Is(err, fs.ErrNotExist) {
		err = errhint.With(fmt.Errorf("%w: this is the place of the directory", err), "a step of one is chosen by --step "+dir)
	}
	return steps, errhint.Code(err, errhint.Usage)
}

// allSteps stands for any step.
const allSteps = -1

// Choose returns the steps of a directory, or the one with a number.
func Choose(dir string, step int64) ([]checkpointd.Step, error) {
	if step < allSteps {
		return nil, errhint.Usagef("there is no step %d: --step takes a number from 0 on, or -1", step)
	}
	steps, err := Steps(dir)
	if err != nil {
		return nil, err
	}
	var found []checkpointd.Step
	for _, s := range steps {
		if step == allSteps || s.Step == step {
			found = append(found, s)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	err = errors.New("no checkpoint is in " + dir)
	if step != allSteps {
		err = fmt.Errorf("no checkpoint of step %d is in %s", step, dir)
	}
	return nil, errhint.Code(errhint.With(err, "muster ckpt ls "+shellescape.Quote(dir)+" shows what is"), 1)
}

// Step is a step in JSON.
type Step struct {
	*checkpointd.Manifest        // nil where it cannot be read
	Step                  int64  `json:"step"` // -1: nobody knows
	Dir                   string `json:"dir"`
	Latest                bool   `json:"latest"`
	Unproven              bool   `json:"unproven,omitempty"`
	Bytes                 int64  `json:"bytes"`
	Problem               string `json:"problem,omitempty"`
}

// Of is the report of a step.
func Of(s *checkpointd.Step) Step {
	r := Step{Step: s.Step, Dir: s.Dir, Latest: s.Latest, Unproven: s.Foreign, Bytes: s.Bytes()}
	if s.Problem == nil || len(s.Files) > 0 {
		r.Manifest = &s.Manifest
	}
	if s.Problem != nil {
		r.Problem = s.Problem.Error()
	}
	return r
}

// All are the reports of steps on disk, and behind them those of steps in memory.
func All(steps []checkpointd.Step, inMemory []checkpointd.MemoryStep) []any {
	all := make([]any, 0, len(steps)+len(inMemory))
	for i := range steps {
		all = append(all, Of(&steps[i]))
	}
	for _, r := range Memory(inMemory) {
		all = append(all, r)
	}
	return all
}

// Verify reads the files of a step, and says what it is worth; whole is false where it is damaged.
func Verify(s *checkpointd.Step) (verdict string, whole bool) {
	switch err := s.Verify(); {
	case err != nil:
		return "damaged: " + printable.Line(err.Error(), problemMost), false
	case s.Foreign:
		return "unproven: it has no manifest", true
	}
	return "ok", true
}

// Write writes a table of steps.
func Write(w io.Writer, steps []checkpointd.Step) error {
	if len(steps) == 0 {
		_, err := fmt.Fprintln(w, "no checkpoints")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format, args...) } // Flush tells what failed
	printf("STEP\tSHARDS\tSIZE\tWRITTEN\tSTATE\n")
	for _, s := range steps {
		state := "complete"
		switch {
		case s.Problem != nil:
			state = printable.Line(s.Problem.Error(), problemMost)
			if s.Step < 0 && s.Manifest.Dir != "" {
				state = s.Name() + ": " + state
			}
		case s.Foreign:
			state = "latest, unproven"
		case s.Latest:
			state = "latest"
		}
		step, written := "-", "-"
		if s.Step >= 0 {
			step = strconv.FormatInt(s.Step, 10)
		}
		if !s.Created.IsZero() {
			written = s.Created.Local().Format(time.DateTime)
		}
		printf("%s\t%d\t%s\t%s\t%s\n", step, s.Shards, Mebibytes(s.Bytes()), written, state)
	}
	return table.Flush()
}

// problemMost is how much of a problem is shown, in bytes: names in it may be anything.
const problemMost = 1000

// Mebibytes is a size for people.
func Mebibytes(n int64) string { return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB" }
