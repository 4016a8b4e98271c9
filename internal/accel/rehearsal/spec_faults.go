package rehearsal

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// fault is something that is wrong with a fake node: an input that differs, and never a verdict.
type fault struct {
	kind  string
	gpu   int // -1: of the node
	nums  map[string]int
	text  map[string]string
	reals map[string]float64
	peers []string // other nodes; nil: all
	when  trigger

	number, line int // place in the node's list, and in the file
}

// span is what a number of a fault may be; otherwise is its value where the spec gives none, and must makes it give
// one.
type span struct {
	lowest, highest, otherwise int
	must                       bool
}

// faultKind says what belongs to a kind of fault.
type faultKind struct {
	gpu      bool            // it is about one GPU, which must be named
	nums     map[string]span // keys with numbers
	text     map[string]string
	words    map[string][]string // what a key of text may say, where that is not free
	reals    map[string]realSpan // keys with numbers that have fractions
	peers    bool                // it may be about some of the other nodes
	triggers []string            // that go with it, beside those that go with all
	of       []string            // vendors that have such a thing; nil: all
}

// realSpan is a span of numbers that have fractions.
type realSpan struct{ lowest, highest, otherwise float64 }

const huge = 1 << 40 // no counter of a GPU comes near

// value is the one number of most kinds: what the driver, the bus or the kernel says.
func value(lowest, highest, otherwise int) map[string]span {
	return map[string]span{"value": {lowest, highest, otherwise, false}}
}

// yes is 1 where the input says so, and 0 where it does not: a fault just on the passing side.
func yes() map[string]span { return value(0, 1, 1) }

// The vendors of a kind: an input that only NVIDIA's driver or library gives, or that others' drivers or tools give
// too.
var (
	nvidia      = []string{"nvidia"}
	nvidiaOrAMD = []string{"nvidia", "amd"}
	withECC     = []string{"nvidia", "amd", "metax"}
	withRows    = []string{"nvidia", "gaudi"}
	withPages   = []string{"nvidia", "metax"}
)

