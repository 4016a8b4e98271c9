package probe_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/accel/probe"
)

// shells returns options under which each tool is a shell script.
func shells(t *testing.T, scripts map[string]string) probe.Options {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return probe.Options{Environ: []string{"PATH=/usr/bin:/bin"}, ToolDirs: []string{dir}, Timeout: 20 * time.Second}
}

// TestTools: whatever a tool does, there is its text or a reason, and both have an end.
func TestTools(t *testing.T) {
	tools := probe.NewTools(shells(t, map[string]string{
		"good":    `echo "$LC_ALL: $*"; echo mind the gap >&2`,
		"garbage": `printf 'a\000\377\033[31m\n'`,
		"silent":  ``,
		"refuses": `echo "device is not there" >&2; exit 1`,
		"sorry":   `echo "This device does not support querying health."; exit 3`,
		"dies":    `kill -SEGV $$`,
		"floods":  `exec head -c 300000 /dev/zero`,
	}))
	for question, want := range map[string]probe.Answer{
		"good -i 3":      {Text: "C: -i 3\n"},
		"garbage":        {Text: "a\x00\xff\x1b[31m\n"},
		"silent":         {},
		"refuses -q":     {Why: "refuses -q: exited with status 1 (device is not there)"},
		"sorry -t -i 2":  {Why: "sorry -t -i 2: exited with status 3 (This device does not support querying health.)"},
		"floods -a":      {Why: "floods -a wrote more than 262144 bytes and was killed"},
		"refuses -other": {Why: "refuses -other: exited with status 1 (device is not there)"},
	} {
		words := strings.Fields(question)
		if got := tools.Ask(t.Context(), words[0], words[1:]...); got != want {
			t.Errorf("%s: %.200q, want %q", question, got, want)
		}
	}
	if a := tools.Ask(t.Context(), "dies"); !strings.HasPrefix(a.Why, "dies: was killed by SIGSEGV") || a.Text != "" {
		t.Errorf("%+v", a)
	}
	if a := tools.Ask(t.Context(), "absent"); !strings.HasPrefix(a.Why, "absent cannot be asked: there is no absent in "+os.TempDir()) {
		t.Errorf("%+v", a)
	}
}

// TestToolThatHangs: it is killed, and not asked again; other tools are.
func TestToolThatHangs(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	o := shells(t, map[string]string{
		"hangs": `echo "$1" >> ` + asked + `; echo Health : OK; trap "" TERM; exec sleep 60`, "good": "echo here",
	})
	o.Timeout = 3 * time.Second
	tools := probe.NewTools(o)
	const want = "hangs hung for 3s and was killed"
	for _, question := range []string{"one", "two", "one"} {
		if a := tools.Ask(t.Context(), "hangs", question); a.Why != want || a.Text != "" {
			t.Errorf("%s: %+v", question, a)
		}
	}
	if text, err := os.ReadFile(asked); err != nil || string(text) != "one\n" {
		t.Errorf("asked %q, %v", text, err)
	}
	o.Timeout = 20 * time.Second
	tools = probe.NewTools(o)
	if a := tools.Ask(t.Context(), "good"); a.Text != "here\n" {
		t.Errorf("%+v", a)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if a := tools.Ask(ctx, "hangs", "three"); a.Why != "hangs was stopped: enough" {
		t.Errorf("%+v", a)
	}
}

// TestToolsOnce: the same question is asked once.
func TestToolsOnce(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	tools := probe.NewTools(shells(t, map[string]string{"tool": `echo "$*" >> ` + count + `; cat ` + count}))
	for _, want := range []string{"a\n", "a\n"} {
		if a := tools.Ask(t.Context(), "tool", "a"); a.Text != want {
			t.Errorf("%+v", a)
		}
	}
	if a := tools.Ask(t.Context(), "tool", "b"); a.Text != "a\nb\n" {
		t.Errorf("%+v", a)
	}
}

// TestToolsThatMayNotRun: nothing is executed where nothing is to be, nor after something that cannot be killed.
func TestToolsThatMayNotRun(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	o := shells(t, map[string]string{"npu-smi": "touch " + ran})
	o.Exec = probe.ExecNone
	if a := probe.NewTools(o).Ask(t.Context(), "npu-smi"); a.Why != "npu-smi was not asked: --probe-exec none" {
		t.Errorf("%+v", a)
	}
	o.Exec = ""
	probe.SetAbandoned(4194305)
	defer probe.ForgetAbandoned()
	if a := probe.NewTools(o).Ask(t.Context(),
		"npu-smi"); a.Why != "npu-smi was not asked: an earlier probe hangs in the driver (pid 4194305)" {
		t.Errorf("%+v", a)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("it ran")
	}
}

// TestToolsOnPath: PATH comes first, and what it says of the working directory is not followed.
func TestToolsOnPath(t *testing.T) {
	o := shells(t, map[string]string{"hl-smi": "echo on PATH"})
	dir := o.ToolDirs[0]
	t.Chdir(dir)
	o.ToolDirs, o.Environ = nil, []string{"PATH=.:" + dir}
	if a := probe.NewTools(o).Ask(t.Context(), "hl-smi"); a.Text != "on PATH\n" {
		t.Errorf("%+v", a)
	}
	o.Environ = []string{"PATH=."}
	if a := probe.NewTools(o).Ask(t.Context(),
		"hccn_tool"); a.Why != "hccn_tool cannot be asked: there is no hccn_tool on PATH, nor in /usr/local/Ascend/driver/tools" {
		t.Errorf("%+v", a)
	}
	// A file that cannot be executed is no tool that hangs.
	if err := os.Chmod(filepath.Join(dir, "hl-smi"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.ToolDirs = []string{dir}
	if a := probe.NewTools(o).Ask(t.Context(), "hl-smi"); a.Why != "hl-smi cannot be asked: permission denied" {
		t.Errorf("%+v", a)
	}
}

// TestReplayTools: a fake's words go the way of real ones.
func TestReplayTools(t *testing.T) {
	said := 0
	tools := probe.ReplayTools(probe.Options{}, func(args []string) (string, int, bool) {
		said++
		return strings.Join(args, "+"), len(args) - 1, args[0] != "none"
	})
	for question, want := range map[string]probe.Answer{
		"tool": {Text: "tool"}, "tool a": {Why: "tool a: exited with status 1 (tool+a)"},
		"none": {Why: "none cannot be asked: the fake has no none"},
	} {
		words := strings.Fields(question)
		for range 2 {
			if got := tools.Ask(t.Context(), words[0], words[1:]...); got != want {
				t.Errorf("%s: %+v, want %+v", question, got, want)
			}
		}
	}
	if said != 3 {
		t.Errorf("asked %d times", said)
	}
}
