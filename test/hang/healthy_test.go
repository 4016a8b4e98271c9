package hang

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestSoakHealthyJobs looks for hangs of jobs that do something long in the midst of their steps, as a training may, and
// beside 8 other programs that compute: none hangs.
func TestSoakHealthyJobs(t *testing.T) {
	testutil.SoakOnly(t)
	const runs = 4
	for _, way := range []string{"steps alone", "evaluation", "compilation", "long first step", "checkpoint stall", "slow disk", "load 8"} {
		for timeout, tells := range map[string]string{"auto": "tells", "5s": "tells not"} {
			for run := range runs {
				t.Run(fmt.Sprintf("%s/%s/%d", way, timeout, run), func(t *testing.T) {
					if way != "load 8" {
						t.Parallel()
					} else { // one after the other, so that there are 8
						for range 8 {
							hog := exec.CommandContext(t.Context(), "nice", "-n", "5", "sh", "-c", "while :; do :; done")
							if err := hog.Start(); err != nil {
								t.Fatal(err)
							}
							defer hog.Wait()
							defer hog.Process.Kill()
						}
					}
					got := drive.Run(t, nil, "run", "-n", "2", "--ckpt", "on", "--hang-timeout", timeout, "--on-hang", "fail", "--",
						"python3", drive.Script(t, "healthy.py"), way, tells)
					if got.Expect(t, 0); strings.Contains(got.Stderr, "the workers hang") {
						t.Errorf("a false alarm:\n%s", got.Stderr)
					}
				})
			}
		}
	}
}
