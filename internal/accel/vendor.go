package accel

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"muster/internal/wording"
)

// How what is known of a vendor was checked.
const (
	byDocumentation = "documentation"
	byFixture       = "vendor's fixture" // file trees of real machines that the vendor publishes
	byDevice        = "real device"      // scripts/gpu-checks.sh passed on one, docs/performance.md says which
)

// vendor is all that detection needs to know of a maker of accelerators. Sources, unless a line says otherwise: the
// vendors' Kubernetes device plugins and documentation, and gpustack/runtime, as read in 2026.
type vendor struct {
	name     string // the word that users say, such as "nvidia"
	title    string // what one device is called, such as "NVIDIA GPU"
	backend  string // PyTorch's device type
	verified string

	pciIDs  []string // PCI vendor ids
	classes []string // prefixes of PCI classes
	devices []string // PCI device ids, nil for all
	drivers []string // kernel drivers that serve the devices, nil for any but foreignDrivers

	needs    []string // device nodes, below /dev, without which no device works
	wants    []string // those that may be missing, which is worth a sentence
	patterns []string // names below /dev of the nodes of one device, where # stands for its number

	find    func(v *vendor, bus *pciBus) Family
	runtime string // the variable that a container runtime reads; it has been applied, /dev shows the effect
	masks   []string
	see     func(v *vendor, lookup lookup, devices []Device) (view, error)
	// alone returns for each visible device the variables by which a process sees it and no other.
	alone func(f Family, lookup lookup) ([]map[string]string, error)
}

type lookup = func(string) (string, bool)

// anyClass are the PCI classes that an accelerator may have: display controller, processor, processing accelerator.
var anyClass = []string{"0x03", "0x0b", "0x12"}

