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

// lateBulk makes a module large enough for a template to be made because of it.
var lateBulk = strings.Repeat("# "+strings.Repeat("x", 98)+"\n", 3000)

// lateSite is a user site with modules, given as name and content in turn, for /usr/bin/python3, and the environment by
// which it is found.
func lateSite(t *testing.T, modules ...string) (environ []string) {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testutil.Missing(t, "/usr/bin/python3")
	}
	environ = []string{"PYTHONUSERBASE=" + t.TempDir(), "XDG_CACHE_HOME=" + t.TempDir()}
	cmd := exec.Command("/usr/bin/python3", "-c", "import site; print(site.getusersitepackages())")
	cmd.Env = append(os.Environ(), environ...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	site := strings.TrimSpace(string(out))
	for i := 0; i < len(modules); i += 2 {
		path := filepath.Join(site, modules[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(modules[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return environ
}

// lateScript imports a module inside a function, says whether it was there already, runs until it is told to fail, and
// ends well in its second attempt. %s is what it does before.
const lateScript = `
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
def main():
    %s
    there = "late" in sys.modules
    import late
    print("rank", os.environ["RANK"], "attempt", attempt, "there" if there else "not there", late.value, flush=True)
main()
while attempt == "0":
    if os.path.exists(os.environ["DIR"] + "/go"):
        os.kill(os.getpid(), 9)
    time.sleep(0.01)
`

// TestWarmLearns: what all workers import after their start is in the template of the restart, and of the next job's
// start, until the module or the script is another one.
func TestWarmLearns(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	environ := lateSite(t, "late.py", lateBulk+"value = 1\n")
	dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, "pass"))
	run := func() drive.Outcome {
		j := drive.StartWarm(t, dir, environ, "--warm", "auto", "--max-restarts", "1")
		testutil.Eventually(t, time.Minute, "both workers run", func() bool { return strings.Count(j.Out.String(), "attempt 0") == 2 })
		testutil.Eventually(t, time.Minute, "a template knows what they import", func() bool {
			return strings.Contains(j.Err.String(), `"learned":1`)
		})
		time.Sleep(time.Second) // it is taken a moment after it is ready
		touch(t, filepath.Join(dir, "go"))
		o := j.End()
		j.NothingLeft(dir)
		if err := os.Remove(filepath.Join(dir, "go")); err != nil {
			t.Fatal(err)
		}
		return o
	}
	drive.WantWarm(t, run(), 0, 4, "rank 0 attempt 0 not there 1", "rank 1 attempt 0 not there 1", "rank 0 attempt 1 there 1",
		"rank 1 attempt 1 there 1",
		"better template ready")
	drive.WantWarm(t, run(), 0, 4, "rank 0 attempt 0 there 1", "rank 1 attempt 0 there 1", "rank 0 attempt 1 there 1")

	site, err := filepath.Glob(filepath.Join(strings.TrimPrefix(environ[0], "PYTHONUSERBASE="), "lib", "*", "site-packages", "late.py"))
	if err != nil || len(site) != 1 {
		t.Fatal(site, err)
	}
	if err := os.WriteFile(site[0], []byte(lateBulk+"value = 22\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	drive.WantWarm(t, run(), 0, 4, "rank 0 attempt 0 not there 22", "rank 0 attempt 1 there 22")
}

// TestWarmLearnsNoHarm: late imports that come out differently when they come early, each in a job whose restart must
// do without, and say why in its log. All is as in a usual start.
func TestWarmLearnsNoHarm(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for name, c := range map[string]struct{ before, module, says string }{
		"reads what the script set": {
			"os.environ['LATE_MODE'] = 'x'", "import os\nvalue = os.environ.get('LATE_MODE', 'unset')",
			"reads LATE_MODE",
		},
		"draws a random number": {
			"import random; random.seed(3)", "import random\nrandom.random()\nvalue = 'x'",
			"changes the state of random",
		},
		"filters warnings behind the script": {
			"import warnings; warnings.filterwarnings('error', message='nothing')",
			"import warnings\nwarnings.filterwarnings('ignore', category=UserWarning)\nvalue = 'x'",
			"changes filters of warnings",
		},
		"handles a signal": {
			"pass", "import signal\nsignal.signal(signal.SIGUSR1, lambda *a: None)\nvalue = 'x'",
			"changes signal handlers",
		},
		"prints":              {"pass", "print('hello from late', flush=True)\nvalue = 'x'", "prints 16 bytes"},
		"prints below Python": {"pass", "import os\nos.write(2, b'from below')\nvalue = 'x'", "prints 10 bytes"},
		"starts a thread": {
			"pass",
			"import threading, time\nthreading.Thread(target=time.sleep, args=(600,), name='watcher', daemon=True).start()\nvalue = 'x'",
			"starts threads: watcher",
		},
		"opens a socket": {"pass", "import socket\ns = socket.socket()\nvalue = 'x'", "leaves descriptor"},
		"reads the rank": {"pass", "import os\nvalue = 'x' + os.environ.get('RANK', '')[:0]", "reads RANK"},
		"goes its own way": {
			"sys.late_way = True",
			"import sys\nif hasattr(sys, 'late_way'):\n    import one_way\nelse:\n    import other_way\nvalue = 'x'",
			"other_way.py, which the workers did not",
		},
		"sets the search path": {"pass", "import sys\nsys.path.append('/nowhere')\nvalue = 'x'", "changes sys.path"},
		"exits": {
			"sys.late_way = True", "import sys\nif not hasattr(sys, 'late_way'): sys.exit(3)\nvalue = 'x'",
			"calls sys.exit(3)",
		},
		"dies": {
			"sys.late_way = True",
			"import os, sys\nif not hasattr(sys, 'late_way'): os.kill(os.getpid(), 9)\nvalue = 'x'", "was killed by SIGKILL",
		},
		"forks": {
			"sys.late_way = True", "import os, sys\nif not hasattr(sys, 'late_way'): os.fork()\nvalue = 'x'",
			"forks, and lets both processes go on",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			environ := lateSite(t, "late.py", lateBulk+c.module+"\n", "one_way.py", "", "other_way.py", "")
			dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, c.before))
			j := drive.StartWarm(t, dir, environ, "--warm", "auto", "--max-restarts", "1")
			testutil.Eventually(t, time.Minute, "both workers run", func() bool { return strings.Count(j.Out.String(), "attempt 0") == 2 })
			waitFor(t, j, "better template ready") // with the rest
			time.Sleep(time.Second)
			touch(t, filepath.Join(dir, "go"))
			o := j.End()
			drive.WantWarm(t, o, 0, 4, "rank 0 attempt 1 not there", "rank 1 attempt 1 not there", c.says)
			if name != "reads what the script set" && strings.Count(o.Stdout, "there x") != 4 || strings.Contains(o.Stdout, "unset") {
				t.Errorf("the module came out differently:\n%s", o.Stdout)
			}
			j.NothingLeft(dir)
		})
	}
}

// TestWarmLearnsWhatPackagesDo: what numpy and torch do while they are imported, behind a statement of the script, keeps nobody from
// having them in the template: a filter of warnings, multiprocessing's other name for the script, and the file of Python's own that has a
// dash in its name.
func TestWarmLearnsWhatPackagesDo(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	environ := lateSite(t, "late.py", lateBulk+`import multiprocessing, sysconfig, warnings
warnings.filterwarnings("ignore", message="late is early")
value = len(sysconfig.get_config_vars()) > 0
`)
	dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, "pass")+`
import warnings
warnings.warn("late is early")
print("filters", [f[1].pattern for f in warnings.filters if f[1]], flush=True)
`)
	j := drive.StartWarm(t, dir, environ, "--warm", "auto", "--max-restarts", "1")
	waitFor(t, j, `"learned":1`)
	time.Sleep(time.Second)
	touch(t, filepath.Join(dir, "go"))
	o := j.End()
	drive.WantWarm(t, o, 0, 4, "rank 0 attempt 0 not there True", "rank 0 attempt 1 there True", "rank 1 attempt 1 there True")
	if strings.Count(o.Stdout, "filters ['late is early']") != 2 || strings.Contains(o.Stderr, "late is early") {
		t.Errorf("unexpected output:\n%s%s", o.Stdout, o.Stderr)
	}
}

