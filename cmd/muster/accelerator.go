package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"muster/internal/accel"
	"muster/internal/accel/probe"
	"muster/internal/accel/rehearsal"
	"muster/internal/errhint"
	"muster/internal/health"
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
	f.round = a.getenv(fakeRound)
	flags.BoolVar(&f.onReal, "fake-on-real", false, "let a fake stand in for accelerators that are really here")
	flags.StringVar(&f.exec, "probe-exec", probe.ExecAuto,
		"how the NVML probe is run: auto, memfd, file, or none (nor is any vendor's tool)")
	flags.DurationVar(&f.timeout, "gpu-probe-timeout", 0,
		"how long NVML, or a vendor's tool, may take (default 15s and 5s more for each GPU)")
}

// fakeRound names the environment variable with the round whose faults of a spec a command that looks at
// accelerators shows; default 0. A job goes through rounds of its own.
const fakeRound = "MUSTER_FAKE_ROUND"

// hardware is what is looked at: this machine, or one that a spec makes up in part.
type hardware struct {
	host    string
	root    accel.Root
	inv     accel.Inventory
	fake    *rehearsal.Fake // nil for this machine
	nvml    *probe.Report
	nvmlErr error // why nvml is nil; both are nil where there is no NVIDIA GPU
	tools   *probe.Tools
}

// look finds this node's accelerators, or those that a spec makes up, and asks NVML about those of NVIDIA. moments is
// how often what only several readings tell is read, a second apart. That NVML does not answer is no error of the
// command.
func (f *acceleratorFlags) look(ctx context.Context, a *app, moments int) (hardware, error) {
	n := hardware{host: hostname(), root: f.root}
	if n.root == nil {
		n.root = accel.Real()
	}
	switch f.exec {
	case probe.ExecAuto, probe.ExecMemfd, probe.ExecFile, probe.ExecNone:
	default:
		return n, errhint.Usagef("--probe-exec %q: auto, memfd, file or none", f.exec)
	}
	if f.timeout < 0 {
		return n, errhint.Usagef("--gpu-probe-timeout %v: not below 0", f.timeout)
	}
	path, made := strings.CutPrefix(f.spec, "fake:")
	switch {
	case f.spec == "" || f.spec == "auto":
		n.inv = accel.Detect(n.root, a.lookupEnv)
	case !made || path == "":
		return n, errhint.Usagef("--accelerator %q: auto or fake:FILE", f.spec)
	default:
		var err error
		n.host = a.fakeNode(n.host)
		if n.fake, err = a.loadFake(path, n.host, f.onReal); err != nil {
			return n, err
		}
		if f.round != "" {
			round, err := strconv.Atoi(f.round)
			if err != nil || round < 0 {
				return n, errhint.Usagef("%s=%q: the number of a round, from 0", fakeRound, f.round)
			}
			n.fake = n.fake.At(round)
		}
		n.inv = n.fake.Detect(n.root, a.lookupEnv)
		n.root = n.fake.Root(n.root)
	}
	gpus := n.nvidia()
	o := probe.Options{Environ: a.environ, Exec: f.exec, GPUs: gpus, Timeout: f.timeout, Moments: moments}
	n.tools = n.askable(o)
	switch {
	case gpus == 0:
		return n, nil
	case f.exec == probe.ExecNone:
		n.nvmlErr = errors.New("NVML was not asked: --probe-exec none")
	case n.fake != nil:
		n.nvml, n.nvmlErr = probe.Replay(n.fake.NVML(moments), o)
	default:
		o.Executable, _ = os.Executable() // unknown: none is looked for beside it
		n.nvml, n.nvmlErr = probe.Ask(ctx, o)
	}
	return n, context.Cause(ctx)
}

// askable is what asks other vendors' tools, or the fake in their place.
func (n *hardware) askable(o probe.Options) *probe.Tools {
	o.GPUs = 0
	for _, f := range n.inv.Families {
		if f.Vendor != "nvidia" {
			o.GPUs = max(o.GPUs, len(f.Devices))
		}
	}
	if n.fake != nil {
		return probe.ReplayTools(o, n.fake.Tool)
	}
	return probe.NewTools(o)
}

// nvidia counts the GPUs about which NVML can say something: those that NVIDIA's driver holds, and those of WSL, which
// no file shows.
func (n *hardware) nvidia() int {
	count := 0
	for _, f := range n.inv.Families {
		if f.Vendor != "nvidia" {
			continue
		}
		count = len(f.Devices)
		for _, d := range f.Unusable {
			if d.Driver == "nvidia" {
				count++
			}
		}
		if count == 0 && f.Undecided != nil {
			count = 1
		}
	}
	return count
}

// lookup is the environment that workers would have.
func (n *hardware) lookup(a *app) func(string) (string, bool) {
	if n.fake != nil {
		return n.fake.Lookup(a.lookupEnv)
	}
	return a.lookupEnv
}

// health is the node as the checks see it. They ask vendors' tools until ctx ends.
func (n *hardware) health(ctx context.Context, a *app) *health.Node {
	h := &health.Node{
		Root: n.root, Machine: health.Real(), Inventory: n.inv, Lookup: n.lookup(a), TempDir: os.TempDir(), NVML: n.nvml,
		NVMLErr: n.nvmlErr,
		Tool:    func(tool string, args ...string) probe.Answer { return n.tools.Ask(ctx, tool, args...) },
	}
	if n.fake != nil {
		h.Machine = health.Faked(h.Machine, n.fake, a.simulated())
	}
	return h
}

// degraded says in a line why less than all is known of NVIDIA's GPUs, "" where all is.
func (n *hardware) degraded() string {
	switch {
	case n.nvmlErr != nil:
		return "NVIDIA's GPUs are known from files alone: " + n.nvmlErr.Error()
	case n.nvml == nil:
		return ""
	case n.nvml.Fatal != nil:
		return "NVIDIA's GPUs are known from files alone: " + n.nvml.Fatal.String()
	case !n.nvml.Complete:
		return "not all is known of NVIDIA's GPUs: " + n.nvml.Err().Error()
	case n.nvml.SMI:
		return "nvidia-smi told of NVIDIA's GPUs, which is less than NVML would: " + n.nvml.Instead
	}
	return ""
}

// fakeNodeName is the variable that names this node among those of a spec.
const fakeNodeName = "MUSTER_FAKE_NODE"

// fakeNode is the name of this node among those of a spec: several may be on one machine.
func (a *app) fakeNode(host string) string {
	return cmp.Or(a.getenv(fakeNodeName), a.nodeName, host)
}

// loadFake reads a spec of accelerators that are not there, and refuses it where real ones are.
func (a *app) loadFake(spec, host string, onReal bool) (*rehearsal.Fake, error) {
	fake, err := rehearsal.LoadFake(spec, host)
	if err != nil {
		return nil, err
	}
	return fake, fake.CheckMachine(accel.Real(), onReal)
}

// accelerators is dialect.Machine's Accelerators. Where they cannot be counted it has none: whoever needs them says
// why.
func (a *app) accelerators(fake string) (backend string, n int) {
	inventory := accel.Inventory{}
	if fake == "" {
		inventory = accel.Detect(accel.Real(), a.lookupEnv)
	} else if spec, err := rehearsal.LoadFake(fake, a.fakeNode(hostname())); err == nil {
		inventory = spec.Detect(accel.Real(), a.lookupEnv)
	}
	return inventory.Backend, inventory.VisibleCount
}

// hostname is this node's name, where it is only shown.
func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return host
}

// writeJSON writes v for programs, and so that people can read it: commands hold < and & as they are.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
