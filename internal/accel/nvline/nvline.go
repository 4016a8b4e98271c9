// Package nvline is the language between the NVML probe (cmd/nvprobe, which writes it) and muster
// (internal/accel/probe, which reads it): one JSON object per line, told apart by "t". Append only: a newer muster may
// read an older probe's lines and the other way round, so fields are added, and never change their meaning; Version
// changes where that is not enough.
//
//	{"t":"hello","v":1,"go_nvml":"0.13.3-0"}             first
//	{"t":"at","call":"nvmlInit_v2","gpu":-1}             before each call that may hang or die
//	{"t":"fatal","call":"nvmlInit_v2","rc":18}           NVML cannot be used at all
//	{"t":"sys","driver":"550.54.15","nvml":"12.550.54.15","cuda":12040}
//	{"t":"count","n":8}
//	{"t":"na","gpu":3,"field":"remapped_rows","why":"symbol"}
//	{"t":"gpu","i":3,"uuid":"GPU-…","bdf":"0000:1b:00.0",…}
//	{"t":"gpu","i":2,"rc":15,"call":"nvmlDeviceGetHandleByIndex_v2"}
//	{"t":"sample","ms":1003,"gpu":3,"pcie_replays":0,…}  once for each GPU and moment, where moments are asked for
//	{"t":"use","gpus":[{"i":3,"mem_used":…,"busy":97}]}  each time the GPUs are watched; then no line of a GPU and no end
//	{"t":"done"}                                         last; without it the last "at" names the culprit
package nvline

import (
	"fmt"
	"strings"
)

// Version is the version of the language, in the hello line.
const Version = 1

// GoNVML is the release of github.com/NVIDIA/go-nvml that the probe is built with; a test compares it with go.mod.
const GoNVML = "0.13.3-0"

// LibraryVariable names the environment variable that gives the NVML library another path or name.
const LibraryVariable = "MUSTER_NVML_PATH"

// MomentsVariable names the environment variable with how often, a second apart, the probe reads what only several
// readings tell; unset or 0 for not at all.
const MomentsVariable = "MUSTER_NVML_MOMENTS"

// WatchVariable names the environment variable with the milliseconds after which the probe reads anew what the GPUs are
// used for, until it is killed. It asks nothing else then; unset or 0 for not at all.
const WatchVariable = "MUSTER_NVML_WATCH"

// Values of T.
const (
	Hello = "hello"
	At    = "at"
	Fatal = "fatal"
	Sys   = "sys"
	Count = "count"
	NA    = "na"
	OfGPU = "gpu"
	Later = "sample"
	OfUse = "use"
	Done  = "done"
)

// Return codes of NVML that say something about the node (nvml.h, nvmlReturn_t; read in go-nvml v0.13.3-0).
const (
	NotSupported    = 3
	NoPermission    = 4
	DriverNotLoaded = 9
	LibraryNotFound = 12
	NoFunction      = 13
	GPULost         = 15
	ResetRequired   = 16
	VersionMismatch = 18
	NotReady        = 27
	Unknown         = 999
)

// Why a value is not available. Others are "rc=" and the return code.
const (
	WhySymbol       = "symbol" // the driver's library is too old to know the function
	WhyNotSupported = "not_supported"
	WhyNoPermission = "no_permission"
)

// Why puts a return code into the words of a "na" line.
func Why(rc int) string {
	switch rc {
	case NotSupported:
		return WhyNotSupported
	case NoPermission:
		return WhyNoPermission
	case NoFunction:
		return WhySymbol
	default:
		return fmt.Sprintf("rc=%d", rc)
	}
}

// Script is what a fake says in the place of the probe, and how it ends.
type Script struct {
	Lines []byte
	End   string
}

// Values of Script.End.
const (
	EndWell    = ""
	EndHung    = "hung"
	EndStuck   = "stuck" // not even SIGKILL ends it
	EndCrashed = "crashed"
	EndNone    = "none" // there is no probe
)

// HelloLine introduces the probe.
type HelloLine struct {
	T      string `json:"t"`
	V      int    `json:"v"`
	GoNVML string `json:"go_nvml"`
}

