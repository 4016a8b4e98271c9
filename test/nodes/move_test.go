package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
)

// TestStoreMovesAlongTheList powers the host of the store off: the others go on at the second endpoint, where a
// newcomer finds them, and where the first node comes back to.
func TestStoreMovesAlongTheList(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	j := newNodes(t, 4)
	end := filepath.Join(j.dir, "end")
	j.worker = []string{
		"--no-python", "sh", "-c",
		`echo "$MUSTER_ROUND $RANK $WORLD_SIZE" >> "$0/round"; until [ -e "$0/end" ]; do sleep 0.1; done`, j.dir,
	}
	// Where the second host is slower to answer than nodes wait, the third has the store.
	endpoints := j.hosts[0].Name + "," + j.hosts[1].Name + "," + j.hosts[2].Name
	j.flags = []string{"--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=" + endpoints, "--rdzv-id=move"}
	sizes := func(want int) func() bool {
		return func() bool {
			text, _ := os.ReadFile(filepath.Join(j.dir, "round"))
			last := map[string]int{}
			for line := range strings.Lines(string(text)) {
				var round, rank, size int
				if _, err := fmt.Sscan(line, &round, &rank, &size); err == nil && size == want {
					last[fmt.Sprint(round)]++
				}
			}
			for _, n := range last {
				if n == want {
					return true
				}
			}
			return false
		}
	}
	for host := range 3 {
		j.start(host, "muster")
	}
	testutil.Eventually(t, 30*time.Second, "three nodes train", sizes(3))
	off := time.Now()
	j.hosts[0].PowerOff()
	testutil.Eventually(t, 30*time.Second, "two nodes train", sizes(2))
	t.Logf("new round %v after the host of the store was powered off", time.Since(off).Round(100*time.Millisecond))
	if err := os.Remove(filepath.Join(j.dir, "round")); err != nil {
		t.Fatal(err)
	}
	j.start(3, "muster")
	testutil.Eventually(t, 30*time.Second, "a newcomer finds them", sizes(3))
	j.hosts[0].Boot()
	j.start(0, "muster")
	testutil.Eventually(t, 30*time.Second, "the first node comes back", sizes(4))
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for host := range 4 {
		j.ends(j.agentOn(host), 30*time.Second, 0)
	}
}
