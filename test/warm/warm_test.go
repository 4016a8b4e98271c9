package warm

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

	"muster/internal/testutil"
	"muster/test/drive"
)

// bomb is a module that hits a process in the middle of forking, as BOMB says: the template before it forks, the
// middleman when it is born or before it forks the second worker, or one of the workers. A file remembers that it went
// off, so that the next template lives.
const bomb = `
import os, signal, time
who, name = os.environ["BOMB"].split()
template, forks = os.getpid(), []
def hit(me):
    if me == who and not os.path.exists(os.environ["DIR"] + "/hit"):
        open(os.environ["DIR"] + "/hit", "w").close()
        if name == "SLOW":
            time.sleep(8)
        else:
            os.kill(os.getpid(), getattr(signal, name))
def before():
    forks.append(os.getpid())
    hit("template" if len(forks) == 1 else "middleman%d" % (len(forks) - 1))
def child():
    hit("middleman0" if len(forks) == 1 else "worker%d" % (len(forks) - 1))
os.register_at_fork(before=before, after_in_child=child)
`

const sayRank = `
import os
print("rank", os.environ["RANK"], "here", flush=True)
`

// TestWarmKilledWhileForking kills and stops each process that has a part in forking two workers, at each step. The job
// does not notice. What is stopped is waited for, for some seconds, and holds up the others.
func TestWarmKilledWhileForking(t *testing.T) {
	testutil.Long(t)
	for who, survivors := range map[string]int{
		"template": 0, "middleman0": 0, "middleman1": 0, "middleman2": 1, "worker1": 1,
		"worker2": 1,
	} {
		for _, signal := range []string{"SIGKILL", "SIGSTOP"} {
			t.Run(who+" "+signal, func(t *testing.T) {
				t.Parallel()
				dir := drive.WarmDir(t, "bomb.py", bomb, "script.py", sayRank)
				j := drive.StartWarm(t, dir, []string{"BOMB=" + who + " " + signal}, "--warm", "bomb")
				o := j.End()
				if _, err := os.Stat(filepath.Join(dir, "hit")); err != nil {
					t.Errorf("nothing was hit: %v", err)
				}
				want := survivors
				if signal == "SIGSTOP" {
					want = 0
				}
				drive.WantWarm(t, o, 0, want, "rank 0 here", "rank 1 here", "workers start as usual")
				j.NothingLeft(dir)
			})
		}
	}
}

// TestWarmForkStarves: a process that has a part in forking and gets no processor for some seconds is waited for.
func TestWarmForkStarves(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"template", "middleman1", "worker1"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			dir := drive.WarmDir(t, "bomb.py", bomb, "script.py", sayRank)
			j := drive.StartWarm(t, dir, []string{"BOMB=" + who + " SLOW"}, "--warm", "bomb")
			o := j.End()
			if _, err := os.Stat(filepath.Join(dir, "hit")); err != nil {
				t.Errorf("nobody was slow: %v", err)
			}
			drive.WantWarm(t, o, 0, 2, "rank 0 here", "rank 1 here")
			j.NothingLeft(dir)
		})
	}
}

// templates returns the template processes of the job.
func templates(t *testing.T, j *drive.Job) []int {
	t.Helper()
	var found []int
	for pid := range drive.Children(t, j.Process.Pid) {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) == "muster-template\n" {
			found = append(found, pid)
		}
	}
	return found
}

func waitFor(t *testing.T, j *drive.Job, text string) {
	t.Helper()
	testutil.Eventually(t, time.Minute, "the log says "+text, func() bool { return strings.Contains(j.Err.String(), text) })
}

// failOnce ends its first attempt when a file appears.
const failOnce = `
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("rank", os.environ["RANK"], "attempt", attempt, flush=True)
while attempt == "0":
    if os.path.exists(os.environ["DIR"] + "/go"):
        sys.exit(3)
    time.sleep(0.01)
`

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestWarmKilledWhileIdle kills the template between a start and a restart: the restart finds another one.
func TestWarmKilledWhileIdle(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := drive.WarmDir(t, "script.py", failOnce)
	j := drive.StartWarm(t, dir, nil, "--warm", "json", "--max-restarts", "1")
	testutil.Eventually(t, time.Minute, "both workers run", func() bool { return strings.Count(j.Out.String(), "attempt 0") == 2 })
	if pids := templates(t, j); len(pids) != 1 {
		t.Fatalf("templates %v, want one", pids)
	} else if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, j, "the template of warm starts ended: making another one")
	touch(t, filepath.Join(dir, "go"))
	drive.WantWarm(t, j.End(), 0, 4, "rank 0 attempt 1", "rank 1 attempt 1", `"exit":"was killed by SIGKILL"`)
	j.NothingLeft(dir)
}

