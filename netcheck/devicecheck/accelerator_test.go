package devicecheck_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/netcheck/devicecheck"
)

// What is done with accelerators is done here with testdata/torch_npu: all of it, but for the speed.
func TestAccelerator(t *testing.T) {
	t.Parallel()
	stub, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	// Python leaves no compiled files in the tree.
	env := []string{"PYTHONPATH=" + stub, "PYTHONDONTWRITEBYTECODE=1"}
	n := open(t, forked(t, devicecheck.Config{
		Python: []string{testutil.Torch(t)}, Devices: 2, Device: "npu", Sample: 5 * time.Millisecond,
	}), env...)
	results, err := n.Local(t.Context())
	if err != nil || len(results) != 2 {
		t.Fatalf("%+v, %v", results, err)
	}
	for _, r := range results {
		if r.Kind != "npu" || r.Backend != "hccl" || r.Model != "Ascend of paper" || r.Matmul.Size != 1024 || r.Matmul.Type != "float32" ||
			r.ToDevice <= 0 || r.FromDevice <= 0 || r.AllReduce == nil || r.AllReduce.Bytes != 64<<20 {
			t.Errorf("%+v", r)
		}
	}
	if sum, err := n.Pair(t.Context(), devicecheck.Group{Name: "p", Store: serve(t, n), World: 2}, 1<<20); err != nil ||
		sum.Bytes != 1<<20 {
		t.Errorf("%+v, %v", sum, err)
	}

	// Numbers that arrive wrong are found, and by whom.
	n.setEnv(append(env, "STUB_CORRUPT=1")...)
	for _, pid := range n.PIDs() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	_, err = n.Pair(t.Context(), devicecheck.Group{Name: "q", Store: serve(t, n), World: 2}, 1<<20)
	want(t, err, 1, devicecheck.Data, "all-reduce", "1 of 262144 sums are wrong, the first at 1000: 498.0 instead of 497.0")
	n.setEnv(env...)

	// More than eight devices take two processes; a device that fails takes its process with it.
	pairs := []devicecheck.Pair{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {8, 7}, {3, 10}, {1, 2}}
	links, err := n.Switchbox(t.Context(), pairs)
	if err != nil || len(links) != len(pairs) {
		t.Fatalf("%+v, %v", links, err)
	}
	for _, r := range links {
		switch r.Pair {
		case devicecheck.Pair{8, 9}:
			want(t, r.Err, -1, devicecheck.Failed, "pair 8:9", "RuntimeError: device 9 fell off the bus")
		case devicecheck.Pair{3, 10}:
			want(t, r.Err, -1, devicecheck.Failed, "pair 3:10", "there is no device 10: torch sees 10")
		default:
			if r.Err != nil || r.MBps() <= 0 || r.Corrupt() || r.There.Peer == nil || r.There.HostMBps <= 0 ||
				r.ViaHost() != (r.Pair == devicecheck.Pair{0, 1}) {
				t.Errorf("%+v", r)
			}
		}
	}
	if left, err := os.ReadDir(filepath.Join(stub, "torch_npu")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}
