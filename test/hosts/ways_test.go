package hosts

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
	"muster/test/drive"
)

// showHost is showRank with the host's name.
const showHost = `HOST=$(hostname); export HOST; ` + drive.ShowRank

// metAll waits until all workers of the round have shown themselves.
const metAll = showHost + `until [ "$(ls "$OUT" | grep -c "^[0-9]*[.]$MUSTER_ROUND\$")" = "$WORLD_SIZE" ]; do sleep 0.02; done` + "\n"

// TestHostsWays reaches the same two hosts in the ways there are.
func TestHostsWays(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	v6 := j.On[0].Addrs[0][1].String()
	for _, c := range []struct {
		name   string
		args   []string
		master string
	}{
		{"user", []string{"--hosts", me.Username + "@node1,node2"}, j.On[0].Addrs[0][0].String()},
		{"addresses", []string{"--hosts", "[" + v6 + "],node2"}, v6},
		{"program", []string{"--hosts", "node1,node2", "--ssh-program", "ssh -F " + j.Client.Config}, j.On[0].Addrs[0][0].String()},
		{"options", []string{
			"--hosts", "node1,node2", "--ssh-option", "ConnectTimeout=20", "--ssh-identity", j.Client.Key,
			"--ssh-host-key-policy", "strict",
		}, j.On[0].Addrs[0][0].String()},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := j.Again(t)
			r := j.Start(append(append([]string{"run"}, c.args...), "--", "sh", "-c", metAll)...)
			j.Ends(r, 0)
			j.RanksOn(0, "node1", "node2")
			if got := j.Workers()["1.0"]["MASTER_ADDR"]; got != c.master {
				t.Errorf("MASTER_ADDR=%s, want %s", got, c.master)
			}
			j.Clean(30 * time.Second)
		})
	}
}

// TestHostsJump starts a job on hosts of which the launcher sees but one, the way to the others.
func TestHostsJump(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 3)
	j.Launcher.Cut(j.On[1], j.On[2])
	j.Client.Append(j.Client.Config, "Host node2 node3\n  ProxyJump node1\n")
	r := j.Start("run", "--hosts", "node2,node3", "--", "sh", "-c", metAll+"echo here is $RANK; sleep 0.1")
	j.Ends(r, 0, "here is 0", "here is 1")
	j.RanksOn(0, "node2", "node3")
	if n := strings.Count(j.SSHD[0].Log(), "Accepted publickey"); n != 1 {
		t.Errorf("%d logins at the jump host", n)
	}
	r = j.Start("run", "--hosts", "node2,node3", "--grace", "1s", "--", "sh", "-c",
		`trap "" TERM INT; echo ready; while :; do sleep 0.1; done`)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return strings.Count(r.Out.String(), "ready") == 2 })
	if err := r.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.Clean(30 * time.Second)
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
	j := drive.NewHostsJob(t, 2)
	j.SSHD[1].Stop()
	// It has no other HOME nor list of keys than the user's: this host gets a home of its own.
	dir := t.TempDir()
	cmd := j.On[1].Command("sh", "-c", `mount -t tmpfs -o mode=700 tmpfs "$1" &&
		mkdir -m 700 "$1/.ssh" && cp "$2" "$1/.ssh/authorized_keys" &&
		dropbearkey -t ed25519 -f "$3/key" >/dev/null && exec "$4" -F -E -p 22 -r "$3/key" -P "$3/pid"`,
		"sh", me.HomeDir, j.Client.Key+".pub", dir, program)
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
	if err := os.WriteFile(j.Client.KnownHosts, nil, 0o600); err != nil { // that of OpenSSH's server would be another one
		t.Fatal(err)
	}
	r := j.Start("run", "--hosts", "node1,node2", "--remote-dir", j.Out, "--max-restarts", "1", "--", "sh", "-c",
		metAll+`[ $RANK$MUSTER_ROUND != 10 ] || exit 3; [ $MUSTER_ROUND = 1 ] || sleep 1000`)
	j.Ends(r, 0, "restarting the workers")
	j.RanksOn(1, "node1", "node2")
	j.Clean(30 * time.Second)
}

// TestHostsEnvironment lets through what the flags say.
func TestHostsEnvironment(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 1)
	j.Env = []string{"KEEP_ME=kept", "DROP_ME=dropped", "SECRET_TOKEN=hush", "PYTHONPATH=/launcher's"}
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
			j := j.Again(t)
			r := j.Start(append(append([]string{"run", "--hosts", "node1"}, c.args...), "--", "sh", "-c", drive.ShowRank)...)
			j.Ends(r, 0)
			vars := j.Workers()["0.0"]
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
			if got := vars["HOME"]; got != j.SSHD[0].Home {
				t.Errorf("HOME=%s is not the host's own, %s", got, j.SSHD[0].Home)
			}
		})
	}
	j.Clean(30 * time.Second)
}

