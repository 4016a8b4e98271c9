package accel

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"muster/internal/wording"
)

// number returns n of a name that is prefix and the decimal n, as the kernel writes it.
func number(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil || digits != strconv.FormatUint(n, 10) {
		return 0, false
	}
	return int(n), true
}

// findNumbered counts the nodes of a vendor of which no file tells the PCI address. Where there are as many nodes as
// PCI devices they are matched in order; a container with a part of the nodes gets devices without an address.
func findNumbered(v *vendor, bus *pciBus) Family {
	f := Family{}
	var served []Device
	for _, p := range bus.of(v) {
		d := bus.describe(p.address, v.name, v.drivers)
		if d.WhyNot != "" {
			f.sort(d)
			continue
		}
		served = append(served, d)
	}
	nodes := v.nodes(bus)
	switch {
	case len(nodes) == 0:
		for _, d := range served {
			d.WhyNot = fmt.Sprintf("there is no /%s", strings.Replace(node(v.patterns[0], 0), "0", "<N>", 1))
			f.sort(d)
		}
	case len(nodes) != len(served):
		if len(served) > 0 {
			f.note("%s on the PCI bus and %s: counted by the nodes, without an address",
				wording.Plural(len(served), v.title), wording.Plural(len(nodes), "device node"))
		}
		served = nil
	}
	for i, n := range nodes {
		d := newDevice(v.name)
		if served != nil {
			d = served[i]
		}
		d.Minor, d.Node, d.WhyNot = n.n, "/"+n.node, n.whyNot
		f.sort(d)
	}
	v.conclude(bus.root, &f)
	return f
}

// findRendering counts the PCI devices of a vendor by the render node that sysfs names for each.
func findRendering(v *vendor, bus *pciBus) Family {
	f := Family{}
	for _, p := range bus.of(v) {
		d := bus.describe(p.address, v.name, v.drivers)
		renderNode(bus.root, &d, p.dir())
		f.sort(d)
	}
	v.conclude(bus.root, &f)
	return f
}

// findIntel is findRendering without integrated GPUs, which are on bus 00.
func findIntel(v *vendor, bus *pciBus) Family {
	f := Family{}
	for _, p := range bus.of(v) {
		d := bus.describe(p.address, v.name, v.drivers)
		if p.at.bus == 0 {
			d.WhyNot = "it is an integrated GPU (bus 00)"
		}
		renderNode(bus.root, &d, p.dir())
		// The driver xe has a folder for each tile, and by default Level Zero makes a device of each.
		if _, err := fs.Stat(bus.root, path.Join(p.dir(), "tile1")); err == nil {
			d.Notes = append(d.Notes, noteTiles)
		}
		f.sort(d)
	}
	v.conclude(bus.root, &f)
	return f
}

const noteTiles = "it has several tiles"

// renderNode fills in the render node of the PCI device in dir, and WhyNot where there is none to use.
func renderNode(root Root, d *Device, dir string) {
	entries, _ := fs.ReadDir(root, path.Join(dir, "drm")) // no folder: no driver that renders
	for _, e := range entries {
		if n, ok := number(e.Name(), "renderD"); ok {
			d.takeNode(root, node("dri/renderD#", n), n)
			return
		}
	}
	if d.WhyNot == "" {
		d.WhyNot = "its driver " + d.Driver + " has made no render node"
	}
}

// takeNode records the device's node and whether this process may use it.
func (d *Device) takeNode(root Root, name string, n int) {
	d.Minor, d.Node = n, "/"+name
	if err := root.Access(name); err != nil && d.WhyNot == "" {
		d.WhyNot = fmt.Sprintf("/%s %s", name, cause(err))
	}
}

// findGaudi counts the PCI devices for which the class accel, or habanalabs in older drivers, names a node. Other
// drivers than Gaudi's make nodes in /dev/accel too.
func findGaudi(v *vendor, bus *pciBus) Family {
	f := Family{}
	pci := bus.of(v)
	if len(pci) == 0 {
		return f
	}
	type place struct {
		node string
		n    int
	}
	places := map[string]place{} // by PCI address
	for _, class := range []struct{ dir, prefix, pattern string }{
		{"sys/class/habanalabs", "hl", "hl#"},
		{"sys/class/accel", "accel", "accel/accel#"},
	} {
		entries, _ := fs.ReadDir(bus.root, class.dir) // only one of the two is there
		for _, e := range entries {
			n, ok := number(e.Name(), class.prefix)
			if !ok {
				continue
			}
			if link, err := bus.root.ReadLink(path.Join(class.dir, e.Name(), "device")); err == nil {
				places[path.Base(link)] = place{node(class.pattern, n), n}
			}
		}
	}
	for _, p := range pci {
		d := bus.describe(p.address, v.name, v.drivers)
		if at, ok := places[p.address]; ok {
			d.takeNode(bus.root, at.node, at.n)
		} else if d.WhyNot == "" {
			d.WhyNot = "its driver " + d.Driver + " has made no device node"
		}
		f.sort(d)
	}
	v.conclude(bus.root, &f)
	return f
}
