package report

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/launch/hosts"
	"muster/test/drive"
)

// The launcher's status file is of the whole world, and the tasks of workers that muster has stopped say so.
func TestStatusOfTheWorld(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "status.json")
	got := drive.Run(t, nil, "--status-file", path, "run", "--hosts", "localhost,127.0.0.1,127.0.0.2", "--grace", "5s", "--",
		"sh", "-c", `[ "$RANK" != 2 ] || exit 4; exec sleep 100`)
	if got.Status != 4 {
		t.Fatalf("status %d, want 4\n%s", got.Status, got.Stderr)
	}
	w, four := drive.ReadWorld(t, path), 4
	want := []drive.StatusTask{
		{Node: "localhost", Ranks: "0", Phase: "Stopped"},
		{Node: "127.0.0.1", Ranks: "1", Phase: "Stopped"},
		{Node: "127.0.0.2", Ranks: "2", Phase: "Failed", ExitCode: &four},
	}
	if diff := cmp.Diff(want, w.Tasks); diff != "" {
		t.Errorf("tasks (-want +got):\n%s", diff)
	}
	if w.Counts["stopped"] != 2 || w.Counts["failed"] != 1 || w.Phase != "Failed" || w.Reason != "WorkerFailed" || *w.ExitStatus != 4 {
		t.Errorf("%+v", w)
	}
}

// The report of a failure says what people look for, and nothing that says nothing.
func TestReportSaysWhatPeopleLookFor(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	for _, c := range []struct {
		args []string
		want []string
	}{
		{
			[]string{"run", "-n", "2", "--max-restarts", "1", "--log-dir", logs, "--tee", "3"},
			[]string{"restarts  : 1 of 1 used: none is left", "logs      : " + logs},
		},
		{
			[]string{"run", "-n", "2", "--max-restarts", "5", "--fatal-exit-codes", "3"},
			[]string{"restarts  : 0 of 5 used: status 3 is fatal", "on the console only"},
		},
		{
			[]string{"torchrun", "--standalone", "--no-python"},
			[]string{"restarts  : none was asked for", "Root Cause (first observed failure):"},
		},
	} {
		got := drive.Run(t, []string{drive.AsText, "MUSTER_RESTART_DELAY=0s"}, append(c.args, "sh", "-c", "exit 3")...)
		if got.Status != 3 {
			t.Errorf("%q: status %d, want 3\n%s", c.args, got.Status, got.Stderr)
		}
		for _, w := range c.want {
			if !strings.Contains(got.Stderr, w) {
				t.Errorf("%q: the report lacks %q:\n%s", c.args, w, got.Stderr)
			}
		}
		for _, filler := range []string{"NO_OTHER_FAILURES", "<N/A>", "To enable traceback"} {
			if strings.Contains(got.Stderr, filler) {
				t.Errorf("%q: the report has %q:\n%s", c.args, filler, got.Stderr)
			}
		}
	}
}

// A worker that muster's own watchdog has ended was not killed by something outside the job.
func TestWatchdogIsNamed(t *testing.T) {
	t.Parallel()
	script := `echo '{"version": 1, "pid": '$$', "scope_id": "save step", "expiration_time": 1.5, "signal": 9}' ` +
		`> "$TORCHELASTIC_TIMER_FILE"; exec sleep 100`
	got := drive.Run(t, []string{"TORCHELASTIC_ENABLE_FILE_TIMER=1"}, "run", "-n", "2", "--", "sh", "-c", script)
	if got.Status != 137 || strings.Contains(got.Stderr, "something outside the job") ||
		!strings.Contains(got.Stderr, "watchdog has sent the signal") ||
		!strings.Contains(got.Stderr, `did not release its timer "save step"`) {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
}

// TestFullLogs: a worker whose output finds no room on the disk has its reason there, too. The report names the disk.
func TestFullLogs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		testutil.Missing(t, "root, for a small file system")
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	drive.Run(t, nil, "run", "-n", "2", "--log-dir", dir, "--", "python3", "-c", "for i in range(3000): print(i, 100 * 'x')").
		Expect(t, 1, "the file system of "+dir+"/", "is full, where the workers' output is written", "or give another --log-dir")
}

