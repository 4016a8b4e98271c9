package netprobe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// RDMA is what sysfs says of a node's RDMA ports.
type RDMA struct {
	Ports []RDMAPort `json:",omitempty"`
	// Verbs says that /dev/infiniband has a device by which programs use the ports.
	Verbs bool `json:",omitempty"`
	// Chosen is NCCL_IB_HCA as it is written, "" for no restriction.
	Chosen string `json:",omitempty"`
}

// RDMAPort is one port of an RDMA device.
type RDMAPort struct {
	Device string
	Port   int
	Model  string `json:",omitempty"` // board id, or the type where there is none
	// Firmware is its version.
	Firmware string   `json:",omitempty"`
	NUMANode int      // -1 for unknown
	NetDevs  []string `json:",omitempty"` // interfaces of the same device
	State    string   // such as ACTIVE or DOWN
	Phys     string   // such as LinkUp, Polling or Disabled
	Rate     float64  // in Gb/s, 0 for unknown
	Layer    string   // InfiniBand or Ethernet
	// GID says that an Ethernet port has an address for RoCE v2 over IPv4.
	GID bool `json:",omitempty"`
	// Listed says that NCCL_IB_HCA asks for it by name.
	Listed bool `json:",omitempty"`
	// Counters are what the port has counted; Grown by how much since the reader's first look, without what has not.
	Counters map[string]uint64 `json:",omitempty"`
	Grown    map[string]uint64 `json:",omitempty"`
}

// Name is device and port, as NCCL_IB_HCA has them.
func (p *RDMAPort) Name() string { return p.Device + ":" + strconv.Itoa(p.Port) }

// Active says that data can flow.
func (p *RDMAPort) Active() bool { return p.State == "ACTIVE" && p.Phys == "LinkUp" }

// counters are the files below a port that are read.
var counters = []string{
	"counters/link_downed", "counters/symbol_error", "counters/port_rcv_errors", "counters/local_link_integrity_errors",
	"counters/excessive_buffer_overrun_errors", "counters/port_xmit_wait", "counters/port_rcv_data", "counters/port_xmit_data",
	"hw_counters/out_of_sequence", "hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err", "hw_counters/rp_cnp_handled",
	"hw_counters/np_cnp_sent",
}

// RDMAReader reads the ports of one machine, any number of times. It remembers two things: what was counted at first,
// and which files a restricted function has refused with EINVAL. Those are not read again, because each time the driver
// writes a line into the kernel's log. It is not safe for concurrent use.
type RDMAReader struct {
	root    fs.FS
	refused map[string]bool
	first   map[string]map[string]uint64 // by port, then counter
}

// NewRDMAReader returns a reader of the machine with this root (as accel.Root is).
func NewRDMAReader(root fs.FS) *RDMAReader {
	return &RDMAReader{root: root, refused: map[string]bool{}, first: map[string]map[string]uint64{}}
}

const (
	infiniband = "sys/class/infiniband"
	maxGIDs    = 256
	maxFile    = 4096 // a page: no file of sysfs has more
)

// Read looks at the ports. A machine without any is no error.
func (r *RDMAReader) Read() (RDMA, error) {
	var found RDMA
	devices, err := fs.ReadDir(r.root, infiniband)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, fmt.Errorf("cannot list the RDMA devices: %w", err)
	}
	for _, d := range devices {
		dir := path.Join(infiniband, d.Name())
		ports, err := fs.ReadDir(r.root, path.Join(dir, "ports"))
		if err != nil {
			continue // it has gone since it was listed
		}
		for _, p := range ports {
			n, err := strconv.Atoi(p.Name())
			if err != nil || len(found.Ports) == mostPorts {
				continue
			}
			found.Ports = append(found.Ports, r.port(dir, d.Name(), n))
		}
	}
	verbs, err := fs.Glob(r.root, "dev/infiniband/uverbs*")
	found.Verbs = err == nil && len(verbs) > 0
	return found, nil
}

