package rehearsal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/accel"
	"muster/internal/wording"
)

// Limits of a spec. A node of today has up to 16 accelerators; more are for rehearsing wide nodes on one machine.
const (
	maxSpecBytes = 1 << 20
	maxCount     = 256
	maxMemoryMiB = 16 << 20 // 16 TiB
	maxNUMANode  = 1023     // Linux's own limit
	maxModelLen  = 128      // bytes
	maxMaskLen   = 4096     // bytes
	maxItems     = 100_000  // of lists and mappings, in all that is read of a spec
	maxProblems  = 10       // reported of one spec
	maxKept      = 1000     // problems that are kept, to report the first ones
	maxLinks     = 36       // NVLinks of a GPU, NVML's own limit
	maxPorts     = 64       // RDMA ports
	maxEnv       = 100      // variables
)

// nodeSpec is what a spec says of one node, defaults applied.
type nodeSpec struct {
	vendor    *accel.VendorInfo // nil: unknown, which is noted
	count     int
	model     string // "": that of a fake of the vendor's
	memoryMiB int
	numa      []int // one entry per device; nil: unknown
	visible   map[string]string
	env       map[string]string
	driver    string           // version of the driver
	gen       int              // of the PCI links
	width     int              // lanes of the PCI links
	nvlinks   int              // of each GPU
	mig       map[int][]string // profiles of the instances of each GPU that is divided
	shmMiB    int              // size of /dev/shm; 0: the machine's
	cpuMax    string           // of the cgroup, as in cpu.max; "": the machine's
	rdma      []rdmaPort
	net       netSpec
	cpus      *cpusSpec // nil: the machine's
	links     []FakeLink
	faults    []fault

	numaLine, countLine int  // where numa and count were last given; 0: nowhere
	broken              bool // a value could not be read, so that comparing values would mislead
}

// spec is a whole file.
type spec struct {
	seed     int64
	defaults nodeSpec
	nodes    map[string]nodeSpec
}

// The words that a spec may hold, and those of the full schema that this version does not act on.
var (
	topKeys  = []string{"version", "seed", "defaults", "nodes"}
	topLater = []string{"expect"}
	nodeKeys = []string{
		"vendor", "count", "model", "memory_mib", "numa", "visible", "env", "driver", "pcie", "nvlinks", "mig", "shm_mib", "cgroup", "rdma",
		"links", "faults",
		"cpus", "net",
	}
)

// specReader collects problems so that one run reports all of them.
type specReader struct {
	problems []problem // the first of those that were found
	found    int
	within   string      // the node whose section is read; "": none
	named    []reference // of other nodes
	items    int         // of lists and mappings that were read
	full     bool        // there were too many of them, and what is read now is not all
}

type problem struct {
	line int
	text string
}

func (r *specReader) add(line int, format string, args ...any) {
	if r.full {
		return // it would be about what was not read
	}
	r.found++
	if len(r.problems) < maxKept {
		r.problems = append(r.problems, problem{line, fmt.Sprintf(format, args...)})
	}
}

// take reports whether so many items more may be read. The parser, which would refuse aliases of aliases, does not
// count what they stand for in a tree of nodes: a file of some KiB may come to millions of items.
func (r *specReader) take(line int, where string, items int) bool {
	if r.items += items; r.items > maxItems {
		r.add(line, "%s: more than %d items and keys have been read, what an alias stands for each time that it is used", where, maxItems)
		r.full = true
	}
	return !r.full
}

func (r *specReader) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b problem) int { return a.line - b.line })
	var lines []string
	for i, p := range r.problems {
		if i == maxProblems {
			lines = append(lines, fmt.Sprintf("and %d more", r.found-i))
			break
		}
		lines = append(lines, fmt.Sprintf("line %d: %s", p.line, p.text))
	}
	if len(lines) == 1 {
		return errors.New(lines[0])
	}
	return errors.New("\n  " + strings.Join(lines, "\n  "))
}

