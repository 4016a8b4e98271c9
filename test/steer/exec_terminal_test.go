package steer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/cmd/console"
	"muster/internal/testutil"
	"muster/test/drive"
)

// desk is where somebody calls muster.
type desk struct {
	command func(args ...string) (cmd *exec.Cmd, start func() error, ended <-chan struct{})
	// runs reports whether a process with an argument runs on the node of the rank.
	runs func(arg string) bool
}

// deskOn is a host from where a rank on another one is entered.
func deskOn(here, there *testutil.Host) desk {
	return desk{
		command: func(args ...string) (*exec.Cmd, func() error, <-chan struct{}) {
			c := here.Command("muster", args...)
			c.Env = append(append(drive.CleanEnviron(), here.Environ()...), console.FormatVariable+"=text")
			return c.Cmd, c.Start, c.Ended()
		},
		runs: func(arg string) bool { return drive.RunsOn(there, arg) },
	}
}

// deskIn is this machine, with a directory for run directories.
func deskIn(t *testing.T, runtimeDir string) desk {
	return desk{
		command: func(args ...string) (*exec.Cmd, func() error, <-chan struct{}) {
			ended := make(chan struct{})
			cmd := exec.CommandContext(t.Context(), "muster", args...)
			cmd.Env = append(append(drive.CleanEnviron(), drive.Apart(runtimeDir)...), console.FormatVariable+"=text")
			return cmd, func() error {
				if err := cmd.Start(); err != nil {
					return err
				}
				go func() {
					_ = cmd.Wait() // its status says it
					close(ended)
				}()
				return nil
			}, ended
		},
		runs: func(arg string) bool {
			return slices.ContainsFunc(drive.Processes(t, arg), func(pid int) bool {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				return !strings.Contains(string(line), "muster")
			})
		},
	}
}

// typist is muster exec in a terminal of its own, which somebody types into.
type typist struct {
	t            *testing.T
	shown        *testutil.Buffer
	ours, theirs *os.File
	cmd          *exec.Cmd
	ended        <-chan struct{}
	before       unix.Termios
}

// execInTerminal runs muster exec in a terminal of 20 lines of 40 columns.
func execInTerminal(t *testing.T, at desk, stderr *os.File, args ...string) *typist {
	t.Helper()
	y := &typist{t: t}
	y.shown, y.ours, y.theirs = drive.Terminal(t, 40, 20)
	y.before = y.modes()
	var start func() error
	y.cmd, start, y.ended = at.command(append([]string{"exec"}, args...)...)
	y.cmd.Env = append(y.cmd.Env, "TERM=vt52")
	y.cmd.Stdin, y.cmd.Stdout, y.cmd.Stderr = y.theirs, y.theirs, y.theirs
	if stderr != nil {
		y.cmd.Stderr = stderr
	}
	y.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // as a shell gives it
	if err := start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // where it failed: the end of the terminal waits for those that have it
		_ = y.cmd.Process.Kill()
		<-y.ended
	})
	return y
}

func (y *typist) modes() unix.Termios {
	y.t.Helper()
	modes, err := unix.IoctlGetTermios(int(y.theirs.Fd()), unix.TCGETS)
	if err != nil {
		y.t.Fatal(err)
	}
	return *modes
}

// types types text, and waits until the terminal shows what follows it.
func (y *typist) types(text, until string) {
	y.t.Helper()
	behind := len(y.shown.String())
	if _, err := y.ours.WriteString(text); err != nil {
		y.t.Fatal(err)
	}
	y.shows(behind, until)
}

func (y *typist) shows(behind int, until string) {
	y.t.Helper()
	defer func() {
		if y.t.Failed() {
			y.t.Logf("the terminal shows %q", y.shown.String())
		}
	}()
	testutil.Eventually(y.t, time.Minute, "it shows "+until, func() bool { return strings.Contains(y.shown.String()[behind:], until) })
}

