package report

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/cmd/console"
	"muster/internal/testutil"
	"muster/test/drive"
)

// ownLine is a line of our log as text.
var ownLine = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d (debug|info |warn |error) .*$`)

// fourNodes writes a spec for simulated nodes.
func fourNodes(t *testing.T) string {
	t.Helper()
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(spec, []byte("version: 1\ndefaults: {count: 1, model: NVIDIA H100 80GB HBM3}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestLogOfAJobThatGoesWell: each launcher of a job that goes well says three lines at most, all of them text; as JSON
// the same.
func TestLogOfAJobThatGoesWell(t *testing.T) {
	meet := []string{"run", "--run-id", "x", "--nnodes", "2", "--rdzv", "muster://127.0.0.1:"}
	for name, c := range map[string]struct {
		args      []string
		launchers int
	}{
		"one worker":  {[]string{"run", "--", "echo", "hi"}, 1},
		"one node":    {[]string{"run", "-n", "2", "--", "echo", "hi"}, 1},
		"torchrun":    {[]string{"torchrun", "--standalone", "--nproc-per-node=2", "--no-python", "echo", "hi"}, 1},
		"hosts":       {[]string{"run", "--hosts", "localhost:1,127.0.0.1:1", "--", "echo", "hi"}, 1},
		"two agents":  {meet, 2},
		"a warm node": {[]string{"run", "-n", "2", "--warm", "json", "--", "python3", "-c", "print('hi')"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.launchers == 2 {
				c.args = append(slices.Clone(meet[:len(meet)-1]), meet[len(meet)-1]+drive.FreePort(t), "--", "echo", "hi")
			}
			for _, format := range []string{"auto", "json"} {
				var jobs []*drive.Job
				for range c.launchers {
					jobs = append(jobs, drive.Start(t, []string{drive.AsText}, append([]string{"--log-format", format}, c.args...)...))
				}
				for _, j := range jobs {
					got := j.End()
					lines := strings.Split(strings.TrimSuffix(got.Stderr, "\n"), "\n")
					if got.Stderr == "" {
						lines = nil
					}
					if got.Status != 0 || len(lines) > 3 {
						t.Errorf("status %d, with %d lines, want at most 3:\n%s", got.Status, len(lines), got.Stderr)
					}
					for _, line := range lines {
						if format == "json" != json.Valid([]byte(line)) || format == "auto" && !ownLine.MatchString(line) ||
							strings.ContainsRune(line, '\x1b') {
							t.Errorf("a line of --log-format %s: %q", format, line)
						}
					}
				}
			}
		})
	}
}

// TestEveryLineIsJSON: with --log-format json all that muster says on standard error is JSON, why a job has failed or was
// refused, too; what workers say stays as it is.
func TestEveryLineIsJSON(t *testing.T) {
	const failing = `test $RANK = 1 || exec sleep 100; echo no more disk >&2; exit 4`
	fail := []string{"--", "sh", "-c", failing}
	for name, c := range map[string]struct {
		environ, args []string
		status        int
		message, hint string // in the line with a status
		rootCause     bool
	}{
		"a worker fails": {
			[]string{drive.AsText},
			slices.Concat([]string{"run", "--log-format", "json", "-n", "2"}, fail), 4,
			"rank 1", "", true,
		},
		"on hosts": {
			[]string{drive.AsText},
			slices.Concat([]string{"run", "--log-format=json", "--hosts", "localhost:1,127.0.0.1:1"}, fail), 4,
			"rank 1", "", true,
		},
		"on simulated nodes": {
			nil,
			slices.Concat([]string{"run", "--simulate-nodes", "2", "--nnodes", "2", "--accelerator", "fake:" + fourNodes(t)},
				fail), 4, "rank 1", "", true,
		},
		"torchrun": {
			[]string{drive.AsText},
			[]string{
				"--log-format", "json", "torchrun", "--standalone", "--nproc-per-node=2", "--no-python", "sh",
				"-c", failing,
			},
			4, "rank 1", "", true,
		},
		"the deadline": {
			nil,
			[]string{"run", "--active-deadline", "1s", "--", "sleep", "100"},
			124,
			"deadline of 1s reached", "", false,
		},
		"an unknown flag": {
			[]string{drive.AsText},
			[]string{"run", "--log-format", "json", "--nope", "--", "true"},
			2,
			"--nope", "", false,
		},
		"a misspelt own flag": {
			[]string{drive.AsText},
			[]string{"--log-format=json", "--warn", "torchrun", "t.py"},
			2,
			"--warn", "", false,
		},
		"torchrun's own errors": {
			[]string{drive.AsText},
			[]string{"--log-format=json", "torchrun", "--nproc-per-node=2"},
			2,
			"without a training script", "", false,
		},
		"a file that is not there": {nil, []string{"run", "--", "python3", "nowhere.py"}, 127, "nowhere.py", "working directory", false},
		"another command":          {nil, []string{"ckpt", "ls", "/nowhere"}, 2, "/nowhere", "", false},
		"hosts that are not there": {
			nil,
			[]string{"run", "--hosts", "localhost:1,127.0.0.1:1", "--remote-dir", "/nowhere", "--", "true"},
			2,
			"/nowhere", "", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := drive.Start(t, c.environ, c.args...)
			got := j.End()
			if got.Status != c.status {
				t.Errorf("status %d, want %d", got.Status, c.status)
			}
			told := 0
			for line := range strings.Lines(j.Err.String()) {
				if strings.HasSuffix(line, "no more disk\n") && !strings.HasPrefix(line, "{") {
					continue // a worker's
				}
				var said struct {
					Level, Time, Message, Hint string
					Status                     *int
					RootCause                  *struct {
						Rank      *int
						LastLines []string
					}
				}
				if err := json.Unmarshal([]byte(line), &said); err != nil || said.Message == "" || said.Time == "" {
					t.Errorf("%q: %v", line, err)
				}
				if said.Status == nil {
					continue
				}
				told++
				if said.Level != "error" || *said.Status != c.status || !strings.Contains(said.Message, c.message) ||
					!strings.Contains(said.Hint, c.hint) {
					t.Errorf("not as it is: %s", line)
				}
				if r := said.RootCause; c.rootCause != (r != nil) || r != nil &&
					(*r.Rank != 1 || !slices.Contains(r.LastLines, "no more disk")) {
					t.Errorf("root cause: %s", line)
				}
			}
			if told == 0 {
				t.Errorf("nobody has said why:\n%s", j.Err.String())
			}
		})
	}
}

// TestLogSaysOnce: what four simulated nodes say is said once, with their names; as JSON each says it.
func TestLogSaysOnce(t *testing.T) {
	t.Parallel()
	spec := fourNodes(t)
	args := []string{"run", "--simulate-nodes", "4", "--nnodes", "4", "--", "echo", "hi"}
	got := drive.Run(t, []string{drive.AsText, "MUSTER_FAKE=" + spec}, args...)
	lines := ownLine.FindAllString(got.Stderr, -1)
	takePart := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.Contains(line, "takes part in a round") })
	if !strings.Contains(got.Stderr, "accelerator=fake") {
		t.Errorf("nobody said that this is a rehearsal:\n%s", got.Stderr)
	}
	if got.Status != 0 || len(takePart) != 1 || !strings.HasSuffix(takePart[0], " [node-0, node-1, node-2, node-3]") {
		t.Errorf("status %d, %q", got.Status, takePart)
	}
	if len(lines) > 3 || strings.Count(got.Stderr, "\n") != len(lines) || strings.Contains(got.Stderr, "{") ||
		strings.Count(got.Stdout, "hi\n") != 4 {
		t.Errorf("%d lines:\n%s%s", len(lines), got.Stderr, got.Stdout)
	}
	got = drive.Run(t, []string{"MUSTER_FAKE=" + spec}, args...)
	nodes := map[string]bool{}
	for line := range strings.Lines(got.Stderr) {
		var entry struct{ Agent, Message string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if strings.Contains(entry.Message, "takes part in a round") {
			nodes[entry.Agent] = true
		}
	}
	if len(nodes) != 4 {
		t.Errorf("as JSON of %v:\n%s", nodes, got.Stderr)
	}
}

// TestRestartIsToldOnce: a restart of several nodes and its root cause are a line each, in which the node is named and
// counted once.
func TestRestartIsToldOnce(t *testing.T) {
	const failing = `test $MUSTER_ROUND = 0 || exit 0; test $RANK = 1 || exec sleep 100; echo no more disk; exit 4`
	spec := fourNodes(t)
	for name, c := range map[string]struct {
		args []string
		node string // that is named
	}{
		"hosts": {[]string{"--hosts", "localhost:1,127.0.0.1:1"}, `, node 127\.0\.0\.1`},
		"simulated": {
			[]string{"--simulate-nodes", "2", "--nnodes", "2", "--accelerator", "fake:" + spec},
			`, node-[01]`,
		}, // rank 1 is who comes later
		"one node": {[]string{"-n", "2"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := drive.Run(t, []string{drive.AsText},
				slices.Concat([]string{"run", "--max-restarts", "1"}, c.args, []string{"--", "sh", "-c", failing})...)
			for message, fields := range map[string]string{
				"restarting the workers":    "rank 1 ended with status 4" + c.node + ", restart 1 of at most 1",
				"root cause of the restart": "rank 1, exit 4" + c.node + ", last line: no more disk",
			} {
				want := regexp.MustCompile("(?m)warn  " + message + ": " + fields + `( \[.*, .*\])?$`)
				if len(want.FindAllString(got.Stderr, -1)) != 1 || strings.Count(got.Stderr, message) != 1 {
					t.Errorf("not once, and as %q:\n%s", want, got.Stderr)
				}
			}
			if got.Status != 0 || strings.Count(got.Stderr, "restart 1") != 1 || strings.Contains(got.Stderr, "host ") {
				t.Errorf("status %d\n%s", got.Status, got.Stderr)
			}
		})
	}
}

// TestLogFormatRefused refuses a format that there is not, from wherever it comes.
func TestLogFormatRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  string
		args []string
		want string
	}{
		{drive.AsText, []string{"run", "--log-format", "xml", "--", "true"}, "--log-format xml: choose one of auto, text, json"},
		{console.FormatVariable + "=xml", []string{"run", "--", "true"}, "MUSTER_LOG_FORMAT=xml: choose one of auto, text, json"},
		{
			console.FormatVariable + "=xml",
			[]string{"store", "--bind", "127.0.0.1:0"},
			"MUSTER_LOG_FORMAT=xml: choose one of auto, text, json",
		},
	} {
		if got := drive.Run(t, []string{c.env}, c.args...); got.Status != 2 || !strings.Contains(got.Stderr, c.want) {
			t.Errorf("%s %v: status %d\n%s", c.env, c.args, got.Status, got.Stderr)
		}
	}
}

// TestPrefixes: muster run puts the rank in front, with hosts the node, too; torchrun's tee has torchrun's prefix,
// and that of launchers which have none is ours.
func TestPrefixes(t *testing.T) {
	hostfile := filepath.Join(t.TempDir(), "hostfile")
	if err := os.WriteFile(hostfile, []byte("localhost slots=1\n127.0.0.1 slots=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ args, want []string }{
		"ranks":    {[]string{"run", "-n", "2"}, []string{"[0] hi", "[1] hi"}},
		"one host": {[]string{"run", "--hosts", "localhost:2"}, []string{"[localhost 0] hi", "[localhost 1] hi"}},
		"hosts":    {[]string{"run", "--hosts", "localhost:1,127.0.0.1:1"}, []string{"[127.0.0.1 1] hi", "[localhost 0] hi"}},
		"deepspeed": {[]string{
			"--tee", "3", "deepspeed", "--num_gpus", "2", "--master_port", drive.FreePort(t), "--no_local_rank",
			"--no_python",
		}, []string{"[0] hi", "[1] hi"}},
		"deepspeed, hosts": {[]string{
			"--tee", "3", "deepspeed", "--hostfile", hostfile, "--master_port", drive.FreePort(t), "--no_local_rank",
			"--no_python",
		}, []string{"[127.0.0.1 1] hi", "[localhost 0] hi"}},
		"mpirun, hosts": {
			[]string{"--tee", "3", "mpirun", "-np", "2", "--host", "localhost,127.0.0.1"},
			[]string{"[127.0.0.1 1] hi", "[localhost 0] hi"},
		},
		"own": {[]string{
			"run", "-n", "2", "--log-line-prefix-template", "${hostname}/$local_rank> ", "--hosts",
			"localhost:2",
		}, []string{"localhost/0> hi", "localhost/1> hi"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.args[0] == "run" {
				c.args = append(c.args, "--")
			}
			got := drive.Run(t, nil, append(c.args, "echo", "hi")...)
			lines := slices.Sorted(strings.Lines(got.Stdout))
			if want := strings.Join(c.want, "\n") + "\n"; got.Status != 0 || strings.Join(lines, "") != want {
				t.Errorf("status %d, %q, want %q\n%s", got.Status, lines, want, got.Stderr)
			}
		})
	}
	got := drive.Run(t, nil, "torchrun", "--standalone", "--nproc-per-node=2", "--tee=3", "--no-python", "echo", "hi")
	if lines := slices.Sorted(strings.Lines(got.Stdout)); strings.Join(lines, "") != "[default0]:hi\n[default1]:hi\n" {
		t.Errorf("torchrun: %q", lines)
	}
}

// TestPrefixesOfSimulatedNodes: a worker's line has one prefix, as on hosts.
func TestPrefixesOfSimulatedNodes(t *testing.T) {
	environ := []string{"MUSTER_FAKE=" + fourNodes(t)}
	for name, c := range map[string]struct {
		args []string
		want string // of each line
	}{
		"ours": {nil, `^\[node-[01] [01]\] hi$`},
		"own":  {[]string{"--log-line-prefix-template", "${hostname}/$local_rank> "}, `^node-[01]/0> hi$`},
		"tee":  {[]string{"--tee", "3"}, `^\[node-[01] [01]\] hi$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := drive.Run(t, environ,
				slices.Concat([]string{"run", "--simulate-nodes", "2", "--nnodes", "2"}, c.args, []string{"--", "echo", "hi"})...)
			lines := strings.Split(strings.TrimSuffix(got.Stdout, "\n"), "\n")
			bad := slices.ContainsFunc(lines, func(line string) bool { return !regexp.MustCompile(c.want).MatchString(line) })
			if got.Status != 0 || len(lines) != 2 || bad {
				t.Errorf("status %d, %q, want %s\n%s", got.Status, lines, c.want, got.Stderr)
			}
		})
	}
}

