package accel_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/errhint"
)

func TestDetectVendors(t *testing.T) {
	for _, c := range []struct {
		name     string
		tree     tree
		env      []string
		vendor   string
		found    string // node@address of each device, in order
		unusable string // node@address: why
		why      string // a sentence that must be among the reasons
	}{
		{
			name: "AMD by KFD node", tree: mi210, vendor: "amd", found: "dri/renderD128@0000:63:00.0 dri/renderD129@0000:43:00.0",
			why: "found 2 AMD GPUs with a usable device node",
		},
		{
			name: "AMD divided", tree: mi300cpx, vendor: "amd", why: "CUDA_VISIBLE_DEVICES is not set: 4 of 4 visible",
			found: "dri/renderD128@0000:05:00.0 dri/renderD129@0000:05:00.0 dri/renderD130@0000:05:00.0 dri/renderD136@0000:27:00.0",
		},
		{
			name: "AMD container with a part", tree: mi300cpx.With(tree{"dev/dri/renderD128": "", "dev/dri/renderD130": "denied"}),
			vendor: "amd",
			found:  "dri/renderD129@0000:05:00.0 dri/renderD136@0000:27:00.0",
			unusable: "dri/renderD128@0000:05:00.0: /dev/dri/renderD128 does not exist; dri/renderD130@0000:05:00.0: /dev/dri/renderD130 " +
				"may not be read and written by this process",
		},
		{
			name: "AMD node that the cgroup withholds", tree: mi210.With(tree{"sys/class/kfd/kfd/topology/nodes/2/properties": ""}),
			vendor: "amd",
			found:  "dri/renderD129@0000:43:00.0", unusable: "@0000:63:00.0: the driver lists it for no computing, or not for this process",
		},
		{
			name: "AMD without kfd", tree: mi210.With(tree{"dev/kfd": ""}), why: "no AMD GPU can be used: /dev/kfd does not exist",
			unusable: "dri/renderD128@0000:63:00.0: /dev/kfd does not exist; dri/renderD129@0000:43:00.0: /dev/kfd does not exist",
		},
		{
			name: "AMD given to a virtual machine", vendor: "amd", found: "dri/renderD128@0000:63:00.0",
			why: "AMD GPU 0000:43:00.0 is not counted: it is bound to the driver vfio-pci",
			tree: mi210.With(pci("0000:43:00.0", "0x1002", "0x038000", "vfio-pci"),
				tree{"sys/class/kfd/kfd/topology/nodes/3/properties": ""}),
			unusable: "@0000:43:00.0: it is bound to the driver vfio-pci",
		},
		{
			name: "AMD in a sandbox without PCI", tree: nodes("kfd", "dri/renderD128").With(kfd(1, 0x1002, 152, 1281, 128, 1)),
			vendor: "amd",
			found:  "dri/renderD128@0000:05:00.1",
		},
		{
			name: "garbage in KFD",
			tree: mi210.With(tree{"sys/class/kfd/kfd/topology/nodes/2/properties": "simd_count x\n\xff\n" +
				"drm_render_minor 99999999999999999999\n", "sys/class/kfd/kfd/topology/nodes/x/properties": "simd_count 1\n"}),
			vendor: "amd", found: "dri/renderD129@0000:43:00.0", unusable: "@0000:63:00.0: the driver lists it for no computing, or not " +
				"for this process",
		},
		{
			name: "Hygon without its CPU's functions", tree: hygon, vendor: "hygon",
			found: "dri/renderD128@0000:05:00.0 dri/renderD129@0000:06:00.0", why: "found 2 Hygon DCUs with a usable device node",
		},
		{
			name: "Hygon CPUs alone",
			tree: pci("0000:00:00.0", "0x1d94", "0x060000", "").With(pci("0000:00:00.2", "0x1d94", "0x108000", "ccp")),
		},
		{name: "Ascend", tree: ascend, vendor: "ascend", found: "davinci0@0000:82:00.0 davinci1@0000:c1:00.0"},
		{
			name: "Ascend container with a part", tree: ascend.With(tree{"dev/davinci0": "", "dev/davinci1": "", "dev/davinci5": "node"}),
			vendor: "ascend", found: "davinci5@",
			why: "2 Ascend NPUs on the PCI bus and 1 device node: counted by the nodes, without an address",
		},
		{
			name: "Ascend node denied", tree: ascend.With(tree{"dev/davinci0": "denied"}), vendor: "ascend", found: "davinci1@0000:c1:00.0",
			unusable: "davinci0@0000:82:00.0: /dev/davinci0 may not be read and written by this process",
		},
		{
			name: "Ascend without nodes", tree: ascend.With(tree{"dev/davinci0": "", "dev/davinci1": ""}),
			unusable: "@0000:82:00.0: there is no /dev/davinci<N>; @0000:c1:00.0: there is no /dev/davinci<N>",
		},
		{
			name: "Ascend without a control node", tree: ascend.With(tree{"dev/devmm_svm": ""}),
			why:      "no Ascend NPU can be used: /dev/devmm_svm does not exist",
			unusable: "davinci0@0000:82:00.0: /dev/devmm_svm does not exist; davinci1@0000:c1:00.0: /dev/devmm_svm does not exist",
		},
		{
			name: "Ascend on a chip, not on PCI", tree: davinci.With(bridge, nodes("davinci0", "davinci00", "davinci_manager_docker")),
			vendor: "ascend", found: "davinci0@",
		},
		{name: "MetaX", tree: metax, vendor: "metax", found: "dri/renderD130@0000:08:00.0 dri/renderD131@0000:09:00.0"},
		{
			name: "MetaX without its control node", tree: metax.With(tree{"dev/mxcd": ""}),
			why:      "no MetaX GPU can be used: /dev/mxcd does not exist",
			unusable: "dri/renderD130@0000:08:00.0: /dev/mxcd does not exist; dri/renderD131@0000:09:00.0: /dev/mxcd does not exist",
		},
		{
			name: "Gaudi by the class's link, not by number", tree: gaudi, vendor: "gaudi",
			found: "accel/accel1@0000:33:00.0 accel/accel0@0000:34:00.0",
		},
		{
			name: "Gaudi, older driver, a part", tree: bridge.With(nodes("hl1"), accelClass("habanalabs", "hl0", "0000:33:00.0"),
				accelClass("habanalabs", "hl1", "0000:34:00.0"),
				pci("0000:33:00.0", "0x1da3", "0x120000", "habanalabs"), pci("0000:34:00.0", "0x1da3", "0x120000", "habanalabs"),
				pci("0000:35:00.0", "0x1da3", "0x120000", "habanalabs"),
				pci("0000:36:00.0", "0x1da3", "0x120000", "habanalabs"),
				tree{
					"sys/devices/pci0000:00/0000:33:00.0/device": "0x1020\n", "sys/devices/pci0000:00/0000:34:00.0/device": "0x1020\n",
					"sys/devices/pci0000:00/0000:35:00.0/device": "0x1020\n", "sys/devices/pci0000:00/0000:36:00.0/device": "0x0001\n",
				}),
			vendor: "gaudi", found: "hl1@0000:34:00.0",
			unusable: "hl0@0000:33:00.0: /dev/hl0 does not exist; @0000:35:00.0: its driver habanalabs has made no device node",
		},
		{
			name: "Intel without its integrated GPU", tree: arc, vendor: "intel",
			found:    "dri/renderD129@0000:03:00.0 dri/renderD130@0000:04:00.0",
			unusable: "dri/renderD128@0000:00:02.0: it is an integrated GPU (bus 00)",
		},
		{
			name: "Intel virtual functions", vendor: "intel", found: "dri/renderD129@0000:03:00.0 dri/renderD131@0000:03:00.1",
			unusable: "@0000:03:00.2: it is bound to the driver vfio-pci",
			tree: bridge.With(pci("0000:03:00.0", "0x8086", "0x038000", "xe"), dri("0000:03:00.0", 129),
				pci("0000:03:00.1", "0x8086", "0x038000", "xe"), dri("0000:03:00.1", 131),
				pci("0000:03:00.2", "0x8086", "0x038000", "vfio-pci"),
				tree{
					"sys/devices/pci0000:00/0000:03:00.1/physfn": "-> ../0000:03:00.0",
					"sys/devices/pci0000:00/0000:03:00.2/physfn": "-> ../0000:03:00.0",
				}),
		},
		{
			name: "Intel driver without a render node", tree: pci("0000:03:00.0", "0x8086", "0x038000", "xe"),
			unusable: "@0000:03:00.0: its driver xe has made no render node",
		},
		{name: "Cambricon", tree: cambricon, vendor: "cambricon", found: "cambricon_dev0@0000:65:00.0 cambricon_dev1@0000:66:00.0"},
		{
			name: "Cambricon without a node worth having", tree: cambricon.With(tree{"dev/cambricon_ctl": ""}), vendor: "cambricon",
			found: "cambricon_dev0@0000:65:00.0 cambricon_dev1@0000:66:00.0",
			why:   "/dev/cambricon_ctl does not exist: the devices may not start",
		},
		{name: "Moore Threads, both spellings", tree: mthreads, vendor: "mthreads", found: "mtgpu.0@0000:01:00.0 mtgpu1@0000:02:00.0"},
		{
			name: "Moore Threads, one device in two spellings", tree: mthreads.With(nodes("mtgpu0")), vendor: "mthreads",
			found: "mtgpu.0@0000:01:00.0 mtgpu1@0000:02:00.0",
		},
		{name: "Iluvatar", tree: iluvatar, vendor: "iluvatar", found: "iluvatar0@0000:01:00.0"},
		{name: "T-Head by number", tree: thead, vendor: "thead", found: "alixpu_ppu0@ alixpu_ppu2@ alixpu_ppu10@"},
		{
			name: "container given none", tree: ascend.With(tree{"dev/davinci0": "", "dev/davinci1": ""}),
			env:      []string{"ASCEND_VISIBLE_DEVICES=void"},
			unusable: "@0000:82:00.0: there is no /dev/davinci<N>; @0000:c1:00.0: there is no /dev/davinci<N>",
			why:      `ASCEND_VISIBLE_DEVICES="void": this container was given no NPU`,
		},
		{
			name: "NVIDIA virtual functions and nouveau", vendor: "nvidia", found: "nvidia1@0000:1b:00.0",
			tree: control.With(gpuA, allOpen, pci("0000:1b:00.4", "0x10de", "0x030200", "nvidia"),
				tree{"sys/devices/pci0000:00/0000:1b:00.4/physfn": "-> ../0000:1b:00.0"},
				pci("0000:1c:00.0", "0x10de", "0x030000", "nouveau")),
			unusable: "@0000:1b:00.4: it is a virtual function that the driver gives away; " +
				"@0000:1c:00.0: it is bound to the driver nouveau",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			inv := accel.Detect(c.tree.Root(), env(c.env...))
			var found, unusable []string
			for i, d := range inv.Devices {
				found = append(found, strings.TrimPrefix(d.Node, "/dev/")+"@"+d.BusID)
				if d.Index != i || d.Vendor != c.vendor || d.WhyNot != "" || d.VisibleIndex != i {
					t.Errorf("device %d: %+v", i, d)
				}
			}
			for _, f := range inv.Families {
				for _, d := range f.Unusable {
					unusable = append(unusable, strings.TrimPrefix(d.Node, "/dev/")+"@"+d.BusID+": "+d.WhyNot)
					if d.Index != -1 || d.VisibleIndex != -1 {
						t.Errorf("unusable: %+v", d)
					}
				}
			}
			if inv.Vendor != c.vendor || inv.VisibleCount != len(inv.Devices) || inv.Undecided != nil || c.vendor != "" &&
				(inv.Backend == "" || inv.Verified == "") {
				t.Errorf("inconsistent: %+v", inv.Family)
			}
			if d := cmp.Diff(c.found, strings.Join(found, " ")) + cmp.Diff(c.unusable, strings.Join(unusable, "; ")); d != "" {
				t.Errorf("found and unusable (-want +got)\n%s", d)
			}
			if c.why != "" && !slices.Contains(inv.Why, c.why) {
				t.Errorf("reason %q is not among\n%s", c.why, strings.Join(inv.Why, "\n"))
			}
		})
	}
}

