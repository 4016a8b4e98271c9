// Package accel counts the accelerators of a node, and how many of them a worker will see, from files alone: /proc,
// /sys and the presence and permissions of device nodes. It loads no library, starts no program and opens no device
// node, so it cannot hang and costs a few milliseconds. What it knows of each vendor stands in one table, vendors.
//
// All it knows of the machine comes through Root and the environment function. A fake accelerator (package rehearsal)
// replaces these inputs, and never a verdict: the detection code is the same for both.
//
// cmd calls Detect once, CPUs once, and resolves a word like "auto" or "gpu" with Workers. Bind says which CPUs lie
// near each worker's accelerator.
package accel

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/internal/wording"
)

// Device is one accelerator that is present.
type Device struct {
	// Index is the device's number among those of its vendor that this process may use, from 0: the number that the
	// vendor's visibility variable means, for NVIDIA under CUDA_DEVICE_ORDER=PCI_BUS_ID. -1 where it may not be used.
	Index        int
	VisibleIndex int    // number by which a worker knows it; -1 where a worker does not see it, or that is undecided
	Vendor       string // "nvidia"
	Model        string // as the driver spells it; "" where it does not tell
	UUID         string // "GPU-…"; "" where the driver does not tell; the partitions of an AMD GPU share it
	BusID        string // PCI address such as "0000:1b:00.0"; "" where a node could not be matched with a PCI device
	Node         string // its device node, such as "/dev/nvidia1"; "" where it has none or that is unknown
	Minor        int    // number in the name of its device node, -1 without one; its order need not be the PCI order
	Driver       string // kernel driver that is bound to it; "" where none is or that is unknown
	NUMANode     int    // NUMA node it is attached to; -1 where the machine does not tell
	Link         string // its PCI link as it runs now, such as "16 × 32.0 GT/s"; "" where the machine does not tell
	LocalCPUs    string // CPUs near it, such as "0-31,64-95"; "" where the machine does not tell
	WhyNot       string // why this process may not use it; "" where it may
	Lost         string // by what the bus shows that it no longer answers; "" where it shows nothing
	Notes        []string
	Divided      bool       // it is in use as MIG instances
	Instances    []Instance // its MIG compute instances, usable or not
}

func newDevice(vendor string) Device {
	return Device{Index: -1, VisibleIndex: -1, Vendor: vendor, Minor: -1, NUMANode: -1}
}

// place names a device for a message.
func (d Device) place() string {
	if d.BusID != "" {
		return d.BusID
	}
	return d.Node
}

// Family is what was found of one vendor and what a worker started here will see of it.
type Family struct {
	Vendor       string   // word for the vendor, such as "nvidia"
	Backend      string   // PyTorch's name for such devices, such as "cuda"
	Verified     string   // how detection of this vendor was checked: "documentation", "vendor's fixture" or "real device"
	Devices      []Device // present and accessible, by Index
	Unusable     []Device // present, and not for this process: their WhyNot says why
	Visible      []Device // those a worker sees, in the order in which it numbers them
	VisibleCount int      // as PyTorch counts; it exceeds len(Visible) where ROCR_VISIBLE_DEVICES names devices that are not there
	// OrderUnsure is true for NVIDIA devices that differ while CUDA_DEVICE_ORDER is not PCI_BUS_ID: CUDA may number
	// them otherwise.
	OrderUnsure bool
	// Undecided is not nil where files cannot tell how many devices a worker sees (MIG masks, a malformed mask, WSL);
	// Visible is empty then, and Workers returns this error unless it is asked for CPUs.
	Undecided error
	Why       []string // how it was decided, a sentence each
}

// Inventory is what was found on a node.
type Inventory struct {
	// Family is the one that "auto" takes: the one with the most usable devices. Vendor is "" where there is none, and
	// where several have the same number, which Undecided says then.
	Family
	Families []Family // all vendors of which something was found, in a fixed order, and always NVIDIA first
	Fake     string   // path of the fake's spec; "" on a real machine
}

// Detect looks for accelerators below root and applies the visibility variables that lookup (such as os.LookupEnv)
// gives. Variables such as NVIDIA_VISIBLE_DEVICES are not applied: the container runtime has done so already, and their
// effect is what /dev shows.
func Detect(root Root, lookup func(string) (string, bool)) Inventory {
	var inv Inventory
	bus := readBus(root)
	for _, v := range vendors {
		f := v.find(v, bus)
		f.Vendor, f.Backend, f.Verified = v.name, v.backend, v.verified
		switch {
		case len(f.Devices) > 0:
			v.apply(&f, lookup)
		case v.name == "nvidia" || len(f.Unusable) > 0:
			if why, ok := v.withheld(lookup); ok {
				f.Why = append(f.Why, why)
			}
		default:
			continue
		}
		inv.Families = append(inv.Families, f)
	}
	first := &inv.Families[0]
	if v, ok := lookup("CUDA_VISIBLE_DEVICES"); len(first.Devices) == 0 && underWSL(root) && (!ok || v != "" && v != "-1") {
		first.Undecided = undecided(errWSL)
	}
	inv.Family = pick(inv.Families)
	if order, _ := lookup("CUDA_DEVICE_ORDER"); inv.Vendor == "nvidia" && order != byBus {
		inv.OrderUnsure = differ(inv.Devices)
	}
	return inv
}

// pick returns the family with the most usable devices. Where none has any, and where several have the same number, the
// result has no vendor and all their reasons.
func pick(families []Family) Family {
	var best []Family
	var none Family
	for _, f := range families {
		none.Why = append(none.Why, f.Why...)
		if none.Undecided == nil {
			none.Undecided = f.Undecided
		}
		switch {
		case len(f.Devices) == 0:
		case len(best) > 0 && len(f.Devices) < len(best[0].Devices):
		case len(best) > 0 && len(f.Devices) == len(best[0].Devices):
			best = append(best, f)
		default:
			best = []Family{f}
		}
	}
	switch len(best) {
	case 0:
		return none
	case 1:
		chosen := best[0]
		chosen.Why = slices.Clone(chosen.Why)
		for _, f := range families {
			if n := len(f.Devices); n > 0 && f.Vendor != chosen.Vendor {
				chosen.Why = append(chosen.Why, fmt.Sprintf("%s not taken: there are fewer", wording.Plural(n, f.Vendor+" device")))
			}
		}
		return chosen
	}
	var names, words []string
	for _, f := range best {
		names = append(names, wording.Plural(len(f.Devices), f.Vendor+" device"))
		words = append(words, "--nproc-per-node "+f.Vendor)
	}
	none.Undecided = errhint.With(
		errhint.Usagef("cannot choose between %s", strings.Join(names, " and ")),
		"say which to use: "+strings.Join(words, " or ")+", or a number")
	none.Why = append(none.Why, none.Undecided.Error())
	return none
}

func undecided(err error) error {
	return errhint.With(errhint.Code(err, errhint.Usage), "say how many workers to start: --nproc-per-node N")
}

// underWSL recognises the Windows Subsystem for Linux with a GPU, which comes as /dev/dxg and a library.
func underWSL(root Root) bool {
	_, err := fs.Stat(root, "usr/lib/wsl/lib/libnvidia-ml.so.1")
	return err == nil && root.Access("dev/dxg") == nil
}

// cause says in a few words why Access failed.
func cause(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "may not be read and written by this process"
	default:
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return "cannot be used: " + err.Error()
	}
}