// TestStopIsTold: the first signal says what happens, how long it may take, and what a second one does; who had to be
// killed is named.
func TestStopIsTold(t *testing.T) {
	const stubborn = `[ $RANK = 0 ] || trap '' TERM; echo ready; while :; do sleep 0.05; done`
	for name, c := range map[string]struct {
		args         []string
		stop, killed string
	}{
		"one node": {
			[]string{"-n", "3"},
			"warn  stopping the workers: SIGTERM, SIGKILL in 1 s, or at once with a second signal\n",
			`which had not ended in time: ranks 1, 2, process ids \d+, \d+, node \S+\n`,
		},
		"hosts": {
			[]string{"--hosts", "localhost:1,127.0.0.1:1"},
			"warn  stopping the workers of 2 nodes with SIGTERM: SIGKILL in 1 s, or with another signal at once",
			`which had not ended in time: rank 1, process id \d+ \[127.0.0.1\]\n`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := drive.Start(t, []string{drive.AsText},
				slices.Concat([]string{"run", "--grace", "1s"}, c.args, []string{"--", "sh", "-c", stubborn})...)
			workers := map[string]int{"one node": 3, "hosts": 2}[name]
			testutil.Eventually(t, time.Minute, "the workers run", func() bool { return strings.Count(j.Out.String(), "ready") == workers })
			j.Signal(syscall.SIGTERM)
			got := j.End()
			if got.Status != 143 || strings.Count(got.Stderr, "stopping the workers") != 1 || !strings.Contains(got.Stderr, c.stop) ||
				!regexp.MustCompile(c.killed).MatchString(got.Stderr) {
				t.Errorf("status %d\n%s", got.Status, got.Stderr)
			}
		})
	}
}

