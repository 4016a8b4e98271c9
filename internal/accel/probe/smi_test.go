package probe_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
)

// smi returns options with no probe and a shell script in nvidia-smi's place; $1 is the query.
func smi(t *testing.T, text string) probe.Options {
	t.Helper()
	dir := t.TempDir()
	if text != "" {
		if err := os.WriteFile(filepath.Join(dir, probe.SMI), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return probe.Options{
		Environ: []string{"PATH=/usr/bin:/bin", probe.Variable + "=/nonexistent/nvprobe"}, ToolDirs: []string{dir},
		Timeout: 20 * time.Second,
	}
}

// smiGPU is a line as driver 550 writes it: H100, ECC on, no retired pages as it remaps rows.
const smiGPU = `550.54.15, 0, GPU-11111111-2222-3333-4444-555555555555, 00000000:1B:00.0, NVIDIA H100 80GB HBM3, 81559, 1024, ` +
	`Disabled, Enabled, Default, Enabled, 2, 5, [N/A], 5, 1, 16, 16, 34, 41, 71.23, 700.00, 345, 2619, 0x0000000000000001`

const smiAll = `case $1 in
--query-gpu=*` + `) echo '` + smiGPU + `'; echo '` +
	`550.54.15, 1, GPU-b, 00000000:1C:00.0, NVIDIA H100 80GB HBM3, [N/A], [N/A], [N/A], [N/A], Prohibited, ` +
	`[N/A], [N/A], [N/A], [N/A], 5, 1, 16, 8, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]';;
--query-remapped-rows=*) echo 'GPU-11111111-2222-3333-4444-555555555555, 0, 3, Yes, No';;
--query-compute-apps=*) echo 'GPU-11111111-2222-3333-4444-555555555555, 4242, 512'; echo 'GPU-elsewhere, 1, 1';;
esac
`

func TestSMI(t *testing.T) {
	r, err := probe.Ask(t.Context(), smi(t, smiAll))
	if err != nil {
		t.Fatal(err)
	}
	complete(t, r)
	if !r.SMI || r.Sys.Driver != "550.54.15" || r.Count != 2 || !strings.Contains(r.Instead, "/nonexistent") &&
		!strings.Contains(r.Instead, "no such file") {
		t.Errorf("%+v", r)
	}
	want := nvline.GPU{
		UUID: "GPU-11111111-2222-3333-4444-555555555555", Name: "NVIDIA H100 80GB HBM3", BDF: "0000:1b:00.0",
		MemTotal: new(uint64(81559 << 20)), MemUsed: new(uint64(1 << 30)), MIG: new(false), Persistence: new(true), ComputeMode: new(0),
		ECC: new(true), ECCVolatile: new(uint64(2)), ECCAggregate: new(uint64(5)),
		Remapped:  &nvline.Remapped{Uncorrectable: 3, Pending: true},
		PCIeWidth: new(16), PCIeWidthMax: new(16), PCIeGen: new(1), PCIeGenMax: new(5), Clocks: new(uint64(1)), Temperature: new(34),
		TempMem: new(41), Power: new(71230), PowerLimit: new(700000), ClockSM: new(345), ClockMem: new(2619),
		Processes: []nvline.Process{{PID: 4242, Mem: new(uint64(512 << 20))}},
	}
	got := r.Find("0000:1B:00.0", "")
	if got == nil {
		t.Fatal("no GPU")
	}
	got.RetiredPending = nil // "[N/A]" is not "No"
	if d := cmp.Diff(want, *got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	second := r.Find("", "GPU-b")
	if second == nil || second.MemTotal != nil || *second.ComputeMode != 2 || *second.PCIeWidth != 8 || second.Processes == nil {
		t.Errorf("%+v", second)
	}
	if len(r.NA) == 0 || r.NA[0].Field != "retired_pending" {
		t.Errorf("not available: %+v", r.NA)
	}
}

// An older driver refuses the newer name of the reasons, and gets the older one.
func TestSMIOfAnOldDriver(t *testing.T) {
	r, err := probe.Ask(t.Context(), smi(t, `case $1 in *clocks_event_reasons*) `+
		`echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;; esac
`+smiAll))
	if err != nil || !r.Complete || r.Count != 2 || r.GPUs[0].Clocks == nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestSMIFails(t *testing.T) {
	for text, rc := range map[string]int{
		"Failed to initialize NVML: Driver/library version mismatch":                                   nvline.VersionMismatch,
		"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that": nvline.DriverNotLoaded,
		"NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure":            nvline.LibraryNotFound,
		"Failed to initialize NVML: Unknown Error":                                                     nvline.Unknown,
	} {
		r, err := probe.Ask(t.Context(), smi(t, `echo "`+text+`"; exit 9`))
		if err != nil || r.Fatal == nil || r.Fatal.RC != rc || !r.Complete {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
	r, err := probe.Ask(t.Context(), smi(t, `[ "${1#--query-gpu}" != "$1" ] && { `+
		`echo 'Unable to determine the device handle for GPU 0000:1C:00.0: GPU is lost.  Reboot the system to recover this GPU'; `+
		`echo '`+smiGPU+`'; }`))
	if err != nil || r.Count != 2 || r.Find("0000:1c:00.0", "") == nil || r.Find("0000:1c:00.0", "").RC != nvline.GPULost {
		t.Errorf("%+v, %v", r, err)
	}
	for name, text := range map[string]string{
		"other columns": "echo a, b",
		"no index":      "echo '" + strings.Replace(smiGPU, ", 0,", ", zero,", 1) + "'",
	} {
		if r, err := probe.Ask(t.Context(), smi(t, text)); !errors.Is(err, probe.ErrUnavailable) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if _, err := probe.Ask(t.Context(), smi(t, "")); !errors.Is(err, probe.ErrUnavailable) {
		t.Errorf("no nvidia-smi: %v", err)
	}
	o := smi(t, "exec sleep 60")
	o.Timeout = 300 * time.Millisecond
	r, err = probe.Ask(t.Context(), o)
	if err != nil || r.Complete || !r.Hung || !strings.HasPrefix(r.Err().Error(), "nvidia-smi hung for 300ms") {
		t.Errorf("a hang: %+v, %v", r, err)
	}
	o = smi(t, smiAll)
	o.Exec = probe.ExecNone
	if r, err := probe.Ask(t.Context(), o); !errors.Is(err, probe.ErrUnavailable) {
		t.Errorf("none: %+v, %v", r, err)
	}
}

// The probe is there and the library is not, which happens in containers: nvidia-smi may know where it is.
func TestSMIAfterTheProbe(t *testing.T) {
	noLibrary := `echo '{"t":"hello","v":1}'; echo '{"t":"fatal","call":"dlopen","rc":12}'; echo '{"t":"done"}'`
	o := script(t, noLibrary)
	o.ToolDirs = smi(t, smiAll).ToolDirs
	r, err := probe.Ask(t.Context(), o)
	if err != nil || !r.SMI || r.Count != 2 || !strings.Contains(r.Instead, "the library was not found") {
		t.Errorf("%+v, %v", r, err)
	}
	o.ToolDirs = []string{t.TempDir()}
	if r, err := probe.Ask(t.Context(), o); err != nil || r.Fatal == nil || !r.NoSMI {
		t.Errorf("%+v, %v", r, err)
	}
	// Whatever blocks the probe blocks nvidia-smi, which is not asked then.
	o = script(t, `echo '{"t":"hello","v":1}'; exec sleep 60`)
	o.ToolDirs, o.Timeout = smi(t, smiAll).ToolDirs, 300*time.Millisecond
	if r, err := probe.Ask(t.Context(), o); err != nil || r.SMI || !r.Hung {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestReplay(t *testing.T) {
	lines := []byte("{\"t\":\"hello\",\"v\":1}\n{\"t\":\"at\",\"call\":\"nvmlX\",\"gpu\":2}\n")
	for end, want := range map[string]string{
		nvline.EndHung: "hung for 15s and was killed in nvmlX of GPU 2", nvline.EndStuck: "SIGKILL does not end it",
		nvline.EndCrashed: "SIGABRT",
		nvline.EndWell:    "ended early",
	} {
		r, err := probe.Replay(nvline.Script{Lines: lines, End: end}, probe.Options{})
		if err != nil || r.Complete || !strings.Contains(r.Err().Error(), want) {
			t.Errorf("%s: %+v, %v", end, r, err)
		}
	}
	if _, err := probe.Replay(nvline.Script{End: nvline.EndNone}, probe.Options{}); !errors.Is(err, probe.ErrUnavailable) {
		t.Errorf("none: %v", err)
	}
}

// Whatever nvidia-smi of another release prints, it is read or refused.
func FuzzSMI(f *testing.F) {
	f.Add(smiGPU+"\n", "GPU-11111111-2222-3333-4444-555555555555, 0, 3, Yes, No\n", "GPU-11111111-2222-3333-4444-555555555555, 4242, 512\n")
	f.Add("Unable to determine the device handle for GPU 0000:1C:00.0: GPU is lost.", "a,b", "\"")
	f.Fuzz(func(t *testing.T, gpus, rows, processes string) {
		r, err := probe.ParseSMI(gpus, rows, processes)
		if err == nil && r.Count != len(r.GPUs) {
			t.Errorf("%d GPUs of %d", len(r.GPUs), r.Count)
		}
	})
}
