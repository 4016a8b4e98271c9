package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/launch/report"
	"muster/rendezvous"
)

// testCheck is what a check says of a node.
type testCheck struct {
	Out CheckOutcome
	// Err is the error that it ends with instead, Waits has it wait until its context ends.
	Err   string
	Waits bool
	// Program is a Python script that it runs, as the check program is run: from the template, where there is one, and
	// then as usual. What it says goes to a file of each. The check gives itself Limit for that, an hour where it is 0.
	Program string
	Limit   time.Duration
}

func (c testCheck) limit() time.Duration {
	if c.Limit > 0 {
		return c.Limit
	}
	return time.Hour
}

// testChecker says what the test wants, and writes down what it was asked.
type testChecker struct {
	n      *testNode
	checks map[int]testCheck
}

func (n *testNode) checker() Checker {
	if n.Checks == nil {
		return nil
	}
	return testChecker{n, n.Checks}
}

func (n *testNode) examiner() func(context.Context) Checker {
	if n.Examined == nil {
		return nil
	}
	return func(context.Context) Checker { return testChecker{n, n.Examined} }
}

func (c testChecker) Check(ctx context.Context, in CheckInput) (CheckOutcome, error) {
	f, err := os.OpenFile(c.n.path("checks"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return CheckOutcome{}, err
	}
	env, err := in.Env(1)
	_, writeErr := fmt.Fprintf(f, "round %d suspect %v rank1 %v\n", in.Round.Number, in.Suspect, slices.Contains(env, "LOCAL_RANK=1"))
	if err := errors.Join(err, writeErr, f.Close()); err != nil {
		return CheckOutcome{}, err
	}
	check := c.checks[in.Round.Number]
	if check.Waits {
		<-ctx.Done()
		return CheckOutcome{}, context.Cause(ctx)
	}
	if check.Program != "" {
		limited, cancel := context.WithTimeout(ctx, check.limit())
		defer cancel()
		warm := func(spec proc.Spec) (*proc.Process, error) {
			if p := in.Fork(limited, spec); p != nil {
				return p, nil
			}
			return in.Tree.Start(spec)
		}
		for name, start := range map[string]func(proc.Spec) (*proc.Process, error){"warm": warm, "usual": in.Tree.Start} {
			said, err := runProgram(in, start, env, check.Program)
			if err != nil {
				return CheckOutcome{}, err
			}
			if err := os.WriteFile(c.n.path(name), said, 0o600); err != nil {
				return CheckOutcome{}, err
			}
		}
	}
	switch check.Err {
	case "":
	case "lost":
		return CheckOutcome{}, rendezvous.ErrStoreClosed
	default:
		return CheckOutcome{}, errors.New(check.Err)
	}
	return check.Out, nil
}

// runProgram runs a script with a pipe at descriptor 3, another one at 4, and one for what it prints, and returns what
// came of both.
func runProgram(in CheckInput, start func(proc.Spec) (*proc.Process, error), env []string, script string) ([]byte, error) {
	var ends [6]*os.File
	for i := 0; i < len(ends); i += 2 {
		var err error
		if ends[i], ends[i+1], err = os.Pipe(); err != nil {
			return nil, err
		}
		defer ends[i].Close()
		defer ends[i+1].Close()
	}
	program := []string{script, "first", ""}
	p, err := start(proc.Spec{
		Path: in.Python, Args: append([]string{in.Python, "-u"}, program...), Program: program, Env: env, Dir: in.Dir, Label: "a program",
		Files: []*os.File{nil, ends[5], ends[5], ends[0], ends[3]},
	})
	for _, theirs := range []*os.File{ends[0], ends[3], ends[5]} {
		theirs.Close()
	}
	if err != nil {
		return nil, err
	}
	_, err = ends[1].WriteString("order")
	if err := errors.Join(err, ends[1].Close()); err != nil {
		return nil, err
	}
	said, err := io.ReadAll(ends[2]) // to the end, which comes when nobody else has it open
	printed, printErr := io.ReadAll(ends[4])
	if exit := p.Exit(); !exit.Success() {
		err = fmt.Errorf("the program %v: %s", exit, printed)
	}
	return append(said, printed...), errors.Join(err, printErr, in.Tree.Stop(context.Background(), proc.Ladder{}, p))
}

// checks waits until a node was asked n times, and returns what it was asked.
func (n *agentNode) checks(t *testing.T, times int) []string {
	t.Helper()
	var lines []string
	testutil.Eventually(t, time.Minute, fmt.Sprintf("%d checks of node %d", times, n.Index), func() bool {
		text, _ := os.ReadFile(n.path("checks"))
		lines = strings.Split(strings.TrimSpace(string(text)), "\n")
		return len(text) > 0 && len(lines) >= times
	})
	return lines
}

// again is what a check says to nodes that are fit, while others leave.
var again = testCheck{Out: CheckOutcome{Again: true}}

func leaves(status int) testCheck {
	return testCheck{Out: CheckOutcome{Status: status, Again: true, Message: "node node-1 (group rank 1) is at fault: its GPU is gone"}}
}

// TestCheckedNodeLeaves: a node at fault leaves before anything is started, and the others go on without it.
func TestCheckedNodeLeaves(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for _, status := range []int{errhint.Faulty, errhint.Straggler, errhint.Undecided} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			c := startAgents(t, 3, see, func(i int, n *testNode) {
				n.Checks = map[int]testCheck{0: again}
				if i == 1 {
					n.Checks[0] = leaves(status)
				}
				if i == 0 {
					out := n.Checks[0]
					out.Out.Faults = []NodeFault{{Node: "node-1", Reason: "its GPU is gone", Status: status}}
					n.Checks[0] = out
					n.OnNodeFault = `echo "$MUSTER_NODE $MUSTER_VERDICT $MUSTER_STATUS $MUSTER_REASON" >> $PWD/told; exit 3`
				}
			})
			res := c.ends(0, status, 0)
			if !strings.Contains(res[1].Report, "its GPU is gone") {
				t.Errorf("report: %q", res[1].Report)
			}
			for _, line := range c.lines(4) {
				if !strings.Contains(line, "of 4 try 0 round 1 group") {
					t.Errorf("%q was started", line)
				}
			}
			doc := readStatus(t, c.nodes[1].path("status.json"))
			want := map[int]job.Reason{
				errhint.Faulty: reasonFaulty, errhint.Straggler: reasonStraggler,
				errhint.Undecided: reasonUndecided,
			}[status]
			if doc.Phase != report.PhaseFailed || doc.Reason != want || doc.ExitStatus == nil || *doc.ExitStatus != status {
				t.Errorf("status: %+v", doc)
			}
			told, _ := os.ReadFile(c.nodes[0].path("told"))
			verdict := map[int]string{errhint.Faulty: "faulty", errhint.Straggler: "straggler", errhint.Undecided: "undecided"}[status]
			if want := fmt.Sprintf("node-1 %s %d its GPU is gone\n", verdict, status); string(told) != want {
				t.Errorf("the command was told %q, want %q", told, want)
			}
			c.nodes[0].wantLog(t, "meeting the other", "its GPU is gone")
			c.nodes[0].wantLog(t, "the command that is told of a node at fault failed", `"exit_code":3`)
		})
	}
}