// faultKinds are all kinds; docs/fake-accelerator.md says what each does. The
// table is made when a spec is read: most jobs have none.
var faultKinds = sync.OnceValue(func() map[string]faultKind {
	return map[string]faultKind{
		"gpu-lost":          {gpu: true, nums: yes()},
		"nouveau":           {gpu: true, nums: yes(), of: nvidia},
		"node-denied":       {gpu: true, nums: yes()},
		"missing":           {gpu: true, nums: yes(), of: nvidia},
		"reset-required":    {gpu: true, nums: value(0, 99, 1), of: nvidia},
		"ecc-uncorrectable": {gpu: true, nums: value(0, huge, 1), of: withECC},
		"ecc-aggregate":     {gpu: true, nums: value(0, huge, 1), of: nvidia},
		"ecc-off":           {gpu: true, nums: yes(), of: nvidia},
		"sram-threshold":    {gpu: true, nums: yes(), of: nvidia},
		"remap-failed":      {gpu: true, nums: yes(), of: nvidia},
		"remap-pending":     {gpu: true, nums: yes(), of: withRows},
		"remap-many":        {gpu: true, nums: value(0, 1<<20, 512), of: nvidia},
		"retired-pending":   {gpu: true, nums: yes(), of: nvidia},
		"retired-many":      {gpu: true, nums: value(0, 1<<10, 60), of: withPages},
		"nvlink-down":       {gpu: true, nums: map[string]span{"link": {0, maxLinks - 1, 0, false}}, of: nvidia},
		"nvlink-errors":     {gpu: true, nums: value(0, huge, 1), triggers: probeCalls, of: nvidia},
		"fabric-not-ready":  {gpu: true, nums: map[string]span{"value": {0, 3, 2, false}, "health": {0, 1<<31 - 1, 0, false}}, of: nvidia},
		"pcie-width":        {gpu: true, nums: value(1, 32, 8)},
		"pcie-speed":        {gpu: true, nums: value(1, len(pcieSpeeds), 1)},
		"pcie-replay":       {gpu: true, nums: value(0, 1<<30, 10), triggers: probeCalls, of: nvidia},
		"throttle": {gpu: true, nums: map[string]span{
			"mask":     {0, 1<<31 - 1, 0x8, false},
			"readings": {0, maxReadings, maxReadings, false},
		}, triggers: probeCalls, of: nvidia},
		"temp":            {gpu: true, nums: value(0, 200, 90), of: nvidia},
		"temp-memory":     {gpu: true, nums: value(0, 200, 100), of: nvidia},
		"persistence-off": {gpu: true, nums: yes(), of: nvidia},
		"compute-mode":    {gpu: true, nums: value(0, 3, 2), of: nvidia},
		"busy": {
			gpu: true, nums: map[string]span{
				"mib": {0, maxMemoryMiB, 2048, false}, "pid": {0, 1 << 22, 0, false},
				"percent": {0, 100, 100, false},
			},
			of: nvidiaOrAMD,
		},
		"heterogeneous": {
			gpu: true, nums: map[string]span{"memory_mib": {0, maxMemoryMiB, 0, false}}, text: map[string]string{"model": ""},
			of: nvidiaOrAMD,
		},
		"unhealthy": {gpu: true, text: map[string]string{"value": "Alarm"}, of: []string{"ascend"}},
		"net-down":  {gpu: true, nums: yes(), of: []string{"ascend"}},
		"link-down": {gpu: true, nums: value(0, fakeMetaXLinks, 1), of: []string{"metax"}},
		"acs-on":    {gpu: true, nums: yes()},
		"xid": {
			gpu: true, nums: map[string]span{"code": {0, 1 << 16, 0, true}, "age_s": {0, 1 << 30, 60, false}},
			text: map[string]string{"line": ""}, of: nvidia,
		},

		"no-torch": {nums: yes()},
		"slow-node": {nums: map[string]span{"local_rank": {-1, maxCount - 1, -1, false}}, reals: map[string]realSpan{"factor": {
			0.001, 1,
			0.4,
		}}, text: map[string]string{"in": inBoth}, words: inWords, triggers: []string{onSeconds, onStep}},
		"crash": {
			nums: map[string]span{"local_rank": {-1, maxCount - 1, 0, false}, "status": {1, 255, 1, false}},
			text: map[string]string{"in": inWorkers, "at": "local"}, words: inWords, triggers: []string{onSeconds, onStep, onOnce},
		},
		"hang": {
			nums: map[string]span{"local_rank": {-1, maxCount - 1, 0, false}},
			text: map[string]string{"in": inWorkers, "at": "local"}, words: inWords, triggers: []string{onSeconds, onStep, onOnce},
		},
		"rdma-down": {nums: yes(), text: map[string]string{"dev": "", "state": "DOWN"}, words: map[string][]string{"state": rdmaStates}},
		"rdma-slow": {nums: map[string]span{"rate": {1, maxRate, 100, false}}, text: map[string]string{"dev": ""}},
		"rdma-errors": {
			nums: map[string]span{"per_s": {0, huge, 1, false}}, text: map[string]string{"dev": "", "counter": "symbol_error"},
			words: map[string][]string{"counter": rdmaCounters}, triggers: []string{onSeconds},
		},
		"clock":         {nums: map[string]span{"offset_ms": {-maxOffsetMS, maxOffsetMS, 0, true}}},
		"latency":       {peers: true, nums: map[string]span{"ms": {0, maxLatencyMS, 0, true}}},
		"unreachable":   {peers: true, nums: yes()},
		"mtu-blackhole": {peers: true, nums: map[string]span{"mtu": {minMTU, maxMTU, 1500, false}}},

		"pair-hang":    {nums: yes(), text: map[string]string{"pair": ""}},
		"pair-corrupt": {nums: yes(), text: map[string]string{"pair": ""}},
		"pair-error": {nums: yes(), text: map[string]string{"pair": "", "text": "CUDA error: an illegal memory access was " +
			"encountered"}},
		"nvlink-none":       {nums: yes(), of: nvidia},
		"driver-mismatch":   {nums: yes(), text: map[string]string{"library": ""}, of: nvidia},
		"driver-not-loaded": {nums: yes()},
		"nvml-missing":      {nums: yes(), of: nvidia},
		"nvml-not-injected": {nums: yes(), of: nvidia},
		"symbol-missing":    {text: map[string]string{"field": ""}, of: nvidia},
		"probe-hang": {
			nums:  map[string]span{"gpu": {-1, maxCount - 1, -1, false}},
			text:  map[string]string{"at": initCall, "mode": "killable"},
			words: map[string][]string{"mode": {"killable", "dstate"}, "at": {initCall, handleCall}}, triggers: probeCalls, of: nvidia,
		},
		"probe-crash": {
			nums: map[string]span{"gpu": {-1, maxCount - 1, -1, false}}, text: map[string]string{"at": initCall},
			words: map[string][]string{"at": {initCall, handleCall}}, triggers: probeCalls, of: nvidia,
		},
		"tools-missing":   {nums: yes(), of: []string{"ascend", "gaudi", "metax"}},
		"kernel-log":      {nums: map[string]span{"age_s": {0, 1 << 30, 60, false}}, text: map[string]string{"line": ""}},
		"kmsg-unreadable": {nums: yes()},
		"stuck-process":   {nums: yes(), text: map[string]string{"wchan": "os_acquire_rwlock_nvidia"}},
		"peermem-missing": {nums: yes(), of: nvidia},
		"shm-readonly":    {nums: yes()},
		"memlock":         {nums: map[string]span{"kib": {-1, huge, 64, false}}},
		"open-files":      {nums: value(0, huge, 1024)},
		"disk-free":       {nums: map[string]span{"mib": {0, huge, 100, false}}},
	}
})