// TestKilledBeforeARestart: workers that had to be killed before a restart are named as at the end of a job.
func TestKilledBeforeARestart(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		killed string
	}{
		"one node": {[]string{"-n", "3"}, `ranks 1, 2, process ids (\d+), (\d+), node \S+\n`},
		"hosts":    {[]string{"--hosts", "localhost:1,127.0.0.1:1"}, `rank 1, process id (\d+) \[127.0.0.1\]\n`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Rank 0 fails in the first round, when the others are ready; these do not end when they are asked to.
			dir, others := t.TempDir(), map[string]string{"one node": "2", "hosts": "1"}[name]
			script := `[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0
if [ $RANK = 0 ]; then while [ $(ls "$1" | wc -l) -lt "$2" ]; do sleep 0.05; done; exit 3; fi
trap '' TERM; echo $$ > "$1/$RANK"; while :; do sleep 0.05; done`
			args := slices.Concat([]string{"run", "--grace", "1s", "--max-restarts", "1"}, c.args,
				[]string{"--", "sh", "-c", script, "sh", dir, others})
			got := drive.Run(t, []string{drive.AsText}, args...)
			named := regexp.MustCompile(`workers killed with SIGKILL, which had not ended in time: ` +
				c.killed).FindStringSubmatch(got.Stderr)
			if got.Status != 0 || len(named) == 0 {
				t.Fatalf("status %d\n%s", got.Status, got.Stderr)
			}
			for i, pid := range named[1:] {
				if wrote, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i+1))); err != nil || strings.TrimSpace(string(wrote)) != pid {
					t.Errorf("rank %d was process %s (%v), said is %s", i+1, wrote, err, pid)
				}
			}
		})
	}
}

