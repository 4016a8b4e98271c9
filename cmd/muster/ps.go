package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control"
	"muster/launch/control/history"
)

// newPsCmd is "muster ps".
func newPsCmd(a *app) *cobra.Command {
	var output string
	var ended bool
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "ps [-a] [-o json]",
		Short: "List the jobs of this user that run on this machine",
		Long: `List the jobs of this user whose muster runs on this machine. A job whose launcher runs here
is listed once, whatever it has started. A muster that does not answer within 5 s is listed
as such, and so is the run directory of one that was killed.

With -a jobs that have ended follow, the newest first, with their exit status or as died;
each is known for a day (--keep-runs).

Jobs are found in the run directories below XDG_RUNTIME_DIR, TMPDIR and /tmp.`,
		Annotations: map[string]string{exitAnnotation: "  0  done, also where no job runs\n  2  usage error, or the run directories cannot be read\n"},
		Args:        cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return errhint.Usagef("-o %q: the only other form is json", output)
			}
			jobs, where, err := a.listJobs(cmd.Context(), page)
			if err != nil {
				return err
			}
			slices.SortStableFunc(jobs, func(x, y control.Found) int { return cmp.Compare(x.RunID(), y.RunID()) })
			var past []history.Run
			if ended {
				if past, err = a.pastJobs(); err != nil {
					return err
				}
			}
			if output == "json" {
				return writeJSON(a.stdout, append(psEntries(jobs), pastEntries(past)...))
			}
			if len(jobs) == 0 && len(past) == 0 {
				say(a.stderr, "no job of yours runs here: it was looked for in %s\n", where)
				return nil
			}
			return writePs(a.stdout, jobs, past, time.Now())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: a list of objects")
	cmd.Flags().BoolVarP(&ended, "all", "a", false, "those that have ended, too")
	page = pageFlagsOf(cmd)
	cmd.MarkFlagsMutuallyExclusive("all", "at")
	fixedWords(cmd, map[string][]string{"output": {"json"}})
	return cmd
}

// listJobs are the jobs of this machine, or the one at a page. where says for people where they were looked for.
func (a *app) listJobs(ctx context.Context, page *pageFlags) (jobs []control.Found, where string, err error) {
	c, err := a.pageClient(page)
	if err != nil {
		return nil, "", err
	}
	if c != nil {
		job, err := control.FindAt(ctx, c, "")
		return []control.Found{job}, page.at, err
	}
	found, where, err := a.findJobs(ctx)
	return control.Jobs(found), where, err
}

// psEntry is a job as ps -o json has it.
type psEntry struct {
	RunID  string `json:"runId"`
	RunDir string `json:"runDir"`
	PID    int    `json:"pid,omitempty"`
	// State is running, silent or dead; ended, or died where a muster has ended without a word. Error says why nobody
	// answers.
	State        string       `json:"state"`
	Error        string       `json:"error,omitempty"`
	Role         control.Role `json:"role,omitempty"`
	Name         string       `json:"name,omitempty"`
	Phase        string       `json:"phase,omitempty"`
	Nodes        int          `json:"nodes"`
	WorldSize    int          `json:"worldSize"`
	RestartCount int          `json:"restartCount"`
	StartTime    *time.Time   `json:"startTime"`
	ExitStatus   *int         `json:"exitStatus,omitempty"`
	EndTime      *time.Time   `json:"endTime,omitempty"`
}

// pastJobs are the jobs that have ended and are kept, without their parts.
func (a *app) pastJobs() ([]history.Run, error) {
	places, err := a.places()
	if err != nil {
		return nil, err
	}
	return history.Jobs(history.Runs(places.All())), nil
}

