package acceltest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Bound is a root with CPUs that may be used.
type Bound struct {
	Root
	Allowed []int
}

// Affinity returns the CPUs that may be used.
func (r Bound) Affinity() ([]int, error) { return r.Allowed, nil }

// NUMA is NUMA nodes, their CPUs, and GPUs on them.
type NUMA struct {
	Nodes   map[int]string // CPUs of each node
	Virtual []int          // nodes that are possible and not there
	Sockets map[int]int    // of nodes; 0 by default
	Cores   []string       // lists of siblings
	Caches  []string       // lists of CPUs with the same L3 cache
	GPUs    []int          // numa_node of each
}

// Files returns the machine as sysfs shows it.
func (n NUMA) Files(t testing.TB) Tree {
	t.Helper()
	files := Control.With()
	var possible []int
	for node, cpus := range n.Nodes {
		possible = append(possible, node)
		dir := fmt.Sprintf("sys/devices/system/node/node%d", node)
		files = files.With(Tree{dir + "/cpulist": cpus + "\n", dir + "/meminfo": "x"})
		for _, c := range List(t, cpus) {
			files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/physical_package_id", c)] = fmt.Sprintf("%d\n", n.Sockets[node])
		}
	}
	for _, name := range []string{"possible", "online"} {
		var text []string
		for _, node := range append(possible, n.Virtual...) {
			text = append(text, fmt.Sprint(node))
		}
		files["sys/devices/system/node/"+name] = strings.Join(text, ",") + "\n"
	}
	for _, core := range n.Cores {
		for _, c := range List(t, core) {
			dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d", c)
			files[dir+"/topology/thread_siblings_list"] = core + "\n"
			files[dir+"/cache/uevent"] = "x"
			for i, kind := range []string{"1 Data", "1 Instruction", "2 Unified"} {
				level, kind, _ := strings.Cut(kind, " ")
				index := fmt.Sprintf("%s/cache/index%d", dir, i)
				files = files.With(Tree{
					index + "/level": level + "\n", index + "/type": kind + "\n",
					index + "/shared_cpu_list": core + "\n",
				})
			}
		}
	}
	for _, cache := range n.Caches {
		for _, c := range List(t, cache) {
			index := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index3", c)
			files = files.With(Tree{index + "/level": "3\n", index + "/type": "Unified\n", index + "/shared_cpu_list": cache + "\n"})
		}
	}
	for i, node := range n.GPUs {
		address := fmt.Sprintf("0000:%02x:00.0", 0x10+i)
		files = files.With(PCI(address, "0x10de", "0x030200", "nvidia"), Proc(address, fmt.Sprintf("GPU-%d", i), i), Tree{
			fmt.Sprintf("dev/nvidia%d", i):                     "node",
			"sys/devices/pci0000:00/" + address + "/numa_node": fmt.Sprintf("%d\n", node),
		})
	}
	return files
}

// Duo has two sockets of two NUMA nodes each, of two cores with two threads each, one of them far; a GPU on each node,
// and a second one on the last.
var Duo = NUMA{
	Nodes:   map[int]string{0: "0-1,8-9", 1: "2-3,10-11", 2: "4-5,12-13", 3: "6-7,14-15"},
	Sockets: map[int]int{2: 1, 3: 1},
	Cores:   []string{"0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"},
	Caches:  []string{"0-1,8-9", "2-3,10-11", "4,12", "5,13", "6,14", "7,15"},
	GPUs:    []int{0, 1, 2, 3, 3},
}

// List reads numbers and ranges such as "0-3,8", and returns the numbers ascending; "" is none.
func List(t testing.TB, text string) []int {
	t.Helper()
	var list []int
	for item := range strings.SplitSeq(text, ",") {
		if item == "" {
			continue
		}
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		first, err := strconv.Atoi(low)
		if err != nil {
			t.Fatal(err)
		}
		last, err := strconv.Atoi(high)
		if err != nil {
			t.Fatal(err)
		}
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
