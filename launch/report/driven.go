package report

import (
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch/job"
)

// Driven is the status file of a job whose workers are started one by one, on hosts that come and go, by a driver in
// the launcher. Its methods belong to one goroutine at a time.
type Driven struct {
	status *StatusFile
	fatal  job.ExitCodes
	hosts  []DrivenHost
	// running are the workers' processes.
	running map[drivenPlace]drivenProcess
	carried map[string][]Traffic // by host
}

// drivenProcess is a process of a worker, when it was started, and what its host has told it to use last.
type drivenProcess struct {
	pid   int
	began time.Time
	used  Rank
}

// tell says in a rank of the status what is known of its process.
func (p *drivenProcess) tell(r *Rank) {
	r.PID, r.StartTime = p.pid, &p.began
	r.CPUSeconds, r.ResidentBytes, r.UsageTime, r.LastOutput = p.used.CPUSeconds, p.used.ResidentBytes, p.used.UsageTime, p.used.LastOutput
}

// drivenPlace is where a worker runs, which it keeps when its rank changes.
type drivenPlace struct {
	host  string
	local int
}

// DrivenHost is a host of a world: its name, and the ranks of its workers.
type DrivenHost struct {
	Name  string
	Ranks []int
}

// DrivenFailure is a worker that has failed, or was lost with its host.
type DrivenFailure struct {
	Rank, Status int
	Lost         bool
}

// DrivenEnd is how such a job ended.
type DrivenEnd struct {
	// Status is muster's exit status; Stopped says that a signal to muster is the reason.
	Status  int
	Stopped bool
	// Message is a sentence for people, Hint what to try.
	Message, Hint string
	// Size is how many workers there were at the end, Failures those of them that have failed, the first one first.
	Size     int
	Failures []DrivenFailure
	// Limit says that --backoff-limit allowed no further world.
	Limit bool
}

// OpenDriven writes the first state. A path that cannot be written is an error with status 2. node is this machine,
// where the driver runs; outputs are muster's own. changed is told each state; nil: nobody is.
func OpenDriven(job job.Job, node string, outputs []*os.File, terminationLog string, changed func(Status),
	log zerolog.Logger,
) (*Driven, error) {
	s, err := OpenStatus(StatusConfig{
		Path: job.StatusFile, TerminationLog: terminationLog, RunID: job.RunID, Name: job.Command.ShownTitle(job.Vars()), Node: node,
		Outputs: outputs, Changed: changed, Log: log, Now: time.Now,
	})
	if err != nil {
		return nil, err
	}
	return &Driven{status: s, fatal: job.Restart.Fatal, running: map[drivenPlace]drivenProcess{}, carried: map[string][]Traffic{}}, nil
}

// World says that a world has begun: its number, from 1, and its hosts.
func (d *Driven) World(number int, hosts []DrivenHost) {
	s, workers := d.status, 0
	s.cfg.Tasks = make([]Task, len(hosts))
	for i, h := range hosts {
		workers += len(h.Ranks)
		s.cfg.Tasks[i] = Task{Node: h.Name, Ranks: rankList(h.Ranks), RestartCount: number - 1, Traffic: d.carried[h.Name]}
	}
	d.hosts, s.doc.Ranks = hosts, nil
	for _, h := range hosts {
		for local, rank := range h.Ranks {
			r := Rank{Node: h.Name, Rank: rank, LocalRank: local, Phase: PhaseRunning}
			if p, goesOn := d.running[drivenPlace{h.Name, local}]; goesOn {
				p.tell(&r)
			}
			s.doc.Ranks = append(s.doc.Ranks, r)
		}
	}
	s.cfg.Workers, s.doc.Generation, s.doc.RestartCount, s.doc.Nodes, s.doc.WorldSize = workers, number, number-1, len(hosts), workers
	s.Running()
}

// Started says which process a worker is, on the machine of its host. It is written when all of the world are known.
func (d *Driven) Started(host string, local, pid int) {
	p := drivenProcess{pid: pid, began: d.status.now()}
	d.running[drivenPlace{host, local}] = p
	doc := &d.status.doc
	if doc.EndTime != nil {
		return
	}
	doc.Ranks = slices.Clone(doc.Ranks) // others may be reading those
	known := true
	for i := range doc.Ranks {
		if r := &doc.Ranks[i]; r.Node == host && r.LocalRank == local {
			p.tell(r)
			r.Phase = PhaseRunning
		}
		known = known && doc.Ranks[i].PID != 0
	}
	if known {
		d.status.write()
	}
}

