package main

import (
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
)

// again forgets what workers have shown, and fails the test through t from now on.
func (j *hostsJob) again(t *testing.T) *hostsJob {
	t.Helper()
	next := *j
	next.t, next.out, next.runs = t, t.TempDir(), nil
	t.Cleanup(next.tell)
	return &next
}

// ranksOn fails the test unless the workers of a round were those, by rank, of the hosts of these names.
func (j *hostsJob) ranksOn(round int, names ...string) {
	j.t.Helper()
	all := j.workers()
	for rank, name := range names {
		worker := all[strconv.Itoa(rank)+"."+strconv.Itoa(round)]
		if worker["HOST"] != name || worker["WORLD_SIZE"] != strconv.Itoa(len(names)) {
			j.t.Errorf("rank %d of round %d was on %q in a world of %q, want %s and %d", rank, round, worker["HOST"], worker["WORLD_SIZE"],
				name, len(names))
		}
	}
}

// showHost is showRank with the host's name.
const showHost = `HOST=$(hostname); export HOST; ` + showRank

// metAll waits until all workers of the round have shown themselves.
const metAll = showHost + `until [ "$(ls "$OUT" | grep -c "^[0-9]*[.]$MUSTER_ROUND\$")" = "$WORLD_SIZE" ]; do sleep 0.02; done` + "\n"

// TestHostsWays reaches the same two hosts in the ways there are.
func TestHostsWays(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	v6 := j.on[0].Addrs[0][1].String()
	for _, c := range []struct {
		name   string
		args   []string
		master string
	}{
		{"user", []string{"--hosts", me.Username + "@node1,node2"}, j.on[0].Addrs[0][0].String()},
		{"addresses", []string{"--hosts", "[" + v6 + "],node2"}, v6},
		{"program", []string{"--hosts", "node1,node2", "--ssh-program", "ssh -F " + j.client.Config}, j.on[0].Addrs[0][0].String()},
		{"options", []string{
			"--hosts", "node1,node2", "--ssh-option", "ConnectTimeout=20", "--ssh-identity", j.client.Key,
			"--ssh-host-key-policy", "strict",
		}, j.on[0].Addrs[0][0].String()},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := j.again(t)
			r := j.start(append(append([]string{"run"}, c.args...), "--", "sh", "-c", metAll)...)
			j.ends(r, 0)
			j.ranksOn(0, "node1", "node2")
			if got := j.workers()["1.0"]["MASTER_ADDR"]; got != c.master {
				t.Errorf("MASTER_ADDR=%s, want %s", got, c.master)
			}
			j.clean(30 * time.Second)
		})
	}
}

// TestHostsJump starts a job on hosts of which the launcher sees but one, the way to the others.
func TestHostsJump(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 3)
	j.launcher.Cut(j.on[1], j.on[2])
	j.client.Append(j.client.Config, "Host node2 node3\n  ProxyJump node1\n")
	r := j.start("run", "--hosts", "node2,node3", "--", "sh", "-c", metAll+"echo here is $RANK; sleep 0.1")
	j.ends(r, 0, "here is 0", "here is 1")
	j.ranksOn(0, "node2", "node3")
	if n := strings.Count(j.sshd[0].Log(), "Accepted publickey"); n != 1 {
		t.Errorf("%d logins at the jump host", n)
	}
	r = j.start("run", "--hosts", "node2,node3", "--grace", "1s", "--", "sh", "-c",
		`trap "" TERM INT; echo ready; while :; do sleep 0.1; done`)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return strings.Count(r.out.String(), "ready") == 2 })
	if err := r.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.clean(30 * time.Second)
}