// TestNoRoomForLogs: a file system of logs on which no directories can be made for the workers is no internal error.
func TestNoRoomForLogs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		inodes, workers, status int
		says, reason            string
	}{
		"run":     {1, 2, 2, "cannot make the log directory", "Refused"},
		"attempt": {2, 2, 2, "cannot make the directory of an attempt", "Refused"},
		"worker":  {6, 2, 2, "cannot make a place for the output of local rank 1", "Refused"},
		"restart": {6, 1, 75, "cannot make the directory of an attempt", "InternalError"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("nr_inodes=%d", c.inodes)); err != nil {
				testutil.Missing(t, "root, for a small file system")
			}
			t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
			status := filepath.Join(t.TempDir(), "status.json")
			got := drive.Run(t, nil, "run", "-n", strconv.Itoa(c.workers), "--tee", "3", "--max-restarts", "1", "--log-dir", dir,
				"--status-file", status, "--", "false")
			got.Expect(t, c.status, c.says, "no space left on device", "make room on the file system of "+dir, "another --log-dir")
			if text, err := os.ReadFile(status); err != nil || !strings.Contains(string(text), `"`+c.reason+`"`) {
				t.Errorf("the reason is not %s: %s, %v", c.reason, text, err)
			}
		})
	}
}

// Hosts of an elastic Horovod job that cannot be reached are no internal error.
func TestElasticHostsUnreachable(t *testing.T) {
	t.Parallel()
	got := drive.Run(t, []string{"HOME=" + t.TempDir()}, "horovodrun", "--min-np", "1", "--max-np", "2", "-np", "2", "-H",
		"no-such-host.invalid:1,nor-this.invalid:1",
		"--start-timeout", "20", "--elastic-timeout", "20", "true")
	if got.Status != 75 || !strings.Contains(got.Stderr, "nobody knows the name no-such-host.invalid") {
		t.Errorf("status %d, want 75\n%s", got.Status, got.Stderr)
	}
}

// Slots of a hostfile are no accelerators.
func TestSlotsAreNoAccelerators(t *testing.T) {
	t.Parallel()
	hostfile := filepath.Join(t.TempDir(), "hostfile")
	if err := os.WriteFile(hostfile, []byte("localhost slots=2\n127.0.0.1 slots=2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := drive.Run(t, nil, "deepspeed", "--hostfile", hostfile, "--num_gpus", "2",
		"--master_port", drive.FreePort(t), "--no_python", "true")
	if got.Status != 0 || strings.Contains(got.Stderr, "accelerator") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
	got = drive.Run(t, nil, "deepspeed", "--hostfile", hostfile, "--master_port", drive.FreePort(t), "--no_python", "true")
	if got.Status != 0 || strings.Contains(got.Stderr, "share") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
}

// On a node without accelerators the links between them are not tested; all else is.
func TestChecksWithoutLinks(t *testing.T) {
	t.Parallel()
	python := testutil.Torch(t)
	dir := t.TempDir()
	got := drive.Run(t, nil, "--network-check", "--switchbox-check", "--report", dir, "run", "-n", "1", "--", python, "-c", "pass")
	if got.Status != 0 || !strings.Contains(got.Stderr, "are not tested: this node has none") ||
		strings.Contains(got.Stderr, "the check is skipped") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, "network-check-0.json"))
	if err != nil || !strings.Contains(string(text), `"compute_ns"`) {
		t.Errorf("the node was not tested: %v\n%s", err, text)
	}
}

// What all nodes lack is no node's fault; a node that has to leave leaves, also when too few are left for another
// round; and a simulation in which too few are left ends, since nobody can join it.
func TestSimulatedNodesLeave(t *testing.T) {
	const ecc = "    faults:\n      - {gpu: 1, kind: ecc-uncorrectable, value: 2}\n"
	for name, c := range map[string]struct {
		faulty, status int
	}{
		"one is faulty":  {1, 0},
		"two are faulty": {2, 75},
		"all are faulty": {4, 75},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			spec := "version: 1\ndefaults:\n  vendor: nvidia\n  count: 2\n  faults:\n    - {kind: no-torch}\nnodes:\n"
			for i := range c.faulty {
				spec += "  " + hosts.SimulatedName(i) + ":\n" + ecc + "      - {kind: no-torch}\n"
			}
			file := filepath.Join(t.TempDir(), "spec.yaml")
			if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
				t.Fatal(err)
			}
			got := drive.Run(t, nil, "run", "--simulate-nodes", "4", "--nnodes", "3:4", "--network-check",
				"--accelerator", "fake:"+file, "-n", "2", "--", "true")
			if got.Status != c.status {
				t.Errorf("status %d, want %d", got.Status, c.status)
			}
			gone := 0
			for i := range 4 {
				told, left := false, strings.Contains(got.Stderr, "muster: error: node "+hosts.SimulatedName(i)+" ")
				for line := range strings.Lines(got.Stderr) { // the others' leaving may end its check before it has the result
					told = told || strings.Contains(line, `"agent":"`+hosts.SimulatedName(i)+`"`) &&
						strings.Contains(line, `"status":"FAIL"`) && !strings.Contains(line, `"report":{`) // that is of all nodes
				}
				if left != told || told && i >= c.faulty {
					t.Errorf("%s was told to leave: %v, and has left: %v", hosts.SimulatedName(i), told, left)
				}
				if left {
					gone++
				}
			}
			if gone < min(c.faulty, 2) {
				t.Errorf("%d nodes have left", gone)
			}
			if tooFew := strings.Contains(got.Stderr, "nobody can join"); tooFew != (c.status != 0) {
				t.Errorf("ended for want of nodes: %v", tooFew)
			}
			if t.Failed() {
				t.Log(got.Stderr)
			}
		})
	}
}

