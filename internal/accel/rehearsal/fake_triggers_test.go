package rehearsal_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/accel/rehearsal"
)

// loadText loads a spec of a test for one of its nodes.
func loadText(t *testing.T, text, node string) *rehearsal.Fake {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fake, err := rehearsal.LoadFake(file, node)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return fake
}

// ofFault is a node of four GPUs with one fault, as it is in a spec.
func ofFault(t *testing.T, fault string) *rehearsal.Fake {
	t.Helper()
	return loadText(t, "version: 1\nseed: 3\ndefaults:\n  count: 4\n  nvlinks: 2\n  faults:\n    - {kind: "+fault+"}\n", "n")
}

// TestAttempts: a fault is there in the rounds that it names, and a fake that was just loaded is in round 0.
func TestAttempts(t *testing.T) {
	fake := ofFault(t, `kmsg-unreadable, attempts: [0, 2]`)
	for round, there := range []bool{true, false, true, false} {
		if _, err := fake.At(round).KernelLog(); (err != nil) != there {
			t.Errorf("round %d: %v", round, err)
		}
	}
	if _, err := fake.KernelLog(); err == nil {
		t.Error("it is not there at first")
	}
	if _, err := fake.At(1).At(2).KernelLog(); err == nil {
		t.Error("a round depends on the one before")
	}
}

// TestProbability: chance follows from seed, node and round, and comes as often as it should.
func TestProbability(t *testing.T) {
	rounds := func(node, probability string) (list string) {
		fake := loadText(t, "version: 1\nseed: 3\ndefaults:\n  count: 1\n  faults:\n    - {kind: kmsg-unreadable, probability: "+
			probability+"}\n", node)
		for round := range 400 {
			_, err := fake.At(round).KernelLog()
			list += map[bool]string{true: "x", false: "."}[err != nil]
		}
		return list
	}
	first := rounds("a", "0.25")
	if n := strings.Count(first, "x"); n < 60 || n > 140 {
		t.Errorf("%d of 400 rounds", n)
	}
	if rounds("a", "0.25") != first || rounds("b", "0.25") == first {
		t.Error("it does not follow from node and seed")
	}
	if rounds("a", "0") != strings.Repeat(".", 400) || rounds("a", "1") != strings.Repeat("x", 400) {
		t.Error("0 is never, 1 is always")
	}
}

