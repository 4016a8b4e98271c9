package hosts

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
	"muster/test/drive"
)

// inWorld counts the workers whose last world had this size.
func inWorld(sizes map[string]int, size int) (n int) {
	for _, s := range sizes {
		if s == size {
			n++
		}
	}
	return n
}

// The elastic job of operators: hosts that a script prints, from 2 to 3, one of which is replaced; workers that stay
// keep their processes. A launcher that an operator restarts finds no worker of the one before.
func TestHostsHorovodElastic(t *testing.T) {
	t.Parallel()
	python := filepath.Join(testutil.Peer(t, "horovod"), "python")
	j := drive.NewHostsJob(t, 4)
	j.Env = []string{"HOROVOD_CYCLE_TIME=20"} // else all ranks talk with each other each millisecond
	dir := t.TempDir()
	list := filepath.Join(dir, "list")
	say := func(hosts ...int) {
		t.Helper()
		var text strings.Builder
		for _, h := range hosts {
			fmt.Fprintf(&text, "%s\n", j.On[h].Name)
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
	worker := drive.HorovodWorker(t, "elastic_worker.py")
	launch := func(out string) *drive.HostsRun {
		return j.Start("horovodrun", "-np", "2", "--min-np=1", "--max-np=5", "--slots-per-host", "1", "--verbose", "--log-level=INFO",
			"--host-discovery-script", script, python, worker, out)
	}
	first := t.TempDir()
	say(0, 1)
	r := launch(first)
	grown := func(out string, size int) {
		t.Helper()
		testutil.Eventually(t, 2*time.Minute, fmt.Sprintf("%d workers are in a world of %d", size, size),
			func() bool { return inWorld(drive.HorovodWorlds(t, out), size) == size })
	}
	grown(first, 2)
	say(0, 1, 2)
	grown(first, 3)
	if n := len(drive.HorovodWorlds(t, first)); n != 3 {
		t.Errorf("%d workers have run, want 3: those that stay keep their processes", n)
	}
	// All workers can be entered and looked at from the launcher's machine, by the ranks of the world that runs now.
	for _, r := range drive.StatusOn(t, j.Launcher).Ranks {
		drive.RunOn(t, j.Launcher, "", "exec", "--rank", fmt.Sprint(r.Rank), "--", "sh", "-c", "echo at $HOROVOD_HOSTNAME").
			Expect(t, 0, "at "+r.Node)
		drive.RunOn(t, j.Launcher, "", "logs", "--rank", fmt.Sprint(r.Rank), "--tail", "1").Expect(t, 2, "keeps no log files")
	}
	drive.RunOn(t, j.Launcher, "", "stacks").Expect(t, 0, "process python")
	// node2 is replaced by node4: its pod is deleted by force.
	j.SSHD[1].Stop()
	j.On[1].Kill()
	say(0, 3, 2)
	testutil.Eventually(t, 2*time.Minute, "the replacement is in the world", func() bool {
		sizes := drive.HorovodWorlds(t, first)
		for name := range sizes {
			if strings.HasPrefix(name, "node4:") {
				return inWorld(sizes, 3) >= 3 && len(sizes) == 4 && sizes[name] == 3
			}
		}
		return false
	})
	// The launcher ends as an operator ends it, and is started again.
	if err := r.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	j.Ends(r, 143)
	j.Clean(30 * time.Second)
	second := t.TempDir()
	say(0, 2)
	r = launch(second)
	grown(second, 2)
	if err := os.WriteFile(filepath.Join(second, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.Ends(r, 0)
	j.Clean(30 * time.Second)
}

// A fixed world over hosts: the environment of its workers, and a reduction by the real Horovod.
func TestHostsHorovodFixed(t *testing.T) {
	t.Parallel()
	python := filepath.Join(testutil.Peer(t, "horovod"), "python")
	j := drive.NewHostsJob(t, 2)
	j.Env = append(j.Env, "HOROVOD_START_TIMEOUT=120") // on a busy machine 30 s are short for two hosts
	worker := drive.HorovodWorker(t, "static_worker.py")
	r := j.Start(append(drive.Warm("auto"), "horovodrun", "-np", "3", "-H", "node1:1,node2:2", "--output-filename",
		filepath.Join(j.Out, "logs"), python, worker, j.Out)...)
	j.Ends(r, 0)
	for rank := range 3 {
		if _, err := os.Stat(filepath.Join(j.Out, "logs", "rank."+strconv.Itoa(rank), "stdout")); err != nil {
			t.Error(err)
		}
	}
	j.Clean(30 * time.Second)
	r = j.Start("horovodrun", "-np", "3", "-H", "node1:1,node2:2", "sh", "-c",
		`echo "$HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE `+
			`$HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE $HOROVOD_HOSTNAME $HOROVOD_GLOO_IFACE"`)
	j.Ends(r, 0, "[0]<stdout>:0/3 0/1 0/2 node1 eth0", "[1]<stdout>:1/3 0/2 1/2 node2 eth0", "[2]<stdout>:2/3 1/2 0/1 node2 eth0")
}
