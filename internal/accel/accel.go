// Package accel counts the accelerators of a node, and how many of them a worker will see, from files alone: /proc, /sys
// and the presence and permissions of device nodes. It loads no library, starts no program and opens no device node, so
// it cannot hang and costs a few milliseconds. This version knows NVIDIA GPUs; other vendors are named, not counted.
//
// All it knows of the machine comes through Root and the environment function. A fake accelerator replaces these inputs
// (LoadFake renders a file tree from a spec) and never a verdict: the detection code is the same for both.
//
// cmd calls Detect or Fake.Detect once, CPUs once, and resolves a word like "auto" or "gpu" with Workers.
package accel

import (
	"errors"
	"fmt"
	"io/fs"

	"muster/internal/errhint"
)

// Device is one accelerator that is present and that this process may use.
type Device struct {
	Index    int    // position in PCI order from 0, the number that CUDA_VISIBLE_DEVICES means under CUDA_DEVICE_ORDER=PCI_BUS_ID
	Vendor   string // "nvidia"
	Model    string // as the driver spells it; "" where it does not tell
	UUID     string // "GPU-…"; "" where the driver does not tell
	BusID    string // PCI address such as "0000:1b:00.0"; "" where a node could not be matched with a PCI device
	Minor    int    // number of its device node, /dev/nvidia<Minor>; its order need not be the PCI order
	NUMANode int    // NUMA node it is attached to; -1 where the machine does not tell
}

// Inventory is what was found on a node and what a worker started here will see of it.
type Inventory struct {
	Vendor       string   // vendor of Devices; "" where there is none
	Devices      []Device // present and accessible, in PCI order
	Visible      []Device // those a worker sees, in the order in which it numbers them
	VisibleCount int      // len(Visible)
	// Undecided is not nil where files cannot tell how many devices a worker sees (MIG masks, a malformed mask, WSL);
	// Visible is empty then, and Workers returns this error unless it is asked for CPUs.
	Undecided error
	Why       []string // how it was decided, a sentence each
	Fake      string   // path of the fake's spec; "" on a real machine
}

// Detect looks for accelerators below root and applies the visibility variables that lookup (such as os.LookupEnv) gives.
// NVIDIA_VISIBLE_DEVICES is not applied: the container runtime has done so already, and its effect is what /dev shows.
func Detect(root Root, lookup func(string) (string, bool)) Inventory {
	var inv Inventory
	found := findNVIDIA(root)
	inv.Devices, inv.Why = found.devices, found.why
	if len(inv.Devices) == 0 {
		if v, ok := lookup("NVIDIA_VISIBLE_DEVICES"); ok && (v == "" || v == "none" || v == "void") {
			inv.Why = append(inv.Why, fmt.Sprintf("NVIDIA_VISIBLE_DEVICES=%q: this container was given no GPU", clip(v)))
		}
		if v, ok := lookup("CUDA_VISIBLE_DEVICES"); underWSL(root) && (!ok || v != "" && v != "-1") {
			inv.Undecided = undecided(errors.New("cannot count GPUs under WSL: it has no device node per GPU"))
		}
		return inv
	}
	inv.Vendor = "nvidia"
	uuids := make([]string, len(inv.Devices))
	for i, d := range inv.Devices {
		uuids[i] = d.UUID
	}
	text, set := lookup("CUDA_VISIBLE_DEVICES")
	shown, err := resolveCUDA(text, set, uuids)
	if err != nil {
		inv.Undecided = undecided(err)
		inv.Why = append(inv.Why, err.Error())
		return inv
	}
	for _, i := range shown {
		inv.Visible = append(inv.Visible, inv.Devices[i])
	}
	inv.VisibleCount = len(inv.Visible)
	if set {
		inv.Why = append(inv.Why, fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q: %d of %d visible", clip(text), inv.VisibleCount, len(inv.Devices)))
	} else {
		inv.Why = append(inv.Why, fmt.Sprintf("CUDA_VISIBLE_DEVICES is not set: %d of %d visible", inv.VisibleCount, len(inv.Devices)))
	}
	return inv
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

// plural returns "1 thing" or "n things".
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
