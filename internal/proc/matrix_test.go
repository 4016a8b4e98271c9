package proc_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

type process struct {
	pid, ppid int
	state     string
	cmdline   string
}

// processes reads the process table with other means than the package under test.
func processes(t testing.TB) []process {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	var all []process
	for _, name := range names {
		status, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		p := process{cmdline: strings.ReplaceAll(string(cmdline), "\x00", " ")}
		for line := range strings.Lines(string(status)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value = strings.TrimSpace(value)
			switch key {
			case "State":
				p.state = value[:1]
			case "Pid":
				p.pid, _ = strconv.Atoi(value)
			case "PPid":
				p.ppid, _ = strconv.Atoi(value)
			}
		}
		all = append(all, p)
	}
	return all
}

// newMark returns a word that is in the argv of all processes of one job and of no others. It is a number, so that
// sleep takes it for a part of its duration.
func newMark() string { return fmt.Sprintf("0.%018d", rand.Uint64N(1e18)) }

// withMark returns the processes that have mark in their argv.
func withMark(t testing.TB, mark string) []process {
	t.Helper()
	var found []process
	for _, p := range processes(t) {
		if strings.Contains(p.cmdline, mark) {
			found = append(found, p)
		}
	}
	return found
}

// grandchildren is a worker that has children of every kind and then waits. $0 is the mark. The last two do not hear
// SIGTERM. Besides the worker itself that makes grandchildrenCount processes.
const grandchildren = `
sleep 86400 $0 &
setsid sleep 86400 $0 &
(setsid sleep 86400 $0 &)
(env -i setsid sleep 86400 $0 &)
(trap '' TERM; exec env -i setsid sleep 86400 $0) &
(trap '' TERM; exec sleep 86400 $0) &
wait`

const grandchildrenCount = 6

// job is an agent under test.
type job struct {
	t      *testing.T
	mark   string
	dir    string // run directory
	cmd    *exec.Cmd
	lines  chan string
	in     io.WriteCloser
	ended  chan struct{}
	guard  int
	other  int // a child of the test's own, waited for there
	worker []int
	sock   *net.UnixListener
}

// startJob starts an agent with the scripts as workers. The run directory has a socket in it, and there is a file in
// /dev/shm.
func startJob(t *testing.T, prefix []string, env []string, scripts ...string) *job {
	t.Helper()
	return startJobWith(t, prefix, env, nil, scripts...)
}

// startJobWith lets the test change the command.
func startJobWith(t *testing.T, prefix []string, env []string, change func(*exec.Cmd), scripts ...string) *job {
	t.Helper()
	j := &job{t: t, mark: newMark(), dir: filepath.Join(t.TempDir(), "run"), lines: make(chan string, 100), ended: make(chan struct{})}
	if err := os.Mkdir(j.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if j.sock, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(j.dir, "s"), Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	j.sock.SetUnlinkOnClose(false)
	t.Cleanup(func() { j.sock.Close() })
	if err := os.WriteFile(j.shm(), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(j.shm()) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(append([]string{}, prefix...), self, roleArg, "agent", j.mark, j.dir)
	j.cmd = exec.Command(argv[0], append(argv[1:], scripts...)...)
	j.cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0 halt_on_error=1"), env...)
	j.cmd.Stderr = os.Stderr
	if change != nil {
		change(j.cmd)
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if j.in, err = j.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(j.ended)
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			j.lines <- sc.Text()
		}
		close(j.lines)
		_ = j.cmd.Wait()
	}()
	return j
}

func (j *job) shm() string { return "/dev/shm/" + j.mark + "-segment" }

// next returns the next line of the agent that begins with word, and fails on a line that begins with "error".
func (j *job) next(word string) string {
	j.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case line, ok := <-j.lines:
			if !ok {
				j.t.Fatalf("the agent ended without saying %q", word)
			}
			if strings.HasPrefix(line, "error") {
				j.t.Fatalf("agent: %s", line)
			}
			if rest, ok := strings.CutPrefix(line, word+" "); ok {
				return rest
			}
		case <-timeout:
			j.t.Fatalf("the agent has not said %q", word)
		}
	}
}

// ask gives the agent a command and returns the first word of the answer.
func (j *job) ask(cmd string) string {
	j.t.Helper()
	if _, err := fmt.Fprintln(j.in, cmd); err != nil {
		j.t.Fatal(err)
	}
	return j.next(cmd)
}

// ready waits until the agent runs and n processes with the mark beside agent and guardian exist, and then has the
// agent look at them.
func (j *job) ready(n int) {
	j.t.Helper()
	fields := strings.Fields(j.next("ready"))
	for i, f := range fields {
		pid, err := strconv.Atoi(f)
		if err != nil {
			j.t.Fatal(err)
		}
		if i == 0 {
			j.guard = pid
		} else {
			j.worker = append(j.worker, pid)
		}
	}
	testutil.Eventually(j.t, 20*time.Second, fmt.Sprintf("%d processes run", n), func() bool {
		sleeping := 0
		for _, p := range withMark(j.t, j.mark) {
			if strings.HasPrefix(p.cmdline, "sleep ") {
				sleeping++
			}
		}
		return sleeping == n
	})
	j.ask("scan")
	// Until it runs a guardian dies of any signal, and its agent starts another one: nobody outlives both but by their
	// being killed in the same moment.
	testutil.Eventually(j.t, 20*time.Second, "the guardian ignores what ends others",
		func() bool { return j.guard == 0 || ignores(j.t, j.guard, unix.SIGTERM) })
}