// TestCheckUndecided ends the job on every node with the same status.
func TestCheckUndecided(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see, func(_ int, n *testNode) {
		n.Checks = map[int]testCheck{0: {Out: CheckOutcome{
			Status: errhint.Undecided, Everybody: true,
			Message: "either node-0 or node-1 is bad",
		}}}
	})
	for i, r := range c.ends(errhint.Undecided, errhint.Undecided) {
		if !strings.Contains(r.Report, "either node-0 or node-1 is bad") {
			t.Errorf("report of node %d: %q", i, r.Report)
		}
	}
	if _, err := os.Stat(filepath.Join(c.dir, "seen")); err == nil {
		t.Error("workers were started")
	}
}

// TestCheckBeforeEveryRound checks again after a failure, and knows on which node that was.
func TestCheckBeforeEveryRound(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 2, see+`test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0
test $RANK = 3 || exec sleep 100
exit 7`, func(_ int, n *testNode) {
		n.Restart.MaxRestarts, n.Checks = 1, map[int]testCheck{}
	})
	c.ends(0, 0)
	for i, n := range c.nodes {
		want := []string{"round 0 suspect false rank1 true", fmt.Sprintf("round 1 suspect %v rank1 true", i == 1)}
		if got := n.checks(t, 2); !slices.Equal(got, want) {
			t.Errorf("node %d was asked %q, want %q", i, got, want)
		}
	}
}

// TestStopDuringCheck: nothing is started, and the status is that of the signal.
func TestStopDuringCheck(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see, func(_ int, n *testNode) { n.Checks = map[int]testCheck{0: {Waits: true}} })
	c.nodes[0].checks(t, 1)
	c.nodes[1].checks(t, 1)
	if err := c.nodes[1].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.ends(0, errhint.FromSignal(int(syscall.SIGTERM)))
	for _, line := range c.lines(2) {
		if !strings.Contains(line, "of 2 try 0 round 1 group 0 of 1") {
			t.Errorf("%q was started", line)
		}
	}
}

// TestNodeLostDuringCheck: the round is over, and so is its check.
func TestNodeLostDuringCheck(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 2, see, func(_ int, n *testNode) { n.Checks = map[int]testCheck{0: {Waits: true}} })
	c.nodes[0].checks(t, 1)
	c.nodes[1].checks(t, 1)
	c.said(0, rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Rank: -1, Message: "node node-9 is lost"})
	c.ends(0, 0)
	for _, line := range c.lines(4) {
		if !strings.Contains(line, "try 0 round 1 group") {
			t.Errorf("%q was started", line)
		}
	}
}

