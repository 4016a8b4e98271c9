package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/nodecheck"
	"muster/internal/accel"
	"muster/internal/accel/rehearsal"
	"muster/internal/check"
	"muster/internal/errhint"
)

// fakeSpec writes a spec of two devices of a vendor, and loads it.
func fakeSpec(t *testing.T, vendor, faults string) (string, *rehearsal.Fake) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "spec.yaml")
	text := fmt.Sprintf("version: 1\ndefaults: {vendor: %s, count: 2, numa: [0, 0], shm_mib: 2048, faults: [%s]}\n", vendor, faults)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fake, err := rehearsal.LoadFake(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return path, fake
}

// toolFlags are those of a check that fails for nothing of this machine.
func toolFlags(f acceleratorFlags) checkFlags {
	return checkFlags{at: f, asJSON: true, what: nodecheck.Config{
		OnSkip: "ignore", Workers: "1", Waive: []string{"shm-writable", "disk-space"},
	}}
}

// checked runs muster check with scripts on PATH in the place of tools, and returns what it says of some checks.
func checked(t *testing.T, scripts map[string]string, f acceleratorFlags, ids ...string) map[string]check.Result {
	t.Helper()
	bin := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a, text := asking(t, "")
	a.here.Environ = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	err := a.check(t.Context(), toolFlags(f))
	if _, judged := errors.AsType[errhint.StatusError](err); err != nil && !judged {
		t.Fatal(err)
	}
	var r check.Report
	if err := json.Unmarshal([]byte(text()), &r); err != nil {
		t.Fatal(err)
	}
	worst := map[string]check.Result{}
	for _, id := range ids {
		for _, res := range r.Results {
			if old, seen := worst[id]; res.ID == id && (!seen || res.Status > old.Status) {
				res.Subject = check.Subject{GPU: res.Subject.GPU, BusID: res.Subject.BusID}
				worst[id] = res
			}
		}
	}
	return worst
}

// TestToolsFromPath: what a fake says of its devices is, printed by programs on PATH, judged alike; so whatever lies
// between a program and a verdict is the same for both.
func TestToolsFromPath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		vendor, faults string
		tools, ids     []string
		want           check.Status // the worst
	}{
		"healthy NPUs": {"ascend", "", []string{"npu-smi", "hccn_tool"}, []string{"device-health", "device-network"}, check.Pass},
		"sick NPU": {
			"ascend", "{kind: unhealthy, gpu: 1}",
			[]string{"npu-smi", "hccn_tool"},
			[]string{"device-health", "device-network"},
			check.Fail,
		},
		"no network":  {"ascend", "{kind: net-down, gpu: 0}", []string{"npu-smi", "hccn_tool"}, []string{"device-network"}, check.Warn},
		"no word":     {"ascend", "{kind: unhealthy, gpu: 1, value: NA}", []string{"npu-smi"}, []string{"device-health"}, check.Pass},
		"Gaudi's row": {"gaudi", "{kind: remap-pending, gpu: 1}", []string{"hl-smi"}, []string{"remap-pending"}, check.Fail},
		"MetaX's ECC": {
			"metax", "{kind: ecc-uncorrectable, gpu: 1, value: 2}",
			[]string{"mx-smi"},
			[]string{"ecc-uncorrectable", "retired-many", "device-link"},
			check.Fail,
		},
		"MetaX's link": {"metax", "{kind: link-down, gpu: 1}", []string{"mx-smi"}, []string{"device-link"}, check.Warn},
	} {
		t.Run(name, func(t *testing.T) {
			path, fake := fakeSpec(t, c.vendor, c.faults)
			made := checked(t, nil, acceleratorFlags{spec: "fake:" + path, onReal: true, exec: "auto"}, c.ids...)
			scripts := map[string]string{}
			for _, tool := range c.tools {
				scripts[tool] = script(t, fake, tool)
			}
			printed := checked(t, scripts, acceleratorFlags{exec: "auto", root: fake.Root(accel.Real()), timeout: time.Minute}, c.ids...)
			if d := cmp.Diff(made, printed); d != "" {
				t.Errorf("fake and programs differ (-fake +programs)\n%s", d)
			}
			var worst check.Status
			for _, r := range made {
				worst = max(worst, r.Status)
			}
			if worst != c.want || len(made) != len(c.ids) {
				t.Errorf("%v, want %v: %+v", worst, c.want, made)
			}
		})
	}
}

