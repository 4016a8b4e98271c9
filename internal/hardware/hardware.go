// Package hardware is this node's accelerators as commands look at them, real ones or those that a spec makes up, with
// what NVIDIA's library and other vendors' tools say of them.
package hardware

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"muster/internal/accel"
	"muster/internal/accel/probe"
	"muster/internal/accel/rehearsal"
	"muster/internal/errhint"
	"muster/internal/health"
)

// RoundVariable names the environment variable with the round whose faults of a spec a command that looks at
// accelerators shows; default 0. A job goes through rounds of its own.
const RoundVariable = "MUSTER_FAKE_ROUND"

// Options say where accelerators are looked for, and how NVIDIA's library and other vendors' tools are asked.
type Options struct {
	Spec    string // "" or "auto", or "fake:" and the path of a spec
	OnReal  bool   // a fake may stand in for accelerators that are really here
	Exec    string // one of probe's Exec words
	Timeout time.Duration
	Moments int        // how often what only several readings tell is read, a second apart
	Round   string     // whose faults of a spec are there; "" for the first
	Root    accel.Root // nil for this machine

	Host     string // name of this machine
	FakeNode string // name of this node among those of a spec
	TempDir  string // directory of temporary files
	Environ  []string
	// Lookup finds variables of Environ.
	Lookup func(string) (string, bool)
	// Simulated says that this is one of several nodes on this machine, whose limits are no node's.
	Simulated bool
}

// Hardware is what is looked at: this machine, or one that a spec makes up in part.
type Hardware struct {
	Host      string
	Root      accel.Root
	Inventory accel.Inventory
	Fake      *rehearsal.Fake // nil for this machine
	NVML      *probe.Report
	NVMLErr   error // why NVML is nil; both are nil where there is no NVIDIA GPU

	options Options
	tools   *probe.Tools
}

// Look finds this node's accelerators, or those that a spec makes up, and asks NVML about those of NVIDIA. That NVML
// does not answer is no error.
func Look(ctx context.Context, o Options) (Hardware, error) {
	n := Hardware{Host: o.Host, Root: o.Root, options: o}
	if n.Root == nil {
		n.Root = accel.Real()
	}
	switch o.Exec {
	case probe.ExecAuto, probe.ExecMemfd, probe.ExecFile, probe.ExecNone:
	default:
		return n, errhint.Usagef("--probe-exec %q: auto, memfd, file or none", o.Exec)
	}
	if o.Timeout < 0 {
		return n, errhint.Usagef("--gpu-probe-timeout %v: not below 0", o.Timeout)
	}
	path, made := strings.CutPrefix(o.Spec, "fake:")
	switch {
	case o.Spec == "" || o.Spec == "auto":
		n.Inventory = accel.Detect(n.Root, o.Lookup)
	case !made || path == "":
		return n, errhint.Usagef("--accelerator %q: auto or fake:FILE", o.Spec)
	default:
		var err error
		n.Host = o.FakeNode
		if n.Fake, err = LoadFake(path, n.Host, o.OnReal); err != nil {
			return n, err
		}
		if o.Round != "" {
			round, err := strconv.Atoi(o.Round)
			if err != nil || round < 0 {
				return n, errhint.Usagef("%s=%q: the number of a round, from 0", RoundVariable, o.Round)
			}
			n.Fake = n.Fake.At(round)
		}
		n.Inventory = n.Fake.Detect(n.Root, o.Lookup)
		n.Root = n.Fake.Root(n.Root)
	}
	return n, n.ask(ctx)
}

// ask asks NVML about NVIDIA's GPUs, or a fake in its place.
func (n *Hardware) ask(ctx context.Context) error {
	gpus, o := n.nvidia(), &n.options
	p := probe.Options{Environ: o.Environ, Exec: o.Exec, GPUs: gpus, Timeout: o.Timeout, Moments: o.Moments}
	n.tools = n.askable(p)
	switch {
	case gpus == 0:
		return nil
	case o.Exec == probe.ExecNone:
		n.NVMLErr = errors.New("NVML was not asked: --probe-exec none")
	case n.Fake != nil:
		n.NVML, n.NVMLErr = probe.Replay(n.Fake.NVML(o.Moments), p)
	default:
		p.Executable, _ = os.Executable() // unknown: none is looked for beside it
		n.NVML, n.NVMLErr = probe.Ask(ctx, p)
	}
	return context.Cause(ctx)
}

// askable is what asks other vendors' tools, or the fake in their place.
func (n *Hardware) askable(o probe.Options) *probe.Tools {
	o.GPUs = 0
	for _, f := range n.Inventory.Families {
		if f.Vendor != "nvidia" {
			o.GPUs = max(o.GPUs, len(f.Devices))
		}
	}
	if n.Fake != nil {
		return probe.ReplayTools(o, n.Fake.Tool)
	}
	return probe.NewTools(o)
}

// nvidia counts the GPUs about which NVML can say something: those that NVIDIA's driver holds, and those of WSL, which
// no file shows.
func (n *Hardware) nvidia() int {
	count := 0
	for _, f := range n.Inventory.Families {
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
func (n *Hardware) lookup() func(string) (string, bool) {
	if n.Fake != nil {
		return n.Fake.Lookup(n.options.Lookup)
	}
	return n.options.Lookup
}

// Health is the node as the checks see it. They ask vendors' tools until ctx ends.
func (n *Hardware) Health(ctx context.Context) *health.Node {
	h := &health.Node{
		Root: n.Root, Machine: health.Real(), Inventory: n.Inventory, Lookup: n.lookup(), TempDir: n.options.TempDir, NVML: n.NVML,
		NVMLErr: n.NVMLErr,
		Tool:    func(tool string, args ...string) probe.Answer { return n.tools.Ask(ctx, tool, args...) },
	}
	if n.Fake != nil {
		h.Machine = health.Faked(h.Machine, n.Fake, n.options.Simulated)
	}
	return h
}

// Degraded says in a line why less than all is known of NVIDIA's GPUs, "" where all is.
func (n *Hardware) Degraded() string {
	switch {
	case n.NVMLErr != nil:
		return "NVIDIA's GPUs are known from files alone: " + n.NVMLErr.Error()
	case n.NVML == nil:
		return ""
	case n.NVML.Fatal != nil:
		return "NVIDIA's GPUs are known from files alone: " + n.NVML.Fatal.String()
	case !n.NVML.Complete:
		return "not all is known of NVIDIA's GPUs: " + n.NVML.Err().Error()
	case n.NVML.SMI:
		return "nvidia-smi told of NVIDIA's GPUs, which is less than NVML would: " + n.NVML.Instead
	}
	return ""
}

// LoadFake reads a spec of accelerators that are not there, and refuses it where real ones are. node is the name of this
// node among those of the spec.
func LoadFake(spec, node string, onReal bool) (*rehearsal.Fake, error) {
	fake, err := rehearsal.LoadFake(spec, node)
	if err != nil {
		return nil, err
	}
	return fake, fake.CheckMachine(accel.Real(), onReal)
}

// Count is how many accelerators a worker would see, and what PyTorch calls them; of the spec fake unless that is empty.
// Where they cannot be counted there are none: whoever needs them says why.
func Count(fake, node string, lookup func(string) (string, bool)) (backend string, n int) {
	inventory := accel.Inventory{}
	if fake == "" {
		inventory = accel.Detect(accel.Real(), lookup)
	} else if spec, err := rehearsal.LoadFake(fake, node); err == nil {
		inventory = spec.Detect(accel.Real(), lookup)
	}
	return inventory.Backend, inventory.VisibleCount
}
