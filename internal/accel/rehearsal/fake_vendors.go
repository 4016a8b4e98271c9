package rehearsal

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
)

// fakeVendor is what a fake shows of a vendor's devices besides what accel.Vendors knows.
type fakeVendor struct {
	class  string // of the PCI bus
	driver string // that is bound to the devices
	// files writes those by which detection finds device i, whose folder on the PCI bus is dir.
	files func(f *Fake, t fakeTree, i int, dir string)
}

// fakeVendors has all vendors. Classes and drivers are those of machines that were seen, or that the sources of vendors
// show; those of MetaX, Iluvatar and T-Head are guessed, and detection depends on none.
var fakeVendors = sync.OnceValue(func() map[string]fakeVendor {
	return map[string]fakeVendor{
		"nvidia":    {"0x030200", "nvidia", (*Fake).nvidiaFiles},
		"metax":     {"0x038000", "metax", (*Fake).renderFiles},
		"amd":       {"0x120000", "amdgpu", (*Fake).amdFiles},
		"hygon":     {"0x038000", "hydcu", (*Fake).kfdFiles},
		"ascend":    {"0x120000", "devdrv_device_driver", (*Fake).numberedFiles},
		"cambricon": {"0x120000", "cambricon-pci-drv", (*Fake).numberedFiles},
		"mthreads":  {"0x030200", "mtgpu", (*Fake).numberedFiles},
		"iluvatar":  {"0x030200", "iluvatar", (*Fake).numberedFiles},
		"thead":     {"0x120000", "alixpu", (*Fake).numberedFiles},
		"gaudi":     {"0x120000", "habanalabs", (*Fake).gaudiFiles},
		"intel":     {"0x038000", "xe", (*Fake).renderFiles},
	}
})

// gaudiDevice is the PCI device id of a fake Gaudi; detection knows several.
const gaudiDevice = "0x1000"

// firstRender is the number of the first render node, as DRM gives it.
const firstRender = 128

// deviceNode writes the node of device i, number n of a pattern of the vendor's.
func (f *Fake) deviceNode(t fakeTree, i int, pattern string, n int) {
	perm := fs.FileMode(0o666)
	if f.spec.has("node-denied", i) {
		perm = 0
	}
	t.node("dev/"+strings.Replace(pattern, "#", strconv.Itoa(n), 1), perm)
}

// nvidiaFiles is what the driver tells of a GPU in /proc, its MIG instances and its node.
func (f *Fake) nvidiaFiles(t fakeTree, i int, _ string) {
	address := fakeAddress(i)
	t.put(path.Join(nvidiaGPUs, address, "information"), fmt.Sprintf(
		"Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nBus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\n"+
			"GPU Excluded:\t No\n",
		f.model(i), 100+i, f.uuid(i), address, i))
	f.migFiles(t, i)
	f.deviceNode(t, i, f.spec.vendor.Pattern, i)
}

// numberedFiles is a node that bears the device's number.
func (f *Fake) numberedFiles(t fakeTree, i int, _ string) {
	f.deviceNode(t, i, f.spec.vendor.Pattern, i)
}

// renderFiles is a render node, and the folder in which the driver names it.
func (f *Fake) renderFiles(t fakeTree, i int, dir string) {
	t.put(fmt.Sprintf("%s/drm/card%d/dev", dir, i), fmt.Sprintf("226:%d\n", i))
	t.put(fmt.Sprintf("%s/drm/renderD%d/dev", dir, firstRender+i), fmt.Sprintf("226:%d\n", firstRender+i))
	f.deviceNode(t, i, "dri/renderD#", firstRender+i)
}

// kfdFiles is renderFiles and a node of the KFD topology, in which node 0 is a processor.
func (f *Fake) kfdFiles(t fakeTree, i int, dir string) {
	f.renderFiles(t, i, dir)
	t.put(kfdNodes+"/0/properties", "cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0\n")
	domain, bus := fakeLocation(i)
	h := sha256.Sum256([]byte(f.uuid(i)))
	t.put(fmt.Sprintf("%s/%d/properties", kfdNodes, i+1), fmt.Sprintf(
		"cpu_cores_count 0\nsimd_count 1216\nmem_banks_count 1\nvendor_id %d\nlocation_id %d\ndomain %d\ndrm_render_minor %d\n"+
			"unique_id %d\n",
		f.pciVendor(), bus<<8, domain, firstRender+i, binary.LittleEndian.Uint64(h[:])))
	t.put(dir+"/product_name", f.model(i)+"\n")
}

// amdFiles is kfdFiles, and what AMD's driver counts: errors and memory.
func (f *Fake) amdFiles(t fakeTree, i int, dir string) {
	f.kfdFiles(t, i, dir)
	t.put(dir+"/ras/umc_err_count", fmt.Sprintf("ue: %d\nce: 0\n", f.spec.fault("ecc-uncorrectable", i, "value", 0)))
	t.put(dir+"/mem_info_vram_total", fmt.Sprintf("%d\n", f.memoryMiB(i)<<20))
	t.put(dir+"/mem_info_vram_used", fmt.Sprintf("%d\n", f.spec.fault("busy", i, "mib", fakeUsedMiB)<<20))
}

// gaudiFiles is an entry of the class accel, which links to the PCI device, and its nodes.
func (f *Fake) gaudiFiles(t fakeTree, i int, dir string) {
	for _, name := range []string{"accel", "accel_controlD"} {
		t.link(fmt.Sprintf("sys/class/accel/%s%d/device", name, i), "../../../"+fakeAddress(i))
		f.deviceNode(t, i, "accel/"+name+"#", i)
	}
	t.put(dir+"/device", gaudiDevice+"\n")
}