// TestWarmLearnsWhatAllImport leaves out what only one rank imports, and what is the project's own.
func TestWarmLearnsWhatAllImport(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	environ := lateSite(t, "late.py", lateBulk+"value = 1\n", "board.py", lateBulk)
	dir := drive.WarmDir(t, "own.py", lateBulk+"print('own runs', flush=True)\n", "script.py",
		fmt.Sprintf(lateScript, "import own\n    if os.environ['RANK'] == '0': import board")+
			"print('had', [m for m in ('late', 'board', 'own') if m in had], flush=True)\n")
	script := filepath.Join(dir, "script.py")
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("import sys\nhad = set(sys.modules)\n"+string(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	j := drive.StartWarm(t, dir, append(environ, "PYTHONPATH="), "--warm", "auto", "--max-restarts", "1")
	waitFor(t, j, "better template ready")
	time.Sleep(time.Second)
	touch(t, filepath.Join(dir, "go"))
	o := j.End()
	drive.WantWarm(t, o, 0, 4, "had ['late']")
	if strings.Count(o.Stdout, "had ['late']") != 2 || strings.Count(o.Stdout, "own runs") != 4 {
		t.Errorf("unexpected output:\n%s", o.Stdout)
	}
}

// TestWarmLearnsSlowly restarts while the better template is being made: the older one serves, and nobody waits.
func TestWarmLearnsSlowly(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	environ := lateSite(t, "late.py",
		lateBulk+"import os, time\nwhile os.path.exists(os.environ['DIR'] + '/slow'): time.sleep(0.01)\nvalue = 1\n")
	dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, "pass"))
	j := drive.StartWarm(t, dir, environ, "--warm", "auto", "--max-restarts", "1")
	testutil.Eventually(t, time.Minute, "both workers run", func() bool { return strings.Count(j.Out.String(), "attempt 0") == 2 })
	touch(t, filepath.Join(dir, "slow"))
	testutil.Eventually(t, time.Minute, "another template is being made", // and two spares
		func() bool { return len(templates(t, j)) == 4 })
	time.Sleep(time.Second)
	if err := os.WriteFile(filepath.Join(dir, "script.py"),
		[]byte("import os\nprint('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], 'anew')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	touch(t, filepath.Join(dir, "go"))
	o := j.End() // the better one never becomes ready
	if o.Status != 0 || strings.Count(o.Stdout, "attempt 1 anew") != 2 {
		t.Errorf("status %d\n%s%s", o.Status, o.Stdout, o.Stderr)
	}
	j.NothingLeft(dir)
}

// TestWarmDefault: muster run restarts warm where it restarts, and nothing else does so unasked.
func TestWarmDefault(t *testing.T) {
	t.Parallel()
	script := filepath.Join(drive.WarmDir(t, "script.py", "import json\n"), "script.py")
	for args, want := range map[string]string{
		"run --max-restarts 1 -- python3 " + script:                                    "of restarts, where they can be shared",
		"run --max-restarts 1 --warm off -- python3 " + script:                         "",
		"run --max-restarts 1 --warm auto -- python3 " + script:                        "where they can be shared",
		"run -- python3 " + script:                                                     "",
		"run --max-restarts 1 -- sh -c true":                                           "",
		"run --max-restarts 1 -- python3 -I " + script:                                 "option -I keeps Python from a warm start",
		"run --nnodes 2 --rdzv c10d://localhost:29400 --run-id j -- python3 " + script: "of restarts",
		"torchrun --standalone --max-restarts 1 " + script:                             "",
		"--warm restarts torchrun --standalone --max-restarts 1 " + script:             "of restarts",
	} {
		o := drive.Run(t, []string{"PATH=/usr/bin:" + os.Getenv("PATH"), "PYTHON_EXEC=/usr/bin/python3"},
			append([]string{"--dry-run"}, strings.Fields(args)...)...)
		_, got, _ := strings.Cut(o.Stdout, "warm start")
		got, _, _ = strings.Cut(got, "\n")
		if o.Status != 0 || !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: status %d, warm start %q, want %q\n%s", args, o.Status, got, want, o.Stderr)
		}
	}
}

// TestWarmRestartsOnly starts as usual, and restarts warm: not before its time, and never waiting.
func TestWarmRestartsOnly(t *testing.T) {
	testutil.Long(t)
	environ := lateSite(t, "late.py", lateBulk+"value = 1\n")
	t.Run("early", func(t *testing.T) {
		t.Parallel()
		dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, "pass"), "go", "")
		o := drive.StartWarm(t, dir, environ, "--warm", "restarts", "--max-restarts", "1").End()
		drive.WantWarm(t, o, 0, 0, "rank 1 attempt 1 not there", "no template of warm starts is ready")
	})
	t.Run("later", func(t *testing.T) {
		t.Parallel()
		dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, "pass"))
		j := drive.StartWarm(t, dir, environ, "--warm", "restarts", "--max-restarts", "1")
		testutil.Eventually(t, time.Minute, "both workers run", func() bool { return strings.Count(j.Out.String(), "attempt 0") == 2 })
		if len(templates(t, j)) > 0 {
			t.Error("there is a template at once")
		}
		waitFor(t, j, "template ready")
		testutil.Eventually(t, time.Minute, "the next workers are there", func() bool { return len(templates(t, j)) == 3 })
		touch(t, filepath.Join(dir, "go"))
		drive.WantWarm(t, j.End(), 0, 2, "rank 1 attempt 1 not there", "the workers restart warm")
		j.NothingLeft(dir)
	})
	t.Run("by default", func(t *testing.T) {
		t.Parallel()
		dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, "pass"))
		j := drive.StartWarm(t, dir, environ, "--max-restarts", "1")
		testutil.Eventually(t, time.Minute, "the next workers are there", func() bool { return len(templates(t, j)) == 3 })
		touch(t, filepath.Join(dir, "go"))
		drive.WantWarm(t, j.End(), 0, 2, "rank 1 attempt 1 not there", "the workers restart warm")
		j.NothingLeft(dir)
	})
	t.Run("while it is made", func(t *testing.T) {
		t.Parallel()
		dir := drive.WarmDir(t, "script.py", strings.Replace(fmt.Sprintf(lateScript, "pass"), "import os,", "import late\nimport os,", 1))
		slow := lateSite(t, "late.py", "import os, time\nwhile 'RANK' not in os.environ.copy(): time.sleep(1)\nvalue = 1\n")
		j := drive.StartWarm(t, dir, slow, "--warm", "restarts", "--max-restarts", "1")
		testutil.Eventually(t, time.Minute, "a template is being made", func() bool { return len(templates(t, j)) == 1 })
		touch(t, filepath.Join(dir, "go"))
		drive.WantWarm(t, j.End(), 0, 0, "rank 1 attempt 1 there", "no template of warm starts is ready")
		j.NothingLeft(dir)
	})
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, "pass"))
		j := drive.StartWarm(t, dir, environ, "--warm", "restarts", "--max-restarts", "1")
		waitFor(t, j, "template ready")
		testutil.Eventually(t, time.Minute, "the next workers are there", func() bool { return len(templates(t, j)) == 3 })
		for _, pid := range templates(t, j) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		testutil.Eventually(t, time.Minute, "it is seen", func() bool { // as its end, or while it was asked for a fork
			text := j.Err.String()
			return strings.Contains(text, "the template of warm starts ended") ||
				strings.Contains(text, "the template of warm starts cannot fork")
		})
		touch(t, filepath.Join(dir, "go"))
		drive.WantWarm(t, j.End(), 0, 0, "rank 1 attempt 1 not there")
		j.NothingLeft(dir)
	})
}

