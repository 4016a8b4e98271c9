package hosts

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

// sleepers is a program whose ranks sleep in different places.
const sleepers = `import os, time
def load_batch():
    time.sleep(3600)
def train():
    time.sleep(3600)
rank = os.environ.get("RANK", os.environ.get("HOROVOD_RANK"))
load_batch() if rank == "1" else train()
`

// TestHostsDiagnose asks, on the launcher's machine, what hangs on hosts that are reached by ssh, whichever launcher's
// command line has started the job.
func TestHostsDiagnose(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2, func(_ string, cfg *testutil.SSHDConfig) { cfg.Env = append(cfg.Env, cfg.Host.Environ()...) })
	script := filepath.Join(t.TempDir(), "sleepers.py")
	if err := os.WriteFile(script, []byte(sleepers), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, line := range map[string]string{
		"run":        "--stacks on --hosts " + j.Names() + " -n 1 -- python3 " + script,
		"torchrun":   "--nproc-per-node 1 " + script,
		"horovodrun": "-np 2 -H node1:1,node2:1 python3 " + script,
	} {
		args := append([]string{name}, strings.Fields(line)...)
		switch name {
		case "torchrun":
			args = append([]string{"--stacks", "on", "--hosts", j.Names()}, args...)
		case "horovodrun":
			args = append([]string{"--stacks", "on"}, args...)
		}
		r := j.Start(args...)
		drive.UntilRanksOn(t, j.Launcher, 2)
		var said drive.Outcome
		testutil.Eventually(t, time.Minute, name+": both ranks are seen to sleep", func() bool {
			said = drive.RunOn(t, j.Launcher, "", "diagnose")
			return strings.Contains(said.Stdout, "sleepers.py:3 in load_batch") && strings.Contains(said.Stdout, "sleepers.py:5 in train")
		})
		for rank := range 2 {
			if want := fmt.Sprintf("rank %d on node node%d", rank, rank+1); !strings.Contains(said.Stdout, want) {
				t.Errorf("%s: it does not say %q: %s", name, want, said.Stdout)
			}
		}
		drive.RunOn(t, j.Launcher, "", "stacks").Expect(t, 0, "rank 0, main thread:\n", "rank 1, main thread:\n")
		drive.RunOn(t, j.Launcher, "", "stop").Expect(t, 0)
		j.Ends(r, 143)
	}
}
