package devices

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/test/drive"
)

// TestOwnDevices: each worker has its own MIG instance or device, in a fork of a template as by itself, and the same
// one after a restart.
func TestOwnDevices(t *testing.T) {
	t.Parallel()
	dir := drive.WarmDir(t, "script.py", `
import json, os, sys, time
mask = os.environ[os.environ["MASK"]]
print("on", os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["LOCAL_RANK"], mask[-4:], flush=True)
told = os.path.join(os.environ["MUSTER_RUN_DIR"], "told")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    open(told, "w").close()
elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists(told):
        time.sleep(0.01)
    sys.exit(3)
`)
	for _, c := range []struct {
		name, spec, args string
		environ          []string
		first, second    string // end of the masks
	}{
		{
			"MIG", "count: 1\n  mig: {0: [1g.10gb, 1g.10gb]}", "-n auto",
			[]string{"CUDA_VISIBLE_DEVICES=0", "MASK=CUDA_VISIBLE_DEVICES"},
			"/1/0", "/2/0",
		},
		{
			"isolated", "count: 4\n  vendor: metax", "-n 2 --isolate-devices",
			[]string{"CUDA_VISIBLE_DEVICES=3,1", "MASK=MACA_VISIBLE_DEVICES"},
			"3", "1",
		},
	} {
		fake := drive.SpecFile(t, c.spec)
		want := []string{"0 0 " + c.first, "0 1 " + c.second, "1 0 " + c.first, "1 1 " + c.second}
		for warm, forks := range map[string]int{"off": 0, "json": 4} {
			args := slices.Concat([]string{"run", "--log-level", "debug", "--warm", warm, "--max-restarts", "1"}, strings.Fields(c.args),
				[]string{"--", "python3", filepath.Join(dir, "script.py")})
			got := drive.Start(t, append(c.environ, "MUSTER_FAKE="+fake, "PATH=/usr/bin:"+os.Getenv("PATH")), args...).End()
			drive.WantWarm(t, got, 0, forks)
			if d := cmp.Diff(want, drive.SaidOn(got)); d != "" {
				t.Errorf("%s, --warm %s (-want +got)\n%s%s", c.name, warm, d, got.Stderr)
			}
		}
	}
}
