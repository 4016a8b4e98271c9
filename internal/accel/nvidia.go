package accel

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	pciDevices = "sys/bus/pci/devices"
	nvidiaGPUs = "proc/driver/nvidia/gpus"

	nvidiaPCIVendor = "0x10de"
)

// pciVendors are the other makers of accelerators by PCI vendor id. They are named in Why, so that nobody wonders why
// "auto" counted CPUs on their machines.
var pciVendors = map[string]string{
	"0x1002": "AMD", "0x9999": "MetaX", "0x19e5": "Huawei Ascend", "0x1da3": "Intel Gaudi", "0xcabc": "Cambricon",
	"0x1ed5": "Moore Threads", "0x1d94": "Hygon", "0x1e3e": "Iluvatar", "0x1ded": "T-Head",
}

// pciAddress is a PCI address as the kernel prints it: domain:bus:device.function, all hexadecimal.
type pciAddress struct{ domain, bus, device, function uint64 }

func parsePCIAddress(s string) (pciAddress, bool) {
	var parts [4]uint64
	head, function, ok := strings.Cut(s, ".")
	fields := append(strings.Split(head, ":"), function)
	if !ok || len(fields) != len(parts) {
		return pciAddress{}, false
	}
	for i, f := range fields {
		v, err := strconv.ParseUint(f, 16, 32)
		if err != nil {
			return pciAddress{}, false
		}
		parts[i] = v
	}
	return pciAddress{parts[0], parts[1], parts[2], parts[3]}, true
}

func (a pciAddress) compare(b pciAddress) int {
	return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.bus, b.bus), cmp.Compare(a.device, b.device), cmp.Compare(a.function, b.function))
}

// gpuInfo is what the driver says of one GPU in /proc/driver/nvidia/gpus/<address>/information.
type gpuInfo struct {
	model, uuid string
	minor       int // -1 where it does not tell
	excluded    bool
}

// parseGPUInfo reads lines of the form "Key:<tabs>Value". Anything else is skipped: drivers add keys.
func parseGPUInfo(text string) gpuInfo {
	info := gpuInfo{minor: -1}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Model":
			info.model = value
		case "GPU UUID":
			// A GPU that nobody has initialised since boot shows question marks.
			if !strings.Contains(value, "?") {
				info.uuid = value
			}
		case "Device Minor":
			if n, err := strconv.ParseUint(value, 10, 16); err == nil {
				info.minor = int(n)
			}
		case "GPU Excluded", "Blacklisted": // the older drivers' word
			info.excluded = strings.EqualFold(value, "yes")
		}
	}
	return info
}

// nvidiaScan collects the devices and the sentences about them.
type nvidiaScan struct {
	root    Root
	devices []Device
	why     []string
}

func (s *nvidiaScan) note(format string, args ...any) {
	s.why = append(s.why, fmt.Sprintf(format, args...))
}

// findNVIDIA counts the NVIDIA GPUs in /sys/bus/pci whose device node is accessible. /proc/driver/nvidia/gpus is never
// counted: in a container it may list the host's GPUs. Where /sys shows no PCI device at all (gVisor), the accessible
// device nodes are counted.
func findNVIDIA(root Root) nvidiaScan {
	s := nvidiaScan{root: root}
	gpus, anyPCI := s.pciGPUs()
	nodes := s.nodes()
	if len(gpus) == 0 && (anyPCI || len(nodes) == 0) {
		s.note("no NVIDIA GPU was found in /%s", pciDevices)
		return s
	}
	if err := root.Access("dev/nvidiactl"); err != nil {
		s.note("no NVIDIA GPU can be used: /dev/nvidiactl %s", cause(err))
		return s
	}
	if len(gpus) == 0 {
		s.fromNodes(nodes)
		s.note("/sys shows no PCI devices: counted %s that this process may use", plural(len(s.devices), "/dev/nvidia* node"))
	} else {
		s.join(gpus, nodes)
		s.note("found %s with a usable device node", plural(len(s.devices), "NVIDIA GPU"))
	}
	slices.SortStableFunc(s.devices, func(a, b Device) int {
		x, okX := parsePCIAddress(a.BusID)
		y, okY := parsePCIAddress(b.BusID)
		if okX && okY {
			return x.compare(y)
		}
		return cmp.Or(strings.Compare(b.BusID, a.BusID), cmp.Compare(a.Minor, b.Minor)) // those without an address last
	})
	for i := range s.devices {
		s.devices[i].Index = i
	}
	s.noteMIG()
	if err := root.Access("dev/nvidia-uvm"); len(s.devices) > 0 && err != nil {
		s.note("/dev/nvidia-uvm %s: CUDA may not start", cause(err))
	}
	return s
}

