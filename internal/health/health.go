// Package health judges a node by what files and limits say of it, without any library: level L0 of the checks. It opens no
// device and takes a few milliseconds. Thresholds and their sources stand with each check.
package health

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"muster/internal/accel"
	"muster/internal/check"
)

// Node is what is judged. A fake replaces these inputs, and no verdict.
type Node struct {
	Root      accel.Root
	Machine   Machine
	Inventory accel.Inventory
	Lookup    func(name string) (string, bool) // of the environment
	Workers   int                              // that are to run here
	CPUs      int                              // that this process may use
	TempDir   string
}

// Machine answers what is in no file.
type Machine interface {
	// Space is how large the file system at a path is.
	Space(path string) (Space, error)
	// OpenFiles and LockedMemory are this process's hard limits, in files and bytes; Unlimited for none.
	OpenFiles() (uint64, error)
	LockedMemory() (uint64, error)
}

// Unlimited is no limit.
const Unlimited = ^uint64(0)

// Space is the size of a file system, in bytes.
type Space struct {
	Total, Free uint64
	Writable    bool
}

// checks are all of this package, in the order of the report.
var checks = []func(*Node) []check.Result{
	driverLoaded, lost, foreignDriver, deviceNode, pcieWidth, numaUnknown, heterogeneous,
	sharedMemory, lockedMemory, openFiles, cpus, tempSpace, environment,
}

// Check runs all checks.
func (n *Node) Check() []check.Result {
	var results []check.Result
	for _, c := range checks {
		results = append(results, c(n)...)
	}
	for i := range results {
		results[i].Source = "L0"
	}
	return results
}

func pass(id string) []check.Result { return []check.Result{{ID: id, Status: check.Pass}} }

func skip(id, why string) []check.Result {
	return []check.Result{{ID: id, Status: check.Skip, Reason: why}}
}

// bad is a result with the status that its check has by default.
func bad(id, reason, try string) check.Result {
	def, err := check.Lookup(id)
	if err != nil {
		panic(err) // a check without a line in check's table
	}
	return check.Result{ID: id, Status: def.Default, Reason: reason, Try: try}
}

// eachDevice judges every device that is present, usable or not. look gives what is wrong a Reason; what has none passes.
func (n *Node) eachDevice(id, try string, look func(accel.Device, *check.Result)) []check.Result {
	var results []check.Result
	some := false
	for _, f := range n.Inventory.Families {
		for _, list := range [][]accel.Device{f.Devices, f.Unusable} {
			for _, d := range list {
				some = true
				r := bad(id, "", try)
				r.Subject = subject(d)
				if look(d, &r); r.Reason != "" {
					results = append(results, r)
				}
			}
		}
	}
	switch {
	case !some:
		return skip(id, "no accelerator was found")
	case results == nil:
		return pass(id)
	}
	return results
}

func subject(d accel.Device) check.Subject {
	s := check.Subject{BusID: d.BusID, UUID: d.UUID}
	if d.Index >= 0 {
		s.GPU = &d.Index
	}
	return s
}

// driverLoaded: there are NVIDIA GPUs on the bus, none can be used, and the driver's folder is missing.
func driverLoaded(n *Node) []check.Result {
	const id = "driver-not-loaded"
	for _, f := range n.Inventory.Families {
		if f.Vendor != "nvidia" {
			continue
		}
		if len(f.Devices)+len(f.Unusable) == 0 {
			break
		}
		if _, err := fs.Stat(n.Root, "proc/driver/nvidia/version"); err != nil && len(f.Devices) == 0 {
			return []check.Result{bad(id, "there are NVIDIA GPUs on the bus, and no /proc/driver/nvidia/version", "load the nvidia module; in a container, run it with the NVIDIA runtime")}
		}
		return pass(id)
	}
	return skip(id, "no NVIDIA GPU was found")
}

func lost(n *Node) []check.Result {
	return n.eachDevice("gpu-lost", "reset the GPU or reboot the node", func(d accel.Device, r *check.Result) { r.Reason = d.Lost })
}

// foreignDriver: nouveau cannot compute (DCGM refuses a node for it, too).
func foreignDriver(n *Node) []check.Result {
	return n.eachDevice("gpu-driver", "load the vendor's driver", func(d accel.Device, r *check.Result) {
		if d.Driver == "nouveau" {
			r.Reason = "it is bound to nouveau"
		}
	})
}

// deviceNode: a device that is here for computing, and that this process may not use. What belongs to somebody else, a
// virtual machine or another container, has no driver of its own or no node here, which is no fault.
func deviceNode(n *Node) []check.Result {
	return n.eachDevice("gpu-node", "do the permissions of its device node allow reading and writing?", func(d accel.Device, r *check.Result) {
		if d.Node != "" {
			r.Reason = d.WhyNot
		}
	})
}

// pcieWidth: the link runs on fewer lanes than both its ends can; less than half of them is a failure.
func pcieWidth(n *Node) []check.Result {
	return n.eachDevice("pcie-width", "reseat the card or its riser", func(d accel.Device, r *check.Result) {
		now, most, known := n.lanes(d)
		if !known || now >= most {
			return
		}
		r.Reason = fmt.Sprintf("%d of %d lanes", now, most)
		r.Value, r.Limit = strconv.Itoa(now), strconv.Itoa(most)
		if 2*now < most {
			r.Status = check.Fail
		}
	})
}

// lanes returns the width of a device's PCI link, as it is and as it could be.
func (n *Node) lanes(d accel.Device) (now, most int, known bool) {
	if d.BusID == "" {
		return 0, 0, false
	}
	dir := path.Join("sys/bus/pci/devices", d.BusID)
	now, most = n.number(path.Join(dir, "current_link_width")), n.number(path.Join(dir, "max_link_width"))
	return now, most, now > 0 && most > 0 && most < 255 // 255: the kernel does not know
}

// number reads a file with a number in it, -1 where there is none.
func (n *Node) number(name string) int {
	text, err := fs.ReadFile(n.Root, name)
	if err != nil {
		return -1
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return v
}

// numaUnknown: in virtual machines the node is often not told; it matters where there are several.
func numaUnknown(n *Node) []check.Result {
	const id = "numa-unknown"
	if text, err := fs.ReadFile(n.Root, "sys/devices/system/node/online"); err != nil || !strings.ContainsAny(string(text), "-,") {
		return skip(id, "the machine has one NUMA node")
	}
	return n.eachDevice(id, "", func(d accel.Device, r *check.Result) {
		if d.NUMANode < 0 && d.WhyNot == "" {
			r.Reason = "the machine does not tell its NUMA node"
		}
	})
}

// heterogeneous: the job waits for the slowest of its GPUs.
func heterogeneous(n *Node) []check.Result {
	const id = "gpu-heterogeneous"
	models := map[string]int{}
	var order []string
	for _, d := range n.Inventory.Visible {
		if d.Model != "" {
			if models[d.Model] == 0 {
				order = append(order, d.Model)
			}
			models[d.Model]++
		}
	}
	switch {
	case len(order) == 0:
		return skip(id, "no model is known")
	case len(order) == 1:
		return pass(id)
	}
	var parts []string
	for _, m := range order {
		parts = append(parts, fmt.Sprintf("%d × %s", models[m], m))
	}
	return []check.Result{bad(id, strings.Join(parts, ", "), "choose those of one model with the visibility variable")}
}
