package launch

import (
	"strings"
	"testing"

	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/plan"
)

// What the log says of how a rank is entered has no secret of the command line in it.
func TestEnteringShowsNoSecret(t *testing.T) {
	argv := []string{
		"python", "-u", "train.py", "--lr", "0.1", "--api-key", "hunter2hunter2", "db.password=hunter2",
		"--resume=s3://bucket/x?X-Amz-Signature=hunter2",
	}
	for _, way := range enter("/run/x", "/logs/env", plan.Worker{Rank: 3, Dir: "/data"}, argv) {
		if strings.Contains(way, "hunter2") || !strings.Contains(way, `"$@"`) {
			t.Error(way)
		}
	}
}

// What the log says of how a rank is entered has no word in it that holds the value of a Secret, whatever its flag is.
func TestEnteringShowsNoWordFromASecret(t *testing.T) {
	w := plan.Worker{Rank: 3, Dir: "/data", Env: plan.Env{
		{Name: "HOST", Value: "swordfish", Secret: true}, {Name: "N", Value: "1", Secret: true}, {Name: "PLAIN", Value: "train"},
	}}
	for _, secret := range [][]string{{"--host", "swordfish"}, {"--at=x-swordfish-y"}, {"--n", "1"}} {
		argv := append([]string{"python", "-u", "train.py"}, secret...)
		for _, way := range enter("/run/x", "/logs/env", w, argv) {
			if strings.Contains(way, "swordfish") || strings.Contains(way, "--n 1") || !strings.Contains(way, `"$@"`) {
				t.Error(way)
			}
		}
	}
}

// A new command says nothing of a Secret whose value stands in it.
func TestNewCommandShowsNoWordFromASecret(t *testing.T) {
	j := job.Job{WorkerEnv: [][]job.Var{{{Name: "OWN", Value: "from-$HOST", Expand: true}}}}
	j.Env.Set = []job.Var{{Name: "HOST", Value: "swordfish", Secret: true}}
	shown := strings.Join(job.ShownArgsBut([]string{"train.py", "--a", "swordfish", "--b", "from-swordfish"}, j.Vars()), " ")
	if strings.Contains(shown, "swordfish") || !strings.Contains(shown, "train.py --a (9 characters") {
		t.Error(shown)
	}
}

// What events say of a command in the place of a rank has no word in it that holds the value of a Secret.
func TestExecEventShowsNoWordFromASecret(t *testing.T) {
	var j job.Job
	j.Env.Set = []job.Var{{Name: "HOST", Value: "swordfish", Secret: true}}
	s := &Steering{plan: &plan.Plan{Job: j}}
	g := Guests{Vars: j.Vars(), Tell: s.happened}
	g.tell(control.ExecStarted, control.Peer{}, control.ExecWanted{Command: []string{"psql", "--host", "swordfish"}}, 1, nil)
	told := s.events.Behind(0)
	if len(told) != 1 || strings.Contains(told[0].Message, "swordfish") || !strings.HasPrefix(told[0].Message, "psql --host ") {
		t.Errorf("%+v", told)
	}
}
