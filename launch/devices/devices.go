// Package devices answers what a plan asks about this node's accelerators: how many workers they are for, which of them
// each worker sees, and near which CPUs it runs.
package devices

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/internal/errhint"
	"muster/launch/job"
	"muster/launch/plan"
)

// Devices are those of this node, for one job.
type Devices struct {
	config Config
	job    *job.Job
	near   accel.Root
	lookup func(string) (string, bool)
	detect func() accel.Inventory // looks once, and not before somebody asks
	log    zerolog.Logger

	// Set by Assign, which comes before Bind.
	shares  []accel.Share // by local rank; nil: workers share all
	ordered bool          // workers get the order in which we number devices
}

// Config is where devices are looked for, and for whom.
type Config struct {
	Job *job.Job
	// Near is where accelerators, and CPUs and their limits, are looked for.
	Near accel.Root
	// Lookup finds variables of the environment, with a fake's.
	Lookup func(string) (string, bool)
	// Detect looks at the devices. It is called once at most.
	Detect func() accel.Inventory
	// WatchUse has told called with what the NVIDIA devices are used for, of which there are gpus, until ctx ends; nil:
	// nobody can tell.
	WatchUse func(ctx context.Context, gpus int, every time.Duration, told func([]nvline.Use)) error
	// StandIns returns the CPUs of this machine that stand for those of Near; nil: they are the same.
	StandIns func(cpus []int) ([]int, error)
	Log      zerolog.Logger
}

// New returns the devices of a node. It looks at nothing.
func New(c Config) *Devices {
	return &Devices{config: c, job: c.Job, near: c.Near, lookup: c.Lookup, detect: sync.OnceValue(c.Detect), log: c.Log}
}

// Count is plan.Machine's CountWorkers.
func (n *Devices) Count(word string) (int, string, error) {
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

// Visible is plan.Machine's CountDevices: what is there, whatever a list of slots says.
func (n *Devices) Visible() int {
	inv := n.detect()
	if inv.Undecided != nil {
		return 0
	}
	return inv.VisibleCount
}

// Assign is plan.Machine's AssignDevices.
func (n *Devices) Assign(procs string, workers int) (plan.DeviceVars, error) {
	var vars plan.DeviceVars
	var err error
	if pairs := n.job.Check.Switchbox.Pairs; len(pairs) > 0 {
		if err = PairsFit(pairs, n.detect()); err != nil {
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
	if listed, ok := n.Listed(workers); ok {
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

// Bind is plan.Machine's BindWorkers. A worker with a share of its own is bound to the CPUs near that.
func (n *Devices) Bind(mode string, workers int) ([][]int, error) {
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
	if err != nil || n.config.StandIns == nil {
		return bound.CPUs, err
	}
	for local, cpus := range bound.CPUs {
		if bound.CPUs[local], err = n.config.StandIns(cpus); err != nil {
			return nil, err
		}
		if !slices.Equal(cpus, bound.CPUs[local]) {
			n.log.Info().Int("local_rank", local).Str("fake_cpus", accel.FormatList(cpus)).Str("cpus", accel.FormatList(bound.CPUs[local])).
				Msg("CPUs of this machine stand for those of the fake")
		}
	}
	return bound.CPUs, nil
}

// PairsFit refuses pairs of devices that this node has not, as far as files tell which it has.
func PairsFit[P ~[2]int](pairs []P, inv accel.Inventory) error {
	if inv.VisibleCount == 0 {
		return nil // torch may find what files do not tell
	}
	for _, pair := range pairs {
		if max(pair[0], pair[1]) >= inv.VisibleCount {
			return errhint.With(
				errhint.Usagef("cannot use --box-pairs %d:%d: a worker on this node would see %d devices, numbered from 0", pair[0],
					pair[1], inv.VisibleCount),
				"name the pairs of this node's devices that share a box; without --box-pairs they are "+job.DefaultBoxPairs)
		}
	}
	return nil
}