// What Python says where a script wants our package leads to the flag that brings it, not to another project's package
// on PyPI.
func TestOurPackageIsNotOnPyPI(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"import muster", "import muster.checkpoint", "from muster.checkpoint import load"} {
		for _, args := range [][]string{{"run", "--ckpt", "off", "--"}, {"torchrun", "--no-python"}} {
			got := drive.Run(t, nil, append(args, "python3", "-c", script)...)
			if got.Status != 1 || !strings.Contains(got.Stderr, "give --ckpt on (or MUSTER_CKPT=on)") ||
				!strings.Contains(got.Stderr, "muster alone is another project's") {
				t.Errorf("%s by %q: status %d\n%s", script, args, got.Status, got.Stderr)
			}
		}
	}
	// What the hint says helps.
	if got := drive.Run(t, nil, "run", "--ckpt", "on", "--ckpt-dir", t.TempDir(), "--", "python3", "-c",
		"import importlib.util as u; print(u.find_spec('muster').name)"); got.Status != 0 {
		t.Errorf("with --ckpt on: status %d\n%s", got.Status, got.Stderr)
	}
	// Names that only begin like it are modules like others.
	if got := drive.Run(t, nil, "run", "--", "python3", "-c", "import mustered"); !strings.Contains(got.Stderr,
		"module mustered: is it installed") {
		t.Errorf("another module: %s", got.Stderr)
	}
}

// -np is no flag of muster run, and is told so; a value that reads -np is a value.
func TestNPIsNoFlag(t *testing.T) {
	t.Parallel()
	for line, np := range map[string]bool{
		"run -np 2 echo hi": true, "run -np=2 echo hi": true, "run -np2 echo hi": true, "run --grace 3s -np 2 -- echo hi": true,
		"run --run-id -np echo hi": false, "run --run-id -np -n 1 -- echo hi": false, "run --role=-np echo hi": false,
		"run -n 1 echo hi -np 2": false,
	} {
		got := drive.Run(t, nil, strings.Fields(line)...)
		told := strings.Contains(got.Stderr, "unknown flag -np") &&
			strings.Contains(got.Stderr, "-n N is the number of workers on each node")
		if told != np || np != (got.Status == 2) || np == strings.Contains(got.Stdout, "hi") {
			t.Errorf("%s: status %d\n%s%s", line, got.Status, got.Stdout, got.Stderr)
		}
	}
}

// A dry run shows what was given, derived or differs, each flag once; with --all the others, too.
func TestDryRunShowsFlagsOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hosts, script := filepath.Join(dir, "hosts"), filepath.Join(dir, "train.py")
	for file, text := range map[string]string{hosts: "localhost\n127.0.0.1\n", script: ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{
		"colossalai", "run", "--hostfile", hosts, "--include", "localhost,127.0.0.1", "--nproc_per_node", "2", "--master_port",
		drive.FreePort(t), script,
	}
	for _, all := range []bool{false, true} {
		flags := []string{"--dry-run"}
		if all {
			flags = append(flags, "--all")
		}
		got := drive.Run(t, nil, append(flags, args...)...)
		_, table, found := strings.Cut(got.Stdout, "flags that were given or derived")
		if all {
			_, table, found = strings.Cut(got.Stdout, "all flags")
		}
		table, _, ended := strings.Cut(table, "\n\n")
		if got.Status != 0 || !found || !ended {
			t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
		}
		seen := map[string]int{}
		for line := range strings.Lines(table) {
			if words := strings.Fields(line); strings.HasPrefix(line, "  ") {
				seen[words[0]]++
				if !all && words[len(words)-1] == "default" {
					t.Errorf("a default: %q", line)
				}
			}
		}
		for name, n := range seen {
			if n > 1 {
				t.Errorf("--%s stands there %d times", name, n)
			}
		}
		for _, name := range []string{"hostfile", "include", "nproc-per-node"} {
			if seen[name] != 1 {
				t.Errorf("--%s stands there %d times", name, seen[name])
			}
		}
		if few := len(seen) < 15; few == all || seen["exclude"] > 0 != all || seen["ssh-port"] > 0 != all {
			t.Errorf("all: %v, %d flags: %v", all, len(seen), seen)
		}
	}
}

