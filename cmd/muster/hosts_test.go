package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// hostsJob is a job that is started from one host on others, by ssh.
type hostsJob struct {
	t *testing.T
	// launcher is where muster is started; on are the other hosts, node1 and so on, with an sshd each.
	launcher *testutil.Host
	on       []*testutil.Host
	sshd     []*testutil.SSHServer
	client   *testutil.SSHClient
	out      string // a file per worker, with its environment
	env      []string
	runs     []*hostsRun
}

// hostsRun is one launcher.
type hostsRun struct {
	*testutil.HostCommand
	out, err testutil.Buffer
	began    time.Time
}

// newHostsJob makes a launcher's host and n others, whose servers may be changed.
func newHostsJob(t *testing.T, n int, change ...func(name string, cfg *testutil.SSHDConfig)) *hostsJob {
	t.Helper()
	testutil.Long(t)
	all := testutil.Hosts(t, n+1)
	j := &hostsJob{t: t, launcher: all[0], on: all[1:], client: testutil.NewSSHClient(t), out: t.TempDir()}
	cache := t.TempDir() // one file system: our binary is brought once
	for _, h := range j.on {
		cfg := testutil.SSHDConfig{Client: j.client, Host: h, Env: []string{"XDG_CACHE_HOME=" + cache, endAtOnce}}
		for _, f := range change {
			f(h.Name, &cfg)
		}
		j.sshd = append(j.sshd, testutil.SSHD(t, cfg))
	}
	t.Cleanup(j.tell)
	return j
}

// tell shows what the launchers have said, where the test has failed.
func (j *hostsJob) tell() {
	if !j.t.Failed() {
		return
	}
	for _, r := range j.runs {
		line := strings.Join(r.Args, " ")
		j.t.Logf("%s:\n%s%s", line[:min(len(line), 2000)], r.out.String(), r.err.String())
	}
}

// names are those of the hosts with an sshd.
func (j *hostsJob) names() string {
	var names []string
	for _, h := range j.on {
		names = append(names, h.Name)
	}
	return strings.Join(names, ",")
}

// start starts muster with args on the launcher's host.
func (j *hostsJob) start(args ...string) *hostsRun {
	j.t.Helper()
	r := &hostsRun{HostCommand: j.launcher.Command("muster", args...), began: time.Now()}
	r.Env = append(append(cleanEnviron(), j.launcher.Environ()...), "HOME="+j.client.Home, "OUT="+j.out, endAtOnce)
	r.Env = append(r.Env, j.env...)
	r.Stdout, r.Stderr = &r.out, &r.err
	if err := r.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.runs = append(j.runs, r)
	return r
}

// ends fails the test unless the launcher ends with the status, and has said the words.
func (j *hostsJob) ends(r *hostsRun, want int, words ...string) {
	j.t.Helper()
	select {
	case <-r.Ended():
	case <-time.After(2 * time.Minute):
		j.t.Fatalf("the launcher has not ended after 2 minutes")
	}
	if r.Status() != want {
		j.t.Errorf("status %d, want %d", r.Status(), want)
	}
	for _, w := range words {
		if !strings.Contains(r.out.String()+forPeople(r.err.String()), w) {
			j.t.Errorf("nobody has said %q", w)
		}
	}
	for line := range strings.Lines(r.err.String()) {
		if key := twiceIn(line); key != "" {
			j.t.Errorf("a line of the log has %q twice: %s", key, line)
		}
	}
}

// twiceIn returns a key that an object of JSON has twice, empty where there is none, or no object: who reads it would
// take the last one.
func twiceIn(object string) string {
	d := json.NewDecoder(strings.NewReader(object))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return ""
	}
	seen := map[any]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return ""
		}
		if seen[key] {
			return fmt.Sprint(key)
		}
		seen[key] = true
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return ""
		}
	}
	return ""
}

// says waits until the launcher has said something.
func (j *hostsJob) says(r *hostsRun, words string) {
	j.t.Helper()
	testutil.Eventually(j.t, time.Minute, "the launcher says "+strconv.Quote(words), func() bool {
		return strings.Contains(r.out.String()+forPeople(r.err.String()), words)
	})
}

