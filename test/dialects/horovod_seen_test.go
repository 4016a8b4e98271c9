package dialects

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
	"muster/test/drive"
)

// rankedWorker is a worker by Horovod's protocol without Horovod. Once a file is there, rank 0 fails, and the others ask
// for their places in the next world.
const rankedWorker = `
import os, sys, time, urllib.request
at = "http://%s:%s" % (os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
me = os.environ["HOROVOD_HOSTNAME"] + ":" + os.environ["HOROVOD_LOCAL_RANK"]
rank, worlds = os.environ["HOROVOD_RANK"], 0
while rank != "-1":
    print("world", worlds, "rank", rank, flush=True)
    urllib.request.urlopen(urllib.request.Request(at + "/global/rank_" + rank, b"host", method="PUT")).read()
    while worlds or not os.path.exists(os.environ["FAIL"]):
        time.sleep(0.05)
    if rank == "0":
        sys.exit(9)
    worlds += 1
    rank = urllib.request.urlopen(at + "/rank_and_size/" + me).read().decode().split(",")[0]
`

// The workers of an elastic job are seen and entered as those of any job, by the ranks that they have now.
func TestHorovodrunElasticSeen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fail, logs := filepath.Join(dir, "fail"), filepath.Join(dir, "logs")
	j := drive.Start(t, []string{"FAIL=" + fail}, "--fail-policy", "none", "horovodrun", "--output-filename", logs,
		"-np", "3", "--min-np", "1", "-H", "127.0.0.1:1,127.0.0.2:2", "python3", "-c", rankedWorker)
	world := func(size int) (seen control.Answer) {
		t.Helper()
		testutil.Eventually(t, time.Minute, fmt.Sprintf("%d workers run", size), func() bool {
			seen, _ = drive.StatusOf(t, j.RuntimeDir)
			return len(seen.Ranks) == size && !slices.ContainsFunc(seen.Ranks, func(r report.Rank) bool {
				return r.PID == 0 || r.StartTime == nil || syscall.Kill(r.PID, 0) != nil
			})
		})
		return seen
	}
	used := func(size int) {
		t.Helper()
		testutil.Eventually(t, time.Minute, fmt.Sprintf("%d workers are told of with what they use", size), func() bool {
			return !slices.ContainsFunc(world(size).Ranks, func(r report.Rank) bool {
				return r.CPUSeconds == nil || r.ResidentBytes == nil || *r.ResidentBytes < 1<<20 || r.UsageTime == nil ||
					r.LastOutput == nil || time.Since(*r.LastOutput) > time.Hour
			})
		})
	}
	enter := func(rank int, place string) {
		t.Helper()
		testutil.Eventually(t, time.Minute, fmt.Sprintf("rank %d is at %s", rank, place), func() bool { // its agent hears of it
			got := drive.Beside(t, j.RuntimeDir, "exec", "--rank", fmt.Sprint(rank), "--", "sh", "-c",
				"echo at $HOROVOD_HOSTNAME:$HOROVOD_LOCAL_RANK")
			return got.Status == 0 && strings.Contains(got.Stdout, "at "+place)
		})
	}
	first := world(3)
	used(3)
	for rank, place := range []string{"127.0.0.1:0", "127.0.0.2:0", "127.0.0.2:1"} {
		enter(rank, place)
	}
	testutil.Eventually(t, time.Minute, "rank 2's file has its line", func() bool {
		return strings.Contains(drive.Beside(t, j.RuntimeDir, "logs", "--rank", "2").Stdout, "world 0 rank 2")
	})
	drive.Beside(t, j.RuntimeDir, "stacks").Expect(t, 0, "rank", "process python3")
	if err := os.WriteFile(fail, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second := world(2)
	used(2)
	for rank, place := range []string{"127.0.0.2:0", "127.0.0.2:1"} {
		if was, is := first.Ranks[rank+1], second.Ranks[rank]; is.PID != was.PID || is.Rank != rank {
			t.Errorf("rank %d is %+v, it was rank %d in process %d", rank, is, was.Rank, was.PID)
		}
		enter(rank, place)
	}
	drive.Beside(t, j.RuntimeDir, "exec", "--rank", "2", "--", "true").Expect(t, 2, "has no rank 2")
	if got := drive.Beside(t, j.RuntimeDir, "events"); strings.Count(got.Stdout, "HOROVOD_HOSTNAME") < 5 {
		t.Errorf("five commands were run or more:\n%s", got.Stdout)
	}
	testutil.Eventually(t, time.Minute, "the end of a command is told", func() bool {
		told := strings.Split(drive.Beside(t, j.RuntimeDir, "events").Stdout, "\n")
		return slices.ContainsFunc(told, func(l string) bool {
			return strings.Contains(l, "in the place of rank") && strings.Contains(l, " ended") // with its status since Linux 6.15
		})
	})
	drive.Beside(t, j.RuntimeDir, "stop", "--now").Expect(t, 0)
	if got := j.End(); got.Status != 143 {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
}
