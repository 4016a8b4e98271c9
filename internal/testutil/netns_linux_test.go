package testutil_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

const soon = 20 * time.Second // bounds a hang

// TestHosts looks at what hosts have in common and what each has for itself.
func TestHosts(t *testing.T) {
	testutil.Long(t)
	before, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	hosts := testutil.Hosts(t, 3, testutil.TwoNetworks)
	for _, h := range hosts {
		run := func(line string) string {
			t.Helper()
			out, err := h.Command("sh", "-c", line).Output()
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(out))
		}
		if got := run("hostname; cat /etc/hostname"); got != h.Name+"\n"+h.Name {
			t.Errorf("%s calls itself %q", h.Name, got)
		}
		if got := run("echo $$"); len(got) > 3 {
			t.Errorf("a program of %s has process id %s: of the whole machine", h.Name, got)
		}
		run("touch $TMPDIR/here $XDG_RUNTIME_DIR/here")
		for _, dir := range []string{"/dev/shm", "/tmp/muster-$(id -u)", "/var/tmp/muster-$(id -u)"} {
			run("test ! -e " + dir + "/seen && touch " + dir + "/seen")
		}
		for _, peer := range hosts {
			for family, database := range []string{"ahostsv4", "ahostsv6"} {
				if got, want := run("getent "+database+" "+peer.Name), peer.Addrs[0][family].String(); !strings.HasPrefix(got, want+" ") {
					t.Errorf("%s resolves %s as %q, want %s", h.Name, peer.Name, got, want)
				}
			}
		}
		if got := run("cat /proc/self/cgroup | sed -n s/^0:://p; cd $(sed -n 's,^[^ ]* \\(/sys/[^ ]*\\) cgroup2 .*,\\1,p' " +
			"/proc/self/mounts | tail -n 1); mkdir mine; ls -d */"); got != "/\nmine/" {
			t.Errorf("%s sees cgroups that are not its own: %q", h.Name, got)
		}
		began := time.Now()
		if out, err := h.Command("getent", "hosts", "nowhere.example").CombinedOutput(); err == nil {
			t.Errorf("%s resolves a name that there is not: %s", h.Name, out)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("a name that there is not took %v: a name server was asked", took)
		}
		if got := run("ls /sys/class/net | tr '\\n' ' '"); got != "eth0 eth1 lo" {
			t.Errorf("interfaces of %s: %s", h.Name, got)
		}
		if got := run("ip -4 route; ip -6 route"); strings.Contains(got, "default") {
			t.Errorf("%s has a way out: %s", h.Name, got)
		}
		for _, peer := range hosts {
			for _, addrs := range peer.Addrs {
				for _, addr := range addrs {
					if out, err := h.Command("sh", "-c", "ip route get "+addr.String()).CombinedOutput(); err != nil {
						t.Errorf("%s has no route to %v: %s", h.Name, addr, out)
					}
				}
			}
			if peer != h {
				newTrack(t, h, peer, 0).arrives()
				newTrack(t, h, peer, 1).arrives()
			}
		}
	}
	after, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != len(before) {
		t.Errorf("the machine has other interfaces now: %v, before %v", after, before)
	}
}

// TestHostReapsOrphans leaves dead orphans on a host, which its first process must not keep as zombies.
func TestHostReapsOrphans(t *testing.T) {
	h := testutil.Hosts(t, 1)[0]
	if err := h.Command("sh", "-c", "for i in 1 2 3; do (sleep 0 & sleep 0 &); done").Run(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, soon, "no zombie is left", func() bool {
		out, err := h.Command("ps", "-eo", "stat=").Output()
		if err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(string(out), "Z")
	})
}

func TestHostCommand(t *testing.T) {
	h := testutil.Hosts(t, 1)[0]
	for line, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -TERM $$": 143} {
		c := h.Command("sh", "-c", line)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if got := c.Status(); got != want {
			t.Errorf("%q: status %d, want %d", line, got, want)
		}
	}
	c := h.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var p testutil.Process
	testutil.Eventually(t, soon, "the program runs", func() bool {
		for _, p = range h.Processes() {
			if len(p.Args) > 0 && p.Args[0] == "sleep" {
				return true
			}
		}
		return false
	})
	if p.PID != c.Process.Pid || p.Inside == p.PID || p.Inside < 2 {
		t.Errorf("process %+v, outside it has id %d", p, c.Process.Pid)
	}
	if h.Signal(p.PID+1<<20, syscall.SIGTERM) {
		t.Error("signalled a process that there is not")
	}
	if !h.Signal(p.Inside, syscall.SIGTERM) {
		t.Error("did not signal the process")
	}
	if got := c.Status(); got != 143 {
		t.Errorf("status %d, want 143", got)
	}
}

