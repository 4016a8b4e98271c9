package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/cmd/dialect"
	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/internal/errhint"
	"muster/launch"
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

// checked examines the hosts of the first world where that was asked for, and returns the source without those that are unfit.
// The check is that of every job: it is run as a job on these hosts that does nothing else.
func (j *elasticJob) checked(ctx context.Context, source discovery.Source) (discovery.Source, error) {
	h := j.req.Horovod
	if !j.req.Job.Check.On() {
		return source, nil
	}
	found, err := j.enough(ctx, source)
	if err != nil {
		return nil, err
	}
	req, err := j.checkRequest(found)
	if err != nil {
		return nil, err
	}
	l := &launcher{app: j.app, req: req, log: j.log}
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
		j.log.Warn().Strs("hosts", fit.unfit).Int("slots", left).Int("needed", h.NP).Msg("the job goes on without the hosts that are unfit")
	}
	return fit, nil
}

// enough finds hosts until they have the slots for the first world.
func (j *elasticJob) enough(ctx context.Context, source discovery.Source) ([]horovod.Host, error) {
	h := j.req.Horovod
	timeout := h.ElasticTimeout
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
		if have >= h.NP {
			return found, nil
		}
		if !time.Now().Before(late) {
			return nil, errhint.Code(fmt.Errorf("there were only %d slots of the %d needed within %v (--elastic-timeout)", have, h.NP, timeout), errhint.TryAgain)
		}
		if told != have {
			told = have
			j.log.Info().Int("slots", have).Int("needed", h.NP).Dur("timeout_ms", timeout).Msg("waiting for slots before the check of the hosts")
		}
		select {
		case <-time.After(elastic.DefaultInterval):
		case <-ctx.Done():
		}
	}
}

// checkRequest is a job on hosts that is nothing but the check.
func (j *elasticJob) checkRequest(found []horovod.Host) (dialect.Request, error) {
	var names []string
	for _, h := range found {
		names = append(names, h.Name+":"+strconv.Itoa(h.Slots))
	}
	req, err := dialect.Read("run", dialect.Invocation{Argv0: "muster", Args: []string{
		"--hosts", strings.Join(names, ","), "--nnodes", "1:" + strconv.Itoa(len(found)), "--no-python", "true",
	}})
	if err != nil {
		return req, fmt.Errorf("cannot check the hosts: %w", err)
	}
	ours, theirs := &req.Job, &j.req.Job
	nodes := ours.Hosts.Nodes
	ours.Hosts, ours.Hosts.Nodes = theirs.Hosts, nodes
	ours.Hosts.CollectLogs = ""
	ours.Check, ours.Env, ours.Environ, ours.Stop, ours.Fake, ours.FakeOnReal = theirs.Check, theirs.Env, theirs.Environ, theirs.Stop, theirs.Fake, theirs.FakeOnReal
	ours.Meeting.StoreAllow, ours.Restart.Deadline, ours.Sources = theirs.Meeting.StoreAllow, theirs.Restart.Deadline, theirs.Sources
	req.LogLevel, req.LogFormat = j.req.LogLevel, j.req.LogFormat
	return req, nil
}