// vendors lists all in the order in which "auto" looks at them.
var vendors = []*vendor{
	{
		name: "nvidia", title: "NVIDIA GPU", backend: "cuda", verified: byDevice,
		// VGA controllers and 3D controllers; NVSwitch bridges are 0x0680, the audio part of a card 0x0403.
		pciIDs: []string{"0x10de"}, classes: []string{"0x0300", "0x0302"}, drivers: []string{"nvidia"},
		needs: []string{"nvidiactl"}, wants: []string{"nvidia-uvm"}, patterns: []string{"nvidia#"},
		find: findNVIDIA, runtime: "NVIDIA_VISIBLE_DEVICES", masks: []string{"CUDA_VISIBLE_DEVICES"}, see: seeCUDA, alone: aloneCUDA,
	},
	{
		name: "metax", title: "MetaX GPU", backend: "cuda", verified: byDocumentation,
		pciIDs: []string{"0x9999"}, classes: anyClass,
		needs: []string{"mxcd"}, patterns: []string{"dri/renderD#"},
		find: findRendering, masks: []string{"MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}, see: seeMetaX,
		alone: aloneByNumber("MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
	},
	{
		// The layout of the KFD topology was checked with testdata/topo* of ROCm/k8s-device-plugin (MI210, MI300X,
		// MI308X).
		name: "amd", title: "AMD GPU", backend: "cuda", verified: byFixture,
		pciIDs: []string{"0x1002"}, classes: anyClass, drivers: []string{"amdgpu"},
		needs: []string{"kfd"}, patterns: []string{"dri/renderD#"},
		find: findKFD, runtime: "AMD_VISIBLE_DEVICES",
		masks: []string{"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}, see: seeROCm,
		alone: aloneROCm,
	},
	{
		// Parts of Hygon's CPUs have the same vendor id and none of these classes.
		name: "hygon", title: "Hygon DCU", backend: "cuda", verified: byDocumentation,
		pciIDs: []string{"0x1d94"}, classes: anyClass,
		needs: []string{"kfd"}, wants: []string{"mkfd"}, patterns: []string{"dri/renderD#"},
		// PyTorch for DCUs is a ROCm build: it counts by the same rules as AMD's.
		find: findKFD, runtime: "HYGON_VISIBLE_DEVICES",
		masks: []string{"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}, see: seeROCm, alone: aloneROCm,
	},
	{
		name: "ascend", title: "Ascend NPU", backend: "npu", verified: byDocumentation,
		pciIDs: []string{"0x19e5"}, classes: []string{"0x12"}, // Huawei's on-board graphics is 0x0300
		needs: []string{"davinci_manager", "devmm_svm", "hisi_hdc"}, patterns: []string{"davinci#"},
		find: findNumbered, runtime: "ASCEND_VISIBLE_DEVICES", masks: []string{"ASCEND_RT_VISIBLE_DEVICES"}, see: seeAscend,
		alone: aloneByNumber("ASCEND_RT_VISIBLE_DEVICES"),
	},
	{
		name: "cambricon", title: "Cambricon MLU", backend: "mlu", verified: byDocumentation,
		pciIDs: []string{"0xcabc"}, classes: anyClass,
		wants: []string{"cambricon_ctl"}, patterns: []string{"cambricon_dev#"},
		find: findNumbered, runtime: "CAMBRICON_VISIBLE_DEVICES", masks: []string{"MLU_VISIBLE_DEVICES"}, see: seeNumbers,
		alone: aloneByNumber("MLU_VISIBLE_DEVICES"),
	},
	{
		name: "mthreads", title: "Moore Threads GPU", backend: "musa", verified: byDocumentation,
		pciIDs: []string{"0x1ed5"}, classes: anyClass,
		patterns: []string{"mtgpu.#", "mtgpu#"},
		find:     findNumbered, runtime: "MTHREADS_VISIBLE_DEVICES", masks: []string{"MUSA_VISIBLE_DEVICES"}, see: seeNumbers,
		alone: aloneByNumber("MUSA_VISIBLE_DEVICES"),
	},
	{
		name: "iluvatar", title: "Iluvatar GPU", backend: "cuda", verified: byDocumentation,
		pciIDs: []string{"0x1e3e"}, classes: anyClass,
		wants: []string{"itrctl"}, patterns: []string{"iluvatar#"},
		find: findNumbered, runtime: "IX_VISIBLE_DEVICES", masks: []string{"CUDA_VISIBLE_DEVICES"}, see: seeCUDA,
		alone: aloneByNumber("CUDA_VISIBLE_DEVICES"),
	},
	{
		name: "thead", title: "T-Head PPU", backend: "cuda", verified: byDocumentation,
		pciIDs: []string{"0x1ded"}, classes: anyClass,
		wants: []string{"alixpu", "alixpu_ctl"}, patterns: []string{"alixpu_ppu#"},
		find: findNumbered, runtime: "NVIDIA_VISIBLE_DEVICES", masks: []string{"CUDA_VISIBLE_DEVICES"}, see: seeCUDA,
		alone: aloneByNumber("CUDA_VISIBLE_DEVICES"),
	},
	{
		name: "gaudi", title: "Gaudi HPU", backend: "hpu", verified: byDocumentation,
		pciIDs: []string{"0x1da3"}, classes: anyClass,
		devices: []string{
			"0x1000", "0x1001", "0x1010", "0x1011", "0x1020", "0x1021", "0x1030", "0x1060", "0x1061", "0x1062", "0x1063",
		},
		patterns: []string{"accel/accel#", "hl#"},
		find:     findGaudi, runtime: "HABANA_VISIBLE_DEVICES", masks: []string{"HABANA_VISIBLE_MODULES", "HLS_MODULE_ID"}, see: seeUnset,
		alone: aloneGaudi,
	},
	{
		name: "intel", title: "Intel GPU", backend: "xpu", verified: byDocumentation,
		pciIDs: []string{"0x8086"}, classes: []string{"0x0300", "0x0380"}, drivers: []string{"i915", "xe"},
		patterns: []string{"dri/renderD#"},
		find:     findIntel, masks: []string{"ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "ZE_FLAT_DEVICE_HIERARCHY"}, see: seeIntel,
		alone: aloneIntel,
	},
}

// node returns the name below Root of the device's node number n, of the given pattern.
func node(pattern string, n int) string {
	return "dev/" + strings.Replace(pattern, "#", fmt.Sprint(n), 1)
}

// missing says which of the nodes that every device needs cannot be used, "" for none.
func (v *vendor) missing(root Root) string {
	for _, n := range v.needs {
		if err := root.Access("dev/" + n); err != nil {
			return fmt.Sprintf("/dev/%s %s", n, cause(err))
		}
	}
	return ""
}

// sort puts a device where its WhyNot says it belongs.
func (f *Family) sort(d Device) {
	if d.WhyNot == "" {
		d.Index = len(f.Devices)
		f.Devices = append(f.Devices, d)
		return
	}
	f.Unusable = append(f.Unusable, d)
}

func (f *Family) note(format string, args ...any) {
	f.Why = append(f.Why, fmt.Sprintf(format, args...))
}

// conclude says what was found, and of nothing found nothing.
func (v *vendor) conclude(root Root, f *Family) {
	if why := v.missing(root); why != "" && len(f.Devices) > 0 {
		f.note("no %s can be used: %s", v.title, why)
		for _, d := range f.Devices {
			d.Index, d.WhyNot = -1, why
			f.Unusable = append(f.Unusable, d)
		}
		f.Devices = nil
		return
	}
	for _, d := range f.Unusable {
		f.note("%s %s is not counted: %s", v.title, d.place(), d.WhyNot)
	}
	if len(f.Devices) == 0 {
		return
	}
	f.note("found %s with a usable device node", wording.Plural(len(f.Devices), v.title))
	for _, n := range v.wants {
		if err := root.Access("dev/" + n); err != nil {
			f.note("/dev/%s %s: the devices may not start", n, cause(err))
		}
	}
}

// numbered is a device node that bears the number of its device.
type numbered struct {
	n      int
	node   string // "dev/davinci3"
	whyNot string // "" where this process may use it
}

// nodes returns the nodes of v's devices by number. Where two patterns name the same number, the earlier one counts.
func (v *vendor) nodes(bus *pciBus) []numbered {
	var list []numbered
	for _, pattern := range v.patterns {
		dir, prefix := path.Split(strings.TrimSuffix(pattern, "#"))
		for _, name := range bus.names(path.Join("dev", dir)) {
			n, ok := number(name, prefix)
			if !ok || slices.ContainsFunc(list, func(o numbered) bool { return o.n == n }) {
				continue
			}
			found := numbered{n: n, node: node(pattern, n)}
			if err := bus.root.Access(found.node); err != nil {
				found.whyNot = fmt.Sprintf("/%s %s", found.node, cause(err))
			}
			list = append(list, found)
		}
	}
	slices.SortFunc(list, func(a, b numbered) int { return a.n - b.n })
	return list
}

// variables are those that decide which devices a worker sees, and in which order.
func (v *vendor) variables() []string {
	if v.name == "nvidia" {
		return append(slices.Clone(v.masks), "CUDA_DEVICE_ORDER")
	}
	return v.masks
}

// VendorInfo is what is known of how a vendor's devices are found.
type VendorInfo struct {
	Name      string   // the word for it
	Title     string   // what one device is called, such as "NVIDIA GPU"
	Backend   string   // PyTorch's name for its devices
	Verified  string   // how detection was checked: "documentation", "vendor's fixture" or "real device"
	PCIID     string   // the vendor's id on the PCI bus, such as "0x10de"
	Nodes     []string // device nodes, below /dev, that all devices share
	Pattern   string   // name below /dev of the node of one device, where # stands for its number
	Variables []string // variables that decide which devices a worker sees, and in which order
}

// Vendors returns all vendors that are looked for, in the order in which "auto" does.
func Vendors() []VendorInfo {
	all := make([]VendorInfo, len(vendors))
	for i, v := range vendors {
		all[i] = VendorInfo{
			Name: v.name, Title: v.title, Backend: v.backend, Verified: v.verified,
			PCIID: v.pciIDs[0], Nodes: slices.Concat(v.needs, v.wants), Pattern: v.patterns[0], Variables: slices.Clone(v.variables()),
		}
	}
	return all
}
