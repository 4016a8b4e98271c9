package drive

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// Meet is a job of several agents on this machine, each of which has a number. Their workers are shells.
type Meet struct {
	T   *testing.T
	Out string // a file per worker, with its environment
	// Flags, Env and Script are what all of them get.
	Flags, Env []string
	Script     string
	Native     bool // muster run, not muster torchrun
	Agents     []*Job
}

// ShowEnvironment is what each worker does first.
const ShowEnvironment = `f="$OUT/$NODE.$MUSTER_ROUND.$LOCAL_RANK"; env >"$f~" && mv "$f~" "$f"` + "\n"

// RankOneFails lets rank 1 fail in the first round, when all workers of that have shown themselves.
const RankOneFails = `
if [ "$MUSTER_ROUND$RANK" = 01 ]; then
	until [ "$(ls "$OUT" | grep -c '^[0-9]*[.]0[.][0-9]*$')" = "$WORLD_SIZE" ]; do sleep 0.02; done
	exit 3
fi
[ "$MUSTER_ROUND" != 0 ] || sleep 60`

// NewMeet makes a job whose workers run a shell script, and whose test runs beside others: it waits most of the time.
func NewMeet(t *testing.T, script string, flags ...string) *Meet {
	t.Helper()
	m := &Meet{T: t, Out: t.TempDir(), Flags: flags, Script: script}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, j := range m.Agents {
			t.Logf("%s:\n%s%s", strings.Join(j.Args, " "), j.Out.String(), j.Err.String())
		}
	})
	return m
}

// Start starts the agent of a node.
func (m *Meet) Start(node int, flags ...string) *Job {
	m.T.Helper()
	j := Start(m.T, m.Environ(node), m.Args(flags)...)
	m.Agents = append(m.Agents, j)
	return j
}

// Environ is what the agent of a node has in its environment beside ours.
func (m *Meet) Environ(node int) []string {
	return append([]string{"OUT=" + m.Out, "NODE=" + strconv.Itoa(node), "MUSTER_JOIN_TIMEOUT=1m", EndAtOnce}, m.Env...)
}

// Args is the command line of an agent with these flags.
func (m *Meet) Args(flags []string) []string {
	dialect, last := "torchrun", "--no-python"
	if m.Native {
		dialect, last = "run", "--"
	}
	args := append(append([]string{dialect}, m.Flags...), flags...)
	return append(args, last, "sh", "-c", ShowEnvironment+m.Script)
}

// Worker returns the environment of a worker, nil while it has not been there.
func (m *Meet) Worker(node, round, local int) map[string]string {
	m.T.Helper()
	return ReadEnvironment(m.T, filepath.Join(m.Out, strconv.Itoa(node)+"."+strconv.Itoa(round)+"."+strconv.Itoa(local)))
}

// Seen waits until a worker has been there and returns its environment.
func (m *Meet) Seen(node, round, local int) map[string]string {
	m.T.Helper()
	var vars map[string]string
	testutil.Eventually(m.T, time.Minute, "worker "+strconv.Itoa(local)+" of node "+strconv.Itoa(node)+" is there in round "+
		strconv.Itoa(round), func() bool {
		vars = m.Worker(node, round, local)
		return vars != nil
	})
	return vars
}

// Expect compares variables of a worker, "NAME=VALUE".
func (m *Meet) Expect(node, round, local int, want ...string) {
	m.T.Helper()
	vars := m.Seen(node, round, local)
	for _, kv := range want {
		if name, value, _ := strings.Cut(kv, "="); vars[name] != value {
			m.T.Errorf("worker %d of node %d in round %d has %s=%s, want %s", local, node, round, name, vars[name], value)
		}
	}
}

// Ends waits for an agent and compares its status, and looks for words in what it said.
func (m *Meet) Ends(j *Job, status int, words ...string) Outcome {
	m.T.Helper()
	got := j.End()
	if got.Status != status {
		m.T.Errorf("%s: status %d, want %d", strings.Join(j.Args[:min(len(j.Args), 12)], " "), got.Status, status)
	}
	for _, w := range words {
		if !strings.Contains(got.Stderr, w) {
			m.T.Errorf("the agent has not said %q:\n%s", w, got.Stderr)
		}
	}
	return got
}

// Says waits until an agent has said something.
func (m *Meet) Says(j *Job, words string) {
	m.T.Helper()
	testutil.Eventually(m.T, time.Minute, "an agent says "+words, func() bool { return strings.Contains(ForPeople(j.Err.String()), words) })
}

// Kill ends an agent as the kernel does when memory is out. Its workers die with it.
func (m *Meet) Kill(j *Job) {
	m.T.Helper()
	if err := j.Process.Signal(syscall.SIGKILL); err != nil {
		m.T.Fatal(err)
	}
	j.End()
}

// Open lets workers go on that wait at the gate.
func (m *Meet) Open() {
	m.T.Helper()
	if err := os.WriteFile(filepath.Join(m.Out, "go"), nil, 0o600); err != nil {
		m.T.Fatal(err)
	}
}

// UntilGate is a worker that waits at the gate.
const UntilGate = `while [ ! -e "$OUT/go" ]; do sleep 0.05; done` + "\n"

// AgentsSaid is what all agents have said so far.
func AgentsSaid(m *Meet) string {
	var all strings.Builder
	for _, j := range m.Agents {
		all.WriteString(j.Err.String())
	}
	return all.String()
}

// StaticFlags are those of a job with fixed node ranks on this machine.
func StaticFlags(t testing.TB, nodes int) (flags []string, port string) {
	t.Helper()
	port = FreePort(t)
	return []string{fmt.Sprintf("--nnodes=%d", nodes), "--master-addr=127.0.0.1", "--master-port=" + port}, port
}
