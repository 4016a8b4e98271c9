package health

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/accel/probe"
	"muster/internal/accel/rehearsal"
	"muster/internal/check"
)

// healthySpec is a node on which every check that can pass on an H100 does.
const healthySpec = `version: 1
defaults:
  count: 4
  model: NVIDIA H100 80GB HBM3
  numa: [0, 0, 1, 1]
  nvlinks: 4
  shm_mib: 2048
  rdma: [{dev: mlx5_0}]
`

// fakeNode is what a spec makes of a machine that is itself healthy: four CPUs, two workers.
func fakeNode(t *testing.T, spec string) *Node {
	t.Helper()
	path := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(path, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	fake, err := rehearsal.LoadFake(path, "")
	if err != nil {
		t.Fatalf("%v\n%s", err, spec)
	}
	machine := fourCPUs{tree{fstest.MapFS{
		"proc/sys/kernel/osrelease": {Data: []byte("6.1.0\n")}, "proc/1/stat": {Data: []byte("1 (init) S 0\n")},
		"sys/devices/system/node/online": {Data: []byte("0-1\n")}, "sys/devices/system/node/node0/cpulist": {Data: []byte("0-1\n")},
		"sys/devices/system/node/node1/cpulist": {Data: []byte("2-3\n")},
	}}}
	none := func(string) (string, bool) { return "", false }
	root := fake.Root(machine)
	n := &Node{
		Root:      root,
		Machine:   Faked(unlimited{facts{temp: Space{Total: 8 * gib, Free: 8 * gib, Writable: true}, files: 1 << 20}}, fake, false),
		Inventory: fake.Detect(machine, none), Lookup: fake.Lookup(none), Workers: 2, TempDir: "/tmp",
	}
	n.CPUs, _ = accel.CPUs(root)
	if f := n.nvidia(); len(f.Devices)+len(f.Unusable) > 0 {
		n.NVML, n.NVMLErr = probe.Replay(fake.NVML(3), probe.Options{})
	}
	tools := probe.ReplayTools(probe.Options{}, fake.Tool)
	n.Tool = func(tool string, args ...string) probe.Answer { return tools.Ask(t.Context(), tool, args...) }
	return n
}

type fourCPUs struct{ tree }

func (fourCPUs) Affinity() ([]int, error) { return []int{0, 1, 2, 3}, nil }

const v100 = "\n  model: Tesla V100-SXM2-32GB"

// pairs has for each check of the table a spec that triggers it, and one that is just on the passing side. Each is what
// is added to healthySpec; a key of it replaces that of healthySpec.
var pairs = map[string]struct {
	triggers, passes string
	vendor           string       // whose devices they are, healthy but for that; "": those of healthySpec
	want             check.Status // of the spec that triggers; 0: the check's default
	also             []string     // what else must speak up then: the same fact has two consequences
	nearly           []string     // what else speaks up where the check just passes
}{
	"gpu-lost":           {triggers: fault("gpu-lost, gpu: 2"), passes: fault("gpu-lost, gpu: 2, value: 0")},
	"gpu-reset-required": {triggers: fault("reset-required, gpu: 2"), passes: fault("reset-required, gpu: 2, value: 0")},
	"gpu-missing":        {triggers: fault("missing, gpu: 2"), passes: fault("missing, gpu: 2, value: 0")},
	"gpu-driver":         {triggers: fault("nouveau, gpu: 2"), passes: fault("nouveau, gpu: 2, value: 0")},
	"gpu-node":           {triggers: fault("node-denied, gpu: 2"), passes: fault("node-denied, gpu: 2, value: 0")},
	"driver-not-loaded":  {triggers: fault("driver-not-loaded"), passes: fault("driver-not-loaded, value: 0")},
	"driver-mismatch": {
		triggers: fault("driver-mismatch, library: 550.54.16"), passes: fault("driver-mismatch, library: 550.54.15"),
	},
	"gpu-driver-hung": {
		triggers: fault("probe-hang, at: nvmlDeviceGetHandleByIndex_v2, gpu: 3"),
		passes:   fault("probe-hang, at: nvmlDeviceGetHandleByIndex_v2, gpu: 4"),
	},
	"device-health": {
		vendor: "ascend", triggers: fault("unhealthy, gpu: 1, value: Warning"),
		passes: fault("unhealthy, gpu: 1, value: OK"),
	},
	"device-network": {vendor: "ascend", triggers: fault("net-down, gpu: 1"), passes: fault("net-down, gpu: 1, value: 0")},
	"device-link": {
		vendor: "metax", triggers: fault("link-down, gpu: 0", "link-down, gpu: 1", "link-down, gpu: 2"),
		passes: fault("link-down, gpu: 0", "link-down, gpu: 1", "link-down, gpu: 2", "link-down, gpu: 3"),
	},
	"nvml-not-injected": {triggers: fault("nvml-not-injected"), passes: fault("nvml-not-injected, value: 0")},
	"ecc-uncorrectable": {
		triggers: fault("ecc-uncorrectable, gpu: 1"), passes: fault("ecc-uncorrectable, gpu: 1, value: 0"),
		also: []string{"ecc-aggregate"},
	},
	"ecc-aggregate":   {triggers: fault("ecc-aggregate, gpu: 1"), passes: fault("ecc-aggregate, gpu: 1, value: 0")},
	"ecc-off":         {triggers: fault("ecc-off, gpu: 1"), passes: fault("ecc-off, gpu: 1, value: 0")},
	"sram-threshold":  {triggers: fault("sram-threshold, gpu: 1"), passes: fault("sram-threshold, gpu: 1, value: 0")},
	"remap-failed":    {triggers: fault("remap-failed, gpu: 1"), passes: fault("remap-failed, gpu: 1, value: 0")},
	"remap-pending":   {triggers: fault("remap-pending, gpu: 1"), passes: fault("remap-pending, gpu: 1, value: 0")},
	"remap-many":      {triggers: fault("remap-many, gpu: 1, value: 512"), passes: fault("remap-many, gpu: 1, value: 511")},
	"retired-pending": {triggers: fault("retired-pending, gpu: 1") + v100, passes: fault("retired-pending, gpu: 1, value: 0") + v100},
	"retired-many": {
		triggers: fault("retired-many, gpu: 1, value: 60") + v100,
		passes:   fault("retired-many, gpu: 1, value: 59") + v100,
	},
	"nvlink-down": {
		triggers: fault("nvlink-down, gpu: 0, link: 2", "nvlink-down, gpu: 1, link: 2", "nvlink-down, gpu: 2, link: 2"),
		passes: fault("nvlink-down, gpu: 0, link: 2", "nvlink-down, gpu: 1, link: 2", "nvlink-down, gpu: 2, link: 2",
			"nvlink-down, gpu: 3, link: 2"),
	},
	"nvlink-none":      {triggers: fault("nvlink-none"), passes: fault("nvlink-none, value: 0")},
	"nvlink-errors":    {triggers: fault("nvlink-errors, gpu: 1, value: 100"), passes: fault("nvlink-errors, gpu: 1, value: 0")},
	"fabric-not-ready": {triggers: fault("fabric-not-ready, gpu: 1, value: 2"), passes: fault("fabric-not-ready, gpu: 1, value: 3")},
	"pcie-width":       {triggers: fault("pcie-width, gpu: 1, value: 15"), passes: fault("pcie-width, gpu: 1, value: 16")},
	"pcie-speed":       {triggers: fault("pcie-speed, gpu: 1, value: 4"), passes: fault("pcie-speed, gpu: 1, value: 5")},
	"pcie-replay": {
		triggers: fault("pcie-replay, gpu: 1, value: 3"),
		passes:   fault("pcie-replay, gpu: 1, value: 2"),
	}, // ceil(1.92 × 16 lanes × 2 s)
	"throttle-hw": {
		triggers: fault("throttle, gpu: 1, mask: 0x8, readings: 3"),
		passes:   fault("throttle, gpu: 1, mask: 0x8, readings: 2"),
	},
	"throttle-sw": {
		triggers: fault("throttle, gpu: 1, mask: 0x20, readings: 3"),
		passes:   fault("throttle, gpu: 1, mask: 0x20, readings: 2"),
	},
	"temp-high":       {triggers: fault("temp, gpu: 1, value: 85"), passes: fault("temp, gpu: 1, value: 84")},
	"persistence-off": {triggers: fault("persistence-off, gpu: 1"), passes: fault("persistence-off, gpu: 1, value: 0")},
	"compute-mode": {
		triggers: fault("compute-mode, gpu: 1, value: 2"),
		passes:   fault("compute-mode, gpu: 1, value: 3"),
	}, // two workers on four GPUs
	"gpu-busy": {
		triggers: fault("busy, gpu: 1, mib: 1632"),
		passes:   fault("busy, gpu: 1, mib: 1631"),
	}, // 2 % of 81559
	"gpu-heterogeneous": {
		triggers: fault("heterogeneous, gpu: 1, memory_mib: 80743"), passes: fault("heterogeneous, gpu: 1, memory_mib: 80744"), // 1 %
	},
	"numa-unknown": {triggers: "\n  numa: [0, 0, -1, 1]", passes: "\n  numa: [0, 0, 0, 1]"},
	"acs-on":       {triggers: fault("acs-on, gpu: 1"), passes: fault("acs-on, gpu: 1, value: 0")},
	"xid": {
		triggers: fault("xid, gpu: 1, code: 48, age_s: 86400"), passes: fault("xid, gpu: 1, code: 48, age_s: 86401"),
		want: check.Fail,
	},
	"kernel-log": {
		triggers: kernel("Detected insufficient power on the PCIe slot (20W)."),
		passes:   kernel("Detected sufficient power on the PCIe slot (20W)."),
	},
	"stuck-process": {triggers: fault("stuck-process"), passes: fault("stuck-process, value: 0")},
	"peermem":       {triggers: fault("peermem-missing"), passes: fault("peermem-missing, value: 0")},
	"shm-size":      {triggers: "\n  shm_mib: 1023", passes: "\n  shm_mib: 1024"},
	"shm-writable":  {triggers: fault("shm-readonly"), passes: fault("shm-readonly, value: 0")},
	"memlock":       {triggers: fault("memlock, kib: 64"), passes: fault("memlock, kib: -1")},
	"open-files":    {triggers: fault("open-files, value: 65535"), passes: fault("open-files, value: 65536")},
	"cpu-starved":   {triggers: cpuMax(1), passes: cpuMax(2), nearly: []string{"cpu-tight"}},
	"cpu-tight":     {triggers: cpuMax(3), passes: cpuMax(4)},
	"bad-env":       {triggers: "\n  env: {CUDA_LAUNCH_BLOCKING: \"1\"}", passes: "\n  env: {CUDA_LAUNCH_BLOCKING: \"0\"}"},
	"disk-space":    {triggers: fault("disk-free, mib: 1023"), passes: fault("disk-free, mib: 1024")},
}

// fault is a list of faults as a spec has it.
func fault(kinds ...string) string {
	text := "\n  faults:"
	for _, k := range kinds {
		text += "\n    - {kind: " + k + "}"
	}
	return text
}

func kernel(line string) string {
	return fault(`kernel-log, line: "mlx5_core 0000:0a:00.0: ` + line + `"`)
}

func cpuMax(cpus int) string {
	return fmt.Sprintf("\n  cgroup: {cpu_max: \"%d 100000\"}", cpus*100000)
}

// with adds lines to the healthy spec.
func with(added string) string {
	spec := healthySpec
	for line := range strings.Lines(added) {
		key, _, _ := strings.Cut(line, ":")
		if !strings.HasPrefix(key, "   ") && strings.HasPrefix(key, "  ") {
			spec = regexp.MustCompile(`(?m)^`+key+`:.*\n`).ReplaceAllString(spec, "")
		}
	}
	return strings.TrimRight(spec, "\n") + added + "\n"
}

// spoken are the checks that warn or fail.
func spoken(results []check.Result) []string {
	var ids []string
	for _, r := range results {
		if r.Status > check.Pass && !slices.Contains(ids, r.ID) {
			ids = append(ids, r.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func list(ids ...string) []string {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TestEveryCheckHasAPair: what the table of checks promises is what specs show, one on each side of every threshold.
func TestEveryCheckHasAPair(t *testing.T) {
	known := map[string]bool{}
	for _, id := range check.IDs() {
		known[id.Name] = true
		if id.Apart {
			continue // those have pairs in netcheck/netprobe and netcheck/switchbox
		}
		p, paired := pairs[id.Name]
		if !paired {
			t.Errorf("%s has no pair of specs", id.Name)
			continue
		}
		t.Run(id.Name, func(t *testing.T) {
			want := p.want
			if want == 0 {
				want = id.Default
			}
			spec := func(added string) string {
				if p.vendor != "" {
					return vendorSpec(p.vendor, added)
				}
				return with(added)
			}
			bad := fakeNode(t, spec(p.triggers)).Check()
			if got := statusOf(t, bad, id.Name); got != want {
				t.Errorf("%v, want %v", got, want)
			}
			if d := cmp.Diff(list(append(p.also, id.Name)...), spoken(bad)); d != "" {
				t.Errorf("who speaks up (-want +got)\n%s%+v", d, bad)
			}
			for _, r := range bad {
				if r.ID == id.Name && r.Status > check.Pass &&
					(r.Reason == "" || id.Scope == "gpu" && r.Subject.GPU == nil && r.Subject.BusID == "") {
					t.Errorf("it does not say what or why: %+v", r)
				}
			}
			good := fakeNode(t, spec(p.passes)).Check()
			if got := statusOf(t, good, id.Name); got != check.Pass {
				t.Errorf("%v on the passing side: %+v", got, good)
			}
			if d := cmp.Diff(list(p.nearly...), spoken(good)); d != "" {
				t.Errorf("who speaks up on the passing side (-want +got)\n%s", d)
			}
		})
	}
	for name := range pairs {
		if !known[name] {
			t.Errorf("%s is no check", name)
		}
	}
}

// TestHealthyFake: a healthy H100 node passes all that an H100 can be asked.
func TestHealthyFake(t *testing.T) {
	var skipped []string
	for _, r := range fakeNode(t, healthySpec).Check() {
		switch r.Status {
		case check.Pass:
		case check.Skip:
			skipped = append(skipped, r.ID)
		default:
			t.Errorf("%+v", r)
		}
	}
	if d := cmp.Diff(list("retired-pending", "retired-many", "device-health", "device-network", "device-link"), list(skipped...)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
