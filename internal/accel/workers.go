package accel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"muster/internal/errhint"
)

// otherVendors are the words for accelerators that this version cannot count: PyTorch's device names, then vendors.
var otherVendors = []string{
	"xpu", "npu", "hpu", "mlu", "musa", "mps", "privateuseone",
	"amd", "metax", "ascend", "intel", "gaudi", "cambricon", "mthreads", "hygon", "iluvatar", "thead",
}

// Workers turns a word for the number of workers on a node into that number and says how: "cpu" is cpus (see CPUs); "gpu",
// "cuda" and "nvidia" are the GPUs that a worker sees, an error where there are none; "auto" is the accelerators that a
// worker sees, else cpus. Numbers are not words: the caller parses them. Errors carry a hint and status 2.
func Workers(word string, inv Inventory, cpus int) (n int, why string, err error) {
	switch {
	case word == "cpu":
		return cpus, fmt.Sprintf("%s allowed", plural(cpus, "CPU")), nil
	case word == "auto" && inv.Undecided == nil && inv.VisibleCount == 0:
		return cpus, fmt.Sprintf("%s allowed, and no accelerator that a worker would see", plural(cpus, "CPU")), nil
	case slices.Contains([]string{"auto", "gpu", "cuda", "nvidia"}, word):
		if inv.Undecided != nil {
			return 0, "", fmt.Errorf("cannot start one worker per GPU: %w", inv.Undecided)
		}
		if inv.VisibleCount == 0 {
			// "Cuda is not available." is what people search for: PyTorch's torchrun says so and nothing else.
			err = errors.New("cannot start one worker per GPU: Cuda is not available")
			if len(inv.Why) > 0 {
				err = fmt.Errorf("%w (%s)", err, strings.Join(inv.Why, "; "))
			}
			return 0, "", errhint.With(errhint.Code(err, errhint.Usage), "to train on CPUs say --nproc-per-node cpu or --nproc-per-node N")
		}
		return inv.VisibleCount, fmt.Sprintf("%d of %s visible", inv.VisibleCount, plural(len(inv.Devices), inv.Vendor+" device")), nil
	case slices.Contains(otherVendors, word):
		return 0, "", errhint.With(
			errhint.Usagef("cannot count %s devices: this version of muster detects NVIDIA GPUs only", word),
			"say how many workers to start: --nproc-per-node N")
	default:
		return 0, "", errhint.With(
			errhint.Usagef("Unsupported nproc_per_node value: %s", clip(word)), // torchrun's own words
			"give a number, or one of auto, cpu, gpu")
	}
}
