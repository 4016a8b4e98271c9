package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/cmd/nodecheck"
	"muster/internal/accel"
	"muster/internal/accel/rehearsal"
	"muster/internal/check"
	"muster/internal/errhint"
	"muster/internal/hardware"
	"muster/internal/testutil"
)

// twoGPUs is the root of a machine with two GPUs; what NVML says of them the test's probe says.
func twoGPUs(t *testing.T) accel.Root {
	t.Helper()
	spec := filepath.Join(t.TempDir(), "gpus.yaml")
	if err := os.WriteFile(spec, []byte("version: 1\ndefaults: {count: 2, model: NVIDIA H100 80GB HBM3}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fake, err := rehearsal.LoadFake(spec, "")
	if err != nil {
		t.Fatal(err)
	}
	return fake.Root(accel.Real())
}

// asking returns a program whose output goes to a file, with a shell script for a probe, and a function that reads it.
func asking(t *testing.T, script string, environ ...string) (*app, func() string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "nvprobe")
	if script != "" {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	a := newApp(append([]string{"PATH=/usr/bin:/bin", "MUSTER_NVPROBE=" + path}, environ...), nil, out, out)
	return a, func() string {
		t.Helper()
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

const (
	hello = `echo '{"t":"hello","v":1,"go_nvml":"0.13.3-0"}'; echo '{"t":"at","call":"nvmlInit_v2","gpu":-1}'; `
	gpu0  = `echo '{"t":"sys","driver":"550.54.15","nvml":"12.550.54.15","cuda":12040}'; echo '{"t":"count","n":2}'; ` +
		`echo '{"t":"gpu","i":0,"bdf":"0000:10:00.0","mem_total":85520809984,"mem_used":1073741824,"temperature":34,` +
		`"ecc":true,"ecc_volatile":3,"ecc_aggregate":3,"nvlink":[1,0],"processes":[]}'; `
	gpu1 = `echo '{"t":"gpu","i":1,"rc":15,"call":"nvmlDeviceGetHandleByIndex_v2"}'; echo '{"t":"done"}'`
)

// TestProbeDegrades: whatever becomes of the probe, both commands end well, in time, with what files say, and say in
// one line what is missing and why.
func TestProbeDegrades(t *testing.T) {
	t.Parallel()
	root := twoGPUs(t)
	for name, c := range map[string]struct{ script, exec, why string }{
		"missing": {"", "auto", "known from files alone: cannot run the NVML probe: $MUSTER_NVPROBE: no such file"},
		"garbage": {
			"echo hello there", "auto",
			`known from files alone: cannot run the NVML probe: $MUSTER_NVPROBE: is not muster's probe, or one of another version: ` +
				`it begins with "hello there"`,
		},
		"hang": {
			hello + "exec sleep 60", "auto",
			"not all is known of NVIDIA's GPUs: the NVML probe hung for 5s and was killed in nvmlInit_v2",
		},
		"crash": {hello + gpu0 + "kill -SEGV $$", "auto", "not all is known of NVIDIA's GPUs: the NVML probe"},
		"no library": {
			hello + `echo '{"t":"fatal","call":"dlopen","rc":12}'; echo '{"t":"done"}'`, "auto",
			"known from files alone: cannot use NVML: dlopen: the library was not found",
		},
		"switched off":  {hello + gpu0 + gpu1, "none", "known from files alone: NVML was not asked: --probe-exec none"},
		"another words": {hello + "echo '{[['; echo '{\"t\":\"done\"}'", "auto", "wrote what is not in its language"},
	} {
		t.Run(name, func(t *testing.T) {
			a, text := asking(t, c.script)
			f := acceleratorFlags{exec: c.exec, timeout: 5 * time.Second, root: root}
			begin := time.Now()
			if err := a.showDevices(t.Context(), f, false); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
			out := text()
			if !strings.Contains(out, "0000:11:00.0") || !strings.Contains(out, "--nproc-per-node auto: 2 ") {
				t.Errorf("the files' facts are missing:\n%s", out)
			}
			if n := strings.Count(out, c.why); n != 1 {
				t.Errorf("%d times %q:\n%s", n, c.why, out)
			}
			a, text = asking(t, c.script)
			err := a.check(t.Context(), checkFlags{at: f, asJSON: true, what: nodecheck.Config{
				OnSkip: "ignore", Workers: "1",
				Waive: []string{"gpu-driver-hung", "shm-writable", "nvml-not-injected", "ecc-uncorrectable", "gpu-lost"},
			}})
			if err != nil {
				t.Errorf("check: %v\n%s", err, text())
			}
		})
	}
}

// TestProbeFacts: what NVML says is joined with the files by address, and what is sick is told.
func TestProbeFacts(t *testing.T) {
	t.Parallel()
	a, text := asking(t, hello+gpu0+gpu1)
	f := acceleratorFlags{exec: "auto", timeout: 20 * time.Second, root: twoGPUs(t)}
	if err := a.showDevices(t.Context(), f, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1024 of 81559 MiB", "3, ever 3", "1 of 2", "34 °C", "FAIL ecc-uncorrectable gpu 0 (0000:10:00.0): 3 uncorrected errors",
		"FAIL gpu-lost: NVML has lost its GPU 1 in nvmlDeviceGetHandleByIndex_v2", "driver 550.54.15, library 12.550.54.15, CUDA 12.4",
	} {
		if !strings.Contains(text(), want) {
			t.Errorf("no %q in\n%s", want, text())
		}
	}
	a, text = asking(t, hello+gpu0+gpu1)
	if err := a.showDevices(t.Context(), f, true); err != nil {
		t.Fatal(err)
	}
	var d hardware.Report
	if err := json.Unmarshal([]byte(text()), &d); err != nil {
		t.Fatal(err)
	}
	if g := d.Vendors[0].Devices[0].NVML; g == nil || *g.MemUsed != 1<<30 || d.NVML.Degraded != "" || d.NVML.Driver != "550.54.15" ||
		len(d.Sick) < 2 || d.Vendors[0].Devices[0].Link == "" {
		t.Errorf("%s", text())
	}
	a, text = asking(t, hello+gpu0+gpu1)
	err := a.check(t.Context(), checkFlags{at: f, what: nodecheck.Config{OnSkip: "ignore", Workers: "1"}})
	if status, ok := errors.AsType[errhint.StatusError](err); !ok || status != 80 || !strings.Contains(text(), "ecc-uncorrectable  gpu 0") {
		t.Errorf("%v\n%s", err, text())
	}
	a, text = asking(t, hello+gpu0+gpu1)
	err = a.check(t.Context(), checkFlags{at: f, asJSON: true, what: nodecheck.Config{
		OnSkip: "ignore", Workers: "1", Limits: []string{"ecc-uncorrectable=3"}, Waive: []string{"gpu-lost", "shm-writable"},
	}})
	var r check.Report
	if err != nil || json.Unmarshal([]byte(text()), &r) != nil || r.Status == check.Fail {
		t.Errorf("%v\n%s", err, text())
	}
}

// TestProbeCanceled: who stops the command stops the probe.
func TestProbeCanceled(t *testing.T) {
	t.Parallel()
	a, _ := asking(t, hello+"exec sleep 60")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("enough"))
	defer cancel()
	if err := a.showDevices(ctx, acceleratorFlags{exec: "auto", root: twoGPUs(t)}, false); err == nil ||
		!strings.Contains(err.Error(), "enough") {
		t.Errorf("%v", err)
	}
}

// TestRealProbe runs the real probe on a library that has no GPUs behind it, from flag to report.
func TestRealProbe(t *testing.T) {
	testutil.Long(t)
	if _, err := exec.LookPath("gcc"); err != nil {
		testutil.Missing(t, "gcc")
	}
	dir := t.TempDir()
	build := func(env []string, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	build([]string{"CGO_ENABLED=1", "CC=gcc", "GOFLAGS=", "CGO_CFLAGS=-O2 -g0 -Wno-deprecated-declarations"},
		"go", "build", "-trimpath", "-ldflags", `-s -w -linkmode external -extldflags "-Wl,-z,lazy"`, "-o", dir+"/nvprobe",
		"muster/cmd/nvprobe")
	build(nil, "gcc", "-shared", "-fPIC", "-O1", "-w", "-o", dir+"/libnvidia-ml.so.1", "../../internal/accel/probe/testdata/fakenvml.c")
	library := func(settings string) []string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "settings")
		if err := os.WriteFile(path, []byte("count=2\nbus=16\nfabric=3\n"+settings), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"MUSTER_NVPROBE=" + dir + "/nvprobe", "MUSTER_NVML_PATH=" + dir + "/libnvidia-ml.so.1", "MUSTER_FAKE_NVML=" + path}
	}
	root := twoGPUs(t)
	for name, c := range map[string]struct {
		settings string
		want     map[string]check.Status // of GPU 1, or of the node
	}{
		"healthy": {"", map[string]check.Status{
			"remap-pending": check.Pass, "nvlink-down": check.Pass, "throttle-hw": check.Pass,
			"driver-mismatch": check.Pass,
		}},
		"sick": {"gpu=1\nrows=512\npending=1\ndown=4\nsram=1\ncrc=300\nreplays=40\naction=2\n", map[string]check.Status{
			"remap-pending": check.Fail, "remap-many": check.Fail, "nvlink-down": check.Fail, "sram-threshold": check.Fail,
			"nvlink-errors": check.Fail,
			"pcie-replay":   check.Warn, "gpu-reset-required": check.Fail, "ecc-uncorrectable": check.Pass, "driver-mismatch": check.Pass,
		}},
		"mismatch": {"init=18\n", map[string]check.Status{"driver-mismatch": check.Fail, "ecc-off": check.Skip}},
		"lost":     {"lost=1\n", map[string]check.Status{"gpu-lost": check.Fail, "gpu-missing": check.Skip}},
		"hang":     {"hang=nvmlDeviceGetMemoryInfo:0\n", map[string]check.Status{"gpu-driver-hung": check.Fail, "ecc-off": check.Skip}},
		"abort":    {"abort=nvmlInit_v2:-1\n", map[string]check.Status{"gpu-driver-hung": check.Skip, "gpu-driver": check.Pass}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, text := asking(t, "")
			a.here.Environ = append([]string{"PATH=/usr/bin:/bin"}, library(c.settings)...)
			timeout := 30 * time.Second
			if name == "hang" {
				timeout = 3 * time.Second
			}
			err := a.check(t.Context(), checkFlags{
				at: acceleratorFlags{exec: "auto", timeout: timeout, root: root}, what: nodecheck.Config{OnSkip: "ignore", Workers: "2"},
				asJSON: true,
			})
			if _, judged := errors.AsType[errhint.StatusError](err); err != nil && !judged {
				t.Fatal(err)
			}
			var r check.Report
			if err := json.Unmarshal([]byte(text()), &r); err != nil {
				t.Fatal(err)
			}
			got := map[string]check.Status{}
			for _, res := range r.Results {
				got[res.ID] = max(got[res.ID], res.Status)
			}
			for id, want := range c.want {
				if got[id] != want {
					t.Errorf("%s: %v, want %v\n%s", id, got[id], want, text())
				}
			}
		})
	}
}
