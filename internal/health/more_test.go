package health

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"muster/internal/accel"
	"muster/internal/check"
)

// TestUnavailable: a value that the driver does not offer is no health, and says why.
func TestUnavailable(t *testing.T) {
	for _, c := range []struct{ faults, id, reason string }{
		{fault("symbol-missing, field: ecc_volatile"), "ecc-uncorrectable", "the driver's library is too old to tell"},
		{fault("symbol-missing, field: remapped_rows"), "remap-failed", "the driver's library is too old to tell"},
		{fault("nvml-missing"), "ecc-off", "cannot run the NVML probe: the fake has none"},
		{fault("driver-mismatch"), "temp-high", "driver and library differ"},
		{fault("probe-crash, at: nvmlDeviceGetHandleByIndex_v2, gpu: 2"), "ecc-off", "GPU 2, 3: NVML did not tell of it"},
		{fault("probe-crash, at: nvmlInit_v2"), "gpu-driver-hung", "SIGABRT in nvmlInit_v2"},
		{fault("reset-required, gpu: 1, value: 3"), "retired-pending", "it replaces rows, and retires no pages"},
		{fault("gpu-lost, gpu: 1"), "temp-high", "GPU 1: NVML did not tell of it"},
		{
			fault("throttle, gpu: 1, mask: 8, readings: 3") + "\n  model: NVIDIA GeForce RTX 4090", "remap-many",
			"it is not known as a product that replaces rows",
		},
		{
			fault("pcie-speed, gpu: 1, value: 1", "throttle, gpu: 1, mask: 1, readings: 3"), "pcie-speed",
			"GPU 1: it is idle, and so its link sleeps",
		},
	} {
		skipped := false
		for _, r := range fakeNode(t, with(c.faults)).Check() {
			if r.ID == c.id && r.Status == check.Skip && strings.Contains(r.Reason, c.reason) {
				skipped = true
			}
		}
		if !skipped {
			t.Errorf("%s after%s: not skipped for %q", c.id, c.faults, c.reason)
		}
	}
}

// TestDegrees are results that are not of the check's default status, and thresholds that a policy moves.
func TestDegrees(t *testing.T) {
	for _, c := range []struct {
		added, id string
		policy    check.Policy
		want      check.Status
	}{
		{fault("nvlink-errors, gpu: 1, value: 101"), "nvlink-errors", check.Policy{}, check.Fail},
		{
			fault("nvlink-errors, gpu: 1, value: 101"), "nvlink-errors",
			check.Policy{Limits: map[string]int64{"nvlink-errors": 101}},
			check.Warn,
		},
		{fault("pcie-width, gpu: 1, value: 8"), "pcie-width", check.Policy{}, check.Warn},
		{fault("pcie-width, gpu: 1, value: 7"), "pcie-width", check.Policy{}, check.Fail},
		{fault("reset-required, gpu: 1, value: 2"), "gpu-reset-required", check.Policy{}, check.Fail},
		{fault("reset-required, gpu: 1, value: 3"), "gpu-reset-required", check.Policy{}, check.Warn},
		{fault("reset-required, gpu: 1, value: 77"), "gpu-reset-required", check.Policy{}, check.Warn},
		{fault("driver-mismatch"), "driver-mismatch", check.Policy{}, check.Fail},
		{fault("probe-hang, mode: dstate"), "gpu-driver-hung", check.Policy{}, check.Fail},
		{fault("fabric-not-ready, gpu: 1, value: 3, health: 1"), "fabric-not-ready", check.Policy{}, check.Fail},
		{fault("fabric-not-ready, gpu: 1, value: 3, health: 34"), "fabric-not-ready", check.Policy{}, check.Pass}, // 2 twice: it is not so
		{fault("temp-memory, gpu: 1, value: 95"), "temp-high", check.Policy{}, check.Pass},
		{fault("temp-memory, gpu: 1, value: 96"), "temp-high", check.Policy{}, check.Fail},
		{fault("temp, gpu: 1, value: 84"), "temp-high", check.Policy{Limits: map[string]int64{"temp-high": 3}}, check.Fail},
		{fault("busy, gpu: 1, mib: 10, pid: 4242"), "gpu-busy", check.Policy{}, check.Fail},
		{fault("throttle, gpu: 1, mask: 0x40, readings: 3"), "throttle-hw", check.Policy{}, check.Fail},
		{fault("throttle, gpu: 1, mask: 0x4, readings: 3"), "throttle-hw", check.Policy{}, check.Pass}, // a power cap is normal
		{
			fault("ecc-uncorrectable, gpu: 1, value: 3"), "ecc-uncorrectable",
			check.Policy{Limits: map[string]int64{"ecc-uncorrectable": 3}},
			check.Pass,
		},
		{fault("remap-failed, gpu: 1"), "remap-failed", check.Policy{RemapModels: []string{"A100"}}, check.Skip},
		{fault("ecc-off, gpu: 1"), "ecc-off", check.Policy{ECCModels: []string{}}, check.Skip},
		{
			fault("ecc-off, gpu: 1") + "\n  visible: {CUDA_VISIBLE_DEVICES: \"0,2\"}", "ecc-off",
			check.Policy{},
			check.Pass,
		}, // another job's
		{
			fault("ecc-off, gpu: 1") + "\n  visible: {CUDA_VISIBLE_DEVICES: \"-1\"}", "ecc-off",
			check.Policy{},
			check.Skip,
		}, // all of them are
		{
			fault("ecc-off, gpu: 1") + "\n  visible: {CUDA_VISIBLE_DEVICES: \"MIG-1\"}", "ecc-off",
			check.Policy{},
			check.Warn,
		}, // nobody can tell
		{ // of GPUs that nobody may use here no library is missed
			fault("nvml-not-injected", "node-denied, gpu: 0", "node-denied, gpu: 1", "node-denied, gpu: 2", "node-denied, gpu: 3"),
			"nvml-not-injected",
			check.Policy{},
			check.Skip,
		},
		{fault("heterogeneous, gpu: 1, model: NVIDIA H200"), "gpu-heterogeneous", check.Policy{}, check.Warn},
	} {
		n := fakeNode(t, with(c.added))
		n.Policy = &c.policy
		results := n.Check()
		if got := statusOf(t, results, c.id); got != c.want {
			t.Errorf("%s with%s: %v, want %v: %+v", c.id, c.added, got, c.want, results)
		}
	}
	n := fakeNode(t, with(fault("compute-mode, gpu: 1, value: 3")))
	n.Workers = 5
	if got := statusOf(t, n.Check(), "compute-mode"); got != check.Fail {
		t.Errorf("five workers on four GPUs that take one process each: %v", got)
	}
}

