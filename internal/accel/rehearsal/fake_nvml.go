package rehearsal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"muster/internal/accel/nvline"
)

// maxReadings is how often the fake's GPUs can be read, and throttled.
const maxReadings = 3

// The calls of the probe in which it can end.
const (
	initCall   = "nvmlInit_v2"
	handleCall = "nvmlDeviceGetHandleByIndex_v2"
)

// Temperatures of a fake GPU, in °C, as an H100 has them.
const (
	fakeCool, fakeSlow, fakeMemory, fakeMemoryMax = 34, 87, 41, 95
)

// fakeUsedMiB is the memory that a driver takes of a GPU for itself.
const fakeUsedMiB = 512

// NVML is what the NVML probe would say of the fake's GPUs, with as many readings as are asked for.
func (f *Fake) NVML(moments int) nvline.Script {
	w := nvmlWriter{f: f, calls: map[string]int{}}
	w.end = w.say(moments)
	return nvline.Script{Lines: w.out.Bytes(), End: w.end}
}

// NVMLUse is what the NVML probe would say of what the fake's GPUs are used for, at one moment.
func (f *Fake) NVMLUse() nvline.Script {
	w := nvmlWriter{f: f, calls: map[string]int{}}
	w.end = w.sayUse()
	return nvline.Script{Lines: w.out.Bytes(), End: w.end}
}

// nvmlWriter writes the probe's lines.
type nvmlWriter struct {
	f     *Fake
	out   bytes.Buffer
	end   string
	calls map[string]int // how often each was made
}

func (w *nvmlWriter) put(line any) {
	b, err := json.Marshal(line)
	if err != nil {
		panic("internal error: " + err.Error()) // the lines have neither floats nor cycles
	}
	w.out.Write(append(b, '\n'))
}

// at leaves a breadcrumb, and reports whether the probe ends in this call, and how.
func (w *nvmlWriter) at(call string, gpu int) (end string, ends bool) {
	w.put(nvline.AtLine{T: nvline.At, Call: call, GPU: gpu})
	w.calls[call]++
	meets := func(f *fault) bool {
		switch {
		case f == nil || f.text["at"] != call:
			return false
		case f.when.calls > 0:
			return w.calls[call] > f.when.calls
		}
		return f.nums["gpu"] == gpu
	}
	if hang := w.f.spec.is("probe-hang"); meets(hang) {
		if hang.text["mode"] == "dstate" {
			return nvline.EndStuck, true
		}
		return nvline.EndHung, true
	}
	if meets(w.f.spec.is("probe-crash")) {
		return nvline.EndCrashed, true
	}
	return "", false
}

func (w *nvmlWriter) fatal(call string, rc int) string {
	w.put(nvline.FatalLine{T: nvline.Fatal, Call: call, RC: rc})
	return w.done()
}

func (w *nvmlWriter) done() string {
	w.put(nvline.DoneLine{T: nvline.Done})
	return nvline.EndWell
}

// begin writes what is said before the GPUs, and returns which of them are counted; else how the probe ends.
func (w *nvmlWriter) begin() (counted []int, end string, ends bool) {
	s := &w.f.spec
	if s.has("nvml-missing", -1) {
		return nil, nvline.EndNone, true
	}
	w.put(nvline.HelloLine{T: nvline.Hello, V: nvline.Version, GoNVML: nvline.GoNVML})
	if s.has("nvml-not-injected", -1) {
		return nil, w.fatal("dlopen", nvline.LibraryNotFound), true
	}
	if end, ends := w.at(initCall, -1); ends {
		return nil, end, true
	}
	library := s.driver
	if mismatch := s.is("driver-mismatch"); mismatch != nil && mismatch.nums["value"] != 0 {
		if library = mismatch.text["library"]; library == "" {
			return nil, w.fatal(initCall, nvline.VersionMismatch), true // as a driver does
		}
	}
	if s.has("driver-not-loaded", -1) {
		return nil, w.fatal(initCall, nvline.DriverNotLoaded), true
	}
	w.put(nvline.SysLine{T: nvline.Sys, Driver: s.driver, NVML: "12." + library, CUDA: 12040})
	counted = slices.DeleteFunc(w.f.numbers(), func(i int) bool { return s.has("missing", i) || s.has("nouveau", i) })
	w.put(nvline.CountLine{T: nvline.Count, N: len(counted)})
	return counted, "", false
}

// sayUse writes what the GPUs are used for and returns how the probe ends; EndWell: it goes on.
func (w *nvmlWriter) sayUse() string {
	counted, end, ends := w.begin()
	if ends {
		return end
	}
	line := nvline.UseLine{T: nvline.OfUse}
	for index, i := range counted {
		if end, ends := w.at(handleCall, index); ends {
			return end
		}
		if w.f.spec.has("gpu-lost", i) {
			line.GPUs = append(line.GPUs, nvline.Use{Index: index, RC: nvline.GPULost})
			continue
		}
		line.GPUs = append(line.GPUs, nvline.Use{
			Index: index, UUID: w.f.uuid(i), BDF: fakeAddress(i), Minor: new(i), MemTotal: w.f.memTotal(i), MemUsed: w.f.memUsed(i),
			Busy: new(w.f.spec.fault("busy", i, "percent", 0)), Processes: w.f.processes(i),
		})
	}
	w.put(line)
	return nvline.EndWell
}

