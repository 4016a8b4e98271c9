package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"muster/checkpointd"
	"muster/internal/errhint"
	"muster/internal/printable"
)

// memoryChoice says which steps in memory a command is about.
type memoryChoice struct {
	runID string
	dir   string // of checkpoints; empty: all
}

func (c *memoryChoice) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.runID, "run-id", "", "only what the job with this run id has in memory")
}

// given makes sure that no flag has an empty text: that is what a variable is that was not set, and would mean
// everything.
func given(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() == "" {
			err = errhint.With(errhint.Usagef("%s was given an empty --%s", cmd.CommandPath(), f.Name), "is a variable not set?")
		}
	})
	return err
}

// steps returns the steps in memory that were chosen.
func (c *memoryChoice) steps(a *app, args []string) ([]checkpointd.MemoryStep, error) {
	if len(args) > 0 {
		var err error
		if c.dir, err = filepath.Abs(args[0]); err != nil {
			return nil, err
		}
	}
	if named := a.getenv("MUSTER_CKPT_MEMORY"); named != "" {
		if _, err := os.Stat(named); err != nil {
			return nil, errhint.Code(fmt.Errorf("cannot look for checkpoints in MUSTER_CKPT_MEMORY: %w", err), errhint.Usage)
		}
	}
	all, err := checkpointd.ListMemory(a.memoryDir())
	if err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	var chosen []checkpointd.MemoryStep
	for _, m := range all {
		if (c.runID == "" || m.RunID == c.runID) && (c.dir == "" || m.Dir == c.dir) {
			chosen = append(chosen, m)
		}
	}
	return chosen, nil
}

// agents returns a step of each agent that was chosen: the newest that is whole, where there is one. What an agent has
// in memory is saved and given up as a whole.
func (c *memoryChoice) agents(a *app, args []string) ([]checkpointd.MemoryStep, error) {
	chosen, err := c.steps(a, args)
	if err != nil {
		return nil, err
	}
	var agents []checkpointd.MemoryStep
	for _, m := range chosen {
		i := slices.IndexFunc(agents, func(o checkpointd.MemoryStep) bool { return o.Agent() == m.Agent() })
		if i < 0 {
			agents = append(agents, m)
		} else if !isWhole(&agents[i]) && isWhole(&m) {
			agents[i] = m
		}
	}
	if len(agents) == 0 {
		return nil, errhint.Code(errhint.With(errors.New("no such checkpoint is in memory"), "muster ckpt ls shows what is"), 1)
	}
	return agents, nil
}

func isWhole(m *checkpointd.MemoryStep) bool { return m.Step >= 0 && m.Whole == m.Shards }

func newCkptSaveCmd(a *app) *cobra.Command {
	var choice memoryChoice
	var to string
	cmd := &cobra.Command{
		Use:   "save [--run-id ID] [--to DIR] [DIR]",
		Short: "Write the newest step in memory to disk",
		Long: `Write the newest complete step in memory to disk, to the directory where its job saves, or
to another one. Of a job that was killed together with its guardian the memory is given up
then; one that runs is asked to write, and goes on. Of a job of several nodes the step is
written if all of its shards are on this one; else start the job again on all of them. With
DIR only what belongs there is saved, with --run-id only what is that job's.`,
		Annotations: map[string]string{exitAnnotation: ckptStatus},
		Args:        noMoreThanDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := given(cmd); err != nil {
				return err
			}
			agents, err := choice.agents(a, args)
			if err != nil {
				return err
			}
			if to != "" {
				if to, err = filepath.Abs(to); err != nil {
					return err
				}
				if len(agents) > 1 {
					return errhint.With(errhint.Usagef("cannot save what %d jobs have in memory to one directory", len(agents)),
						"choose one by --run-id or DIR; muster ckpt ls shows them")
				}
			}
			log := a.logger(zerolog.InfoLevel)
			return eachAgent(agents, func(m *checkpointd.MemoryStep) error {
				if !isWhole(m) && !m.Several { // of several nodes that tells what is where
					return errhint.With(errors.New("no step in its memory is whole"), "muster ckpt drop gives up what there is")
				}
				err := m.Save(cmd.Context(), to, log)
				if err != nil {
					return err
				}
				dir := cmp.Or(to, m.Dir)
				steps, err := checkpointd.List(dir)
				if err == nil && len(steps) > 0 && steps[0].Step >= 0 {
					say(a.stdout, "run %s: step %d is the newest in %s\n", printable.Line(m.RunID, 100), steps[0].Step,
						printable.Line(dir, 4096))
				}
				return err
			})
		},
	}
	choice.flags(cmd)
	cmd.Flags().StringVar(&to, "to", "", "save to this directory, which is to have no steps yet, instead of the job's own")
	return cmd
}