// TestAMD: RAS counters and memory in use, as amdgpu shows them.
func TestAMD(t *testing.T) {
	const dir = "sys/bus/pci/devices/0000:0c:00.0/"
	d := accel.Device{Index: 0, Vendor: "amd", BusID: "0000:0c:00.0", NUMANode: 0}
	amd := func(files map[string]string) *Node {
		n := healthy()
		for name, text := range files {
			n = n.file(dir+name, text)
		}
		f := accel.Family{Vendor: "amd", Devices: []accel.Device{d}, Visible: []accel.Device{d}, VisibleCount: 1}
		n.Inventory = accel.Inventory{Family: f, Families: []accel.Family{{Vendor: "nvidia"}, f}}
		return n
	}
	const gb = "192000000000"
	for name, c := range map[string]struct {
		files     map[string]string
		ecc, busy check.Status
	}{
		"healthy": {map[string]string{
			"ras/umc_err_count": "ue: 0\nce: 7\n", "ras/gfx_err_count": "ue: 0\nce: 0\n",
			"mem_info_vram_used": "300000000", "mem_info_vram_total": gb,
		}, check.Pass, check.Pass},
		"uncorrected": {map[string]string{
			"ras/umc_err_count": "ue: 0\nce: 7\n", "ras/gfx_err_count": "ue: 2\nce: 0\n",
			"mem_info_vram_used": "3840000000", "mem_info_vram_total": gb,
		}, check.Fail, check.Pass},
		"busy": {map[string]string{
			"ras/features": "feature mask: 0x1", "mem_info_vram_used": "3840000001",
			"mem_info_vram_total": gb,
		}, check.Skip, check.Fail},
		"silent": {nil, check.Skip, check.Skip},
	} {
		results := amd(c.files).Check()
		if e, b := statusOf(t, results, "ecc-uncorrectable"), statusOf(t, results, "gpu-busy"); e != c.ecc || b != c.busy {
			t.Errorf("%s: %v, %v: %+v", name, e, b, results)
		}
	}
}

