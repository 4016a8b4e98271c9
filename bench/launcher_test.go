package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"muster/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell runs a shell command as if it were a launcher.
func shell(t *testing.T, command string) *job {
	t.Helper()
	b := &bench{dir: t.TempDir()}
	j, err := b.start(t.Context(), launcher{name: "sh", argv: []string{"/bin/sh", "-c", command}}, jobSpec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.end(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// What a launcher leaves behind in another session must not survive a benchmark, nor disturb the next figure.
func TestEndKillsWhatLeftTheSession(t *testing.T) {
	j := shell(t, `setsid sleep 300 & setsid sh -c "sleep 300 & sleep 300" & echo "1.0 0 0 $$" >>"$BENCH_DIR/stamps"; wait`)
	if _, err := j.waitStamps(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	pids := j.processes()
	if !slices.Contains(pids, j.cmd.Process.Pid) {
		t.Fatalf("processes %v lack the launcher %d", pids, j.cmd.Process.Pid)
	}
	if err := j.end(); err != nil {
		t.Fatal(err)
	}
	if pids := j.processes(); len(pids) > 0 {
		t.Errorf("processes %v survived", pids)
	}
	if _, err := os.Stat(j.dir); !os.IsNotExist(err) {
		t.Errorf("the folder of the job is still there: %v", err)
	}
}

func TestWaitTellsTheStatus(t *testing.T) {
	for command, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -KILL $$": 137} {
		if got, err := shell(t, command).wait(time.Minute); err != nil || got != want {
			t.Errorf("%s: status %d, error %v; want %d", command, got, err, want)
		}
	}
}

func TestFailureQuotesTheLauncher(t *testing.T) {
	err := shell(t, "echo no such script >&2; exit 3").succeed()
	if err == nil || !strings.Contains(err.Error(), "status 3") || !strings.Contains(err.Error(), "no such script") {
		t.Errorf("error %v names neither the status nor the reason", err)
	}
}

func TestStampsAreRead(t *testing.T) {
	j := shell(t, `printf '100.000000250 1 0 41\n101.5 0 1 42\n' >>"$BENCH_DIR/stamps"`)
	if err := j.succeed(); err != nil {
		t.Fatal(err)
	}
	got, err := j.stamps()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].at.UnixNano() != 100_000_000_250 || got[0].rank != 1 || got[1].attempt != 1 || got[1].pid != 42 {
		t.Errorf("stamps are %+v", got)
	}
}

// muster's guardian has an environment of its own; it is part of what muster costs.
func TestHelpersWithoutTheMarkCount(t *testing.T) {
	j := shell(t, `env -i setsid sleep 300 & echo "1.0 0 0 $!" >>"$BENCH_DIR/stamps"; wait`)
	helper, err := j.waitStamps(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "the helper is among the processes though its environment is empty", func() bool {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", helper[0].pid))
		return err == nil && len(environ) == 0 && slices.Contains(j.processes(), helper[0].pid)
	})
}

func TestMemoryLeavesTheWorkersOut(t *testing.T) {
	j := shell(t, `sleep 300 & echo "1.0 0 0 $!" >>"$BENCH_DIR/stamps"; wait`)
	workers, err := j.waitStamps(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	all, err := j.ownMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	own, err := j.ownMemory(workers)
	if err != nil {
		t.Fatal(err)
	}
	if own <= 0 || own >= all {
		t.Errorf("the launcher takes %v MB of %v MB", own, all)
	}
}

func TestLinesAreCounted(t *testing.T) {
	lines, last, err := countLines(strings.NewReader(strings.Repeat("[default0]:x\n", 200_000) + "no newline"))
	if err != nil || lines != 200_000 || last.IsZero() {
		t.Errorf("%d lines, last byte at %v, error %v", lines, last, err)
	}
}
