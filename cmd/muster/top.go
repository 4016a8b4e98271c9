package main

import (
	"context"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"muster/cmd/console"
	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/control/show"
)

// newTopCmd is "muster top".
func newTopCmd(a *app) *cobra.Command {
	every := time.Second
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "top [--every TIME] [JOB]",
		Short: "Watch the ranks of a job in the terminal, failed and slow ones first",
		Long: `Watch the ranks of a job in the terminal: state, step, time of a step, CPU, memory, restarts
and last output, those first that have failed, are slow (1.5 times the median time of a step,
or more than three steps behind) or do not run. q ends it; the arrow keys, PgUp and PgDn
scroll. Where standard output is no terminal it is written once.

` + jobHelp,
		Example:     "  muster top\n  muster top train-7 --every 5s",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return errhint.Usagef("--every %v: give at least 100ms", every)
			}
			job, _, err := a.runningJob(cmd.Context(), page, args)
			if err != nil {
				return err
			}
			return a.top(cmd.Context(), job.Client(), every)
		},
	}
	page = pageFlagsOf(cmd)
	cmd.Flags().DurationVar(&every, "every", every, "how often it is looked at the job")
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// top shows a job until it ends or q is typed.
func (a *app) top(ctx context.Context, c *control.Client, every time.Duration) error {
	var t show.Top
	d, err := c.Status(ctx, control.World)
	if err != nil {
		return err
	}
	t.Take(d, time.Now())
	fd := int(a.stdout.Fd())
	if !term.IsTerminal(fd) {
		say(a.stdout, "%s", t.Text(time.Now()))
		return nil
	}
	keys, restore := console.Keys(a.stdin)
	defer restore()
	say(a.stdout, "\x1b[?1049h\x1b[?25l")
	defer say(a.stdout, "\x1b[?25h\x1b[?1049l")
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		width, height, err := term.GetSize(fd)
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		say(a.stdout, "%s", t.Screen(width, height, time.Now()))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-resized:
		case key, open := <-keys:
			if !open || key == "q" || key == "Q" || key == "\x03" || key == "\x04" {
				return nil
			}
			t.Scroll(key)
		case <-tick.C:
			d, err := c.Status(ctx, control.World)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err == nil:
				t.Take(d, time.Now())
			case errhint.CodeOf(err) == errhint.TryAgain && !control.Unreachable(err):
				t.Note(err.Error())
			default:
				defer say(a.stderr, "the job has ended\n") // on the screen that comes back
				return nil
			}
		}
	}
}
