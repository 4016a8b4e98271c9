package main

import (
	"github.com/spf13/cobra"

	"muster/checkpointd"
	"muster/checkpointd/report"
	"muster/internal/errhint"
)

// newCkptCmd is "muster ckpt": the checkpoints in a directory.
func newCkptCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ckpt",
		Short: "List, verify, save and remove checkpoints",
		Long: `Look after the checkpoints that muster wrote to a directory: what there is, whether it is
whole, what may go. A step counts when its manifest is there and every file is what the
manifest says; a step that DLRover wrote has none, and is listed as unproven. And what jobs
on this machine have in memory, or have left there when they were killed: ls, save, drop.`,
		Example:     "  muster ckpt ls /data/ckpt\n  muster ckpt verify /data/ckpt && muster ckpt prune --keep 3 /data/ckpt",
		Annotations: map[string]string{exitAnnotation: ckptStatus},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errhint.With(errhint.Usagef("muster ckpt needs to be told what to do"),
					"ls, inspect, verify, prune, save or drop; muster ckpt --help explains them")
			}
			return errhint.With(errhint.Usagef("muster ckpt cannot %q", args[0]), "it can ls, inspect, verify, prune, save and drop")
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCkptLsCmd(a), newCkptInspectCmd(a), newCkptVerifyCmd(a), newCkptPruneCmd(a), newCkptSaveCmd(a), newCkptDropCmd(a))
	return cmd
}

const ckptStatus = `  0    done; verify: every step that was asked for is whole
  1    verify: a step is damaged, or there is none; save, drop: it could not be done, or
       nothing is there
  2    usage error, or the directory cannot be read
  125  internal error of muster
`

// noMoreThanDir takes a directory of checkpoints, or none. An empty one is what a variable is that was not set.
func noMoreThanDir(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return errhint.With(errhint.Usagef("%s takes one directory, and not %d", cmd.CommandPath(), len(args)), "call it once for each")
	}
	if len(args) == 1 && args[0] == "" {
		return errhint.With(errhint.Usagef("%s was given an empty name of a directory", cmd.CommandPath()),
			"is a variable not set? The working directory is .")
	}
	return nil
}

// oneDir takes a directory of checkpoints.
func oneDir(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errhint.With(errhint.Usagef("%s needs a directory of checkpoints", cmd.CommandPath()),
			"such as "+cmd.CommandPath()+" /data/ckpt")
	}
	return noMoreThanDir(cmd, args)
}

func newCkptLsCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [--json] [DIR]",
		Short: "List the steps in a directory, the newest first, and those in memory",
		Long: `List the steps in a directory, the newest first, and those that belong there and are in the
memory of a job on this machine; without a directory all that are in memory. Whether a step
is complete is judged by manifest, names and sizes; muster ckpt verify reads the files, too.`,
		Annotations: map[string]string{exitAnnotation: ckptStatus},
		Args:        noMoreThanDir,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.listMemory(asJSON)
			}
			steps, err := report.Steps(args[0])
			if err != nil {
				return err
			}
			inMemory, err := (&memoryChoice{}).steps(a, args)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(a.stdout, report.All(steps, inMemory))
			}
			if err := report.Write(a.stdout, steps); err != nil || len(inMemory) == 0 {
				return err
			}
			say(a.stdout, "\n")
			return report.WriteMemory(a.stdout, inMemory)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

func newCkptInspectCmd(a *app) *cobra.Command {
	var step int64
	cmd := &cobra.Command{
		Use:         "inspect [--step N] DIR",
		Short:       "Show a step's manifest as JSON: its shards, files, sizes and checksums",
		Long:        `Show a step's manifest as JSON: its shards, files, sizes and checksums.`,
		Annotations: map[string]string{exitAnnotation: ckptStatus},
		Args:        oneDir,
		RunE: func(_ *cobra.Command, args []string) error {
			steps, err := report.Choose(args[0], step)
			if err != nil {
				return err
			}
			return writeJSON(a.stdout, report.Of(&steps[0]))
		},
	}
	cmd.Flags().Int64Var(&step, "step", -1, "the step to show; -1: the newest")
	return cmd
}

func newCkptVerifyCmd(a *app) *cobra.Command {
	var step int64
	cmd := &cobra.Command{
		Use:         "verify [--step N] DIR",
		Short:       "Read every file of the steps, and compare checksums",
		Long:        `Read every file of the steps, and compare checksums with those of the manifests.`,
		Annotations: map[string]string{exitAnnotation: ckptStatus},
		Args:        oneDir,
		RunE: func(_ *cobra.Command, args []string) error {
			steps, err := report.Choose(args[0], step)
			if err != nil {
				return err
			}
			bad := 0
			for _, s := range steps {
				verdict, whole := report.Verify(&s)
				if !whole {
					bad++
				}
				say(a.stdout, "%s: %s\n", s.Name(), verdict)
			}
			if bad > 0 {
				return errhint.StatusError(1)
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&step, "step", -1, "the step to verify; -1: all")
	return cmd
}

func newCkptPruneCmd(a *app) *cobra.Command {
	var rules checkpointd.KeepRules
	var dry bool
	cmd := &cobra.Command{
		Use:   "prune --keep N [--every K] [--dry-run] DIR",
		Short: "Remove old steps",
		Long: `Remove old steps. The newest step that can be used stays in any case: its files are read for
that. So does what muster has not written, and what is newer but damaged. It is refused while
a job saves to the directory.`,
		Annotations: map[string]string{exitAnnotation: ckptStatus},
		Args:        oneDir,
		RunE: func(_ *cobra.Command, args []string) error {
			if rules.Latest < 1 || rules.Every < 0 {
				return errhint.With(errhint.Usagef("cannot prune without --keep N, N at least 1, and --every at least 0"),
					"say how many steps stay, such as --keep 3")
			}
			if _, err := report.Steps(args[0]); err != nil {
				return err
			}
			removed, err := checkpointd.Prune(args[0], rules, dry)
			verb := "removed"
			if dry {
				verb = "would remove"
			}
			if err == nil && len(removed) == 0 {
				say(a.stdout, "nothing is to be removed\n")
			}
			for _, s := range removed {
				say(a.stdout, "%s step %d, %s\n", verb, s.Step, report.Mebibytes(s.Bytes()))
			}
			return errhint.Code(err, errhint.Usage)
		},
	}
	cmd.Flags().IntVar(&rules.Latest, "keep", 0, "how many of the newest usable steps stay")
	cmd.Flags().Int64Var(&rules.Every, "every", 0, "steps that are multiples of this stay, too; 0: none")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would go")
	return cmd
}