// workers returns the environments of the workers that have shown themselves, by file name.
func (j *hostsJob) workers() map[string]map[string]string {
	j.t.Helper()
	files, err := filepath.Glob(filepath.Join(j.out, "[0-9]*"))
	if err != nil {
		j.t.Fatal(err)
	}
	all := map[string]map[string]string{}
	for _, file := range files {
		if !strings.HasSuffix(file, "~") {
			all[filepath.Base(file)] = readEnvironment(j.t, file)
		}
	}
	return all
}

// clean waits until nothing of a job runs on any host: muster, or a worker.
func (j *hostsJob) clean(within time.Duration) {
	j.t.Helper()
	left := func() []string {
		var all []string
		for _, h := range append([]*testutil.Host{j.launcher}, j.on...) {
			for _, p := range h.Processes() {
				if cmd := strings.Join(p.Args, " "); strings.Contains(cmd, "muster") || strings.Contains(cmd, "sleep") {
					all = append(all, h.Name+": "+cmd)
				}
			}
		}
		return all
	}
	testutil.Eventually(j.t, within, "nothing of the job is left", func() bool { return len(left()) == 0 })
}

// One command starts the job on all hosts: by their order they have ranks, by their slots workers, and what they print
// comes home.
func TestHostsRun(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 3)
	value := "a \"b\" 'c' $HOME `x`\n\\ é\xff"
	j.env = []string{"ODD=" + value, "CUDA_VISIBLE_DEVICES=5", "SECRET_TOKEN=hush"}
	r := j.start("run", "--hosts", "node3:1,node1:2,node2:1", "--", "sh", "-c",
		showRank+`echo "worker $RANK of $WORLD_SIZE on $(hostname)"; echo "to stderr" >&2`)
	j.ends(r, 0, "worker 0 of 4 on node3", "worker 1 of 4 on node1", "worker 2 of 4 on node1", "worker 3 of 4 on node2",
		"[node1 2] worker 2")
	workers := j.workers()
	if got := slices.Sorted(maps.Keys(workers)); !slices.Equal(got, []string{"0.0", "1.0", "2.0", "3.0"}) {
		t.Fatalf("workers %v", got)
	}
	for name, want := range map[string][]string{
		"0.0": {"LOCAL_RANK=0", "GROUP_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=" + j.on[2].Addrs[0][0].String()},
		"2.0": {"LOCAL_RANK=1", "GROUP_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=" + j.on[2].Addrs[0][0].String()},
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
	raw, err := os.ReadFile(filepath.Join(j.out, "3.0"))
	if err != nil || !strings.Contains(string(raw), "ODD="+value+"\n") {
		t.Errorf("a value was changed on its way: %v", err)
	}
	j.clean(30 * time.Second)
}

// A worker's failure ends the job on all hosts at once, with its status, and is told once.
func TestHostsFailure(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2)
	r := j.start("run", "--hosts", j.names(), "-n", "2", "--grace", "2s", "--", "sh", "-c", showRank+`
		until [ "$(ls "$OUT" | grep -c '^[0-9]*[.]0$')" = "$WORLD_SIZE" ]; do sleep 0.02; done
		[ $RANK != 3 ] || { echo "bad luck" >&2; exit 7; }; sleep 1000`)
	j.ends(r, 7, "bad luck", "host      : node2", "rank      : 3")
	if n := strings.Count(forPeople(r.err.String()), "Root Cause"); n != 1 {
		t.Errorf("the root cause is told %d times", n)
	}
	j.clean(30 * time.Second)
}

// Restarts, and a command that differs by what was asked.
func TestHostsRestart(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2)
	r := j.start("run", "--hosts", j.names(), "--max-restarts", "1", "--grace", "2s", "--", "sh", "-c", showRank+`
		until [ "$(ls "$OUT" | grep -c "^[0-9]*[.]$MUSTER_ROUND\$")" = "$WORLD_SIZE" ]; do sleep 0.02; done
		[ "$RANK$MUSTER_ROUND" != 10 ] || exit 3; [ $MUSTER_ROUND = 1 ] || sleep 1000`)
	j.ends(r, 0, "restarting the workers")
	if got := slices.Sorted(maps.Keys(j.workers())); !slices.Equal(got, []string{"0.0", "0.1", "1.0", "1.1"}) {
		t.Errorf("workers %v", got)
	}
	j.clean(30 * time.Second)
}