// memTotal and memUsed are the memory of GPU i in bytes, processes those that compute there.
func (f *Fake) memTotal(i int) *uint64 { return new(uint64(f.memoryMiB(i)) << 20) }

func (f *Fake) memUsed(i int) *uint64 {
	return new(uint64(f.spec.fault("busy", i, "mib", fakeUsedMiB)) << 20)
}

func (f *Fake) processes(i int) []nvline.Process {
	if pid := f.spec.fault("busy", i, "pid", 0); pid != 0 {
		return []nvline.Process{{PID: pid, Mem: f.memUsed(i)}}
	}
	return []nvline.Process{}
}

// say writes all lines and returns how the probe ends.
func (w *nvmlWriter) say(moments int) string {
	s := &w.f.spec
	counted, end, ends := w.begin()
	if ends {
		return end
	}
	for index, i := range counted {
		if end, ends := w.at(handleCall, index); ends {
			return end
		}
		g := w.gpu(index, i)
		for _, f := range s.faults {
			if f.kind == "symbol-missing" {
				w.put(nvline.NALine{T: nvline.NA, GPU: index, Field: f.text["field"], Why: nvline.WhySymbol})
			}
		}
		w.put(g)
	}
	for m := range min(moments, maxReadings) {
		for index, i := range counted {
			if !s.has("gpu-lost", i) {
				w.put(nvline.SampleLine{T: nvline.Later, MS: m * 1000, GPU: index, Sample: w.sample(i, m)})
			}
		}
	}
	return w.done()
}

// gpu is the line of GPU i, as a map: a symbol that is missing takes a field away by its name.
func (w *nvmlWriter) gpu(index, i int) map[string]any {
	f, s := w.f, &w.f.spec
	g := nvline.GPU{
		Index: index, UUID: f.uuid(i), Name: f.model(i), BDF: fakeAddress(i), Minor: new(i), Processes: f.processes(i),
		MemTotal: f.memTotal(i), MemUsed: f.memUsed(i),
		MIG: new(s.mig[i] != nil), MIGPending: new(s.mig[i] != nil), Persistence: new(!s.has("persistence-off", i)),
		ComputeMode: new(s.fault("compute-mode", i, "value", 0)),
		ECC:         new(!s.has("ecc-off", i)), ECCPending: new(!s.has("ecc-off", i)),
		ECCVolatile: new(uint64(s.fault("ecc-uncorrectable", i, "value", 0))),
		SRAM:        new(s.has("sram-threshold", i)), Recovery: new(s.fault("reset-required", i, "value", 0)),
		Remapped: &nvline.Remapped{
			Uncorrectable: s.fault("remap-many", i, "value", 0), Pending: s.has("remap-pending", i), Failed: s.has("remap-failed", i),
		},
		RetiredPending: new(s.has("retired-pending", i)), RetiredSBE: new(0), RetiredDBE: new(s.fault("retired-many", i, "value", 0)),
		Fabric: &nvline.Fabric{
			State:  s.fault("fabric-not-ready", i, "value", 3),
			Health: uint32(s.fault("fabric-not-ready", i, "health", 0)),
		},
		PCIeWidth: new(s.fault("pcie-width", i, "value", s.width)), PCIeWidthMax: new(s.width),
		PCIeGen: new(s.fault("pcie-speed", i, "value", s.gen)), PCIeGenMax: new(s.gen),
		Clocks: new(w.reasons(i, 0)), Temperature: new(s.fault("temp", i, "value", fakeCool)), TempSlow: new(fakeSlow),
		TempMem: new(s.fault("temp-memory", i, "value", fakeMemory)), TempMemMax: new(fakeMemoryMax),
		Power: new(71_000), PowerLimit: new(700_000), ClockSM: new(345), ClockMem: new(2619),
	}
	// What was counted since the driver was loaded is part of what was ever counted.
	g.ECCAggregate = new(uint64(max(s.fault("ecc-aggregate", i, "value", 0), s.fault("ecc-uncorrectable", i, "value", 0))))
	for link := range s.nvlinks {
		state := 1
		if slices.ContainsFunc(s.faults, func(f fault) bool { return f.kind == "nvlink-down" && f.gpu == i && f.nums["link"] == link }) {
			state = 0
		}
		g.NVLink = append(g.NVLink, state)
	}
	if s.nvlinks > 0 {
		for range index {
			g.P2P = append(g.P2P, 5*s.fault("nvlink-none", -1, "value", 0)) // 5: not supported
		}
	}
	if s.has("gpu-lost", i) {
		g = nvline.GPU{Index: index, RC: nvline.GPULost, Call: handleCall} // without a handle it has no name
	}
	b, err := json.Marshal(nvline.GPULine{T: nvline.OfGPU, GPU: g})
	line := map[string]any{}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber() // floats would lose digits of memory sizes
		err = d.Decode(&line)
	}
	if err != nil {
		panic("internal error: " + err.Error())
	}
	for _, f := range s.faults {
		if f.kind == "symbol-missing" {
			delete(line, f.text["field"])
		}
	}
	return line
}

