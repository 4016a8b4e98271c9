package devices

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestEnvProfile has workers of two nodes meet at the places that the variables of each framework name, however the
// nodes come together, and again at other ones after a restart.
func TestEnvProfile(t *testing.T) {
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(spec, []byte("version: 1\ndefaults: {count: 4, model: NVIDIA H100 80GB HBM3}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	simulated := []string{"--simulate-nodes", "2", "--nnodes", "2", "-n", "2", "--accelerator", "fake:" + spec}
	for profile, c := range map[string]struct {
		flags   []string
		places  int
		devices []string // by rank
	}{
		"paddle":     {simulated, 4, []string{"0,1", "2,3", "0,1", "2,3"}},
		"jax":        {append(slices.Clone(simulated), "--isolate-devices", "-n", "4"), 1, slices.Repeat([]string{"0"}, 8)},
		"tensorflow": {[]string{"--hosts", "localhost:2,127.0.0.1:2", "--preflight", "off"}, 4, nil},
	} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			got := drive.Run(t, []string{"MUSTER_LAST_CALL=1s", "PYTHONDONTWRITEBYTECODE=1"}, slices.Concat(
				[]string{"--env-profile", profile, "run", "--max-restarts", "1", "--restart-delay", "0s"}, c.flags,
				[]string{"--", drive.SystemPython(t), drive.Script(t, "profile", "worker.py"), profile, out})...)
			if got.Status != 0 {
				t.Fatalf("status %d:\n%s%s", got.Status, got.Stdout, got.Stderr)
			}
			world := max(4, len(c.devices))
			var lives [2][]string
			for attempt := range lives {
				for rank := range world {
					var told struct {
						Places       []string `json:"places"`
						Own, Devices string
					}
					text, err := os.ReadFile(filepath.Join(out, fmt.Sprintf("%d.%d", attempt, rank)))
					if err == nil {
						err = json.Unmarshal(text, &told)
					}
					if err != nil {
						t.Fatal(err)
					}
					if rank == 0 {
						lives[attempt] = told.Places
					}
					if len(told.Places) != c.places || !slices.Equal(told.Places, lives[attempt]) {
						t.Errorf("attempt %d: rank %d was told of %v, rank 0 of %v", attempt, rank, told.Places, lives[attempt])
					}
					if c.devices != nil && told.Devices != c.devices[rank] {
						t.Errorf("rank %d was told of the devices %q, want %q", rank, told.Devices, c.devices[rank])
					}
				}
			}
			if slices.Equal(lives[0], lives[1]) {
				t.Errorf("the places of both attempts are %v", lives[0])
			}
		})
	}
}

// TestEnvProfileShown: a dry run says which variables there will be, and that their places are chosen later.
func TestEnvProfileShown(t *testing.T) {
	got := drive.Run(t, nil, "run", "-n", "2", "--env-profile", "jax", "--dry-run", "--", "true")
	for _, want := range []string{"JAX_COORDINATOR_ADDRESS", "<chosen when a round starts>", "JAX_PROCESS_ID", "--env-profile jax"} {
		if got.Status != 0 || !strings.Contains(got.Stdout, want) {
			t.Errorf("no %q (status %d):\n%s%s", want, got.Status, got.Stdout, got.Stderr)
		}
	}
	got = drive.Run(t, nil, "run", "--nnodes", "2", "--rdzv", "c10d://h", "--run-id", "x", "--env-profile", "paddle", "--dry-run", "--",
		"true")
	if line := lineWith(got.Stdout, "PADDLE_TRAINER_ID"); !strings.Contains(line, "<decided when nodes meet>") {
		t.Errorf("the rank in Paddle's words: %q", line)
	}
}

// lineWith returns the first line of a text that holds a word, empty for none.
func lineWith(text, word string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			return line
		}
	}
	return ""
}

// TestEnvProfileJAX has real jax find all that jax.distributed.initialize() needs, and add up over two processes.
func TestEnvProfileJAX(t *testing.T) {
	python := filepath.Join(testutil.Peer(t, "jax"), "python")
	testutil.SoakOnly(t)
	t.Parallel()
	got := drive.Run(t, []string{"JAX_PLATFORMS=cpu"}, "run", "-n", "2", "--env-profile", "jax", "--", python,
		drive.Script(t, "profile", "psum.py"))
	for _, want := range []string{"process 0 of 2: sum 3", "process 1 of 2: sum 3"} {
		if got.Status != 0 || !strings.Contains(got.Stdout, want) {
			t.Errorf("no %q (status %d):\n%s%s", want, got.Status, got.Stdout, got.Stderr)
		}
	}
}