// The first Ctrl-C stops the workers and is told, the second kills them.
func TestHostsInterrupt(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2)
	r := j.start("run", "--hosts", j.names(), "--grace", "60s", "--", "sh", "-c",
		`trap 'echo stubborn' INT TERM; `+showRank+`while :; do sleep 0.1; done`)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.workers()) == 2 })
	if err := r.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	j.says(r, "stopping the workers of 2 nodes with SIGINT")
	j.says(r, "stubborn")
	if err := r.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	j.ends(r, 130)
	j.clean(30 * time.Second)
}

// The launcher is killed, or its host cut off: nothing is left on the others.
func TestHostsLauncherGone(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2)
	script := `trap '' TERM INT HUP; setsid sleep 1000 & ` + showRank + `while :; do sleep 0.1; done`
	r := j.start("run", "--hosts", j.names(), "-n", "2", "--", "sh", "-c", script)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.workers()) == 4 })
	killed := time.Now()
	if err := r.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.clean(time.Minute)
	t.Logf("nothing is left %v after SIGKILL of the launcher", time.Since(killed).Round(10*time.Millisecond))

	for name := range j.workers() {
		_ = os.Remove(filepath.Join(j.out, name))
	}
	j.start("run", "--hosts", j.names(), "-n", "2", "--", "sh", "-c", script)
	testutil.Eventually(t, time.Minute, "workers run again", func() bool { return len(j.workers()) == 4 })
	cut := time.Now()
	j.launcher.Cut()
	j.clean(time.Minute)
	t.Logf("nothing is left %v after the launcher was cut off", time.Since(cut).Round(10*time.Millisecond))
}

// Every host that cannot be reached is named, and nothing is left on the others.
func TestHostsUnreachable(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 3)
	j.sshd[0].Stop()
	j.client.Append(j.client.KnownHosts, "")
	text, err := os.ReadFile(j.client.KnownHosts)
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
	if err := os.WriteFile(j.client.KnownHosts, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := j.start("run", "--hosts", j.names()+",nowhere", "--start-timeout", "8", "--", "true")
	j.ends(r, 75, "on node1:", "on node2:", "on nowhere:", "waiting for nodes of the job")
	if strings.Contains(r.err.String(), "on node3:") {
		t.Error("a host is blamed that was there")
	}
	j.clean(30 * time.Second)
}

// A host that is lost while the job runs is reached again, and the job goes on with it.
func TestHostsLost(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 3)
	r := j.start("run", "--hosts", j.names(), "--max-restarts", "2", "--grace", "2s", "--", "sh", "-c", showRank+`
		until [ "$(ls "$OUT" | grep -c "^[0-9]*[.]$MUSTER_ROUND\$")" = "$WORLD_SIZE" ]; do sleep 0.02; done
		[ $MUSTER_ROUND != 0 ] || sleep 1000`)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.workers()) == 3 })
	j.sshd[1].Cut()
	j.ends(r, 0, "node lost", "the node is there again")
	if got := len(j.workers()); got != 6 {
		t.Errorf("%d workers have shown themselves in two rounds", got)
	}
	j.clean(30 * time.Second)
}

// Log files come home, and the status file is the launcher's.
func TestHostsCollect(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2)
	home, status := t.TempDir(), filepath.Join(t.TempDir(), "status.json")
	r := j.start("--status-file", status, "run", "--hosts", j.names(), "-n", "2", "--collect-logs", home, "--", "sh", "-c",
		`echo "words of $RANK"`)
	j.ends(r, 0, "words of 3")
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
	j := newHostsJob(t, 2)
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
			j.t = t
			r := j.start(append([]string{"run", "--hosts", j.names()}, c.args...)...)
			j.ends(r, c.want, c.words...)
			if t.Failed() {
				t.Logf("%s%s", r.out.String(), r.err.String())
			}
		})
	}
	j.clean(30 * time.Second)
}