// The kernel must follow the links of a folder as the tree in memory does, for every vendor.
func TestDetectVendorsInFolder(t *testing.T) {
	for name, machine := range vendorTrees {
		want, got := accel.Detect(machine.Root(), env()), accel.Detect(render(t, machine), env())
		if d := cmp.Diff(want, got); d != "" || len(want.Devices) == 0 {
			t.Errorf("%s: %d devices (-memory +folder)\n%s", name, len(want.Devices), d)
		}
	}
}

// render writes a tree into a folder.
func render(t testing.TB, files tree) accel.Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
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
	return accel.Dir(dir)
}

func TestDetectDescribesOtherVendors(t *testing.T) {
	dir := "sys/devices/pci0000:00/0000:05:00.0/"
	inv := accel.Detect(mi300cpx.With(tree{
		dir + "numa_node": "1\n", dir + "local_cpulist": "48-95\n",
		dir + "product_name": "AMD Instinct MI300X OAM\n",
	}).Root(), env("HIP_VISIBLE_DEVICES=1"))
	want := accel.Device{
		Index: 1, Vendor: "amd", Model: "AMD Instinct MI300X OAM", UUID: "GPU-e3aa140f9a5f9e31", BusID: "0000:05:00.0",
		Node: "/dev/dri/renderD129", Minor: 129,
		Driver: "amdgpu", NUMANode: 1, LocalCPUs: "48-95", Notes: []string{"partition 2 of 3"},
	}
	if d := cmp.Diff(want, inv.Devices[1]) + cmp.Diff([]accel.Device{want}, inv.Visible); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if inv.Backend != "cuda" || inv.Verified != "vendor's fixture" || inv.Devices[0].VisibleIndex != -1 {
		t.Errorf("%+v", inv.Family)
	}
}

