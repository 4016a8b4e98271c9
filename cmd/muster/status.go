package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"muster/internal/errhint"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/control/history"
	"muster/launch/control/show"
)

// The forms of muster status.
const (
	asTable = ""
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
)

// newStatusCmd is "muster status".
func newStatusCmd(a *app) *cobra.Command {
	var output string
	var watch bool
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "status [-o wide|json|yaml] [--watch] [--at HOST:PORT] [JOB]",
		Short: "Show how a job stands: its phase, and each rank of all its nodes",
		Long: `Show how a job stands: its phase and why it is that one, and each rank of all its nodes. Any
node of a job can be asked. What another node has said of itself is at most a second old;
where it cannot be asked, the last that is known is shown with its age. CPU and memory are
those of the ranks of the node that is asked.

Of a job that has ended the last status is shown for a day (--keep-runs), also where its
muster was killed: name it by its run id.

-o json and -o yaml have the fields of the status file (docs/status-file.md).

` + jobHelp,
		Example:     "  muster status\n  muster status --watch -o wide\n  muster status train-7 -o json",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{asTable, asWide, asJSON, asYAML}, output) {
				return errhint.Usagef("-o %q: choose one of wide, json and yaml", output)
			}
			job, _, err := a.jobAt(cmd.Context(), page, args)
			if err != nil && page.at != "" {
				return err
			}
			if err != nil {
				runs, err := a.kept().Asked(args, err)
				if err != nil {
					return a.kept().HintAtLast(args, err)
				}
				return a.showEnded(runs, output)
			}
			if watch {
				return a.watchStatus(cmd.Context(), job, output, page.at == "")
			}
			d, err := job.Client().Status(cmd.Context(), control.World)
			if err != nil {
				return err
			}
			return writeStatus(a.stdout, d, output, time.Now())
		},
	}
	page = pageFlagsOf(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", asTable, "wide: more columns; json, yaml: all that is known")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again each second until the job ends")
	fixedWords(cmd, map[string][]string{"output": {asWide, asJSON, asYAML}})
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// showEnded shows how a job stood last that has ended, by what its musters have kept.
func (a *app) showEnded(runs []history.Run, output string) error {
	d := history.Whole(runs)
	say(a.stderr, "%s\n", runs[0].When())
	if more := d.WorldSize - len(d.Ranks); more > 0 && len(d.Ranks) > 0 {
		say(a.stderr, "not shown: %s of other nodes\n", wording.Plural(more, "rank"))
	}
	return writeStatus(a.stdout, d, output, *runs[0].Ended)
}

// watchStatus shows how a job stands until its muster has ended, and then what is kept of its end where the muster is on
// this machine: in place on a terminal, else block after block.
func (a *app) watchStatus(ctx context.Context, job control.Found, output string, here bool) error {
	terminal := term.IsTerminal(int(a.stdout.Fd()))
	first := true
	begin := func() {
		switch {
		case terminal:
			say(a.stdout, "\x1b[H\x1b[2J")
		case !first && output == asYAML:
			say(a.stdout, "---\n")
		case !first && output != asJSON:
			say(a.stdout, "\n")
		}
	}
	err := job.Client().Watch(ctx, func(d control.Answer, err error) error {
		if err == nil { // else it may answer the next time
			begin()
		}
		first = false
		if err != nil {
			a.console.PrintError(err)
			return nil
		}
		return writeStatus(a.stdout, d, output, time.Now())
	})
	if err != nil {
		return err
	}
	if here {
		if runs := a.kept().JobOf(&job); len(runs) > 0 {
			begin()
			return a.showEnded(runs, output)
		}
	}
	a.sayMusterEnded(job, here)
	return nil
}

// sayMusterEnded tells who has followed a job that nobody answers any more, and whether its muster has died where that
// is known: the job may go on elsewhere.
func (a *app) sayMusterEnded(job control.Found, here bool) {
	if here {
		if r := history.Of(&job); r != nil && r.Died {
			say(a.stderr, "%s\n", r.When())
		}
	}
	say(a.stderr, "its muster has ended: muster status %s shows how the job stood last\n", shellescape.Quote(job.RunID()))
}

func writeStatus(w io.Writer, d control.Answer, output string, now time.Time) error {
	switch output {
	case asJSON:
		return writeJSON(w, d)
	case asYAML:
		return show.YAML(w, d)
	}
	table := bufio.NewWriterSize(w, 64<<10) // a cell of a table is a write
	return errors.Join(show.Status(table, &d, output == asWide, now), table.Flush())
}
