package accel_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/errhint"
)

// boundRoot is a root with CPUs that may be used.
type boundRoot struct {
	memRoot
	allowed []int
}

func (r boundRoot) Affinity() ([]int, error) { return r.allowed, nil }

// numaTree renders NUMA nodes and CPUs as sysfs shows them, and GPUs on these nodes.
type numaTree struct {
	nodes   map[int]string // CPUs of each node
	virtual []int          // nodes that are possible and not there
	sockets map[int]int    // of nodes; 0 by default
	cores   []string       // lists of siblings
	caches  []string       // lists of CPUs with the same L3 cache
	gpus    []int          // numa_node of each
}

func list(t testing.TB, text string) []int {
	t.Helper()
	got, err := accel.ParseList(text)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (n numaTree) render(t testing.TB) tree {
	t.Helper()
	files := control
	var possible []int
	for node, cpus := range n.nodes {
		possible = append(possible, node)
		dir := fmt.Sprintf("sys/devices/system/node/node%d", node)
		files = files.with(tree{dir + "/cpulist": cpus + "\n", dir + "/meminfo": "x"})
		for _, c := range list(t, cpus) {
			files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/physical_package_id", c)] = fmt.Sprintf("%d\n", n.sockets[node])
		}
	}
	for _, name := range []string{"possible", "online"} {
		var text []string
		for _, node := range append(possible, n.virtual...) {
			text = append(text, fmt.Sprint(node))
		}
		files["sys/devices/system/node/"+name] = strings.Join(text, ",") + "\n"
	}
	for _, core := range n.cores {
		for _, c := range list(t, core) {
			dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d", c)
			files[dir+"/topology/thread_siblings_list"] = core + "\n"
			files[dir+"/cache/uevent"] = "x"
			for i, kind := range []string{"1 Data", "1 Instruction", "2 Unified"} {
				level, kind, _ := strings.Cut(kind, " ")
				index := fmt.Sprintf("%s/cache/index%d", dir, i)
				files = files.with(tree{index + "/level": level + "\n", index + "/type": kind + "\n", index + "/shared_cpu_list": core + "\n"})
			}
		}
	}
	for _, cache := range n.caches {
		for _, c := range list(t, cache) {
			index := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index3", c)
			files = files.with(tree{index + "/level": "3\n", index + "/type": "Unified\n", index + "/shared_cpu_list": cache + "\n"})
		}
	}
	for i, node := range n.gpus {
		address := fmt.Sprintf("0000:%02x:00.0", 0x10+i)
		files = files.with(pci(address, "0x10de", "0x030200", "nvidia"), proc(address, fmt.Sprintf("GPU-%d", i), i), tree{
			fmt.Sprintf("dev/nvidia%d", i):                     "node",
			"sys/devices/pci0000:00/" + address + "/numa_node": fmt.Sprintf("%d\n", node),
		})
	}
	return files
}

// duo has two sockets of two NUMA nodes each, of two cores with two threads each, one of them far; a GPU on each node, and
// a second one on the last.
var duo = numaTree{
	nodes:   map[int]string{0: "0-1,8-9", 1: "2-3,10-11", 2: "4-5,12-13", 3: "6-7,14-15"},
	sockets: map[int]int{2: 1, 3: 1},
	cores:   []string{"0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"},
	caches:  []string{"0-1,8-9", "2-3,10-11", "4,12", "5,13", "6,14", "7,15"},
	gpus:    []int{0, 1, 2, 3, 3},
}

func TestBind(t *testing.T) {
	small := numaTree{nodes: map[int]string{0: "0-2"}, cores: []string{"0", "1", "2"}, caches: []string{"0", "1-2"}}
	with := func(n numaTree, change func(*numaTree)) numaTree { change(&n); return n }
	for _, c := range []struct {
		name    string
		tree    numaTree
		patch   tree // over the tree
		allowed string
		mask    string // CUDA_VISIBLE_DEVICES
		mode    accel.BindMode
		workers int
		want    string // lists with spaces between
		err     string
		warning string
	}{
		{name: "node", tree: duo, mode: "node", workers: 5, want: "0-1,8-9 2-3,10-11 4-5,12-13 6-7,14-15 6-7,14-15"},
		{name: "socket", tree: duo, mode: "socket", workers: 5, want: "0-3,8-11 0-3,8-11 4-7,12-15 4-7,12-15 4-7,12-15"},
		{name: "exclusive", tree: duo, mode: "exclusive", workers: 5, want: "0-1,8-9 2-3,10-11 4-5,12-13 6,14 7,15"},
		{name: "core complex", tree: duo, mode: "core-complex", workers: 5, want: "0-1,8-9 2-3,10-11 4,12 6,14 7,15"},
		{name: "fewer workers than GPUs: all that are visible count", tree: duo, mode: "exclusive", workers: 4, want: "0-1,8-9 2-3,10-11 4-5,12-13 6,14"},
		{name: "hidden GPUs do not count", tree: duo, mask: "4,0", mode: "exclusive", workers: 2, want: "6-7,14-15 0-1,8-9"},
		{name: "forbidden CPUs", tree: duo, allowed: "0-5,8,15", mode: "node", workers: 4, want: "0-1,8 2-3 4-5 15"},
		{name: "half a core is a core", tree: duo, allowed: "0,6,15", mask: "3,4", mode: "exclusive", workers: 2, want: "6 15"},
		{
			name: "more cores than GPUs, the first get one more", tree: with(small, func(n *numaTree) { n.gpus = []int{0, 0} }),
			mode: "exclusive", workers: 2, want: "0-1 2",
		},
		{
			name: "fewer cores than GPUs", tree: with(small, func(n *numaTree) { n.gpus = []int{0, 0, 0, 0} }), mode: "exclusive", workers: 1,
			err: "local rank 0: NUMA node 0 has 3 physical cores that this process may use, and 4 accelerators: too few for one each",
		},
		{
			name: "the larger cache first, then round", tree: with(small, func(n *numaTree) { n.gpus = []int{0, 0, 0} }),
			mode: "core-complex", workers: 3, want: "1-2 0 1-2",
		},
		{
			name: "no L3", tree: with(small, func(n *numaTree) { n.gpus, n.caches = []int{0, 0}, nil }),
			mode: "core-complex", workers: 2, want: "0 1",
		},
		{
			name: "no cache at all", tree: with(small, func(n *numaTree) { n.gpus, n.caches, n.cores = []int{0}, nil, nil }),
			mode: "core-complex", workers: 1, err: "sys/devices/system/cpu/cpu0/cache",
		},
		{name: "numa_node -1", tree: with(small, func(n *numaTree) { n.gpus = []int{-1} }), mode: "node", workers: 1, want: "0-2"},
		{
			name: "numa_node -1 and several nodes", tree: with(duo, func(n *numaTree) { n.gpus = []int{-1} }), mode: "node", workers: 1, want: "0-1,8-9",
			warning: "4 NUMA nodes, and accelerators of which the machine does not tell to which they belong: node 0 is taken",
		},
		{
			name: "memory without CPUs, and nodes that are not there", mode: "socket", workers: 2,
			tree: with(duo, func(n *numaTree) {
				n.nodes = map[int]string{0: "0-1,8-9", 1: "2-3,10-11", 2: "4-5,12-13", 3: "6-7,14-15", 4: ""}
				n.virtual = []int{5, 31}
			}),
			want: "0-3,8-11 0-3,8-11",
		},
		{name: "a node of whose CPUs none is allowed, elsewhere", tree: duo, allowed: "0-7", mask: "0", mode: "socket", workers: 1, want: "0-3"},
		{
			name: "a node of whose CPUs none is allowed", tree: duo, allowed: "2-7", mode: "node", workers: 2,
			err: "local rank 0: NUMA node 0 has no CPU that this process may use",
		},
		{
			name: "a GPU at memory without CPUs", mode: "exclusive", workers: 1, err: "local rank 0: NUMA node 1 has no CPU that this process may use",
			tree: numaTree{nodes: map[int]string{0: "0-1", 1: ""}, gpus: []int{1}},
		},
		{
			name: "a kernel without NUMA", tree: numaTree{gpus: []int{-1}}, mode: "node", workers: 1,
			err: "local rank 0: cannot tell the CPUs of NUMA node 0",
		},
		{
			name: "a malformed list", tree: duo, patch: tree{"sys/devices/system/node/node0/cpulist": "0-x"}, mode: "node", workers: 1,
			err: `cannot read /sys/devices/system/node/node0/cpulist: "0-x" is neither`,
		},
		{
			name: "an empty list of siblings", tree: duo, patch: tree{"sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "\n"}, mode: "exclusive",
			workers: 1, err: "cannot tell the core of CPU 1",
		},
		{name: "no GPU", tree: numaTree{}, mode: "node", workers: 1, err: "No accelerator available for NUMA binding (no NVIDIA GPU was found"},
		{name: "all hidden", tree: duo, mask: "-1", mode: "node", workers: 1, err: "No accelerator available for NUMA binding"},
		{name: "undecided", tree: duo, mask: "MIG-a", mode: "node", workers: 1, err: "cannot count the MIG instances"},
		{name: "more workers than GPUs", tree: duo, mask: "0,1", mode: "node", workers: 3, err: "3 workers and 2 accelerators visible: local rank 2 has none"},
		{
			name: "a node that is matched with no PCI device", tree: duo, mode: "node", workers: 1,
			patch: tree{information("0000:10:00.0"): "Model: X\n", information("0000:11:00.0"): "", "dev/nvidia0": ""}, err: "has no PCI address",
		},
		{name: "unknown", tree: duo, mode: "nodes", workers: 1, err: `unknown mode "nodes"`},
		{
			name: "different models", tree: with(small, func(n *numaTree) { n.gpus = []int{0, 0} }), patch: tree{information("0000:11:00.0"): "Model: B\nDevice Minor: 1\n"},
			mode: "node", workers: 2, want: "0-2 0-2", warning: "set it",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := c.tree.render(t).with(c.patch)
			root := boundRoot{files.root(), list(t, "0-15")}
			if c.allowed != "" {
				root.allowed = list(t, c.allowed)
			}
			environ := env()
			if c.mask != "" {
				environ = env("CUDA_VISIBLE_DEVICES=" + c.mask)
			}
			bound, err := accel.Bind(root, accel.Detect(root, environ), c.mode, c.workers)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || errhint.CodeOf(err) != errhint.Usage {
					t.Fatalf("got %v, %v; want status 2 and\n%s", bound, err, c.err)
				}
				return
			}
			var got []string
			for _, cpus := range bound.CPUs {
				got = append(got, accel.FormatList(cpus))
			}
			if d := cmp.Diff(strings.Fields(c.want), got); d != "" || err != nil {
				t.Errorf("%v (-want +got)\n%s", err, d)
			}
			if warned := strings.Join(bound.Warnings, "\n"); (c.warning == "") != (warned == "") || !strings.Contains(warned, c.warning) {
				t.Errorf("warnings %q, want %q", warned, c.warning)
			}
		})
	}
}

