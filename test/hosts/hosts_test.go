package hosts

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// One command starts the job on all hosts: by their order they have ranks, by their slots workers, and what they print
// comes home.
func TestHostsRun(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 3)
	value := "a \"b\" 'c' $HOME `x`\n\\ é\xff"
	j.Env = []string{"ODD=" + value, "CUDA_VISIBLE_DEVICES=5", "SECRET_TOKEN=hush"}
	r := j.Start("run", "--hosts", "node3:1,node1:2,node2:1", "--", "sh", "-c",
		drive.ShowRank+`echo "worker $RANK of $WORLD_SIZE on $(hostname)"; echo "to stderr" >&2`)
	j.Ends(r, 0, "worker 0 of 4 on node3", "worker 1 of 4 on node1", "worker 2 of 4 on node1", "worker 3 of 4 on node2",
		"[node1 2] worker 2")
	workers := j.Workers()
	if got := slices.Sorted(maps.Keys(workers)); !slices.Equal(got, []string{"0.0", "1.0", "2.0", "3.0"}) {
		t.Fatalf("workers %v", got)
	}
	for name, want := range map[string][]string{
		"0.0": {"LOCAL_RANK=0", "GROUP_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=" + j.On[2].Addrs[0][0].String()},
		"2.0": {"LOCAL_RANK=1", "GROUP_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=" + j.On[2].Addrs[0][0].String()},
	} {
		for _, kv := range want {
			if name2, value, _ := strings.Cut(kv, "="); workers[name][name2] != value {
				t.Errorf("worker %s has %s=%s, want %s", name, name2, workers[name][name2], value)
			}
		}
	}
	if _, there := workers["0.0"]["CUDA_VISIBLE_DEVICES"]; there {
		t.Error("the launcher's choice of devices has reached another host")
	}
	raw, err := os.ReadFile(filepath.Join(j.Out, "3.0"))
	if err != nil || !strings.Contains(string(raw), "ODD="+value+"\n") {
		t.Errorf("a value was changed on its way: %v", err)
	}
	j.Clean(30 * time.Second)
}

// A worker's failure ends the job on all hosts at once, with its status, and is told once.
func TestHostsFailure(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	r := j.Start("run", "--hosts", j.Names(), "-n", "2", "--grace", "2s", "--", "sh", "-c", drive.ShowRank+`
		until [ "$(ls "$OUT" | grep -c '^[0-9]*[.]0$')" = "$WORLD_SIZE" ]; do sleep 0.02; done
		[ $RANK != 3 ] || { echo "bad luck" >&2; exit 7; }; sleep 1000`)
	j.Ends(r, 7, "bad luck", "host      : node2", "rank      : 3")
	if n := strings.Count(drive.ForPeople(r.Err.String()), "Root Cause"); n != 1 {
		t.Errorf("the root cause is told %d times", n)
	}
	j.Clean(30 * time.Second)
}

// Restarts, and a command that differs by what was asked.
func TestHostsRestart(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	r := j.Start("run", "--hosts", j.Names(), "--max-restarts", "1", "--grace", "2s", "--", "sh", "-c", drive.ShowRank+`
		until [ "$(ls "$OUT" | grep -c "^[0-9]*[.]$MUSTER_ROUND\$")" = "$WORLD_SIZE" ]; do sleep 0.02; done
		[ "$RANK$MUSTER_ROUND" != 10 ] || exit 3; [ $MUSTER_ROUND = 1 ] || sleep 1000`)
	j.Ends(r, 0, "restarting the workers")
	if got := slices.Sorted(maps.Keys(j.Workers())); !slices.Equal(got, []string{"0.0", "0.1", "1.0", "1.1"}) {
		t.Errorf("workers %v", got)
	}
	j.Clean(30 * time.Second)
}

// The first Ctrl-C stops the workers and is told, the second kills them.
func TestHostsInterrupt(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	r := j.Start("run", "--hosts", j.Names(), "--grace", "60s", "--", "sh", "-c",
		`trap 'echo stubborn' INT TERM; `+drive.ShowRank+`while :; do sleep 0.1; done`)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.Workers()) == 2 })
	if err := r.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	j.Says(r, "stopping the workers of 2 nodes with SIGINT")
	j.Says(r, "stubborn")
	if err := r.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	j.Ends(r, 130)
	j.Clean(30 * time.Second)
}

