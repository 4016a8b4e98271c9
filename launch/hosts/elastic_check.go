package hosts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/internal/errhint"
	"muster/launch"
	"muster/launch/job"
)

// fitHosts are the hosts of a source but for those that a check has found unfit.
type fitHosts struct {
	discovery.Source
	unfit []string
}

// Find implements discovery.Source.
func (f fitHosts) Find(ctx context.Context) ([]horovod.Host, []string, error) {
	found, warnings, err := f.Source.Find(ctx)
	return slices.DeleteFunc(slices.Clone(found), func(h horovod.Host) bool { return slices.Contains(f.unfit, h.Name) }), warnings, err
}

// checked examines the hosts of the first world where that was asked for, and returns the source without those that are
// unfit. The check is that of every job: it is run as a job on these hosts that does nothing else.
func (j *elasticJob) checked(ctx context.Context) (discovery.Source, error) {
	source, needed := j.config.Source, j.config.Rules.NP
	if !j.launcher.job.Check.On() {
		return source, nil
	}
	found, err := j.enough(ctx, source)
	if err != nil {
		return nil, err
	}
	cfg := j.launcher.config
	if cfg.Job, err = j.checkJob(found); err != nil {
		return nil, err
	}
	cfg.Horovod = nil
	l := newLauncher(cfg)
	err = l.run(ctx)
	if stopped, ok := errors.AsType[*launch.SignalError](context.Cause(ctx)); ok {
		return nil, stopped
	}
	status := errhint.CodeOf(err)
	if told, ok := errors.AsType[errhint.StatusError](err); ok {
		status = int(told)
	}
	fit := fitHosts{Source: source}
	for i, host := range found {
		if s, ended := l.fleet.EndedWith(i); ended && (s == errhint.Faulty || s == errhint.Straggler || s == errhint.Undecided) {
			fit.unfit = append(fit.unfit, host.Name)
		}
	}
	switch left := horovod.Total(slices.DeleteFunc(found, func(h horovod.Host) bool { return slices.Contains(fit.unfit, h.Name) })); {
	case len(fit.unfit) == 0 && err != nil:
		return nil, errhint.Code(errors.New("the hosts could not be checked (--network-check)"), status)
	case left == 0:
		return nil, errhint.Code(errors.New("the check has found all hosts unfit (--network-check)"), status)
	case len(fit.unfit) > 0:
		j.launcher.config.Log.Warn().Strs("hosts", fit.unfit).Int("slots", left).Int("needed",
			needed).Msg("the job goes on without the hosts that are unfit")
	}
	return fit, nil
}

// enough finds hosts until they have the slots for the first world.
func (j *elasticJob) enough(ctx context.Context, source discovery.Source) ([]horovod.Host, error) {
	needed, timeout := j.config.Rules.NP, j.config.Rules.Timeout
	if timeout == 0 {
		timeout = elastic.DefaultTimeout
	}
	late := time.Now().Add(timeout)
	for told := -1; ; {
		found, _, err := source.Find(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, errhint.Code(err, errhint.Usage)
		}
		found = slices.DeleteFunc(slices.Clone(found), func(h horovod.Host) bool { return h.Slots < 1 })
		have := horovod.Total(found)
		if have >= needed {
			return found, nil
		}
		if !time.Now().Before(late) {
			return nil, errhint.Code(fmt.Errorf("there were only %d slots of the %d needed within %v (--elastic-timeout)", have, needed,
				timeout), errhint.TryAgain)
		}
		if told != have {
			told = have
			j.launcher.config.Log.Info().Int("slots", have).Int("needed", needed).Dur("timeout_ms",
				timeout).Msg("waiting for slots before the check of the hosts")
		}
		select {
		case <-time.After(elastic.DefaultInterval):
		case <-ctx.Done():
		}
	}
}

// checkJob is a job on hosts that is nothing but the check.
func (j *elasticJob) checkJob(found []horovod.Host) (job.Job, error) {
	ours, err := j.config.CheckJob(found)
	if err != nil {
		return ours, err
	}
	theirs := &j.launcher.job
	nodes := ours.Hosts.Nodes
	ours.Hosts, ours.Hosts.Nodes = theirs.Hosts, nodes
	ours.Hosts.CollectLogs = ""
	ours.Check, ours.Env, ours.Environ, ours.Stop, ours.Fake, ours.FakeOnReal = theirs.Check, theirs.Env, theirs.Environ, theirs.Stop,
		theirs.Fake, theirs.FakeOnReal
	ours.Meeting.StoreAllow, ours.Restart.Deadline, ours.Sources = theirs.Meeting.StoreAllow, theirs.Restart.Deadline, theirs.Sources
	return ours, nil
}
