package devicecheck_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"muster/internal/proc"
	"muster/internal/testutil"
	"muster/netcheck/devicecheck"
)

// rehearsal opens a program whose program is told of faults, in the form that a spec gives them.
func rehearsal(t *testing.T, devices int, faults string) *node {
	t.Helper()
	cfg := forked(t, devicecheck.Config{Python: []string{pythons(t)["oldest"]}, Devices: devices})
	return open(t, cfg, "MUSTER_FAKE_FAULT=["+faults+"]", "MUSTER_RUN_DIR="+t.TempDir())
}

// TestRehearsedFaults: each fault happens in its process and its test, and in no other.
func TestRehearsedFaults(t *testing.T) {
	t.Parallel()
	t.Run("crash", func(t *testing.T) {
		n := rehearsal(t, 2, `{"kind":"crash","in":"check","at":"local","local_rank":1,"status":7,"once":"mark"}`)
		_, err := n.Local(t.Context())
		want(t, err, 0, devicecheck.Peer, "waiting", "rank 1: exited with status 7")
		if !strings.Contains(err.Error(), "device 1 failed in the local test (rehearsal of a crash): exited with status 7") {
			t.Error(err)
		}
		if _, err := n.Local(t.Context()); err != nil {
			t.Errorf("it was to be once: %v", err)
		}
	})
	t.Run("by signal", func(t *testing.T) {
		n := rehearsal(t, 1, `{"kind":"crash","in":"both","at":"pair","local_rank":0,"status":137}`)
		if _, err := n.Local(t.Context()); err != nil {
			t.Errorf("it was to be in the test of a pair: %v", err)
		}
		for range 2 {
			_, err := n.Pair(t.Context(), devicecheck.Group{Name: "crash", Store: serve(t, n), World: 1}, 0)
			want(t, err, 0, devicecheck.Died, "", "SIGKILL")
		}
	})
	t.Run("hang", func(t *testing.T) {
		n := rehearsal(t, 1, `{"kind":"hang","in":"check","at":"pair","local_rank":-1}`)
		if _, err := n.Local(t.Context()); err != nil {
			t.Error(err)
		}
		store := serve(t, n)
		n.SetBudget(5 * time.Second)
		_, err := n.Pair(t.Context(), devicecheck.Group{Name: "hang", Store: store, World: 1}, 0)
		want(t, err, 0, devicecheck.Hung, "rehearsal of a hang", "within")
	})
	t.Run("none of ours", func(t *testing.T) {
		n := rehearsal(t, 1,
			`{"kind":"crash","in":"workers","at":"local","local_rank":0,"status":7},`+
				`{"kind":"crash","in":"check","at":"local","local_rank":1,"status":7}`)
		if _, err := n.Local(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("slow", func(t *testing.T) {
		local := func(factor string) devicecheck.DeviceResult {
			n := rehearsal(t, 2, `{"kind":"slow-node","in":"both","local_rank":-1,"factor":`+factor+`}`)
			results, err := n.Local(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return results[1]
		}
		var said []string
		for range 5 { // other processes make any device slow for a while
			fast, slow := local("1.0"), local("0.05")
			if slow.Matmul.Median >= 5*fast.Matmul.Median && slow.AllReduce.Median >= 5*fast.AllReduce.Median {
				return
			}
			said = append(said, fmt.Sprintf("products in %v and %v, sums in %v and %v", slow.Matmul.Median, fast.Matmul.Median,
				slow.AllReduce.Median, fast.AllReduce.Median))
		}
		t.Error(strings.Join(said, "\n"))
	})
}

// TestRehearsedNoTorch: an interpreter that has torch does not find it, in tests of devices and of links.
func TestRehearsedNoTorch(t *testing.T) {
	t.Parallel()
	fork := func(context.Context, proc.Spec) *proc.Process {
		t.Error("a fork was asked for, which has imported torch already")
		return nil
	}
	n := open(t, devicecheck.Config{Python: []string{testutil.Torch(t)}, Devices: 1, NoTorch: true, Fork: fork})
	_, err := n.Local(t.Context())
	want(t, err, 0, devicecheck.NoTorch, "importing torch", "no-torch")
	if _, err := n.Switchbox(t.Context(), []devicecheck.Pair{{0, 1}}); err == nil {
		t.Error("links were tested")
	} else {
		want(t, err, -1, devicecheck.NoTorch, "", "no-torch")
	}
}
