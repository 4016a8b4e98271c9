package show

import (
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/control/history"
)

// Job is a job as muster ps -o json has it. Programs read it: fields are added, never renamed.
type Job struct {
	RunID  string `json:"runId"`
	RunDir string `json:"runDir"`
	PID    int    `json:"pid,omitempty"`
	// State is running, silent or dead; ended, or died where a muster has ended without a word. Error says why nobody
	// answers. Node is the one of several whose muster has ended, while others of the job go on here.
	State        string       `json:"state"`
	Error        string       `json:"error,omitempty"`
	Role         control.Role `json:"role,omitempty"`
	Name         string       `json:"name,omitempty"`
	Node         string       `json:"node,omitempty"`
	Phase        string       `json:"phase,omitempty"`
	Nodes        int          `json:"nodes"`
	WorldSize    int          `json:"worldSize"`
	RestartCount int          `json:"restartCount"`
	StartTime    *time.Time   `json:"startTime"`
	ExitStatus   *int         `json:"exitStatus,omitempty"`
	EndTime      *time.Time   `json:"endTime,omitempty"`
}

func pastJobs(runs []history.Run, jobs []control.Found) (list []Job) {
	for i := range runs {
		r := &runs[i]
		d := &r.Status
		list = append(list, Job{
			RunID: d.RunID, RunDir: r.Muster.RunDir, State: pastState(r), Role: r.Muster.Role, Name: d.Name, Node: nodeOf(r, jobs),
			Phase: string(d.Phase), Nodes: d.Nodes, WorldSize: d.WorldSize, RestartCount: d.RestartCount,
			StartTime: d.StartTime, ExitStatus: d.ExitStatus, EndTime: r.Ended,
		})
	}
	return list
}

// nodeOf is the node that a run was of one of the jobs, which run, empty where its job has ended here.
func nodeOf(r *history.Run, jobs []control.Found) string {
	if r.Muster.Role != control.Agent || len(r.Status.Tasks) == 0 || !slices.ContainsFunc(jobs, func(f control.Found) bool {
		if f.Answer == nil || f.RunID() != r.Status.RunID || f.Answer.StartTime != nil && f.Answer.StartTime.After(*r.Ended) {
			return false // also an earlier job may have had its id
		}
		return r.Muster.Part && f.Answer.Muster.Role != control.Agent || r.Muster.Beside(&f.Answer.Muster)
	}) {
		return ""
	}
	return r.Status.Tasks[0].Node
}

func pastState(r *history.Run) string {
	if r.Died {
		return "died"
	}
	return "ended"
}

func runningJobs(jobs []control.Found) []Job {
	list := []Job{}
	for _, f := range jobs {
		e := Job{RunID: f.RunID(), RunDir: f.Dir, PID: f.PID, State: stateOf(&f)}
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

// JobList are jobs that run and jobs that have ended as muster ps -o json has them.
func JobList(jobs []control.Found, past []history.Run) []Job {
	return append(runningJobs(jobs), pastJobs(past, jobs)...)
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

// Jobs writes a table of jobs that run, and below it those that have ended.
func Jobs(w io.Writer, jobs []control.Found, past []history.Run, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	say(t, "JOB\tPHASE\tNODES\tWORKERS\tRESTARTS\tUPTIME\tPID\tCOMMAND\n")
	for _, f := range jobs {
		id, pid := printable.Output(f.RunID()), cell(f.PID)
		d := f.Answer
		if d == nil {
			say(t, "%s\t%s\t-\t-\t-\t-\t%s\t(%s)\n", id, stateOf(&f), pid, f.Dir)
			continue
		}
		say(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", id, d.Phase, cell(d.Nodes), cell(d.WorldSize), d.Restarts(),
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
		name := d.Name
		if node := nodeOf(r, jobs); node != "" {
			name += " on " + wording.Node(node)
		}
		say(t, "%s\t%s\t%s\t%s\t%d\t%s\t-\t%s (%s, %s ago)\n", printable.Output(d.RunID), printable.Output(string(d.Phase)), cell(d.Nodes),
			cell(d.WorldSize), d.Restarts(), since(d.StartTime, *r.Ended), printable.Output(name), how, since(r.Ended, now))
	}
	return t.Flush()
}
