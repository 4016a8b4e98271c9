package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/control/history"
)

// eventsEvery is how often several musters of one job are asked for events.
const eventsEvery = 500 * time.Millisecond

// newEventsCmd is "muster events".
func newEventsCmd(a *app) *cobra.Command {
	var follow bool
	var output string
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "events [-f] [-o json] [JOB]",
		Short: "Show what has happened to a job",
		Long: `Show what has happened to a job: how its phase has changed and why, which workers were
started and how they ended, and who has asked for a stop or a restart. The musters of this
machine are asked; of another node, ask there. Each keeps its last 4,096 events. Of a job
that has ended they are known for a day (--keep-runs), also where its muster was killed:
name it by its run id, or give no name for the last one where none runs.

-o json writes one object per line (docs/events.md).

` + jobHelp,
		Example:     "  muster events\n  muster events -f train-7 -o json",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != asJSON {
				return errhint.Usagef("-o %q: the only other form is json", output)
			}
			job, parts, err := a.jobAt(cmd.Context(), page, args)
			if err != nil && page.at != "" {
				return err
			}
			if err != nil {
				runs, err := a.endedOrLast(args, err)
				if err != nil {
					return err
				}
				return a.showPast(runs, output == asJSON)
			}
			e := eventLog{a: a, json: output == asJSON, nodes: job.Answer.Nodes > 1 || len(parts) > 1}
			for _, p := range parts {
				e.sources = append(e.sources, &eventSource{client: p.Client()})
			}
			return e.show(cmd.Context(), follow)
		},
	}
	page = pageFlagsOf(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job ends")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: an object per line")
	fixedWords(cmd, map[string][]string{"output": {asJSON}})
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// showPast shows what is kept of a job that has ended.
func (a *app) showPast(runs []history.Run, json bool) error {
	l := eventLog{a: a, json: json, nodes: len(runs) > 1 || runs[0].Status.Nodes > 1}
	var found []control.Event
	for i := range runs {
		more, err := runs[i].Events()
		if err != nil {
			return err
		}
		found = append(found, more...)
	}
	slices.SortStableFunc(found, func(x, y control.Event) int { return x.Time.Compare(y.Time) })
	for i := range found {
		l.print(&found[i])
	}
	if runs[0].Died && !json {
		say(a.stderr, "its muster died, and was last heard of at %s\n", runs[0].Ended.Local().Format(time.DateTime))
	}
	return nil
}

// eventSource is a muster that is asked for its events.
type eventSource struct {
	client *control.Client
	seen   uint64
	gone   bool
}

// eventLog shows the events of the musters of one job, in the order of their times.
type eventLog struct {
	a           *app
	sources     []*eventSource
	json, nodes bool
}

