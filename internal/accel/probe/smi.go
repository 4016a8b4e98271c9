package probe

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/accel/nvline"
	"muster/internal/proc"
)

// SMI is NVIDIA's own tool. It needs no probe, and tells less.
const SMI = "nvidia-smi"

// Ask is Run, and where no probe can be run or the probe finds no library, nvidia-smi in its place. Report.Instead
// tells why then.
func Ask(ctx context.Context, o Options) (*Report, error) {
	r, err := Run(ctx, o)
	var why string
	switch {
	case o.Exec == ExecNone:
		return r, err // whoever wants no program to be run wants none
	case errors.Is(err, ErrUnavailable):
		why = err.Error()
	case err == nil && r.Fatal != nil && (r.Fatal.RC == nvline.LibraryNotFound || r.Fatal.RC == 0):
		why = r.Fatal.String()
	default:
		return r, err
	}
	path := o.findTool(SMI)
	if path == "" {
		if r != nil {
			r.NoSMI = true
		}
		return r, err
	}
	s, smiErr := o.askSMI(ctx, path)
	if smiErr != nil {
		if err != nil {
			return nil, fmt.Errorf("%w; nor %s: %w", err, SMI, smiErr)
		}
		return r, nil
	}
	s.Instead = why
	return s, nil
}

// smiFields are what is asked of each GPU, by the names of nvidia-smi --help-query-gpu, and where it goes. The texts
// are "not guaranteed to be backwards compatible": what cannot be read is not available.
var smiFields = []struct {
	name, field string // field as in package nvline's GPU
	take        func(g *nvline.GPU, value string) bool
}{
	{"index", "", func(g *nvline.GPU, v string) bool { n, err := strconv.Atoi(v); g.Index = n; return err == nil }},
	{"uuid", "uuid", func(g *nvline.GPU, v string) bool { g.UUID = clip(v); return true }},
	{"pci.bus_id", "bdf", func(g *nvline.GPU, v string) bool { g.BDF = clip(nvline.NormalBDF(v)); return true }},
	{"name", "name", func(g *nvline.GPU, v string) bool { g.Name = clip(v); return true }},
	{"memory.total", "mem", scaled(func(g *nvline.GPU, n uint64) { g.MemTotal = &n }, 1<<20)},
	{"memory.used", "mem", scaled(func(g *nvline.GPU, n uint64) { g.MemUsed = &n }, 1<<20)},
	{"mig.mode.current", "mig", enabled(func(g *nvline.GPU, on bool) { g.MIG = &on })},
	{"persistence_mode", "persistence", enabled(func(g *nvline.GPU, on bool) { g.Persistence = &on })},
	{"compute_mode", "compute_mode", func(g *nvline.GPU, v string) bool {
		mode := slices.Index([]string{"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"}, v)
		if mode >= 0 {
			g.ComputeMode = &mode
		}
		return mode >= 0
	}},
	{"ecc.mode.current", "ecc", enabled(func(g *nvline.GPU, on bool) { g.ECC = &on })},
	{"ecc.errors.uncorrected.volatile.total", "ecc_volatile", scaled(func(g *nvline.GPU, n uint64) { g.ECCVolatile = &n }, 1)},
	{"ecc.errors.uncorrected.aggregate.total", "ecc_aggregate", scaled(func(g *nvline.GPU, n uint64) { g.ECCAggregate = &n }, 1)},
	{"retired_pages.pending", "retired_pending", func(g *nvline.GPU, v string) bool {
		yes := v == "Yes"
		g.RetiredPending = &yes
		return yes || v == "No"
	}},
	{"pcie.link.gen.max", "pcie_gen_max", whole(func(g *nvline.GPU, n int) { g.PCIeGenMax = &n }, 1)},
	{"pcie.link.gen.current", "pcie_gen", whole(func(g *nvline.GPU, n int) { g.PCIeGen = &n }, 1)},
	{"pcie.link.width.max", "pcie_width_max", whole(func(g *nvline.GPU, n int) { g.PCIeWidthMax = &n }, 1)},
	{"pcie.link.width.current", "pcie_width", whole(func(g *nvline.GPU, n int) { g.PCIeWidth = &n }, 1)},
	{"temperature.gpu", "temperature", whole(func(g *nvline.GPU, n int) { g.Temperature = &n }, 1)},
	{"temperature.memory", "temperature_mem", whole(func(g *nvline.GPU, n int) { g.TempMem = &n }, 1)},
	{"power.draw", "power", whole(func(g *nvline.GPU, n int) { g.Power = &n }, 1000)},
	{"enforced.power.limit", "power_limit", whole(func(g *nvline.GPU, n int) { g.PowerLimit = &n }, 1000)},
	{"clocks.sm", "clock_sm", whole(func(g *nvline.GPU, n int) { g.ClockSM = &n }, 1)},
	{"clocks.mem", "clock_mem", whole(func(g *nvline.GPU, n int) { g.ClockMem = &n }, 1)},
	{smiReasons, "clocks_event_reasons", func(g *nvline.GPU, v string) bool {
		n, err := strconv.ParseUint(v, 0, 64)
		if err == nil {
			g.Clocks = &n
		}
		return err == nil
	}},
}

