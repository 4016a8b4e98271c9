package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/test/drive"
)

// Ranks follow the switches where a file names them, whatever the order of the hosts, and also where their number is
// fixed.
func TestHostsTopology(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 3)
	var lines strings.Builder
	for i, asw := range []string{"a1", "a2", "a1"} {
		fmt.Fprintf(&lines, "%s p1 %s\n", asw, j.On[i].Addrs[0][0])
	}
	file := filepath.Join(t.TempDir(), "topology")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"run", "--hosts", j.Names(), "--topology-file", file, "--",
		"sh", "-c", drive.ShowRank + `echo "$(hostname) has rank $RANK"`,
	}
	j.Ends(j.Start(append([]string{"--dry-run"}, args...)...), 0, "ranks are decided when nodes meet")
	r := j.Start(args...)
	j.Ends(r, 0, "node2 has rank ")
	said := r.Out.String()
	if strings.Contains(said, "node2 has rank 1") {
		t.Errorf("node1 and node3 share a switch, and node2 is between them:\n%s", said)
	}
	wrong := j.Start("run", "--hosts", j.Names(), "--topology-file", file+"x", "--", "true")
	j.Ends(wrong, 2, "topologyx: no such file")
}

// The interface that was named is where nodes reach each other, on all hosts.
func TestHostsInterface(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	r := j.Start("run", "--hosts", j.Names(), "--iface", "lo9", "--", "true")
	j.Ends(r, 2, "lo9")
}
