package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A process counts with what it has used by itself, and not with a child that runs another program, although it waits
// for it.
func TestCPUWatchCountsOneProgram(t *testing.T) {
	content, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "counted")
	if err := os.WriteFile(program, content, 0o755); err != nil {
		t.Fatal(err)
	}
	const busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; "
	script := filepath.Join(dir, "busy")
	if err := os.WriteFile(script, []byte(busy), 0o644); err != nil {
		t.Fatal(err)
	}
	w := watchCPU(program)
	j := shell(t, "exec "+program+" -c '"+busy+"/bin/sh "+script+
		`; echo "1.0 0 0 $$" >>"$BENCH_DIR/stamps"; exec </dev/null; kill -STOP $$'`)
	stamps, err := j.waitStamps(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !stopped(stamps[0].pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the process goes on")
		}
	}
	want, err := cpuOf(stamps[0].pid) // of one that does nothing more
	if err != nil || want == 0 {
		t.Fatalf("processor time %v, error %v", want, err)
	}
	var got time.Duration
	for deadline := time.Now().Add(time.Minute); got != want && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		w.mu.Lock()
		got = w.used[stamps[0].pid]
		w.mu.Unlock()
	}
	if sum, processes := w.end(); got != want || sum != want || processes != 1 {
		t.Errorf("%v of %d processes, %v of the one that used %v", sum, processes, got, want)
	}
	if err := j.end(); err != nil {
		t.Fatal(err)
	}
	whole := j.cmd.ProcessState.UserTime() + j.cmd.ProcessState.SystemTime()
	if whole < want+want/4 {
		t.Errorf("the process used %v and its child nothing: %v with it", want, whole)
	}
}