// crowd starts processes that would outlive an ordinary end.
func crowd(t *testing.T, h *testutil.Host) *testutil.HostCommand {
	t.Helper()
	c := h.Command("sh", "-c", "trap '' TERM INT; setsid sleep 1000 & (env -i setsid sleep 1000 &); (sleep 1000 &); wait")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, soon, "everything runs", func() bool { return len(h.Processes()) >= 4 })
	return c
}

func TestKillAndPowerOff(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	for name, end := range map[string]func(*testutil.Host){"kill": (*testutil.Host).Kill, "power off": (*testutil.Host).PowerOff} {
		t.Run(name, func(t *testing.T) {
			hosts := testutil.Hosts(t, 2)
			c := crowd(t, hosts[0])
			all := hosts[0].Processes()
			// A program of the host's own holds one end: what it is told when its host ends is told to no peer.
			var l net.Listener
			if err := hosts[1].Do(func() (err error) {
				l,
					err = net.Listen("tcp", hosts[1].Addrs[0][0].String()+":0")
				return
			}); err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			addr := l.Addr().(*net.TCPAddr)
			talk := hosts[0].Command("bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d; sleep 1000 <&3", addr.IP, addr.Port))
			if err := talk.Start(); err != nil {
				t.Fatal(err)
			}
			peer, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()

			end(hosts[0])
			for _, p := range all {
				if err := syscall.Kill(p.PID, 0); !errors.Is(err, syscall.ESRCH) {
					t.Errorf("%v lives: %v", p, err)
				}
			}
			if got := c.Status(); got != 137 {
				t.Errorf("status %d, want 137", got)
			}
			if err := hosts[0].Command("true").Run(); err == nil || !hosts[0].Off() || hosts[1].Off() {
				t.Errorf("a host that is off: %v, one that is on: %v; a program there ends with %v", hosts[0].Off(), hosts[1].Off(), err)
			}
			if name == "kill" {
				peer.SetReadDeadline(time.Now().Add(soon))
				if _, err := peer.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the peer of a killed host reads %v", err)
				}
			} else {
				peer.SetReadDeadline(time.Now().Add(time.Second))
				if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the peer of a host without power reads %v", err)
				}
			}
			hosts[0].Boot()
			if hosts[0].Off() {
				t.Error("a host is off after its boot")
			}
			if left := hosts[0].Processes(); len(left) != 0 {
				t.Errorf("after its boot it runs %v", left)
			}
			newTrack(t, hosts[0], hosts[1], 0).arrives()
			newTrack(t, hosts[1], hosts[0], 1).arrives()
		})
	}
}

func TestPowerOffWhileDelayed(t *testing.T) {
	hosts := testutil.Hosts(t, 2)
	hosts[0].Delay(time.Millisecond)
	hosts[0].PowerOff()
	hosts[0].Boot()
	newTrack(t, hosts[1], hosts[0], 0).arrives()
}

// TestKilledTestLeavesNothing kills a test that has hosts. It is its own child.
func TestKilledTestLeavesNothing(t *testing.T) {
	const variable = "TESTUTIL_HOSTS_CHILD"
	if mark := os.Getenv(variable); mark != "" {
		hosts := testutil.Hosts(t, 2)
		for _, h := range hosts {
			out, err := h.Command("readlink", "/proc/self/ns/net").Output()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Print(string(out))
		}
		if err := hosts[1].Command("setsid", "sleep", mark).Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	mark := "4" + strconv.Itoa(os.Getpid()) // a number of seconds that nobody else sleeps
	testutil.Hosts(t, 1)                    // skips here, not there
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"="+mark)
	_, out := testutil.StartPiped(t, cmd)
	var spaces [2]string
	if _, err := fmt.Fscan(out, &spaces[0], &spaces[1]); err != nil || spaces[0] == spaces[1] {
		t.Fatalf("the child says %q: %v", spaces, err)
	}
	sleeping := func() bool {
		out, _ := exec.Command("pgrep", "-fx", "sleep "+mark).Output()
		return len(out) > 0
	}
	held := func() (n int) {
		all, _ := os.ReadDir("/proc")
		for _, e := range all {
			if ns, err := os.Readlink("/proc/" + e.Name() + "/ns/net"); err == nil && slices.Contains(spaces[:], ns) {
				n++
			}
		}
		return n
	}
	testutil.Eventually(t, soon, "a program runs there", func() bool { return sleeping() && held() >= 3 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	testutil.Eventually(t, soon, "nobody is in its namespaces", func() bool { return !sleeping() && held() == 0 })
}