// The launcher is killed, or its host cut off: nothing is left on the others.
func TestHostsLauncherGone(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	script := `trap '' TERM INT HUP; setsid sleep 1000 & ` + drive.ShowRank + `while :; do sleep 0.1; done`
	r := j.Start("run", "--hosts", j.Names(), "-n", "2", "--", "sh", "-c", script)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.Workers()) == 4 })
	killed := time.Now()
	if err := r.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.Clean(time.Minute)
	t.Logf("nothing is left %v after SIGKILL of the launcher", time.Since(killed).Round(10*time.Millisecond))

	for name := range j.Workers() {
		_ = os.Remove(filepath.Join(j.Out, name))
	}
	j.Start("run", "--hosts", j.Names(), "-n", "2", "--", "sh", "-c", script)
	testutil.Eventually(t, time.Minute, "workers run again", func() bool { return len(j.Workers()) == 4 })
	cut := time.Now()
	j.Launcher.Cut()
	j.Clean(time.Minute)
	t.Logf("nothing is left %v after the launcher was cut off", time.Since(cut).Round(10*time.Millisecond))
}

// Every host that cannot be reached is named, and nothing is left on the others.
func TestHostsUnreachable(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 3)
	j.SSHD[0].Stop()
	j.Client.Append(j.Client.KnownHosts, "")
	text, err := os.ReadFile(j.Client.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "node2,") { // node2 has another key than it had
			_, key, _ := strings.Cut(lines[(i+1)%3], " ")
			lines[i] = strings.Fields(line)[0] + " " + key
		}
	}
	if err := os.WriteFile(j.Client.KnownHosts, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := j.Start("run", "--hosts", j.Names()+",nowhere", "--start-timeout", "8", "--", "true")
	j.Ends(r, 75, "on node1:", "on node2:", "on nowhere:", "waiting for nodes of the job")
	if strings.Contains(r.Err.String(), "on node3:") {
		t.Error("a host is blamed that was there")
	}
	j.Clean(30 * time.Second)
}

// A host that is lost while the job runs is reached again, and the job goes on with it.
func TestHostsLost(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 3)
	r := j.Start("run", "--hosts", j.Names(), "--max-restarts", "2", "--grace", "2s", "--", "sh", "-c", drive.ShowRank+`
		until [ "$(ls "$OUT" | grep -c "^[0-9]*[.]$MUSTER_ROUND\$")" = "$WORLD_SIZE" ]; do sleep 0.02; done
		[ $MUSTER_ROUND != 0 ] || sleep 1000`)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.Workers()) == 3 })
	j.SSHD[1].Cut()
	j.Ends(r, 0, "node lost", "the node is there again")
	if got := len(j.Workers()); got != 6 {
		t.Errorf("%d workers have shown themselves in two rounds", got)
	}
	j.Clean(30 * time.Second)
}

// Log files come home, and the status file is the launcher's.
func TestHostsCollect(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	home, status := t.TempDir(), filepath.Join(t.TempDir(), "status.json")
	r := j.Start("--status-file", status, "run", "--hosts", j.Names(), "-n", "2", "--collect-logs", home, "--", "sh", "-c",
		`echo "words of $RANK"`)
	j.Ends(r, 0, "words of 3")
	for rank, path := range []string{"node1/*/0/stdout.log", "node1/*/1/stdout.log", "node2/*/0/stdout.log", "node2/*/1/stdout.log"} {
		found, _ := filepath.Glob(filepath.Join(home, path))
		if len(found) != 1 {
			t.Errorf("%s: %v", path, found)
			continue
		}
		if text, _ := os.ReadFile(found[0]); string(text) != fmt.Sprintf("words of %d\n", rank) {
			t.Errorf("%s holds %q", found[0], text)
		}
	}
	if text, err := os.ReadFile(status); err != nil || !strings.Contains(string(text), `"Succeeded"`) {
		t.Errorf("the status file: %v\n%s", err, text)
	}
}

// What is wrong with a host is told before any worker starts.
func TestHostsPreflight(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	dir := t.TempDir()
	for name, c := range map[string]struct {
		args  []string
		want  int
		words []string
	}{
		"no such program":   {[]string{"--", "no-such-program"}, 127, []string{"node1", "node2", "no-such-program"}},
		"no such directory": {[]string{"--remote-dir", dir + "/gone", "--", "true"}, 2, []string{"node1", dir + "/gone", "--remote-dir"}},
		"no such script":    {[]string{"--", dir + "/train.py"}, 127, []string{"node2", "train.py"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := *j
			j.T = t
			r := j.Start(append([]string{"run", "--hosts", j.Names()}, c.args...)...)
			j.Ends(r, c.want, c.words...)
			if t.Failed() {
				t.Logf("%s%s", r.Out.String(), r.Err.String())
			}
		})
	}
	j.Clean(30 * time.Second)
}