// knownKinds lists them for messages, of which a spec may have many.
func knownKinds() string { return strings.Join(slices.Sorted(maps.Keys(faultKinds())), ", ") }

var probeCalls = []string{onCalls}

// maxFaults bounds the list of one node.
const maxFaults = 1000

// faults reads the list of what is wrong with a node.
func (r *specReader) faults(n *yaml.Node, where string, s *nodeSpec) []fault {
	list := r.sequence(n, where, maxFaults)
	all := []fault{}
	for i, item := range list {
		if f, ok := r.fault(item, where, s); ok {
			f.number, f.line = i, item.Line
			all = append(all, f)
		}
	}
	return all
}

func (r *specReader) fault(n *yaml.Node, where string, of *nodeSpec) (fault, bool) {
	f := fault{gpu: -1, nums: map[string]int{}, text: map[string]string{}, reals: map[string]float64{}, when: trigger{probability: 1}}
	entries := r.entries(n, where)
	at := slices.IndexFunc(entries, func(e entry) bool { return e.key == "kind" })
	if at < 0 {
		r.add(n.Line, "%s: a fault has a kind", where)
		return f, false
	}
	var ok bool
	if f.kind, ok = r.text(entries[at].value, where+".kind", maxModelLen); !ok {
		return f, false
	}
	kind, known := faultKinds()[f.kind]
	switch {
	case !known:
		r.add(entries[at].line, "%s: unknown kind %s (known: %s)", where, quote(f.kind), knownKinds())
		return f, false
	}
	where += "." + f.kind
	if kind.of != nil && !of.madeBy(kind.of...) {
		r.add(entries[at].line, "%s: vendor %s has no such fault, only %s", where, of.vendor.Name, strings.Join(kind.of, " and "))
		return f, false
	}
	for key, s := range kind.nums {
		f.nums[key] = s.otherwise
	}
	maps.Copy(f.text, kind.text)
	for key, s := range kind.reals {
		f.reals[key] = s.otherwise
	}
	given := map[string]bool{}
	for _, e := range entries {
		given[e.key] = true
		s, number := kind.nums[e.key]
		_, words := kind.text[e.key]
		within, fraction := kind.reals[e.key]
		switch {
		case e.key == "kind":
		case e.key == "pid" && number && !of.madeBy(nvidia...): // NVML alone tells processes
			r.add(e.line, "%s: vendor %s tells no pid, only nvidia does", where, of.vendor.Name)
		case number:
			f.nums[e.key] = r.number(e.value, where+"."+e.key, s.lowest, s.highest)
		case words && e.key == "pair":
			f.text[e.key], _ = r.text(e.value, where+".pair", maxModelLen)
			r.pair(e.value, where+".pair", of.count)
		case words:
			f.text[e.key] = r.word(e.value, where+"."+e.key, kind.words[e.key])
		case fraction:
			f.reals[e.key] = r.real(e.value, where+"."+e.key, within.lowest, within.highest)
		case e.key == "peers" && kind.peers:
			f.peers = r.peers(e.value, where+".peers")
		case e.key == "gpu" && kind.gpu:
			f.gpu = r.number(e.value, where+".gpu", 0, max(0, of.count-1))
		case slices.Contains(allTriggers, e.key):
			r.trigger(e, where, f.kind, kind.triggers, &f.when)
		default:
			r.add(e.line, "%s: unknown key %s (known: %s; and when: %s)", where, quote(e.key), strings.Join(kind.keys(), ", "),
				kind.triggersOf())
		}
	}
	if kind.gpu && !given["gpu"] {
		r.add(n.Line, "%s: of which GPU? gpu is missing", where)
	}
	if _, pairs := kind.text["pair"]; pairs && !given["pair"] {
		r.add(n.Line, "%s: of which GPUs? pair is missing", where)
	}
	for key, s := range kind.nums {
		if s.must && !given[key] {
			r.add(n.Line, "%s: %s is missing", where, key)
		}
	}
	if strings.HasPrefix(f.kind, "probe-") {
		r.inProbe(n, where, &f, given)
	}
	r.inJob(n, where, &f, given)
	return f, true
}

