package accel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/wording"
)

// BindMode says which CPUs a worker is bound to, in the words of torchrun's --numa-binding.
type BindMode string

// The modes. In each, the worker with local rank i belongs to the i-th accelerator that workers see.
const (
	BindNode      BindMode = "node"      // all CPUs of the accelerator's NUMA node
	BindSocket    BindMode = "socket"    // all CPUs of the NUMA nodes on the same socket
	BindExclusive BindMode = "exclusive" // whole cores of the node, an equal share of its own for each of the node's accelerators
	// The CPUs that share one cache of the highest level, another one for each accelerator where there are enough.
	BindCoreComplex BindMode = "core-complex"
)

// Bound are the CPUs that Bind found.
type Bound struct {
	CPUs     [][]int  // by local rank, ascending; none is empty
	Warnings []string // what may be otherwise than it seems, a sentence each
}

const (
	nodesDir = "sys/devices/system/node"
	cpusDir  = "sys/devices/system/cpu"
)

// cpulist is the file that lists the CPUs of a NUMA node.
func cpulist(node int) string { return fmt.Sprintf("%s/node%d/cpulist", nodesDir, node) }

// Bind returns the CPUs for each of the local ranks below workers, out of those that this process may use. Where
// PyTorch has an answer it is the same one (2.15.0, torch/numa/binding.py; the tests compare with it). Three things
// that are errors there are none here: numactl is not needed, and for the mode socket neither possible NUMA nodes that
// do not exist matter, nor those without a CPU that is allowed. Errors carry status 2.
func Bind(root Root, inv Inventory, mode BindMode, workers int) (Bound, error) {
	b, err := newBinder(root, inv, workers)
	if err != nil {
		return Bound{}, errhint.Code(err, errhint.Usage)
	}
	found := map[BindMode]func(gpu int) ([]int, error){
		BindNode: b.node, BindSocket: b.socket, BindExclusive: b.exclusive, BindCoreComplex: b.coreComplex,
	}[mode]
	if found == nil {
		return Bound{}, errhint.Usagef("unknown mode %q", wording.Clip(string(mode)))
	}
	bound := Bound{Warnings: b.warnings(inv)}
	for local := range workers {
		cpus, err := found(local)
		if err != nil {
			return Bound{}, errhint.Code(fmt.Errorf("local rank %d: %w", local, err), errhint.Usage)
		}
		bound.CPUs = append(bound.CPUs, cpus)
	}
	return bound, nil
}

// binder knows the accelerators by their NUMA nodes, and remembers what it read.
type binder struct {
	root    Root
	allowed []int              // CPUs, ascending
	nodes   []int              // NUMA node of each accelerator that workers see
	cpus    map[int][]int      // by NUMA node
	groups  map[int][]cpuGroup // by NUMA node: cores or core complexes, as the mode wants them
}

// cpuGroup are CPUs that have something in common; key is the lowest CPU that has it, allowed or not.
type cpuGroup struct {
	key  int
	cpus []int
}

func newBinder(root Root, inv Inventory, workers int) (*binder, error) {
	switch {
	case inv.Undecided != nil: // its hint is about the number of workers
		return nil, errors.New(inv.Undecided.Error())
	case len(inv.Visible) == 0:
		// What PyTorch says, and people search for.
		err := errhint.Usagef("No accelerator available for NUMA binding")
		if len(inv.Why) > 0 {
			err = fmt.Errorf("%w (%s)", err, strings.Join(inv.Why, "; "))
		}
		return nil, errhint.With(err, "leave it out where workers train on CPUs")
	case workers > len(inv.Visible):
		return nil, errhint.With(
			fmt.Errorf("%s and %s visible: local rank %d has none",
				wording.Plural(workers, "worker"), wording.Plural(len(inv.Visible), "accelerator"), len(inv.Visible)),
			"start one worker per accelerator: "+strconv.Itoa(len(inv.Visible)))
	}
	allowed, err := root.Affinity()
	if err != nil {
		return nil, err
	}
	b := &binder{root: root, allowed: allowed, cpus: map[int][]int{}, groups: map[int][]cpuGroup{}}
	for i, d := range inv.Visible {
		if d.BusID == "" {
			return nil, fmt.Errorf("accelerator %d (%s) has no PCI address that the driver tells, and so no NUMA node", i, d.Node)
		}
		b.nodes = append(b.nodes, max(d.NUMANode, 0)) // a machine with one node often says -1
	}
	return b, nil
}