// TestWarmStopped stops the template for good: the restart does without, and it is gone at the end.
func TestWarmStopped(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := drive.WarmDir(t, "script.py", failOnce)
	j := drive.StartWarm(t, dir, nil, "--warm", "json", "--max-restarts", "1")
	testutil.Eventually(t, time.Minute, "both workers run", func() bool { return strings.Count(j.Out.String(), "attempt 0") == 2 })
	for _, pid := range templates(t, j) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	touch(t, filepath.Join(dir, "go"))
	drive.WantWarm(t, j.End(), 0, 4, "rank 0 attempt 1", "the template of warm starts does not answer: making another one")
	j.NothingLeft(dir)
}

// TestWarmKilledWhileImporting kills the template in the middle of its work: that import is left out.
func TestWarmKilledWhileImporting(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := drive.WarmDir(t, "slow.py", "import os, time\nopen(os.environ['DIR'] + '/importing', 'w').close()\ntime.sleep(600)\n",
		"script.py", sayRank)
	j := drive.StartWarm(t, dir, nil, "--warm", "json,slow")
	testutil.Eventually(t, time.Minute, "the template imports", func() bool {
		_, err := os.Stat(filepath.Join(dir, "importing"))
		return err == nil
	})
	for _, pid := range templates(t, j) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	drive.WantWarm(t, j.End(), 0, 2, "rank 1 here", "import slow", "ended the process: it was killed by SIGKILL",
		"made without this module")
	j.NothingLeft(dir)
}

// TestWarmAgentKilled kills muster while the template imports, and while it is idle: both die with it.
func TestWarmAgentKilled(t *testing.T) {
	testutil.Long(t)
	for when, module := range map[string]string{"importing": "slow", "idle": "json"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			dir := drive.WarmDir(t, "slow.py", "import time\ntime.sleep(600)\n", "script.py", failOnce)
			j := drive.StartWarm(t, dir, nil, "--warm", module, "--max-restarts", "1")
			testutil.Eventually(t, time.Minute, when, func() bool {
				return len(templates(t, j)) == 1 && (when == "importing" || strings.Count(j.Out.String(), "attempt 0") == 2)
			})
			if err := j.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = j.End()
			j.NothingLeft(dir)
		})
	}
}

// slowFork is a module by which it takes a while until a fork that is made ahead is a spare.
const slowFork = `
import os, time
generation = [0]
def child():
    generation[0] += 1
    if generation[0] == 2 and os.path.exists(os.environ["DIR"] + "/started"):
        open(os.environ["DIR"] + "/forking", "w").close()
        time.sleep(0.5)
os.register_at_fork(after_in_child=child)
`

// TestWarmFailsWhileForking lets workers fail in the moment in which those of the next attempt are forked ahead: these
// are not stopped as if somebody had left them behind.
func TestWarmFailsWhileForking(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := drive.WarmDir(t, "slow_fork.py", slowFork, "script.py", `
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open(os.environ["DIR"] + "/started", "w").close()
    while not os.path.exists(os.environ["DIR"] + "/forking"):
        time.sleep(0.001)
    sys.exit(3)
print("rank", os.environ["RANK"], "again", flush=True)
`)
	j := drive.StartWarm(t, dir, nil, "--warm", "slow_fork", "--max-restarts", "1")
	o := j.End()
	drive.WantWarm(t, o, 0, 4, "rank 0 again", "rank 1 again")
	if strings.Contains(o.Stderr, "cannot fork") {
		t.Errorf("the spares were lost:\n%s", o.Stderr)
	}
	j.NothingLeft(dir)
}

