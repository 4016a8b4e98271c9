//go:build linux && cgo

package main

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"muster/internal/accel/nvline"
)

// maxMoments keeps a wrong number from keeping the probe busy; its deadline is short enough anyway.
const maxMoments = 10

// sample reads all GPUs several times, a second apart: whether a GPU is slowed down for good, and whether counters
// grow, no single reading tells.
func (p *probe) sample(gpus []*gpu, moments int) {
	begin := time.Now()
	for m := range moments {
		if m > 0 {
			time.Sleep(time.Until(begin.Add(time.Duration(m) * time.Second)))
		}
		for _, g := range gpus {
			if g.RC == 0 {
				ms := int(time.Since(begin).Milliseconds())
				p.out.put(nvline.SampleLine{T: nvline.Later, MS: ms, GPU: g.Index, Sample: g.moment(m == 0)})
			}
		}
	}
}

// moment makes the readings of one moment. Only the first moment's calls are announced, and explained where they fail.
func (g *gpu) moment(first bool) nvline.Sample {
	var s nvline.Sample
	ask := func(field, symbol string, call func() nvml.Return) bool {
		if first {
			return g.get(field, call, symbol)
		}
		return g.RC == 0 && g.p.symbol(symbol) != "" && call() == nvml.SUCCESS
	}
	var clocks uint64
	if name := g.p.symbol("nvmlDeviceGetCurrentClocksEventReasons"); name != "" {
		if ask("clocks_event_reasons", name, func() (rc nvml.Return) { clocks, rc = g.d.GetCurrentClocksEventReasons(); return }) {
			s.Clocks = &clocks
		}
	} else if ask("clocks_event_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", func() (rc nvml.Return) {
		clocks, rc = g.d.GetCurrentClocksThrottleReasons()
		return
	}) {
		s.Clocks = &clocks
	}
	var replays int
	if ask("pcie_replays", "nvmlDeviceGetPcieReplayCounter", func() (rc nvml.Return) { replays, rc = g.d.GetPcieReplayCounter(); return }) {
		s.PCIeReplays = &replays
	}
	if len(g.NVLink) == 0 {
		return s
	}
	v := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL},
		{FieldId: nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL},
		{FieldId: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL},
		{FieldId: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL},
	}
	if !ask("nvlink_errors", "nvmlDeviceGetFieldValues", func() nvml.Return { return g.d.GetFieldValues(v) }) {
		return s
	}
	value := func(i int) *uint64 {
		if nvml.Return(v[i].NvmlReturn) != nvml.SUCCESS {
			return nil
		}
		n := uint64(max(0, fieldNumber(v[i])))
		return &n
	}
	s.NVLinkReplay, s.NVLinkRecover = value(2), value(3)
	switch flits, data := value(0), value(1); {
	case flits != nil && data != nil:
		sum := *flits + *data
		s.NVLinkCRC = &sum
	case flits != nil:
		s.NVLinkCRC = flits
	default:
		s.NVLinkCRC = data
	}
	return s
}