// Drivers before 535.54.03 have the older name.
const (
	smiReasons    = "clocks_event_reasons.active"
	smiOldReasons = "clocks_throttle_reasons.active"
)

func scaled(put func(*nvline.GPU, uint64), by uint64) func(*nvline.GPU, string) bool {
	return func(g *nvline.GPU, v string) bool {
		n, err := strconv.ParseUint(v, 10, 40)
		if err == nil {
			put(g, n*by)
		}
		return err == nil
	}
}

func whole(put func(*nvline.GPU, int), by float64) func(*nvline.GPU, string) bool {
	return func(g *nvline.GPU, v string) bool {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || n < -1000 || n > 1e9 { // no such watts, degrees or MHz; and NaN is neither
			return false
		}
		put(g, int(n*by))
		return true
	}
}

func enabled(put func(*nvline.GPU, bool)) func(*nvline.GPU, string) bool {
	return func(g *nvline.GPU, v string) bool {
		if v == "Enabled" || v == "Disabled" {
			put(g, v == "Enabled")
			return true
		}
		return false
	}
}

// askSMI makes a report of what nvidia-smi says. An error means that it cannot be used.
func (o Options) askSMI(ctx context.Context, path string) (*Report, error) {
	names := []string{"driver_version"}
	for _, f := range smiFields {
		names = append(names, f.name)
	}
	begin := time.Now()
	deadline := o.Timeout
	if deadline <= 0 {
		deadline = defaultTimeout(o.GPUs)
	}
	run := func(query string) (proc.Confined, error) {
		c, err := o.confineTool(ctx, path, []string{SMI, query, "--format=csv,noheader,nounits"},
			max(deadline-time.Since(begin), grace), maxStdout)
		if err == nil && c.Canceled {
			err = context.Cause(ctx)
		}
		return c, err
	}
	query := "--query-gpu=" + strings.Join(names, ",")
	c, err := run(query)
	if err == nil && !c.Exit.Success() && strings.Contains(string(c.Stdout), "not a valid field") {
		c, err = run(strings.Replace(query, smiReasons, smiOldReasons, 1))
	}
	if err != nil {
		return nil, err
	}
	r := &Report{Complete: !c.TimedOut, Via: path, SMI: true, Stderr: string(c.Stderr)}
	r.Fatal = smiFailure(c)
	if r.Fatal == nil {
		err = r.takeSMI(string(c.Stdout))
	}
	r.end(c, deadline)
	if r.Fatal != nil {
		r.Complete, r.Problem = true, "" // its status says the same
	}
	if r.Complete && r.Fatal == nil {
		if err != nil {
			return nil, err
		}
		const rows = "--query-remapped-rows=gpu_uuid,remapped_rows.correctable,remapped_rows.uncorrectable," +
			"remapped_rows.pending,remapped_rows.failure"
		if c, err := run(rows); err == nil && c.Exit.Success() {
			r.smiRows(string(c.Stdout))
		}
		if c, err := run("--query-compute-apps=gpu_uuid,pid,used_memory"); err == nil && c.Exit.Success() && !c.TimedOut {
			r.smiProcesses(string(c.Stdout))
		}
	}
	r.Took = time.Since(begin)
	return r, nil
}