// TestCheckFails: a node that cannot do its part leaves, and says why; the others go on.
func TestCheckFails(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see, func(i int, n *testNode) {
		n.Checks = map[int]testCheck{0: again}
		if i == 1 {
			n.Checks[0] = testCheck{Err: "the plan is nonsense"}
		}
	})
	if r := c.ends(0, errhint.Undecided); !strings.Contains(r[1].Report, "the plan is nonsense") {
		t.Errorf("report: %q", r[1].Report)
	}
	c.lines(2)
}

// TestCheckGivenUp: a check that fails because the store does not answer is no verdict on anybody; how the round ends
// is waited for.
func TestCheckGivenUp(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see, func(_ int, n *testNode) { n.Checks = map[int]testCheck{0: {Err: "lost"}} })
	c.nodes[0].checks(t, 1)
	c.nodes[1].checks(t, 1)
	c.said(0, rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "StoreLost", Rank: -1, Message: "the store is lost"})
	c.ends(0, 0)
}

// tellingProgram says what it finds: nothing of it may depend on where the process came from, but for what is imported.
const tellingProgram = `import os, stat, sys
warm = "decimal" in sys.modules
def kind(fd):
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return "closed"
    return "pipe" if stat.S_ISFIFO(mode) else "device" if stat.S_ISCHR(mode) else "else"
told = {
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", ""), "name": __name__, "file": __file__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "descriptors": [kind(fd) for fd in range(10)], "directory": os.getcwd(), "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
    "path": os.environ.get("PYTHONPATH"), "order": os.read(3, 100), "agent": os.getppid(), "template": os.environ.get("MUSTER_TEMPLATE"),
}
for name in sorted(os.environ):
    told["$" + name] = os.environ[name]
os.write(4, "".join("%s: %r\n" % item for item in told.items()).encode())
print("printed, and", "warm" if warm else "usual")
os._exit(0)
`

// TestCheckWarm: a program of the check is forked from the template that the workers come from, and finds itself as it
// would if it had been started. Where what was imported is in its way it is started.
func TestCheckWarm(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	if _, err := exec.LookPath("python3"); err != nil {
		testutil.Missing(t, "python3")
	}
	for module, warm := range map[string]bool{"decimal": true, "decimal, keeps": false} {
		t.Run(module, func(t *testing.T) {
			t.Parallel()
			code := t.TempDir()
			packages := filepath.Join(code, "site-packages")
			if err := os.Mkdir(packages, 0o700); err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(packages, "keeps.py"), "null = open('/dev/null')\n") // at descriptor 3
			writeFile(t, filepath.Join(code, "tell.py"), tellingProgram)
			writeFile(t, filepath.Join(code, "train.py"), "import "+module+"\n")
			c := startAgents(t, 1, "", func(_ int, n *testNode) {
				n.Python, n.Environ = filepath.Join(code, "train.py"), []string{"PYTHONPATH=" + packages}
				n.Checks = map[int]testCheck{0: {Program: filepath.Join(code, "tell.py")}}
			})
			c.ends(0)
			read := func(name string) string {
				text, err := os.ReadFile(c.nodes[0].path(name))
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			want := read("usual")
			if !strings.Contains(want, "printed, and usual") || !strings.Contains(want, "order: b'order'") ||
				!strings.Contains(want, "$LOCAL_RANK: '1'") {
				t.Errorf("the program says:\n%s", want)
			}
			if warm {
				want = strings.Replace(want, "printed, and usual", "printed, and warm", 1)
			} else {
				c.nodes[0].wantLog(t, "the check's processes start as usual", "descriptor 3 is open")
			}
			if diff := cmp.Diff(want, read("warm")); diff != "" {
				t.Errorf("what a program says that was forked, where that can be (-want +got):\n%s", diff)
			}
			c.nodes[0].wantLog(t, "worker forked from the template") // the check has not cost the workers theirs
		})
	}
}

// TestCheckDoesNotWaitForTheTemplateForItsWholeTime: workers wait as long as they were told to; the check has to be
// over before.
func TestCheckDoesNotWaitForTheTemplateForItsWholeTime(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	if _, err := exec.LookPath("python3"); err != nil {
		testutil.Missing(t, "python3")
	}
	code := t.TempDir()
	packages, over := filepath.Join(code, "site-packages"), filepath.Join(code, "over")
	if err := os.Mkdir(packages, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(packages, "slow.py"), "import os, time\nwhile not os.path.exists("+strconv.Quote(over)+
		"): time.sleep(0.1)\n")
	writeFile(t, filepath.Join(code, "tell.py"), tellingProgram)
	writeFile(t, filepath.Join(code, "train.py"), "import slow\n")
	c := startAgents(t, 1, "", func(_ int, n *testNode) {
		n.Python, n.Environ = filepath.Join(code, "train.py"), []string{"PYTHONPATH=" + packages}
		n.Checks = map[int]testCheck{0: {Program: filepath.Join(code, "tell.py"), Limit: 8 * time.Second}}
	})
	testutil.Eventually(t, time.Minute, "the program of the check has run", func() bool {
		_, err := os.Stat(c.nodes[0].path("warm"))
		return err == nil
	})
	writeFile(t, over, "")
	c.ends(0)
	c.nodes[0].wantLog(t, "worker forked from the template")
}
