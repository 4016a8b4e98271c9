package main

import (
	"context"
	"time"

	"github.com/spf13/pflag"

	"muster/internal/accel"
	"muster/internal/accel/probe"
	"muster/internal/hardware"
)

// acceleratorFlags say where a command looks for accelerators, and how it asks NVIDIA's library and other vendors'
// tools.
type acceleratorFlags struct {
	spec    string // "auto", or "fake:" and the path of a spec
	onReal  bool
	exec    string // one of probe's Exec words
	timeout time.Duration
	round   string     // whose faults of a spec are there; "" for the first
	root    accel.Root // nil for this machine; tests have another
}

func (f *acceleratorFlags) add(flags *pflag.FlagSet, a *app) {
	def := ""
	if file := a.here.Getenv("MUSTER_FAKE"); file != "" {
		def = "fake:" + file
	}
	flags.StringVar(&f.spec, "accelerator", def, "auto, or fake:FILE for the made-up ones of a spec [MUSTER_FAKE=FILE]")
	f.round = a.here.Getenv(hardware.RoundVariable)
	flags.BoolVar(&f.onReal, "fake-on-real", false, "let a fake stand in for accelerators that are really here")
	flags.StringVar(&f.exec, "probe-exec", probe.ExecAuto,
		"how the NVML probe is run: auto, memfd, file, or none (nor is any vendor's tool)")
	flags.DurationVar(&f.timeout, "gpu-probe-timeout", 0,
		"how long NVML, or a vendor's tool, may take (default 15s and 5s more for each GPU)")
}

// look finds this node's accelerators, or those of a spec. moments is how often what only several readings tell is read.
func (f *acceleratorFlags) look(ctx context.Context, a *app, moments int) (hardware.Hardware, error) {
	return a.here.Look(ctx, hardware.Options{
		Spec: f.spec, OnReal: f.onReal, Exec: f.exec, Timeout: f.timeout, Round: f.round, Root: f.root,
	}, moments)
}