// TestHostsDropbear has a host whose server is dropbear: it takes no files, and no variables.
func TestHostsDropbear(t *testing.T) {
	program := "/usr/sbin/dropbear"
	if _, err := os.Stat(program); err != nil {
		testutil.Missing(t, "Debian's dropbear-bin")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Parallel()
	j := newHostsJob(t, 2)
	j.sshd[1].Stop()
	// It has no other HOME nor list of keys than the user's: this host gets a home of its own.
	dir := t.TempDir()
	cmd := j.on[1].Command("sh", "-c", `mount -t tmpfs -o mode=700 tmpfs "$1" && mkdir -m 700 "$1/.ssh" && cp "$2" "$1/.ssh/authorized_keys" &&
		dropbearkey -t ed25519 -f "$3/key" >/dev/null && exec "$4" -F -E -p 22 -r "$3/key" -P "$3/pid"`, "sh", me.HomeDir, j.client.Key+".pub", dir, program)
	cmd.Dir = "/"
	said := &testutil.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("dropbear says:\n%s", said)
		}
	})
	testutil.Eventually(t, 30*time.Second, "dropbear listens",
		func() bool { _, err := os.Stat(filepath.Join(dir, "pid")); return err == nil })
	if err := os.WriteFile(j.client.KnownHosts, nil, 0o600); err != nil { // that of OpenSSH's server would be another one
		t.Fatal(err)
	}
	r := j.start("run", "--hosts", "node1,node2", "--remote-dir", j.out, "--max-restarts", "1", "--", "sh", "-c",
		metAll+`[ $RANK$MUSTER_ROUND != 10 ] || exit 3; [ $MUSTER_ROUND = 1 ] || sleep 1000`)
	j.ends(r, 0, "restarting the workers")
	j.ranksOn(1, "node1", "node2")
	j.clean(30 * time.Second)
}

// TestHostsEnvironment lets through what the flags say.
func TestHostsEnvironment(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 1)
	j.env = []string{"KEEP_ME=kept", "DROP_ME=dropped", "SECRET_TOKEN=hush", "PYTHONPATH=/launcher's"}
	for _, c := range []struct {
		name       string
		args       []string
		has, lacks []string
	}{
		{"launcher", nil, []string{"KEEP_ME", "DROP_ME", "PYTHONPATH", "XDG_CACHE_HOME"}, nil},
		{"denied", []string{"--env-deny", "DROP_*,SECRET_*"}, []string{"KEEP_ME"}, []string{"DROP_ME", "SECRET_TOKEN"}},
		{
			"inherit",
			[]string{"--env-mode", "inherit", "--env-pass", "KEEP_*,OUT"},
			[]string{"KEEP_ME", "XDG_CACHE_HOME"},
			[]string{"DROP_ME", "SECRET_TOKEN", "PYTHONPATH"},
		},
		{
			"clean",
			[]string{"--env-mode", "clean", "--env-pass", "KEEP_*,OUT", "--env", "MORE=1"},
			[]string{"KEEP_ME", "MORE", "PATH", "HOME", "RANK"},
			[]string{"DROP_ME", "PYTHONPATH", "XDG_CACHE_HOME"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := j.again(t)
			r := j.start(append(append([]string{"run", "--hosts", "node1"}, c.args...), "--", "sh", "-c", showRank)...)
			j.ends(r, 0)
			vars := j.workers()["0.0"]
			for _, name := range c.has {
				if _, there := vars[name]; !there {
					t.Errorf("%s is missing", name)
				}
			}
			for _, name := range c.lacks {
				if value, there := vars[name]; there {
					t.Errorf("there is %s=%s", name, value)
				}
			}
			if got := vars["HOME"]; got != j.sshd[0].Home {
				t.Errorf("HOME=%s is not the host's own, %s", got, j.sshd[0].Home)
			}
		})
	}
	j.clean(30 * time.Second)
}

// TestHostsLate waits for a host whose server comes up later.
func TestHostsLate(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2)
	j.sshd[1].Stop()
	r := j.start("run", "--hosts", j.names(), "--start-timeout", "60", "--", "sh", "-c", metAll)
	time.Sleep(3 * time.Second) // an event of the test: the host boots
	j.sshd[1].Start()
	j.ends(r, 0)
	j.ranksOn(0, "node1", "node2")
	j.clean(30 * time.Second)
}

// TestHostsSpare replaces a host that is lost for good by one that was held ready.
func TestHostsSpare(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 3)
	r := j.start("run", "--hosts", j.names(), "--nnodes", "2", "--spares", "1", "--max-restarts", "2", "--grace", "2s", "--", "sh", "-c",
		metAll+`[ $MUSTER_ROUND != 0 ] || sleep 1000`)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.workers()) == 2 })
	lost := slices.IndexFunc(j.on, func(h *testutil.Host) bool { return h.Name == j.workers()["1.0"]["HOST"] })
	if lost < 0 {
		t.Fatalf("nobody has rank 1: %v", j.workers())
	}
	j.on[lost].PowerOff()
	j.ends(r, 0, "node lost")
	names := map[string]bool{j.workers()["0.1"]["HOST"]: true, j.workers()["1.1"]["HOST"]: true}
	if len(names) != 2 || names[""] || names[j.on[lost].Name] {
		t.Errorf("after %s was lost the workers were on %v", j.on[lost].Name, names)
	}
	j.on = slices.Delete(slices.Clone(j.on), lost, lost+1)
	j.clean(30 * time.Second)
}

