package main

import (
	"cmp"
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
)

// newPsCmd is "muster ps".
func newPsCmd(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ps [-o json]",
		Short: "List the jobs of this user that run on this machine",
		Long: `List the jobs of this user whose muster runs on this machine. A job whose launcher runs here
is listed once, whatever it has started. A muster that does not answer within 5 s is listed
as such, and so is the run directory of one that was killed.

Jobs are found in the run directories below XDG_RUNTIME_DIR, TMPDIR and /tmp.`,
		Annotations: map[string]string{exitAnnotation: "  0  done, also where no job runs\n  2  usage error, or the run directories cannot be read\n"},
		Args:        cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return errhint.Usagef("-o %q: the only other form is json", output)
			}
			found, where, err := a.findJobs(cmd.Context())
			if err != nil {
				return err
			}
			jobs := control.Jobs(found)
			slices.SortStableFunc(jobs, func(x, y control.Found) int { return cmp.Compare(x.RunID(), y.RunID()) })
			if output == "json" {
				return writeJSON(a.stdout, psEntries(jobs))
			}
			if len(jobs) == 0 {
				say(a.stderr, "no job of yours runs here: it was looked for in %s\n", where)
				return nil
			}
			return writePs(a.stdout, jobs, time.Now())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: a list of objects")
	fixedWords(cmd, map[string][]string{"output": {"json"}})
	return cmd
}

// psEntry is a job as ps -o json has it.
type psEntry struct {
	RunID  string `json:"runId"`
	RunDir string `json:"runDir"`
	PID    int    `json:"pid,omitempty"`
	// State is running, silent or dead; Error says why nobody answers.
	State        string       `json:"state"`
	Error        string       `json:"error,omitempty"`
	Role         control.Role `json:"role,omitempty"`
	Name         string       `json:"name,omitempty"`
	Phase        string       `json:"phase,omitempty"`
	Nodes        int          `json:"nodes"`
	WorldSize    int          `json:"worldSize"`
	RestartCount int          `json:"restartCount"`
	StartTime    *time.Time   `json:"startTime"`
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

func writePs(w io.Writer, jobs []control.Found, now time.Time) error {
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
