package accel_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/errhint"
)

func TestDetect(t *testing.T) {
	three := control.With(bridge, gpuA, gpuB, gpuC, allOpen)
	for _, c := range []struct {
		name  string
		tree  tree
		env   []string
		found string // address:minor of each device
		shown string // UUIDs
		why   string // a sentence that must be among the reasons
	}{
		{name: "nothing", tree: tree{}, why: "no NVIDIA GPU was found in /sys/bus/pci/devices"},
		{
			name: "no NVIDIA", tree: bridge.With(tree{"dev/null": "node"}),
			why: "no NVIDIA GPU was found in /sys/bus/pci/devices",
		},
		{
			name: "3D and VGA controllers in PCI order", tree: three,
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-a GPU-b GPU-c",
			why: "CUDA_VISIBLE_DEVICES is not set: 3 of 3 visible",
		},
		{
			name: "NVSwitch bridge and audio are no GPUs",
			tree: control.With(gpuA, allOpen, pci("0000:1b:00.1", "0x10de", "0x040300", "nvidia"),
				pci("0000:05:00.0", "0x10de", "0x068000", "nvidia")),

			found: "0000:1b:00.0:1", shown: "GPU-a", why: "found 1 NVIDIA GPU with a usable device node",
		},
		{
			name: "bound to vfio-pci", tree: three.With(pci("0000:43:00.0", "0x10de", "0x030200", "vfio-pci")),
			found: "0000:1b:00.0:1 0001:03:00.0:2", shown: "GPU-a GPU-c",
			why: "GPU 0000:43:00.0 is not counted: it is bound to the driver vfio-pci",
		},
		{
			name: "no driver", tree: control.With(allOpen, pci("0000:43:00.0", "0x10de", "0x030200", "")),
			why: "GPU 0000:43:00.0 is not counted: no driver is bound to it",
		},
		{
			name:  "driver known by its proc folder only",
			tree:  control.With(allOpen, gpuA.With(tree{"sys/devices/pci0000:00/0000:1b:00.0/driver": ""})),
			found: "0000:1b:00.0:1", shown: "GPU-a",
		},
		{
			name: "proc lists the host's GPUs, dev has one", tree: three.With(tree{"dev/nvidia0": "", "dev/nvidia2": ""}),
			found: "0000:1b:00.0:1", shown: "GPU-a",
			why: "GPU 0000:43:00.0 is not counted: /dev/nvidia0 does not exist",
		},
		{
			name: "node without permission", tree: three.With(tree{"dev/nvidia0": "denied"}),
			found: "0000:1b:00.0:1 0001:03:00.0:2", shown: "GPU-a GPU-c",
			why: "GPU 0000:43:00.0 is not counted: /dev/nvidia0 may not be read and written by this process",
		},
		{
			name: "no control node", tree: three.With(tree{"dev/nvidiactl": ""}),
			why: "no NVIDIA GPU can be used: /dev/nvidiactl does not exist",
		},
		{
			name: "node that answers otherwise", tree: three.With(tree{"dev/nvidia2": "odd"}),
			found: "0000:1b:00.0:1 0000:43:00.0:0", shown: "GPU-a GPU-b",
			why: "GPU 0001:03:00.0 is not counted: /dev/nvidia2 cannot be used: input/output error",
		},
		{
			name: "no nvidia-uvm", tree: three.With(tree{"dev/nvidia-uvm": ""}),
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-a GPU-b GPU-c",
			why: "/dev/nvidia-uvm does not exist: CUDA may not start",
		},
		{
			name: "excluded by the driver", tree: three.With(tree{information("0000:43:00.0"): "Device Minor: 0\nGPU Excluded: Yes\n"}),
			found: "0000:1b:00.0:1 0001:03:00.0:2", shown: "GPU-a GPU-c",
			why: "GPU 0000:43:00.0 is not counted: the driver excludes it",
		},
		{
			name: "excluded, older word", tree: three.With(tree{information("0000:43:00.0"): "Device Minor: 0\nBlacklisted: Yes\n"}),
			found: "0000:1b:00.0:1 0001:03:00.0:2", shown: "GPU-a GPU-c",
		},
		{
			name: "minor missing, a node is left", tree: three.With(tree{information("0000:43:00.0"): "Model: X\nGPU UUID: GPU-b\n"}),
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-a GPU-b GPU-c",
			why: "the driver tells no device number for 1 GPU: matched with the /dev/nvidia* nodes in order",
		},
		{
			// Sorted as text, domain 10000 would come first.
			name: "minors missing, matched in PCI order",
			tree: control.With(allOpen, pci("10000:01:00.0", "0x10de", "0x030200", "nvidia"),
				pci("2000:01:00.0", "0x10de", "0x030200", "nvidia")),

			found: "2000:01:00.0:0 10000:01:00.0:1", shown: " ",
		},
		{
			name: "minors missing, fewer nodes than GPUs",
			tree: three.With(tree{information("0000:43:00.0"): "Model: X\n", information("0000:1b:00.0"): "", "dev/nvidia0": ""}),

			found: "0001:03:00.0:2 :1", shown: "GPU-c ",
			why: "the driver tells no device number for 2 GPUs and 1 other /dev/nvidia* node may be used: these count, without an address",
		},
		{
			name: "minor missing, no node left", tree: three.With(tree{information("0000:43:00.0"): "Model: X\n", "dev/nvidia0": ""}),
			found: "0000:1b:00.0:1 0001:03:00.0:2", shown: "GPU-a GPU-c",
		},
		{
			name: "sandbox without PCI", tree: control.With(tree{
				"dev/nvidia0": "node", "dev/nvidia3": "node", "dev/nvidia03": "node",
				"dev/nvidia-modeset": "node",
			}),
			found: ":0 :3", shown: " ",
			why: "/sys shows no PCI devices: counted 2 /dev/nvidia* nodes that this process may use",
		},
		{
			name:  "sandbox without PCI but with the driver's files",
			tree:  control.With(allOpen, proc("0000:1b:00.0", "GPU-a", 0), proc("0000:43:00.0", "GPU-b", 1)),
			found: "0000:1b:00.0:0 0000:43:00.0:1 :2", shown: "GPU-a GPU-b ",
		},
		{
			name:  "names that are no PCI address",
			tree:  three.With(tree{"sys/bus/pci/devices/0000:zz:00.0": "x", "sys/bus/pci/devices/slot7": "x"}),
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-a GPU-b GPU-c",
		},
		{
			name: "left-over nodes, no GPU on the bus", tree: control.With(bridge, allOpen),
			why: "no NVIDIA GPU was found in /sys/bus/pci/devices",
		},
		{
			name:  "garbage from the driver",
			tree:  three.With(tree{information("0000:43:00.0"): "\x00\xff:\n:::\nDevice Minor: -7\nDevice Minor\n"}),
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-a  GPU-c",
		},
		{
			name: "mask of numbers", tree: three, env: []string{"CUDA_VISIBLE_DEVICES=2,0"},
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-c GPU-a",
			why: `CUDA_VISIBLE_DEVICES="2,0": 2 of 3 visible`,
		},
		{
			name: "mask of UUIDs", tree: three, env: []string{"CUDA_VISIBLE_DEVICES=GPU-b"},
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-b",
		},
		{
			name: "empty mask", tree: three, env: []string{"CUDA_VISIBLE_DEVICES="},
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", why: `CUDA_VISIBLE_DEVICES="": 0 of 3 visible`,
		},
		{
			name: "the runtime's variable is not applied again", tree: three, env: []string{"NVIDIA_VISIBLE_DEVICES=1"},
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-a GPU-b GPU-c",
		},
		{
			name: "container given no GPU", tree: bridge.With(gpuA), env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
			why: `NVIDIA_VISIBLE_DEVICES="void": this container was given no GPU`,
		},
		{
			name: "MIG", tree: three.With(tree{
				"proc/driver/nvidia/capabilities/gpu1/mig/gi3/ci0/access": "DeviceFileMinor: 30\n",
				"proc/driver/nvidia/capabilities/gpu0/mig/config":         "DeviceFileMinor: 1\n",
			}),
			found: "0000:1b:00.0:1 0000:43:00.0:0 0001:03:00.0:2", shown: "GPU-a GPU-b GPU-c",
			why: "GPU 0 is divided into MIG instances: it counts as one device",
		},
		{
			name: "another vendor",
			tree: bridge.With(pci("0000:05:00.0", "0x1002", "0x120000", "amdgpu"), pci("0000:06:00.0", "0x1002", "0x038000", "amdgpu"),
				pci("0000:07:00.0", "0x1d94", "0x060400", "pcieport")),

			why: "AMD GPU 0000:05:00.0 is not counted: the driver lists it for no computing, or not for this process",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			inv := accel.Detect(c.tree.Root(), env(c.env...))
			var found, shown []string
			for i, d := range inv.Devices {
				found = append(found, fmt.Sprintf("%s:%d", d.BusID, d.Minor))
				if d.Index != i || d.Vendor != "nvidia" {
					t.Errorf("device %d: %+v", i, d)
				}
			}
			for _, d := range inv.Visible {
				shown = append(shown, d.UUID)
			}
			if got := strings.Join(found, " "); got != c.found {
				t.Errorf("found %q, want %q", got, c.found)
			}
			if got := strings.Join(shown, " "); got != c.shown {
				t.Errorf("visible %q, want %q", got, c.shown)
			}
			if inv.VisibleCount != len(inv.Visible) || inv.Undecided != nil || (inv.Vendor == "") != (c.found == "") {
				t.Errorf("inconsistent: %+v", inv)
			}
			if all := strings.Join(inv.Why, "\n"); !strings.Contains("\n"+all+"\n", "\n"+c.why+"\n") && c.why != "" {
				t.Errorf("reason %q is not among\n%s", c.why, all)
			}
		})
	}
}

