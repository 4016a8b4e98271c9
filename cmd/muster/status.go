package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/control/history"
	"muster/launch/report"
)

// The forms of muster status.
const (
	asTable = ""
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
)

// watchEvery is how often muster status --watch asks.
const watchEvery = time.Second

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
				runs, err := a.ended(args, err)
				if err != nil {
					return err
				}
				return a.showEnded(&runs[0], output)
			}
			if watch {
				return a.watchStatus(cmd.Context(), job.Client(), output)
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

// showEnded shows how a job stood last that has ended.
func (a *app) showEnded(r *history.Run, output string) error {
	if r.Died {
		say(a.stderr, "its muster died, and was last heard of at %s\n", r.Ended.Local().Format(time.DateTime))
	} else {
		say(a.stderr, "it has ended at %s\n", r.Ended.Local().Format(time.DateTime))
	}
	return writeStatus(a.stdout, control.Answer{Status: r.Status, Muster: r.Muster}, output, *r.Ended)
}

// watchStatus shows how a job stands until it has ended: in place on a terminal, else block after block.
func (a *app) watchStatus(ctx context.Context, c *control.Client, output string) error {
	terminal := term.IsTerminal(int(a.stdout.Fd()))
	for first := true; ; first = false {
		d, err := c.Status(ctx, control.World)
		if err != nil && !first && errhint.CodeOf(err) == errhint.Usage {
			say(a.stderr, "the job has ended\n")
			return nil
		}
		if err != nil && (first || errhint.CodeOf(err) != errhint.TryAgain) {
			return err
		}
		switch {
		case err != nil: // it may answer the next time
		case terminal:
			say(a.stdout, "\x1b[H\x1b[2J")
		case !first && output == asYAML:
			say(a.stdout, "---\n")
		case !first && output != asJSON:
			say(a.stdout, "\n")
		}
		if err != nil {
			a.PrintError(err)
		} else if err := writeStatus(a.stdout, d, output, time.Now()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchEvery):
		}
	}
}

func writeStatus(w io.Writer, d control.Answer, output string, now time.Time) error {
	switch output {
	case asJSON:
		return writeJSON(w, d)
	case asYAML:
		return writeYAML(w, d)
	}
	return writeStatusText(w, &d, output == asWide, now)
}

// writeYAML writes what JSON would be as YAML, with the names and the order of JSON.
func writeYAML(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var tree yaml.Node
	if err := yaml.Unmarshal(text, &tree); err != nil { // YAML has JSON in it
		return fmt.Errorf("cannot write YAML: %w", err)
	}
	unstyled(&tree)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&tree); err != nil {
		return err
	}
	return enc.Close()
}

// unstyled has a tree written as people write YAML.
func unstyled(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		unstyled(child)
	}
}

