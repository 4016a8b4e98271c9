package dialects

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"muster/internal/accel"
	"muster/internal/testutil"
	"muster/test/drive"
)

// deepSpeedDifferences are those between what DeepSpeed's launcher and muster give a worker. docs/compat/deepspeed.md
// has them, too.
var deepSpeedDifferences = append(ourNames("an agent serves the workers' store and counts restarts: torch reads these"),
	musterNames(),
	difference{
		"hostfile no-ssh exclude", "LOCAL_RANK", `[01]`, `[01]`,
		"deepspeed's is RANK modulo the node's workers, which permutes devices where hosts have different slots",
	},
	difference{"hostfile no-ssh exclude", "argv", `.*"--local_rank=[01]".*`, `.*"--local_rank=[01]".*`, "the same, as an argument"},
)

// farSSH stands for ssh: it drops options and the host, and runs the rest here in the environment of another machine.
func farSSH(far []string) string {
	return "#!/bin/sh\nwhile :; do case $1 in -[oplihF]) shift 2;; -*) shift;; *) break;; esac; done\nshift\nexec env -i " +
		strings.Join(far, " ") + " sh -c \"$*\"\n"
}

// forkedDeepSpeed puts the real deepspeed into a folder, in a fork of a Python that has imported its package; its runner,
// which looks at HOME when it is imported, is imported there. So is what it starts on each node; workers are what that
// starts.
func forkedDeepSpeed(t *testing.T, bin, folder string) {
	t.Helper()
	forks := testutil.ForksOf(filepath.Join(bin, "python"), "deepspeed_anew", drive.Script(t, "standins"))
	node := filepath.Join(folder, "python-of-nodes")
	if err := errors.Join(forks.Program(node), forks.Program(filepath.Join(folder, "deepspeed"), "-c",
		fmt.Sprintf("import sys; sys.executable = %q; from deepspeed.launcher.runner import main; main()", node))); err != nil {
		t.Fatal(err)
	}
}

// TestDeepSpeedWorkers runs command lines by the real deepspeed and by muster, and compares what workers get, variable
// by variable. Jobs on several hosts are run by the real one, with pdsh and a stand-in for ssh, and planned by muster.
func TestDeepSpeedWorkers(t *testing.T) {
	bin := testutil.Peer(t, "deepspeed")
	var used met
	cases := launcherCases(t, "deepspeed", filepath.Join(bin, "python"))
	t.Cleanup(func() { used.all(t, deepSpeedDifferences, len(cases)) })
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			far := []string{"HOME=" + filepath.Join(c.dir, "far"), "PATH=/usr/bin:/bin", "LANG=C.UTF-8", "OF_THE_HOST=1"}
			stand := filepath.Join(c.dir, "bin")
			drive.WriteTree(t, filepath.Join(stand, "ssh"), farSSH(far), 0o700)
			forkedDeepSpeed(t, bin, stand)
			environ := c.environ(stand, bin)
			theirs := c.run(t, environ, c.command)
			req := c.request(t, environ)
			var ours map[int]seenWorker
			switch job := req.Job; {
			case len(job.Hosts.Nodes) > 0:
				ours = c.plannedHosts(t, req, append(far, "PATH="+bin+":/usr/bin:/bin"))
				for rank := range ours { // muster finds its Python by PATH, deepspeed runs its own
					ours[rank].Env["PATH"] = "/usr/bin:/bin"
				}
			case job.Nodes.Max > 1:
				ours = map[int]seenWorker{}
				base, world, err := slotsBefore(c.hosts, job.Meeting.NodeRank)
				if err != nil {
					t.Fatal(err)
				}
				c.plannedNode(t, job, environ, job.Meeting.NodeRank, job.Nodes.Max, base, world, ours)
			default:
				ours = c.run(t, append(environ, "XDG_RUNTIME_DIR="+t.TempDir()), "muster "+c.command)
			}
			c.compare(t, theirs, ours, deepSpeedDifferences, &used)
		})
	}
}

// sayDevices prints what a worker of deepspeed is told of its node.
const sayDevices = `echo on $RANK of $WORLD_SIZE, $LOCAL_SIZE here, $CUDA_VISIBLE_DEVICES $ASCEND_RT_VISIBLE_DEVICES $*`

