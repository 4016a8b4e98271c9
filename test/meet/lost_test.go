package meet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestMeetHostReturns kills the agent that hosts the store of two nodes, and starts the same command again at once, before
// the other one has given it up. That is the loss of a node: the job goes on as often as --restart-limit or
// --backoff-limit says, and then ends on both nodes.
func TestMeetHostReturns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flag   string
		losses int // that the job survives
		words  string
	}{
		{"--restart-limit=0", 0, "and no restart is left for a lost node"},
		{"--restart-limit=1", 1, "and the restart limit of 1 lost nodes is reached"},
		{"--backoff-limit=0", 0, "and the backoff limit of 0 is reached"},
	} {
		t.Run(c.flag, func(t *testing.T) {
			t.Parallel()
			status := filepath.Join(t.TempDir(), "status")
			m := drive.NewMeet(t, drive.UntilGate, "--nnodes=2", "--run-id=x", "--rdzv=c10d://127.0.0.1:"+drive.FreePort(t), c.flag)
			m.Native, m.Env = true, []string{"MUSTER_LOG_LEVEL=debug"}
			host := m.Start(0)
			m.Says(host, `"message":"this node hosts the store"`)
			other := m.Start(1, "--status-file="+status)
			for round := range c.losses + 1 {
				m.Seen(0, round, 0)
				m.Seen(1, round, 0)
				want := fmt.Sprintf(`"replacements":%d,`, round)
				testutil.Eventually(t, time.Minute, "the status file says "+want, func() bool {
					text, _ := os.ReadFile(status)
					return strings.Contains(strings.ReplaceAll(string(text), " ", ""), want)
				})
				m.Kill(host)
				time.Sleep(300 * time.Millisecond)
				host = m.Start(0)
			}
			const lost = "(127.0.0.1), which hosts the store, was lost and has been started again, "
			m.Ends(host, 75, lost+c.words)
			m.Ends(other, 75, lost+c.words)
		})
	}
}

// TestMeetLostIsNotWaitedFor kills an agent whose loss ends the job: the other one does not wait for its report.
func TestMeetLostIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	m := drive.NewMeet(t, drive.UntilGate, "--nnodes=2", "--run-id=x", "--rdzv=c10d://127.0.0.1:"+drive.FreePort(t), "--restart-limit=0",
		"--grace=1m")
	m.Native, m.Env = true, []string{"MUSTER_LOG_LEVEL=debug", "MUSTER_KEEP_ALIVE=1s"}
	host := m.Start(0)
	m.Says(host, `"message":"this node hosts the store"`)
	other := m.Start(1)
	m.Seen(0, 0, 0)
	m.Seen(1, 0, 0)
	m.Kill(other)
	killed := time.Now()
	m.Ends(host, 75, "and no restart is left for a lost node")
	if took := time.Since(killed); took > 40*time.Second {
		t.Errorf("the job has ended %v after the loss", took)
	}
}

// TestStoppedWhileWaiting: a node that is told to stop before the others have come says so, the one that serves the store
// and the one that looks for it.
func TestStoppedWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, flag := range map[string]string{"host": "--node-rank=0", "guest": "--node-rank=1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := drive.NewMeet(t, "true", "--nnodes=2", "--run-id=x", "--rdzv=static://127.0.0.1:"+drive.FreePort(t))
			m.Native, m.Env = true, []string{"MUSTER_LOG_LEVEL=debug"}
			j := m.Start(0, flag)
			m.Says(j, `"message":"waiting for `)
			if err := j.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			out := m.Ends(j, 143, "muster was asked to stop while it waited for other nodes")
			if n := strings.Count(out.Stderr, "while it waited for other nodes"); n != 1 || !strings.Contains(out.Stderr, "SIGTERM") {
				t.Errorf("it has said %d times that it was stopped\n%s", n, out.Stderr)
			}
		})
	}
}

// TestMeetHurriedHost tells the agent that serves the store to stop, and once more while it waits for the workers of the
// others, which take their time: it ends at once, and the others go on.
func TestMeetHurriedHost(t *testing.T) {
	t.Parallel()
	script := `[ "$NODE" = 0 ] || trap '' TERM` + "\n" + drive.UntilGate
	m := drive.NewMeet(t, script, "--nnodes=2:3", "--run-id=x", "--rdzv=c10d://127.0.0.1:"+drive.FreePort(t), "--grace=10m",
		"--rdzv-conf=close_timeout=600", "--last-call=2s")
	m.Native, m.Env = true, []string{"MUSTER_LOG_LEVEL=debug"}
	host := m.Start(0)
	m.Says(host, `"message":"this node hosts the store"`)
	others := []*drive.Job{m.Start(1), m.Start(2)}
	for node := range 3 {
		m.Seen(node, 0, 0)
	}
	stop := func() {
		if err := host.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	testutil.Eventually(t, time.Minute, "nothing but the store is left of the host's part", func() bool {
		left, _ := filepath.Glob(filepath.Join(host.RuntimeDir, "muster", "job-*"))
		return len(left) == 0
	})
	stop()
	m.Ends(host, 143)
	m.Open()
	for _, j := range others {
		m.Ends(j, 0)
	}
}