// TestHostsElastic goes on with fewer hosts when one is lost, and with all when it is there again.
func TestHostsElastic(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 3)
	r := j.start("run", "--hosts", j.names(), "--nnodes", "2:3", "--last-call", "3s", "--max-restarts", "3", "--grace", "2s",
		"--", "sh", "-c",
		metAll+`until [ -e "$OUT/done" ]; do sleep 0.1; done`)
	world := func(size int) func() bool {
		return func() bool {
			newest, ranks := -1, map[string]bool{}
			for name, vars := range j.workers() {
				_, suffix, _ := strings.Cut(name, ".")
				if round, _ := strconv.Atoi(suffix); round > newest {
					newest, ranks = round, map[string]bool{}
				}
				if suffix == strconv.Itoa(newest) && vars["WORLD_SIZE"] == strconv.Itoa(size) {
					ranks[vars["RANK"]] = true
				}
			}
			return len(ranks) == size
		}
	}
	testutil.Eventually(t, time.Minute, "three workers run", world(3))
	j.sshd[2].Stop()
	testutil.Eventually(t, time.Minute, "two workers run", world(2))
	j.sshd[2].Start()
	testutil.Eventually(t, time.Minute, "three workers run again", world(3))
	if err := os.WriteFile(filepath.Join(j.out, "done"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.ends(r, 0, "node lost", "the node is there again")
	j.clean(30 * time.Second)
}

// TestHostsLostForGood takes a host away from a job that has no restart left: the job ends at once and names it, and
// nobody waits for a host to come back to no workers.
func TestHostsLostForGood(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		host int
		lose func(h *testutil.Host)
		used bool // there was a restart, and it was used
	}{
		"switched off":              {1, (*testutil.Host).PowerOff, false},
		"cut":                       {1, func(h *testutil.Host) { h.Cut() }, false},
		"the host of the store":     {0, (*testutil.Host).PowerOff, false},
		"cut, and the restart used": {1, func(h *testutil.Host) { h.Cut() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newHostsJob(t, 3)
			status := filepath.Join(t.TempDir(), "status.json")
			flags, script := []string{"--status-file", status, "run", "--hosts", j.names(), "--grace", "2s", "--start-timeout", "10m"},
				"exec sleep 1000"
			if c.used {
				flags, script = append(flags, "--max-restarts", "1"),
					`[ "$RANK$TORCHELASTIC_RESTART_COUNT" != 20 ] || exit 3; exec sleep 1000`
			}
			r := j.start(append(flags, "--", "sh", "-c", showRank+script)...)
			testutil.Eventually(t, time.Minute, "workers run",
				func() bool { return len(j.workers()) >= 3 }) // of two rounds, where one was restarted
			testutil.Eventually(t, time.Minute, "the status file has all of them", func() bool {
				if _, err := os.Stat(status); err != nil {
					return false
				}
				return readWorld(t, status).Counts["running"] == 3 &&
					(!c.used || strings.Contains(r.err.String(), "restarting the workers"))
			})
			c.lose(j.on[c.host])
			j.ends(r, 75, j.on[c.host].Name, "no restart is left for a lost node")
			w := readWorld(t, status)
			if w.Phase != "Failed" || *w.ExitStatus != 75 || len(w.Tasks) != 3 || w.Tasks[c.host].Phase != "Unknown" ||
				w.Tasks[2].Phase != "Stopped" || w.Counts["unknown"] != 1 {
				t.Errorf("%+v", w)
			}
			t.Logf("the launcher has ended %v after its start", time.Since(r.began).Round(time.Second))
			j.on[c.host].Heal()
			j.on = slices.Delete(slices.Clone(j.on), c.host, c.host+1)
			j.clean(30 * time.Second)
		})
	}
}
