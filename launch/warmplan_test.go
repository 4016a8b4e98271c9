package launch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
		want warmCommand
		err  string
	}{
		{"python3", words{"-u", "train.py", "-x", "1"}, warmCommand{probePath: python, probe: words{"python3", "-u", "-c", ""}, form: "script", name: "train.py", arguments: 2}, ""},
		{"python3", words{"-Om", "pkg.train"}, warmCommand{probePath: python, probe: words{"python3", "-O", "-c", ""}, form: "module", name: "pkg.train"}, ""},
		{"python3", words{"-c", "print(1)", "a"}, warmCommand{probePath: python, probe: words{"python3", "-c", ""}, form: "code", arguments: 1}, ""},
		{"python3", words{"-B", "--", "train.py"}, warmCommand{probePath: python, probe: words{"python3", "-B", "-c", ""}, form: "script", name: "train.py"}, ""},
		{"python3", words{"-u", "-"}, warmCommand{}, "standard input"},
		{"train.py", words{"a", "b"}, warmCommand{probePath: "/usr/bin/env", probe: words{"/usr/bin/env", "-S python3 -u", "-c", ""}, form: "script", name: filepath.Join(dir, "train.py"), arguments: 2}, ""},
		{"plain", nil, warmCommand{probePath: python, probe: words{python, "-c", ""}, form: "script", name: filepath.Join(dir, "plain")}, ""},
		{"one", nil, warmCommand{probePath: python, probe: words{python, "-E -s", "-c", ""}, form: "script", name: filepath.Join(dir, "one")}, ""},
		{"python", words{"train.py"}, warmCommand{}, "is a script in front of Python"},
		{"python_job.sh", words{"train.py"}, warmCommand{}, "its #! line names /bin/sh"},
		{"shell", nil, warmCommand{}, "its #! line names /bin/sh"},
		{"perl", nil, warmCommand{}, "its #! line names perl"},
		{"binary", nil, warmCommand{}, "not Python"},
	} {
		command, entry := program(c.name, c.args...)
		got, err := planWarm(command, entry, false, dir, []string{"PATH=" + dir + ":/usr/bin:/bin"})
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s %q: error %v, want one with %q", c.name, c.args, err, c.err)
		case c.err == "" && err != nil:
			t.Errorf("%s %q: %v", c.name, c.args, err)
		case c.err == "":
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(warmCommand{})); diff != "" {
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
	if _, err := planWarm(job.Command{Kind: job.Program, Name: "gone"}, entrypoint{path: "gone", prefix: []string{"gone"}}, false, dir, nil); !errors.Is(err, errNotPython) {
		t.Errorf("a program that cannot be read: %v", err)
	}
}

// TestPrinted gives the end mark in pieces, with output behind it, and between the streams.
func TestPrinted(t *testing.T) {
	t.Parallel()
	const end = "muster-END"
	var p printed
	var pipes [2]*os.File
	done := make(chan struct{}, 2)
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		pipes[i] = w
		go func() {
			p.read(r, string(rune('1'+i)), []byte(end))
			done <- struct{}{}
		}()
	}
	say := func(i int, text string) {
		if _, err := pipes[i].WriteString(text); err != nil {
			t.Error(err)
		}
	}
	for i, text := range []string{"out muster-", "err "} {
		say(i, text)
	}
	for i := range pipes {
		for _, letter := range "muster-EN and more " + end + "dropped" {
			say(i, string(letter))
		}
	}
	pieces, err := p.await(nil)
	got := map[byte]string{}
	for _, piece := range pieces {
		got[piece[0]] += piece[1:]
	}
	if got['1'] != "out muster-muster-EN and more " || got['2'] != "err muster-EN and more " || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, w := range pipes {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		<-done
	}
}

func TestPrintedTooMuch(t *testing.T) {
	t.Parallel()
	var p printed
	for range 3 {
		p.add("1", make([]byte, printLimit/2))
	}
	p.finish()
	p.finish()
	if _, err := p.await(nil); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too much was printed, and it says %v", err)
	}
	gone := make(chan struct{})
	close(gone)
	if _, err := new(printed).await(gone); err == nil {
		t.Error("all is well with a template that has ended")
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
