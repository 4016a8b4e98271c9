package devices

import (
	"context"
	"slices"
	"time"

	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/launch/plan"
)

var _ plan.DeviceWatch = (*Devices)(nil)

// nvidia are this node's NVIDIA devices, of which alone it is told what they are used for.
func (n *Devices) nvidia() accel.Family {
	inv := n.detect()
	for _, f := range inv.Families {
		if f.Vendor == "nvidia" {
			return f
		}
	}
	return accel.Family{}
}

// Watchable implements plan.DeviceWatch.
func (n *Devices) Watchable() bool {
	return n.config.WatchUse != nil && len(n.nvidia().Devices) > 0
}

// Watch implements plan.DeviceWatch.
func (n *Devices) Watch(ctx context.Context, every time.Duration, told func([]plan.DeviceUse)) error {
	f := n.nvidia()
	return n.config.WatchUse(ctx, len(f.Devices), every, func(all []nvline.Use) {
		var use []plan.DeviceUse
		for i := range all {
			if d := deviceOf(f.Devices, all, i); d != nil && all[i].RC == 0 {
				use = append(use, useOf(d.Index, &all[i]))
			}
		}
		told(use)
	})
}

// deviceOf finds the device that a reading is of: by its address, its UUID or the number of its node, and where none of
// them is known by its place, since NVML has the order of the bus, too. nil: none of ours.
func deviceOf(devices []accel.Device, all []nvline.Use, i int) *accel.Device {
	u := &all[i]
	for _, same := range []func(*accel.Device) bool{
		func(d *accel.Device) bool { return u.BDF != "" && d.BusID == u.BDF },
		func(d *accel.Device) bool { return u.UUID != "" && d.UUID == u.UUID },
		func(d *accel.Device) bool { return d.BusID == "" && u.Minor != nil && d.Minor == *u.Minor },
	} {
		for j := range devices {
			if same(&devices[j]) {
				return &devices[j]
			}
		}
	}
	if len(all) == len(devices) && devices[i].BusID == "" {
		return &devices[i]
	}
	return nil
}

func useOf(index int, u *nvline.Use) plan.DeviceUse {
	use := plan.DeviceUse{Index: index}
	bytes := func(n *uint64) *int64 {
		if n == nil {
			return nil
		}
		return new(int64(min(*n, 1<<62)))
	}
	use.Memory, use.MemoryTotal = bytes(u.MemUsed), bytes(u.MemTotal)
	if u.Busy != nil {
		use.Busy = new(float64(*u.Busy) / 100)
	}
	for _, p := range u.Processes {
		if use.Processes == nil {
			use.Processes = map[int]int64{}
		}
		mem := int64(0)
		if told := bytes(p.Mem); told != nil {
			mem = *told
		}
		use.Processes[p.PID] += mem
	}
	return use
}

// DevicesOf implements plan.DeviceWatch. A worker of a job that gives none its own has the device with its local rank
// among the visible ones, as programs choose it by custom; where there are more workers than that nobody knows.
func (n *Devices) DevicesOf(localRank, workers int) []int {
	if localRank < len(n.shares) {
		if d := n.shares[localRank].Device; d.Vendor == "nvidia" && !d.Divided {
			return []int{d.Index}
		}
		return nil // an instance of a device has a part of its memory
	}
	f := n.nvidia()
	visible := slices.Clone(f.Visible)
	if f.Undecided != nil || workers > len(visible) || localRank >= len(visible) || visible[localRank].Divided {
		return nil
	}
	return []int{visible[localRank].Index}
}
