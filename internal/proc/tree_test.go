package proc_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
	"muster/internal/testutil"
)

func TestOneTreeAtATime(t *testing.T) {
	openTree(t, proc.Config{})
	if tree, err := proc.Open(proc.Config{}); err == nil {
		tree.Close()
		t.Error("a second tree was opened")
	}
}

func TestCloseLetsGo(t *testing.T) {
	for _, pidfd := range []bool{true, false} {
		tree, err := proc.Open(proc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if !pidfd {
			tree.WithoutPidfd()
		}
		p := sh(t, tree, "exec sleep 86400")
		if err := tree.Close(); err == nil {
			t.Error("no error from Close with a running process")
		}
		if got := waitExit(t, p); got.Code != -1 || got.Success() || got.Status() != 125 {
			t.Errorf("exit %+v, want code -1", got)
		}
		if again, err := tree.Start(proc.Spec{Path: "/bin/true"}); !errors.Is(err, proc.ErrClosed) {
			t.Errorf("start after close: %v, %v", again, err)
		}
		if err := unix.Kill(p.PID(), 0); err != nil {
			t.Errorf("the process did not outlive Close: %v", err)
		}
		_ = unix.Kill(p.PID(), unix.SIGKILL)
		if _, err := unix.Wait4(p.PID(), nil, 0, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestWithoutPidfd(t *testing.T) {
	tree := openTree(t, proc.Config{})
	tree.WithoutPidfd()
	for i := range 20 {
		p := sh(t, tree, fmt.Sprintf("exit %d", i))
		if got := waitExit(t, p).Status(); got != i {
			t.Errorf("status %d, want %d", got, i)
		}
	}
}

func TestAnotherProcessWithThePIDIsSpared(t *testing.T) {
	tree := openTree(t, proc.Config{})
	p := sh(t, tree, "exec sleep 86400")
	if err := proc.SignalIfSame(p.PID(), 1, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(unix.SIGTERM); err != nil { // SIGKILL, had it been sent, would have been first
		t.Fatal(err)
	}
	if got := waitExit(t, p); got.Signal != unix.SIGTERM {
		t.Errorf("it %v: a process with another start time was killed", got)
	}
	p = sh(t, tree, "exec sleep 86400")
	if err := proc.SignalIfSame(p.PID(), 0, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := waitExit(t, p); got.Signal != unix.SIGKILL {
		t.Errorf("it %v, want SIGKILL", got)
	}
}

// fds returns what the descriptors of a process are.
func fds(t *testing.T, pid int) map[string]string {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			all[filepath.Base(l)] = to
		}
	}
	return all
}

func TestNobodyInheritsMoreThanMeant(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	j := startJobWith(t, nil, nil, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{w} }, "exec sleep 86400 $0")
	w.Close()
	j.ready(1)
	more := map[string]string{}
	testutil.Eventually(t, 20*time.Second, "the worker's loader has closed what it reads", func() bool {
		more = fds(t, j.worker[0])
		maps.DeleteFunc(more, func(fd, _ string) bool { n, _ := strconv.Atoi(fd); return n <= 2 })
		return len(more) == 0 || !slices.Contains(slices.Collect(maps.Values(more)), "/etc/ld.so.cache")
	})
	for fd, to := range more {
		t.Errorf("worker has %s: %s", fd, to)
	}
	for fd, to := range fds(t, j.guard) {
		if !strings.HasPrefix(to, "anon_inode:") && to != os.DevNull && !strings.HasPrefix(to, "socket:") {
			t.Errorf("guardian has %s: %s", fd, to)
		}
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", j.guard))
	if err != nil || strings.Contains(string(env), "MUSTER") || strings.Contains(string(env), "PATH=") {
		t.Errorf("environment of the guardian: %q, %v", env, err)
	}
	for _, pid := range []int{j.guard, j.worker[0]} {
		if sid, err := unix.Getsid(pid); err != nil || sid != pid {
			t.Errorf("session of %d is %d (%v)", pid, sid, err)
		}
	}
	j.kill(j.cmd.Process.Pid, unix.SIGKILL)
	j.wantNothing()
}

// muster killed, its guardian stopped or killed at the same moment: the kernel kills the workers.
func TestWorkersDieWithTheirThread(t *testing.T) {
	j := startJob(t, nil, nil, "exec sleep 86400 $0", "exec sleep 86400 $0")
	j.ready(2)
	j.kill(j.guard, unix.SIGSTOP)
	j.kill(j.cmd.Process.Pid, unix.SIGKILL)
	testutil.Eventually(t, 20*time.Second, "the workers are dead", func() bool {
		j.reap()
		return len(withMark(t, j.mark)) == 1
	})
	j.kill(j.guard, unix.SIGCONT) // and then it does its work
	j.wantNothing()
}

// TestLease: muster stands still, and others go on without it. Its workers do not outlive the time that it was granted;
// when it goes on, it finds them killed. A lease that was renewed or given back harms nobody.
func TestLease(t *testing.T) {
	testutil.Long(t)
	for name, replaced := range map[string]bool{"guardian": false, "its successor": true} {
		t.Run(name, func(t *testing.T) {
			j := startJob(t, nil, nil, grandchildren, grandchildren)
			j.ready(2 * grandchildrenCount)
			all := 2*grandchildrenCount + 4
			j.ask("lease:1s")
			j.ask("lease:1h")
			time.Sleep(1500 * time.Millisecond)
			wantMarked(t, j.mark, all)
			j.ask("lease:1s")
			j.ask("lease:none")
			time.Sleep(1500 * time.Millisecond)
			wantMarked(t, j.mark, all)

			j.ask("lease:3s")
			granted := time.Now()
			if replaced {
				j.kill(j.guard, unix.SIGKILL)
				j.newGuardian(j.guard)
			}
			j.kill(j.cmd.Process.Pid, unix.SIGSTOP)
			testutil.Eventually(t, 30*time.Second, "only agent, guardian and dead workers are left", func() bool {
				return len(withMark(t, j.mark)) == 2
			})
			if d := time.Since(granted); d < 3*time.Second {
				t.Errorf("killed after %v, 3 s were granted", d)
			}
			j.kill(j.cmd.Process.Pid, unix.SIGCONT)
			if got, want := j.next("end"), fmt.Sprintf("%d children 0 zombies 0", 128+int(unix.SIGKILL)); got != want {
				t.Errorf("agent ended with %q, want %q", got, want)
			}
			j.wantNothing()
		})
	}
}

// TestLeaseKillsWorkersFirst: a worker that waits for a child, and whose child dies first, can still end with status 0,
// and the agent would take its work for done.
func TestLeaseKillsWorkersFirst(t *testing.T) {
	const count = 12
	j := startJob(t, nil, nil, slices.Repeat([]string{"setsid sleep 86400 $0; exit 0"}, count)...)
	j.ready(count)
	j.ask("lease:100ms")
	j.kill(j.cmd.Process.Pid, unix.SIGSTOP)
	testutil.Eventually(t, 30*time.Second, "only agent, guardian and dead workers are left", func() bool {
		return len(withMark(t, j.mark)) == 2
	})
	for _, pid := range j.worker {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(stat))
		if got := fields[len(fields)-1]; got != strconv.Itoa(int(unix.SIGKILL)) { // as of wait(2), field 52 of proc(5)
			t.Errorf("worker %d ended with %s, want to be killed", pid, got)
		}
	}
	j.kill(j.cmd.Process.Pid, unix.SIGCONT)
	j.next("end")
	j.wantNothing()
}

func TestAStuckGuardianIsReplaced(t *testing.T) {
	testutil.Long(t)
	tree := openTree(t, proc.Config{Guardian: []string{"/proc/self/exe", roleArg, "guardian", newMark()}})
	old := tree.GuardianPID()
	if err := unix.Kill(old, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i := range 5000 { // some hundred messages fill the socket
		if err := tree.RemoveOnDeath(filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		if tree.GuardianPID() != old {
			break
		}
	}
	testutil.Eventually(t, 20*time.Second, "a new guardian", func() bool {
		pid := tree.GuardianPID()
		return pid != 0 && pid != old
	})
}

// As PID 1 of a container: orphans of strangers are reaped, and live strangers are left alone.
func TestPID1(t *testing.T) {
	testutil.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("a pid namespace takes root")
	}
	for _, c := range []struct {
		name, env, script string
		sleeping          int
	}{
		// Without a cgroup, one that cleared its environment and lost its parent at once cannot be told from a
		// stranger.
		{"marker", "PROC_TEST_CGROUP=", strings.Replace(grandchildren, "(env -i", "(env A=b", 1), grandchildrenCount},
		{"cgroup", "PROC_TEST_CGROUP=1", grandchildren, grandchildrenCount},
	} {
		t.Run(c.name, func(t *testing.T) { pid1(t, c.env, c.script, c.sleeping) })
	}
}

func pid1(t *testing.T, env, script string, sleeping int) {
	j := startJob(t, []string{"unshare", "-pf", "--mount-proc", "--kill-child"}, []string{env}, script)
	j.ready(sleeping)
	if j.guard != 0 {
		t.Errorf("a guardian for PID 1, whose death the kernel sees to: %d", j.guard)
	}
	first := 0
	for _, p := range processes(t) {
		if p.ppid == j.cmd.Process.Pid {
			first = p.pid
		}
	}
	stranger := newMark()
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(first), "-p", "-m", "sh", "-c",
		"(setsid sleep 86400 $0 >/dev/null 2>&1 &) ; (setsid true &)", stranger).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantMarked(t, stranger, 1)
	for _, p := range withMark(t, j.mark) {
		if strings.HasPrefix(p.cmdline, "sh -c") {
			j.kill(p.pid, unix.SIGKILL)
		}
	}
	// One child is left: the stranger.
	if got, want := j.next("end"), "137 children 1 zombies 0"; got != want {
		t.Errorf("agent ended with %q, want %q", got, want)
	}
	j.wantNothing()
	wantMarked(t, stranger, 0)
}

func TestCgroupIsRemoved(t *testing.T) {
	testutil.Long(t)
	groups := func() []string {
		found, err := filepath.Glob("/sys/fs/cgroup/unified/muster-*")
		if err != nil {
			t.Fatal(err)
		}
		more, err := filepath.Glob("/sys/fs/cgroup/muster-*")
		if err != nil {
			t.Fatal(err)
		}
		return append(found, more...)
	}
	if err := os.Mkdir("/sys/fs/cgroup/unified/muster-test", 0o755); err != nil {
		t.Skipf("no cgroup v2 to write in: %v", err)
	}
	defer os.Remove("/sys/fs/cgroup/unified/muster-test") // not a name of ours, so that it must stay
	stale := "/sys/fs/cgroup/unified/muster-1-18446744073709551615"
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		j := startJob(t, nil, []string{"PROC_TEST_CGROUP=1"}, grandchildren)
		j.ready(grandchildrenCount)
		own := func() (mine []string) {
			for _, g := range groups() {
				if strings.HasPrefix(filepath.Base(g), fmt.Sprintf("muster-%d-", j.cmd.Process.Pid)) {
					mine = append(mine, g)
				}
			}
			return mine
		}
		if len(own()) != 1 {
			t.Fatalf("cgroups: %v", own())
		}
		b, err := os.ReadFile(filepath.Join(own()[0], "0", "cgroup.procs"))
		if err != nil || len(strings.Fields(string(b))) < grandchildrenCount {
			t.Errorf("in the cgroup: %q, %v", b, err)
		}
		if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the cgroup of an agent that is gone was not removed: %v", err)
		}
		if _, err := os.Stat("/sys/fs/cgroup/unified/muster-test"); err != nil {
			t.Errorf("somebody else's cgroup was removed: %v", err)
		}
		j.kill(j.cmd.Process.Pid, sig)
		j.wantNothing()
		if left := own(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// A supervisor starts muster again, with the same run directory, while the guardian is still at work.
// TestDaemonOnSIGTERM lets the agent be killed while one of its processes answers the guardian's SIGTERM by turning
// into a daemon, which is younger than the agent's death.
func TestDaemonOnSIGTERM(t *testing.T) {
	j := startJob(t, nil, nil,
		`setsid sh -c 'trap "(setsid sh -c \"(sleep 86400 \$0 &)\" \$0 &); exit" TERM; while :; do sleep 0.02; done' $0 & `+
			`exec sleep 86400 $0`)
	testutil.Eventually(t, 20*time.Second, "the process that will become a daemon runs",
		func() bool { return len(withMark(t, j.mark)) >= 4 })
	j.kill(j.cmd.Process.Pid, unix.SIGKILL)
	<-j.ended
	j.wantNothing()
}

func TestTheNextJobIsSpared(t *testing.T) {
	testutil.Long(t)
	j := startJob(t, nil, nil, "setsid sleep 86400 $0 & trap '' TERM; setsid sleep 86400 $0 & exec sleep 86400 $0")
	j.ready(3)
	j.kill(j.cmd.Process.Pid, unix.SIGKILL)
	<-j.ended
	testutil.Eventually(t, 20*time.Second, "the guardian has begun: only it and what ignores SIGTERM are left", func() bool {
		j.reap()
		return len(withMark(t, j.mark)) == 2
	})
	mark := newMark()
	next := exec.Command("sleep", "86400", mark)
	next.Env = []string{"MUSTER_AGENT=" + mark}
	if err := next.Start(); err != nil {
		t.Fatal(err)
	}
	j.other = next.Process.Pid
	testutil.Eventually(t, 20*time.Second, "the old job is gone", func() bool {
		j.reap()
		return len(withMark(t, j.mark)) == 0
	})
	if len(withMark(t, mark)) != 1 {
		t.Error("the next job was killed")
	}
	_ = next.Process.Kill()
	_ = next.Wait()
	j.wantNothing()
}