// Used says what the workers of a host use, and what its network carries: of seen nothing else counts. It is told, and
// written with what is written next.
func (d *Driven) Used(host string, seen Status) {
	doc := &d.status.doc
	if doc.EndTime != nil {
		return
	}
	ranks, tasks := slices.Clone(doc.Ranks), slices.Clone(doc.Tasks) // others may be reading those
	for _, used := range seen.Ranks {
		at := drivenPlace{host, used.LocalRank}
		p, runs := d.running[at]
		if !runs || p.pid != used.PID {
			continue
		}
		p.used = used
		d.running[at] = p
		for i := range ranks {
			if r := &ranks[i]; r.Node == host && r.LocalRank == used.LocalRank {
				p.tell(r)
			}
		}
	}
	for _, t := range seen.Tasks {
		d.carried[host] = t.Traffic
	}
	for i := range tasks {
		if tasks[i].Node == host {
			tasks[i].Traffic, d.status.cfg.Tasks[i].Traffic = d.carried[host], d.carried[host]
		}
	}
	doc.Ranks, doc.Tasks = ranks, tasks
	d.status.tell()
}

// Gone says that the process of a worker has ended, and how: Succeeded, Failed, Stopped, or Unknown with its host. It is told,
// and written with what is written next.
func (d *Driven) Gone(host string, local, pid int, how Phase) {
	at, doc := drivenPlace{host, local}, &d.status.doc
	if d.running[at].pid != pid {
		return
	}
	delete(d.running, at) // another takes its place in the next world
	if doc.EndTime != nil {
		return
	}
	doc.Ranks = slices.Clone(doc.Ranks) // others may be reading those
	for i := range doc.Ranks {
		if r := &doc.Ranks[i]; r.Node == host && r.LocalRank == local && r.PID == pid {
			r.Phase, r.CPUSeconds, r.ResidentBytes, r.UsageTime = how, nil, nil, nil
		}
	}
	d.status.tell()
}

// Ended writes the last state.
func (d *Driven) Ended(end DrivenEnd) {
	o := Outcome{Status: end.Status, Reason: d.reasonOf(end), Message: end.Message, Hint: end.Hint}
	failed := len(end.Failures)
	counts := Counts{Failed: failed, Stopped: max(0, end.Size-failed)}
	if o.Reason == job.ReasonSucceeded {
		counts = Counts{Failed: failed, Succeeded: max(0, end.Size-failed)}
	}
	d.status.doc.Counts = counts
	d.status.doc.Ranks = slices.Clone(d.status.doc.Ranks)
	for i := range d.status.doc.Ranks {
		r := &d.status.doc.Ranks[i]
		r.Phase, _ = d.taskEnd(&DrivenHost{Ranks: []int{r.Rank}}, end.Failures, o.Reason)
	}
	for i := range d.hosts {
		t := &d.status.cfg.Tasks[i]
		t.Phase, t.ExitCode = d.taskEnd(&d.hosts[i], end.Failures, o.Reason)
	}
	d.status.Finished(o)
}

// taskEnd says how the workers of a host ended. A host that was lost has told nobody.
func (d *Driven) taskEnd(h *DrivenHost, failures []DrivenFailure, why job.Reason) (Phase, *int) {
	for _, f := range failures {
		switch {
		case !slices.Contains(h.Ranks, f.Rank):
		case f.Lost:
			return PhaseUnknown, nil
		default:
			return PhaseFailed, &f.Status
		}
	}
	if why == job.ReasonSucceeded {
		return PhaseSucceeded, new(int)
	}
	return PhaseStopped, nil
}

// reasonOf names the end of a driven job in the words of the status file.
func (d *Driven) reasonOf(end DrivenEnd) job.Reason {
	switch {
	case end.Stopped:
		return job.ReasonStopped
	case end.Status == errhint.OK:
		return job.ReasonSucceeded
	case end.Status == errhint.Deadline:
		return job.ReasonDeadline
	case end.Limit:
		return job.ReasonBackoffLimit
	case len(end.Failures) == 0 && end.Status == errhint.TryAgain:
		return job.ReasonNotMet
	case len(end.Failures) == 0 && end.Status == errhint.Usage:
		return job.ReasonRefused
	case len(end.Failures) == 0 && end.Status == errhint.Internal:
		return job.ReasonInternal
	case d.fatal.Has(end.Status):
		return job.ReasonFatal
	}
	return job.ReasonWorkerFailed
}
