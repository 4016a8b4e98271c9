package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"muster/horovod"
	"muster/horovod/elastic"
	"muster/internal/errhint"
	"muster/launch"
)

// judged has a driver go by muster's rules for the ends of workers, beside Horovod's.
func judged(to *elastic.Rules, rules launch.RestartRules) {
	to.Judge = judge{launch.NewDrivenPolicy(rules, rand.Float64)}
	switch rules.Scope {
	case launch.ScopeProcess:
		to.Scope = elastic.ScopeProcess
	case launch.ScopeWorld:
		to.Scope = elastic.ScopeWorld
	default:
		to.Scope = elastic.ScopeHost
	}
	to.Wait = rules.Clean == launch.CleanNone
}

// judge is the policy of every job as the driver of an elastic job asks it.
type judge struct{ *launch.DrivenPolicy }

// Exited implements elastic.Judge.
func (j judge) Exited(at time.Time, rank, status int) elastic.Ruling {
	return elastic.Ruling(j.DrivenPolicy.Exited(at, rank, status))
}

// Lost implements elastic.Judge.
func (j judge) Lost(at time.Time, rank, status int) elastic.Ruling {
	return elastic.Ruling(j.DrivenPolicy.Lost(at, rank, status))
}

// Ended implements elastic.Judge.
func (j judge) Ended(at time.Time) elastic.Ruling { return elastic.Ruling(j.DrivenPolicy.Ended(at)) }

// elasticRules are those of muster's own rules for jobs that an elastic job goes by, beside those of its driver: its deadline, and
// its status file.
type elasticRules struct {
	deadline time.Duration
	expire   context.CancelCauseFunc // ends the job
	timer    *time.Timer
	status   *launch.Driven
	result   elastic.Result
}

// rules begins to keep the job's status file. The returned context ends when the job is to end.
func (j *elasticJob) rules(ctx context.Context) (context.Context, *elasticRules, error) {
	job := &j.req.Job
	r := &elasticRules{deadline: job.Restart.Deadline}
	var err error
	if r.status, err = launch.OpenDriven(*job, hostname(), []*os.File{j.stdout, j.stderr}, j.terminationLog(), j.log); err != nil {
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
	hosts := map[string]bool{}
	for _, s := range slots {
		hosts[s.Host] = true
	}
	r.status.World(number, len(slots), len(hosts))
}

// ended writes the job's last state: err is what the launcher ends with.
func (r *elasticRules) ended(err error) {
	r.expire(nil)
	if r.timer != nil {
		r.timer.Stop()
	}
	end := launch.DrivenEnd{Status: errhint.CodeOf(err), Size: r.result.Size, Failed: r.result.Failed, Limit: r.result.Limit}
	if err != nil {
		end.Message, end.Hint = err.Error(), errhint.Of(err)
	}
	r.status.Ended(end)
}

// stopped writes the last state of a job that a signal has ended.
func (r *elasticRules) stopped(signal *launch.SignalError) {
	r.expire(nil)
	if r.timer != nil {
		r.timer.Stop()
	}
	r.status.Ended(launch.DrivenEnd{
		Status: errhint.FromSignal(int(signal.Signal)), Stopped: true, Message: "muster " + signal.Error(), Size: r.result.Size, Failed: r.result.Failed,
	})
}
