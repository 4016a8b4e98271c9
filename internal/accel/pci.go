package accel

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

const pciDevices = "sys/bus/pci/devices"

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
	return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.bus, b.bus), cmp.Compare(a.device, b.device),
		cmp.Compare(a.function, b.function))
}

func (a pciAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.domain, a.bus, a.device, a.function)
}

// pciDevice is one function of the PCI bus that may be an accelerator by its class.
type pciDevice struct {
	address string
	at      pciAddress
	vendor  string // "0x10de"
	class   string // "0x030200"
}

func (d pciDevice) dir() string { return pciDevices + "/" + d.address }

// pciBus is what one look at the bus gives all vendors.
type pciBus struct {
	root    Root
	any     bool        // there is a PCI device, accelerator or not
	devices []pciDevice // in PCI order

	folders map[string][]string // what names has read
}

// names lists a folder. /dev is read once for all vendors: a server has hundreds of nodes.
func (b *pciBus) names(dir string) []string {
	names, ok := b.folders[dir]
	if !ok {
		entries, _ := fs.ReadDir(b.root, dir) // a missing folder has no names
		for _, e := range entries {
			names = append(names, e.Name())
		}
		b.folders[dir] = names
	}
	return names
}

// readBus lists display controllers (class 0x03), processors (0x0b) and processing accelerators (0x12). It reads one
// file of the other devices, of which a server has hundreds.
func readBus(root Root) *pciBus {
	bus := &pciBus{root: root, folders: map[string][]string{}}
	entries, _ := fs.ReadDir(root, pciDevices) // a sandbox may have none
	for _, e := range entries {
		at, ok := parsePCIAddress(e.Name())
		if !ok {
			continue
		}
		bus.any = true
		d := pciDevice{address: e.Name(), at: at}
		if d.class = readWord(root, d.dir()+"/class"); !hasAnyPrefix(d.class, "0x03", "0x0b", "0x12") {
			continue
		}
		d.vendor = readWord(root, d.dir()+"/vendor")
		bus.devices = append(bus.devices, d)
	}
	slices.SortFunc(bus.devices, func(a, b pciDevice) int { return a.at.compare(b.at) })
	return bus
}

// of returns the devices of v, in PCI order.
func (b *pciBus) of(v *vendor) []pciDevice {
	var list []pciDevice
	for _, d := range b.devices {
		if !slices.Contains(v.pciIDs, d.vendor) || !hasAnyPrefix(d.class, v.classes...) {
			continue
		}
		if v.devices != nil {
			if !slices.Contains(v.devices, readWord(b.root, d.dir()+"/device")) {
				continue
			}
		}
		list = append(list, d)
	}
	return list
}

// has reports whether a function stands on the bus, whatever it is.
func (b *pciBus) has(at pciAddress) bool {
	_, err := b.root.Lstat(path.Join(pciDevices, at.String()))
	return err == nil
}

// foreignDrivers hold a device for somebody else: a virtual machine, a program of its own.
var foreignDrivers = []string{"vfio-pci", "pci-stub", "pciback", "uio_pci_generic", "nouveau"}

// describe reads what sysfs says of one function. WhyNot is set where its driver shows that it is not for us; drivers
// are those that serve a vendor's devices, nil where nobody has documented them.
func (b *pciBus) describe(address, vendor string, drivers []string) Device {
	dir := path.Join(pciDevices, address)
	d := newDevice(vendor)
	d.BusID = address
	if link, err := b.root.ReadLink(path.Join(dir, "driver")); err == nil {
		d.Driver = path.Base(link)
	}
	switch {
	case d.Driver == "":
		d.WhyNot = "no driver is bound to it"
	case drivers != nil && !slices.Contains(drivers, d.Driver) || slices.Contains(foreignDrivers, d.Driver):
		d.WhyNot = "it is bound to the driver " + d.Driver
	}
	if d.Driver == "nouveau" {
		d.Notes = append(d.Notes, "nouveau holds it: load NVIDIA's own driver instead")
	}
	b.locate(&d, dir)
	if link, err := b.root.ReadLink(path.Join(dir, "physfn")); err == nil {
		d.Notes = append(d.Notes, "virtual function of "+path.Base(link))
	}
	if d.Lost = b.sickness(dir); d.Lost != "" {
		d.Notes = append(d.Notes, d.Lost)
	}
	return d
}

// locate fills in where the device in dir is attached.
func (b *pciBus) locate(d *Device, dir string) {
	if text, err := readText(b.root, path.Join(dir, "numa_node")); err == nil {
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			d.NUMANode = n
		}
	}
	d.LocalCPUs, _ = readText(b.root, path.Join(dir, "local_cpulist"))
	// "32.0 GT/s PCIe" since Linux 5.6, "8 GT/s" before
	if speed, width := readWord(b.root, path.Join(dir, "current_link_speed")),
		readWord(b.root, path.Join(dir, "current_link_width")); speed != "" && width != "" && width != "0" {
		d.Link = width + " × " + strings.TrimSuffix(speed, " PCIe")
	}
}

// sickness returns what the bus shows of a device that no longer answers. A sleeping device is not asked: reading its
// configuration would wake it up.
func (b *pciBus) sickness(dir string) string {
	if state, _ := readText(b.root, path.Join(dir, "power/runtime_status")); state == "suspended" {
		return ""
	}
	// The files vendor and device are kept from boot and stay valid; configuration space reads all ones.
	if head, err := readHead(b.root, path.Join(dir, "config"), 2); err == nil && bytes.Equal(head, []byte{0xff, 0xff}) {
		return "it does not answer on the PCI bus: its configuration reads ff ff"
	}
	if speed, _ := readText(b.root, path.Join(dir, "current_link_speed")); strings.HasPrefix(speed, "Unknown") {
		return "its PCI link is down: the speed reads " + speed
	}
	return ""
}

// readWord returns the content of an attribute of sysfs, "" where it cannot be read. It takes one call of the kernel,
// which gives the whole of an attribute; readText needs another to see its end, and there are hundreds to read.
func readWord(root fs.FS, name string) string {
	f, err := root.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	var b [64]byte
	n, err := f.Read(b[:])
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return strings.TrimSpace(string(b[:n]))
}

// readHead returns the first n bytes of a file.
func readHead(root fs.FS, name string, n int) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, n)
	_, err = io.ReadFull(f, b)
	return b, err
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}
