//go:build linux && cgo

package main

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"muster/internal/accel/nvline"
)

// field asks for one of NVML's numbered fields; drivers that do not know the number refuse it, with or without a return
// code of its own.
func (g *gpu) field(to **int, name string, id uint32) {
	v := []nvml.FieldValue{{FieldId: id}}
	if g.get(name, func() nvml.Return {
		if rc := g.d.GetFieldValues(v); rc != nvml.SUCCESS {
			return rc
		}
		return nvml.Return(v[0].NvmlReturn)
	}, "nvmlDeviceGetFieldValues") {
		n := fieldNumber(v[0])
		*to = &n
	}
}

// fieldNumber reads the union nvmlValue_t; the fields that are asked for are whole numbers.
func fieldNumber(v nvml.FieldValue) int {
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return int(binary.NativeEndian.Uint32(v.Value[:]))
	case nvml.VALUE_TYPE_SIGNED_INT:
		return int(int32(binary.NativeEndian.Uint32(v.Value[:])))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return int(binary.NativeEndian.Uint16(v.Value[:]))
	default:
		return int(binary.NativeEndian.Uint64(v.Value[:]))
	}
}

func (g *gpu) fields() {
	g.field(&g.Recovery, "recovery_action", nvml.FI_DEV_GET_GPU_RECOVERY_ACTION)
	g.field(&g.TempMem, "temperature_mem", nvml.FI_DEV_MEMORY_TEMP)
}

// links asks each NVLink for its state. How many there are is field 91; without it, they are asked until one refuses.
func (g *gpu) links() {
	var known *int
	g.field(&known, "nvlink_count", nvml.FI_DEV_NVLINK_LINK_COUNT)
	n := nvml.NVLINK_MAX_LINKS
	if known != nil {
		n = min(n, *known)
	}
	for link := range n {
		if g.RC == nvline.GPULost {
			return
		}
		var v nvml.EnableState
		ok := false
		g.quiet("nvmlDeviceGetNvLinkState", link == 0, func() (rc nvml.Return) {
			v, rc = g.d.GetNvLinkState(link)
			ok = rc == nvml.SUCCESS
			return rc
		})
		switch {
		case ok && v == nvml.FEATURE_ENABLED:
			g.NVLink = append(g.NVLink, 1)
		case ok:
			g.NVLink = append(g.NVLink, 0)
		case known == nil || link == 0:
			return // that was the last one, or none has a state
		default:
			g.NVLink = append(g.NVLink, -1)
		}
	}
}

// quiet is get for the same call made many times: only the first is announced, and explained where it fails.
func (g *gpu) quiet(symbol string, first bool, call func() nvml.Return) {
	if first {
		g.get("nvlink", call, symbol)
		return
	}
	if rc := call(); rc == nvml.ERROR_GPU_IS_LOST {
		g.RC, g.Call = int(rc), symbol
	}
}

// sram asks for the maker's verdict on the caches' errors.
func (g *gpu) sram() {
	var status nvml.EccSramErrorStatus
	if g.get("sram_threshold", func() (rc nvml.Return) { status, rc = g.d.GetSramEccErrorStatus(); return },
		"nvmlDeviceGetSramEccErrorStatus") {
		over := status.BThresholdExceeded != 0
		g.SRAM = &over
	}
}

// fabric asks how the GPU gets on with its NVSwitches. Drivers of the older structure refuse the newer one.
func (g *gpu) fabric() {
	var info nvml.GpuFabricInfo_v2
	if g.get("fabric", func() (rc nvml.Return) { info, rc = g.d.GetGpuFabricInfoV().V2(); return }, "nvmlDeviceGetGpuFabricInfoV") {
		g.Fabric = &nvline.Fabric{State: int(info.State), Status: int(info.Status), Health: info.HealthMask}
	}
}

// peers asks whether the GPUs of lower indexes can be reached over NVLink: the others have no handle yet, and getting
// one may be what hangs.
func (g *gpu) peers(others []*gpu) {
	const symbol = "nvmlDeviceGetP2PStatus"
	if len(others) == 0 || len(g.NVLink) == 0 || g.RC == nvline.GPULost {
		return
	}
	if g.p.symbol(symbol) == "" {
		g.p.na(g.Index, "p2p_nvlink", nvline.WhySymbol)
		return
	}
	g.p.at(symbol, g.Index)
	for _, other := range others {
		answer := -1
		if other.RC == 0 {
			if status, rc := g.d.GetP2PStatus(other.d, nvml.P2P_CAPS_INDEX_NVLINK); rc == nvml.SUCCESS {
				answer = int(status)
			}
		}
		g.P2P = append(g.P2P, answer)
	}
}

// thresholds asks for the temperatures that the maker allows.
func (g *gpu) thresholds() {
	limit := func(kind nvml.TemperatureThresholds) func() (int, nvml.Return) {
		return func() (int, nvml.Return) {
			t, rc := g.d.GetTemperatureThreshold(kind)
			return int(t), rc
		}
	}
	g.whole(&g.TempSlow, "temperature_slow", "nvmlDeviceGetTemperatureThreshold", limit(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN))
	g.whole(&g.TempMemMax, "temperature_mem_max", "nvmlDeviceGetTemperatureThreshold", limit(nvml.TEMPERATURE_THRESHOLD_MEM_MAX))
}

// power asks for what the GPU draws, and how fast it runs by that.
func (g *gpu) power() {
	narrow := func(ask func() (uint32, nvml.Return)) func() (int, nvml.Return) {
		return func() (int, nvml.Return) {
			v, rc := ask()
			return int(v), rc
		}
	}
	clock := func(kind nvml.ClockType) func() (uint32, nvml.Return) {
		return func() (uint32, nvml.Return) { return g.d.GetClockInfo(kind) }
	}
	g.whole(&g.Power, "power", "nvmlDeviceGetPowerUsage", narrow(g.d.GetPowerUsage))
	g.whole(&g.PowerLimit, "power_limit", "nvmlDeviceGetEnforcedPowerLimit", narrow(g.d.GetEnforcedPowerLimit))
	g.whole(&g.ClockSM, "clock_sm", "nvmlDeviceGetClockInfo", narrow(clock(nvml.CLOCK_SM)))
	g.whole(&g.ClockMem, "clock_mem", "nvmlDeviceGetClockInfo", narrow(clock(nvml.CLOCK_MEM)))
}

// text reads a C string.
func text(chars []int8) string {
	b := make([]byte, 0, len(chars))
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
