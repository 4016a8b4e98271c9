package accel

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"muster/internal/wording"
)

const nvidiaGPUs = "proc/driver/nvidia/gpus"

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
	Family
	v    *vendor
	bus  *pciBus
	root Root
}

// findNVIDIA counts the NVIDIA GPUs in /sys/bus/pci whose device node is accessible. /proc/driver/nvidia/gpus is never
// counted: in a container it may list the host's GPUs. Where /sys shows no PCI device at all (gVisor), the accessible
// device nodes are counted.
func findNVIDIA(v *vendor, bus *pciBus) Family {
	s := nvidiaScan{v: v, bus: bus, root: bus.root}
	gpus := s.pciGPUs()
	nodes := s.usableNodes()
	if len(gpus) == 0 && (bus.any || len(nodes) == 0) {
		s.note("no NVIDIA GPU was found in /%s", pciDevices)
		return s.Family
	}
	if why := v.missing(bus.root); why != "" {
		s.note("no NVIDIA GPU can be used: %s", why)
		for _, d := range gpus {
			s.refuse(d, why)
		}
		return s.Family
	}
	if len(gpus) == 0 {
		s.fromNodes(nodes)
		s.note("/sys shows no PCI devices: counted %s that this process may use", wording.Plural(len(s.Devices), "/dev/nvidia* node"))
	} else {
		s.join(gpus, nodes)
		s.note("found %s with a usable device node", wording.Plural(len(s.Devices), "NVIDIA GPU"))
	}
	slices.SortStableFunc(s.Devices, func(a, b Device) int {
		x, okX := parsePCIAddress(a.BusID)
		y, okY := parsePCIAddress(b.BusID)
		if okX && okY {
			return x.compare(y)
		}
		return cmp.Or(strings.Compare(b.BusID, a.BusID), cmp.Compare(a.Minor, b.Minor)) // those without an address last
	})
	for i := range s.Devices {
		d := &s.Devices[i]
		d.Index, d.Node = i, fmt.Sprintf("/dev/nvidia%d", d.Minor)
	}
	s.findMIG()
	if err := s.root.Access("dev/nvidia-uvm"); len(s.Devices) > 0 && err != nil {
		s.note("/dev/nvidia-uvm %s: CUDA may not start", cause(err))
	}
	return s.Family
}

func (s *nvidiaScan) refuse(d Device, why string) {
	d.WhyNot = why
	s.Unusable = append(s.Unusable, d)
}

// pciGPUs returns the NVIDIA GPUs on the PCI bus that the NVIDIA driver holds, in PCI order and with Minor -1 where the
// driver does not tell it.
func (s *nvidiaScan) pciGPUs() []Device {
	var gpus []Device
	for _, p := range s.bus.of(s.v) {
		d := s.pciGPU(p)
		if d.WhyNot == "" {
			gpus = append(gpus, d)
			continue
		}
		s.note("GPU %s is not counted: %s", d.BusID, d.WhyNot)
		s.Unusable = append(s.Unusable, d)
	}
	return gpus
}

// pciGPU describes one GPU of the bus.
func (s *nvidiaScan) pciGPU(p pciDevice) Device {
	d := s.bus.describe(p.address, s.v.name, s.v.drivers)
	text, err := readText(s.root, path.Join(nvidiaGPUs, p.address, "information"))
	info := parseGPUInfo(text)
	d.Model, d.UUID, d.Minor = info.model, info.uuid, info.minor
	switch _, virtual := s.root.Lstat(path.Join(p.dir(), "physfn")); {
	case err == nil && d.Driver == "":
		d.Driver, d.WhyNot = s.v.drivers[0], "" // its folder in /proc is the driver's
	case err != nil && d.WhyNot == "" && virtual == nil:
		d.WhyNot = "it is a virtual function that the driver gives away" // to virtual machines; it has no device node
	}
	if info.excluded && d.WhyNot == "" {
		d.WhyNot = "the driver excludes it"
	}
	return d
}

// usableNodes returns the numbers of the /dev/nvidia<N> that this process may read and write, ascending.
func (s *nvidiaScan) usableNodes() []int {
	var minors []int
	for _, n := range s.v.nodes(s.bus) {
		if n.whyNot == "" {
			minors = append(minors, n.n)
		}
	}
	return minors
}

// join keeps the GPUs whose node is among nodes. GPUs whose minor the driver does not tell take the nodes that are
// left, in order; where fewer are left than GPUs, nobody can say whose they are, and they count without a PCI address.
func (s *nvidiaScan) join(gpus []Device, nodes []int) {
	left := slices.Clone(nodes)
	var unknown []Device
	for _, d := range gpus {
		if d.Minor < 0 {
			unknown = append(unknown, d)
			continue
		}
		left = slices.DeleteFunc(left, func(n int) bool { return n == d.Minor })
		d.takeNode(s.root, node(s.v.patterns[0], d.Minor), d.Minor)
		if d.WhyNot != "" {
			s.note("GPU %s is not counted: %s", d.BusID, d.WhyNot)
			s.Unusable = append(s.Unusable, d)
			continue
		}
		s.Devices = append(s.Devices, d)
	}
	if len(unknown) == 0 {
		return
	}
	if len(left) < len(unknown) {
		s.note("the driver tells no device number for %s and %s may be used: these count, without an address",
			wording.Plural(len(unknown), "GPU"), wording.Plural(len(left), "other /dev/nvidia* node"))
		for _, n := range left {
			d := newDevice(s.v.name)
			d.Minor = n
			s.Devices = append(s.Devices, d)
		}
		return
	}
	s.note("the driver tells no device number for %s: matched with the /dev/nvidia* nodes in order", wording.Plural(len(unknown), "GPU"))
	for i, d := range unknown {
		d.Minor = left[i]
		s.Devices = append(s.Devices, d)
	}
}

// fromNodes makes a device of every node, and describes it where the driver lists it.
func (s *nvidiaScan) fromNodes(nodes []int) {
	entries, _ := fs.ReadDir(s.root, nvidiaGPUs) // not there in a sandbox
	for _, n := range nodes {
		d := newDevice(s.v.name)
		d.Minor = n
		for _, e := range entries {
			text, err := readText(s.root, path.Join(nvidiaGPUs, e.Name(), "information"))
			if info := parseGPUInfo(text); err == nil && info.minor == n {
				d.Model, d.UUID, d.BusID = info.model, info.uuid, e.Name()
			}
		}
		s.Devices = append(s.Devices, d)
	}
}
