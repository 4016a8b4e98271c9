package netprobe_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/check"
	"muster/netcheck/netprobe"
)

// files are names below the root with their contents.
type files map[string]string

// port makes the files of a port, as mlx5 has them.
func (f files) port(device, state, phys, rate, layer string) files {
	dir := "sys/class/infiniband/" + device + "/"
	maps.Copy(f, files{
		dir + "board_id": "MT_0000000838", dir + "hca_type": "MT4129", dir + "fw_ver": "28.39.1002", dir + "device/numa_node": "1",
		dir + "device/net/net_" + device + "/mtu": "9000", dir + "ports/1/state": state, dir + "ports/1/phys_state": phys,
		dir + "ports/1/rate": rate, dir + "ports/1/link_layer": layer, dir + "ports/1/lid": "0x1a",
		dir + "ports/1/gids/0":                               "fe80:0000:0000:0000:a288:c2ff:fe01:0203",
		dir + "ports/1/gids/1":                               "0000:0000:0000:0000:0000:ffff:0a00:0007",
		dir + "ports/1/gids/2":                               "0000:0000:0000:0000:0000:ffff:0a00:0007",
		dir + "ports/1/gids/3":                               "0000:0000:0000:0000:0000:0000:0000:0000",
		dir + "ports/1/gid_attrs/types/0":                    "IB/RoCE v1",
		dir + "ports/1/gid_attrs/types/1":                    "IB/RoCE v1",
		dir + "ports/1/gid_attrs/types/2":                    "RoCE v2",
		dir + "ports/1/counters/link_downed":                 "2",
		dir + "ports/1/counters/symbol_error":                "17",
		dir + "ports/1/counters/port_rcv_data":               "123456789012345",
		dir + "ports/1/counters/local_link_integrity_errors": "0",
		dir + "ports/1/hw_counters/out_of_sequence":          "5",
		"dev/infiniband/uverbs0":                             "",
	})
	return f
}

func (f files) root() fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range f {
		m[name] = &fstest.MapFile{Data: []byte(text + "\n"), Mode: 0o444}
	}
	return m
}

const (
	active, up = "4: ACTIVE", "5: LinkUp"
	ndr        = "400 Gb/sec (4X NDR)"
)

// hca is a node with two ports.
func hca(layer string) files {
	return files{}.port("mlx5_0", active, up, ndr, layer).port("mlx5_1", active, up, ndr, layer)
}

