// Package rehearsal stands in for the accelerators of a node, so that a run can be tried where there are none. A spec
// in YAML or JSON (docs/fake-accelerator.md) says which devices a node has and what fails there. Fake renders it into
// the inputs from which muster would learn of real devices: files for package accel, the lines of the NVML probe, the
// output of vendors' tools, the limits of a machine, the network. A fake replaces these inputs and never a verdict.
package rehearsal

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"testing/fstest" // the standard library's file system in memory; it depends on nothing of testing itself
	"time"

	"muster/internal/accel"
	"muster/internal/errhint"
)

// Fake stands in for the accelerators of one node, as a spec describes them. It is read-only after LoadFake.
type Fake struct {
	path string
	node string
	note string   // where the node's values come from
	spec nodeSpec // in a round
	seed int64

	whole spec // of all nodes
	round int
	began time.Time // when it was loaded
}

// LoadFake reads the spec at path and takes the section of node, or the defaults alone where the spec has none of that
// name. All mistakes of all nodes are reported together, each with its line; the error carries status 2.
func LoadFake(path, node string) (*Fake, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errhint.Usagef("cannot read fake accelerator: %w", err)
	}
	defer func() { _ = f.Close() }()
	s, err := readSpec(f)
	if err != nil {
		return nil, errhint.Usagef("cannot use fake accelerator %q: %w", path, err)
	}
	fake := &Fake{path: path, node: node, seed: s.seed, note: "defaults", whole: s, began: time.Now()}
	if _, ok := s.nodes[node]; ok {
		fake.note = fmt.Sprintf("node %q", node)
	} else if len(s.nodes) > 0 {
		fake.note = fmt.Sprintf("defaults, as it has no node %q", node)
	}
	return fake.At(0), nil
}

// Path returns the path of the spec, as it was given.
func (f *Fake) Path() string { return f.path }

// Banner describes the fake in one line, for the reports of the run.
func (f *Fake) Banner() string {
	if f.spec.count == 0 { // such as that of a launcher whose hosts have some
		return fmt.Sprintf("accelerator=fake: this node has none (%s, %s)", f.path, f.note)
	}
	return fmt.Sprintf("accelerator=fake: %d × %s with %d MiB (%s, %s)", f.spec.count, f.spec.modelName(), f.spec.memoryMiB, f.path, f.note)
}

// Env returns the variables that the spec sets. Workers of a fake run get them over the inherited ones.
func (f *Fake) Env() map[string]string {
	env := maps.Clone(f.spec.visible)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, f.spec.env)
	return env
}

// Lookup puts the fake's variables over those of lookup.
func (f *Fake) Lookup(lookup func(string) (string, bool)) func(string) (string, bool) {
	env := f.Env()
	return func(name string) (string, bool) {
		if v, ok := env[name]; ok {
			return v, true
		}
		return lookup(name)
	}
}

// Detect is accel.Detect on the fake's files, with the fake's variables over those of lookup; machine answers for all
// that is no accelerator.
func (f *Fake) Detect(machine accel.Root, lookup func(string) (string, bool)) accel.Inventory {
	inv := accel.Detect(f.Root(machine), f.Lookup(lookup))
	inv.Fake = f.path
	inv.Why = append([]string{f.Banner()}, inv.Why...)
	for i := range inv.Families { // Workers gives the reasons of those that a word asks for
		inv.Families[i].Why = append([]string{f.Banner()}, inv.Families[i].Why...)
	}
	return inv
}

// CheckMachine returns an error where machine has real accelerators, unless onReal says that this is meant: a rehearsal
// by mistake would look like a training run.
func (f *Fake) CheckMachine(machine accel.Root, onReal bool) error {
	if onReal {
		return nil
	}
	if found := f.realDevice(machine); found != "" {
		return errhint.With(
			errhint.Usagef("cannot use fake accelerator %q: this machine has a real one (%s)", f.path, found),
			"to rehearse here all the same, say --fake-on-real")
	}
	return nil
}

