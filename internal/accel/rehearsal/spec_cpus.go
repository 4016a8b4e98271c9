package rehearsal

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"muster/internal/accel"
	"muster/internal/wording"
)

// cpusSpec is the CPUs of a node, all sockets and nodes alike.
type cpusSpec struct {
	sockets, nodes int // of the machine; each socket has as many nodes
	cores          int // of a node
	threads        int // of a core
	complex        int // cores that share a cache of the highest level
	line           int
}

// cpus reads the CPUs of a node.
func (r *specReader) cpus(n *yaml.Node, where string) *cpusSpec {
	keys := r.mapping(n, where, []string{"sockets", "nodes", "cores_per_node", "threads", "l3_cores"}, nil)
	before := r.found
	number := func(key string, highest, otherwise int) int {
		if v, ok := keys[key]; ok {
			return r.number(v, where+"."+key, 1, highest)
		}
		return otherwise
	}
	c := &cpusSpec{line: n.Line}
	c.sockets = number("sockets", 64, 1)
	c.nodes = number("nodes", maxNUMANode+1, c.sockets)
	c.cores = number("cores_per_node", 1024, 0)
	c.threads = number("threads", 8, 1)
	c.complex = number("l3_cores", 1024, c.cores)
	if r.found > before {
		return c
	}
	switch {
	case c.cores == 0:
		r.add(n.Line, "%s: cores_per_node is missing", where)
	case c.nodes%c.sockets != 0:
		r.add(n.Line, "%s: %s cannot be dealt out to %s evenly", where, wording.Plural(c.nodes, "node"),
			wording.Plural(c.sockets, "socket"))
	case c.cores%c.complex != 0:
		r.add(n.Line, "%s: %s of a node cannot be divided into groups of %d (l3_cores)", where, wording.Plural(c.cores, "core"), c.complex)
	case c.count() > accel.MaxCPUs:
		r.add(n.Line, "%s: %d CPUs in all, more than the limit of %d", where, c.count(), accel.MaxCPUs)
	}
	return c
}

// fits reports accelerators on NUMA nodes that the CPUs have not.
func (r *specReader) fits(where string, s *nodeSpec) {
	if s.cpus == nil || s.cpus.cores == 0 {
		return
	}
	for i, node := range s.numa {
		if node >= s.cpus.nodes {
			r.add(s.cpus.line, "%s: device %d is on NUMA node %d (numa, line %d), and cpus has %s",
				where, i, node, s.numaLine, wording.Plural(s.cpus.nodes, "node"))
			return
		}
	}
}

// count is how many CPUs there are.
func (c *cpusSpec) count() int { return c.nodes * c.cores * c.threads }

// cpu is the number of a thread, as Linux gives them: first one of each core, then the other ones.
func (c *cpusSpec) cpu(node, core, thread int) int {
	return thread*c.nodes*c.cores + node*c.cores + core
}

// list is the CPUs of cores of a node, ascending.
func (c *cpusSpec) list(node, first, cores int) (cpus []int) {
	for thread := range c.threads {
		for core := first; core < first+cores; core++ {
			cpus = append(cpus, c.cpu(node, core, thread))
		}
	}
	return cpus
}

// render writes the files of CPUs and of NUMA nodes.
func (c *cpusSpec) render(t fakeTree) {
	nodes := make([]int, c.nodes)
	for node := range nodes {
		nodes[node] = node
		t.put(cpulist(node), accel.FormatList(c.list(node, 0, c.cores))+"\n")
		for core := range c.cores {
			siblings := accel.FormatList(c.list(node, core, 1)) + "\n"
			sharers := accel.FormatList(c.list(node, core/c.complex*c.complex, c.complex)) + "\n"
			for thread := range c.threads {
				dir := fmt.Sprintf("%s/cpu%d", cpusDir, c.cpu(node, core, thread))
				t.put(dir+"/topology/physical_package_id", fmt.Sprintln(node/(c.nodes/c.sockets)))
				t.put(dir+"/topology/thread_siblings_list", siblings)
				for key, text := range map[string]string{"type": "Unified\n", "level": "3\n", "shared_cpu_list": sharers} {
					t.put(dir+"/cache/index3/"+key, text)
				}
			}
		}
	}
	all := accel.FormatList(nodes) + "\n"
	t.put(nodesDir+"/possible", all)
	t.put(nodesDir+"/online", all)
}

// affinity is all CPUs.
func (c *cpusSpec) affinity() []int {
	cpus := make([]int, c.count())
	for i := range cpus {
		cpus[i] = i
	}
	return cpus
}