// ignores reports whether a process ignores a signal.
func ignores(t *testing.T, pid int, sig unix.Signal) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nSigIgn:")
	mask, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	set, err := strconv.ParseUint(mask, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return set&(1<<(uint(sig)-1)) != 0
}

// newGuardian waits for another guardian than the one with pid old.
func (j *job) newGuardian(old int) int {
	j.t.Helper()
	pid := 0
	testutil.Eventually(j.t, 20*time.Second, "a new guardian", func() bool {
		var err error
		if pid, err = strconv.Atoi(j.ask("guardian")); err != nil {
			j.t.Fatal(err)
		}
		return pid != 0 && pid != old
	})
	return pid
}

// reap takes the zombies that a killed agent left to us as the nearest sub-reaper.
func (j *job) reap() {
	for _, p := range processes(j.t) {
		if p.state == "Z" && p.ppid == os.Getpid() && p.pid != j.cmd.Process.Pid && p.pid != j.other {
			_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
		}
	}
}

// wantNothing waits until agent, guardian and all others are gone, and checks that no file is left. It returns how long
// the processes but the guardian took.
func (j *job) wantNothing() time.Duration {
	j.t.Helper()
	start := time.Now()
	testutil.Eventually(j.t, 30*time.Second, "the agent ends", func() bool {
		select {
		case <-j.ended:
			return true
		default:
			return false
		}
	})
	testutil.Eventually(j.t, 30*time.Second, "no process but the guardian is left", func() bool {
		j.reap()
		for _, p := range withMark(j.t, j.mark) {
			if !strings.Contains(p.cmdline, " guardian ") {
				return false
			}
		}
		return true
	})
	took := time.Since(start)
	testutil.Eventually(j.t, 30*time.Second, "no process is left", func() bool {
		j.reap()
		return len(withMark(j.t, j.mark)) == 0 && children(j.t) == 0
	})
	for _, path := range []string{j.dir, j.shm()} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			j.t.Errorf("%s is left (%v)", path, err)
		}
	}
	return took
}

func (j *job) kill(pid int, sigs ...unix.Signal) {
	j.t.Helper()
	for _, sig := range sigs {
		if err := unix.Kill(pid, sig); err != nil && err != unix.ESRCH {
			j.t.Fatal(err)
		}
	}
}

var deaths = []struct {
	name string
	sigs []unix.Signal
}{
	{"SIGTERM", []unix.Signal{unix.SIGTERM}},
	{"SIGINT twice", []unix.Signal{unix.SIGINT, unix.SIGINT}},
	{"SIGKILL", []unix.Signal{unix.SIGKILL}},
	{"SIGSTOP then SIGKILL", []unix.Signal{unix.SIGSTOP, unix.SIGKILL}},
}

func TestKillMatrix(t *testing.T) {
	testutil.Long(t)
	for _, d := range deaths {
		fatal := d.sigs[len(d.sigs)-1] == unix.SIGKILL
		t.Run("worker "+d.name, func(t *testing.T) {
			j := startJob(t, nil, nil, grandchildren, grandchildren)
			j.ready(2 * grandchildrenCount)
			j.kill(j.worker[1], d.sigs...)
			want := fmt.Sprintf("%d children 0 zombies 0", 128+int(d.sigs[len(d.sigs)-1]))
			if got := j.next("end"); got != want {
				t.Errorf("agent ended with %q, want %q", got, want)
			}
			j.wantNothing()
		})
		t.Run("agent "+d.name, func(t *testing.T) {
			j := startJob(t, nil, nil, grandchildren, grandchildren)
			j.ready(2 * grandchildrenCount)
			j.kill(j.cmd.Process.Pid, d.sigs...)
			if !fatal {
				want := fmt.Sprintf("%d children 0 zombies 0", 128+int(d.sigs[0]))
				if got := j.next("end"); got != want {
					t.Errorf("agent ended with %q, want %q", got, want)
				}
			}
			// 2 s are promised; this machine may be busy with other tests.
			if took := j.wantNothing(); took > 6*time.Second {
				t.Errorf("all gone after %v", took)
			} else {
				t.Logf("all gone after %v", took)
			}
		})
		t.Run("guardian "+d.name, func(t *testing.T) {
			j := startJob(t, nil, nil, grandchildren, grandchildren)
			j.ready(2 * grandchildrenCount)
			j.kill(j.guard, d.sigs...)
			if fatal {
				j.newGuardian(j.guard)
			} else if got := j.ask("guardian"); got != fmt.Sprint(j.guard) {
				t.Errorf("guardian %s, want %d still", got, j.guard)
			}
			if got := len(withMark(t, j.mark)); got != 2*grandchildrenCount+4 {
				t.Errorf("%d processes, want all", got)
			}
			// The guardian that is there now knows everything.
			j.kill(j.cmd.Process.Pid, unix.SIGKILL)
			j.wantNothing()
		})
	}
}

// The guardian runs a command when nothing of the job is left, and kills it when its time is over. After a normal end
// it does not.
func TestRunOnDeath(t *testing.T) {
	testutil.Long(t)
	for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		j, path := startJob(t, nil, nil, grandchildren), filepath.Join(t.TempDir(), "left")
		j.ready(grandchildrenCount)
		j.ask("on-death:" + path)
		j.kill(j.cmd.Process.Pid, sig)
		j.wantNothing()
		left, err := os.ReadFile(path)
		if killed := sig == unix.SIGKILL; killed && string(left) != "0\n" || !killed && !os.IsNotExist(err) {
			t.Errorf("after %v the command saw %q processes of the job (%v)", sig, left, err)
		}
	}
}