func newCkptDropCmd(a *app) *cobra.Command {
	var choice memoryChoice
	cmd := &cobra.Command{
		Use:   "drop --run-id ID | DIR",
		Short: "Give up what a killed job has left in memory",
		Long: `Give up what a job that was killed together with its guardian has left in memory, without
saving it. What a job has that runs is left alone.`,
		Annotations: map[string]string{exitAnnotation: ckptStatus},
		Args:        noMoreThanDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := given(cmd); err != nil {
				return err
			}
			if choice.runID == "" && len(args) == 0 {
				return errhint.With(errhint.Usagef("cannot drop everything that is in memory"),
					"name a job by --run-id, or a directory; muster ckpt ls shows them")
			}
			agents, err := choice.agents(a, args)
			if err != nil {
				return err
			}
			return eachAgent(agents, func(m *checkpointd.MemoryStep) error {
				err := m.Drop()
				if err == nil {
					say(a.stdout, "dropped what run %s has left\n", printable.Line(m.RunID, 100))
				}
				return err
			})
		},
	}
	choice.flags(cmd)
	return cmd
}

// eachAgent does something for what each agent has in memory. Its error has all that failed, and status 1.
func eachAgent(agents []checkpointd.MemoryStep, do func(*checkpointd.MemoryStep) error) error {
	var failed *multierror.Error
	for i := range agents {
		if err := do(&agents[i]); err != nil {
			failed = multierror.Append(failed, fmt.Errorf("run %s: %w", printable.Line(agents[i].RunID, 100), err))
		}
	}
	if failed == nil {
		return nil
	}
	return errhint.Code(failed, 1)
}

// memoryReport is a step in memory in JSON.
type memoryReport struct {
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

func memoryReports(steps []checkpointd.MemoryStep) []memoryReport {
	reports := make([]memoryReport, len(steps))
	for i, m := range steps {
		reports[i] = memoryReport{
			RunID: m.RunID, Dir: m.Dir, Step: m.Step, Shards: m.Shards, Whole: m.Whole, Bytes: m.Bytes, State: memoryState(&m),
			Memory:       true,
			SeveralNodes: m.Several,
		}
		if m.Step >= 0 {
			reports[i].Saved = &m.Saved
		}
	}
	return reports
}

// memoryState says what is to be said of a step in memory.
func memoryState(m *checkpointd.MemoryStep) string {
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

func writeMemory(w io.Writer, steps []checkpointd.MemoryStep) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	say(table, "IN MEMORY OF\tSTEP\tSHARDS\tSIZE\tSAVED\tDIRECTORY\tSTATE\n")
	for _, m := range steps {
		step, saved := "-", "-"
		if m.Step >= 0 {
			step, saved = strconv.FormatInt(m.Step, 10), m.Saved.Local().Format(time.DateTime)
		}
		say(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n",
			printable.Line(m.RunID, 100), step, m.Shards, mebibytes(m.Bytes), saved, printable.Line(m.Dir, 4096), memoryState(&m))
	}
	return table.Flush()
}

// listMemory is muster ckpt ls without a directory.
func (a *app) listMemory(asJSON bool) error {
	steps, err := (&memoryChoice{}).steps(a, nil)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.stdout, memoryReports(steps))
	}
	if len(steps) == 0 {
		say(a.stdout, "no checkpoints in memory\n")
		return nil
	}
	return writeMemory(a.stdout, steps)
}