func TestDetectDescribesDevices(t *testing.T) {
	dir := "sys/devices/pci0000:00/0000:1b:00.0/"
	root := control.With(gpuA, allOpen, tree{dir + "numa_node": "1\n", dir + "local_cpulist": "0-31,64-95\n"}).Root()
	want := accel.Device{
		Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", UUID: "GPU-a", BusID: "0000:1b:00.0", Node: "/dev/nvidia1", Minor: 1,
		Driver: "nvidia", NUMANode: 1, LocalCPUs: "0-31,64-95",
	}
	inv := accel.Detect(root, env())
	if d := cmp.Diff([]accel.Device{want}, inv.Devices); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	delete(root.MapFS, "sys/devices/pci0000:00/0000:1b:00.0/numa_node")
	if inv := accel.Detect(root, env()); inv.Devices[0].NUMANode != -1 {
		t.Errorf("NUMA node %d, want -1", inv.Devices[0].NUMANode)
	}
}

func TestDetectUndecided(t *testing.T) {
	asleep := control.With(allOpen, pci("0000:1b:00.0", "0x10de", "0x030200", "nvidia"),
		proc("0000:1b:00.0", "GPU-????????-????-????-????-????????????", 1))
	wsl := tree{"dev/dxg": "node", "usr/lib/wsl/lib/libnvidia-ml.so.1": "library"}
	for _, c := range []struct {
		name string
		tree tree
		mask string
		want string
	}{
		{"MIG mask", control.With(gpuA, allOpen), "MIG-1,MIG-2", "cannot count the MIG instances that CUDA_VISIBLE_DEVICES names"},
		{"malformed mask", control.With(gpuA, allOpen), "+", `cannot read CUDA_VISIBLE_DEVICES="+": element "+": a sign without a number`},
		{
			"UUID of a sleeping GPU", asleep, "GPU-1",
			`cannot resolve CUDA_VISIBLE_DEVICES="GPU-1": the driver does not tell every GPU's UUID`,
		},
		{"WSL", wsl, "0", "cannot count GPUs under WSL: it has no device node per GPU"},
	} {
		inv := accel.Detect(c.tree.Root(), env("CUDA_VISIBLE_DEVICES="+c.mask))
		if inv.Undecided == nil || inv.Undecided.Error() != c.want || errhint.Of(inv.Undecided) == "" || inv.VisibleCount != 0 {
			t.Errorf("%s: got %v with %d visible, want %s", c.name, inv.Undecided, inv.VisibleCount, c.want)
		}
	}
	if inv := accel.Detect(wsl.Root(), env("CUDA_VISIBLE_DEVICES=-1")); inv.Undecided != nil {
		t.Errorf("WSL with everything hidden: %v", inv.Undecided)
	}
}