// reasons are those of a GPU's clocks at a reading: idle, unless a fault has it at work or slowed down.
func (w *nvmlWriter) reasons(i, reading int) uint64 {
	s := &w.f.spec
	if late := reading - s.calls("throttle", i); late >= 0 && late < s.fault("throttle", i, "readings", 0) {
		return uint64(s.fault("throttle", i, "mask", 0))
	}
	if s.fault("pcie-speed", i, "value", 0) != 0 {
		return 0
	}
	return 1
}

func (w *nvmlWriter) sample(i, reading int) nvline.Sample {
	s := &w.f.spec
	v := nvline.Sample{Clocks: new(w.reasons(i, reading)), PCIeReplays: new(0)}
	if reading >= max(1, s.calls("pcie-replay", i)) {
		v.PCIeReplays = new(s.fault("pcie-replay", i, "value", 0)) // all between two readings
	}
	if s.nvlinks > 0 {
		v.NVLinkCRC = new(uint64(max(0, reading-max(0, s.calls("nvlink-errors", i)-1)) * s.fault("nvlink-errors", i, "value", 0)))
		v.NVLinkReplay, v.NVLinkRecover = new(uint64(0)), new(uint64(0))
	}
	return v
}

// KernelLog is what the fake's kernel has said, oldest first; an error where it says nothing to this process.
func (f *Fake) KernelLog() ([]FakeLogLine, error) {
	if f.spec.has("kmsg-unreadable", -1) {
		return nil, fmt.Errorf("/dev/kmsg: permission denied")
	}
	var lines []FakeLogLine
	for _, x := range f.spec.faults {
		at, _, _ := strings.Cut(fakeAddress(max(x.gpu, 0)), ".")
		line := FakeLogLine{Age: time.Duration(x.nums["age_s"]) * time.Second}
		switch {
		case x.kind == "xid":
			if line.Text = x.text["line"]; line.Text == "" {
				line.Text = fmt.Sprintf("NVRM: Xid (PCI:%s): %d, pid=4242, name=python", at, x.nums["code"])
			}
		case x.kind == "kernel-log":
			line.Text = x.text["line"]
		case x.kind == "gpu-lost" && x.nums["value"] != 0 && f.spec.vendor.Name == "nvidia":
			line.Text = fmt.Sprintf("NVRM: GPU %s.0: GPU has fallen off the bus.", at)
		default:
			continue
		}
		lines = append(lines, line)
	}
	slices.SortStableFunc(lines, func(a, b FakeLogLine) int { return int((b.Age - a.Age) / time.Second) })
	return lines, nil
}

// FakeLogLine is a line of a fake's kernel log.
type FakeLogLine struct {
	Age  time.Duration
	Text string
}

// FakeLimits are what a fake says in the place of the machine's file systems and limits; nil leaves the machine's.
type FakeLimits struct {
	ShmMiB, DiskFreeMiB, OpenFiles *int
	LockedKiB                      *int // -1: no limit
	ShmReadOnly                    bool
}

// Limits returns the fake's limits.
func (f *Fake) Limits() FakeLimits {
	number := func(kind, key string) *int {
		if x := f.spec.is(kind); x != nil {
			return new(x.nums[key])
		}
		return nil
	}
	l := FakeLimits{
		DiskFreeMiB: number("disk-free", "mib"), LockedKiB: number("memlock", "kib"), OpenFiles: number("open-files", "value"),
		ShmReadOnly: f.spec.has("shm-readonly", -1),
	}
	if f.spec.shmMiB > 0 {
		l.ShmMiB = &f.spec.shmMiB
	}
	return l
}

// numbers are the fake's GPUs.
func (f *Fake) numbers() []int {
	list := make([]int, f.spec.count)
	for i := range list {
		list[i] = i
	}
	return list
}

func (f *Fake) model(i int) string {
	for _, x := range f.spec.faults {
		if x.kind == "heterogeneous" && x.gpu == i && x.text["model"] != "" {
			return x.text["model"]
		}
	}
	return f.spec.modelName()
}

func (f *Fake) memoryMiB(i int) int {
	if own := f.spec.fault("heterogeneous", i, "memory_mib", 0); own > 0 {
		return own
	}
	return f.spec.memoryMiB
}

// fakeAddress is the PCI address of GPU i. A bus each; a domain has 256 of them, of which the lowest belong to bridges
// and on-board devices.
func fakeAddress(i int) string {
	domain, bus := fakeLocation(i)
	return fmt.Sprintf("%04x:%02x:00.0", domain, bus)
}

// fakeLocation is where on the PCI buses GPU i is: device 0 of a bus of its own.
func fakeLocation(i int) (domain, bus int) { return i / 128, 0x10 + i%128 }

// fakeBridge is the folder of the bridge above GPU i.
func fakeBridge(i int) string {
	domain := i / 128
	return path.Join("sys/devices", fmt.Sprintf("pci%04x:00", domain), fmt.Sprintf("%04x:00:%02x.%d", domain, 1+i%128/8, i%8))
}
