package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// worlds reads what the elastic workers of a test have written: for each worker, "host:local.pid", the size of its
// world in its last line.
func worlds(t *testing.T, dir string) map[string]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*:*.*"))
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		if words := strings.Fields(lines[len(lines)-1]); len(words) == 4 {
			sizes[filepath.Base(file)], _ = strconv.Atoi(words[1])
		}
	}
	return sizes
}

// inWorld counts the workers whose last world had this size.
func inWorld(sizes map[string]int, size int) (n int) {
	for _, s := range sizes {
		if s == size {
			n++
		}
	}
	return n
}

// The elastic job of operators: hosts that a script prints, from 3 to 4, one of which is replaced; workers that stay
// keep their processes. A launcher that an operator restarts finds no worker of the one before.
func TestHostsHorovodElastic(t *testing.T) {
	t.Parallel()
	python := filepath.Join(testutil.Peer(t, "horovod"), "python")
	j := newHostsJob(t, 5)
	dir := t.TempDir()
	list := filepath.Join(dir, "list")
	say := func(hosts ...int) {
		t.Helper()
		var text strings.Builder
		for _, h := range hosts {
			fmt.Fprintf(&text, "%s\n", j.on[h].Name)
		}
		if err := os.WriteFile(list+"~", []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(list+"~", list); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(dir, "discover_hosts.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\ncat "+list+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	worker, err := filepath.Abs("../../horovod/elastic/testdata/elastic_worker.py")
	if err != nil {
		t.Fatal(err)
	}
	launch := func(out string) *hostsRun {
		return j.start("horovodrun", "-np", "3", "--min-np=1", "--max-np=5", "--slots-per-host", "1", "--verbose", "--log-level=INFO",
			"--host-discovery-script", script, python, worker, out)
	}
	first := t.TempDir()
	say(0, 1, 2)
	r := launch(first)
	grown := func(out string, size int) {
		t.Helper()
		testutil.Eventually(t, 2*time.Minute, fmt.Sprintf("%d workers are in a world of %d", size, size),
			func() bool { return inWorld(worlds(t, out), size) == size })
	}
	grown(first, 3)
	say(0, 1, 2, 3)
	grown(first, 4)
	if n := len(worlds(t, first)); n != 4 {
		t.Errorf("%d workers have run, want 4: those that stay keep their processes", n)
	}
	// All workers can be entered and looked at from the launcher's machine, by the ranks of the world that runs now.
	for _, r := range worldOn(t, j.launcher).Ranks {
		musterOn(t, j.launcher, "", "exec", "--rank", fmt.Sprint(r.Rank), "--", "sh", "-c", "echo at $HOROVOD_HOSTNAME").
			expect(t, 0, "at "+r.Node)
		musterOn(t, j.launcher, "", "logs", "--rank", fmt.Sprint(r.Rank), "--tail", "1").expect(t, 2, "keeps no log files")
	}
	musterOn(t, j.launcher, "", "stacks").expect(t, 0, "process python")
	// node2 is replaced by node5: its pod is deleted by force.
	j.sshd[1].Stop()
	j.on[1].Kill()
	say(0, 4, 2, 3)
	testutil.Eventually(t, 2*time.Minute, "the replacement is in the world", func() bool {
		sizes := worlds(t, first)
		for name := range sizes {
			if strings.HasPrefix(name, "node5:") {
				return inWorld(sizes, 4) >= 4 && len(sizes) == 5 && sizes[name] == 4
			}
		}
		return false
	})
	// The launcher ends as an operator ends it, and is started again.
	if err := r.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	j.ends(r, 143)
	j.clean(30 * time.Second)
	second := t.TempDir()
	say(0, 2, 3)
	r = launch(second)
	grown(second, 3)
	if err := os.WriteFile(filepath.Join(second, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.ends(r, 0)
	j.clean(30 * time.Second)
}

// A fixed world over hosts: the environment of its workers, and a reduction by the real Horovod.
func TestHostsHorovodFixed(t *testing.T) {
	t.Parallel()
	python := filepath.Join(testutil.Peer(t, "horovod"), "python")
	j := newHostsJob(t, 2)
	worker, err := filepath.Abs("../../horovod/elastic/testdata/static_worker.py")
	if err != nil {
		t.Fatal(err)
	}
	r := j.start("horovodrun", "-np", "3", "-H", "node1:1,node2:2", "--output-filename", filepath.Join(j.out, "logs"), python,
		worker, j.out)
	j.ends(r, 0)
	for rank := range 3 {
		if _, err := os.Stat(filepath.Join(j.out, "logs", "rank."+strconv.Itoa(rank), "stdout")); err != nil {
			t.Error(err)
		}
	}
	j.clean(30 * time.Second)
	r = j.start("horovodrun", "-np", "3", "-H", "node1:1,node2:2", "sh", "-c",
		`echo "$HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE $HOROVOD_HOSTNAME $HOROVOD_GLOO_IFACE"`)
	j.ends(r, 0, "[0]<stdout>:0/3 0/1 0/2 node1 eth0", "[1]<stdout>:1/3 0/2 1/2 node2 eth0", "[2]<stdout>:2/3 1/2 0/1 node2 eth0")
}
