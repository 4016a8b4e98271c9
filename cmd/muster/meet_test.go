package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// meet is a job of several agents on this machine, each of which has a number. Their workers are shells.
type meet struct {
	t   *testing.T
	out string // a file per worker, with its environment
	// flags, env and script are what all of them get.
	flags, env []string
	script     string
	native     bool // muster run, not muster torchrun
	agents     []*testJob
}

// showEnvironment is what each worker does first.
const showEnvironment = `f="$OUT/$NODE.$MUSTER_ROUND.$LOCAL_RANK"; env >"$f~" && mv "$f~" "$f"` + "\n"

// rankOneFails lets rank 1 fail in the first round, when all workers of that have shown themselves.
const rankOneFails = `
if [ "$MUSTER_ROUND$RANK" = 01 ]; then
	until [ "$(ls "$OUT" | grep -c '^[0-9]*[.]0[.][0-9]*$')" = "$WORLD_SIZE" ]; do sleep 0.02; done
	exit 3
fi
[ "$MUSTER_ROUND" != 0 ] || sleep 60`

// newMeet makes a job whose workers run a shell script, and whose test runs beside others: it waits most of the time.
func newMeet(t *testing.T, script string, flags ...string) *meet {
	t.Helper()
	m := &meet{t: t, out: t.TempDir(), flags: flags, script: script}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, j := range m.agents {
			t.Logf("%s:\n%s%s", strings.Join(j.Args, " "), j.out.String(), j.err.String())
		}
	})
	return m
}

// start starts the agent of a node.
func (m *meet) start(node int, flags ...string) *testJob {
	m.t.Helper()
	j := start(m.t, m.environ(node), m.args(flags)...)
	m.agents = append(m.agents, j)
	return j
}

func (m *meet) environ(node int) []string {
	return append([]string{"OUT=" + m.out, "NODE=" + strconv.Itoa(node), "MUSTER_JOIN_TIMEOUT=1m", endAtOnce}, m.env...)
}

func (m *meet) args(flags []string) []string {
	dialect, last := "torchrun", "--no-python"
	if m.native {
		dialect, last = "run", "--"
	}
	args := append(append([]string{dialect}, m.flags...), flags...)
	return append(args, last, "sh", "-c", showEnvironment+m.script)
}

// worker returns the environment of a worker, nil while it has not been there.
func (m *meet) worker(node, round, local int) map[string]string {
	m.t.Helper()
	return readEnvironment(m.t, filepath.Join(m.out, strconv.Itoa(node)+"."+strconv.Itoa(round)+"."+strconv.Itoa(local)))
}

// seen waits until a worker has been there and returns its environment.
func (m *meet) seen(node, round, local int) map[string]string {
	m.t.Helper()
	var vars map[string]string
	testutil.Eventually(m.t, time.Minute, "worker "+strconv.Itoa(local)+" of node "+strconv.Itoa(node)+" is there in round "+
		strconv.Itoa(round), func() bool {
		vars = m.worker(node, round, local)
		return vars != nil
	})
	return vars
}

// expect compares variables of a worker, "NAME=VALUE".
func (m *meet) expect(node, round, local int, want ...string) {
	m.t.Helper()
	vars := m.seen(node, round, local)
	for _, kv := range want {
		if name, value, _ := strings.Cut(kv, "="); vars[name] != value {
			m.t.Errorf("worker %d of node %d in round %d has %s=%s, want %s", local, node, round, name, vars[name], value)
		}
	}
}

// ends waits for an agent and compares its status, and looks for words in what it said.
func (m *meet) ends(j *testJob, status int, words ...string) outcome {
	m.t.Helper()
	got := j.wait()
	if got.status != status {
		m.t.Errorf("%s: status %d, want %d", strings.Join(j.Args[:min(len(j.Args), 12)], " "), got.status, status)
	}
	for _, w := range words {
		if !strings.Contains(got.stderr, w) {
			m.t.Errorf("the agent has not said %q:\n%s", w, got.stderr)
		}
	}
	return got
}

// says waits until an agent has said something.
func (m *meet) says(j *testJob, words string) {
	m.t.Helper()
	testutil.Eventually(m.t, time.Minute, "an agent says "+words, func() bool { return strings.Contains(forPeople(j.err.String()), words) })
}

// kill ends an agent as the kernel does when memory is out. Its workers die with it.
func (m *meet) kill(j *testJob) {
	m.t.Helper()
	if err := j.Process.Signal(syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
	j.wait()
}

// open lets workers go on that wait at the gate.
func (m *meet) open() {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.out, "go"), nil, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// untilGate is a worker that waits at the gate.
const untilGate = `while [ ! -e "$OUT/go" ]; do sleep 0.05; done` + "\n"

// agentsSaid is what all agents have said so far.
func agentsSaid(m *meet) string {
	var all strings.Builder
	for _, j := range m.agents {
		all.WriteString(j.err.String())
	}
	return all.String()
}