// TestBreakpointOnATerminal: a job's only worker has the terminal to read from, unless somebody wants that it has not.
func TestBreakpointOnATerminal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stdin, want string
		status      int
	}{{"", "it is 42", 0}, {"--stdin=null", "BdbQuit", 1}} {
		program, screen := testutil.OpenTerminal(t)
		args := append([]string{"run", "-n", "1"}, strings.Fields(c.stdin)...)
		cmd := exec.Command("muster", append(args, "--", "python3", "-c", "x = 42; breakpoint(); print('end')")...)
		cmd.Env = append(drive.CleanEnviron(), "XDG_RUNTIME_DIR="+t.TempDir(), "TERM=linux")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		shown, read := testutil.ReadScreen(screen)
		if _, err := screen.WriteString("p f'it is {x}'\nc\n"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			t.Fatalf("%q: it has not ended:\n%s", c.stdin, shown.String())
		}
		_ = program.Close()
		<-read
		if said := shown.String(); cmd.ProcessState.ExitCode() != c.status ||
			!strings.Contains(strings.ReplaceAll(said, "f'it is {x}'", ""), c.want) {
			t.Errorf("%q: status %d, want %d and %q:\n%s", c.stdin, cmd.ProcessState.ExitCode(), c.status, c.want, said)
		}
	}
}