// TestDeepSpeedDevices counts and lists devices, which the real deepspeed does only where there are some.
func TestDeepSpeedDevices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, env, args, want string }{
		{"count: 3", "", "", "on 0 of 3, 3 here, 0,1,2"},
		{"count: 3", "", "--num_gpus 2", "on 0 of 2, 2 here, 0,1"},
		{"count: 3", "", "--include localhost:2,0", "on 0 of 2, 2 here, 0,2"},
		{"count: 3", "", "--exclude localhost:1", "on 0 of 2, 2 here, 0,2"},
		{"count: 3", "CUDA_VISIBLE_DEVICES=2,1", "", "on 0 of 2, 2 here, 1,2"},
		{"count: 3", "CUDA_VISIBLE_DEVICES=2", "--exclude localhost:0,1", "on 0 of 1, 1 here, 2"},
		{"count: 3", "DS_ACCELERATOR=cpu", "", "on 0 of 1, 1 here, 0"},
		{"{count: 2, vendor: ascend}", "", "", "on 0 of 2, 2 here, 0,1"},
		{"count: 0", "", "", "on 0 of 1, 1 here, 0"},
	} {
		lines := strings.Split(strings.Trim(c.spec, "{}"), ", ")
		environ := []string{"MUSTER_FAKE=" + drive.SpecFile(t, lines...), "MUSTER_FAKE_ON_REAL=1"}
		if c.env != "" {
			environ = append(environ, c.env)
		}
		args := append([]string{"deepspeed", "--hostfile", "", "--master_port", "0", "--no_python", "--no_local_rank"},
			strings.Fields(c.args)...)
		got := drive.Run(t, environ, append(args, "sh", "-c", sayDevices)...)
		if on := drive.SaidOn(got); got.Status != 0 || len(on) == 0 || !strings.HasPrefix("on "+on[0]+" ", c.want+" ") {
			t.Errorf("%s %s %s: status %d, %q, want %q\n%s", c.spec, c.env, c.args, got.Status, on, c.want, got.Stderr)
		}
	}
}

// TestDeepSpeedFiles: each worker's output is in a file of its own, named as deepspeed names it, and our process id in
// one that goes with us.
func TestDeepSpeedFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "logs")
	got := drive.Run(t, nil, "deepspeed", "--num_gpus", "2", "--master_port", "0", "--no_python", "--no_local_rank",
		"--enable_each_rank_log", dir, "--save_pid",
		"sh", "-c", `echo rank $RANK; echo more of $RANK >&2; cat /tmp/$PPID.deepspeed`, "sh")
	if got.Status != 0 || strings.Contains(got.Stdout, "rank") || strings.Contains(got.Stderr, "more of") {
		t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	for _, rank := range []string{"0", "1"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_rank"+rank+".log"))
		if err != nil || len(files) != 1 || !regexp.MustCompile(`^\d{14}_rank\d\.log$`).MatchString(filepath.Base(files[0])) {
			t.Fatalf("files of rank %s: %q, %v", rank, files, err)
		}
		text, err := os.ReadFile(files[0])
		m := regexp.MustCompile(`^rank ` + rank + `\nmore of ` + rank + `\n(\d+)$`).FindSubmatch(text)
		if err != nil || m == nil {
			t.Fatalf("%s: %q, %v", files[0], text, err)
		}
		if _, err := os.Stat("/tmp/" + string(m[1]) + ".deepspeed"); !os.IsNotExist(err) {
			t.Errorf("the file with process id %s is left: %v", m[1], err)
		}
	}
}

// TestDeepSpeedCores runs workers that share the CPUs they are told.
func TestDeepSpeedCores(t *testing.T) {
	t.Parallel()
	cpus, err := accel.Real().Affinity()
	if err != nil {
		t.Fatal(err)
	}
	list := accel.FormatList(cpus)
	got := drive.Run(t, nil, "deepspeed", "--num_gpus", "1", "--master_port", "0", "--no_python", "--no_local_rank", "--bind_cores_to_rank",
		"--bind_core_list", list, "sh", "-c", drive.SayCPUs+" $OMP_NUM_THREADS")
	if want := fmt.Sprintf("0 %s %d", list, len(cpus)); got.Status != 0 || !slices.Equal(drive.SaidOn(got), []string{want}) {
		t.Errorf("status %d, %q, want %q\n%s", got.Status, drive.SaidOn(got), want, got.Stderr)
	}
	got = drive.Run(t, nil, "deepspeed", "--num_gpus", "2", "--no_python", "--bind_cores_to_rank", "--bind_core_list", "0", "true")
	if got.Status != 2 || !strings.Contains(got.Stderr, "1 CPU for 2 workers") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
}

// TestDeepSpeedOnHosts runs a job on two hosts, which are names of this machine: each has its own number of workers and
// its own devices.
func TestDeepSpeedOnHosts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hosts")
	drive.WriteTree(t, file, "localhost slots=1\n127.0.0.1 slots=3\n", 0o600)
	got := drive.Run(t, []string{"DS_ACCELERATOR=cpu"}, "deepspeed", "--hostfile", file, "--include", "localhost@127.0.0.1:0,2",
		"--master_port", drive.FreePort(t),
		"--no_python", "--no_local_rank", "sh", "-c",
		"echo on $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_SIZE on $CROSS_RANK of $CROSS_SIZE, devices $CUDA_VISIBLE_DEVICES")
	want := []string{
		"0 of 3, 0 of 1 on 0 of 2, devices 0", "1 of 3, 0 of 2 on 1 of 2, devices 0,2", "2 of 3, 1 of 2 on 1 of 2, devices 0,2",
	}
	if got.Status != 0 || !slices.Equal(drive.SaidOn(got), want) {
		t.Errorf("status %d, %q, want %q\n%s", got.Status, drive.SaidOn(got), want, got.Stderr)
	}
}