// realDevice names what shows that machine has an accelerator that this process may use, "" where nothing does.
func (f *Fake) realDevice(machine accel.Root) string {
	// Nodes that nothing but a driver of accelerators makes. /dev/kfd is none of them: a desktop's graphics has it,
	// too.
	for _, node := range []string{"dev/nvidiactl", "dev/davinci_manager", "dev/mxcd"} {
		if machine.Access(node) == nil {
			return "/" + node
		}
	}
	for _, family := range accel.Detect(machine, func(string) (string, bool) { return "", false }).Families {
		for _, d := range family.Devices {
			return cmp.Or(d.Node, d.BusID)
		}
	}
	return ""
}

// Root returns the files of the fake: /dev, /proc/driver and what /sys has of PCI and of accelerators are the fake's,
// all else is machine's. CPUs are the fake's where the spec has some. Else, where it names a NUMA node that the machine
// has not, the nodes are.
func (f *Fake) Root(machine accel.Root) accel.Root {
	r := fakeRoot{tree: f.render(), machine: machine, cgroup: f.spec.cpuMax != "", cpus: f.spec.cpus, grown: f.grown}
	if r.cpus != nil {
		return r
	}
	nodes := f.nodes()
	r.nodes = slices.ContainsFunc(nodes, func(n int) bool {
		_, err := fs.Stat(machine, cpulist(n))
		return err != nil
	})
	if r.nodes {
		f.renderNodes(r.tree, nodes, machine)
	}
	return r
}

// nodes returns the NUMA nodes of the fake's accelerators, ascending.
func (f *Fake) nodes() []int {
	nodes := make([]int, f.spec.count)
	for i, n := range f.spec.numa {
		nodes[i] = max(n, 0)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// renderNodes writes NUMA nodes that share the machine's allowed CPUs among them, whole cores each. Where there are
// more nodes than cores, several have the same one: a rehearsal on two CPUs is to start all the same.
func (f *Fake) renderNodes(tree fstest.MapFS, nodes []int, machine accel.Root) {
	put := func(name, text string) { tree[name] = &fstest.MapFile{Data: []byte(text + "\n"), Mode: 0o444} }
	put(path.Join(nodesDir, "possible"), accel.FormatList(nodes))
	put(path.Join(nodesDir, "online"), accel.FormatList(nodes))
	allowed, err := machine.Affinity()
	if err != nil {
		return // the nodes have no CPUs then, and whoever asks hears why
	}
	cores := accel.Cores(machine, allowed)
	if len(cores) == 0 {
		return
	}
	for i, n := range nodes {
		first, last := i*len(cores)/len(nodes), (i+1)*len(cores)/len(nodes)
		if len(cores) < len(nodes) {
			first = i % len(cores)
			last = first + 1
		}
		var cpus []int
		for _, core := range cores[first:last] {
			cpus = append(cpus, core...)
		}
		slices.Sort(cpus)
		put(cpulist(n), accel.FormatList(cpus))
	}
}

// OnMachine returns the CPUs of the machine that stand for CPUs of the fake, which are the same ones where the spec has
// none. The fake's cores are dealt out to those that this process may use, in order: CPUs of other NUMA nodes are other
// ones where there are enough.
func (f *Fake) OnMachine(cpus []int, machine accel.Root) ([]int, error) {
	if f.spec.cpus == nil {
		return cpus, nil
	}
	allowed, err := machine.Affinity()
	if err != nil || len(allowed) == 0 {
		return nil, fmt.Errorf("cannot tell which CPUs stand for those of the fake: %w", err)
	}
	cores := f.spec.cpus.nodes * f.spec.cpus.cores
	var here []int
	for _, cpu := range cpus {
		first, last := cpu%cores*len(allowed)/cores, (cpu%cores+1)*len(allowed)/cores
		here = append(here, allowed[first:max(first+1, last)]...)
	}
	slices.Sort(here)
	return slices.Compact(here), nil
}

// uuid returns the same UUID for the same seed, node and GPU, in every process that asks.
func (f *Fake) uuid(i int) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%d\x00%s\x00%d", f.seed, f.node, i))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