func TestDetectNotesSickness(t *testing.T) {
	const dir = "sys/devices/pci0000:00/0000:1b:00.0/"
	for _, c := range []struct {
		name string
		tree tree
		want []string
	}{
		{"well", tree{dir + "config": "\xde\x10\x30\x23", dir + "current_link_speed": "32.0 GT/s PCIe\n"}, nil},
		{"gone", tree{dir + "config": "\xff\xff\xff\xff", dir + "current_link_speed": "Unknown\n"}, []string{
			"it does not answer on the PCI bus: its configuration reads ff ff",
		}},
		{"link down", tree{dir + "current_link_speed": "Unknown\n"}, []string{"its PCI link is down: the speed reads Unknown"}},
		{"asleep", tree{dir + "config": "\xff\xff", dir + "power/runtime_status": "suspended\n"}, nil},
		{"configuration cut short", tree{dir + "config": "\xff"}, nil},
		{"virtual", tree{dir + "physfn": "-> ../0000:1a:00.0"}, []string{"virtual function of 0000:1a:00.0"}},
	} {
		inv := accel.Detect(control.With(gpuA, allOpen, c.tree).Root(), env())
		if d := cmp.Diff(c.want, inv.Devices[0].Notes); d != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, d)
		}
	}
	inv := accel.Detect(control.With(pci("0000:1c:00.0", "0x10de", "0x030000", "nouveau")).Root(), env())
	if d := cmp.Diff([]string{"nouveau holds it: load NVIDIA's own driver instead"}, inv.Families[0].Unusable[0].Notes); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestChoiceOfVendor(t *testing.T) {
	nvidia := control.With(bridge, gpuA, gpuB, allOpen)
	three := nvidia.With(gpuC)
	const numbers = "say which to use: --nproc-per-node nvidia or --nproc-per-node ascend, or a number"
	for _, c := range []struct {
		name, word string
		tree       tree
		env        []string
		n          int
		want, hint string
	}{
		{name: "most devices", word: "auto", tree: three.With(ascend), n: 3, want: "3 of 3 nvidia devices visible"},
		{name: "an explicit vendor wins", word: "ascend", tree: three.With(ascend), n: 2, want: "2 of 2 ascend devices visible"},
		{name: "a device name of PyTorch", word: "npu", tree: three.With(ascend), n: 2, want: "2 of 2 ascend devices visible"},
		{
			name: "tie", word: "auto", tree: nvidia.With(ascend),
			want: "cannot start one worker per accelerator: cannot choose between 2 nvidia devices and 2 ascend devices", hint: numbers,
		},
		{name: "no tie among those with CUDA", word: "gpu", tree: nvidia.With(ascend), n: 2, want: "2 of 2 nvidia devices visible"},
		{
			name: "tie among those with CUDA", word: "gpu", tree: nvidia.With(metax, iluvatar),
			want: "cannot start one worker per GPU: cannot choose between 2 nvidia devices and 2 metax devices",
			hint: "say which to use: --nproc-per-node nvidia or --nproc-per-node metax, or a number",
		},
		{name: "an integrated GPU makes no tie", word: "auto", tree: control.With(gpuA, allOpen,
			pci("0000:00:02.0", "0x8086", "0x030000", "i915"), dri("0000:00:02.0", 128)), n: 1, want: "1 of 1 nvidia device visible"},
		{name: "an integrated GPU alone", word: "auto", tree: pci("0000:00:02.0", "0x8086", "0x030000",
			"i915").With(dri("0000:00:02.0", 128)), n: 6, want: "6 CPUs allowed, and no accelerator that a worker would see"},
		{
			name: "masked away", word: "auto", tree: ascend, env: []string{"ASCEND_RT_VISIBLE_DEVICES="}, n: 6,
			want: "6 CPUs allowed, and no accelerator that a worker would see",
		},
		{
			name: "masked away, asked for", word: "npu", tree: ascend, env: []string{"ASCEND_RT_VISIBLE_DEVICES="},
			want: `cannot start one worker per NPU: npu is not available ` +
				`(found 2 Ascend NPUs with a usable device node; ASCEND_RT_VISIBLE_DEVICES="": 0 of 2 visible)`,
			hint: "to train on CPUs say --nproc-per-node cpu or --nproc-per-node N",
		},
		{
			name: "gpu on a machine without CUDA", word: "gpu", tree: ascend,
			want: "cannot start one worker per GPU: Cuda is not available (no NVIDIA GPU was found in /sys/bus/pci/devices)",
			hint: "this node has 2 visible ascend devices: --nproc-per-node ascend; to train on CPUs say --nproc-per-node cpu or " +
				"--nproc-per-node N",
		},
		{name: "gpu with HIP", word: "gpu", tree: mi210, n: 2, want: "2 of 2 amd devices visible"},
		{name: "cuda of Hygon", word: "cuda", tree: hygon, n: 2, want: "2 of 2 hygon devices visible"},
		{
			name: "hpu without a node", word: "hpu", tree: gaudi.With(tree{"dev/accel/accel0": "", "dev/accel/accel1": ""}),
			want: "cannot start one worker per HPU: hpu is not available (Gaudi HPU 0000:33:00.0 is not counted: /dev/accel/accel1 does " +
				"not exist; Gaudi HPU 0000:34:00.0 is not counted: /dev/accel/accel0 does not exist)",
			hint: "to train on CPUs say --nproc-per-node cpu or --nproc-per-node N",
		},
		{name: "mlu", word: "mlu", tree: cambricon, n: 2, want: "2 of 2 cambricon devices visible"},
		{name: "musa", word: "musa", tree: mthreads, n: 2, want: "2 of 2 mthreads devices visible"},
		{name: "xpu", word: "xpu", tree: arc, n: 2, want: "2 of 2 intel devices visible"},
		{name: "thead", word: "thead", tree: thead, n: 3, want: "3 of 3 thead devices visible"},
		{
			name: "for the runtime to say", word: "auto", tree: arc, env: []string{"ZE_AFFINITY_MASK=0.1"},
			hint: "say how many workers to start: --nproc-per-node N",
			want: `cannot start one worker per GPU: cannot tell how many devices ZE_AFFINITY_MASK="0.1" leaves: ` +
				`that is for the vendor's runtime to resolve`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, why, err := accel.Workers(c.word, accel.Detect(c.tree.Root(), env(c.env...)), 6)
			got := why
			if err != nil {
				got = err.Error()
				if errhint.CodeOf(err) != errhint.Usage {
					t.Errorf("status %d", errhint.CodeOf(err))
				}
			}
			if n != c.n || got != c.want || errhint.Of(err) != c.hint {
				t.Errorf("got %d, %q, hint %q\nwant %d, %q, hint %q", n, got, errhint.Of(err), c.n, c.want, c.hint)
			}
		})
	}
}

