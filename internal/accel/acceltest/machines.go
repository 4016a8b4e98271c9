package acceltest

import "fmt"

// PCI returns one device of the bus as sysfs shows it: a link to a folder with files and the link to its driver.
func PCI(address, vendor, class, driver string) Tree {
	dir := "sys/devices/pci0000:00/" + address
	t := Tree{
		"sys/bus/pci/devices/" + address: "-> ../../../devices/pci0000:00/" + address,
		dir + "/vendor":                  vendor + "\n",
		dir + "/class":                   class + "\n",
		dir + "/numa_node":               "-1\n",
	}
	if driver != "" {
		t[dir+"/driver"] = "-> ../../../bus/pci/drivers/" + driver
	}
	return t
}

// Proc returns what the driver says of a GPU, in the driver's own layout.
func Proc(address, uuid string, minor int) Tree {
	return Tree{"proc/driver/nvidia/gpus/" + address + "/information": fmt.Sprintf(
		"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 170\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.74.00.01\nBus Type: \t PCIe\n"+
			"DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t 550.54.15\n"+
			"GPU Excluded:\t No\n",
		uuid, address, minor)}
}

// Parts of a machine with NVIDIA GPUs.
var (
	Control = Tree{"dev/nvidiactl": "node", "dev/nvidia-uvm": "node", "dev/null": "node", "dev/nvidia-caps/nvidia-cap1": "node"}
	Bridge  = PCI("0000:00:00.0", "0x8086", "0x060000", "")
	GPUA    = PCI("0000:1b:00.0", "0x10de", "0x030200", "nvidia").With(Proc("0000:1b:00.0", "GPU-a", 1))
	GPUB    = PCI("0000:43:00.0", "0x10de", "0x030000", "nvidia").With(Proc("0000:43:00.0", "GPU-b", 0))
	// Domain 1 comes after domain 0, and 0000:9b after 0000:1b.
	GPUC    = PCI("0001:03:00.0", "0x10de", "0x030200", "nvidia").With(Proc("0001:03:00.0", "GPU-c", 2))
	AllOpen = Tree{"dev/nvidia0": "node", "dev/nvidia1": "node", "dev/nvidia2": "node"}
)

// Information is the file of what the driver says of a GPU.
func Information(address string) string { return "proc/driver/nvidia/gpus/" + address + "/information" }

// DRI returns the folder that a driver makes for the card and the render node of a PCI device, and the node itself.
func DRI(address string, minor int) Tree {
	dir := "sys/devices/pci0000:00/" + address + "/drm/"
	return Tree{
		dir + "card0/dev": "226:0\n", dir + fmt.Sprintf("renderD%d/dev", minor): fmt.Sprintf("226:%d\n", minor),
		fmt.Sprintf("dev/dri/renderD%d", minor): "node",
	}
}

// KFD returns a node of the KFD topology. Its lines, and below the values, are those of real machines in
// ROCm/k8s-device-plugin, testdata/topo* (ed764684).
func KFD(number, vendor, simds, location, minor int, id uint64) Tree {
	return Tree{fmt.Sprintf("sys/class/kfd/kfd/topology/nodes/%d/properties", number): fmt.Sprintf(
		"cpu_cores_count 0\nsimd_count %d\nmem_banks_count 1\nvendor_id %d\ndevice_id 29857\nlocation_id %d\ndomain 0\n"+
			"drm_render_minor %d\nhive_id 15188982192727901047\nunique_id %d\nnum_xcc 1\n",
		simds, vendor, location, minor, id)}
}

// AccelClass returns an entry of a device class with the link to its PCI device.
func AccelClass(class, name, address string) Tree {
	return Tree{"sys/class/" + class + "/" + name + "/device": "-> ../../../" + address}
}

// Nodes returns device nodes that may be used, by their names below /dev.
func Nodes(names ...string) Tree {
	t := Tree{}
	for _, n := range names {
		t["dev/"+n] = "node"
	}
	return t
}

