package main

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/spf13/pflag"

	"muster/internal/accel"
	"muster/internal/accel/probe"
	"muster/internal/hardware"
	"muster/launch/job"
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
	if file := a.getenv("MUSTER_FAKE"); file != "" {
		def = "fake:" + file
	}
	flags.StringVar(&f.spec, "accelerator", def, "auto, or fake:FILE for the made-up ones of a spec [MUSTER_FAKE=FILE]")
	f.round = a.getenv(hardware.RoundVariable)
	flags.BoolVar(&f.onReal, "fake-on-real", false, "let a fake stand in for accelerators that are really here")
	flags.StringVar(&f.exec, "probe-exec", probe.ExecAuto,
		"how the NVML probe is run: auto, memfd, file, or none (nor is any vendor's tool)")
	flags.DurationVar(&f.timeout, "gpu-probe-timeout", 0,
		"how long NVML, or a vendor's tool, may take (default 15s and 5s more for each GPU)")
}

// look finds this node's accelerators, or those of a spec. moments is how often what only several readings tell is read.
func (f *acceleratorFlags) look(ctx context.Context, a *app, moments int) (hardware.Hardware, error) {
	return hardware.Look(ctx, hardware.Options{
		Spec: f.spec, OnReal: f.onReal, Exec: f.exec, Timeout: f.timeout, Moments: moments, Round: f.round, Root: f.root,
		Host: hostname(), FakeNode: a.fakeNode(hostname()), TempDir: os.TempDir(), Environ: a.environ, Lookup: a.lookupEnv,
		Simulated: a.simulated(),
	})
}

// onFiles finds the accelerators that a job has here by files alone, at once.
func (a *app) onFiles(ctx context.Context, j *job.Job) (hardware.Hardware, error) {
	f := acceleratorFlags{spec: "auto", onReal: j.FakeOnReal, exec: probe.ExecNone}
	if j.Fake != "" {
		f.spec = "fake:" + j.Fake
	}
	return f.look(ctx, a, 0)
}

// fakeNodeName is the variable that names this node among those of a spec.
const fakeNodeName = "MUSTER_FAKE_NODE"

// fakeNode is the name of this node among those of a spec: several may be on one machine.
func (a *app) fakeNode(host string) string {
	return cmp.Or(a.getenv(fakeNodeName), a.nodeName, host)
}