func pastEntries(runs []history.Run) (list []psEntry) {
	for i := range runs {
		r := &runs[i]
		d := &r.Status
		list = append(list, psEntry{
			RunID: d.RunID, RunDir: r.Muster.RunDir, State: pastState(r), Role: r.Muster.Role, Name: d.Name, Phase: string(d.Phase),
			Nodes: d.Nodes, WorldSize: d.WorldSize, RestartCount: d.RestartCount, StartTime: d.StartTime, ExitStatus: d.ExitStatus,
			EndTime: r.Ended,
		})
	}
	return list
}

func pastState(r *history.Run) string {
	if r.Died {
		return "died"
	}
	return "ended"
}

func psEntries(jobs []control.Found) []psEntry {
	list := []psEntry{}
	for _, f := range jobs {
		e := psEntry{RunID: f.RunID(), RunDir: f.Dir, PID: f.PID, State: stateOf(&f)}
		if f.Err != nil {
			e.Error = f.Err.Error()
		}
		if d := f.Answer; d != nil {
			e.Role, e.Name, e.Phase, e.Nodes, e.WorldSize = d.Muster.Role, d.Name, string(d.Phase), d.Nodes, d.WorldSize
			e.RestartCount, e.StartTime = d.RestartCount, d.StartTime
		}
		list = append(list, e)
	}
	return list
}

// stateOf says whether somebody answers for a job.
func stateOf(f *control.Found) string {
	switch {
	case f.Answer != nil:
		return "running"
	case f.Dead():
		return "dead"
	}
	return "silent"
}

func writePs(w io.Writer, jobs []control.Found, past []history.Run, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	say(t, "JOB\tPHASE\tNODES\tWORKERS\tRESTARTS\tUPTIME\tPID\tCOMMAND\n")
	for _, f := range jobs {
		id, pid := printable.Output(f.RunID()), cell(f.PID)
		d := f.Answer
		if d == nil {
			say(t, "%s\t%s\t-\t-\t-\t-\t%s\t(%s)\n", id, stateOf(&f), pid, f.Dir)
			continue
		}
		say(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", id, d.Phase, cell(d.Nodes), cell(d.WorldSize), d.RestartCount,
			since(d.StartTime, now), pid,
			printable.Output(d.Name))
	}
	for i := range past {
		r := &past[i]
		d := &r.Status
		how := "died"
		if !r.Died {
			how = "ended"
			if d.ExitStatus != nil {
				how = "status " + strconv.Itoa(*d.ExitStatus)
			}
		}
		say(t, "%s\t%s\t%s\t%s\t%d\t%s\t-\t%s (%s, %s ago)\n", printable.Output(d.RunID), printable.Output(string(d.Phase)), cell(d.Nodes),
			cell(d.WorldSize), d.RestartCount, since(d.StartTime, *r.Ended), printable.Output(d.Name), how, since(r.Ended, now))
	}
	return t.Flush()
}

// cell is a number in a table, 0 for one that is not known.
func cell(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// since is how long ago something was, to the second.
func since(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return shortTime(now.Sub(*t))
}

// shortTime is a time in a table, with its two largest units: 3d4h, 2h5m, 12s.
func shortTime(d time.Duration) string {
	seconds := int(max(d, 0) / time.Second)
	units := []struct {
		size int
		name string
	}{{24 * 60 * 60, "d"}, {60 * 60, "h"}, {60, "m"}, {1, "s"}}
	for i, u := range units {
		if seconds < u.size && u.size > 1 {
			continue
		}
		text := strconv.Itoa(seconds/u.size) + u.name
		if i+1 < len(units) {
			text += strconv.Itoa(seconds%u.size/units[i+1].size) + units[i+1].name
		}
		return text
	}
	return ""
}

// bytesText is a size in a table.
func bytesText(n *int64) string {
	if n == nil {
		return "-"
	}
	size, unit := float64(*n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1000 {
			break
		}
		size, unit = size/1024, u
	}
	if size < 10 && unit != "B" {
		return fmt.Sprintf("%.1f%s", size, unit)
	}
	return fmt.Sprintf("%.0f%s", size, unit)
}
