package probe_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
)

const (
	hello = `{"t":"hello","v":1,"go_nvml":"0.13.3-0"}`
	used  = `{"t":"use","gpus":[{"i":0,"uuid":"GPU-a","mem_used":5,"busy":97,"processes":[{"pid":7,"mem":4}]}]}`
)

// watch runs a probe until it has told something so often, or has ended.
func watch(t *testing.T, o probe.Options, times int) (told [][]nvline.Use, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = probe.Watch(ctx, o, 10*time.Millisecond, func(use []nvline.Use) {
		if told = append(told, use); len(told) == times {
			cancel()
		}
	})
	return told, err
}

// TestWatch: a probe goes on telling what the GPUs are used for until nobody wants to know it.
func TestWatch(t *testing.T) {
	told, err := watch(t, script(t, "echo '"+hello+"'\nwhile echo '"+used+"'; do sleep 0.01; done"), 3)
	if err != nil || len(told) < 3 {
		t.Fatalf("%d readings, %v", len(told), err)
	}
	g := told[2][0]
	if g.UUID != "GPU-a" || *g.MemUsed != 5 || *g.Busy != 97 || len(g.Processes) != 1 || g.Processes[0].PID != 7 || g.MemTotal != nil {
		t.Errorf("%+v", g)
	}
}

// TestWatchEnds: it is told why nothing more is heard, and nvidia-smi is asked only where no probe can be.
func TestWatchEnds(t *testing.T) {
	defer probe.ForgetAbandoned()
	none := t.TempDir()
	for name, c := range map[string]struct {
		script, want string
		hung         bool
	}{
		"hangs": {
			"echo '" + hello + `'; echo '{"t":"at","call":"nvmlInit_v2","gpu":-1}'; sleep 60`, "hung for 1s in nvmlInit_v2",
			true,
		},
		"crashes":    {"echo '" + hello + "'; echo sad >&2; kill -ABRT $$", "(sad)", false},
		"refuses":    {"echo '" + hello + `'; echo '{"t":"fatal","call":"nvmlInit_v2","rc":18}'`, "driver and library differ", false},
		"no library": {"echo '" + hello + `'; echo '{"t":"fatal","call":"dlopen","rc":12}'`, "there is no nvidia-smi", false},
		"a stranger": {"echo Welcome", "is not muster's probe", false},
	} {
		o := script(t, c.script)
		o.Timeout, o.ToolDirs = time.Second, []string{none}
		told, err := watch(t, o, 1)
		if len(told) != 0 || err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, probe.ErrHung) != c.hung {
			t.Errorf("%s: %d readings, %v", name, len(told), err)
		}
	}
	o := probe.Options{Exec: probe.ExecNone}
	if _, err := watch(t, o, 1); !errors.Is(err, probe.ErrUnavailable) {
		t.Errorf("switched off: %v", err)
	}
}

// TestWatchBySMI: where there is no probe, nvidia-smi tells it, but of no processes.
func TestWatchBySMI(t *testing.T) {
	dir := t.TempDir()
	smi := "#!/bin/sh\necho '0, GPU-a, 00000000:1B:00.0, 81559, 1024, 97'\necho '1, GPU-b, 00000000:1C:00.0, 81559, [N/A], [N/A]'\n"
	if err := os.WriteFile(filepath.Join(dir, probe.SMI), []byte(smi), 0o700); err != nil {
		t.Fatal(err)
	}
	o := probe.Options{Environ: []string{"PATH=/bin:/usr/bin", probe.Variable + "=" + dir + "/none"}, ToolDirs: []string{dir}}
	told, err := watch(t, o, 1)
	if err != nil || len(told) != 1 || len(told[0]) != 2 {
		t.Fatalf("%v, %v", told, err)
	}
	a, b := told[0][0], told[0][1]
	if a.BDF != "0000:1b:00.0" || *a.MemTotal != 81559<<20 || *a.MemUsed != 1024<<20 || *a.Busy != 97 || b.MemUsed != nil || b.Busy != nil {
		t.Errorf("%+v, %+v", a, b)
	}
}

// TestWatchRealProbe: the real probe on the library that stands in for NVIDIA's.
func TestWatchRealProbe(t *testing.T) {
	told, err := watch(t, options(t, "count=2", "busy=42", "pid=99"), 2)
	if err != nil || len(told) < 2 || len(told[1]) != 2 {
		t.Fatalf("%v, %v", told, err)
	}
	g := told[1][1]
	if g.BDF != "0000:1c:00.0" || *g.Minor != 1 || *g.MemUsed != 1048576 || *g.Busy != 42 || len(g.Processes) != 3 ||
		g.Processes[0].PID != 99 ||
		*g.Processes[0].Mem != 4096 || g.Processes[1].Mem != nil {
		t.Errorf("%+v", g)
	}
	told, err = watch(t, options(t, "count=2", "lost=0"), 1)
	if err != nil || len(told) == 0 || told[0][0].RC != nvline.GPULost || told[0][1].RC != 0 {
		t.Errorf("one is lost: %v, %v", told, err)
	}
}