// TestACS walks bridges as sysfs shows them: a chain of two, a virtual machine, no rights, and a configuration that is
// broken.
func TestACS(t *testing.T) {
	config := func(change func([]byte)) string {
		b := make([]byte, 4096)
		b[0x100], b[0x102], b[0x103] = 0x01, 0x01, 0x14 // AER, next at 0x140
		b[0x140], b[0x142] = 0x0d, 0x01                 // ACS, the last
		if change != nil {
			change(b)
		}
		return string(b)
	}
	on := config(func(b []byte) { b[0x146] = 0x04 })
	build := func(top, bottom, cpuinfo string) *Node {
		n := healthy().with(true, device())
		files := n.Root.(tree).MapFS
		for name := range files {
			if strings.HasPrefix(name, gpuDir) {
				delete(files, name)
			}
		}
		const chain = "sys/devices/pci0000:00/0000:00:01.0/0000:0a:00.0/0000:1b:00.0"
		files["sys/bus/pci/devices/0000:1b:00.0"] = &fstest.MapFile{
			Data: []byte("../../../" + strings.TrimPrefix(chain, "sys/")),
			Mode: 0o777 | 1<<27,
		}
		files[chain+"/vendor"] = &fstest.MapFile{Data: []byte("0x10de")}
		files["sys/devices/pci0000:00/0000:00:01.0/config"] = &fstest.MapFile{Data: []byte(top)}
		files["sys/devices/pci0000:00/0000:00:01.0/0000:0a:00.0/config"] = &fstest.MapFile{Data: []byte(bottom)}
		return n.file("proc/cpuinfo", cpuinfo)
	}
	const bare, guest = "processor: 0\nflags\t\t: fpu vme\n", "processor: 0\nflags\t\t: fpu hypervisor\n"
	for name, c := range map[string]struct {
		node *Node
		want check.Status
	}{
		"off":             {build(config(nil), config(nil), bare), check.Pass},
		"on above":        {build(on, config(nil), bare), check.Warn},
		"on below":        {build(config(nil), on, bare), check.Warn},
		"virtual machine": {build(on, on, guest), check.Skip},
		"no rights":       {build(on[:64], on[:64], bare), check.Skip},
		"no capability":   {build(strings.Repeat("\x00", 4096), strings.Repeat("\xff", 4096), bare), check.Pass},
		"a circle": {
			build(config(nil), config(func(b []byte) { b[0x140] = 0x02; b[0x142], b[0x143] = 0x01, 0x10 }), bare),
			check.Pass,
		},
	} {
		if got := statusOf(t, c.node.Check(), "acs-on"); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestStuckProcess: the second look decides, and names of files count where the function says nothing.
func TestStuckProcess(t *testing.T) {
	n := healthy().file("proc/77/stat", "77 (py (x) thon) D 1 77").file("proc/77/wchan", "nvidia_ioctl")
	if got := statusOf(t, n.Check(), "stuck-process"); got != check.Warn {
		t.Errorf("in the driver: %v", got)
	}
	for name, n := range map[string]*Node{
		"on a disk":    healthy().file("proc/77/stat", "77 (python) D 1 77").file("proc/77/wchan", "io_schedule"),
		"asleep":       healthy().file("proc/77/stat", "77 (python) S 1 77").file("proc/77/wchan", "nvidia_ioctl"),
		"not readable": healthy().file("proc/77/stat", "77 (python"),
	} {
		if got := statusOf(t, n.Check(), "stuck-process"); got != check.Pass {
			t.Errorf("%s: %v", name, got)
		}
	}
	open := healthy().file("proc/77/stat", "77 (python) D 1 77").file("proc/77/wchan", "0")
	open.Root.(tree).MapFS["proc/77/fd/5"] = &fstest.MapFile{Data: []byte("/dev/nvidia3"), Mode: 0o777 | 1<<27}
	if got := statusOf(t, open.Check(), "stuck-process"); got != check.Warn {
		t.Errorf("with a device open: %v", got)
	}
}

// TestPeerMemory: DMA-BUF takes the open module and a kernel that knows it.
func TestPeerMemory(t *testing.T) {
	const open, closed = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue"
	build := func(state, version, kernel string) *Node {
		return healthy().with(true, device()).file("sys/class/infiniband/mlx5_0/ports/1/state", state).
			file("proc/driver/nvidia/version", version).file("proc/sys/kernel/osrelease", kernel)
	}
	for name, c := range map[string]struct {
		node *Node
		want check.Status
	}{
		"DMA-BUF":        {build("4: ACTIVE\n", open, "5.12.0-1-generic"), check.Pass},
		"an old kernel":  {build("4: ACTIVE\n", open, "5.11.22"), check.Warn},
		"closed module":  {build("4: ACTIVE\n", closed, "6.1.0"), check.Warn},
		"nvidia_peermem": {build("4: ACTIVE\n", closed, "6.1.0").file("sys/module/nvidia_peermem/initstate", "live"), check.Pass},
		"no port":        {build("1: DOWN\n", closed, "6.1.0"), check.Skip},
		"asked for":      {build("1: DOWN\n", closed, "6.1.0").variable("NCCL_NET_GDR_LEVEL", "SYS"), check.Warn},
	} {
		if got := statusOf(t, c.node.Check(), "peermem"); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestWithoutNVML: files are judged all the same, and what only NVML tells is skipped with the reason.
func TestWithoutNVML(t *testing.T) {
	n := healthy().with(true, device())
	n.NVMLErr = errors.New("the NVML probe is switched off")
	for _, r := range n.Check() {
		if id, _ := check.Lookup(r.ID); id.Scope == "gpu" && r.Status > check.Pass {
			t.Errorf("%+v", r)
		}
		if r.ID == "ecc-off" && r.Reason != "the NVML probe is switched off" {
			t.Errorf("%+v", r)
		}
	}
}