// readSpec reads and checks a whole spec, YAML or JSON.
func readSpec(f io.Reader) (spec, error) {
	text, err := io.ReadAll(io.LimitReader(f, maxSpecBytes+1))
	if err != nil {
		return spec{}, err
	}
	if len(text) > maxSpecBytes {
		return spec{}, fmt.Errorf("it is longer than the limit of %d bytes", maxSpecBytes)
	}
	// The parser's values keep their line numbers in a tree of nodes; decoding into a struct would lose them.
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return spec{}, errors.New("it is empty")
	} else if err != nil {
		return spec{}, yamlError(err)
	}
	if err := dec.Decode(&second); err == nil {
		return spec{}, fmt.Errorf("line %d: a second document begins; a spec is one document", second.Line)
	} else if !errors.Is(err, io.EOF) {
		return spec{}, yamlError(err)
	}
	r := &specReader{}
	s := r.spec(doc.Content[0])
	return s, r.err()
}

// yamlError drops the parser's name from its message, which gives the line already.
func yamlError(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
}

func (r *specReader) spec(n *yaml.Node) spec {
	s := spec{
		defaults: nodeSpec{vendor: &vendors()[0], memoryMiB: 81559, driver: defaultDriver, gen: 5, width: 16},
		nodes:    map[string]nodeSpec{},
	}
	switch n = deref(n); {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		r.add(n.Line, "the document is empty")
		return s
	case n.Kind != yaml.MappingNode:
		r.add(n.Line, "the spec must be a mapping, not %s", describe(n))
		return s
	}
	keys := r.mapping(n, "the spec", topKeys, topLater)
	if v, ok := keys["version"]; !ok {
		r.add(n.Line, "version is missing; this version of muster reads version: 1")
	} else {
		r.number(v, "version", 1, 1)
	}
	if v, ok := keys["seed"]; ok {
		s.seed = int64(r.number(v, "seed", 0, 1<<31-1))
	}
	if v, ok := keys["defaults"]; ok {
		r.node(v, "defaults", &s.defaults)
	} else {
		r.add(n.Line, "defaults is missing")
	}
	if v, ok := keys["nodes"]; ok {
		for _, e := range r.entries(v, "nodes") {
			if e.key == "" {
				r.add(e.line, "a node of nodes has no name")
			}
			own := s.defaults
			r.within = e.key
			r.node(e.value, "nodes."+wording.Clip(e.key), &own)
			s.nodes[e.key] = own
		}
	}
	r.resolve(s.nodes)
	return s
}

// node reads one node's section over the values that s holds.
func (r *specReader) node(n *yaml.Node, where string, s *nodeSpec) {
	keys := r.mapping(n, where, nodeKeys, nil)
	before := r.found
	r.vendor(keys, where, s)
	if v, ok := keys["count"]; ok {
		s.count, s.countLine = r.number(v, where+".count", 0, maxCount), v.Line
	} else if s.countLine == 0 && where == "defaults" {
		r.add(n.Line, "defaults.count is missing")
	}
	if v, ok := keys["model"]; ok {
		model, ok := r.text(v, where+".model", maxModelLen)
		if ok && model == "" {
			r.add(v.Line, "%s.model must not be empty", where)
		}
		s.model = model
	}
	if v, ok := keys["memory_mib"]; ok {
		s.memoryMiB = r.number(v, where+".memory_mib", 1, maxMemoryMiB)
	}
	if v, ok := keys["numa"]; ok {
		s.numa, s.numaLine = r.numa(v, where), v.Line
	}
	if v, ok := keys["visible"]; ok {
		s.visible = r.visible(v, where, s.vendor)
	}
	r.machine(keys, where, s)
	s.broken = s.broken || r.found > before
	// A wrong length is told at the line that is to be corrected.
	if !s.broken && s.numa != nil && len(s.numa) != s.count {
		line, hint := s.numaLine, ""
		if _, own := keys["numa"]; !own {
			line, hint = s.countLine, fmt.Sprintf(" (numa is on line %d)", s.numaLine)
		}
		r.add(line, "%s: numa has %s for %s%s", where, wording.Plural(len(s.numa), "value"), wording.Plural(s.count, "device"), hint)
	}
}
