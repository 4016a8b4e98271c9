package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ranks follow the switches where a file names them, whatever the order of the hosts, and also where their number is
// fixed.
func TestHostsTopology(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 3)
	var lines strings.Builder
	for i, asw := range []string{"a1", "a2", "a1"} {
		fmt.Fprintf(&lines, "%s p1 %s\n", asw, j.on[i].Addrs[0][0])
	}
	file := filepath.Join(t.TempDir(), "topology")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "--hosts", j.names(), "--topology-file", file, "--", "sh", "-c", showRank + `echo "$(hostname) has rank $RANK"`}
	j.ends(j.start(append([]string{"--dry-run"}, args...)...), 0, "ranks are decided when nodes meet")
	r := j.start(args...)
	j.ends(r, 0, "node2 has rank ")
	said := r.out.String()
	if strings.Contains(said, "node2 has rank 1") {
		t.Errorf("node1 and node3 share a switch, and node2 is between them:\n%s", said)
	}
	wrong := j.start("run", "--hosts", j.names(), "--topology-file", file+"x", "--", "true")
	j.ends(wrong, 2, "topologyx: no such file")
}

// The interface that was named is where nodes reach each other, on all hosts.
func TestHostsInterface(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2)
	r := j.start("run", "--hosts", j.names(), "--iface", "lo9", "--", "true")
	j.ends(r, 2, "lo9")
}
