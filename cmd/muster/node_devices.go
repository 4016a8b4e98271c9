package main

import (
	"fmt"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/launch/job"
	"muster/launch/plan"
)

// nodeDevices answers what a plan asks about this node's accelerators.
type nodeDevices struct {
	job    *job.Job
	near   accel.Root                  // where accelerators, and CPUs and their limits, are looked for
	lookup func(string) (string, bool) // the environment, with a fake's variables
	detect func() accel.Inventory      // looks once, and not before somebody asks
	log    zerolog.Logger
	// standIns returns the CPUs of this machine that stand for those of near; nil: they are the same.
	standIns func(cpus []int) ([]int, error)

	// Set by assign, which comes before bind.
	shares  []accel.Share // by local rank; nil: workers share all
	ordered bool          // workers get the order in which we number devices
}

func newNodeDevices(job *job.Job, near accel.Root, lookup func(string) (string, bool), find func() accel.Inventory, log zerolog.Logger) *nodeDevices {
	return &nodeDevices{job: job, near: near, lookup: lookup, detect: sync.OnceValue(find), log: log}
}

// count is plan.Machine's CountWorkers.
func (n *nodeDevices) count(word string) (int, string, error) {
	if n.job.Devices.List {
		return n.countListed(word)
	}
	cpus, cpusWhy := accel.CPUs(n.near)
	workers, why, err := accel.Workers(word, n.detect(), cpus)
	if err == nil && workers == cpus && word == "cpu" {
		why = cpusWhy
	}
	return workers, why, err
}

// visible is plan.Machine's CountDevices: what is there, whatever a list of slots says.
func (n *nodeDevices) visible() int {
	inv := n.detect()
	if inv.Undecided != nil {
		return 0
	}
	return inv.VisibleCount
}

// assign is plan.Machine's AssignDevices.
func (n *nodeDevices) assign(procs string, workers int) (plan.DeviceVars, error) {
	var vars plan.DeviceVars
	var err error
	if pairs := n.job.Check.Switchbox.Pairs; len(pairs) > 0 {
		if err = pairsFit(pairs, n.detect()); err != nil {
			return vars, err
		}
	}
	source := func(s accel.Share) job.Source { return job.Source{Kind: job.FromMuster, Name: s.How} }
	switch {
	case n.job.Isolate:
		if n.shares, err = n.detect().ShareDevices(procs, workers, n.lookup); err != nil {
			return vars, fmt.Errorf("cannot use --isolate-devices: %w", err)
		}
		source = func(s accel.Share) job.Source {
			return job.Source{Kind: job.FromFlag, Name: "--isolate-devices: " + s.How}
		}
	case procs == "auto":
		if n.shares, err = n.detect().ShareInstances(); err != nil {
			return vars, err
		}
	}
	for _, s := range n.shares {
		vars.Own = append(vars.Own, deviceVars(s.Vars, source(s)))
	}
	// Numbers of devices matter where workers are told one, or bound near one.
	byNumber := n.job.Isolate || n.job.Bind.Mode != "" && n.job.Bind.Mode != job.BindCores
	if byNumber || accel.OneMaskOfTwo(n.near, n.lookup) {
		shared := n.detect().SharedVars(procs, byNumber, n.lookup)
		_, n.ordered = shared["CUDA_DEVICE_ORDER"]
		vars.Shared = deviceVars(shared, job.Source{Kind: job.FromMuster, Name: "as devices are numbered here"})
	}
	if listed, ok := n.listed(workers); ok {
		vars.Shared = append(vars.Shared, listed)
	}
	return vars, nil
}

func deviceVars(values map[string]string, source job.Source) []job.Var {
	var vars []job.Var
	for name, value := range values {
		vars = append(vars, job.Var{Name: name, Value: value, Source: source})
	}
	return vars
}

// bind is plan.Machine's BindWorkers. A worker with a share of its own is bound to the CPUs near that.
func (n *nodeDevices) bind(mode string, workers int) ([][]int, error) {
	if mode == job.BindCores {
		return accel.ShareCPUs(n.near, n.job.Bind.CPUs, workers)
	}
	inv := n.detect()
	if n.shares != nil {
		inv.Visible = nil
		for _, s := range n.shares {
			inv.Visible = append(inv.Visible, s.Device)
		}
	}
	inv.OrderUnsure = inv.OrderUnsure && !n.ordered
	bound, err := accel.Bind(n.near, inv, accel.BindMode(mode), workers)
	for _, w := range bound.Warnings {
		n.log.Warn().Msg(w)
	}
	if err != nil || n.standIns == nil {
		return bound.CPUs, err
	}
	for local, cpus := range bound.CPUs {
		if bound.CPUs[local], err = n.standIns(cpus); err != nil {
			return nil, err
		}
		if !slices.Equal(cpus, bound.CPUs[local]) {
			n.log.Info().Int("local_rank", local).Str("fake_cpus", accel.FormatList(cpus)).Str("cpus", accel.FormatList(bound.CPUs[local])).
				Msg("CPUs of this machine stand for those of the fake")
		}
	}
	return bound.CPUs, nil
}
