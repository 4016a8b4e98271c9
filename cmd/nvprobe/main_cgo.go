//go:build linux && cgo

package main

import (
	"os"
	"strconv"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"muster/internal/accel/nvline"
)

// comm is the name that ps shows; the kernel wants it with a zero byte behind.
var comm = [...]byte{'n', 'v', 'p', 'r', 'o', 'b', 'e', 0}

func init() {
	// Started from a memfd, a process is called by its descriptor's number. Only the first thread's name counts, and
	// init runs on it.
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&comm)), 0, 0, 0)
}

func main() {
	p := &probe{out: &writer{to: privateStdout()}}
	p.out.put(nvline.HelloLine{T: nvline.Hello, V: nvline.Version, GoNVML: nvline.GoNVML})
	p.run()
	p.out.put(nvline.DoneLine{T: nvline.Done})
	// nvmlShutdown is left out: it may hang as well, and has nothing to tell.
}

// privateStdout moves standard output out of the library's reach: what that prints goes to standard error.
func privateStdout() *os.File {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.Stdout
	}
	_ = unix.Dup3(2, 1, 0)
	return os.NewFile(uintptr(fd), "stdout")
}

// defaultLibrary is what the loader looks for; it is go-nvml's own default.
const defaultLibrary = "libnvidia-ml.so.1"

type probe struct {
	out *writer
	lib nvml.Interface
	dl  *dl.DynamicLibrary
	// quiet says that calls are neither announced nor explained: all of them were made before.
	quiet bool
}

func (p *probe) at(call string, gpu int) {
	if p.quiet {
		return
	}
	p.out.put(nvline.AtLine{T: nvline.At, Call: call, GPU: gpu})
}

func (p *probe) fatal(call string, rc nvml.Return, why string) {
	p.out.put(nvline.FatalLine{T: nvline.Fatal, Call: call, RC: int(rc), Why: why})
}

func (p *probe) na(gpu int, field, why string) {
	if p.quiet {
		return
	}
	p.out.put(nvline.NALine{T: nvline.NA, GPU: gpu, Field: field, Why: why})
}

// symbol returns the first of names that the library has, and "" where it has none: go-nvml's call would end this
// process then. It asks what lib.Extensions().LookupSymbol asks, and can do so before nvmlInit too.
func (p *probe) symbol(names ...string) string {
	for _, name := range names {
		if p.dl.Lookup(name) == nil {
			return name
		}
	}
	return ""
}

