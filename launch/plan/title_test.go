package plan

import (
	"os"
	"path/filepath"
	"testing"

	"muster/launch/job"
)

// TestTitle: reports call a command by its program or script, or as who has put a shell around it says.
func TestTitle(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]job.Command{
		"true":     {Kind: job.Program, Name: "true"},
		"torchrun": {Kind: job.Program, Name: "/bin/sh", Args: []string{"-c", "exec torchrun train.py"}, Title: "torchrun"},
	} {
		j := testJob("1")
		j.Command = c
		p, err := New(j, testMachine(t.TempDir()))
		if err != nil || p.Title() != want {
			t.Errorf("%+v: %v, want %s", p, err, want)
		}
	}
}

// No title has the value of a Secret in it, and neither has that of a command that stands for another.
func TestTitleShowsNoSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"python3", "swordfish.py"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	python := filepath.Join(dir, "python3")
	const none = "(12 characters, not shown)"
	for _, c := range []struct {
		want    string
		command job.Command
	}{
		{python + " -c", job.Command{Kind: job.Program, Name: python, Args: []string{"-c", "login = 'swordfish'"}}},
		{"-m pkg", job.Command{Kind: job.Program, Name: python, Args: []string{"-W", "ignore", "-m", "pkg", "swordfish"}}},
		{none, job.Command{Kind: job.Program, Name: python, Args: []string{"-Wignore", "swordfish.py"}}},
		{none, job.Command{Kind: job.Script, Name: "swordfish.py", Interpreters: []string{python}}},
		{"$(TOKEN).py", job.Command{Kind: job.Script, Name: "swordfish.py", Interpreters: []string{python}, Title: "$(TOKEN).py"}},
	} {
		j := testJob("1")
		j.Command = c.command
		j.NodeEnv = []job.Var{{Name: "TOKEN", Value: "swordfish", Secret: true}}
		p, err := New(j, testMachine(dir))
		if err != nil || p.Title() != c.want {
			t.Errorf("%+v: %v, %v, want %s", c.command, p, err, c.want)
			continue
		}
		r, err := p.Replacement([]string{python, "-c", "raise SystemExit('swordfish')"})
		if err != nil {
			t.Errorf("%+v: %v", c.command, err)
			continue
		}
		if p.Use(r); p.Title() != python+" -c" {
			t.Errorf("%+v: another command is called %s", c.command, p.Title())
		}
	}
}