// ends waits for the end with a status, which leaves the terminal as it was.
func (y *typist) ends(status int) {
	y.t.Helper()
	select {
	case <-y.ended:
	case <-time.After(time.Minute):
		y.t.Fatalf("muster exec does not end:\n%q", y.shown.String())
	}
	if got := y.cmd.ProcessState.ExitCode(); got != status {
		y.t.Errorf("status %d, want %d:\n%q", got, status, y.shown.String())
	}
	if now := y.modes(); now != y.before {
		y.t.Errorf("the terminal is not as it was: %+v, before %+v", now, y.before)
	}
}

// shellInTerminal has somebody type into a shell in the place of a rank on another node.
func shellInTerminal(t *testing.T, at desk, rank int) {
	t.Helper()
	y := execInTerminal(t, at, nil, "--rank", fmt.Sprint(rank), "--", "sh", "-i")
	y.types("PS1='$ '; test -t 0 && test -t 1 && test -t 2 && echo yes, rank $RANK\n", fmt.Sprintf("yes, rank %d\r\n", rank))
	if modes := y.modes(); modes.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 {
		t.Errorf("keys are not passed on each by itself: %#x", modes.Lflag)
	}
	y.types("stty size; echo $TERM\n", "20 40\r\nvt52\r\n")
	// The window grows, and the shell there hears of it.
	y.types("trap 'echo grown to $(stty size)' WINCH; echo re''ady\n", "ready\r\n")
	behind := len(y.shown.String())
	if err := unix.IoctlSetWinsize(int(y.ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 99}); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "the shell hears of it", func() bool {
		_, _ = y.ours.WriteString("\n") // a shell runs its trap when it has read a line
		return strings.Contains(y.shown.String()[behind:], "grown to 33 99\r\n")
	})
	// Ctrl-C interrupts what the shell runs, and Ctrl-Z stops it.
	mark := fmt.Sprintf("4%d%d", rank, os.Getpid())
	y.types("echo be''gins; sleep "+mark+"\n", "begins\r\n")
	testutil.Eventually(t, time.Minute, "it sleeps", func() bool { return at.runs(mark) })
	y.types("\x03", "$ ")
	y.types("echo status $?\n", "status 130\r\n")
	y.types("echo be''gins; sleep "+mark+"\n", "begins\r\n")
	testutil.Eventually(t, time.Minute, "it sleeps", func() bool { return at.runs(mark) })
	y.types("\x1a", "$ ")
	y.types("jobs\n", "Stopped")
	y.types("exit 7\n", "stopped jobs")                    // what it leaves behind is ended with it
	if strings.Contains(y.shown.String(), "job control") { // "can't access tty; job control turned off"
		t.Errorf("%q", y.shown.String())
	}
	y.types("exit 7\n", "")
	y.ends(7)
	testutil.Eventually(t, time.Minute, "nothing is left of it", func() bool { return !at.runs(mark) })

	// An end of file, and what ends by a signal.
	y = execInTerminal(t, at, nil, "--rank", fmt.Sprint(rank), "--", "cat")
	y.types("a line\n", "a line\r\na line\r\n")
	y.types("\x04", "")
	y.ends(0)
	y = execInTerminal(t, at, nil, "--rank", fmt.Sprint(rank), "--", "sh", "-c", "kill -9 $$")
	y.ends(128 + 9)
	y = execInTerminal(t, at, nil, "--rank", fmt.Sprint(rank), "--", "no-such-program")
	y.ends(127)
	y.shows(0, "\r\nmuster: hint:") // each at the beginning of its line

	// Errors that go to a file here come apart from what is shown.
	path := filepath.Join(t.TempDir(), "errors")
	errors, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Close() }()
	y = execInTerminal(t, at, errors, "--rank", fmt.Sprint(rank), "--", "sh", "-c", "test -t 1 && echo out; test -t 2 || echo err >&2")
	y.ends(0)
	y.shows(0, "out\r\n")
	if text, err := os.ReadFile(path); err != nil || string(text) != "err\n" {
		t.Errorf("%v: %q", err, text)
	}

	// The shell goes with who has typed into it: when the terminal is closed, and when muster exec is killed.
	for _, end := range []syscall.Signal{syscall.SIGHUP, syscall.SIGKILL} {
		mark := fmt.Sprintf("5%d%d%d", rank, end, os.Getpid())
		y = execInTerminal(t, at, nil, "--rank", fmt.Sprint(rank), "--", "sh", "-is", mark+"0")
		y.types("sleep "+mark+"\n", "sleep")
		testutil.Eventually(t, time.Minute, "it sleeps", func() bool { return at.runs(mark+"0") && at.runs(mark) })
		if err := y.cmd.Process.Signal(end); err != nil {
			t.Fatal(err)
		}
		<-y.ended
		testutil.Eventually(t, time.Minute, "the shell and what it runs have ended",
			func() bool { return !at.runs(mark) && !at.runs(mark+"0") })
	}
}