// script is a program that answers each question as the fake does.
func script(t *testing.T, fake *rehearsal.Fake, tool string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("case \"$*\" in\n")
	for _, args := range []string{
		"info -m", "info -t health -i 0", "info -t health -i 1", "-i 0 -link -g", "-i 1 -link -g", "--count-ecc", "mxlk --show-state",
		"-i 0000:10:00.0 -q -d ROW_REPLACEMENT", "-i 0000:11:00.0 -q -d ROW_REPLACEMENT",
	} {
		if text, status, ok := fake.Tool(append([]string{tool}, strings.Fields(args)...)); ok && status == 0 {
			fmt.Fprintf(&b, "'%s') cat <<'END'\n%sEND\n;;\n", args, text)
		}
	}
	return b.String() + "*) echo what is \"$*\"?; exit 1;; esac\n"
}

// TestToolsMisbehave: whatever becomes of a tool, the check ends in time with a reason, and without a verdict.
func TestToolsMisbehave(t *testing.T) {
	t.Parallel()
	_, fake := fakeSpec(t, "ascend", "{kind: unhealthy, gpu: 1}")
	root := fake.Root(accel.Real())
	f := acceleratorFlags{exec: "auto", root: root, timeout: time.Minute}
	for name, c := range map[string]struct {
		npuSMI string
		change func(*acceleratorFlags)
		want   string // is in the reason
	}{
		"missing": {"", nil, "npu-smi cannot be asked: there is no npu-smi on PATH, nor in /usr/local/bin, /usr/local/sbin"},
		"hangs":   {"exec sleep 60", func(f *acceleratorFlags) { f.timeout = time.Second }, "npu-smi hung for 1s and was killed"},
		"garbage": {
			`printf '\001\033[2J\377 hello\n'`, nil,
			`npu-smi info -m does not name the NPU of /dev/davinci0: what npu-smi info -m says is not understood: \x01\x1b[2J\xff hello`,
		},
		"much":  {"exec head -c 300000 /dev/zero", nil, "npu-smi info -m wrote more than 262144 bytes and was killed"},
		"fails": {"echo no permission >&2; exit 1", nil, "npu-smi info -m: exited with status 1 (no permission)"},
		"switched off": {
			script(t, fake, "npu-smi"), func(f *acceleratorFlags) { f.exec = "none" },
			"npu-smi was not asked: --probe-exec none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			own, scripts := f, map[string]string{}
			if c.change != nil {
				c.change(&own)
			}
			if c.npuSMI != "" {
				scripts["npu-smi"] = c.npuSMI
			}
			r := checked(t, scripts, own, "device-health")["device-health"]
			if r.Status != check.Skip || !strings.Contains(r.Reason, c.want) {
				t.Errorf("%+v, want %q", r, c.want)
			}
		})
	}
}

// TestToolsCanceled: who stops the command stops the tool, and is told no verdict.
func TestToolsCanceled(t *testing.T) {
	t.Parallel()
	_, fake := fakeSpec(t, "gaudi", "")
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "hl-smi"), []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	a, text := asking(t, "")
	a.here.Environ = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
	defer cancel()
	f := acceleratorFlags{exec: "auto", root: fake.Root(accel.Real()), timeout: time.Minute}
	if err := a.check(ctx, toolFlags(f)); err == nil || !strings.Contains(err.Error(), "enough") || text() != "" {
		t.Errorf("%v\n%s", err, text())
	}
	if err := a.showDevices(ctx, f, false); err == nil || !strings.Contains(err.Error(), "enough") || text() != "" {
		t.Errorf("%v\n%s", err, text())
	}
}
