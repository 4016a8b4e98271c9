package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/cmd/dryrun"
	"muster/cmd/here"
	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/launch/hosts"
	"muster/launch/job"
	"muster/launch/node"
	"muster/launch/plan"
)

// runHosts runs or shows a job on machines that muster reaches itself.
func (a *app) runHosts(ctx context.Context, req dialect.Request, log zerolog.Logger) error {
	if req.DryRun {
		d, err := dryrun.NewHosts(ctx, a.launcherConfig(req, log), req, a.machineOf(log))
		if err != nil {
			return err
		}
		return a.show(d, req.JSON)
	}
	return hosts.Launch(ctx, a.launcherConfig(req, log))
}

// runElastic runs or shows an elastic Horovod job.
func (a *app) runElastic(ctx context.Context, req dialect.Request, log zerolog.Logger) error {
	h := req.Horovod
	cfg := hosts.ElasticConfig{
		Launcher: a.launcherConfig(req, log), Source: a.discovery(h), CheckJob: checkJob,
		Rules: elastic.Rules{
			NP: h.NP, MinNP: h.MinNP, MaxNP: h.MaxNP, ResetLimit: h.ResetLimit, Timeout: h.ElasticTimeout,
			Cooldown: h.Cooldown,
		},
	}
	if h.DNS == "" { // whose server others need too
		cfg.MinInterval = 100 * time.Millisecond
	}
	if req.DryRun {
		d, err := dryrun.NewElastic(ctx, cfg, req, a.machineOf(log))
		if err == nil {
			err = a.show(d, req.JSON)
		}
		return node.Compat(&req.Job, err, a.console.PrintError)
	}
	return hosts.LaunchElastic(ctx, cfg)
}

// machineOf is what a node of a job would be planned with if it were here.
func (a *app) machineOf(log zerolog.Logger) dryrun.MachineOf {
	return func(name string, j job.Job) (plan.Machine, error) {
		return (&here.Here{Environ: a.here.Environ, Name: name}).Machine(j, log)
	}
}

func (a *app) launcherConfig(req dialect.Request, log zerolog.Logger) hosts.LauncherConfig {
	c := hosts.LauncherConfig{
		Job: req.Job, LogLevel: req.LogLevel, LogFormat: req.LogFormat, Environ: a.here.Environ, Version: a.version,
		Hostname: here.Hostname(), Stdout: a.stdout, Stderr: a.stderr, Console: a.console, TerminationLog: a.here.TerminationLog(),
		Guardian: here.Guardian(), RemoveOnDeath: a.here.RemoveOnDeath, Log: log,
	}
	if h := req.Horovod; h != nil {
		c.Horovod = &hosts.World{Slots: h.Slots, NICs: h.NICs}
	}
	return c
}

// discovery is where the hosts of an elastic job come from.
func (a *app) discovery(h *dialect.HorovodRequest) discovery.Source {
	switch {
	case h.Script != "":
		shell := discovery.Shell{Env: a.here.Environ, Stderr: func(line string) { say(a.stderr, "%s\n", line) }}
		return discovery.Script{Command: h.Script, Shown: job.ShownText(h.Script), Runner: shell, Slots: h.SlotsPerHost}
	case h.Hostfile != "":
		return discovery.File{Name: h.Hostfile, Read: os.ReadFile, Parse: func(text string) ([]horovod.Host, error) {
			list, _, err := discovery.ParseHostfile(h.Hostfile, []byte(text))
			return list, err
		}}
	case h.DNS != "":
		return discovery.DNS{Name: h.DNS, Resolver: net.DefaultResolver, Slots: h.SlotsPerHost}
	}
	return discovery.Fixed(h.Hosts)
}

// checkJob is a job on hosts that does nothing.
func checkJob(found []horovod.Host) (job.Job, error) {
	var names []string
	for _, h := range found {
		names = append(names, h.Name+":"+strconv.Itoa(h.Slots))
	}
	req, err := dialect.Read("run", dialect.Invocation{Argv0: "muster", Args: []string{
		"--hosts", strings.Join(names, ","), "--nnodes", "1:" + strconv.Itoa(len(found)), "--no-python", "true",
	}})
	if err != nil {
		return req.Job, fmt.Errorf("cannot check the hosts: %w", err)
	}
	return req.Job, nil
}

// simulate runs all nodes of a job on this machine.
func (a *app) simulate(ctx context.Context, req dialect.Request, log zerolog.Logger) error {
	err := hosts.Simulate(ctx, hosts.SimulationConfig{
		Job: req.Job, Nodes: req.SimulateNodes, Argv: a.argv, Environ: a.here.Environ, NodeVariable: here.FakeNodeVariable,
		Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr, Console: a.console, Guardian: here.Guardian(),
		RemoveOnDeath: a.here.RemoveOnDeath, Log: log,
	})
	return node.Compat(&req.Job, err, a.console.PrintError)
}
