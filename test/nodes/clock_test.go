package nodes

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// The real-time clock belongs to the kernel, so hosts that are made of namespaces share it: each agent is told another
// time in its own way. Clocks that never go back, by which both launchers wait, are left alone.

// clockFile holds how many milliseconds the clock of a host goes ahead, and may change while programs run.
func (j *nodes) clockFile(host int) string { return filepath.Join(j.hosts[host].Dir, "clock") }

// clockedMuster builds a muster that can be told another time, and returns its path. Ordinary ones cannot.
func clockedMuster(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "muster")
	cmd := exec.Command("go", "build", "-tags", "testclock", "-ldflags=-w", "-o", path, "./cmd/muster")
	cmd.Dir = drive.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build a muster with a clock of its own: %v\n%s", err, out)
	}
	return path
}

// setClock sets the clock of a host for all agents that are started from now on, and for those of torchrun that were
// started with the clock of their host before.
func (j *nodes) setClock(host int, ahead time.Duration) {
	j.t.Helper()
	// In place: programs have mapped the file.
	file, err := os.OpenFile(j.clockFile(host), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		j.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Milliseconds())), 0); err != nil {
		j.t.Fatal(err)
	}
}

// clock is the environment in which an agent has the clock of its host, empty where that is the machine's.
func (j *nodes) clock(host int, kind string) []string {
	j.t.Helper()
	ahead, err := os.ReadFile(j.clockFile(host))
	if err != nil {
		return nil
	}
	if kind == "muster" {
		return []string{fmt.Sprintf("MUSTER_TEST_CLOCK_OFFSET=%dms", int64(binary.NativeEndian.Uint64(ahead)))}
	}
	return clockEnviron(j.t, j.clockFile(host))
}

// clockEnviron lets a program that uses the C library read the clock that file shifts.
func clockEnviron(t testing.TB, file string) []string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		testutil.Missing(t, "gcc")
	}
	library := file + ".so"
	if out, err := exec.Command(gcc, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library,
		drive.Script(t, "nodes", "clock.c")).CombinedOutput(); err != nil {
		t.Fatalf("cannot build the clock: %v\n%s", err, out)
	}
	return []string{"LD_PRELOAD=" + library, "CLOCK_FILE=" + file}
}

// TestClock shows that a shifted clock is one: Python reads it in each of its ways, sees it change, and sleeps as ever.
func TestClock(t *testing.T) {
	t.Parallel()
	j := &nodes{t: t, hosts: []*testutil.Host{{Dir: t.TempDir()}}}
	const script = `
import sys, time, datetime
for line in sys.stdin:
    began = time.monotonic()
    time.sleep(0.05)
    assert 0.05 <= time.monotonic() - began < 20
    print(time.time(), datetime.datetime.now(datetime.timezone.utc).timestamp(), time.clock_gettime(time.CLOCK_REALTIME), flush=True)
`
	j.setClock(0, 0)
	cmd := exec.Command(testutil.Torch(t), "-c", script)
	cmd.Env = append(os.Environ(), j.clock(0, "torchrun")...)
	in, out := testutil.StartPiped(t, cmd)
	for _, ahead := range []time.Duration{0, time.Minute, -time.Minute, 1234 * time.Millisecond, -1999 * time.Millisecond} {
		j.setClock(0, ahead)
		fmt.Fprintln(in)
		for range 3 {
			var text string
			if _, err := fmt.Fscan(out, &text); err != nil {
				t.Fatal(err)
			}
			seconds, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if got := seconds - float64(time.Now().UnixMilli())/1000; err != nil || got < ahead.Seconds()-0.9 || got > ahead.Seconds()+0.1 {
				t.Errorf("the clock is %v seconds ahead, want %v: %v", got, ahead, err)
			}
		}
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
