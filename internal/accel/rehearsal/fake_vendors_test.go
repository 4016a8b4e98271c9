package rehearsal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/accel/rehearsal"
	"muster/internal/errhint"
)

// fakeCases has for each vendor the nodes of its devices, and a mask that leaves two of four, in the order in which a
// worker sees them; "" for vendors whose masks only their runtime can resolve.
var fakeCases = map[string]struct {
	word, nodes, model string
	mask, shown        string
}{
	"nvidia": {"gpu", "nvidia0 nvidia1 nvidia2 nvidia3", "NVIDIA Fake GPU", "CUDA_VISIBLE_DEVICES: '3,1'", "3 1"},
	"metax": {
		"cuda", "dri/renderD128 dri/renderD129 dri/renderD130 dri/renderD131", "MetaX Fake GPU",
		"MACA_VISIBLE_DEVICES: '3,1'", "3 1",
	},
	"amd": {
		"gpu", "dri/renderD128 dri/renderD129 dri/renderD130 dri/renderD131", "AMD Fake GPU",
		"HIP_VISIBLE_DEVICES: '1,0', ROCR_VISIBLE_DEVICES: '1,3'", "3 1",
	},
	"hygon": {
		"gpu", "dri/renderD128 dri/renderD129 dri/renderD130 dri/renderD131", "Hygon Fake DCU",
		"HIP_VISIBLE_DEVICES: '3,1'", "3 1",
	},
	"ascend": {"npu", "davinci0 davinci1 davinci2 davinci3", "Ascend Fake NPU", "ASCEND_RT_VISIBLE_DEVICES: '1,3'", "1 3"},
	"cambricon": {
		"mlu", "cambricon_dev0 cambricon_dev1 cambricon_dev2 cambricon_dev3", "Cambricon Fake MLU",
		"MLU_VISIBLE_DEVICES: '3,1'", "3 1",
	},
	"mthreads": {"musa", "mtgpu.0 mtgpu.1 mtgpu.2 mtgpu.3", "Moore Threads Fake GPU", "MUSA_VISIBLE_DEVICES: '3,1'", "3 1"},
	"iluvatar": {"gpu", "iluvatar0 iluvatar1 iluvatar2 iluvatar3", "Iluvatar Fake GPU", "CUDA_VISIBLE_DEVICES: '3,1'", "3 1"},
	"thead":    {"cuda", "alixpu_ppu0 alixpu_ppu1 alixpu_ppu2 alixpu_ppu3", "T-Head Fake PPU", "CUDA_VISIBLE_DEVICES: '3,1'", "3 1"},
	"gaudi":    {"hpu", "accel/accel0 accel/accel1 accel/accel2 accel/accel3", "Gaudi Fake HPU", "HABANA_VISIBLE_MODULES: '3,1'", ""},
	"intel":    {"xpu", "dri/renderD128 dri/renderD129 dri/renderD130 dri/renderD131", "Intel Fake GPU", "ZE_AFFINITY_MASK: '3,1'", ""},
}

// TestFakeVendors: each vendor's fake is found by the code that finds the real ones, and counted by every word for it.
func TestFakeVendors(t *testing.T) {
	machine := control.With(bridge, gpuA, allOpen, ascend).Root() // none of these may show through
	for _, v := range accel.Vendors() {
		c, ok := fakeCases[v.Name]
		if !ok {
			t.Errorf("%s is not tested", v.Name)
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			fake := fakeOf(t, v.Name, "pcie: {gen: 4, width: 8}")
			inv := fake.Detect(machine, env())
			var nodes []string
			for i, d := range inv.Devices {
				nodes = append(nodes, strings.TrimPrefix(d.Node, "/dev/"))
				want := accel.Device{
					Index: i, VisibleIndex: i, Vendor: v.Name, BusID: fmt.Sprintf("0000:%x:00.0", 0x10+i), NUMANode: i / 2,
					Link: "8 × 16.0 GT/s",
				}
				got := accel.Device{
					Index: d.Index, VisibleIndex: d.VisibleIndex, Vendor: d.Vendor, BusID: d.BusID, NUMANode: d.NUMANode,
					Link: d.Link,
				}
				if diff := cmp.Diff(want, got); diff != "" || d.Driver == "" || d.Notes != nil {
					t.Errorf("device %d, driver %q, notes %q (-want +got)\n%s", i, d.Driver, d.Notes, diff)
				}
			}
			if d := cmp.Diff(c.nodes, strings.Join(nodes, " ")); d != "" || len(inv.Unusable) > 0 || inv.Undecided != nil {
				t.Errorf("%+v (-want +got)\n%s", inv.Family, d)
			}
			for _, f := range inv.Families {
				if f.Vendor != v.Name && len(f.Devices)+len(f.Unusable) > 0 {
					t.Errorf("%s devices, too: %+v", f.Vendor, f)
				}
			}
			if want := "accelerator=fake: 4 × " + c.model + " with 81559 MiB ("; !strings.HasPrefix(fake.Banner(), want) {
				t.Errorf("banner %q, want %q", fake.Banner(), want)
			}
			for _, word := range []string{"auto", v.Name, v.Backend, c.word} {
				n, why, err := accel.Workers(word, inv, 6)
				if want := "4 of 4 " + v.Name + " devices visible"; n != 4 || why != want || err != nil {
					t.Errorf("%s: %d, %q, %v", word, n, why, err)
				}
			}
			masked := fakeOf(t, v.Name, "visible: {"+c.mask+"}").Detect(machine, env())
			var shown []string
			for _, d := range masked.Visible {
				shown = append(shown, fmt.Sprint(d.Index))
			}
			n, _, err := accel.Workers("auto", masked, 6)
			if strings.Join(shown, " ") != c.shown || c.shown != "" && (n != 2 || err != nil) || c.shown == "" &&
				(err == nil || masked.Undecided == nil) {
				t.Errorf("with %s a worker sees %q, want %q; auto is %d, %v", c.mask, shown, c.shown, n, err)
			}
		})
	}
}