// pciGPUs returns the NVIDIA GPUs on the PCI bus that the NVIDIA driver holds, in PCI order and with Minor -1 where the
// driver does not tell it, and whether there is any PCI device at all.
func (s *nvidiaScan) pciGPUs() (gpus []Device, anyPCI bool) {
	entries, err := fs.ReadDir(s.root, pciDevices)
	if err != nil {
		return nil, false
	}
	type found struct {
		Device
		at pciAddress
	}
	var list []found
	others := map[string]int{}
	for _, e := range entries {
		at, ok := parsePCIAddress(e.Name())
		if !ok {
			continue
		}
		anyPCI = true
		dir := path.Join(pciDevices, e.Name())
		vendor, _ := readText(s.root, path.Join(dir, "vendor"))
		class, _ := readText(s.root, path.Join(dir, "class"))
		if name, ok := pciVendors[vendor]; ok && hasAnyPrefix(class, "0x03", "0x0b", "0x12") {
			others[name]++
		}
		// VGA controllers and 3D controllers; NVSwitch bridges are 0x0680, the audio part of a card 0x0403.
		if vendor != nvidiaPCIVendor || !hasAnyPrefix(class, "0x0300", "0x0302") {
			continue
		}
		if d, ok := s.pciGPU(e.Name(), dir); ok {
			list = append(list, found{d, at})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		s.note("%s not counted: this version detects NVIDIA only", plural(others[name], name+" device"))
	}
	slices.SortFunc(list, func(a, b found) int { return a.at.compare(b.at) })
	for _, f := range list {
		gpus = append(gpus, f.Device)
	}
	return gpus, anyPCI
}

// pciGPU describes one GPU of the bus; ok is false, and a note says why, where it is not for us.
func (s *nvidiaScan) pciGPU(address, dir string) (d Device, ok bool) {
	text, infoErr := readText(s.root, path.Join(nvidiaGPUs, address, "information"))
	info := parseGPUInfo(text)
	link, err := s.root.ReadLink(path.Join(dir, "driver"))
	switch driver := path.Base(link); {
	case err != nil && infoErr != nil:
		s.note("GPU %s is not counted: no driver is bound to it", address)
		return Device{}, false
	case err == nil && driver != "nvidia":
		s.note("GPU %s is not counted: it is bound to the driver %s", address, driver)
		return Device{}, false
	case info.excluded:
		s.note("GPU %s is not counted: the driver excludes it", address)
		return Device{}, false
	}
	d = Device{Vendor: "nvidia", Model: info.model, UUID: info.uuid, BusID: address, Minor: info.minor, NUMANode: -1}
	if text, err := readText(s.root, path.Join(dir, "numa_node")); err == nil {
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			d.NUMANode = n
		}
	}
	return d, true
}

// nodes returns the numbers of the /dev/nvidia<N> that this process may read and write, ascending.
func (s *nvidiaScan) nodes() []int {
	entries, _ := fs.ReadDir(s.root, "dev") // a missing /dev has no nodes
	var minors []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), "nvidia")
		n, err := strconv.ParseUint(digits, 10, 16)
		if !ok || err != nil || digits != strconv.FormatUint(n, 10) || s.root.Access("dev/"+e.Name()) != nil {
			continue
		}
		minors = append(minors, int(n))
	}
	slices.Sort(minors)
	return minors
}

// join keeps the GPUs whose node is among nodes. GPUs whose minor the driver does not tell take the nodes that are left,
// in order; where fewer are left than GPUs, nobody can say whose they are, and they count without a PCI address.
func (s *nvidiaScan) join(gpus []Device, nodes []int) {
	left := slices.Clone(nodes)
	var unknown []Device
	for _, d := range gpus {
		if d.Minor < 0 {
			unknown = append(unknown, d)
			continue
		}
		left = slices.DeleteFunc(left, func(n int) bool { return n == d.Minor })
		node := fmt.Sprintf("dev/nvidia%d", d.Minor)
		if err := s.root.Access(node); err != nil {
			s.note("GPU %s is not counted: /%s %s", d.BusID, node, cause(err))
			continue
		}
		s.devices = append(s.devices, d)
	}
	if len(unknown) == 0 {
		return
	}
	if len(left) < len(unknown) {
		s.note("the driver tells no device number for %s and %s may be used: these count, without an address",
			plural(len(unknown), "GPU"), plural(len(left), "other /dev/nvidia* node"))
		for _, n := range left {
			s.devices = append(s.devices, Device{Vendor: "nvidia", Minor: n, NUMANode: -1})
		}
		return
	}
	s.note("the driver tells no device number for %s: matched with the /dev/nvidia* nodes in order", plural(len(unknown), "GPU"))
	for i, d := range unknown {
		d.Minor = left[i]
		s.devices = append(s.devices, d)
	}
}

// fromNodes makes a device of every node, and describes it where the driver lists it.
func (s *nvidiaScan) fromNodes(nodes []int) {
	entries, _ := fs.ReadDir(s.root, nvidiaGPUs) // not there in a sandbox
	for _, n := range nodes {
		d := Device{Vendor: "nvidia", Minor: n, NUMANode: -1}
		for _, e := range entries {
			text, err := readText(s.root, path.Join(nvidiaGPUs, e.Name(), "information"))
			if info := parseGPUInfo(text); err == nil && info.minor == n {
				d.Model, d.UUID, d.BusID = info.model, info.uuid, e.Name()
			}
		}
		s.devices = append(s.devices, d)
	}
}

// noteMIG says which GPUs are divided into instances. They count as one device each, as PyTorch counts them: a CUDA
// process can use one instance of a GPU unless a mask names others.
func (s *nvidiaScan) noteMIG() {
	for _, d := range s.devices {
		entries, _ := fs.ReadDir(s.root, fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig", d.Minor)) // no folder: no MIG
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "gi") {
				s.note("GPU %d is divided into MIG instances: it counts as one device", d.Index)
				break
			}
		}
	}
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}