// TestExecTerminal has two nodes without a token on this machine, whose musters reach each other through their run
// directories: a shell on the other node, and one on the own, have the terminal of who calls it.
func TestExecTerminal(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 2)
	m := drive.NewMeet(t, drive.UntilStopped, append(flags, "--nproc-per-node=1")...)
	m.Native = true
	node := func(rank int) *drive.Job {
		return m.Start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--local-addr=127.0.0.%d", rank+1))
	}
	agents := []*drive.Job{node(0), node(1)}
	drive.UntilNodes(t, agents[0].RuntimeDir, 2)
	at := deskIn(t, agents[0].RuntimeDir)
	shellInTerminal(t, at, 1)
	y := execInTerminal(t, at, nil, "--rank", "0", "--", "sh", "-c", "test -t 0 && test -t 2 && echo here $RANK $TERM")
	y.shows(0, "here 0 vt52\r\n")
	y.ends(0)
	drive.Beside(t, agents[0].RuntimeDir, "stop", "--now").Expect(t, 0)
	for _, j := range agents {
		m.Ends(j, 143)
	}
}

// TestNodesHere has two nodes of a job on this machine find each other's ranks, and be one job for who lists jobs, while
// it runs and afterwards.
func TestNodesHere(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 2)
	m := drive.NewMeet(t, drive.UntilStopped, append(flags, "--nproc-per-node=1", "--run-id=both")...)
	m.Native, m.Env = true, []string{"XDG_RUNTIME_DIR=" + t.TempDir()}
	node := func(rank int) *drive.Job {
		return m.Start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--local-addr=127.0.0.%d", rank+1))
	}
	agents := []*drive.Job{node(0), node(1)}
	dir := strings.TrimPrefix(m.Env[0], "XDG_RUNTIME_DIR=")
	drive.UntilNodes(t, dir, 2)
	once := func(args ...string) {
		t.Helper()
		got := drive.Beside(t, dir, args...)
		if got.Status != 0 || strings.Count(got.Stdout, "both ") != 1 {
			t.Errorf("%q: status %d\n%s%s", args, got.Status, got.Stdout, got.Stderr)
		}
	}
	once("ps")
	for rank := range 2 {
		drive.Beside(t, dir, "exec", "--rank", fmt.Sprint(rank), "--run-id", "both", "--", "sh", "-c", "echo it is $RANK").
			Expect(t, 0, fmt.Sprintf("it is %d", rank))
	}
	for _, j := range agents { // by the process id of either
		drive.Beside(t, dir, "status", fmt.Sprint(j.Process.Pid)).Expect(t, 0, "2 workers on 2 nodes")
	}
	drive.Beside(t, dir, "stop", "both", "--now").Expect(t, 0)
	for _, j := range agents {
		m.Ends(j, 143)
	}
	once("ps", "-a")
}
