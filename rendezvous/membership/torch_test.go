package membership_test

import (
	"bufio"
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/tcpstore"
)

// TestNewcomerAtPyTorchsStore: an agent that comes late asks how the last round has ended. PyTorch's server wakes
// whoever waits for that with nothing when a compare-and-set of the missing key fails. make test runs the package twice, and
// this once.
func TestNewcomerAtPyTorchsStore(t *testing.T) {
	if !testutil.RaceDetector && !testutil.Soak() {
		t.Skip("runs with the race detector")
	}
	server := exec.Command(testutil.Torch(t), "-c", `
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()`)
	stdin, stdout := testutil.StartPiped(t, server)
	defer stdin.Close() // the server ends with it
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at := net.JoinHostPort("127.0.0.1", strings.TrimSpace(line))
	dial := func(ctx context.Context, addr string) (membership.Conn, error) {
		return tcpstore.Dial(ctx, addr, tcpstore.ClientConfig{Private: membership.KeyPrefix})
	}
	j := newJob(t, 2, 2)
	j.cfg.At, j.cfg.KeepAlive = at, 10*time.Second // PyTorch's server may wait for a processor for seconds
	start := func(name string) *agent {
		conn, err := dial(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		return j.start(name, func(c *membership.Config) { c.Store, c.At, c.Dial = conn, at, dial })
	}
	a, b := start("a"), start("b")
	for i, n := range meet(t.Context(), a, b) {
		if n.err != nil {
			t.Fatalf("agent %d: %v", i, n.err)
		}
	}
	late := start("late").begin(t.Context())
	select {
	case v := <-a.Verdict():
		t.Fatalf("the round is over: %+v", v)
	case v := <-b.Verdict():
		t.Fatalf("the round is over: %+v", v)
	case n := <-late:
		t.Fatalf("the world is full, but the newcomer got %+v", n)
	case <-time.After(2 * time.Second):
	}
	if _, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}); err != nil {
		t.Fatal(err)
	}
	if v := <-b.Verdict(); v.Kind != rendezvous.Succeed {
		t.Errorf("b hears %+v", v)
	}
	if n := <-late; n.err == nil {
		t.Errorf("the job has ended, and the newcomer got %+v", n.round)
	}
}