// AtLine is a breadcrumb: the probe is about to make this call. GPU is -1 for a call that is about no GPU.
type AtLine struct {
	T    string `json:"t"`
	Call string `json:"call"`
	GPU  int    `json:"gpu"`
}

// FatalLine says that NVML as a whole cannot be used. RC is 0 where no return code tells.
type FatalLine struct {
	T    string `json:"t"`
	Call string `json:"call,omitempty"`
	RC   int    `json:"rc,omitempty"`
	Why  string `json:"why,omitempty"`
}

// SysLine has the versions of the driver and its library; CUDA is 1000·major + 10·minor.
type SysLine struct {
	T      string `json:"t"`
	Driver string `json:"driver,omitempty"`
	NVML   string `json:"nvml,omitempty"`
	CUDA   int    `json:"cuda,omitempty"`
}

// CountLine has the number of GPUs, lost ones included.
type CountLine struct {
	T string `json:"t"`
	N int    `json:"n"`
}

// NALine says why a field is missing in a GPU's line, or in the sys line (GPU -1).
type NALine struct {
	T     string `json:"t"`
	GPU   int    `json:"gpu"`
	Field string `json:"field"`
	Why   string `json:"why"`
}

// DoneLine ends what a probe says.
type DoneLine struct {
	T string `json:"t"`
}

// GPU is what NVML tells of one GPU. Nil and "" mean not available; an NALine says why.
type GPU struct {
	Index int `json:"i"` // NVML's index, in PCI order
	// RC is 15 or 16 (lost, needs a reset), or the return code with which its handle was refused; 0 is well. Call is
	// the call that said so.
	RC   int    `json:"rc,omitempty"`
	Call string `json:"call,omitempty"`

	UUID  string `json:"uuid,omitempty"`
	Name  string `json:"name,omitempty"`
	BDF   string `json:"bdf,omitempty"`   // PCI address as the kernel spells it, "0000:1b:00.0"
	Minor *int   `json:"minor,omitempty"` // of /dev/nvidia<Minor>

	MemTotal *uint64 `json:"mem_total,omitempty"` // bytes
	MemUsed  *uint64 `json:"mem_used,omitempty"`  // bytes; the driver's own share included

	MIG         *bool `json:"mig,omitempty"`
	MIGPending  *bool `json:"mig_pending,omitempty"` // after the next reset
	Persistence *bool `json:"persistence,omitempty"`
	ComputeMode *int  `json:"compute_mode,omitempty"` // 0 default, 2 prohibited, 3 exclusive process

	ECC          *bool   `json:"ecc,omitempty"`
	ECCPending   *bool   `json:"ecc_pending,omitempty"`   // after the next reboot
	ECCVolatile  *uint64 `json:"ecc_volatile,omitempty"`  // uncorrected errors since the driver was loaded
	ECCAggregate *uint64 `json:"ecc_aggregate,omitempty"` // uncorrected errors ever

	// SRAM tells that the uncorrected errors of its caches have passed the maker's threshold.
	SRAM           *bool     `json:"sram_threshold,omitempty"`
	Remapped       *Remapped `json:"remapped_rows,omitempty"`
	RetiredPending *bool     `json:"retired_pending,omitempty"` // pages to be retired at the next reboot
	RetiredSBE     *int      `json:"retired_sbe,omitempty"`     // pages retired for corrected errors
	RetiredDBE     *int      `json:"retired_dbe,omitempty"`     // pages retired for uncorrected ones
	// field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover IMEX domain
	Recovery *int `json:"recovery_action,omitempty"`

	// NVLink has the state of each link, 1 active, 0 inactive, -1 unknown; nil where the GPU has none or does not tell.
	NVLink []int `json:"nvlink,omitempty"`
	// P2P has, for each GPU of a lower index, in order, what NVML says of reaching it over NVLink: 0 is well, 1 to 5
	// why not, 6 unknown, -1 refused. nil where the library does not tell.
	P2P    []int   `json:"p2p_nvlink,omitempty"`
	Fabric *Fabric `json:"fabric,omitempty"` // of machines with NVSwitches; nil where not available

	PCIeWidth    *int `json:"pcie_width,omitempty"` // lanes
	PCIeWidthMax *int `json:"pcie_width_max,omitempty"`
	PCIeGen      *int `json:"pcie_gen,omitempty"` // drops when idle
	PCIeGenMax   *int `json:"pcie_gen_max,omitempty"`

	// bits: 0x8 hardware slowdown, 0x20 software thermal, 0x40 hardware thermal, 0x80 power brake
	Clocks      *uint64 `json:"clocks_event_reasons,omitempty"`
	Temperature *int    `json:"temperature,omitempty"`         // °C
	TempSlow    *int    `json:"temperature_slow,omitempty"`    // °C at which the GPU slows itself down
	TempMem     *int    `json:"temperature_mem,omitempty"`     // °C of its memory
	TempMemMax  *int    `json:"temperature_mem_max,omitempty"` // °C that its memory may have
	Power       *int    `json:"power,omitempty"`               // mW
	PowerLimit  *int    `json:"power_limit,omitempty"`         // mW, the limit that holds
	ClockSM     *int    `json:"clock_sm,omitempty"`            // MHz
	ClockMem    *int    `json:"clock_mem,omitempty"`           // MHz

	Processes []Process `json:"processes"` // compute processes; nil where not available, empty where there is none
}