// TestWarmSlowAnswer: a restart waits for a template that answers late, as on a loaded machine, and no longer than
// something can come of it.
func TestWarmSlowAnswer(t *testing.T) {
	testutil.Long(t)
	environ := lateSite(t, "late.py", lateBulk+"value = 1\n")
	for name, c := range map[string]struct {
		after   time.Duration // from the restart to the signal
		signal  syscall.Signal
		workers int // that are forked
		says    string
	}{
		"late":    {2500 * time.Millisecond, syscall.SIGCONT, 2, "the workers restart warm"},
		"killed":  {0, syscall.SIGKILL, 0, "the template of warm starts"},
		"stopped": {0, syscall.SIGSTOP, 0, `"error":"its process was stopped, and has not gone on for 5s"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := drive.WarmDir(t, "script.py", fmt.Sprintf(lateScript, "pass"))
			j := drive.StartWarm(t, dir, environ, "--warm", "restarts", "--max-restarts", "1")
			testutil.Eventually(t, time.Minute, "the next workers are there", func() bool { return len(templates(t, j)) == 3 })
			template := slices.Min(templates(t, j)) // the others are its forks
			if err := syscall.Kill(template, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			touch(t, filepath.Join(dir, "go"))
			waitFor(t, j, "restarting the workers")
			time.Sleep(c.after) // so long the machine is too busy for the template
			if err := syscall.Kill(template, c.signal); err != nil {
				t.Fatal(err)
			}
			o := j.End()
			drive.WantWarm(t, o, 0, c.workers, "rank 1 attempt 1 not there", c.says)
			if name == "killed" && strings.Contains(o.Stderr, "has not gone on") {
				t.Errorf("the restart has waited for a template that was gone\n%s", o.Stderr)
			}
			j.NothingLeft(dir)
		})
	}
}