func TestIsWord(t *testing.T) {
	for word := range strings.FieldsSeq(
		"auto gpu cpu xpu npu musa mlu hpu nvidia amd metax hygon ascend cambricon mthreads iluvatar thead gaudi intel") {
		if !accel.IsWord(word) {
			t.Errorf("%s is no word", word)
		}
	}
	for _, word := range []string{"", "8", "GPU", "mps", "gpus"} {
		if accel.IsWord(word) {
			t.Errorf("%q is a word", word)
		}
	}
}

// Every vendor's variables, on two devices (amd divided: four).
func TestMasks(t *testing.T) {
	const ask = " leaves: that is for the vendor's runtime to resolve"
	for _, c := range []struct {
		vendor string
		env    string // separated by spaces
		want   string // visible indices and the count where it is another, or the error
	}{
		{"amd divided", "", "0123"},
		{"amd divided", "HIP_VISIBLE_DEVICES=2,1", "21"},
		{"amd divided", "CUDA_VISIBLE_DEVICES=3", "3"},
		{"amd divided", "HIP_VISIBLE_DEVICES=0 CUDA_VISIBLE_DEVICES=3,2", "0"},
		{"amd divided", "HIP_VISIBLE_DEVICES=", ""},
		{"amd divided", "HIP_VISIBLE_DEVICES=0,0", ""},
		{"amd divided", "HIP_VISIBLE_DEVICES=0,9,1", "0"},
		{"amd divided", "ROCR_VISIBLE_DEVICES=3,1", "31"},
		{"amd divided", "ROCR_VISIBLE_DEVICES=3,1 CUDA_VISIBLE_DEVICES=0", "31"},
		{"amd divided", "ROCR_VISIBLE_DEVICES=3,1,0 HIP_VISIBLE_DEVICES=2,0", "03"},
		{
			"amd divided", "ROCR_VISIBLE_DEVICES=3 HIP_VISIBLE_DEVICES=0,1",
			`HIP_VISIBLE_DEVICES="0,1" has more devices than ROCR_VISIBLE_DEVICES="3", of which it chooses`,
		},
		{"amd divided", "ROCR_VISIBLE_DEVICES=", " of 1"},
		{"amd divided", "ROCR_VISIBLE_DEVICES=1,9,0", "1 of 3"},
		{"amd divided", "ROCR_VISIBLE_DEVICES=0,1,2,3,0", "0123"},
		{"amd divided", "ROCR_VISIBLE_DEVICES=GPU-2250f807caf2231a", "3"},
		{"amd divided", "HIP_VISIBLE_DEVICES=GPU-1", `cannot tell how many devices HIP_VISIBLE_DEVICES="GPU-1"` + ask},
		{"amd divided", "HIP_VISIBLE_DEVICES=GPU-1,GPU-1", ""},
		{"amd divided", "HIP_VISIBLE_DEVICES=+", `cannot read HIP_VISIBLE_DEVICES="+": element "+": a sign without a number`},
		{"amd divided", "GPU_DEVICE_ORDINAL=0", "0123"},
		{"amd divided", "AMD_VISIBLE_DEVICES=0", "0123"},
		{"hygon", "HIP_VISIBLE_DEVICES=1", "1"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=1", "1"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=1,0", ""},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=0,0", ""},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=0,1,9", "01"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=0,9,1", "0"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=0,9,9", "0"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=0,x,1", "0"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=", ""},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=-1", ""},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=0,,1", "0"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=00,01", "01"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=99999999999999999999,1", ""},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=²", `cannot read ASCEND_RT_VISIBLE_DEVICES="²": element "²": '²' is no decimal digit`},
		{"metax", "", "01"},
		{"metax", "MACA_VISIBLE_DEVICES=1", "1"},
		{"metax", "CUDA_VISIBLE_DEVICES=1,0", "10"},
		{"metax", "MACA_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=0,01", "01"},
		{
			"metax", "MACA_VISIBLE_DEVICES=0 CUDA_VISIBLE_DEVICES=0,1",
			`MACA_VISIBLE_DEVICES="0" and CUDA_VISIBLE_DEVICES="0,1" name different devices: set both to the same value`,
		},
		{
			"metax", "MACA_VISIBLE_DEVICES=GPU-1 CUDA_VISIBLE_DEVICES=GPU-1",
			`cannot tell how many devices MACA_VISIBLE_DEVICES="GPU-1"` + ask,
		},
		{"gaudi", "", "01"},
		{"gaudi", "HABANA_VISIBLE_MODULES=0,1", `cannot tell how many devices HABANA_VISIBLE_MODULES="0,1"` + ask},
		{"gaudi", "HLS_MODULE_ID=0", `cannot tell how many devices HLS_MODULE_ID="0"` + ask},
		{"gaudi", "HABANA_VISIBLE_DEVICES=0", "01"},
		{"intel", "ZE_AFFINITY_MASK=0", `cannot tell how many devices ZE_AFFINITY_MASK="0"` + ask},
		{"intel", "ONEAPI_DEVICE_SELECTOR=level_zero:0", `cannot tell how many devices ONEAPI_DEVICE_SELECTOR="level_zero:0"` + ask},
		{"intel", "ZE_FLAT_DEVICE_HIERARCHY=FLAT", `cannot tell how many devices ZE_FLAT_DEVICE_HIERARCHY="FLAT"` + ask},
		{"intel", "CUDA_VISIBLE_DEVICES=", "01"},
		{"cambricon", "MLU_VISIBLE_DEVICES=1", "1"},
		{"cambricon", "MLU_VISIBLE_DEVICES=MLU-1", `cannot tell how many devices MLU_VISIBLE_DEVICES="MLU-1"` + ask},
		{"cambricon", "CAMBRICON_VISIBLE_DEVICES=0", "01"},
		{"mthreads", "MUSA_VISIBLE_DEVICES=0,-1,1", "0"},
		{"mthreads", "MUSA_VISIBLE_DEVICES=all", `cannot tell how many devices MUSA_VISIBLE_DEVICES="all"` + ask},
		{"iluvatar", "CUDA_VISIBLE_DEVICES=0", "0"},
		{"iluvatar", "IX_VISIBLE_DEVICES=5", "0"},
		{"thead", "CUDA_VISIBLE_DEVICES=2,0", "20"},
		{"thead", "NVIDIA_VISIBLE_DEVICES=1", "012"},
	} {
		t.Run(c.vendor+" "+c.env, func(t *testing.T) {
			inv := accel.Detect(vendorTrees[c.vendor].Root(), env(strings.Fields(c.env)...))
			got := ""
			for at, d := range inv.Visible {
				got += fmt.Sprint(d.Index)
				if d.VisibleIndex != at || inv.Devices[d.Index].VisibleIndex != at {
					t.Errorf("visible index of %+v, want %d", d, at)
				}
			}
			if inv.VisibleCount != len(inv.Visible) {
				got += fmt.Sprintf(" of %d", inv.VisibleCount)
			}
			if inv.Undecided != nil {
				got = inv.Undecided.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q; %q", got, c.want, inv.Why)
			}
		})
	}
	tiles := arc.With(tree{"sys/devices/pci0000:00/0000:03:00.0/tile1/gt0/id": "0\n"})
	if inv := accel.Detect(tiles.Root(), env()); inv.Undecided == nil ||
		!strings.Contains(inv.Undecided.Error(), "cannot count the tiles of Intel GPU 0000:03:00.0") {
		t.Errorf("tiles: %v", inv.Undecided)
	}
}

