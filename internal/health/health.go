// Package health judges a node by what files and limits say of it (L0 in the results' source), what NVIDIA's library or
// another vendor's tool says (L1), and what the kernel has logged (log). It runs nothing on an accelerator and opens
// none. Thresholds and their sources stand with each check.
package health

import (
	"io/fs"
	"strconv"
	"strings"
	"time"

	"muster/internal/accel"
	"muster/internal/accel/probe"
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
	// NVML is what NVIDIA's library says; nil where it was not asked or did not answer, which NVMLErr explains. Both
	// are nil where there is no NVIDIA GPU.
	NVML    *probe.Report
	NVMLErr error
	// Tool asks a vendor's own tool about devices of the job that NVML does not know; nil for none.
	Tool func(tool string, args ...string) probe.Answer
	// Policy has the thresholds; nil for those of check's table.
	Policy *check.Policy

	gpus    []gpu // of the job
	log     KernelLog
	noLog   error
	hasRead bool // log and noLog are set
	xids    []xid
}

// Machine answers what is in no file, or not for the asking.
type Machine interface {
	// Space is how large the file system at a path is.
	Space(path string) (Space, error)
	// OpenFiles and LockedMemory are this process's hard limits, in files and bytes; Unlimited for none.
	OpenFiles() (uint64, error)
	LockedMemory() (uint64, error)
	// KernelLog is what the kernel has said since it started.
	KernelLog() (KernelLog, error)
	// Pause lets time pass between two looks at the same thing.
	Pause(time.Duration)
}

// noLimit is no limit.
const noLimit = ^uint64(0)

// Space is the size of a file system, in bytes.
type Space struct {
	Total, Free uint64
	Writable    bool
}

// KernelLog is what the kernel said, oldest first.
type KernelLog struct {
	From  string // where it was read
	Lines []LogLine
}

// LogLine is one message of the kernel.
type LogLine struct {
	Age  time.Duration
	Text string
}

// ofDevices are the checks of accelerators and their drivers, and ofNode those of the rest, in the order of the report.
var (
	ofDevices = []func(*Node) []check.Result{
		driverLoaded, driverMismatch, driverHung, notInjected, lost, resetRequired, missing, foreignDriver, deviceNode,
		deviceHealth, deviceNetwork, deviceLink, eccUncorrectable, eccAggregate, eccOff, sramThreshold, remapFailed, remapPending,
		remapMany, retiredPending, retiredMany,
		nvlinkDown, nvlinkNone, nvlinkErrors, fabricNotReady, pcieWidth, pcieSpeed, pcieReplay,
		throttleHW, throttleSW, tempHigh, persistenceOff, computeMode, busy, heterogeneous, numaUnknown, acsOn, xidCheck,
	}
	ofNode = []func(*Node) []check.Result{
		kernelComplaints, stuckProcess, peerMemory, sharedMemory, lockedMemory, openFiles, cpus, cpuTight, tempSpace, environment,
	}
)

// Check runs all checks.
func (n *Node) Check() []check.Result { return append(n.CheckDevices(), n.run(ofNode)...) }

// CheckDevices runs the checks of accelerators and their drivers alone.
func (n *Node) CheckDevices() []check.Result {
	if n.Policy == nil {
		n.Policy = &check.Policy{}
	}
	n.gpus = n.gpusOfJob()
	if f := n.nvidia(); len(f.Devices)+len(f.Unusable) > 0 {
		n.readLog()
		n.xids = n.findXIDs()
	}
	return n.run(ofDevices)
}

// readLog reads the kernel log once, and not where no check wants it: it may take a program to do so.
func (n *Node) readLog() {
	if !n.hasRead {
		n.log, n.noLog = n.Machine.KernelLog()
		n.hasRead = true
	}
}

func (n *Node) run(checks []func(*Node) []check.Result) []check.Result {
	var results []check.Result
	for _, c := range checks {
		results = append(results, c(n)...)
	}
	for i := range results {
		if results[i].Source == "" {
			results[i].Source = "L0"
		}
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

// eachDevice judges every device that is present, usable or not. look gives what is wrong a Reason; what has none
// passes.
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
	return n.eachDevice("gpu-node", "do the permissions of its device node allow reading and writing?",
		func(d accel.Device, r *check.Result) {
			if d.Node != "" {
				r.Reason = d.WhyNot
			}
		})
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
