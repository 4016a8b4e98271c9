package accel_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/errhint"
)

func TestBind(t *testing.T) {
	small := numaTree{Nodes: map[int]string{0: "0-2"}, Cores: []string{"0", "1", "2"}, Caches: []string{"0", "1-2"}}
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
		{
			name: "fewer workers than GPUs: all that are visible count", tree: duo, mode: "exclusive", workers: 4,
			want: "0-1,8-9 2-3,10-11 4-5,12-13 6,14",
		},
		{name: "hidden GPUs do not count", tree: duo, mask: "4,0", mode: "exclusive", workers: 2, want: "6-7,14-15 0-1,8-9"},
		{name: "forbidden CPUs", tree: duo, allowed: "0-5,8,15", mode: "node", workers: 4, want: "0-1,8 2-3 4-5 15"},
		{name: "half a core is a core", tree: duo, allowed: "0,6,15", mask: "3,4", mode: "exclusive", workers: 2, want: "6 15"},
		{
			name: "more cores than GPUs, the first get one more", tree: with(small, func(n *numaTree) { n.GPUs = []int{0, 0} }),
			mode: "exclusive", workers: 2, want: "0-1 2",
		},
		{
			name: "fewer cores than GPUs", tree: with(small, func(n *numaTree) { n.GPUs = []int{0, 0, 0, 0} }),
			mode: "exclusive", workers: 1,
			err: "local rank 0: NUMA node 0 has 3 physical cores that this process may use, and 4 accelerators: too few for one each",
		},
		{
			name: "the larger cache first, then round", tree: with(small, func(n *numaTree) { n.GPUs = []int{0, 0, 0} }),
			mode: "core-complex", workers: 3, want: "1-2 0 1-2",
		},
		{
			name: "no L3", tree: with(small, func(n *numaTree) { n.GPUs, n.Caches = []int{0, 0}, nil }),
			mode: "core-complex", workers: 2, want: "0 1",
		},
		{
			name: "no cache at all", tree: with(small, func(n *numaTree) { n.GPUs, n.Caches, n.Cores = []int{0}, nil, nil }),
			mode: "core-complex", workers: 1, err: "sys/devices/system/cpu/cpu0/cache",
		},
		{name: "numa_node -1", tree: with(small, func(n *numaTree) { n.GPUs = []int{-1} }), mode: "node", workers: 1, want: "0-2"},
		{
			name: "numa_node -1 and several nodes", tree: with(duo, func(n *numaTree) { n.GPUs = []int{-1} }), mode: "node", workers: 1,
			want:    "0-1,8-9",
			warning: "4 NUMA nodes, and accelerators of which the machine does not tell to which they belong: node 0 is taken",
		},
		{
			name: "memory without CPUs, and nodes that are not there", mode: "socket", workers: 2,
			tree: with(duo, func(n *numaTree) {
				n.Nodes = map[int]string{0: "0-1,8-9", 1: "2-3,10-11", 2: "4-5,12-13", 3: "6-7,14-15", 4: ""}
				n.Virtual = []int{5, 31}
			}),
			want: "0-3,8-11 0-3,8-11",
		},
		{
			name: "a node of whose CPUs none is allowed, elsewhere", tree: duo, allowed: "0-7", mask: "0", mode: "socket", workers: 1,
			want: "0-3",
		},
		{
			name: "a node of whose CPUs none is allowed", tree: duo, allowed: "2-7", mode: "node", workers: 2,
			err: "local rank 0: NUMA node 0 has no CPU that this process may use",
		},
		{
			name: "a GPU at memory without CPUs", mode: "exclusive", workers: 1,
			err:  "local rank 0: NUMA node 1 has no CPU that this process may use",
			tree: numaTree{Nodes: map[int]string{0: "0-1", 1: ""}, GPUs: []int{1}},
		},
		{
			name: "a kernel without NUMA", tree: numaTree{GPUs: []int{-1}}, mode: "node", workers: 1,
			err: "local rank 0: cannot tell the CPUs of NUMA node 0",
		},
		{
			name: "a malformed list", tree: duo, patch: tree{"sys/devices/system/node/node0/cpulist": "0-x"}, mode: "node", workers: 1,
			err: `cannot read /sys/devices/system/node/node0/cpulist: "0-x" is neither`,
		},
		{
			name: "an empty list of siblings", tree: duo, patch: tree{"sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "\n"},
			mode:    "exclusive",
			workers: 1, err: "cannot tell the core of CPU 1",
		},
		{
			name: "no GPU", tree: numaTree{}, mode: "node", workers: 1,
			err: "No accelerator available for NUMA binding (no NVIDIA GPU was found",
		},
		{name: "all hidden", tree: duo, mask: "-1", mode: "node", workers: 1, err: "No accelerator available for NUMA binding"},
		{name: "undecided", tree: duo, mask: "MIG-a", mode: "node", workers: 1, err: "cannot count the MIG instances"},
		{
			name: "more workers than GPUs", tree: duo, mask: "0,1", mode: "node", workers: 3,
			err: "3 workers and 2 accelerators visible: local rank 2 has none",
		},
		{
			name: "a node that is matched with no PCI device", tree: duo, mode: "node", workers: 1,
			patch: tree{information("0000:10:00.0"): "Model: X\n", information("0000:11:00.0"): "", "dev/nvidia0": ""},
			err:   "has no PCI address",
		},
		{name: "unknown", tree: duo, mode: "nodes", workers: 1, err: `unknown mode "nodes"`},
		{
			name: "different models", tree: with(small, func(n *numaTree) { n.GPUs = []int{0, 0} }),
			patch: tree{information("0000:11:00.0"): "Model: B\nDevice Minor: 1\n"},
			mode:  "node", workers: 2, want: "0-2 0-2", warning: "set it",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := c.tree.Files(t).With(c.patch)
			root := boundRoot{Root: files.Root(), Allowed: list(t, "0-15")}
			if c.allowed != "" {
				root.Allowed = list(t, c.allowed)
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
