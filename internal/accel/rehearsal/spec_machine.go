package rehearsal

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/lazyregexp"
)

var (
	driverForm   = lazyregexp.New(`^\d{3,4}\.\d{1,4}(\.\d{1,4})?$`)
	variableForm = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	deviceForm   = lazyregexp.New(`^[A-Za-z0-9_-]{1,64}$`)
	cpuMaxForm   = lazyregexp.New(`^(max|[1-9]\d{0,9}) [1-9]\d{0,9}$`)
)

// machine reads what a node's section says of the driver and of what is around the GPUs.
func (r *specReader) machine(keys map[string]*yaml.Node, where string, s *nodeSpec) {
	if v, ok := keys["env"]; ok {
		s.env = r.variables(v, where+".env")
	}
	if v, ok := keys["driver"]; ok {
		s.driver = r.formed(v, where+".driver", driverForm, "a version such as 550.54.15")
	}
	if v, ok := keys["pcie"]; ok {
		for key, v := range r.mapping(v, where+".pcie", []string{"gen", "width"}, nil) {
			if key == "gen" {
				s.gen = r.number(v, where+".pcie.gen", 1, len(pcieSpeeds))
			} else {
				s.width = r.number(v, where+".pcie.width", 1, 32)
			}
		}
	}
	if v, ok := keys["nvlinks"]; ok {
		s.nvlinks = r.number(v, where+".nvlinks", 0, maxLinks)
	}
	if v, ok := keys["mig"]; ok {
		s.mig = r.mig(v, where, s.count)
	}
	if v, ok := keys["shm_mib"]; ok {
		s.shmMiB = r.number(v, where+".shm_mib", 1, maxMemoryMiB)
	}
	if v, ok := keys["cgroup"]; ok {
		own := r.mapping(v, where+".cgroup", []string{"version", "cpu_max"}, []string{"memory_max"})
		if v, ok := own["version"]; ok {
			r.number(v, where+".cgroup.version", 2, 2)
		}
		if v, ok := own["cpu_max"]; ok {
			s.cpuMax = r.formed(v, where+".cgroup.cpu_max", cpuMaxForm, `a quota and a period in µs, such as "200000 100000"`)
		}
	}
	if v, ok := keys["rdma"]; ok {
		s.rdma = r.ports(v, where+".rdma")
	}
	if v, ok := keys["links"]; ok {
		s.links = r.links(v, where+".links", s.count)
	}
	if v, ok := keys["net"]; ok {
		s.net = r.net(v, where+".net")
	}
	if v, ok := keys["cpus"]; ok {
		s.cpus = r.cpus(v, where+".cpus")
	}
	if v, ok := keys["faults"]; ok {
		s.faults = r.faults(v, where+".faults", s)
	}
	for _, gpu := range slices.Sorted(maps.Keys(s.mig)) {
		if gpu >= s.count && keys["mig"] == nil {
			r.add(s.countLine, "%s: mig of the defaults divides GPU %d of %d", where, gpu, s.count)
		}
	}
	r.devices(where, s)
	r.fits(where, s)
	for _, f := range s.faults {
		if f.gpu >= s.count && keys["faults"] == nil { // of the defaults, and this node has fewer GPUs
			r.add(s.countLine, "%s: a fault of the defaults is about GPU %d of %d", where, f.gpu, s.count)
		}
	}
}

// formed reads text of a form.
func (r *specReader) formed(n *yaml.Node, where string, form func() *regexp.Regexp, example string) string {
	text, ok := r.text(n, where, maxMaskLen)
	if ok && !form().MatchString(text) {
		r.add(n.Line, "%s is %s, not %s", where, quote(text), example)
	}
	return text
}

// variables reads names of environment variables and their values.
func (r *specReader) variables(n *yaml.Node, where string) map[string]string {
	vars := map[string]string{}
	entries := r.entries(n, where)
	if len(entries) > maxEnv {
		r.add(n.Line, "%s has %d variables, more than the limit of %d", where, len(entries), maxEnv)
		return vars
	}
	for _, e := range entries {
		switch {
		case !variableForm().MatchString(e.key):
			r.add(e.line, "%s: %s is no name of a variable", where, quote(e.key))
		case isMask(e.key), strings.HasPrefix(e.key, "MUSTER_"):
			r.add(e.line, "%s: %s is not for env (visibility variables stand in visible)", where, e.key)
		default:
			vars[e.key], _ = r.text(e.value, where+"."+e.key, maxMaskLen) // the problem is noted
		}
	}
	return vars
}

// sequence returns the items of a list of at most limit.
func (r *specReader) sequence(n *yaml.Node, where string, limit int) []*yaml.Node {
	line := n.Line
	n = deref(n)
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return nil
	case n.Kind != yaml.SequenceNode:
		r.add(line, "%s must be a list, not %s", where, describe(n))
		return nil
	case len(n.Content) > limit:
		r.add(line, "%s has %d items, more than the limit of %d", where, len(n.Content), limit)
		return nil
	case !r.take(line, where, len(n.Content)):
		return nil
	}
	return n.Content
}

func (r *specReader) numa(n *yaml.Node, where string) []int {
	line := n.Line
	n = deref(n)
	if n.Kind != yaml.SequenceNode {
		r.add(n.Line, "%s.numa must be a list of whole numbers, not %s", where, describe(n))
		return nil
	}
	if len(n.Content) > maxCount {
		r.add(n.Line, "%s.numa has %d values, more than the limit of %d", where, len(n.Content), maxCount)
		return nil
	}
	if !r.take(line, where+".numa", len(n.Content)) {
		return nil
	}
	list := make([]int, len(n.Content))
	for i, v := range n.Content {
		list[i] = r.number(v, fmt.Sprintf("%s.numa[%d]", where, i), -1, maxNUMANode)
	}
	return list
}
