//go:build linux && cgo

package main

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"muster/internal/accel/nvline"
)

// watch says what the GPUs are used for, again and again. handle is the call that gives a GPU's handle. It returns when
// nobody listens any more.
func (p *probe) watch(handle string, count int, every time.Duration) {
	gpus := make([]*gpu, count)
	for i := range gpus {
		p.at(handle, i)
		d, rc := p.lib.DeviceGetHandleByIndex(i)
		gpus[i] = &gpu{p: p, d: d, GPU: nvline.GPU{Index: i}}
		if rc != nvml.SUCCESS {
			gpus[i].RC = int(rc)
			continue
		}
		gpus[i].identify()
	}
	for !p.out.gone {
		line := nvline.UseLine{T: nvline.OfUse, GPUs: make([]nvline.Use, count)}
		for i, g := range gpus {
			line.GPUs[i] = g.use()
		}
		p.out.put(line)
		p.quiet = true // what fails is known
		time.Sleep(every)
	}
}

// use reads what the GPU is used for.
func (g *gpu) use() nvline.Use {
	u := nvline.Use{Index: g.Index, UUID: g.UUID, BDF: g.BDF, Minor: g.Minor}
	if g.RC == 0 {
		g.MemTotal, g.MemUsed, g.Processes = nil, nil, nil
		g.memory()
		g.processes()
		g.whole(&u.Busy, "utilization", "nvmlDeviceGetUtilizationRates", func() (int, nvml.Return) {
			rates, rc := g.d.GetUtilizationRates()
			return int(rates.Gpu), rc
		})
		u.MemTotal, u.MemUsed, u.Processes = g.MemTotal, g.MemUsed, g.Processes
	}
	u.RC = g.RC
	return u
}