// A rendered folder must give the same answer as the tree in memory: the links are followed by the kernel then.
func TestDetectInFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range control.With(bridge, gpuA, gpuB, allOpen) {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(target, file)
		} else {
			err = os.WriteFile(file, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root := accel.Dir(dir)
	want := accel.Detect(control.With(bridge, gpuA, gpuB, allOpen).Root(), env())
	if d := cmp.Diff(want, accel.Detect(root, env())); d != "" || len(want.Devices) != 2 {
		t.Errorf("%d devices (-memory +folder)\n%s", len(want.Devices), d)
	}
	if err := os.Remove(filepath.Join(dir, "dev/nvidia0")); err != nil {
		t.Fatal(err)
	}
	if fi, err := root.Lstat("sys/bus/pci/devices/0000:1b:00.0"); err != nil || fi.Mode().Type() != fs.ModeSymlink {
		t.Errorf("%v, %v: no link", fi, err)
	}
	inv := accel.Detect(root, env())
	if len(inv.Devices) != 1 || !strings.Contains(strings.Join(inv.Why, "\n"), "/dev/nvidia0 does not exist") {
		t.Errorf("%d devices: %q", len(inv.Devices), inv.Why)
	}
}

// Whatever this machine has, looking at it must work and agree with itself.
func TestDetectHere(t *testing.T) {
	inv := accel.Detect(accel.Real(), env())
	if len(inv.Why) == 0 || inv.VisibleCount != len(inv.Visible) || inv.VisibleCount > len(inv.Devices) {
		t.Errorf("%+v", inv)
	}
	for _, d := range inv.Devices {
		if err := accel.Real().Access(strings.TrimPrefix(d.Node, "/")); err != nil {
			t.Errorf("device %+v: %v", d, err)
		}
	}
}

func BenchmarkDetectHere(b *testing.B) {
	for b.Loop() {
		accel.Detect(accel.Real(), env())
	}
}