// GPULine is a GPU with the tag of its line.
type GPULine struct {
	T string `json:"t"`
	GPU
}

// Remapped counts rows of memory that were replaced.
type Remapped struct {
	Correctable   int  `json:"corr"`
	Uncorrectable int  `json:"unc"`
	Pending       bool `json:"pending"` // replaced at the next reset
	Failed        bool `json:"failed"`
}

// Fabric is how far a GPU has joined the fabric of its NVSwitches.
type Fabric struct {
	State  int `json:"state"`  // 0 not supported, 1 not started, 2 in progress, 3 completed
	Status int `json:"status"` // return code of the joining, once it is completed
	// two bits each, 1 means so: 0 degraded bandwidth, 2 route recovery, 4 route unhealthy, 6 access timeout recovery
	Health uint32 `json:"health"`
}

// SampleLine is what one GPU said at one moment. Counters only grow; nil means not available.
type SampleLine struct {
	T   string `json:"t"`
	MS  int    `json:"ms"` // since the first moment
	GPU int    `json:"gpu"`
	Sample
}

// Sample are the readings of a moment.
type Sample struct {
	Clocks        *uint64 `json:"clocks_event_reasons,omitempty"`
	PCIeReplays   *int    `json:"pcie_replays,omitempty"`
	NVLinkCRC     *uint64 `json:"nvlink_crc,omitempty"` // of all links, flits and data
	NVLinkReplay  *uint64 `json:"nvlink_replay,omitempty"`
	NVLinkRecover *uint64 `json:"nvlink_recovery,omitempty"`
}

// UseLine is what all GPUs are used for at one moment.
type UseLine struct {
	T    string `json:"t"`
	GPUs []Use  `json:"gpus"`
}

// Use is what a GPU is used for. Nil and "" mean not available.
type Use struct {
	Index int    `json:"i"`
	RC    int    `json:"rc,omitempty"` // as in GPU
	UUID  string `json:"uuid,omitempty"`
	BDF   string `json:"bdf,omitempty"`
	Minor *int   `json:"minor,omitempty"`

	MemTotal  *uint64   `json:"mem_total,omitempty"` // bytes
	MemUsed   *uint64   `json:"mem_used,omitempty"`  // bytes; the driver's own share included
	Busy      *int      `json:"busy,omitempty"`      // per cent of the last moments in which it computed
	Processes []Process `json:"processes"`           // nil where not available
}

// Process is a compute process on a GPU.
type Process struct {
	PID int     `json:"pid"`           // as the host counts, also in a container
	Mem *uint64 `json:"mem,omitempty"` // bytes; nil where the driver does not tell
}

// NormalBDF spells a PCI address of NVML, "00000000:1B:00.0", as the kernel does, "0000:1b:00.0". The domain keeps the
// digits that it needs.
func NormalBDF(s string) string {
	s = strings.ToLower(s)
	domain, rest, ok := strings.Cut(s, ":")
	if !ok || !strings.Contains(rest, ":") {
		return s
	}
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return domain + ":" + rest
}