// TestFakeFaultsOfTheBus: faults that every vendor's devices can have, as detection shows them.
func TestFakeFaultsOfTheBus(t *testing.T) {
	for name := range fakeCases {
		inv := fakeOf(t, name,
			"faults: [{kind: gpu-lost, gpu: 1}, {kind: pcie-width, gpu: 2, value: 4}, {kind: pcie-speed, gpu: 2, value: 3}, {kind: "+
				"node-denied, gpu: 3}]").Detect(tree{}.Root(), env())
		if len(inv.Devices) != 3 || inv.Devices[0].Lost != "" || inv.Devices[1].Lost == "" || inv.Devices[2].Link != "4 × 8.0 GT/s" {
			t.Errorf("%s: %+v", name, inv.Devices)
		}
		if len(inv.Families) == 0 {
			t.Fatalf("%s: no family", name)
		}
		unusable := inv.Families[len(inv.Families)-1].Unusable
		if len(unusable) != 1 || !strings.HasSuffix(unusable[0].WhyNot, "may not be read and written by this process") {
			t.Errorf("%s: %+v", name, unusable)
		}
		inv = fakeOf(t, name, "faults: [{kind: driver-not-loaded}]").Detect(tree{}.Root(), env())
		if n, _, err := accel.Workers("auto", inv, 6); n != 6 || err != nil {
			t.Errorf("%s without a driver: %d workers, %v", name, n, err)
		}
	}
}

// TestFakeOfAnotherVendor: a node takes nothing from the defaults that belongs to their vendor.
func TestFakeOfAnotherVendor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	text := `version: 1
defaults: {count: 2, model: NVIDIA H100, driver: "535.1", nvlinks: 4, visible: {CUDA_VISIBLE_DEVICES: "1"}, ` +
		`faults: [{gpu: 1, kind: ecc-off}], numa: [0, 1]}
nodes:
  other: {vendor: hygon}
  same: {vendor: nvidia}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]struct {
		model, env string
		visible    int
	}{
		"other": {"Hygon Fake DCU", "map[]", 2}, "same": {"NVIDIA H100", "map[CUDA_VISIBLE_DEVICES:1]", 1},
	} {
		fake, err := rehearsal.LoadFake(file, node)
		if err != nil {
			t.Fatal(err)
		}
		inv := fake.Detect(tree{}.Root(), env())
		if inv.VisibleCount != want.visible || inv.Devices[1].NUMANode != 1 || inv.Devices[1].Model != want.model ||
			fmt.Sprint(fake.Env()) != want.env {
			t.Errorf("%s: %+v, %v", node, inv.Devices, fake.Env())
		}
	}
}

// A fake's accelerators are the only ones, whatever the machine under it has.
func TestFakeHidesOtherVendors(t *testing.T) {
	for name, machine := range vendorTrees {
		if inv := load(t, "eight.yaml", "node-3").Detect(machine.Root(), env()); inv.Vendor != "nvidia" || len(inv.Families) != 1 ||
			len(inv.Devices) != 2 {
			t.Errorf("%s: %+v", name, inv.Families)
		}
	}
}

// A real accelerator of any vendor is in the way of a fake of any vendor.
func TestFakeCheckMachineOfVendors(t *testing.T) {
	fake := fakeOf(t, "ascend")
	for name, machine := range vendorTrees {
		if err := fake.CheckMachine(machine.Root(), false); errhint.CodeOf(err) != errhint.Usage || err == nil ||
			!strings.Contains(err.Error(), "has a real one (/dev/") {
			t.Errorf("%s: %v", name, err)
		}
		if err := fake.CheckMachine(machine.Root(), true); err != nil {
			t.Errorf("%s, meant so: %v", name, err)
		}
	}
	for name, machine := range map[string]tree{
		"nothing": {}, "an integrated GPU": pci("0000:00:02.0", "0x8086", "0x030000", "i915").With(dri("0000:00:02.0", 128)),
		"a processor's KFD": nodes("kfd").With(cpuNode),
	} {
		if err := fake.CheckMachine(machine.Root(), false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
