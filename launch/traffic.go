package launch

import (
	"bytes"
	"cmp"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"muster/launch/report"
)

// mostInterfaces is of how many network interfaces it is told, those with the most traffic: a machine with containers may
// have hundreds.
const mostInterfaces = 16

// Traffic is what the network interfaces of a node carry.
type Traffic struct {
	root fs.FS // nil: this machine

	mu    sync.Mutex
	begin map[string][2]uint64 // by interface: bytes received and sent when the node's part of the job began; nil: not yet
}

// Start begins to count.
func (t *Traffic) Start() {
	now := t.counters()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin = now
}

// Read is what each interface has carried since the job began, the most first.
func (t *Traffic) Read() []report.Traffic {
	if t == nil {
		return nil
	}
	now := t.counters()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begin == nil {
		return nil
	}
	var list []report.Traffic
	for name, n := range now {
		was := t.begin[name] // zero for one that is new
		for i := range n {
			if n[i] < was[i] { // its counters have begun anew
				was[i] = 0
			}
		}
		t.begin[name] = was
		if r := (report.Traffic{Interface: name, ReceivedBytes: n[0] - was[0], SentBytes: n[1] - was[1]}); r.ReceivedBytes+r.SentBytes > 0 {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b report.Traffic) int {
		return cmp.Or(cmp.Compare(b.ReceivedBytes+b.SentBytes, a.ReceivedBytes+a.SentBytes), strings.Compare(a.Interface, b.Interface))
	})
	return list[:min(len(list), mostInterfaces)]
}

// withTraffic are the tasks of a node's own status with what its interfaces have carried.
func withTraffic(tasks []report.Task, carried []report.Traffic) []report.Task {
	if len(carried) == 0 || len(tasks) != 1 {
		return tasks
	}
	tasks = slices.Clone(tasks) // the status has them, too
	tasks[0].Traffic = carried
	return tasks
}

// MoreTraffic reports whether others are to be told: where an interface has carried usageMemory more bytes.
func MoreTraffic(before, now []report.Traffic) bool {
	sum := func(list []report.Traffic) (n uint64) {
		for _, t := range list {
			n += t.ReceivedBytes + t.SentBytes
		}
		return n
	}
	b, n := sum(before), sum(now)
	return n < b || n-b >= usageMemory
}

func (t *Traffic) file(name string) ([]byte, error) {
	if t.root != nil {
		return fs.ReadFile(t.root, name)
	}
	return os.ReadFile("/" + name)
}

func (t *Traffic) names(dir string) []string {
	entries, err := os.ReadDir("/" + dir)
	if t.root != nil {
		entries, err = fs.ReadDir(t.root, dir)
	}
	if err != nil {
		return nil // there are none
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// counters are the bytes that each interface of this network namespace has received and sent, but the loopback, and those
// of the ports of RDMA devices, which /proc/net/dev does not count (port_rcv_data and port_xmit_data are in units of four
// bytes: InfiniBand Architecture Specification, PortCounters).
func (t *Traffic) counters() map[string][2]uint64 {
	all := map[string][2]uint64{}
	text, err := t.file("proc/self/net/dev")
	if err == nil {
		for line := range bytes.Lines(text) {
			name, counts, found := strings.Cut(string(line), ":")
			f := strings.Fields(counts)
			if name = strings.TrimSpace(name); !found || name == "lo" || len(f) < 9 {
				continue
			}
			received, err1 := strconv.ParseUint(f[0], 10, 64)
			sent, err2 := strconv.ParseUint(f[8], 10, 64)
			if err1 == nil && err2 == nil {
				all[name] = [2]uint64{received, sent}
			}
		}
	}
	const infiniband = "sys/class/infiniband"
	for _, dev := range t.names(infiniband) {
		for _, port := range t.names(path.Join(infiniband, dev, "ports")) {
			counter := func(name string) (uint64, bool) {
				text, err := t.file(path.Join(infiniband, dev, "ports", port, "counters", name))
				if err != nil {
					return 0, false
				}
				n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
				return n * 4, err == nil
			}
			received, ok1 := counter("port_rcv_data")
			sent, ok2 := counter("port_xmit_data")
			if ok1 && ok2 {
				all[dev+":"+port] = [2]uint64{received, sent}
			}
		}
	}
	return all
}