// mig returns a compute instance with the access files of the driver.
func mig(minor, gi, ci, giCap, ciCap int) tree {
	dir := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d/", minor, gi)
	return tree{
		dir + "access":                       fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", giCap),
		dir + fmt.Sprintf("ci%d/access", ci): fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", ciCap),
	}
}

func TestMIG(t *testing.T) {
	one := control.With(bridge, gpuA, allOpen)
	capability := func(n int, text string) tree { return tree{fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", n): text} }
	two := one.With(mig(1, 3, 0, 30, 31), mig(1, 13, 0, 130, 131), capability(30, "readable"), capability(31, "readable"),
		capability(130, "readable"), capability(131, "readable"))
	const hint = "say how many workers to start: --nproc-per-node N"
	for _, c := range []struct {
		name, word string
		tree       tree
		env        []string
		n          int
		want, hint string
		masks      []string
	}{
		{
			name: "an instance each", word: "auto", tree: two, n: 2, want: "2 usable MIG compute instances of 1 visible GPU",
			masks: []string{"MIG-GPU-a/3/0", "MIG-GPU-a/13/0"},
		},
		{
			name: "PyTorch counts GPUs", word: "gpu", tree: two, n: 1, want: "1 of 1 nvidia device visible",
			masks: []string{"MIG-GPU-a/3/0", "MIG-GPU-a/13/0"},
		},
		{
			name: "a container with one of them", word: "auto", tree: two.With(capability(31, "denied")), n: 1,
			want: "1 usable MIG compute instance of 1 visible GPU", masks: []string{"MIG-GPU-a/13/0"},
		},
		{
			name: "the GPU instance denied", word: "auto", tree: two.With(capability(130, "")), n: 1,
			want: "1 usable MIG compute instance of 1 visible GPU", masks: []string{"MIG-GPU-a/3/0"},
		},
		{
			name: "none usable", word: "auto", tree: two.With(capability(30, ""), capability(131, "")),
			want: "cannot start one worker per GPU: this process may use no MIG instance of the visible GPUs", hint: hint,
		},
		{
			name: "mixed", word: "auto", tree: two.With(gpuB),
			want: "cannot start one worker per GPU: 1 of 2 visible GPUs are divided into MIG instances", hint: hint,
		},
		{
			name: "the other GPU masked away", word: "auto", tree: two.With(gpuB), env: []string{"CUDA_VISIBLE_DEVICES=0"}, n: 2,
			want: "2 usable MIG compute instances of 1 visible GPU", masks: []string{"MIG-GPU-a/3/0", "MIG-GPU-a/13/0"},
		},
		{
			name: "a mask of instances", word: "auto", tree: two, env: []string{"CUDA_VISIBLE_DEVICES=MIG-x"},
			want: "cannot start one worker per GPU: cannot count the MIG instances that CUDA_VISIBLE_DEVICES names", hint: hint,
		},
		{
			name: "MIG off", word: "auto", tree: one.With(tree{"proc/driver/nvidia/capabilities/gpu1/mig/config": "DeviceFileMinor: 1\n"}),
			n: 1, want: "1 of 1 nvidia device visible",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			inv := accel.Detect(c.tree.Root(), env(c.env...))
			n, got, err := accel.Workers(c.word, inv, 6)
			if err != nil {
				got = err.Error()
			}
			if n != c.n || got != c.want || errhint.Of(err) != c.hint {
				t.Errorf("got %d, %q, hint %q\nwant %d, %q, hint %q", n, got, errhint.Of(err), c.n, c.want, c.hint)
			}
			shares, err := inv.ShareInstances()
			var masks []string
			for _, s := range shares {
				masks = append(masks, s.Vars["CUDA_VISIBLE_DEVICES"])
			}
			if d := cmp.Diff(c.masks, masks); d != "" || err != nil {
				t.Errorf("masks, %v (-want +got)\n%s", err, d)
			}
		})
	}
	unknown := accel.Detect(two.With(tree{"proc/driver/nvidia/gpus/0000:1b:00.0/information": "Device Minor: 1\n"}).Root(), env())
	if shares, err := unknown.ShareInstances(); shares != nil || errhint.CodeOf(err) != errhint.Usage || errhint.Of(err) != hint ||
		!strings.Contains(err.Error(), "UUID of GPU 0") {
		t.Errorf("instances of a GPU without a UUID: %v, %v", shares, err)
	}
	inv := accel.Detect(two.With(capability(131, "denied"), tree{"proc/driver/nvidia/capabilities/gpu1/mig/gi13/ci1/access": "?\n"}).Root(),
		env())
	want := []accel.Instance{
		{GPUInstance: 3, Node: "/dev/nvidia-caps/nvidia-cap31", Mask: "MIG-GPU-a/3/0"},
		{
			GPUInstance: 13, Node: "/dev/nvidia-caps/nvidia-cap131", WhyNot: "/dev/nvidia-caps/nvidia-cap131 may not be read by this " +
				"process",
			Mask: "MIG-GPU-a/13/0",
		},
		{
			GPUInstance: 13, ComputeInstance: 1, WhyNot: "/proc/driver/nvidia/capabilities/gpu1/mig/gi13/ci1/access names no device",
			Mask: "MIG-GPU-a/13/1",
		},
	}
	if d := cmp.Diff(want, inv.Devices[0].Instances); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// A machine of eight divided MI300X in CPX mode, and the hundreds of other functions that a server has.
func BenchmarkDetectLargeServer(b *testing.B) {
	machine := nodes("kfd")
	for i := range 8 {
		bus := 0x10 + 0x10*i
		machine = machine.With(pci(fmt.Sprintf("0000:%02x:00.0", bus), "0x1002", "0x120000", "amdgpu"))
		for j := range 8 {
			minor := 128 + 8*i + j
			machine = machine.With(kfd(2+8*i+j, 0x1002, 152, bus<<8|j, minor, uint64(i+1)), nodes(fmt.Sprintf("dri/renderD%d", minor)))
		}
	}
	for i := range 300 {
		machine = machine.With(pci(fmt.Sprintf("0000:f%x:%02x.%x", i/160, i/8%20, i%8), "0x8086", "0x088000", ""),
			nodes(fmt.Sprintf("tty%d", i)))
	}
	root := render(b, machine)
	for b.Loop() {
		if n := accel.Detect(root, env()).VisibleCount; n != 64 {
			b.Fatalf("%d devices", n)
		}
	}
}
