package kill

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// blow is a way to hit a process.
type blow struct {
	name    string
	signals []syscall.Signal
}

var blows = []blow{
	{"SIGTERM", []syscall.Signal{syscall.SIGTERM}},
	{"SIGINT twice", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}},
	{"SIGKILL", []syscall.Signal{syscall.SIGKILL}},
	{"SIGSTOP then SIGKILL", []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL}},
}

// grandchildren are shell lines with which a worker starts a process that would outlive it. %s is the process.
var grandchildren = map[string]string{
	"plain":                     `%s & echo ready; wait`,
	"setsid":                    `setsid %s & echo ready; wait`,
	"double fork":               `(setsid %s &) ; echo ready; sleep 1000 & wait`,
	"empty environment, setsid": `env -i setsid %s & echo ready; wait`,
}

// TestKillMatrix hits one process of a job and expects that nothing of the job is left: no process, zombie, socket or
// file. A killed guardian is replaced and the job goes on.
func TestKillMatrix(t *testing.T) {
	testutil.Long(t)
	for _, target := range []string{"worker", "agent", "guardian"} {
		for _, b := range blows {
			for kind, line := range grandchildren {
				t.Run(target+"/"+b.name+"/"+kind, func(t *testing.T) {
					t.Parallel()
					killOne(t, target, b, line)
				})
			}
		}
	}
}

func killOne(t *testing.T, target string, b blow, line string) {
	mark := fmt.Sprintf("3%d.%d", os.Getpid(), time.Now().UnixNano()) // a number of seconds that nobody else sleeps
	script := fmt.Sprintf(strings.ReplaceAll(line, "1000", mark), "sleep "+mark)
	j := drive.Start(t, nil, "run", "-n", "2", "--grace", "5s", "--", "sh", "-c", script)
	// Each worker has one child at least; the guardian is the agent's one child that is no worker.
	testutil.Eventually(t, 60*time.Second, "workers and their children run", func() bool {
		return strings.Count(j.Out.String(), "ready") == 2 && len(drive.Processes(t, mark)) >= 4 && len(j.Guardians()) == 1
	})
	if target == "agent" && strings.Contains(line, "env -i") {
		// Only the guardian's regular look at the process tree knows a process that gave up its environment too.
		time.Sleep(3 * time.Second) // longer than the guardian's period
	}
	pid := j.Process.Pid
	switch target {
	case "worker":
		pid = j.Workers(t)[0]
	case "guardian":
		pid = j.Guardians()[0]
	}
	for _, s := range b.signals {
		if err := syscall.Kill(pid, s); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
	if target == "guardian" {
		killed := b.signals[len(b.signals)-1] == syscall.SIGKILL
		testutil.Eventually(t, 20*time.Second, "a guardian watches", func() bool {
			g := j.Guardians()
			return len(g) == 1 && (g[0] != pid || !killed) // one that was asked too early to ignore it is replaced too
		})
		if left := len(drive.Processes(t, mark)); left < 4 {
			t.Errorf("the job did not go on: %d processes are left", left)
		}
		if err := j.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	got := j.End()
	want := map[string]int{"SIGTERM": 143, "SIGINT twice": 130, "SIGKILL": 137, "SIGSTOP then SIGKILL": 137}[b.name]
	if target == "guardian" {
		want = 143
	}
	if got.Status != want {
		t.Errorf("status %d, want %d\n%s", got.Status, want, got.Stderr)
	}
	j.NothingLeft(mark)
}
