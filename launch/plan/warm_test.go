package plan

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
)

func TestPlanWarm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"python":        "#!/bin/sh\nexec python3 \"$@\"\n",
		"python_job.sh": "#!/bin/sh\n",
		"train.py":      "#!/usr/bin/env -S python3 -u\n",
		"plain":         "#!" + dir + "/python3\nprint(1)\n",
		"one":           "#! " + dir + "/python3  -E -s \nprint(1)\n",
		"shell":         "#!/bin/sh\n",
		"perl":          "#!/usr/bin/env perl\n",
		"binary":        "\x7fELF\x02",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	python := filepath.Join(dir, "python3")
	program1, err := os.ReadFile("/proc/self/exe") // any program will do: nothing is started here
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(python, program1, 0o755); err != nil {
		t.Fatal(err)
	}
	program := func(name string, args ...string) (job.Command, entrypoint) {
		return job.Command{Kind: job.Program, Name: name, Args: args}, entrypoint{path: filepath.Join(dir, name), prefix: []string{name}}
	}
	type words = []string
	for _, c := range []struct {
		name string
		args words
		want WarmCommand
		err  string
	}{
		{
			"python3",
			words{"-u", "train.py", "-x", "1"},
			WarmCommand{ProbePath: python, Probe: words{"python3", "-u", "-c", ""}, Form: "script", Name: "train.py", Arguments: 2},
			"",
		},
		{
			"python3",
			words{"-Om", "pkg.train"},
			WarmCommand{ProbePath: python, Probe: words{"python3", "-O", "-c", ""}, Form: "module", Name: "pkg.train"},
			"",
		},
		{
			"python3",
			words{"-c", "print(1)", "a"},
			WarmCommand{ProbePath: python, Probe: words{"python3", "-c", ""}, Form: "code", Arguments: 1},
			"",
		},
		{
			"python3",
			words{"-B", "--", "train.py"},
			WarmCommand{ProbePath: python, Probe: words{"python3", "-B", "-c", ""}, Form: "script", Name: "train.py"},
			"",
		},
		{"python3", words{"-u", "-"}, WarmCommand{}, "standard input"},
		{"train.py", words{"a", "b"}, WarmCommand{
			ProbePath: "/usr/bin/env", Probe: words{"/usr/bin/env", "-S python3 -u", "-c", ""},
			Form: "script", Name: filepath.Join(dir, "train.py"), Arguments: 2,
		}, ""},
		{
			"plain", nil,
			WarmCommand{ProbePath: python, Probe: words{python, "-c", ""}, Form: "script", Name: filepath.Join(dir, "plain")},
			"",
		},
		{
			"one", nil,
			WarmCommand{ProbePath: python, Probe: words{python, "-E -s", "-c", ""}, Form: "script", Name: filepath.Join(dir, "one")},
			"",
		},
		{"python", words{"train.py"}, WarmCommand{}, "is a script in front of Python"},
		{"python_job.sh", words{"train.py"}, WarmCommand{}, "its #! line names /bin/sh"},
		{"shell", nil, WarmCommand{}, "its #! line names /bin/sh"},
		{"perl", nil, WarmCommand{}, "its #! line names perl"},
		{"binary", nil, WarmCommand{}, "not Python"},
	} {
		command, entry := program(c.name, c.args...)
		got, err := planWarm(command, entry, false, dir, []string{"PATH=" + dir + ":/usr/bin:/bin"})
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s %q: error %v, want one with %q", c.name, c.args, err, c.err)
		case c.err == "" && err != nil:
			t.Errorf("%s %q: %v", c.name, c.args, err)
		case c.err == "":
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(WarmCommand{})); diff != "" {
				t.Errorf("%s %q, -want +got:\n%s", c.name, c.args, diff)
			}
		}
	}
	command, entry := program("python3", "-c", "print(1)")
	if _, err := planWarm(command, entry, true, dir, nil); err == nil || !strings.Contains(err.Error(), "on the command line") {
		t.Errorf("auto with python -c: %v", err)
	}
	command, entry = program("python3", "-uI", "train.py")
	if _, err := planWarm(command, entry, true, dir, nil); err == nil || !strings.Contains(err.Error(), "option -I") {
		t.Errorf("python -I: %v", err)
	}
	if _, err := planWarm(job.Command{Kind: job.Program, Name: "gone"}, entrypoint{path: "gone", prefix: []string{"gone"}}, false, dir,
		nil); !errors.Is(err, errNotPython) {
		t.Errorf("a program that cannot be read: %v", err)
	}
}

func TestWarmBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cpus    [][]int
		environ []string
		want    string
	}{
		{nil, []string{"OMP_PROC_BIND=true"}, ""},
		{[][]int{{0, 1}, {0, 1}}, []string{"OMP_PROC_BIND=true"}, ""},
		{[][]int{{0, 1}, {2, 3}}, []string{"OMP_NUM_THREADS=2", "KMP_AFFINITY="}, ""},
		{[][]int{{0, 1}, {2, 3}}, []string{"A=1", "GOMP_CPU_AFFINITY=0-3"}, "with GOMP_CPU_AFFINITY a library may keep"},
		{[][]int{{0, 1}, {2}}, nil, "different numbers of CPUs"},
	} {
		err := warmBound(c.cpus, c.environ)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, %q: %v, want %q", c.cpus, c.environ, err, c.want)
		}
	}
}

// TestMisspeltWordOfWarm: a name that may be a misspelt word of --warm is refused where nothing of that name can be
// imported; a real module of such a name is taken, from the script's directory, too.
func TestMisspeltWordOfWarm(t *testing.T) {
	path, err := exec.LookPath("python3")
	if err != nil {
		testutil.Missing(t, "python3 is not there")
	}
	dir, scripts := t.TempDir(), t.TempDir()
	put(t, filepath.Join(scripts, "train.py"), "", 0o644)
	put(t, filepath.Join(scripts, "autos.py"), "raise SystemExit('imported')\n", 0o644)
	put(t, filepath.Join(dir, "atuo2.py"), "", 0o644)
	script := job.Command{Kind: job.Script, Name: filepath.Join(scripts, "train.py"), Interpreters: []string{path}}
	for _, c := range []struct {
		name    string
		command job.Command
		module  string
		refused bool
	}{
		{"a typing error", script, "atuo", true},
		{"a module of Python's", script, "os", false},
		{"a module beside the script", script, "autos", false},
		{"a module in the working directory, which a script does not see", script, "atuo2", true},
		{"a package that is not there", script, "aut.o", true},
		{"what starts Python itself", job.Command{Name: "true"}, "atuo", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := testJob("1")
			j.Command = c.command
			j.Warm = job.WarmRules{Modules: []string{c.module}, Doubted: map[string]string{c.module: "auto"}}
			j.Sources = job.Sources{"warm": {Kind: job.FromVariable, Name: "MUSTER_WARM"}}
			p, err := New(j, testMachine(dir))
			if err != nil {
				t.Fatal(err)
			}
			err = p.CheckWarm(t.Context())
			if (err != nil) != c.refused {
				t.Fatalf("refused: %v, want %v", err, c.refused)
			}
			if c.refused && (errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "MUSTER_WARM") ||
				!strings.Contains(err.Error(), "did you mean auto?")) {
				t.Errorf("status %d: %v", errhint.CodeOf(err), err)
			}
		})
	}
}
