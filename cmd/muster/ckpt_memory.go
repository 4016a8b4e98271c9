package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"muster/checkpointd"
	"muster/checkpointd/report"
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

// steps returns the steps in memory that were chosen.
func (c *memoryChoice) steps(a *app, args []string) ([]checkpointd.MemoryStep, error) {
	if len(args) > 0 {
		var err error
		if c.dir, err = filepath.Abs(args[0]); err != nil {
			return nil, err
		}
	}
	if named := a.here.Getenv("MUSTER_CKPT_MEMORY"); named != "" {
		if _, err := os.Stat(named); err != nil {
			return nil, errhint.Code(fmt.Errorf("cannot look for checkpoints in MUSTER_CKPT_MEMORY: %w", err), errhint.Usage)
		}
	}
	return report.InMemory(a.here.MemoryDir(), c.runID, c.dir)
}

// agents returns a step of each agent that was chosen.
func (c *memoryChoice) agents(a *app, args []string) ([]checkpointd.MemoryStep, error) {
	chosen, err := c.steps(a, args)
	if err != nil {
		return nil, err
	}
	return report.Agents(chosen)
}

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
			log := a.console.Logger(zerolog.InfoLevel)
			return eachAgent(agents, func(m *checkpointd.MemoryStep) error {
				if !m.Complete() && !m.Several { // of several nodes that tells what is where
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
		RunE: func(_ *cobra.Command, args []string) error {
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

// listMemory is muster ckpt ls without a directory.
func (a *app) listMemory(asJSON bool) error {
	steps, err := (&memoryChoice{}).steps(a, nil)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.stdout, report.Memory(steps))
	}
	if len(steps) == 0 {
		say(a.stdout, "no checkpoints in memory\n")
		return nil
	}
	return report.WriteMemory(a.stdout, steps)
}
