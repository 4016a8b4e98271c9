package hosts

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestHostsRefused has hosts on which nothing can be started, each for another reason: each is named with what is
// wrong, and nothing is started, or left, on the one that is fit.
func TestHostsRefused(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 4, func(name string, cfg *testutil.SSHDConfig) {
		switch name {
		case "node3":
			cfg.Config = "PubkeyAuthentication no\nPasswordAuthentication yes"
		case "node4": // each session has a full /tmp, and all that is in it: the cache, too
			cfg.Config = `ForceCommand exec unshare -m sh -c ` +
				`'for d in /tmp /dev/shm; do mount -t tmpfs -o size=1m tmpfs $d; done; exec sh -c "$SSH_ORIGINAL_COMMAND"'`
			cfg.Env = []string{"XDG_CACHE_HOME=/tmp/cache"}
		}
	})
	r := j.Start("run", "--hosts", "node1,nobody-here@node2,node3,node4", "--start-timeout", "60", "--", "sh", "-c", drive.ShowRank)
	j.Ends(r, 75, "on node2:", "as nobody-here at 10.66.0.3:22", "on node3:", "it takes: password", "never asks for a password",
		"on node4:", "no place for our program", "has no room")
	if strings.Contains(r.Err.String(), "on node1:") {
		t.Error("a host is blamed that was there")
	}
	if workers := j.Workers(); len(workers) > 0 {
		t.Errorf("there were workers: %v", workers)
	}
	j.Clean(30 * time.Second)
}

// TestHostsDiesInCopy switches a host off while our program is brought there.
func TestHostsDiesInCopy(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	j := drive.NewHostsJob(t, 2, func(name string, cfg *testutil.SSHDConfig) {
		if name == "node2" {
			cfg.Env = []string{"XDG_CACHE_HOME=" + cache}
		}
	})
	j.On[1].Rate(10_000)
	r := j.Start("run", "--hosts", j.Names(), "--start-timeout", "15", "--", "sh", "-c", drive.ShowRank)
	testutil.Eventually(t, time.Minute, "a part of the program is there", func() bool {
		parts, _ := filepath.Glob(filepath.Join(cache, "muster/bin/.muster-*"))
		return len(parts) > 0
	})
	j.On[1].PowerOff()
	off := time.Now()
	j.Ends(r, 75, "on node2:")
	// --start-timeout, and not the minute after which a silent machine is taken for lost.
	if took := time.Since(off); took > 40*time.Second {
		t.Errorf("the launcher has ended %v after the host was switched off", took)
	}
	if whole, _ := filepath.Glob(filepath.Join(cache, "muster/bin/muster-*")); len(whole) > 0 {
		t.Errorf("%v is taken for our program", whole)
	}
	j.On = j.On[:1]
	j.Clean(30 * time.Second)
}

// TestHostsDiesInOrder switches a host off while it is told what to do: that more waits to be sent to it than the
// kernel takes holds nobody up.
func TestHostsDiesInOrder(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	j.Ends(j.Start("run", "--hosts", j.Names(), "--", "true"), 0) // brings our program
	for i := range 12 {
		j.Env = append(j.Env, fmt.Sprintf("BIG%d=%s", i, strings.Repeat("x", 100<<10)))
	}
	j.On[1].Rate(1000)
	r := j.Start("run", "--hosts", j.Names(), "--log-level", "debug", "--", "sh", "-c", drive.ShowRank)
	testutil.Eventually(t, time.Minute, "both hosts are reached", func() bool { return strings.Count(r.Err.String(), "node reached") == 2 })
	j.On[1].PowerOff()
	off := time.Now()
	j.Ends(r, 75, "node2")
	took := time.Since(off)
	t.Logf("it took %v", took.Round(10*time.Millisecond))
	if took > 40*time.Second {
		t.Errorf("the launcher has ended %v after the host was switched off", took)
	}
	j.On = j.On[:1]
	j.Clean(30 * time.Second)
}

// TestHostsLarge takes a megabyte of arguments, or of environment, to another host as it is.
func TestHostsLarge(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 1)
	var words []string
	for i := range 10 {
		words = append(words, strings.Repeat(string(rune('a'+i))+"\n'\"$é\xff", 100<<10/8))
	}
	for name, c := range map[string]struct {
		script     string
		args, vars []string
	}{
		"arguments": {`printf %s "$@" | sha256sum`, words, nil},
		"environment": {
			`printf %s "$BIG0" "$BIG1" "$BIG2" "$BIG3" "$BIG4" "$BIG5" "$BIG6" "$BIG7" "$BIG8" "$BIG9" | sha256sum`,
			nil, words,
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := j.Again(t)
			for i, value := range c.vars {
				j.Env = append(j.Env, fmt.Sprintf("BIG%d=%s", i, value))
			}
			r := j.Start(append([]string{"run", "--hosts", "node1:2", "--", "sh", "-c", c.script, "sh"}, c.args...)...)
			sum := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(words, ""))))
			j.Ends(r, 0)
			if n := strings.Count(r.Out.String(), sum); n != 2 {
				t.Errorf("%d of 2 workers have what was given", n)
			}
		})
	}
	j.Clean(30 * time.Second)
}

