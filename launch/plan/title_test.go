package plan

import (
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
