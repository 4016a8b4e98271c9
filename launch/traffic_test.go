package launch

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"muster/launch/report"
)

// TestTraffic: what interfaces and RDMA ports have carried since the job began, also where counters begin anew.
func TestTraffic(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{}
	set := func(name, text string) { files[name] = &fstest.MapFile{Data: []byte(text)} }
	dev := func(eth0, eth1 [2]int) {
		set("proc/self/net/dev", fmt.Sprintf(`Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 999999      1    0    0    0     0          0         0   999999       1    0    0    0     0       0          0
  eth0:%d 1 0 0 0 0 0 0 %d 1 0 0 0 0 0 0
  eth1: %d 1 0 0 0 0 0 0 %d 1 0 0 0 0 0 0
  torn: 7
`, eth0[0], eth0[1], eth1[0], eth1[1]))
	}
	rdma := func(received, sent int) {
		const at = "sys/class/infiniband/mlx5_0/ports/1/counters/"
		set(at+"port_rcv_data", fmt.Sprintln(received))
		set(at+"port_xmit_data", fmt.Sprintln(sent))
	}
	dev([2]int{1000, 2000}, [2]int{50, 60})
	rdma(10, 20)
	c := &Traffic{root: files}
	if got := c.Read(); got != nil {
		t.Errorf("it has not begun: %v", got)
	}
	c.Start()
	if got := c.Read(); got != nil {
		t.Errorf("nothing was carried: %v", got)
	}
	dev([2]int{1100, 2005}, [2]int{50, 60})
	rdma(110, 20)
	want := []report.Traffic{{Interface: "mlx5_0:1", ReceivedBytes: 400}, {Interface: "eth0", ReceivedBytes: 100, SentBytes: 5}}
	if diff := cmp.Diff(want, c.Read()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	dev([2]int{7, 2005}, [2]int{50, 61})
	want = []report.Traffic{
		{Interface: "mlx5_0:1", ReceivedBytes: 400}, {Interface: "eth0", ReceivedBytes: 7, SentBytes: 5}, {Interface: "eth1", SentBytes: 1},
	}
	if diff := cmp.Diff(want, c.Read()); diff != "" {
		t.Errorf("counters that began anew (-want +got):\n%s", diff)
	}
	none := &Traffic{root: fstest.MapFS{}}
	none.Start()
	if got := none.Read(); got != nil {
		t.Errorf("a machine that tells nothing: %v", got)
	}
}