// writeStatusText writes a line or two about the job, and a table of its ranks.
func writeStatusText(w io.Writer, d *control.Answer, wide bool, now time.Time) error {
	line := []string{"job " + printable.Output(d.RunID) + " (" + printable.Output(d.Name) + "): " + printable.Output(string(d.Phase))}
	if d.Reason != "" {
		line = append(line, printable.Output(string(d.Reason)))
	}
	if d.StartTime != nil {
		line = append(line, "up "+since(d.StartTime, now))
	}
	if d.Nodes > 0 {
		line = append(line, fmt.Sprintf("%s on %s", wording.Plural(d.WorldSize, "worker"), wording.Plural(d.Nodes, "node")))
	}
	line = append(line, "round "+strconv.Itoa(d.Generation), wording.Plural(d.RestartCount, "restart"))
	say(w, "%s\n", strings.Join(line, ", "))
	if h := d.Hang; h != nil {
		say(w, "  the workers hung at %s: %s\n", h.Time.Local().Format(time.TimeOnly), printable.Output(h.Sentence))
	}
	if d.Message != "" {
		say(w, "  %s\n", printable.Output(d.Message))
	}
	for i := range d.Sidecars {
		say(w, "  %s\n", sidecarText(&d.Sidecars[i], now))
	}
	for _, t := range d.Tasks {
		if t.LastKnown != nil {
			say(w, "  node %s does not answer: last known %s ago\n", printable.Output(t.Node), since(t.LastKnown, now))
		}
	}
	if len(d.Ranks) == 0 {
		if d.ExitStatus == nil {
			say(w, "  no worker has been started yet\n")
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	steps := slices.ContainsFunc(d.Ranks, func(r report.Rank) bool { return r.Progress != nil })
	say(t, "RANK\tNODE\tPID\tPHASE\tRESTARTS\tCPU\tMEM\tUPTIME")
	if steps {
		say(t, "\tSTEP\tSTEP TIME")
		if wide {
			say(t, "\tTOLD\tVALUES")
		}
	}
	if wide {
		say(t, "\tLOCAL\tOUTPUT\tLAST EXIT")
	}
	say(t, "\n")
	ranks := slices.Clone(d.Ranks)
	slices.SortStableFunc(ranks, func(x, y report.Rank) int { return x.Rank - y.Rank })
	for _, r := range ranks {
		up := "-"
		if r.Phase == report.PhaseRunning || r.Phase == report.PhaseTerminating {
			up = since(r.StartTime, now)
		}
		say(t, "%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s", r.Rank, printable.Output(r.Node), cell(r.PID),
			printable.Output(string(r.Phase)), r.Restarts,
			cpuText(r.CPUSeconds), bytesText(r.ResidentBytes), up)
		if steps {
			say(t, "\t%s\t%s", stepText(r.Progress), stepTimeText(r.Progress))
			if wide {
				say(t, "\t%s\t%s", toldText(r.Progress, now), valuesText(r.Progress))
			}
		}
		if wide {
			say(t, "\t%d\t%s\t%s", r.LocalRank, ago(r.LastOutput, now), exitText(r.LastExit, now))
		}
		say(t, "\n")
	}
	return t.Flush()
}

// stepText is how far a worker has come.
func stepText(p *report.Progress) string {
	if p == nil {
		return "-"
	}
	text := strconv.FormatInt(p.Step, 10)
	if p.Total > 0 {
		text += "/" + strconv.FormatInt(p.Total, 10)
	}
	if p.Section != "" {
		text += " (" + printable.Output(p.Section) + ")"
	}
	return text
}

// stepTimeText is how long a step takes.
func stepTimeText(p *report.Progress) string {
	if p == nil || p.StepSeconds == nil {
		return "-"
	}
	switch s := *p.StepSeconds; {
	case s < 0.1:
		return fmt.Sprintf("%.1fms", 1000*s)
	case s < 60:
		return fmt.Sprintf("%.2fs", s)
	default:
		return shortTime(time.Duration(s * float64(time.Second)))
	}
}

func toldText(p *report.Progress, now time.Time) string {
	if p == nil {
		return "-"
	}
	return ago(&p.Time, now)
}

// valuesText are the values of the last step, by name.
func valuesText(p *report.Progress) string {
	if p == nil || len(p.Values)+len(p.NotFinite) == 0 {
		return "-"
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(p.Values)) {
		list = append(list, printable.Output(name)+"="+strconv.FormatFloat(p.Values[name], 'g', 6, 64))
	}
	for _, name := range p.NotFinite {
		list = append(list, printable.Output(name)+"=nan")
	}
	return strings.Join(list, " ")
}

// ago is when something was.
func ago(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return since(t, now) + " ago"
}

func cpuText(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	d := time.Duration(*seconds * float64(time.Second))
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", *seconds)
	}
	return shortTime(d)
}

// exitText is how a worker ended last.
func exitText(e *report.RankExit, now time.Time) string {
	if e == nil {
		return "-"
	}
	how := "status " + strconv.Itoa(e.ExitCode)
	if e.Signal != "" {
		how = printable.Output(e.Signal)
	}
	if e.Stopped {
		how += " (stopped)"
	}
	return how + ", " + ago(&e.Time, now)
}