// The figures of README are those of docs/performance.md, and its links to what each flag does lead to pages with
// flags.
func TestReadmeIsOfThisVersion(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	readme, measured := read("README.md"), read("docs/performance.md")
	rows := 0
	for line := range strings.Lines(readme) {
		for _, row := range []string{
			"| command start to a worker's first", "| memory of the launcher,",
			"| 8 workers to their first all-reduce",
		} {
			if !strings.HasPrefix(line, row) {
				continue
			}
			rows++
			figures := regexp.MustCompile(`\d[\d.,]* (?:ms|s|MB)\b`).FindAllString(line, -1)
			if len(figures) < 2 {
				t.Errorf("no figures: %s", line)
			}
			for _, f := range figures {
				if !strings.Contains(measured, " "+f) {
					t.Errorf("docs/performance.md has no %q: %s", f, line)
				}
			}
		}
	}
	if rows != 3 {
		t.Errorf("%d rows with figures", rows)
	}
	_, line, found := strings.Cut(readme, "What each flag does")
	line, _, _ = strings.Cut(line, "\n\n")
	links := regexp.MustCompile(`\((docs/compat/\w+\.md)\)`).FindAllStringSubmatch(line, -1)
	if !found || len(links) != 8 {
		t.Fatalf("%d links", len(links))
	}
	for _, link := range links {
		if page := read(link[1]); !regexp.MustCompile("(?m)^\\| (?:flag|option) \\| here \\|\n\\|[- |]+\\|\n\\| `-").MatchString(page) {
			t.Errorf("%s has no table of flags", link[1])
		}
	}
}

// Where horovodrun's --output-filename says where output goes, nobody is sent to a temporary directory.
func TestOutputGoesWhereItWasAsked(t *testing.T) {
	t.Parallel()
	out, tmp := filepath.Join(t.TempDir(), "out"), t.TempDir()
	got := drive.Run(t, []string{"TMPDIR=" + tmp}, "--keep-runs", "0", "horovodrun", "-np", "2", "-H", "localhost:2",
		"--output-filename", out, "echo", "hi")
	if got.Status != 0 || strings.Contains(got.Stderr, "temporary directory") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
	for _, rank := range []string{"rank.0", "rank.1"} {
		if text, err := os.ReadFile(filepath.Join(out, rank, "stdout")); err != nil || string(text) != "hi\n" {
			t.Errorf("%s: %q, %v", rank, text, err)
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// TestMasterPortOfElasticHosts: where a job that may shrink cannot have the port of --master-port, that is told.
func TestMasterPortOfElasticHosts(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{true, false} {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		_, port, _ := net.SplitHostPort(l.Addr().String())
		if !taken {
			_ = l.Close()
		}
		got := drive.Run(t, nil, "run", "--hosts", "localhost,127.0.0.1", "--nnodes", "1:2", "--master-port", port, "--", "sh", "-c",
			"echo at $MASTER_PORT")
		const told = "cannot have the port that was asked for"
		had := strings.Count(got.Stdout, "at "+port+"\n")
		if n := strings.Count(got.Stderr, told); got.Status != 0 || taken && had > 0 || (had == 0) != (n == 1) || n == 1 &&
			(!strings.Contains(got.Stderr, `"port":`+port) || !strings.Contains(got.Stderr, `"source":"flag --master-port"`)) {
			t.Errorf("taken: %v; status %d, %q, told %d times\n%s", taken, got.Status, got.Stdout, n, got.Stderr)
		}
	}
}

// Workers of several hosts find their store at the port that was asked for, also where the hosts are one machine.
func TestMasterPortOfHosts(t *testing.T) {
	t.Parallel()
	for _, launcher := range []string{"run --hosts localhost,127.0.0.1 --master-port", "deepspeed"} {
		port := drive.FreePort(t)
		args := append(strings.Fields(launcher), port)
		if launcher == "deepspeed" {
			hostfile := filepath.Join(t.TempDir(), "hostfile")
			if err := os.WriteFile(hostfile, []byte("localhost slots=1\n127.0.0.1 slots=1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			args = []string{"deepspeed", "--hostfile", hostfile, "--no_python", "--no_local_rank", "--master_port", port}
		}
		got := drive.Run(t, nil, append(args, "sh", "-c", "echo at $MASTER_PORT")...)
		if got.Status != 0 || strings.Count(got.Stdout, "at "+port+"\n") != 2 {
			t.Errorf("%s: status %d, %q, want port %s\n%s", launcher, got.Status, got.Stdout, port, got.Stderr)
		}
	}
}
