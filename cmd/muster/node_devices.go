package main

import (
	"sync"

	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/launch"
)

// nodeDevices answers what a plan asks about this node's accelerators.
type nodeDevices struct {
	near   accel.Root             // where accelerators, and CPUs and their limits, are looked for
	detect func() accel.Inventory // looks once, and not before somebody asks
	shares []accel.Share          // by local rank, set by assign; nil: workers share all
	log    zerolog.Logger
}

func newNodeDevices(near accel.Root, find func() accel.Inventory, log zerolog.Logger) *nodeDevices {
	return &nodeDevices{near: near, detect: sync.OnceValue(find), log: log}
}

// count is launch.Machine's CountWorkers.
func (n *nodeDevices) count(word string) (int, string, error) {
	cpus, cpusWhy := accel.CPUs(n.near)
	workers, why, err := accel.Workers(word, n.detect(), cpus)
	if err == nil && workers == cpus && word == "cpu" {
		why = cpusWhy
	}
	return workers, why, err
}

// assign is launch.Machine's AssignDevices.
func (n *nodeDevices) assign(procs string, _ int) (launch.DeviceVars, error) {
	var vars launch.DeviceVars
	if procs != "auto" {
		return vars, nil
	}
	var err error
	if n.shares, err = n.detect().ShareInstances(); err != nil {
		return vars, err
	}
	for _, s := range n.shares {
		vars.Own = append(vars.Own, deviceVars(s.Vars, launch.Source{Kind: launch.FromMuster, Name: s.How}))
	}
	return vars, nil
}

func deviceVars(values map[string]string, source launch.Source) []launch.Var {
	var vars []launch.Var
	for name, value := range values {
		vars = append(vars, launch.Var{Name: name, Value: value, Source: source})
	}
	return vars
}

// bind is launch.Machine's BindWorkers. A worker with a share of its own is bound to the CPUs near that.
func (n *nodeDevices) bind(mode string, workers int) ([][]int, error) {
	inv := n.detect()
	if n.shares != nil {
		inv.Visible = nil
		for _, s := range n.shares {
			inv.Visible = append(inv.Visible, s.Device)
		}
	}
	bound, err := accel.Bind(n.near, inv, accel.BindMode(mode), workers)
	for _, w := range bound.Warnings {
		n.log.Warn().Msg(w)
	}
	return bound.CPUs, err
}
