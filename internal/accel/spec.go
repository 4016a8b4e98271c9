package accel

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Limits of a spec. A node of today has up to 16 accelerators; more are for rehearsing wide nodes on one machine.
const (
	maxSpecBytes = 1 << 20
	maxCount     = 256
	maxMemoryMiB = 16 << 20 // 16 TiB
	maxNUMANode  = 1023     // Linux's own limit
	maxModelLen  = 128      // bytes
	maxMaskLen   = 4096     // bytes
	maxProblems  = 10       // reported of one spec
)

// nodeSpec is what a spec says of one node, defaults applied.
type nodeSpec struct {
	count     int
	model     string
	memoryMiB int
	numa      []int // one entry per device; nil: unknown
	visible   map[string]string

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
	topKeys   = []string{"version", "seed", "defaults", "nodes"}
	topLater  = []string{"expect"}
	nodeKeys  = []string{"vendor", "count", "model", "memory_mib", "numa", "visible"}
	nodeLater = []string{"driver", "mig", "cpus", "cgroup", "shm_mib", "pcie", "links", "rdma", "net", "faults"}

	vendorsLater = []string{"amd", "metax", "ascend", "intel", "gaudi", "cambricon", "mthreads", "hygon"}

	masks      = []string{"CUDA_VISIBLE_DEVICES"}
	masksLater = []string{
		"CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
		"MACA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR",
		"HABANA_VISIBLE_MODULES", "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES",
	}
)

// specReader collects problems so that one run reports all of them.
type specReader struct {
	problems []problem
}

type problem struct {
	line int
	text string
}

func (r *specReader) add(line int, format string, args ...any) {
	r.problems = append(r.problems, problem{line, fmt.Sprintf(format, args...)})
}

func (r *specReader) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b problem) int { return a.line - b.line })
	var lines []string
	for i, p := range r.problems {
		if i == maxProblems {
			lines = append(lines, fmt.Sprintf("and %d more", len(r.problems)-i))
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
		defaults: nodeSpec{model: "NVIDIA Fake GPU", memoryMiB: 81559},
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
			own.visible = maps.Clone(s.defaults.visible)
			r.node(e.value, "nodes."+clip(e.key), &own)
			s.nodes[e.key] = own
		}
	}
	return s
}

// node reads one node's section over the values that s holds.
func (r *specReader) node(n *yaml.Node, where string, s *nodeSpec) {
	keys := r.mapping(n, where, nodeKeys, nodeLater)
	before := len(r.problems)
	if v, ok := keys["vendor"]; ok {
		switch vendor, ok := r.text(v, where+".vendor", maxModelLen); {
		case !ok:
		case slices.Contains(vendorsLater, vendor):
			r.add(v.Line, "%s.vendor: %q is not supported yet by this version of muster, only \"nvidia\" is", where, vendor)
		case vendor != "nvidia":
			r.add(v.Line, "%s.vendor: unknown vendor %s (known: nvidia)", where, quote(vendor))
		}
	}
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
		s.visible = map[string]string{}
		for name, v := range r.mapping(v, where+".visible", masks, masksLater) {
			s.visible[name], _ = r.text(v, where+".visible."+name, maxMaskLen) // the problem is noted
		}
	}
	s.broken = s.broken || len(r.problems) > before
	// A wrong length is told at the line that is to be corrected.
	if !s.broken && s.numa != nil && len(s.numa) != s.count {
		line, hint := s.numaLine, ""
		if _, own := keys["numa"]; !own {
			line, hint = s.countLine, fmt.Sprintf(" (numa is on line %d)", s.numaLine)
		}
		r.add(line, "%s: numa has %s for %s%s", where, plural(len(s.numa), "value"), plural(s.count, "device"), hint)
	}
}

