package web

import (
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"muster/launch/report"
)

// The history has a sample of the whole job for each idleEvery of a day: 8,640 of them, of 40 bytes.
const (
	historyTime = 24 * time.Hour
	historySize = int(historyTime / idleEvery)
	historyMost = 2000 // points of an answer
)

// sample is how the whole job stood. What is not known is not a number.
type sample struct {
	cpu, memory           float32 // processors in use, bytes
	device, busy          float32 // bytes of accelerators, share of time in which they compute
	step                  float32 // the least that a rank has finished
	stepMedian, stepWorst float32 // seconds
	running               float32 // workers
}

// history is what was, for a day. Its zero value has nothing.
type history struct {
	mu      sync.Mutex
	at      []int64 // in seconds since the epoch, the oldest first
	samples []sample
}

// add takes a sample in, where the one before is idleEvery old.
func (h *history) add(now time.Time, s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := now.Unix()
	if n := len(h.at); n > 0 && at-h.at[n-1] < int64(idleEvery/time.Second) {
		return
	}
	if len(h.at) >= historySize+historySize/8 { // not with each sample
		from := len(h.at) - historySize
		h.at, h.samples = append(h.at[:0], h.at[from:]...), append(h.samples[:0], h.samples[from:]...)
	}
	h.at, h.samples = append(h.at, at), append(h.samples, s)
}

// historyAnswer has a number for each point; one that is not known is null.
type historyAnswer struct {
	Time       []int64  `json:"time"` // in seconds since the epoch
	CPU        []number `json:"cpu"`
	Memory     []number `json:"memory"`
	Device     []number `json:"device"`
	Busy       []number `json:"busy"`
	Step       []number `json:"step"`
	StepMedian []number `json:"stepMedian"`
	StepWorst  []number `json:"stepWorst"`
	Running    []number `json:"running"`
}

// number is null in JSON where it is not known.
type number float32

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) { return appendNumber(nil, float64(n)), nil }

// read returns no more points than asked for: where there are more samples a point is the mean of several, the worst
// time of a step their worst.
func (h *history) read(points string) historyAnswer {
	most, err := strconv.Atoi(points)
	if err != nil || most <= 0 || most > historyMost {
		most = historyMost
	}
	h.mu.Lock()
	at, samples := slices.Clone(h.at), slices.Clone(h.samples)
	h.mu.Unlock()
	if past := len(at) - historySize; past > 0 {
		at, samples = at[past:], samples[past:]
	}
	a := historyAnswer{
		Time: []int64{}, CPU: []number{}, Memory: []number{}, Device: []number{}, Busy: []number{}, Step: []number{},
		StepMedian: []number{}, StepWorst: []number{},
		Running: []number{},
	}
	each := max(1, (len(at)+most-1)/most)
	for i := 0; i < len(at); i += each {
		of := samples[i:min(i+each, len(at))]
		a.Time = append(a.Time, at[i])
		a.CPU = append(a.CPU, mean(of, func(s *sample) float32 { return s.cpu }))
		a.Memory = append(a.Memory, mean(of, func(s *sample) float32 { return s.memory }))
		a.Device = append(a.Device, mean(of, func(s *sample) float32 { return s.device }))
		a.Busy = append(a.Busy, mean(of, func(s *sample) float32 { return s.busy }))
		a.Step = append(a.Step, mean(of, func(s *sample) float32 { return s.step }))
		a.StepMedian = append(a.StepMedian, mean(of, func(s *sample) float32 { return s.stepMedian }))
		a.Running = append(a.Running, mean(of, func(s *sample) float32 { return s.running }))
		worst := number(math.NaN())
		for j := range of {
			if w := number(of[j].stepWorst); math.IsNaN(float64(worst)) || w > worst {
				worst = w
			}
		}
		a.StepWorst = append(a.StepWorst, worst)
	}
	return a
}

// mean is that of the samples in which something is known.
func mean(of []sample, value func(*sample) float32) number {
	sum, known := 0.0, 0
	for i := range of {
		if v := float64(value(&of[i])); !math.IsNaN(v) {
			sum, known = sum+v, known+1
		}
	}
	return number(sum / float64(known))
}

// sampleLocked is how the job stands now.
func (p *picture) sampleLocked() sample {
	nan := float32(math.NaN())
	s := sample{cpu: nan, memory: nan, device: nan, busy: nan, step: nan, stepMedian: nan, stepWorst: nan}
	var cpu, memory float64
	var knowsCPU, knowsMemory bool
	var device, busy float64
	var knowsDevice, busyOf int
	least := int64(-1)
	var times []float64
	for i := range p.told.Ranks {
		r := &p.told.Ranks[i]
		if r.Phase == report.PhaseRunning {
			s.running++
		}
		if u := p.cpu[r.Rank]; u.known {
			cpu, knowsCPU = cpu+u.rate, true
		}
		if r.ResidentBytes != nil {
			memory, knowsMemory = memory+float64(*r.ResidentBytes), true
		}
		if used, _, known := r.DeviceMemory(); known {
			device += float64(used)
			knowsDevice++
		}
		if share, known := r.DeviceBusy(); known {
			busy += share
			busyOf++
		}
		if g := r.Progress; g != nil {
			if least < 0 || g.Step < least {
				least = g.Step
			}
			if g.StepSeconds != nil {
				times = append(times, *g.StepSeconds)
			}
		}
	}
	if knowsCPU {
		s.cpu = float32(cpu)
	}
	if knowsMemory {
		s.memory = float32(memory)
	}
	if knowsDevice > 0 {
		s.device = float32(device)
	}
	if busyOf > 0 {
		s.busy = float32(busy / float64(busyOf))
	}
	if least >= 0 {
		s.step = float32(least)
	}
	if len(times) > 0 {
		slices.Sort(times)
		s.stepMedian, s.stepWorst = float32(times[len(times)/2]), float32(times[len(times)-1])
	}
	return s
}