// Machines of other vendors, and a processor as KFD shows it.
var (
	CPUNode = KFD(0, 0, 0, 0, 0, 0)
	// The nodes of an MI210 machine are not in PCI order; the runtime numbers by node.
	MI210 = Nodes("kfd", "dri/renderD128", "dri/renderD129").With(Bridge, CPUNode,
		KFD(2, 0x1002, 416, 25344, 128, 1801979520617338022), KFD(3, 0x1002, 416, 17152, 129, 5847760019078012339),
		PCI("0000:43:00.0", "0x1002", "0x038000", "amdgpu"), PCI("0000:63:00.0", "0x1002", "0x038000", "amdgpu"))
	// The divisions of an MI300X have their number in the location's function bits and are one function of the bus.
	MI300CPX = Nodes("kfd", "dri/renderD128", "dri/renderD129", "dri/renderD130", "dri/renderD136").With(Bridge, CPUNode,
		KFD(2, 0x1002, 152, 1280, 128, 16404946649897475633), KFD(3, 0x1002, 152, 1281, 129, 16404946649897475633),
		KFD(4, 0x1002, 152, 1282, 130, 16404946649897475633), KFD(10, 0x1002, 152, 9984, 136, 2472748907779728154),
		PCI("0000:05:00.0", "0x1002", "0x120000", "amdgpu"), PCI("0000:27:00.0", "0x1002", "0x120000", "amdgpu"))
	Hygon = Nodes("kfd", "mkfd", "dri/renderD128", "dri/renderD129").With(CPUNode,
		PCI("0000:00:00.0", "0x1d94", "0x060000", ""), PCI("0000:00:00.2", "0x1d94", "0x108000", "ccp"),
		PCI("0000:03:00.1", "0x1d94", "0x0c0330", "xhci_hcd"),
		PCI("0000:05:00.0", "0x1d94", "0x038000", "hydcu"), PCI("0000:06:00.0", "0x1d94", "0x038000", "hydcu"),
		KFD(1, 0x1d94, 240, 0x500, 128, 0), KFD(2, 0x1d94, 240, 0x600, 129, 0))
	Davinci = Nodes("davinci_manager", "devmm_svm", "hisi_hdc")
	Ascend  = Davinci.With(Bridge, Nodes("davinci0", "davinci1"),
		PCI("0000:01:00.0", "0x19e5", "0x171100", "hibmc-drm"), PCI("0000:02:00.0", "0x19e5", "0x030000", "hibmc-drm"),
		PCI("0000:82:00.0", "0x19e5", "0x120000", "devdrv_device_driver"),
		PCI("0000:c1:00.0", "0x19e5", "0x120000", "devdrv_device_driver"))
	MetaX = Nodes("mxcd", "mxgd").With(Bridge,
		PCI("0000:08:00.0", "0x9999", "0x038000", "metax"), DRI("0000:08:00.0", 130), PCI("0000:09:00.0", "0x9999", "0x038000", "metax"),
		DRI("0000:09:00.0", 131))
	Gaudi = Bridge.With(Nodes("accel/accel0", "accel/accel_controlD0", "accel/accel1", "accel/accel2"),
		PCI("0000:33:00.0", "0x1da3", "0x120000", "habanalabs"), PCI("0000:34:00.0", "0x1da3", "0x120000", "habanalabs"),
		AccelClass("accel", "accel0", "0000:34:00.0"), AccelClass("accel", "accel_controlD0", "0000:34:00.0"),
		AccelClass("accel", "accel1", "0000:33:00.0"), AccelClass("accel", "accel2", "0000:00:0b.0"),
		PCI("0000:00:0b.0", "0x8086", "0x120000", "intel_vpu")).With(
		Tree{"sys/devices/pci0000:00/0000:33:00.0/device": "0x1060\n", "sys/devices/pci0000:00/0000:34:00.0/device": "0x1060\n"})
	Arc = Bridge.With(PCI("0000:00:02.0", "0x8086", "0x030000", "i915"), DRI("0000:00:02.0", 128),
		PCI("0000:03:00.0", "0x8086", "0x030000", "xe"), DRI("0000:03:00.0", 129), PCI("0000:04:00.0", "0x8086", "0x038000", "i915"),
		DRI("0000:04:00.0", 130))
	Cambricon = Nodes("cambricon_ctl", "cambricon_dev0", "cambricon_dev1", "cambricon_ipcm0", "cambricon_ipcm1").With(Bridge,
		PCI("0000:65:00.0", "0xcabc", "0x120000", "cambricon-pci-drv"), PCI("0000:66:00.0", "0xcabc", "0x120000", "cambricon-pci-drv"))
	MThreads = Nodes("mtgpu.0", "mtgpu1").With(Bridge, PCI("0000:01:00.0", "0x1ed5", "0x030000", "mtgpu"),
		PCI("0000:02:00.0", "0x1ed5", "0x030200", "mtgpu"))
	Iluvatar = Nodes("itrctl", "iluvatar0").With(Bridge, PCI("0000:01:00.0", "0x1e3e", "0x030200", "iluvatar"))
	THead    = Nodes("alixpu", "alixpu_ctl", "alixpu_ppu0", "alixpu_ppu10", "alixpu_ppu2").With(Bridge)
)

// VendorTrees are the whole machines above.
var VendorTrees = map[string]Tree{
	"amd": MI210, "amd divided": MI300CPX, "hygon": Hygon, "ascend": Ascend, "metax": MetaX, "gaudi": Gaudi,
	"intel": Arc, "cambricon": Cambricon,
	"mthreads": MThreads, "iluvatar": Iluvatar, "thead": THead, "nvidia": Control.With(Bridge, GPUA, GPUB, AllOpen),
}
