package meet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestMeetHostReturns kills the agent that hosts the store of two nodes, and starts the same command again at once, before
// the other one has given it up. That is the loss of a node: the job goes on as often as --restart-limit or
// --backoff-limit says, and then ends on both nodes.
func TestMeetHostReturns(t *testing.T) {
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
	m.Native, m.Env = true, []string{"MUSTER_LOG_LEVEL=debug", "MUSTER_KEEP_ALIVE=400ms"}
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
