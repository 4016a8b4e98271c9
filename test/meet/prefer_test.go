package meet

import (
	"fmt"
	"testing"

	"muster/test/drive"
)

// TestMeetPrefers gives nodes that meet by c10d the node ranks that they were started with, whatever their addresses
// say; one that has to have another rank says so.
func TestMeetPrefers(t *testing.T) {
	for _, native := range []bool{false, true} {
		t.Run(map[bool]string{false: "torchrun", true: "run"}[native], func(t *testing.T) {
			t.Parallel()
			at := "127.0.0.1:" + drive.FreePort(t)
			m := drive.NewMeet(t, "", "--nnodes=3", "--run-id=x", "--rdzv=c10d://"+at)
			if !native {
				m.Flags = []string{"--nnodes=3", "--rdzv-id=x", "--rdzv-backend=c10d", "--rdzv-endpoint=" + at}
			}
			m.Native = native
			var agents []*drive.Job
			for _, rank := range []int{2, 0, 1} { // by address it would be the other way round
				agents = append(agents, m.Start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--local-addr=127.0.0.%d", 5-rank)))
			}
			for _, j := range agents {
				m.Ends(j, 0)
			}
			for rank := range 3 {
				m.Expect(rank, 0, 0, fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("GROUP_RANK=%d", rank), "MASTER_ADDR=127.0.0.5")
			}
		})
	}
	t.Run("the same twice", func(t *testing.T) {
		t.Parallel()
		m := drive.NewMeet(t, "", "--nnodes=2", "--run-id=x", "--rdzv=c10d://127.0.0.1:"+drive.FreePort(t), "--node-rank=1")
		m.Native = true
		one, two := m.Start(0, "--local-addr=127.0.0.2"), m.Start(1, "--local-addr=127.0.0.3")
		m.Ends(one, 0, "this node has another rank than it was started with", "another node has that rank, or asks for the same")
		m.Ends(two, 0)
	})
}