// show shows what there is, with follow until the musters have ended.
func (l *eventLog) show(ctx context.Context, follow bool) error {
	for first := true; ; first = false {
		found, err := l.ask(ctx, follow && !first && len(l.sources) == 1)
		if err != nil {
			return err
		}
		for _, e := range found {
			l.print(&e)
		}
		over := !slices.ContainsFunc(l.sources, func(s *eventSource) bool { return !s.gone })
		if over || !follow && len(found) == 0 {
			return nil
		}
		if len(found) > 0 || len(l.sources) == 1 {
			continue
		}
		select {
		case <-time.After(eventsEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ask asks each muster for what is new there.
func (l *eventLog) ask(ctx context.Context, wait bool) (found []control.Event, err error) {
	for _, s := range l.sources {
		if s.gone {
			continue
		}
		more, err := s.client.Events(ctx, s.seen, wait)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case control.Unreachable(err):
			s.gone = true // its part of the job has ended
			continue
		case err != nil:
			return nil, err
		}
		for _, e := range more {
			s.seen = max(s.seen, e.Seq)
		}
		found = append(found, more...)
	}
	slices.SortStableFunc(found, func(x, y control.Event) int { return x.Time.Compare(y.Time) })
	return found, nil
}

func (l *eventLog) print(e *control.Event) {
	if l.json {
		if text, err := json.Marshal(e); err == nil { // texts and numbers
			say(l.a.stdout, "%s\n", text)
		}
		return
	}
	node := ""
	if l.nodes && e.Node != "" {
		node = e.Node + ": "
	}
	say(l.a.stdout, "%s %s\n", e.Time.Local().Format(time.TimeOnly), printable.Output(node+eventText(e)))
}

// eventText is an event in a sentence.
func eventText(e *control.Event) string {
	switch e.Type { //nolint:exhaustive // the others have the same form
	case control.PhaseChanged:
		text := fmt.Sprintf("%s, round %d, %s", e.Phase, e.Generation, wording.Plural(e.RestartCount, "restart"))
		if e.ExitCode != nil {
			text += fmt.Sprintf(", exit status %d", *e.ExitCode)
		}
		if why := strings.Join(slices.DeleteFunc([]string{string(e.Reason), e.Message}, func(s string) bool { return s == "" }),
			", "); why != "" {
			text += ": " + why
		}
		return text
	case control.WorkerStarted, control.WorkerExited:
		if e.Rank == nil || e.Type == control.WorkerExited && e.ExitCode == nil {
			break // of a file that somebody has changed
		}
		text := fmt.Sprintf("rank %d, process %d, ", *e.Rank, e.PID)
		switch {
		case e.Type == control.WorkerStarted:
			text += "started"
		case e.Signal != "":
			text += "was killed by " + e.Signal
		default:
			text += fmt.Sprintf("ended with status %d", *e.ExitCode)
		}
		if e.Stopped {
			text += ", because muster has stopped it"
		}
		return text
	case control.SidecarStarted, control.SidecarExited:
		text := "sidecar " + e.Message
		switch {
		case e.PID == 0: // it could not be started, and the message says why
		case e.Type == control.SidecarStarted:
			text += fmt.Sprintf(": process %d started", e.PID)
		case e.Signal != "":
			text += fmt.Sprintf(": process %d was killed by %s", e.PID, e.Signal)
		case e.ExitCode != nil:
			text += fmt.Sprintf(": process %d ended with status %d", e.PID, *e.ExitCode)
		}
		if e.Stopped {
			text += ", because muster has stopped it"
		}
		return text
	case control.ExecStarted, control.ExecEnded, control.LogsRead:
		return execText(e)
	case control.WorkersHang:
		return "the workers hang: " + e.Message
	case control.StopRequested, control.RestartRequested, control.PauseRequested, control.ResumeRequested, control.ScaleRequested,
		control.KillRequested:
		what := strings.ToLower(strings.TrimSuffix(string(e.Type), "Requested"))
		if e.Type == control.KillRequested {
			what = "the loss of a node"
		}
		switch {
		case e.By == nil:
			return what + " was asked for"
		case e.By.Address != "":
			return what + " was asked for by " + e.By.String()
		}
		return fmt.Sprintf("%s was asked for by user %d, process %d", what, e.By.UID, e.By.PID)
	}
	return otherText(e)
}

// execText is what somebody does in the place of a rank, or reads of it.
func execText(e *control.Event) string {
	if e.Rank == nil || e.By == nil {
		return otherText(e) // of a file that somebody has changed
	}
	text := fmt.Sprintf("in the place of rank %d process %d", *e.Rank, e.PID)
	switch e.Type { //nolint:exhaustive // the others are no matter of this
	case control.LogsRead:
		text = fmt.Sprintf("the log of rank %d is read by %s", *e.Rank, e.By)
		if e.Message != "" {
			text = fmt.Sprintf("logs %s from rank %d on are read by %s", e.Message, *e.Rank, e.By)
		}
		return text
	case control.ExecStarted:
		text += fmt.Sprintf(", started by %s", e.By)
	case control.ExecEnded:
		switch {
		case e.Signal != "":
			text += " was killed by " + e.Signal
		case e.ExitCode != nil:
			text += fmt.Sprintf(" ended with status %d", *e.ExitCode)
		}
		text += fmt.Sprintf(" after %.3g s", e.Seconds)
	}
	return text + ": " + e.Message
}

// otherText is an event in the words of its type and fields, also of a type that only a newer version knows.
func otherText(e *control.Event) string {
	var words []byte
	for i, c := range []byte(e.Type) {
		if c >= 'A' && c <= 'Z' {
			if c += 'a' - 'A'; i > 0 {
				words = append(words, ' ')
			}
		}
		words = append(words, c)
	}
	text := string(words)
	if e.Subject != "" {
		text += " " + e.Subject
	}
	if e.Step != nil {
		text += fmt.Sprintf(", step %d", *e.Step)
	}
	if e.Seconds > 0 {
		text += fmt.Sprintf(", after %.3g s", e.Seconds)
	}
	if why := cmp.Or(e.Message, string(e.Reason)); why != "" {
		text += ": " + why
	}
	return text
}