// smiFailure recognises what nvidia-smi says where NVML cannot be used at all.
func smiFailure(c proc.Confined) *Fatal {
	if c.TimedOut || c.Exit.Success() {
		return nil
	}
	text := string(c.Stdout) + string(c.Stderr)
	for words, rc := range map[string]int{
		"Driver/library version mismatch":              nvline.VersionMismatch,
		"couldn't communicate with the NVIDIA driver":  nvline.DriverNotLoaded,
		"couldn't find libnvidia-ml.so":                nvline.LibraryNotFound,
		"Insufficient Permissions":                     nvline.NoPermission,
		"Failed to initialize NVML: Unknown Error":     nvline.Unknown,
		"Failed to initialize NVML: Driver Not Loaded": nvline.DriverNotLoaded,
	} {
		if strings.Contains(text, words) {
			return &Fatal{Call: SMI, RC: rc}
		}
	}
	return nil
}

// smiLines splits lines of comma-separated values with blanks behind the commas.
func smiLines(text string, columns int) ([][]string, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, columns, true
	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("what it says cannot be read: %w", err)
	}
	if len(lines) > maxGPUs {
		return nil, fmt.Errorf("it has %d lines, more than the limit of %d", len(lines), maxGPUs)
	}
	return lines, nil
}

// takeSMI reads a line for each GPU.
func (r *Report) takeSMI(text string) error {
	var good []string
	for line := range strings.Lines(text) {
		if at, lost := smiLost(line); lost {
			r.GPUs = append(r.GPUs, nvline.GPU{Index: -1, BDF: at, RC: nvline.GPULost, Call: SMI})
			continue
		}
		good = append(good, line)
	}
	lines, err := smiLines(strings.Join(good, ""), len(smiFields)+1)
	if err != nil {
		return err
	}
	r.Count = len(lines) + len(r.GPUs)
	for _, values := range lines {
		g := nvline.GPU{Index: -1}
		r.Sys.Driver = clip(values[0])
		for i, f := range smiFields {
			v := strings.TrimSpace(values[i+1])
			switch {
			case strings.Contains(v, "GPU requires reset"):
				g.RC, g.Call = nvline.ResetRequired, SMI
			case strings.Contains(v, "GPU is lost"):
				g.RC, g.Call = nvline.GPULost, SMI
			case f.take(&g, v):
			case f.name == "index":
				return fmt.Errorf("it has no index but %q", clip(v))
			default:
				r.NA = append(r.NA, NA{GPU: g.Index, Field: f.field, Why: "nvidia-smi says " + clip(v)})
			}
		}
		r.GPUs = append(r.GPUs, g)
	}
	return nil
}

// smiLost recognises the line about a GPU that does not answer, and returns its address.
func smiLost(line string) (address string, lost bool) {
	_, rest, ok := strings.Cut(line, "Unable to determine the device handle for GPU")
	if !ok || !strings.Contains(rest, "lost") {
		return "", false
	}
	for word := range strings.FieldsSeq(rest) {
		if strings.Count(word, ":") >= 2 {
			return clip(nvline.NormalBDF(strings.TrimRight(word, ":"))), true
		}
	}
	return "", true
}

func (r *Report) gpuOf(uuid string) *nvline.GPU {
	for i := range r.GPUs {
		if r.GPUs[i].UUID == uuid && uuid != "" {
			return &r.GPUs[i]
		}
	}
	return nil
}

func (r *Report) smiRows(text string) {
	lines, err := smiLines(text, 5)
	if err != nil {
		return // not available, which is what its absence says
	}
	for _, v := range lines {
		correctable, err1 := strconv.Atoi(v[1])
		uncorrectable, err2 := strconv.Atoi(v[2])
		if g := r.gpuOf(v[0]); g != nil && err1 == nil && err2 == nil {
			g.Remapped = &nvline.Remapped{Correctable: correctable, Uncorrectable: uncorrectable, Pending: isYes(v[3]), Failed: isYes(v[4])}
		}
	}
}

// isYes reads a flag, for which drivers have a word or a number.
func isYes(v string) bool { return v == "Yes" || v == "1" }

func (r *Report) smiProcesses(text string) {
	lines, err := smiLines(text, 3)
	if err != nil {
		return
	}
	for i := range r.GPUs {
		r.GPUs[i].Processes = []nvline.Process{}
	}
	for _, v := range lines {
		g := r.gpuOf(v[0])
		pid, err := strconv.Atoi(v[1])
		if g == nil || err != nil {
			continue
		}
		p := nvline.Process{PID: pid}
		if mib, err := strconv.ParseUint(v[2], 10, 32); err == nil {
			p.Mem = new(mib << 20)
		}
		g.Processes = append(g.Processes, p)
	}
}
