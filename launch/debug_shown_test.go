package launch

import (
	"strings"
	"testing"
)

// What the log says of how a rank is entered has no secret of the command line in it.
func TestEnteringShowsNoSecret(t *testing.T) {
	a := &Agent{Plan: &Plan{RunDir: "/run/x"}}
	a.Plan.entry = entrypoint{prefix: []string{"python", "-u", "train.py"}}
	a.Plan.Job.Command.Args = []string{"--lr", "0.1", "--api-key", "hunter2hunter2", "db.password=hunter2", "--resume=s3://bucket/x?X-Amz-Signature=hunter2"}
	for _, way := range a.enter("/logs/env", Worker{Rank: 3, Dir: "/data"}) {
		if strings.Contains(way, "hunter2") || !strings.Contains(way, "python -u train.py --lr 0.1 --api-key") {
			t.Error(way)
		}
	}
}