// TestHostsFileWrong is refused with the line of what is wrong, before any host is reached.
func TestHostsFileWrong(t *testing.T) {
	t.Parallel()
	file := drive.WriteScript(t, "hosts", "# ours\nnode1 slots=2\n\nnode2:2\nnode[3-4]\nnode5\nnode6 slots=many\nnode2\n")
	reached := filepath.Join(t.TempDir(), "reached")
	got := drive.Run(t, nil, "run", "--hostfile", file, "--ssh-program", "touch "+reached, "--", "true")
	for _, want := range []string{file + ":7", `"many" is no number of slots`, file + ":8", "node2"} {
		if !strings.Contains(got.Stderr, want) {
			t.Errorf("no %q in:\n%s", want, got.Stderr)
		}
	}
	if _, err := os.Stat(reached); got.Status != 2 || !os.IsNotExist(err) {
		t.Errorf("status %d; the program that reaches hosts: %v", got.Status, err)
	}
}

// TestHostsMany has many hosts of which three are dead: those are named, in their order, and nothing is left on the
// others. With MUSTER_SOAK=1 they are 300.
func TestHostsMany(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	n := 40
	if testutil.Soak() {
		n = 300
	}
	client := testutil.NewSSHClient(t)
	cache := t.TempDir()
	// One server has all addresses of this machine, and so is all hosts.
	server := testutil.SSHD(t,
		testutil.SSHDConfig{
			Client: client, Address: "0.0.0.0", UnknownKey: true,
			Env: []string{"XDG_CACHE_HOME=" + cache, drive.EndAtOnce},
		})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	dead := map[int]string{
		n / 4:     fmt.Sprintf("127.0.0.1 port=%s", drive.FreePort(t)),
		n / 2:     "nobody-there.invalid",
		3 * n / 4: fmt.Sprintf("127.0.0.1 port=%d", silent.Addr().(*net.TCPAddr).Port),
	}
	var file strings.Builder
	for i := range n {
		line := dead[i]
		if line == "" {
			line = fmt.Sprintf("127.0.%d.%d port=%d", 1+i/200, 1+i%200, server.Port)
		}
		file.WriteString(line + "\n")
	}
	out := t.TempDir()
	limit := "30"
	if n > 40 {
		limit = "150"
	}
	environ := []string{"HOME=" + client.Home, "OUT=" + out, drive.EndAtOnce}
	first := drive.WriteScript(t, "first", fmt.Sprintf("127.0.0.1 port=%d\n", server.Port))
	if got := drive.Run(t, environ, "run", "--hostfile", first, "--", "true"); got.Status != 0 { // which brings our program there
		t.Fatalf("one host: status %d\n%s", got.Status, got.Stderr)
	}
	began := time.Now()
	got := drive.Run(t, environ, "run", "--hostfile", drive.WriteScript(t, "hosts", file.String()), "--ssh-parallel", "32",
		"--start-timeout", limit, "--", "sh", "-c", drive.ShowRank)
	t.Logf("%d hosts: %v", n, time.Since(began).Round(10*time.Millisecond))
	last := 0
	for _, i := range []int{n / 4, n / 2, 3 * n / 4} {
		name, port, _ := strings.Cut(dead[i], " port=")
		want := "cannot start a node on " + name
		if port != "" {
			want += ":" + port
		}
		at := strings.Index(got.Stderr, want)
		if at < last {
			t.Errorf("%q is at %d, after %d", want, at, last)
		}
		last = at
	}
	if count := strings.Count(got.Stderr, "cannot start a node on"); got.Status != 75 || count != 3 {
		t.Errorf("status %d, and %d hosts are blamed:\n%s", got.Status, count, got.Stderr)
	}
	if entries, _ := os.ReadDir(out); len(entries) > 0 {
		t.Errorf("there were workers: %v", entries)
	}
	testutil.Eventually(t, 30*time.Second, "no agent is left", func() bool { return len(drive.Processes(t, cache)) == 0 })
}

// TestHostsMistakes: what people get wrong and only agents find is refused like the rest, with what was typed and what to
// try.
func TestHostsMistakes(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, taken, _ := net.SplitHostPort(l.Addr().String())
	script, slots := drive.WriteScript(t, "train.py", ""), drive.WriteScript(t, "slots", "localhost slots=1\n127.0.0.2 slots=1\n")
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"a port in use, two hosts": {
			[]string{"run", "--hosts", "localhost,127.0.0.2", "--master-port", taken, "--", "true"},
			[]string{"127.0.0.1:" + taken + ": address already in use", "another process has port " + taken},
		},
		"a port in use, one host": {
			[]string{"run", "--hosts", "localhost:2", "--master-port", taken, "--", "true"},
			[]string{"address already in use", "another process has port " + taken},
		},
		"a port in use, torchrun": {[]string{
			"--hosts", "localhost,127.0.0.2", "torchrun", "--master-port", taken, "--no-python",
			"true",
		}, []string{"another process has port " + taken}},
		"a port in use, deepspeed": {[]string{
			"deepspeed", "--hostfile", slots, "--master_port", taken, "--no_local_rank",
			"--no_python", "true",
		}, []string{"another process has port " + taken}},
		"a misspelt word of --warm": {
			[]string{
				"run", "--hosts", "localhost,127.0.0.2", "--warm", "atuo", "--",
				"python3", script,
			},
			[]string{"did you mean auto?"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := drive.Run(t, nil, c.args...)
			got.Expect(t, 2, c.want...)
			if got.Stdout != "" {
				t.Errorf("it has said %q", got.Stdout)
			}
		})
	}
}