func (r *specReader) numa(n *yaml.Node, where string) []int {
	n = deref(n)
	if n.Kind != yaml.SequenceNode {
		r.add(n.Line, "%s.numa must be a list of whole numbers, not %s", where, describe(n))
		return nil
	}
	if len(n.Content) > maxCount {
		r.add(n.Line, "%s.numa has %d values, more than the limit of %d", where, len(n.Content), maxCount)
		return nil
	}
	list := make([]int, len(n.Content))
	for i, v := range n.Content {
		list[i] = r.number(v, fmt.Sprintf("%s.numa[%d]", where, i), -1, maxNUMANode)
	}
	return list
}

// entry is one pair of a mapping.
type entry struct {
	key   string
	value *yaml.Node
	line  int
}

// entries returns the pairs of a mapping in order, each key once. Nothing after the colon counts as an empty mapping.
func (r *specReader) entries(n *yaml.Node, where string) []entry {
	n = deref(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.add(n.Line, "%s must be a mapping, not %s", where, describe(n))
		return nil
	}
	var list []entry
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			r.add(k.Line, "a key of %s must be a word, not %s", where, describe(k))
			continue
		}
		if line, ok := first[k.Value]; ok {
			r.add(k.Line, "%s: key %s is given twice (first on line %d)", where, quote(k.Value), line)
			continue
		}
		first[k.Value] = k.Line
		list = append(list, entry{k.Value, v, k.Line})
	}
	return list
}

// mapping returns the values of the keys in known and reports all other keys, those in later as not supported yet.
func (r *specReader) mapping(n *yaml.Node, where string, known, later []string) map[string]*yaml.Node {
	values := map[string]*yaml.Node{}
	for _, e := range r.entries(n, where) {
		switch {
		case slices.Contains(known, e.key):
			values[e.key] = e.value
		case slices.Contains(later, e.key):
			r.add(e.line, "%s: key %q is not supported yet by this version of muster", where, e.key)
		default:
			r.add(e.line, "%s: unknown key %s (known: %s)", where, quote(e.key), strings.Join(known, ", "))
		}
	}
	return values
}

// number reads a whole number between lowest and highest.
func (r *specReader) number(n *yaml.Node, where string, lowest, highest int) int {
	line := n.Line
	n = deref(n)
	// The parser takes whole numbers of more than 64 bits for floating point.
	huge := n.ShortTag() == "!!float" && strings.Trim(n.Value, "+-0123456789") == ""
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" && !huge {
		r.add(line, "%s must be a whole number, not %s", where, describe(n))
		return lowest
	}
	var v int
	switch err := n.Decode(&v); {
	case !huge && err == nil && lowest <= v && v <= highest:
		return v
	case lowest == highest:
		r.add(line, "%s is %s; this version of muster knows %d only", where, clip(n.Value), lowest)
	default:
		r.add(line, "%s is %s, not between %d and %d", where, clip(n.Value), lowest, highest)
	}
	return lowest
}

// text reads a string of at most limit bytes without control characters; ok is false where it
// is none, and the problem noted.
func (r *specReader) text(n *yaml.Node, where string, limit int) (value string, ok bool) {
	line := n.Line
	n = deref(n)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		r.add(line, "%s must be text, not %s (put quotes around it?)", where, describe(n))
		return "", false
	}
	if len(n.Value) > limit {
		r.add(line, "%s has %d bytes, more than the limit of %d", where, len(n.Value), limit)
		return "", false
	}
	if strings.ContainsFunc(n.Value, unicode.IsControl) {
		r.add(line, "%s must not hold control characters", where)
		return "", false
	}
	return n.Value, true
}

// deref follows an alias. An anchored node is never an alias itself.
func deref(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// describe names a value by what the reader of the file sees.
func describe(n *yaml.Node) string {
	n = deref(n)
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!str":
		return "the text " + quote(n.Value)
	case "!!bool":
		return "the truth value " + quote(n.Value)
	default:
		return clip(n.Value)
	}
}

// quote quotes a word of the file for a message.
func quote(s string) string { return fmt.Sprintf("%q", clip(s)) }

// clip cuts a word of the file to a readable length.
func clip(s string) string {
	const longest = 64 // bytes
	if len(s) > longest {
		return strings.ToValidUTF8(s[:longest], "") + "…"
	}
	return s
}
