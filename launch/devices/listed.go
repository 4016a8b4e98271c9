package devices

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/accel"
	"muster/launch/job"
)

// masks are by PyTorch's device types the variables by which workers see their accelerators as DeepSpeed sets them; all
// others are seen by cudaMask.
var masks = map[string]string{
	"npu": "ASCEND_RT_VISIBLE_DEVICES", "mlu": "MLU_VISIBLE_DEVICES", "musa": "MUSA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK",
}

const cudaMask = "CUDA_VISIBLE_DEVICES"

// mask is the variable that lists the devices of this node's workers.
func (n *Devices) mask() string {
	if name := n.job.Devices.Variable; name != "" {
		return name
	}
	if name, ok := masks[n.detect().Backend]; ok {
		return name
	}
	return cudaMask
}

// countListed counts workers for DeviceRules: one for each device that is listed, and where there is no accelerator, or
// the word is numa, one for each NUMA node.
func (n *Devices) countListed(word string) (int, string, error) {
	inv, left := n.detect(), n.job.Devices.Except
	if word == "numa" || inv.Undecided == nil && inv.VisibleCount == 0 {
		workers, why, err := accel.NUMANodes(n.near)
		if len(left) > 0 {
			why += fmt.Sprintf(" less %d", len(left))
		}
		if workers -= len(left); err == nil && workers < 1 {
			err = fmt.Errorf("nothing is left: %s", why)
		}
		return workers, why, err
	}
	if left == nil {
		return accel.Workers("auto", inv, 1)
	}
	listed := n.allButExcept()
	if len(listed) == 0 {
		return 0, "", fmt.Errorf("no device is left of %d", len(inv.Devices))
	}
	return len(listed), fmt.Sprintf("%d of %d devices", len(listed), len(inv.Devices)), nil
}

// allButExcept are the numbers of all devices, whatever is visible, but those that are left out.
func (n *Devices) allButExcept() []int {
	var list []int
	for _, d := range n.detect().Devices {
		if !slices.Contains(n.job.Devices.Except, d.Index) {
			list = append(list, d.Index)
		}
	}
	return list
}

// Listed is the variable that lists devices for all workers; false where it stays as it is.
func (n *Devices) Listed(workers int) (job.Var, bool) {
	rules := n.job.Devices
	if !rules.List {
		return job.Var{}, false
	}
	name, list, why := n.mask(), rules.Only, "the devices that were asked for"
	switch {
	case list != nil:
	case rules.Except != nil && len(n.detect().Devices) > 0:
		list = n.allButExcept()
	default:
		if inherited, _ := n.lookup(name); inherited != "" && rules.Except == nil {
			return job.Var{}, false
		}
		why = "one device for each worker"
		for i := 0; len(list) < workers; i++ {
			if !slices.Contains(rules.Except, i) {
				list = append(list, i)
			}
		}
	}
	words := make([]string, len(list))
	for i, d := range list {
		words[i] = strconv.Itoa(d)
	}
	return job.Var{Name: name, Value: strings.Join(words, ","), Source: job.Source{Kind: job.FromMuster, Name: why}}, true
}