// TestHostsLate waits for a host whose server comes up later.
func TestHostsLate(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	j.SSHD[1].Stop()
	r := j.Start("run", "--hosts", j.Names(), "--start-timeout", "60", "--", "sh", "-c", metAll)
	time.Sleep(3 * time.Second) // an event of the test: the host boots
	j.SSHD[1].Start()
	j.Ends(r, 0)
	j.RanksOn(0, "node1", "node2")
	j.Clean(30 * time.Second)
}

// TestHostsSpare replaces a host that is lost for good by one that was held ready.
func TestHostsSpare(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 3)
	r := j.Start("run", "--hosts", j.Names(), "--nnodes", "2", "--spares", "1", "--max-restarts", "2", "--grace", "2s", "--", "sh", "-c",
		metAll+`[ $MUSTER_ROUND != 0 ] || sleep 1000`)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.Workers()) == 2 })
	lost := slices.IndexFunc(j.On, func(h *testutil.Host) bool { return h.Name == j.Workers()["1.0"]["HOST"] })
	if lost < 0 {
		t.Fatalf("nobody has rank 1: %v", j.Workers())
	}
	j.On[lost].PowerOff()
	j.Ends(r, 0, "node lost")
	names := map[string]bool{j.Workers()["0.1"]["HOST"]: true, j.Workers()["1.1"]["HOST"]: true}
	if len(names) != 2 || names[""] || names[j.On[lost].Name] {
		t.Errorf("after %s was lost the workers were on %v", j.On[lost].Name, names)
	}
	j.On = slices.Delete(slices.Clone(j.On), lost, lost+1)
	j.Clean(30 * time.Second)
}

// TestHostsElastic goes on with fewer hosts when one is lost, and with all when it is there again.
func TestHostsElastic(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 3)
	r := j.Start("run", "--hosts", j.Names(), "--nnodes", "2:3", "--last-call", "3s", "--max-restarts", "3", "--grace", "2s",
		"--", "sh", "-c",
		metAll+`until [ -e "$OUT/done" ]; do sleep 0.1; done`)
	world := func(size int) func() bool {
		return func() bool {
			newest, ranks := -1, map[string]bool{}
			for name, vars := range j.Workers() {
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
	j.SSHD[2].Stop()
	testutil.Eventually(t, time.Minute, "two workers run", world(2))
	j.SSHD[2].Start()
	testutil.Eventually(t, time.Minute, "three workers run again", world(3))
	if err := os.WriteFile(filepath.Join(j.Out, "done"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.Ends(r, 0, "node lost", "the node is there again")
	j.Clean(30 * time.Second)
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
			j := drive.NewHostsJob(t, 3)
			status := filepath.Join(t.TempDir(), "status.json")
			flags, script := []string{"--status-file", status, "run", "--hosts", j.Names(), "--grace", "2s", "--start-timeout", "10m"},
				"exec sleep 1000"
			if c.used {
				flags, script = append(flags, "--max-restarts", "1"),
					`[ "$RANK$TORCHELASTIC_RESTART_COUNT" != 20 ] || exit 3; exec sleep 1000`
			}
			r := j.Start(append(flags, "--", "sh", "-c", drive.ShowRank+script)...)
			testutil.Eventually(t, time.Minute, "workers run",
				func() bool { return len(j.Workers()) >= 3 }) // of two rounds, where one was restarted
			testutil.Eventually(t, time.Minute, "the status file has all of them", func() bool {
				if _, err := os.Stat(status); err != nil {
					return false
				}
				return drive.ReadWorld(t, status).Counts["running"] == 3 &&
					(!c.used || strings.Contains(r.Err.String(), "restarting the workers"))
			})
			c.lose(j.On[c.host])
			j.Ends(r, 75, j.On[c.host].Name, "no restart is left for a lost node")
			w := drive.ReadWorld(t, status)
			if w.Phase != "Failed" || *w.ExitStatus != 75 || len(w.Tasks) != 3 || w.Tasks[c.host].Phase != "Unknown" ||
				w.Tasks[2].Phase != "Stopped" || w.Counts["unknown"] != 1 {
				t.Errorf("%+v", w)
			}
			t.Logf("the launcher has ended %v after its start", time.Since(r.Began).Round(time.Second))
			j.On[c.host].Heal()
			j.On = slices.Delete(slices.Clone(j.On), c.host, c.host+1)
			j.Clean(30 * time.Second)
		})
	}
}