// TestWarmStopWhileWaiting ends a job that still waits for its template.
func TestWarmStopWhileWaiting(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := drive.WarmDir(t, "slow.py", "import time\ntime.sleep(600)\n", "script.py", sayRank)
	j := drive.StartWarm(t, dir, nil, "--warm", "slow")
	testutil.Eventually(t, time.Minute, "the template imports", func() bool { return len(templates(t, j)) == 1 })
	if err := j.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	o := j.End()
	drive.WantWarm(t, o, 143, 0)
	if strings.Contains(o.Stdout, "here") {
		t.Errorf("a worker was started nevertheless:\n%s", o.Stdout)
	}
	j.NothingLeft(dir)
}

// TestWarmSlowImport gives a module that takes very long its time behind the workers' backs.
func TestWarmSlowImport(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := drive.WarmDir(t, "slow.py", "import os, time\nwhile not os.path.exists(os.environ['DIR'] + '/imported'): time.sleep(0.01)\n",
		"script.py", failOnce)
	j := drive.StartWarm(t, dir, nil, "--warm", "slow", "--warm-wait", "1", "--max-restarts", "1")
	testutil.Eventually(t, time.Minute, "both workers run", func() bool { return strings.Count(j.Out.String(), "attempt 0") == 2 })
	touch(t, filepath.Join(dir, "imported"))
	waitFor(t, j, "template ready")
	touch(t, filepath.Join(dir, "go"))
	drive.WantWarm(t, j.End(), 0, 2, "not ready in time: workers start as usual (--warm-wait)", `"step":"import slow"`, "rank 1 attempt 1")
}

// TestWarmChanged changes the script, and then a module, between a start and the restart: what is imported follows.
func TestWarmChanged(t *testing.T) {
	testutil.Long(t)
	change := func(path, text string) string {
		return fmt.Sprintf("if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '0':\n"+
			"    open(os.environ['DIR'] + '/%s', 'w').write(%q)\n    sys.exit(1)\n", path, text)
	}
	t.Run("script", func(t *testing.T) {
		t.Parallel()
		dir := drive.WarmDir(t, "script.py", "import os, sys, time\n"+
			change("script.py", "import os, sys\nimport sqlite3\nprint('anew', os.environ['RANK'])\n")+"time.sleep(600)\n")
		drive.WantWarm(t, drive.StartWarm(t, dir, nil, "--warm", "auto", "--max-restarts", "1").End(), 0, 4, "anew 0", "anew 1",
			"making the template of warm starts anew", `"imports":2`)
	})
	t.Run("module", func(t *testing.T) {
		t.Parallel()
		dir := drive.WarmDir(t, "mod.py", "value = 'old'\n",
			"script.py", "import os, sys, time\nimport mod\nprint(mod.value, flush=True)\n"+
				change("mod.py", "value = 'anew'\n")+"if mod.value == 'old': time.sleep(600)\n")
		drive.WantWarm(t, drive.StartWarm(t, dir, nil, "--warm", "mod", "--max-restarts", "1").End(), 0, 4, "] anew",
			"making the template of warm starts anew", "mod.py")
	})
}