func (p *probe) run() {
	path := os.Getenv(nvline.LibraryVariable)
	if path == "" {
		path = defaultLibrary
	}
	// go-nvml's Init loads the library too, and says no more than that it could not. Loading it twice counts twice.
	p.dl = dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	p.at("dlopen", -1)
	if err := p.dl.Open(); err != nil {
		p.fatal("dlopen", nvml.ERROR_LIBRARY_NOT_FOUND, err.Error())
		return
	}
	p.lib = nvml.New(nvml.WithLibraryPath(path))
	call := p.symbol("nvmlInit_v2", "nvmlInit")
	if call == "" {
		p.fatal("nvmlInit_v2", nvml.ERROR_FUNCTION_NOT_FOUND, path+" has no nvmlInit")
		return
	}
	p.at(call, -1)
	if rc := p.lib.Init(); rc != nvml.SUCCESS {
		p.fatal(call, rc, "")
		return
	}
	p.system()
	call = p.symbol("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	handle := p.symbol("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
	if call == "" || handle == "" {
		p.fatal("nvmlDeviceGetCount_v2", nvml.ERROR_FUNCTION_NOT_FOUND, path+" cannot enumerate GPUs")
		return
	}
	p.at(call, -1)
	n, rc := p.lib.DeviceGetCount()
	if rc != nvml.SUCCESS {
		p.fatal(call, rc, "")
		return
	}
	p.out.put(nvline.CountLine{T: nvline.Count, N: n})
	if ms, err := strconv.Atoi(os.Getenv(nvline.WatchVariable)); err == nil && ms > 0 {
		p.watch(handle, n, time.Duration(ms)*time.Millisecond)
		return
	}
	var gpus []*gpu
	for i := range n {
		p.at(handle, i)
		d, rc := p.lib.DeviceGetHandleByIndex(i)
		g := &gpu{p: p, d: d, GPU: nvline.GPU{Index: i}}
		if rc != nvml.SUCCESS {
			g.RC, g.Call = int(rc), handle
		} else {
			g.ask()
			g.peers(gpus)
		}
		p.out.put(nvline.GPULine{T: nvline.OfGPU, GPU: g.GPU})
		gpus = append(gpus, g)
	}
	if moments, err := strconv.Atoi(os.Getenv(nvline.MomentsVariable)); err == nil {
		p.sample(gpus, min(moments, maxMoments))
	}
}

func (p *probe) system() {
	sys := nvline.SysLine{T: nvline.Sys}
	ask := func(field, symbol string, f func() nvml.Return) {
		if p.symbol(symbol) == "" {
			p.na(-1, field, nvline.WhySymbol)
			return
		}
		p.at(symbol, -1)
		if rc := f(); rc != nvml.SUCCESS {
			p.na(-1, field, nvline.Why(int(rc)))
		}
	}
	ask("driver", "nvmlSystemGetDriverVersion", func() (rc nvml.Return) { sys.Driver, rc = p.lib.SystemGetDriverVersion(); return })
	ask("nvml", "nvmlSystemGetNVMLVersion", func() (rc nvml.Return) { sys.NVML, rc = p.lib.SystemGetNVMLVersion(); return })
	ask("cuda", "nvmlSystemGetCudaDriverVersion", func() (rc nvml.Return) { sys.CUDA, rc = p.lib.SystemGetCudaDriverVersion(); return })
	p.out.put(sys)
}

// gpu collects what one GPU tells.
type gpu struct {
	nvline.GPU
	p *probe
	d nvml.Device
}

// get makes one call about field, where the library has one of symbols (newest first, as go-nvml chooses). It returns
// true when the call succeeded; a GPU that is lost is asked nothing more.
func (g *gpu) get(field string, call func() nvml.Return, symbols ...string) bool {
	if g.RC == nvline.GPULost {
		return false
	}
	symbol := g.p.symbol(symbols...)
	if symbol == "" {
		g.p.na(g.Index, field, nvline.WhySymbol)
		return false
	}
	g.p.at(symbol, g.Index)
	rc := call()
	if rc == nvml.SUCCESS {
		return true
	}
	if (rc == nvml.ERROR_GPU_IS_LOST || rc == nvml.ERROR_RESET_REQUIRED) && g.RC != nvline.GPULost {
		g.RC, g.Call = int(rc), symbol
	}
	g.p.na(g.Index, field, nvline.Why(int(rc)))
	return false
}

// whole asks for a number of 32 bits.
func (g *gpu) whole(to **int, field, symbol string, call func() (int, nvml.Return)) {
	var v int
	if g.get(field, func() (rc nvml.Return) { v, rc = call(); return }, symbol) {
		*to = &v
	}
}

// count asks for a number of 64 bits.
func (g *gpu) count(to **uint64, field string, call func() (uint64, nvml.Return), symbols ...string) {
	var v uint64
	if g.get(field, func() (rc nvml.Return) { v, rc = call(); return }, symbols...) {
		*to = &v
	}
}

// state asks whether something is on.
func (g *gpu) state(to **bool, field, symbol string, call func() (nvml.EnableState, nvml.Return)) {
	var v nvml.EnableState
	if g.get(field, func() (rc nvml.Return) { v, rc = call(); return }, symbol) {
		*to = on(v)
	}
}

func on(s nvml.EnableState) *bool {
	b := s == nvml.FEATURE_ENABLED
	return &b
}

// identify asks what identifies the GPU.
func (g *gpu) identify() {
	d := g.d
	g.get("uuid", func() (rc nvml.Return) { g.UUID, rc = d.GetUUID(); return }, "nvmlDeviceGetUUID")
	g.get("name", func() (rc nvml.Return) { g.Name, rc = d.GetName(); return }, "nvmlDeviceGetName")
	var pci nvml.PciInfo
	if g.get("bdf", func() (rc nvml.Return) { pci, rc = d.GetPciInfo(); return },
		"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo") {
		g.BDF = nvline.NormalBDF(text(pci.BusId[:]))
		if g.BDF == "" { // before version 3 it was in another place
			g.BDF = nvline.NormalBDF(text(pci.BusIdLegacy[:]))
		}
	}
	g.whole(&g.Minor, "minor", "nvmlDeviceGetMinorNumber", d.GetMinorNumber)
}

func (g *gpu) memory() {
	var mem nvml.Memory
	if g.get("mem", func() (rc nvml.Return) { mem, rc = g.d.GetMemoryInfo(); return }, "nvmlDeviceGetMemoryInfo") {
		g.MemTotal, g.MemUsed = &mem.Total, &mem.Used
	}
}

// ask asks what identifies the GPU first, so that the rest has a name.
func (g *gpu) ask() {
	d := g.d
	g.identify()
	g.memory()
	var current, pending int
	if g.get("mig", func() (rc nvml.Return) { current, pending, rc = d.GetMigMode(); return }, "nvmlDeviceGetMigMode") {
		g.MIG, g.MIGPending = on(nvml.EnableState(current)), on(nvml.EnableState(pending))
	}
	g.state(&g.Persistence, "persistence", "nvmlDeviceGetPersistenceMode", d.GetPersistenceMode)
	g.whole(&g.ComputeMode, "compute_mode", "nvmlDeviceGetComputeMode", func() (int, nvml.Return) {
		mode, rc := d.GetComputeMode()
		return int(mode), rc
	})
	g.memoryHealth()
	g.fields()
	g.links()
	g.fabric()
	g.whole(&g.PCIeWidth, "pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth)
	g.whole(&g.PCIeWidthMax, "pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth)
	g.whole(&g.PCIeGen, "pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration)
	g.whole(&g.PCIeGenMax, "pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration)
	g.clocks()
	g.whole(&g.Temperature, "temperature", "nvmlDeviceGetTemperature", func() (int, nvml.Return) {
		t, rc := d.GetTemperature(nvml.TEMPERATURE_GPU)
		return int(t), rc
	})
	g.thresholds()
	g.power()
	g.processes()
}

func (g *gpu) memoryHealth() {
	d := g.d
	var now, next nvml.EnableState
	if g.get("ecc", func() (rc nvml.Return) { now, next, rc = d.GetEccMode(); return }, "nvmlDeviceGetEccMode") {
		g.ECC, g.ECCPending = on(now), on(next)
	}
	total := func(since nvml.EccCounterType) func() (uint64, nvml.Return) {
		return func() (uint64, nvml.Return) { return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, since) }
	}
	g.count(&g.ECCVolatile, "ecc_volatile", total(nvml.VOLATILE_ECC), "nvmlDeviceGetTotalEccErrors")
	g.count(&g.ECCAggregate, "ecc_aggregate", total(nvml.AGGREGATE_ECC), "nvmlDeviceGetTotalEccErrors")
	var rows nvline.Remapped
	if g.get("remapped_rows", func() (rc nvml.Return) {
		rows.Correctable, rows.Uncorrectable, rows.Pending, rows.Failed, rc = d.GetRemappedRows()
		return
	}, "nvmlDeviceGetRemappedRows") {
		g.Remapped = &rows
	}
	g.sram()
	g.state(&g.RetiredPending, "retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus", d.GetRetiredPagesPendingStatus)
	retired := func(cause nvml.PageRetirementCause) func() (int, nvml.Return) {
		return func() (int, nvml.Return) {
			pages, rc := d.GetRetiredPages(cause)
			return len(pages), rc
		}
	}
	g.whole(&g.RetiredSBE, "retired_sbe", "nvmlDeviceGetRetiredPages", retired(nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS))
	g.whole(&g.RetiredDBE, "retired_dbe", "nvmlDeviceGetRetiredPages", retired(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR))
}

func (g *gpu) clocks() {
	// Drivers before r535 have the same bits under the older name.
	if g.p.symbol("nvmlDeviceGetCurrentClocksEventReasons") != "" {
		g.count(&g.Clocks, "clocks_event_reasons", g.d.GetCurrentClocksEventReasons, "nvmlDeviceGetCurrentClocksEventReasons")
		return
	}
	g.count(&g.Clocks, "clocks_event_reasons", g.d.GetCurrentClocksThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons")
}

func (g *gpu) processes() {
	var all []nvml.ProcessInfo
	if !g.get("processes", func() (rc nvml.Return) { all, rc = g.d.GetComputeRunningProcesses(); return },
		"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses") {
		return
	}
	g.Processes = []nvline.Process{}
	for _, info := range all {
		p := nvline.Process{PID: int(info.Pid)}
		if info.UsedGpuMemory != ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
			p.Mem = &info.UsedGpuMemory
		}
		g.Processes = append(g.Processes, p)
	}
}
