package steer

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/test/drive"
)

// TestDebugMode enters two ranks of a job whose workers wait, by muster exec and by a shell.
func TestDebugMode(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	odd := "it's \"odd\" $HOME\n\\ \xff"
	j := drive.Start(t, []string{"ODD=" + odd}, "run", "-n", "2", "--run-id", "dbg/1", "--debug-mode", "--log-dir", logs,
		"--env", "ODD", "--env", "API_TOKEN=hunter2", "--", "sh", "-c", "echo $RANK")
	files := func() []string {
		found, _ := filepath.Glob(filepath.Join(logs, "*", "attempt_0", "env", "rank*"))
		return found
	}
	inside := func(rank string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "muster", append([]string{"exec", "--rank", rank}, args...)...)
		cmd.Env = append(append(drive.CleanEnviron(), drive.Apart(j.RuntimeDir)...), "MINE=1")
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	testutil.Eventually(t, 30*time.Second, "both ranks can be entered", func() bool {
		_, err0 := inside("0", "--", "true")
		_, err1 := inside("1", "--", "true")
		return len(files()) == 2 && err0 == nil && err1 == nil
	})
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	show := `printf '%s\n' "$RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $(pwd -P) $API_TOKEN $ODD"`
	ports := map[string]bool{}
	for i, rank := range []string{"0", "1"} {
		info, err := os.Stat(files()[i])
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("rank %s: mode %v, %v", rank, info.Mode(), err)
		}
		byExec, err := inside(rank, "--run-id", "dbg/1", "--", "sh", "-c", show)
		if err != nil {
			t.Errorf("rank %s: %v: %s", rank, err, byExec)
		}
		byShell, err := exec.CommandContext(t.Context(), "env", "-i", "PATH="+os.Getenv("PATH"), "sh", "-c",
			". "+files()[i]+" && "+show).CombinedOutput()
		if err != nil || string(byShell) != byExec {
			t.Errorf("rank %s: a shell has %q, %v; muster exec %q", rank, byShell, err, byExec)
		}
		words := strings.SplitN(byExec, " ", 6)
		if len(words) != 6 || words[0] != rank+"/2" || words[1] != rank || words[3] != here || words[4] != "hunter2" ||
			words[5] != odd+"\n" {
			t.Errorf("rank %s: %q", rank, words)
			continue
		}
		ports[words[2]] = true
	}
	if len(ports) != 1 {
		t.Errorf("the ranks would meet at %v", ports)
	}
	// The whole environment is the worker's, and no more: what muster exec itself was given is gone.
	list, err := inside("1", "--", "env", "-0")
	worker, readErr := os.ReadFile(files()[1])
	if err != nil || readErr != nil || strings.Count(list, "\x00") < 20 {
		t.Errorf("%v, %v: %q", err, readErr, list)
	}
	for entry := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		if name, _, _ := strings.Cut(entry, "="); !strings.Contains(string(worker), "export "+name+"=") {
			t.Errorf("%s is not the worker's", name)
		}
	}
	if out, err := inside("1", "--attempt", "7", "--", "sh", "-c", "echo $TORCHELASTIC_RESTART_COUNT $RANK"); err != nil || out != "7 1\n" {
		t.Errorf("another attempt: %v: %q", err, out)
	}
	for want, args := range map[string][]string{
		"only 0, 1":                     {"--", "true"},
		"no job that runs here matches": {"--run-id", "other", "--", "true"},
	} {
		if out, err := inside("2", args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("rank 2 %q: %v: %s", args, err, out)
		}
	}
	if err := j.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	got := j.End()
	if got.Status != 130 || strings.Contains(got.Stderr, "hunter2") {
		t.Errorf("status %d:\n%s", got.Status, got.Stderr)
	}
	var told struct{ Env, Try, Or string }
	for line := range strings.Lines(got.Stderr) {
		if strings.Contains(line, "debug mode: each rank") {
			if err := json.Unmarshal([]byte(line), &told); err != nil {
				t.Error(err)
			}
		}
	}
	if !strings.Contains(told.Try, told.Env+"/rank0 && sh -c") || !strings.HasPrefix(told.Or, "muster exec --rank 0 --dir "+j.RuntimeDir) {
		t.Errorf("told %+v:\n%s", told, got.Stderr)
	}
	if left := files(); len(left) > 0 {
		t.Errorf("environments are left: %q", left)
	}
	if out, err := inside("0", "--", "true"); err == nil || !strings.Contains(out, "no job of yours runs here") {
		t.Errorf("after the end: %v: %s", err, out)
	}
}

// TestExecEnded: events say how commands in the place of a rank on this machine have ended, and of one that goes on they
// say nothing.
func TestExecEnded(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "-n", "1", "--run-id", "entered", "--", "sh", "-c", drive.UntilStopped)
	drive.UntilRanks(t, j.RuntimeDir, 1)
	drive.Beside(t, j.RuntimeDir, "exec", "--rank", "0", "--", "sh", "-c", "exit 7").Expect(t, 7)
	drive.Beside(t, j.RuntimeDir, "exec", "--rank", "0", "--", "no-such-program").Expect(t, 127)
	killed := exec.CommandContext(t.Context(), "muster", "exec", "--rank", "0", "--", "sh", "-c", "echo ready; read line")
	goesOn := exec.CommandContext(t.Context(), "muster", "exec", "--rank", "0", "--", "cat")
	for _, c := range []*exec.Cmd{killed, goesOn} {
		c.Env = append(drive.CleanEnviron(), drive.Apart(j.RuntimeDir)...)
		in, err := c.StdinPipe()
		var said io.Reader
		if err == nil {
			said, err = c.StdoutPipe()
		}
		if err == nil {
			err = c.Start()
		}
		if err == nil && c == goesOn {
			_, err = in.Write([]byte("ready"))
		}
		if err == nil { // it is the command, and no muster any more
			_, err = said.Read(make([]byte, 1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = killed.Process.Kill()
	_ = killed.Wait() // its status says it
	want := []string{"sh -c 'exit 7': 7", "no-such-program: 127", "sh -c 'echo ready; read line': 137 SIGKILL"}
	if !testutil.KernelIs(t, 6, 15) {
		want = []string{"sh -c 'exit 7': not known", "no-such-program: not known", "sh -c 'echo ready; read line': not known"}
	}
	var ended []string
	testutil.Eventually(t, time.Minute, "three ends are told", func() bool {
		ended = nil
		for line := range strings.Lines(drive.Beside(t, j.RuntimeDir, "events", "-o", "json").Stdout) {
			var e control.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if e.Type != control.ExecEnded {
				continue
			}
			status := "not known"
			if e.ExitCode != nil {
				status = strings.TrimSpace(fmt.Sprint(*e.ExitCode, " ", e.Signal))
			}
			ended = append(ended, e.Message+": "+status)
			if e.By == nil || e.PID != e.By.PID || e.Rank == nil || *e.Rank != 0 {
				t.Errorf("%s", line)
			}
		}
		return len(ended) >= len(want)
	})
	slices.Sort(want)
	slices.Sort(ended) // on a busy machine two may be seen to end at one moment
	if diff := cmp.Diff(want, ended); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	drive.Beside(t, j.RuntimeDir, "stop", "--now").Expect(t, 0)
	j.End().Expect(t, 143)
	_ = goesOn.Process.Kill()
	if err := goesOn.Wait(); goesOn.ProcessState.ExitCode() != -1 { // it has outlived the job
		t.Errorf("it has ended before: %v", err)
	}
}