// TestWarmChangedLater changes a module long after the template was made, which no start has taken yet: the restart has
// what is there now.
func TestWarmChangedLater(t *testing.T) {
	testutil.Long(t)
	script := `
import os, sys, time
import late
print("it is", late.value, flush=True)
while late.value == "old":
    if os.path.exists(os.environ["DIR"] + "/go"):
        os.kill(os.getpid(), 9)
    time.sleep(0.01)
`
	for _, args := range [][]string{{"--restart-delay", "1s"}, {"--restart-scope", "process"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			dir := drive.WarmDir(t, "script.py", script)
			environ := lateSite(t, "late.py", lateBulk+"value = 'old'\n")
			j := drive.StartWarm(t, dir, environ, slices.Concat([]string{"--warm", "restarts", "--max-restarts", "2"}, args)...)
			testutil.Eventually(t, time.Minute, "the next workers are there", func() bool { return len(templates(t, j)) == 3 })
			time.Sleep(11 * time.Second) // what was imported just now is not looked at again
			site, err := filepath.Glob(filepath.Join(strings.TrimPrefix(environ[0], "PYTHONUSERBASE="), "lib", "*",
				"site-packages", "late.py"))
			if err != nil || len(site) != 1 {
				t.Fatal(site, err)
			}
			if err := os.WriteFile(site[0], []byte(lateBulk+"value = 'another'\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			touch(t, filepath.Join(dir, "go"))
			o := j.End()
			if o.Status != 0 || strings.Count(o.Stdout, "it is old") != 2 || strings.Count(o.Stdout, "it is another") != 2 {
				t.Errorf("status %d\n%s%s", o.Status, o.Stdout, o.Stderr)
			}
		})
	}
}

// fakeCUDA stands for the driver's library: only what is asked whether CUDA was initialised.
const fakeCUDA = `
static int initialized;
int cuInit(unsigned flags) { initialized = 1; return 0; }
int cuCtxSynchronize(void) { return initialized ? 201 : 3; }
`

// TestWarmCUDA imports a module that initialises CUDA, and one that only loads it.
func TestWarmCUDA(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := drive.WarmDir(t, "cuda.c", fakeCUDA, "script.py", sayRank,
		"loads.py", "import ctypes, os\nlib = ctypes.CDLL(os.environ['DIR'] + '/libcuda.so.1')\n", "starts.py",
		"import loads\nloads.lib.cuInit(0)\n")
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		testutil.Missing(t, "gcc")
	}
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), "-Wl,-soname,libcuda.so.1",
		filepath.Join(dir, "cuda.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	env := []string{"LD_LIBRARY_PATH=" + dir}
	drive.WantWarm(t, drive.StartWarm(t, dir, env, "--warm", "loads").End(), 0, 2, "rank 0 here", "rank 1 here")
	drive.WantWarm(t, drive.StartWarm(t, dir, env, "--warm", "starts").End(), 0, 0, "rank 0 here", "rank 1 here", "initialises CUDA",
		"PYTORCH_NVML_BASED_CUDA_CHECK=1")
}

