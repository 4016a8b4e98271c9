package health

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"muster/internal/accel"
	"muster/internal/check"
)

// Reasons why a GPU's clocks are not at their highest (nvml.h, nvmlClocksEventReason). 0x1 idle, 0x2 application
// clocks, 0x4 power cap, 0x10 sync boost and 0x100 display are normal.
const (
	slowHardware = 0x8
	slowHeat     = 0x20
	slowHWHeat   = 0x40
	slowPower    = 0x80
)

// readings is how often a GPU must be found slowed down: one reading may be a moment's.
const readings = 3

// throttled judges the reasons that all readings share.
func (n *Node) throttled(id, try string, mask uint64) []check.Result {
	names := []struct {
		bit  uint64
		name string
	}{
		{slowHardware, "hardware slowdown"},
		{slowHeat, "software thermal slowdown"},
		{slowHWHeat, "hardware thermal slowdown"},
		{slowPower, "power brake"},
	}
	return n.eachGPU(id, try, func(g *gpu, r *check.Result) string {
		var seen []uint64
		for _, m := range n.NVML.Moments {
			if s, ok := m.GPUs[g.Index]; ok && s.Clocks != nil {
				seen = append(seen, *s.Clocks)
			}
		}
		if seen == nil && g.Clocks != nil {
			seen = append(seen, *g.Clocks)
		}
		if seen == nil {
			return g.na("clocks_event_reasons")
		}
		var all uint64
		for _, reasons := range seen {
			if reasons&mask == 0 {
				return ""
			}
			all |= reasons & mask
		}
		if len(seen) < readings {
			return fmt.Sprintf("it is slowed down (0x%x), perhaps for a moment: %d of %d readings", all, len(seen), readings)
		}
		var why []string
		for _, x := range names {
			if all&x.bit != 0 {
				why = append(why, x.name)
			}
		}
		r.Reason = strings.Join(why, ", ") + fmt.Sprintf(" in all of %d readings", len(seen))
		r.Value = fmt.Sprintf("0x%x", all)
		return ""
	})
}

func throttleHW(n *Node) []check.Result {
	return n.throttled("throttle-hw", "check the cooling and the power supplies", slowHardware|slowHWHeat|slowPower)
}

func throttleSW(n *Node) []check.Result {
	return n.throttled("throttle-sw", "check the cooling", slowHeat)
}

// tempHigh: near the temperature at which the GPU slows itself down.
func tempHigh(n *Node) []check.Result {
	margin := int(n.Policy.Limit("temp-high"))
	return n.eachGPU("temp-high", "check the cooling", func(g *gpu, r *check.Result) string {
		core, memory := g.Temperature != nil && g.TempSlow != nil, g.TempMem != nil && g.TempMemMax != nil && *g.TempMemMax > 0
		switch {
		case core && *g.Temperature >= *g.TempSlow-margin:
			r.Reason = fmt.Sprintf("%d °C, and it slows down at %d", *g.Temperature, *g.TempSlow)
			r.Value, r.Limit = strconv.Itoa(*g.Temperature), strconv.Itoa(*g.TempSlow-margin)
		case memory && *g.TempMem > *g.TempMemMax:
			r.Reason = fmt.Sprintf("its memory has %d °C, and may have %d", *g.TempMem, *g.TempMemMax)
			r.Value, r.Limit = strconv.Itoa(*g.TempMem), strconv.Itoa(*g.TempMemMax)
		case !core && g.Temperature == nil:
			return g.na("temperature")
		case !core:
			return g.na("temperature_slow")
		}
		return ""
	})
}

func persistenceOff(n *Node) []check.Result {
	return n.eachGPU("persistence-off", "run nvidia-persistenced, or nvidia-smi -pm 1", func(g *gpu, r *check.Result) string {
		if g.Persistence == nil {
			return g.na("persistence")
		}
		if !*g.Persistence {
			r.Reason = "persistence mode is off"
		}
		return ""
	})
}

// computeMode: 0 default, 1 and 3 one process alone, 2 none.
func computeMode(n *Node) []check.Result {
	return n.eachGPU("compute-mode", "nvidia-smi -c 0", func(g *gpu, r *check.Result) string {
		switch {
		case g.ComputeMode == nil:
			return g.na("compute_mode")
		case *g.ComputeMode == 2:
			r.Reason = "no process may compute on it"
		case *g.ComputeMode != 0 && n.Workers > len(n.gpus):
			r.Reason = fmt.Sprintf("one process alone may compute on it, and %d are to run on %d GPUs", n.Workers, len(n.gpus))
		}
		return ""
	})
}

// busy: what is left of another job, or somebody else's. The driver itself takes some hundred MiB. Process ids are the
// host's: in a container they name nothing.
func busy(n *Node) []check.Result {
	const id, try = "gpu-busy", "end what is left there; if others are meant to be there, a policy: status: {gpu-busy: WARN}"
	limit := func(total uint64) uint64 { return max(uint64(n.Policy.Limit(id))*mib, total/50) }
	results := n.eachGPU(id, try, func(g *gpu, r *check.Result) string {
		if g.MemUsed == nil && g.Processes == nil {
			return g.na("processes")
		}
		var why []string
		if g.MemUsed != nil && g.MemTotal != nil && *g.MemUsed > limit(*g.MemTotal) {
			why = append(why, fmt.Sprintf("%d of %d MiB are in use", *g.MemUsed/mib, *g.MemTotal/mib))
			r.Value, r.Limit = fmt.Sprint(*g.MemUsed/mib), fmt.Sprint(limit(*g.MemTotal)/mib)
		}
		if len(g.Processes) > 0 {
			var pids []string
			for _, p := range g.Processes {
				pids = append(pids, strconv.Itoa(p.PID))
			}
			why = append(why, "by the host's processes "+strings.Join(pids, ", "))
		}
		r.Reason = strings.Join(why, " ")
		return ""
	})
	amd := n.eachAMD(id, try, func(d accel.Device, r *check.Result) string {
		dir := path.Join("sys/bus/pci/devices", d.BusID)
		used, total := n.number(path.Join(dir, "mem_info_vram_used")), n.number(path.Join(dir, "mem_info_vram_total"))
		if used < 0 || total <= 0 {
			return "the driver does not tell its memory"
		}
		if uint64(used) > limit(uint64(total)) {
			r.Reason = fmt.Sprintf("%d of %d MiB are in use", used/mib, total/mib)
			r.Value, r.Limit = fmt.Sprint(used/mib), fmt.Sprint(limit(uint64(total))/mib)
		}
		return ""
	})
	return n.withOthers(results, amd)
}

// heterogeneous: the job waits for the slowest of its GPUs, and runs out of memory on the smallest.
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
	const try = "choose those of one model with the visibility variable"
	if len(order) > 1 {
		var parts []string
		for _, m := range order {
			parts = append(parts, fmt.Sprintf("%d × %s", models[m], m))
		}
		return []check.Result{bad(id, strings.Join(parts, ", "), try)}
	}
	var least, most uint64
	for _, g := range n.gpus {
		if g.GPU != nil && g.MemTotal != nil && *g.MemTotal > 0 {
			if least == 0 || *g.MemTotal < least {
				least = *g.MemTotal
			}
			most = max(most, *g.MemTotal)
		}
	}
	switch {
	case most-least > most/100*uint64(n.Policy.Limit(id)):
		r := bad(id, fmt.Sprintf("they have %d to %d MiB of memory", least/mib, most/mib), try)
		r.Source = "L1"
		return []check.Result{r}
	case len(order) == 0 && most == 0:
		return skip(id, "no model is known")
	}
	return pass(id)
}
