package hosts

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"muster/horovod"
	"muster/horovod/elastic"
	"muster/internal/errhint"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
)

// judged has a driver go by muster's rules for the ends of workers, beside Horovod's.
func judged(to *elastic.Rules, rules job.RestartRules) {
	to.Judge = judge{policy.NewDriven(rules, rand.Float64)}
	switch rules.Scope {
	case job.ScopeProcess:
		to.Scope = elastic.ScopeProcess
	case job.ScopeWorld:
		to.Scope = elastic.ScopeWorld
	default:
		to.Scope = elastic.ScopeHost
	}
	to.Wait = rules.Clean == job.CleanNone
}

// judge is the policy of every job as the driver of an elastic job asks it.
type judge struct{ *policy.Driven }

// Exited implements elastic.Judge.
func (j judge) Exited(at time.Time, rank, status int) elastic.Ruling {
	return elastic.Ruling(j.Driven.Exited(at, rank, status))
}

// Lost implements elastic.Judge.
func (j judge) Lost(at time.Time, rank, status int) elastic.Ruling {
	return elastic.Ruling(j.Driven.Lost(at, rank, status))
}

// Ended implements elastic.Judge.
func (j judge) Ended(at time.Time) elastic.Ruling { return elastic.Ruling(j.Driven.Ended(at)) }

// Next implements elastic.Judge.
func (j judge) Next(at time.Time) elastic.Ruling { return elastic.Ruling(j.Driven.Next(at)) }

// elasticRules are those of muster's own rules for jobs that an elastic job goes by, beside those of its driver: its
// deadline, and its status file.
type elasticRules struct {
	deadline time.Duration
	expire   context.CancelCauseFunc // ends the job
	timer    *time.Timer
	result   elastic.Result

	mu     sync.Mutex // of status: processes are told of beside the driver
	status *report.Driven
}

// openRules begins to keep the job's status file. The returned context ends when the job is to end.
func (j *elasticJob) openRules(ctx context.Context) (context.Context, *elasticRules, error) {
	job := &j.launcher.job
	r := &elasticRules{deadline: job.Restart.Deadline}
	var err error
	if r.status, err = report.OpenDriven(*job, j.launcher.config.Hostname, []*os.File{j.launcher.config.Stdout, j.launcher.config.Stderr},
		j.launcher.config.TerminationLog, j.told.take, j.launcher.config.Log); err != nil {
		return ctx, nil, err
	}
	ctx, r.expire = context.WithCancelCause(ctx)
	return ctx, r, nil
}

// began takes note of a world. The deadline runs from the first.
func (r *elasticRules) began(number int, slots []horovod.Slot) {
	if r.timer == nil && r.deadline > 0 {
		r.timer = time.AfterFunc(r.deadline, func() {
			r.expire(errhint.Code(fmt.Errorf("the job was stopped: it has taken %v (--active-deadline)", r.deadline), errhint.Deadline))
		})
	}
	var hosts []report.DrivenHost
	for _, s := range slots {
		i := slices.IndexFunc(hosts, func(h report.DrivenHost) bool { return h.Name == s.Host })
		if i < 0 {
			i, hosts = len(hosts), append(hosts, report.DrivenHost{Name: s.Host})
		}
		hosts[i].Ranks = append(hosts[i].Ranks, s.Rank)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.World(number, hosts)
}

// started takes note of the process of a worker.
func (r *elasticRules) started(host string, local, pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Started(host, local, pid)
}

// gone takes note of its end.
func (r *elasticRules) gone(host string, local, pid int, how report.Phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Gone(host, local, pid, how)
}

// used takes note of what a host's workers use.
func (r *elasticRules) used(host string, workers report.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Used(host, workers)
}

// end is how the job ended, but for the reason.
func (r *elasticRules) end(status int) report.DrivenEnd {
	end := report.DrivenEnd{Status: status, Size: r.result.Size, Limit: r.result.Limit}
	for _, f := range r.result.Failures {
		end.Failures = append(end.Failures, report.DrivenFailure{Rank: f.Rank, Status: f.Status, Lost: f.Lost != ""})
	}
	return end
}

// ended writes the job's last state: err is what the launcher ends with.
func (r *elasticRules) ended(err error) {
	r.expire(nil)
	if r.timer != nil {
		r.timer.Stop()
	}
	end := r.end(errhint.CodeOf(err))
	if err != nil {
		end.Message, end.Hint = err.Error(), errhint.Of(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Ended(end)
}

// stopped writes the last state of a job that a signal has ended.
func (r *elasticRules) stopped(signal *launch.SignalError) {
	r.expire(nil)
	if r.timer != nil {
		r.timer.Stop()
	}
	end := r.end(errhint.FromSignal(int(signal.Signal)))
	end.Stopped, end.Message = true, "muster "+signal.Error()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Ended(end)
}