// TestWarmBadModules imports modules that cannot be shared, each between two that can. What is wrong is told, and the
// job runs.
func TestWarmBadModules(t *testing.T) {
	testutil.Long(t)
	for name, c := range map[string]struct {
		module string
		forked int // 2: without the module; 0: not at all
		want   []string
	}{
		"missing":    {"", 2, []string{"No module named 'bad'", "made without this module"}},
		"fails":      {"1 / 0", 2, []string{"fails: ZeroDivisionError: division by zero"}},
		"exits":      {"import sys; sys.exit(3)", 2, []string{"calls sys.exit(3)"}},
		"exits hard": {"import os; os.write(2, b'farewell'); os._exit(4)", 2, []string{"exited with status 4: farewell"}},
		"crashes":    {"import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 2, []string{"was killed by SIGSEGV"}},
		"forks":      {"import os; os.fork()", 2, []string{"forks, and lets both processes go on"}},
		"child": {
			"import subprocess; subprocess.Popen(['sleep', '600'])", 2,
			[]string{"starts a process that goes on running: sleep"},
		},
		"daemon": {"import os; os.system('setsid sleep 601 >/dev/null 2>&1 </dev/null &')", 2, nil},
		"thread": {
			"import threading, time; threading.Thread(target=time.sleep, args=(600,), name='watcher', daemon=True).start()",
			2,
			[]string{"starts threads: watcher"},
		},
		"timer":     {"import signal; signal.alarm(600)", 2, []string{"starts a timer"}},
		"directory": {"import os; os.chdir('/')", 2, []string{"changes the working directory to /"}},
		"rank":      {"import os; rank = int(os.environ.get('LOCAL_RANK', 0))", 2, []string{"reads LOCAL_RANK", "bad.py:1"}},
		"socket":    {"import socket; s = socket.socket()", 2, []string{"leaves descriptor", "socket:"}},
		"file":      {"f = open(__file__)", 2, []string{"leaves descriptor 3 open", "bad.py"}},
		"shared_memory": {
			"from multiprocessing.shared_memory import SharedMemory; s = SharedMemory(create=True, size=100)", 2,
			[]string{"starts a process that goes on running", "python3"},
		},
		"shared":       {"import mmap; m = mmap.mmap(-1, 4096)", 2, []string{"maps shared memory"}},
		"prints":       {"print('one line')", 2, []string{"] one line"}},
		"prints a lot": {"print('x' * 3000000)", 0, []string{"more than 1048576 bytes are printed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := []string{"good.py", "", "fine.py", "", "script.py", sayRank}
			if name != "missing" {
				files = append(files, "bad.py", c.module)
			}
			dir := drive.WarmDir(t, files...)
			j := drive.StartWarm(t, dir, nil, "--warm", "good,bad,fine")
			drive.WantWarm(t, j.End(), 0, c.forked, append(c.want, "rank 0 here", "rank 1 here")...)
			j.NothingLeft(dir)
		})
	}
}

// TestWarmInterpreters refuses interpreters that are not what they seem, and takes those that are.
func TestWarmInterpreters(t *testing.T) {
	testutil.Long(t)
	for name, c := range map[string]struct {
		python string // a shell script called python, /usr/bin/python3 itself where it is empty
		args   string
		forked int
		want   string
	}{
		"isolated":       {"", "-I", 0, "option -I keeps Python from a warm start"},
		"no site":        {"", "-S", 0, "option -S keeps Python from a warm start"},
		"exec":           {"exec /usr/bin/python3 \"$@\"", "", 0, "is a script in front of Python"},
		"itself":         {"", "-X utf8", 2, "template ready"},
		"is none at all": {"echo I am no Python; [ $# = 1 ] && echo rank $RANK here", "", 0, "I am no Python"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := drive.WarmDir(t, "script.py", sayRank+"print('added', os.environ.get('ADDED'))\n")
			python := "/usr/bin/python3"
			if c.python != "" {
				python = filepath.Join(dir, "python")
				if err := os.WriteFile(python, []byte("#!/bin/sh\n"+c.python+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			args := append([]string{"run", "-n", "2", "--warm", "json", "--log-level", "debug", "--", python}, strings.Fields(c.args)...)
			o := drive.Run(t, []string{"DIR=" + dir, "PYTHONPATH=" + dir}, append(args, filepath.Join(dir, "script.py"))...)
			drive.WantWarm(t, o, 0, c.forked, "rank 0 here", "rank 1 here", c.want)
		})
	}
}

// TestWarmDeadline lets the deadline of the job pass while a start waits for the template.
func TestWarmDeadline(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := drive.WarmDir(t, "slow.py", "import time\ntime.sleep(600)\n", "script.py", sayRank)
	o := drive.StartWarm(t, dir, nil, "--warm", "slow", "--active-deadline", "2").End()
	drive.WantWarm(t, o, 124, 0, "deadline of 2s reached")
	if strings.Contains(o.Stdout, "here") {
		t.Errorf("a worker was started nevertheless:\n%s", o.Stdout)
	}
}

// TestWarmPrefix has statements between the imports that auto passes over or carries out, and says where it ended.
func TestWarmPrefix(t *testing.T) {
	testutil.Long(t)
	for name, c := range map[string]struct{ script, warm, want string }{
		"passed over": {`"""About it."""
from __future__ import annotations
import os, sys
from typing import TYPE_CHECKING
__version__ = "1"
LR: float = 0.1
A, B = -1, 2 * 1024
TABLE = {"a": [1, 2], "b": (None, True)}
if TYPE_CHECKING:
    import nothing
os.environ["SET_HERE"] = "yes"
os.environ.setdefault("AND_HERE", "too")
try:
    import nowhere_to_be_found
    HAS = True
except ImportError:
    HAS = False
else:
    MORE = True
try:
    import json
    HAS_JSON = True
except ImportError:
    pass
import csv
print("csv" in sys.modules, os.environ["SET_HERE"], os.environ["AND_HERE"], HAS, HAS_JSON)
`, "auto", `"imports":4,"modules":`},
		"ended by a call": {"import os\nprint(1)\nimport csv\n", "auto", `script.py:2: print(1)","pid"`},
		"with a module":   {"import os\nprint(1)\nimport csv\n", "auto,json", `"imports":2,"modules":`},
		"nothing":         {"print(1)\nimport os\n", "auto", "begins with no import that can be shared"},
		"only a module":   {"print(1)\nimport os\n", "auto,json", `"imports":1,"modules":`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := drive.StartWarm(t, drive.WarmDir(t, "script.py", c.script), nil, "--warm", c.warm).End()
			workers := 2
			if name == "nothing" {
				workers = 0
			}
			drive.WantWarm(t, o, 0, workers, c.want)
			if name == "passed over" && strings.Count(o.Stdout, "True yes too False True") != 2 {
				t.Errorf("unexpected output:\n%s", o.Stdout)
			}
		})
	}
}