// A fake whose GPUs lie on nodes that the machine has not deals the machine's cores among these nodes.
func TestFakeNodes(t *testing.T) {
	laptop := numaTree{
		nodes: map[int]string{0: "0-7"}, cores: []string{"0-1", "2-3", "4-5", "6-7"}, caches: []string{"0-7"},
	}.render(t)
	for _, c := range []struct {
		name, numa string
		machine    tree
		allowed    string
		mode       accel.BindMode
		want       string
	}{
		{"the machine's own nodes", "[0, 0, -1]", laptop, "0-7", "node", "0-7 0-7 0-7"},
		{"two nodes", "[0, 0, 1, 1]", laptop, "0-7", "node", "0-3 0-3 4-7 4-7"},
		{"two nodes, exclusive", "[0, 0, 1, 1]", laptop, "0-7", "exclusive", "0-1 2-3 4-5 6-7"},
		{"a node by another number", "[5]", laptop, "1-4", "node", "1-4"},
		{"cores are not torn", "[0, 1, 2]", laptop, "0-7", "node", "0-1 2-3 4-7"},
		{"more nodes than cores", "[0, 1, 2]", laptop, "0-3", "node", "0-1 2-3 0-1"},
		{"one socket", "[0, 1]", laptop, "0-7", "socket", "0-7 0-7"},
		{"a machine that tells nothing", "[0, 1]", tree{}, "0-1", "node", "0 1"},
		{"a real machine of two nodes", "[1, 3]", duo.render(t), "0-15", "node", "2-3,10-11 6-7,14-15"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "spec.yaml")
			spec := fmt.Sprintf("version: 1\ndefaults: {count: %d, numa: %s}\n", strings.Count(c.numa, ",")+1, c.numa)
			if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
				t.Fatal(err)
			}
			fake, err := accel.LoadFake(file, "")
			if err != nil {
				t.Fatal(err)
			}
			machine := boundRoot{c.machine.root(), list(t, c.allowed)}
			inv := fake.Detect(machine, env())
			bound, err := accel.Bind(fake.Root(machine), inv, c.mode, inv.VisibleCount)
			var got []string
			for _, cpus := range bound.CPUs {
				got = append(got, accel.FormatList(cpus))
			}
			if d := cmp.Diff(strings.Fields(c.want), got); d != "" || err != nil {
				t.Errorf("%v (-want +got)\n%s", err, d)
			}
		})
	}
}