// inProbe checks what belongs together in a fault of the NVML probe.
func (r *specReader) inProbe(n *yaml.Node, where string, f *fault, given map[string]bool) {
	of := f.nums["gpu"] >= 0 || f.when.calls > 0
	switch at := f.text["at"]; {
	case given["gpu"] && given[onCalls]:
		r.add(n.Line, "%s: a GPU is asked for its handle once: say gpu, or after_calls", where)
	case at == initCall && of:
		r.add(n.Line, "%s: %s is called once, and for no GPU: leave out gpu and after_calls", where, at)
	case at == handleCall && !of:
		r.add(n.Line, "%s: of which GPU? say gpu, or after_calls", where)
	}
}

// word reads text, which has to be one of known where that is not nil.
func (r *specReader) word(n *yaml.Node, where string, known []string) string {
	text, ok := r.text(n, where, maxMaskLen)
	if ok && known != nil && !slices.Contains(known, text) {
		r.add(n.Line, "%s is %s (known: %s)", where, quote(text), strings.Join(known, ", "))
	}
	return text
}

// keys lists what a fault of a kind may have.
func (k faultKind) keys() []string {
	keys := []string{"kind"}
	if k.gpu {
		keys = append(keys, "gpu")
	}
	if k.peers {
		keys = append(keys, "peers")
	}
	own := slices.AppendSeq(slices.AppendSeq(slices.Collect(maps.Keys(k.nums)), maps.Keys(k.text)), maps.Keys(k.reals))
	slices.Sort(own)
	return append(keys, own...)
}

// fault returns the number that the node's last fault of a kind gives key, and otherwise where it has no such fault.
// gpu is -1 for faults of the node.
func (s *nodeSpec) fault(kind string, gpu int, key string, otherwise int) int {
	for _, f := range slices.Backward(s.faults) {
		if f.kind == kind && f.gpu == gpu {
			return f.nums[key]
		}
	}
	return otherwise
}

// calls returns after how many calls of the NVML probe the node's last fault of a kind is there.
func (s *nodeSpec) calls(kind string, gpu int) int {
	for _, f := range slices.Backward(s.faults) {
		if f.kind == kind && f.gpu == gpu {
			return f.when.calls
		}
	}
	return 0
}

// has reports whether a fault that is on or off is on.
func (s *nodeSpec) has(kind string, gpu int) bool { return s.fault(kind, gpu, "value", 0) != 0 }

// is returns the node's last fault of a kind, nil where it has none.
func (s *nodeSpec) is(kind string) *fault {
	for i := range slices.Backward(s.faults) {
		if s.faults[i].kind == kind {
			return &s.faults[i]
		}
	}
	return nil
}