func read(t *testing.T, r *netprobe.RDMAReader) netprobe.RDMA {
	t.Helper()
	found, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestRDMA reads a tree on disk, through the root that the accelerators have.
func TestRDMA(t *testing.T) {
	dir := t.TempDir()
	for name, text := range (files{}).port("mlx5_0", active, up, ndr, "Ethernet").port("mlx5_1", "1: DOWN", "3: Disabled",
		"10 Gb/sec (4X SDR)", "InfiniBand") {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := read(t, netprobe.NewRDMAReader(os.DirFS(dir)))
	counters := map[string]uint64{
		"link_downed": 2, "symbol_error": 17, "port_rcv_data": 123456789012345, "local_link_integrity_errors": 0, "out_of_sequence": 5,
	}
	want := netprobe.RDMA{Verbs: true, Ports: []netprobe.RDMAPort{{
		Device: "mlx5_0", Port: 1, Model: "MT_0000000838", Firmware: "28.39.1002", NUMANode: 1, NetDevs: []string{"net_mlx5_0"},
		State: "ACTIVE", Phys: "LinkUp", Rate: 400, Layer: "Ethernet", GID: true, Counters: counters,
	}, {
		Device: "mlx5_1", Port: 1, Model: "MT_0000000838", Firmware: "28.39.1002", NUMANode: 1, NetDevs: []string{"net_mlx5_1"},
		State: "DOWN", Phys: "Disabled", Rate: 10, Layer: "InfiniBand", Counters: counters,
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := read(t, netprobe.NewRDMAReader(fstest.MapFS{})); len(got.Ports) != 0 || got.Verbs {
		t.Errorf("a machine without: %+v", got)
	}
	// The real machine, whatever it has.
	read(t, netprobe.NewRDMAReader(accel.Real()))
}

// stubborn refuses to read some files, as restricted functions do, and counts how often it was asked.
type stubborn struct {
	fs.FS
	refuses string
	asked   map[string]int
}

func (s *stubborn) Open(name string) (fs.File, error) {
	s.asked[name]++
	f, err := s.FS.Open(name)
	if err == nil && strings.HasSuffix(name, s.refuses) {
		return refusing{f}, nil
	}
	return f, err
}

type refusing struct{ fs.File }

func (refusing) Read([]byte) (int, error) { return 0, syscall.EINVAL }

// TestRefusedCounter: a file that said EINVAL is not read again; all others are.
func TestRefusedCounter(t *testing.T) {
	s := &stubborn{hca("InfiniBand").root(), "counters/symbol_error", map[string]int{}}
	r := netprobe.NewRDMAReader(s)
	for range 3 {
		if _, known := read(t, r).Ports[0].Counters["symbol_error"]; known {
			t.Error("it was read")
		}
	}
	const dir = "sys/class/infiniband/mlx5_1/ports/1/counters/"
	if refused, read := s.asked[dir+"symbol_error"], s.asked[dir+"link_downed"]; refused != 1 || read != 3 {
		t.Errorf("asked for the refused one %d times, for another %d times", refused, read)
	}
}

// TestJudgeRDMA: a fleet with one thing wrong on the last node.
func TestJudgeRDMA(t *testing.T) {
	const c = "sys/class/infiniband/mlx5_1/ports/1/"
	for _, tc := range []struct {
		name   string
		layer  string
		spoil  func(files)       // before the first look
		later  func(files)       // before the second one
		vars   []string          // of the last node
		peers  int               // sound nodes beside it
		want   map[string]string // id: status and words
		others bool              // are found fault with, too
	}{
		{name: "sound", layer: "Ethernet", peers: 2},
		{name: "sound, InfiniBand", layer: "InfiniBand", peers: 2},
		{
			name: "down", layer: "InfiniBand", peers: 2, spoil: func(f files) { f[c+"state"], f[c+"phys_state"] = "1: DOWN", "2: Polling" },
			want: map[string]string{
				"rdma-port-down": "FAIL DOWN, Polling, and active on 2 other nodes",
			},
		},
		{
			name: "initializing: no subnet manager", layer: "InfiniBand", peers: 2, spoil: func(f files) { f[c+"state"] = "2: INIT" },
			want: map[string]string{
				"rdma-port-down": "FAIL INIT, LinkUp",
			},
		},
		{name: "down, alone", layer: "InfiniBand", spoil: func(f files) { f[c+"state"] = "1: DOWN" }, want: map[string]string{
			"rdma-port-down": "PASS DOWN", "rdma-heterogeneous": "SKIP one node",
		}},
		{
			name: "down, and asked for", layer: "InfiniBand", spoil: func(f files) { f[c+"state"] = "1: DOWN" },
			vars: []string{"NCCL_IB_HCA==mlx5_0,mlx5_1:1"}, want: map[string]string{
				"rdma-port-down": "FAIL NCCL_IB_HCA==mlx5_0,mlx5_1:1 asks for it", "rdma-heterogeneous": "SKIP",
			},
		},
		{
			name: "down, and another port asked for", layer: "InfiniBand", spoil: func(f files) { f[c+"state"] = "1: DOWN" },
			vars: []string{"NCCL_IB_HCA=mlx5_1:2"}, want: map[string]string{
				"rdma-port-down": "PASS DOWN", "rdma-heterogeneous": "SKIP",
			},
		},
		{
			name: "down, and left out", layer: "InfiniBand", spoil: func(f files) { f[c+"state"] = "1: DOWN" },
			vars: []string{"NCCL_IB_HCA=^mlx5_1"}, want: map[string]string{
				"rdma-port-down": "PASS DOWN", "rdma-heterogeneous": "SKIP",
			},
		},
		{name: "slow", layer: "InfiniBand", peers: 2, spoil: func(f files) { f[c+"rate"] = "200 Gb/sec (2X NDR)" }, want: map[string]string{
			"rdma-rate":          "FAIL 200 Gb/s, that of most ports of the model MT_0000000838 is 400 Gb/s",
			"rdma-heterogeneous": "FAIL 200 Gb/s, 400 Gb/s",
		}},
		{
			name: "a port more", layer: "InfiniBand", peers: 2, spoil: func(f files) { f.port("mlx5_2", active, up, ndr, "InfiniBand") },
			want: map[string]string{
				"rdma-heterogeneous": "FAIL it has 3 ports (400 Gb/s), others have 2 ports",
			},
		},
		{
			name: "two nodes that differ", layer: "InfiniBand", peers: 1, others: true,
			spoil: func(f files) { f.port("mlx5_2", active, up, ndr, "InfiniBand") }, want: map[string]string{
				"rdma-heterogeneous": "FAIL it has 3 ports (400 Gb/s), others have 2 ports",
			},
		},
		{
			name: "link lost", layer: "InfiniBand", peers: 2, later: func(f files) { f[c+"counters/link_downed"] = "3" },
			want: map[string]string{
				"rdma-errors": "FAIL link_downed by 1",
			},
		},
		{name: "noise", layer: "InfiniBand", peers: 2, later: func(f files) {
			f[c+"counters/symbol_error"], f[c+"hw_counters/out_of_sequence"] = "18", "105"
		}, want: map[string]string{"rdma-errors": "WARN symbol_error by 1, out_of_sequence by 100"}},
		{name: "set back, and data", layer: "InfiniBand", peers: 2, later: func(f files) {
			f[c+"counters/link_downed"], f[c+"counters/port_rcv_data"] = "0", "223456789012345"
		}},
		{
			name: "no address of RoCE v2", layer: "Ethernet", peers: 2, spoil: func(f files) { f[c+"gid_attrs/types/2"] = "IB/RoCE v1" },
			want: map[string]string{
				"rdma-gid": "WARN RoCE v2",
			},
		},
		{
			name: "no device", layer: "InfiniBand", peers: 2, spoil: func(f files) { delete(f, "dev/infiniband/uverbs0") },
			want: map[string]string{
				"rdma-device": "WARN 2 ports are active",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var nodes []netprobe.Node
			for i := range tc.peers + 1 {
				f := hca(tc.layer)
				last := i == tc.peers
				if last && tc.spoil != nil {
					tc.spoil(f)
				}
				m := netprobe.Machine{
					Name: string(rune('a' + i)), Lookup: env(), Interfaces: ifaces("eth0 10.0.0.1/24"),
					GPUs: []netprobe.GPU{{Index: 0, NUMANode: 1}},
				}
				if last {
					m.Lookup = env(tc.vars...)
				}
				root := f.root()
				m.RDMA = netprobe.NewRDMAReader(root)
				if _, err := m.Look(t.Context()); err != nil {
					t.Fatal(err)
				}
				if last && tc.later != nil {
					tc.later(f)
					maps.Copy(root, f.root())
				}
				n, err := m.Look(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				nodes = append(nodes, n)
			}
			said := map[string]string{}
			for _, r := range netprobe.JudgeNodes(nodes) {
				if !strings.HasPrefix(r.ID, "rdma-") {
					continue
				}
				text := r.Status.String() + " " + r.Reason
				switch {
				case r.Subject.Node == nodes[tc.peers].Name:
					if said[r.ID] == "" || r.Status > check.Pass {
						said[r.ID] = text
					}
					if r.Status > check.Pass && (r.Try == "" || r.Source != "L0") {
						t.Errorf("it says too little: %+v", r)
					}
				case r.Status > check.Pass && !tc.others:
					t.Errorf("%s is blamed: %s %s", r.Subject.Node, r.ID, text)
				}
			}
			for _, id := range []string{
				"rdma-port-down", "rdma-rate", "rdma-heterogeneous", "rdma-errors", "rdma-gid", "rdma-device",
				"rdma-affinity",
			} {
				want := tc.want[id]
				if want == "" {
					want = "PASS"
				}
				status, words, _ := strings.Cut(want, " ")
				if !strings.HasPrefix(said[id], status+" ") || !strings.Contains(said[id], words) {
					t.Errorf("%s: %q, want %q", id, said[id], want)
				}
			}
		})
	}
}

// TestRDMAEdges: no second look, no RDMA anywhere, and a GPU far from every port.
func TestRDMAEdges(t *testing.T) {
	first := netprobe.Node{Name: "a", RDMA: read(t, netprobe.NewRDMAReader(hca("InfiniBand").root()))}
	results := netprobe.JudgeNodes([]netprobe.Node{first})
	if r := verdict(results, "rdma-errors"); r.Status != check.Skip || !strings.Contains(r.Reason, "not read twice") {
		t.Errorf("%+v", r)
	}
	first.GPUs = []netprobe.GPU{{Index: 0, NUMANode: 0}, {Index: 1, NUMANode: 1}, {Index: 2, NUMANode: -1}}
	if r := verdict(netprobe.JudgeNodes([]netprobe.Node{first}), "rdma-affinity"); r.Status != check.Pass ||
		!strings.Contains(r.Reason, "GPU 0:") {
		t.Errorf("%+v", r)
	}
	none := netprobe.JudgeNodes([]netprobe.Node{{Name: "a"}, {Name: "b"}})
	if slices.ContainsFunc(none, func(r check.Result) bool { return strings.HasPrefix(r.ID, "rdma-") }) {
		t.Errorf("a cluster without RDMA: %s", pretty(none))
	}
}
