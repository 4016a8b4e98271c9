package dialects

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// colossalRun is the command line of a Colossal-AI job: a launcher with a hostfile, and workers' hosts with nothing but
// sshd.
func colossalRun(t *testing.T) []string {
	t.Helper()
	return []string{
		"colossalai", "run", "--hostfile", drive.WriteScript(t, "hosts", "node1\nnode2\n"), "--nproc_per_node", "2",
		"--master_addr", "node1", drive.Script(t, "nodes", "allreduce.py"), "--config", "a b",
	}
}

// TestScenarioColossalAI trains, with PyTorch itself, on two hosts that the launcher reaches by ssh.
func TestScenarioColossalAI(t *testing.T) {
	python := drive.SomeTorch(t)
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	j.Env = []string{"PYTHON_EXEC=" + python}
	r := j.Start(append(drive.Warm("auto"), colossalRun(t)...)...)
	j.Ends(r, 0, "sum 10 --config a b")
	drive.Sums(t, r.Out.String(), 4, 2, 1)
	j.Clean(30 * time.Second)
}

// TestScenarioColossalAIDebug starts the same job in debug mode: all is prepared, each rank can be entered, and nothing
// trains.
func TestScenarioColossalAIDebug(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	j.Env = []string{"PYTHON_EXEC=/usr/bin/python3", "GREETING=it's\n$HOME"}
	r := j.Start(append([]string{"--debug-mode"}, colossalRun(t)...)...)
	var dirs []string
	testutil.Eventually(t, time.Minute, "both hosts tell how their ranks are entered", func() bool {
		dirs = debugEnvs(r.Err.String())
		return len(dirs) == 2
	})
	for i, h := range j.On {
		testutil.Eventually(t, time.Minute, "two workers sleep on "+h.Name, func() bool {
			sleeping := 0
			for _, p := range h.Processes() {
				if cmd := strings.Join(p.Args, " "); strings.HasPrefix(cmd, "sleep ") {
					sleeping++
				} else if strings.Contains(cmd, "allreduce") {
					t.Fatalf("%s trains: %s", h.Name, cmd)
				}
			}
			return sleeping == 2
		})
		for local := range 2 {
			rank := 2*i + local
			c := h.Command("sh", "-c", `. "$1" && printf '%s|%s|%s|%s' "$RANK" "$WORLD_SIZE" "$MASTER_ADDR" "$GREETING"`, "sh",
				fmt.Sprintf("%s/rank%d", dirs[i], rank))
			c.Env = []string{"PATH=" + os.Getenv("PATH")}
			got, err := c.Output()
			if want := fmt.Sprintf("%d|4|%s|it's\n$HOME", rank, j.On[0].Addrs[0][0]); err != nil || string(got) != want {
				t.Errorf("who enters rank %d on %s finds %q, want %q: %v", rank, h.Name, got, want, err)
			}
		}
	}
	if err := r.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	j.Ends(r, 130)
	j.Clean(30 * time.Second)
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left, and all secrets of the workers in it: %v", dir, err)
		}
	}
}

// debugEnvs are the directories that agents have told, in the order of their hosts' names.
func debugEnvs(log string) []string {
	found := map[string]string{}
	for line := range strings.Lines(log) {
		var said struct{ Agent, Env string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Env != "" {
			found[said.Agent] = said.Env
		}
	}
	var dirs []string
	for _, name := range []string{"node1", "node2"} {
		if dir, ok := found[name]; ok {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