// TestAfterCalls: the NVML probe meets a fault after so many calls, or readings.
func TestAfterCalls(t *testing.T) {
	// A probe that ends in the third question for a handle has told of two GPUs.
	const at = `probe-hang, at: nvmlDeviceGetHandleByIndex_v2, after_calls: `
	for calls, gpus := range map[string]int{"1": 1, "2": 2, "3": 3, "4": 4} {
		s := ofFault(t, at+calls).NVML(0)
		if got := strings.Count(string(s.Lines), `"t":"gpu"`); got != gpus || (s.End == "hung") != (gpus < 4) {
			t.Errorf("after %s calls: %d GPUs, and it ends %q", calls, got, s.End)
		}
	}
	// Two readings of three, unless the first of them is left out.
	for fault, want := range map[string]string{
		"throttle, gpu: 1, readings: 2":                   "8 8 1",
		"throttle, gpu: 1, readings: 2, after_calls: 1":   "1 8 8",
		"throttle, gpu: 1, mask: 0x20, after_calls: 2":    "1 1 32",
		"pcie-replay, gpu: 1, value: 7, after_calls: 1":   "0 7 7",
		"pcie-replay, gpu: 1, value: 7, after_calls: 2":   "0 0 7",
		"nvlink-errors, gpu: 1, value: 5":                 "0 5 10",
		"nvlink-errors, gpu: 1, value: 5, after_calls: 2": "0 0 5",
	} {
		key := map[byte]string{'t': `"clocks_event_reasons":`, 'p': `"pcie_replays":`, 'n': `"nvlink_crc":`}[fault[0]]
		var got []string
		for line := range strings.Lines(string(ofFault(t, fault).NVML(3).Lines)) {
			if strings.Contains(line, `"t":"sample"`) && strings.Contains(line, `"gpu":1`) {
				_, rest, _ := strings.Cut(line, key)
				got = append(got, strings.FieldsFunc(rest, func(r rune) bool { return r < '0' || r > '9' })[0])
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", fault, got, want)
		}
	}
}

// TestJobFaults: what the processes of a job are told, round by round.
func TestJobFaults(t *testing.T) {
	fake := loadText(t, `version: 1
defaults:
  count: 1
nodes:
  n:
    faults:
      - {kind: temp, gpu: 0}
      - {kind: crash, after_step: 20, attempts: [1], status: 137}
      - {kind: hang, in: check, at: pair, once: true, attempts: [1], local_rank: 2}
      - {kind: slow-node, factor: 0.5, attempts: [1, 2]}
      - {kind: slow-node, factor: 0.25, after_s: 3, attempts: [2]}
`, "n")
	if env := fake.RoundEnv(0); env != nil {
		t.Errorf("%v", env)
	}
	want := map[string]string{"MUSTER_FAKE_FAULT": `[{"kind":"crash","in":"workers","local_rank":0,"after_step":20,"status":137},` +
		`{"kind":"hang","in":"check","at":"pair","local_rank":2,"once":"fake-fault-2"},` +
		`{"kind":"slow-node","in":"both","local_rank":-1,"factor":0.5}]`}
	if d := cmp.Diff(want, fake.RoundEnv(1)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	want = map[string]string{"MUSTER_FAKE_FAULT": `[{"kind":"slow-node","in":"both","local_rank":-1,"factor":0.5},` +
		`{"kind":"slow-node","in":"workers","local_rank":-1,"after_s":3,"factor":0.25}]`}
	if d := cmp.Diff(want, fake.RoundEnv(2)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if fake.NoTorch() || !ofFault(t, "no-torch").NoTorch() || ofFault(t, "no-torch, value: 0").NoTorch() {
		t.Error("no-torch")
	}
}

const clusterText = `version: 1
defaults:
  count: 0
  net: {iface: eth0, mtu: 9000, rate_mbps: 3000, rtt_us: 80}
nodes:
  node-1: {}
  node-2:
    net: {mtu: 9000, clock_ms: 40}
    faults: [{kind: clock, offset_ms: -3000}, {kind: latency, ms: 5}, {kind: unreachable, peers: [node-4]}]
  node-3:
    net: {rate_mbps: 300, mtu: 9000, peers: {node-1: {mtu: 1500, icmp: drop}, node-4: {mtu: 4000, loss: 0.02}}}
  node-4:
    net: {mtu: 1500}
    faults: [{kind: mtu-blackhole, peers: [node-1], mtu: 1400}, {kind: latency, peers: [node-1], ms: 7, attempts: [1]}]
`

// TestPaths: what is between two nodes is the same seen from both, and is what either section says.
func TestPaths(t *testing.T) {
	path := func(mtu int, quiet bool, mbps int, rtt time.Duration) rehearsal.FakePath {
		return rehearsal.FakePath{MTU: mtu, Quiet: quiet, RateMbps: mbps, RTT: rtt}
	}
	const near = 80 * time.Microsecond
	for ends, want := range map[[2]string]rehearsal.FakePath{
		{"node-1", "elsewhere"}: path(0, false, 3000, near),
		{"node-1", "node-2"}:    path(0, false, 3000, near+5*time.Millisecond),
		{"node-1", "node-3"}:    path(1500, true, 300, near),
		{"node-1", "node-4"}:    path(1400, true, 3000, near),
		{"node-2", "node-3"}:    path(0, false, 300, 5*time.Millisecond),
		{"node-2", "node-4"}:    {Unreachable: true, MTU: 1500, Quiet: true, RTT: 5 * time.Millisecond},
		{"node-3", "node-4"}:    {MTU: 1500, Quiet: true, RateMbps: 300, Loss: 0.02},
	} {
		for _, way := range [][2]string{ends, {ends[1], ends[0]}} {
			got := loadText(t, clusterText, way[0]).PathTo(way[1])
			got.Seed = [32]byte{}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s to %s (-want +got)\n%s", way[0], way[1], d)
			}
		}
	}
	fake := loadText(t, clusterText, "node-1")
	if rtt := fake.At(1).PathTo("node-4").RTT; rtt != near+7*time.Millisecond {
		t.Errorf("in round 1: %v", rtt)
	}
	if fake.PathTo("node-2").Seed == fake.PathTo("node-3").Seed {
		t.Error("chance is the same everywhere")
	}
	if d := cmp.Diff(rehearsal.FakeNet{MTU: 9000, Clock: -2960 * time.Millisecond}, loadText(t, clusterText, "node-2").Net()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if d := cmp.Diff(rehearsal.FakeNet{Iface: "eth0", MTU: 9000, Speed: 3000}, fake.Net()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestCounters: an RDMA counter grows with time, from its moment on.
func TestCounters(t *testing.T) {
	const spec = "version: 1\ndefaults:\n  count: 0\n  rdma: [{dev: mlx5_0}, {dev: mlx5_1}]\n  faults:\n" +
		"    - {kind: rdma-errors, dev: mlx5_1, counter: %s, per_s: 1000000000%s}\n"
	read := func(r accel.Root, dev, file string) string {
		text, err := fs.ReadFile(r, "sys/class/infiniband/"+dev+"/ports/1/"+file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	for counter, file := range map[string]string{"link_downed": "counters/link_downed", "out_of_sequence": "hw_counters/out_of_sequence"} {
		root := loadText(t, fmt.Sprintf(spec, counter, ""), "n").Root(tree{}.Root())
		if got := read(root, "mlx5_1", file); got == "0" {
			t.Errorf("%s does not grow", counter)
		}
		if got := read(root, "mlx5_0", file) + read(root, "mlx5_1", "counters/symbol_error"); got != "00" {
			t.Errorf("others grow: %s", got)
		}
		root = loadText(t, fmt.Sprintf(spec, counter, ", after_s: 3600"), "n").Root(tree{}.Root())
		if got := read(root, "mlx5_1", file); got != "0" {
			t.Errorf("%s is %s before its time", counter, got)
		}
	}
}

type sixCPUs struct{ accel.Root }

func (sixCPUs) Affinity() ([]int, error) { return []int{2, 3, 5, 7, 11, 13}, nil }

// TestFakeCPUs: what a spec says of CPUs is what binding finds, and the machine's CPUs stand for them.
func TestFakeCPUs(t *testing.T) {
	fake := loadText(t, `version: 1
defaults:
  count: 4
  numa: [0, 1, 2, 3]
  cpus: {sockets: 2, nodes: 4, cores_per_node: 4, threads: 2, l3_cores: 2}
`, "n")
	machine := sixCPUs{tree{}.Root()}
	root := fake.Root(machine)
	if n, why := accel.CPUs(root); n != 32 {
		t.Errorf("%d CPUs, %s", n, why)
	}
	inv := fake.Detect(machine, env())
	for mode, want := range map[accel.BindMode]string{
		accel.BindNode:        "0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31",
		accel.BindSocket:      "0-7,16-23 0-7,16-23 8-15,24-31 8-15,24-31",
		accel.BindExclusive:   "0-3,16-19 4-7,20-23 8-11,24-27 12-15,28-31",
		accel.BindCoreComplex: "0-1,16-17 4-5,20-21 8-9,24-25 12-13,28-29",
	} {
		bound, err := accel.Bind(root, inv, mode, 4)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, cpus := range bound.CPUs {
			got = append(got, accel.FormatList(cpus))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", mode, got, want)
		}
	}
	for cpus, want := range map[int]string{0: "2", 3: "3", 4: "3", 15: "13", 16: "2", 31: "13"} {
		here, err := fake.OnMachine([]int{cpus}, machine)
		if err != nil || accel.FormatList(here) != want {
			t.Errorf("%d is %v, want %s; %v", cpus, here, want, err)
		}
	}
	large := loadText(t, "version: 1\ndefaults: {count: 0, cpus: {cores_per_node: 2}}\n", "n")
	if here, err := large.OnMachine([]int{1}, machine); err != nil || accel.FormatList(here) != "7,11,13" {
		t.Errorf("a core of three CPUs is %v, %v", here, err)
	}
	if here, err := load(t, "eight.yaml", "").OnMachine([]int{7}, machine); err != nil || here[0] != 7 {
		t.Errorf("without CPUs of its own: %v, %v", here, err)
	}
}
