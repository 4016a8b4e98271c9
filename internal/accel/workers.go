package accel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/internal/wording"
)

// backendWords are PyTorch's names of devices, which torchrun takes for the number of workers, and "gpu" for "cuda".
var backendWords = map[string]string{"gpu": "cuda", "cuda": "cuda", "xpu": "xpu", "npu": "npu", "musa": "musa", "mlu": "mlu", "hpu": "hpu"}

// unknownDevices are PyTorch's names of devices that no vendor here makes.
var unknownDevices = []string{"mps", "privateuseone"}

// IsWord reports whether Workers counts something for word.
func IsWord(word string) bool {
	return word == "auto" || word == "cpu" || backendWords[word] != "" || vendorNamed(word) != nil
}

func vendorNamed(word string) *vendor {
	for _, v := range vendors {
		if v.name == word {
			return v
		}
	}
	return nil
}

// Workers turns a word for the number of workers on a node into that number and says how: "cpu" is cpus (see CPUs);
// "gpu", another of PyTorch's device names, and a vendor are the devices of that kind that a worker sees, an error
// where there are none; "auto" is the accelerators that a worker sees, else cpus. Numbers are not words: the caller
// parses them. Errors carry a hint and status 2.
//
// Where all GPUs that a worker would see are divided by MIG, "auto" is the number of their instances; the caller must
// then give each worker its own of ShareInstances.
func Workers(word string, inv Inventory, cpus int) (n int, why string, err error) {
	family := inv.meant(word)
	switch {
	case word == "cpu":
		return cpus, fmt.Sprintf("%s allowed", wording.Plural(cpus, "CPU")), nil
	case word == "auto" && inv.Undecided == nil && inv.VisibleCount == 0:
		return cpus, fmt.Sprintf("%s allowed, and no accelerator that a worker would see", wording.Plural(cpus, "CPU")), nil
	case word == "auto":
		if family.divided() > 0 && family.Undecided == nil {
			return family.instanceWorkers()
		}
	case backendWords[word] != "", vendorNamed(word) != nil:
	case slices.Contains(unknownDevices, word):
		return 0, "", errhint.With(
			errhint.Usagef("cannot count %s devices: muster knows none of that name", word),
			"say how many workers to start: --nproc-per-node N")
	default:
		return 0, "", errhint.With(
			errhint.Usagef("Unsupported nproc_per_node value: %s", wording.Clip(word)), // torchrun's own words
			"give a number, or one of auto, cpu, gpu")
	}
	device := deviceWord(word, family)
	switch {
	case family.Undecided != nil:
		return 0, "", fmt.Errorf("cannot start one worker per %s: %w", device, family.Undecided)
	case family.VisibleCount == 0:
		return 0, "", none(word, device, family.Why, inv)
	}
	all := wording.Plural(len(family.Devices), family.Vendor+" device")
	return family.VisibleCount, fmt.Sprintf("%d of %s visible", family.VisibleCount, all), nil
}

// of returns what pick would take of the families that match.
func (inv Inventory) of(match func(Family) bool) Family {
	return pick(slices.DeleteFunc(slices.Clone(inv.Families), func(f Family) bool { return !match(f) }))
}

// deviceWord is what a worker is to have one of.
func deviceWord(word string, f Family) string {
	if v := vendorNamed(cmp.Or(f.Vendor, word)); v != nil {
		return lastWord(v.title)
	}
	if backend := backendWords[word]; backend != "" && backend != "cuda" {
		return strings.ToUpper(word)
	}
	if word == "auto" && !errors.Is(f.Undecided, errWSL) {
		return "accelerator"
	}
	return "GPU"
}

// none is the error for a word of which there is no device. "Cuda is not available." and its like are what people
// search for: PyTorch's torchrun says so and nothing else.
func none(word, device string, why []string, inv Inventory) error {
	name := word
	switch v := vendorNamed(word); {
	case backendWords[word] == "cuda" || word == "nvidia":
		name = "Cuda"
	case word == "xpu":
		name = "Xpu"
	case v != nil:
		name = v.title
	}
	err := fmt.Errorf("cannot start one worker per %s: %s is not available", device, name)
	if len(why) > 0 {
		err = fmt.Errorf("%w (%s)", err, strings.Join(why, "; "))
	}
	hint := "to train on CPUs say --nproc-per-node cpu or --nproc-per-node N"
	if inv.VisibleCount > 0 && inv.Vendor != "" {
		hint = fmt.Sprintf("this node has %s: --nproc-per-node %s; %s",
			wording.Plural(inv.VisibleCount, "visible "+inv.Vendor+" device"), inv.Vendor, hint)
	}
	return errhint.With(errhint.Code(err, errhint.Usage), hint)
}

// divided returns how many of the visible devices are in use as MIG instances.
func (f Family) divided() int {
	n := 0
	for _, d := range f.Visible {
		if d.Divided {
			n++
		}
	}
	return n
}

// usableInstances returns the MIG compute instances that this process may use of the visible devices.
func (f Family) usableInstances() []Instance {
	var list []Instance
	for _, d := range f.Visible {
		list = append(list, d.usableInstances()...)
	}
	return list
}

// instanceWorkers counts a worker for each instance. Without a mask a CUDA process sees one instance of one GPU.
func (f Family) instanceWorkers() (n int, why string, err error) {
	divided, instances := f.divided(), f.usableInstances()
	switch {
	case divided < len(f.Visible):
		err = fmt.Errorf("%d of %s are divided into MIG instances", divided, wording.Plural(len(f.Visible), "visible GPU"))
	case len(instances) == 0:
		err = errors.New("this process may use no MIG instance of the visible GPUs")
	default:
		why := wording.Plural(len(instances), "usable MIG compute instance") + " of " + wording.Plural(divided, "visible GPU")
		return len(instances), why, nil
	}
	return 0, "", undecided(fmt.Errorf("cannot start one worker per GPU: %w", err))
}
