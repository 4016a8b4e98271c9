package launch

import (
	"strings"
	"testing"

	"muster/launch/plan"
)

// What the log says of how a rank is entered has no secret of the command line in it.
func TestEnteringShowsNoSecret(t *testing.T) {
	argv := []string{
		"python", "-u", "train.py", "--lr", "0.1", "--api-key", "hunter2hunter2", "db.password=hunter2",
		"--resume=s3://bucket/x?X-Amz-Signature=hunter2",
	}
	for _, way := range enter("/run/x", "/logs/env", plan.Worker{Rank: 3, Dir: "/data"}, argv) {
		if strings.Contains(way, "hunter2") || !strings.Contains(way, "python -u train.py --lr 0.1 --api-key") {
			t.Error(way)
		}
	}
}