// TestNodeWaitsOnATerminal: a node that waits for another one says so in a line that changes, and the job's output
// begins where it stood.
func TestNodeWaitsOnATerminal(t *testing.T) {
	t.Parallel()
	program, screen := testutil.OpenTerminal(t)
	shown, read := testutil.ReadScreen(screen)
	args := []string{
		"torchrun", "--nnodes=2", "--rdzv-id=x", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:" + drive.FreePort(t),
		"--no-python", "echo", "hi",
	}
	cmd := exec.Command("muster", args...)
	cmd.Env = append(drive.CleanEnviron(), "XDG_RUNTIME_DIR="+t.TempDir(), "TERM=linux", "NO_COLOR=1", drive.AsText)
	cmd.Stdout, cmd.Stderr = program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no Pdeathsig: it comes when the thread ends that has started it
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	testutil.Eventually(t, time.Minute, "it waits", func() bool { return strings.Contains(shown.String(), "waiting for nodes, ") })
	other := drive.Run(t, nil, args...)
	err := cmd.Wait()
	_ = program.Close()
	<-read
	lines, states := testutil.ScreenLines(shown.String())
	if err != nil || other.Status != 0 || len(states) == 0 || !slices.Contains(lines, "hi") ||
		strings.Contains(strings.Join(lines, "\n"), "waiting") {
		t.Errorf("%v, %d: lines %q, states %q\n%s", err, other.Status, lines, states, other.Stderr)
	}
}

// TestProgressBarsOfWorkers: bars of several ranks cost a line each where nobody sees them moving, and files have all
// of them.
func TestProgressBarsOfWorkers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const bar = `i=0; while [ $i -lt 30 ]; do printf '\r%d%%' $i >&2; i=$((i+1)); sleep 0.03; done; printf '\r100%%\n' >&2`
	for _, hosts := range []string{"--nproc-per-node=2", "--hosts=localhost:2"} {
		got := drive.Run(t, nil, "run", hosts, "--tee", "3", "--log-dir", dir, "--", "sh", "-c", bar)
		lines := slices.Sorted(strings.Lines(got.Stderr))
		if got.Status != 0 || len(lines) != 2 || !strings.HasSuffix(lines[0], "0] 100%\n") || !strings.HasSuffix(lines[1], "1] 100%\n") {
			t.Errorf("%s: status %d, %q", hosts, got.Status, lines)
		}
	}
	got := drive.Run(t, nil, "torchrun", "--nproc-per-node", "2", "--no-python", "sh", "-c", bar)
	if got.Status != 0 || got.Stderr != "100%\n100%\n" {
		t.Errorf("torchrun: status %d, %q", got.Status, got.Stderr)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "attempt_0", "*", "stderr.log"))
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		if data, err := os.ReadFile(file); err != nil || bytes.Count(data, []byte("\r")) != 31 {
			t.Errorf("%s: %q, %v", file, data, err)
		}
	}
}
