package accel

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// kfdNodes is the topology that the kernel driver KFD shows of the compute devices of AMD and Hygon.
const kfdNodes = "sys/class/kfd/kfd/topology/nodes"

// kfdNode is one compute device. The divisions of an MI300 are a node each.
type kfdNode struct {
	number   int
	vendor   string // PCI vendor id, "0x1002"
	at       pciAddress
	render   int // number of its render node
	uniqueID uint64
}

// parseKFDNode reads lines "key value" with decimal numbers; ok is false where the node is no GPU.
func parseKFDNode(text string) (n kfdNode, ok bool) {
	values := map[string]uint64{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}
		if v, err := strconv.ParseUint(f[1], 10, 64); err == nil {
			values[f[0]] = v
		}
	}
	const maxMinor = 1<<20 - 1 // Linux's own limit
	render, location := values["drm_render_minor"], values["location_id"]
	if values["simd_count"] == 0 || render == 0 || render > maxMinor {
		return n, false
	}
	return kfdNode{
		vendor:   fmt.Sprintf("0x%04x", values["vendor_id"]),
		at:       pciAddress{values["domain"], location >> 8 & 0xff, location >> 3 & 0x1f, location & 7},
		render:   int(render),
		uniqueID: values["unique_id"],
	}, true
}

// readKFD returns the GPUs of the topology in its order, in which the runtime numbers them. A container cannot read the
// nodes of devices that its cgroup withholds.
func readKFD(root Root) []kfdNode {
	entries, _ := fs.ReadDir(root, kfdNodes) // no folder: no driver
	var list []kfdNode
	for _, e := range entries {
		number, ok := number(e.Name(), "")
		if !ok {
			continue
		}
		text, err := readText(root, path.Join(kfdNodes, e.Name(), "properties"))
		if err != nil {
			continue
		}
		if n, ok := parseKFDNode(text); ok {
			n.number = number
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b kfdNode) int { return cmp.Compare(a.number, b.number) })
	return list
}

// findKFD counts the nodes of the KFD topology whose render node is accessible: all nodes stay visible in a container.
func findKFD(v *vendor, bus *pciBus) Family {
	f := Family{}
	pci := bus.of(v)
	if len(pci) == 0 && bus.any {
		return f
	}
	divisions := map[pciAddress]int{}
	nodes := slices.DeleteFunc(readKFD(bus.root), func(n kfdNode) bool { return !slices.Contains(v.pciIDs, n.vendor) })
	for i := range nodes {
		nodes[i].at = whole(bus, nodes[i].at)
		divisions[nodes[i].at]++
	}
	seen := map[pciAddress]int{}
	boards := map[pciAddress]Device{}
	for _, n := range nodes {
		d, ok := boards[n.at]
		if !ok {
			d = newDevice(v.name)
			if bus.has(n.at) {
				d = bus.describe(n.at.String(), v.name, v.drivers)
			}
			d.BusID = n.at.String()
			d.Model, _ = readText(bus.root, path.Join(pciDevices, d.BusID, "product_name")) // of the board's memory; often none
			boards[n.at] = d
		}
		if n.uniqueID != 0 {
			d.UUID = fmt.Sprintf("GPU-%016x", n.uniqueID)
		}
		seen[n.at]++
		if divisions[n.at] > 1 {
			d.Notes = append(slices.Clone(d.Notes), fmt.Sprintf("partition %d of %d", seen[n.at], divisions[n.at]))
		}
		d.takeNode(bus.root, node(v.patterns[0], n.render), n.render)
		f.sort(d)
	}
	for _, p := range pci {
		if seen[p.at] > 0 {
			continue
		}
		d := bus.describe(p.address, v.name, v.drivers)
		if d.WhyNot == "" {
			d.WhyNot = "the driver lists it for no computing, or not for this process"
		}
		f.sort(d)
	}
	v.conclude(bus.root, &f)
	return f
}

// whole returns the address of the device that has a node's location. In the divided modes of an MI300 the lowest bits
// are the number of the division and not a function of the bus (seen in the topologies of ROCm/k8s-device-plugin).
func whole(bus *pciBus, at pciAddress) pciAddress {
	first := at
	first.function = 0
	if at.function != 0 && !bus.has(at) && bus.has(first) {
		return first
	}
	return at
}