// warnings says why the answer may be a wrong one.
func (b *binder) warnings(inv Inventory) []string {
	var all []string
	online, err := readList(b.root, path.Join(nodesDir, "online"))
	unknown := slices.ContainsFunc(inv.Visible, func(d Device) bool { return d.NUMANode < 0 })
	if err == nil && len(online) > 1 && unknown {
		all = append(all,
			fmt.Sprintf("%d NUMA nodes, and accelerators of which the machine does not tell to which they belong: node 0 is taken",
				len(online)))
	}
	if inv.OrderUnsure {
		all = append(all, "accelerators of several models: workers are bound as if CUDA_DEVICE_ORDER were PCI_BUS_ID; set it")
	}
	return all
}

func (b *binder) node(gpu int) ([]int, error) { return b.allowedOn(b.nodes[gpu]) }

func (b *binder) socket(gpu int) ([]int, error) {
	near, err := b.allowedOn(b.nodes[gpu])
	if err != nil {
		return nil, err
	}
	socket, err := b.socketOf(near[0])
	if err != nil {
		return nil, err
	}
	possible, err := readList(b.root, path.Join(nodesDir, "possible"))
	if err != nil {
		return nil, err
	}
	var cpus []int
	for _, node := range possible {
		near, err := b.allowedOn(node)
		if _, none := errors.AsType[*noCPUError](err); none {
			continue
		} else if err != nil {
			return nil, err
		}
		other, err := b.socketOf(near[0])
		if err != nil {
			return nil, err
		}
		if other == socket {
			cpus = append(cpus, near...)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

func (b *binder) exclusive(gpu int) ([]int, error) {
	position, gpus := b.neighbours(gpu)
	cores, err := b.group(b.nodes[gpu], b.siblings)
	if err != nil {
		return nil, err
	}
	each, rest := len(cores)/gpus, len(cores)%gpus
	if each < 1 {
		return nil, fmt.Errorf("NUMA node %d has %s that this process may use, and %s: too few for one each",
			b.nodes[gpu], wording.Plural(len(cores), "physical core"), wording.Plural(gpus, "accelerator"))
	}
	first := position*each + min(position, rest)
	last := first + each
	if position < rest {
		last++
	}
	var cpus []int
	for _, core := range cores[first:last] {
		cpus = append(cpus, core.cpus...)
	}
	slices.Sort(cpus)
	return cpus, nil
}

func (b *binder) coreComplex(gpu int) ([]int, error) {
	position, _ := b.neighbours(gpu)
	complexes, err := b.group(b.nodes[gpu], b.sharers)
	if err != nil {
		return nil, err
	}
	largest := slices.SortedStableFunc(slices.Values(complexes), func(x, y cpuGroup) int { return cmp.Compare(len(y.cpus), len(x.cpus)) })
	return largest[position%len(largest)].cpus, nil
}

// neighbours returns how many accelerators are on the NUMA node of gpu, and which of them it is.
func (b *binder) neighbours(gpu int) (position, gpus int) {
	for i, node := range b.nodes {
		if node != b.nodes[gpu] {
			continue
		}
		if i < gpu {
			position++
		}
		gpus++
	}
	return position, gpus
}

// noCPUError says that a NUMA node has no CPU for us.
type noCPUError struct {
	node int
	err  error // of its list; nil: it has one
}

func (e *noCPUError) Error() string {
	if e.err != nil {
		return fmt.Sprintf("cannot tell the CPUs of NUMA node %d: %v", e.node, e.err)
	}
	return fmt.Sprintf("NUMA node %d has no CPU that this process may use", e.node)
}

func (e *noCPUError) Unwrap() error { return e.err }

// allowedOn returns the CPUs of a NUMA node that may be used; *noCPUError where there are none.
func (b *binder) allowedOn(node int) ([]int, error) {
	if cpus, known := b.cpus[node]; known {
		return cpus, nil
	}
	all, err := readList(b.root, cpulist(node))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &noCPUError{node, err}
	}
	if err != nil {
		return nil, err
	}
	cpus := slices.DeleteFunc(all, func(c int) bool {
		_, found := slices.BinarySearch(b.allowed, c)
		return !found
	})
	if len(cpus) == 0 {
		return nil, &noCPUError{node, nil}
	}
	b.cpus[node] = cpus
	return cpus, nil
}

// group divides the CPUs of a NUMA node by what they share, in the order of the keys.
func (b *binder) group(node int, sharing func(cpu int) ([]int, error)) ([]cpuGroup, error) {
	if groups, known := b.groups[node]; known {
		return groups, nil
	}
	cpus, err := b.allowedOn(node)
	if err != nil {
		return nil, err
	}
	groups, err := groupCPUs(cpus, sharing)
	if err != nil {
		return nil, err
	}
	b.groups[node] = groups
	return groups, nil
}

func groupCPUs(cpus []int, sharing func(cpu int) ([]int, error)) ([]cpuGroup, error) {
	by := map[int][]int{}
	for _, c := range cpus {
		with, err := sharing(c)
		if err != nil {
			return nil, err
		}
		by[with[0]] = append(by[with[0]], c)
	}
	groups := make([]cpuGroup, 0, len(by))
	for key, cpus := range by {
		groups = append(groups, cpuGroup{key, cpus})
	}
	slices.SortFunc(groups, func(x, y cpuGroup) int { return cmp.Compare(x.key, y.key) })
	return groups, nil
}

func cpuDir(cpu int) string { return fmt.Sprintf("%s/cpu%d", cpusDir, cpu) }

func (b *binder) socketOf(cpu int) (int, error) {
	name := path.Join(cpuDir(cpu), "topology/physical_package_id")
	text, err := readText(b.root, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("cannot read /%s: %q is no number", name, wording.Clip(text))
	}
	return n, nil
}

// siblings returns the CPUs of the physical core that cpu is of.
func (b *binder) siblings(cpu int) ([]int, error) { return siblings(b.root, cpu) }

func siblings(root fs.FS, cpu int) ([]int, error) {
	name := path.Join(cpuDir(cpu), "topology/thread_siblings_list")
	list, err := readList(root, name)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("cannot tell the core of CPU %d: /%s is empty", cpu, name)
	}
	return list, err
}

// sharers returns the CPUs with which cpu shares its cache of the highest level.
func (b *binder) sharers(cpu int) ([]int, error) {
	dir := path.Join(cpuDir(cpu), "cache")
	entries, err := fs.ReadDir(b.root, dir)
	if err != nil {
		return nil, err
	}
	highest := -1
	var list []int
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "index")
		if _, err := strconv.ParseUint(number, 10, 32); !ok || err != nil {
			continue
		}
		cache := path.Join(dir, e.Name())
		kind, err := readText(b.root, path.Join(cache, "type"))
		if err != nil {
			return nil, err
		}
		if kind != "Unified" && kind != "Data" {
			continue
		}
		text, err := readText(b.root, path.Join(cache, "level"))
		if err != nil {
			return nil, err
		}
		level, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("cannot read /%s/level: %q is no number", cache, wording.Clip(text))
		}
		if level <= highest {
			continue
		}
		highest = level
		if list, err = readList(b.root, path.Join(cache, "shared_cpu_list")); err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("cannot tell who shares a cache with CPU %d: /%s names nobody", cpu, dir)
	}
	return list, nil
}