func (r *RDMAReader) port(dir, device string, n int) RDMAPort {
	p := RDMAPort{Device: device, Port: n, NUMANode: -1, Counters: map[string]uint64{}}
	at := path.Join(dir, "ports", strconv.Itoa(n))
	p.Model = r.text(path.Join(dir, "board_id"))
	if p.Model == "" {
		p.Model = r.text(path.Join(dir, "hca_type"))
	}
	p.Firmware = r.text(path.Join(dir, "fw_ver"))
	if numa, err := strconv.Atoi(r.text(path.Join(dir, "device/numa_node"))); err == nil {
		p.NUMANode = numa
	}
	if nets, err := fs.ReadDir(r.root, path.Join(dir, "device/net")); err == nil {
		for _, d := range nets {
			p.NetDevs = append(p.NetDevs, d.Name())
		}
	}
	// "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)"
	_, p.State, _ = strings.Cut(r.text(path.Join(at, "state")), ": ")
	_, p.Phys, _ = strings.Cut(r.text(path.Join(at, "phys_state")), ": ")
	rate, _, _ := strings.Cut(r.text(path.Join(at, "rate")), " ")
	if gb, err := strconv.ParseFloat(rate, 64); err == nil && gb > 0 && gb < 1e6 {
		p.Rate = gb
	}
	p.Layer = r.text(path.Join(at, "link_layer"))
	p.GID = p.Layer == "Ethernet" && r.hasGID(at)
	for _, file := range counters {
		if v, err := strconv.ParseUint(r.text(path.Join(at, file)), 10, 64); err == nil {
			p.Counters[path.Base(file)] = v
		}
	}
	first := r.first[p.Name()]
	if first == nil {
		r.first[p.Name()] = p.Counters
		return p
	}
	p.Grown = map[string]uint64{}
	for name, now := range p.Counters {
		// A counter that is smaller now was set back; one that was not there says nothing yet.
		if before, known := first[name]; known && now > before {
			p.Grown[name] = now - before
		}
	}
	return p
}

// hasGID looks for an address of RoCE v2 over IPv4 (::ffff:a.b.c.d). The type of an empty entry cannot be read.
func (r *RDMAReader) hasGID(at string) bool {
	for i := range maxGIDs {
		text := r.text(path.Join(at, "gids", strconv.Itoa(i)))
		if text == "" {
			return false // the table ends here
		}
		addr, err := netip.ParseAddr(text)
		if err == nil && addr.Is4In6() && r.text(path.Join(at, "gid_attrs/types", strconv.Itoa(i))) == "RoCE v2" {
			return true
		}
	}
	return false
}

// text returns the content of a file, "" where there is none.
func (r *RDMAReader) text(name string) string {
	if r.refused[name] {
		return ""
	}
	text, err := func() (string, error) {
		f, err := r.root.Open(name)
		if err != nil {
			return "", err
		}
		defer func() { _ = f.Close() }()
		b, err := io.ReadAll(io.LimitReader(f, maxFile))
		return strings.TrimSpace(string(b)), err
	}()
	if errors.Is(err, syscall.EINVAL) {
		r.refused[name] = true
	}
	if err != nil {
		return ""
	}
	return text
}

// choose marks the ports that NCCL_IB_HCA asks for by name: a list as in NCCL_SOCKET_IFNAME, with ports after colons.
func (r *RDMA) choose(list string) {
	r.Chosen = list
	list, not := strings.CutPrefix(list, "^")
	list, exact := strings.CutPrefix(list, "=")
	entries := ncclList(list)
	if not || len(entries) == 0 {
		return // what is left over is asked for by nobody
	}
	for i := range r.Ports {
		r.Ports[i].Listed = ncclMatches(r.Ports[i].Device, r.Ports[i].Port, entries, exact)
	}
}

// clean cuts down what another node has said.
func (r *RDMA) clean() {
	r.Ports, r.Chosen = slices.Clip(r.Ports[:min(len(r.Ports), mostPorts)]), clean(r.Chosen, 200)
	for i := range r.Ports {
		p := &r.Ports[i]
		for _, text := range []*string{&p.Device, &p.Model, &p.Firmware, &p.State, &p.Phys, &p.Layer} {
			*text = clean(*text, 64)
		}
		p.NetDevs = p.NetDevs[:min(len(p.NetDevs), 64)]
		for j := range p.NetDevs {
			p.NetDevs[j] = clean(p.NetDevs[j], 64)
		}
	}
}
