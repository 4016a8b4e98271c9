package plan

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/launch/job"
)

// What DeepSpeed's workers are told beside torchelastic's variables, and what they are not.
func TestCrossEnvironment(t *testing.T) {
	j := testJob("3")
	j.Env = job.EnvRules{NoDefaults: true, Cross: true}
	p, err := New(j, testMachine(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Worker(testRound(3), 2, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	got := w.Env.set()
	for name, want := range map[string]string{
		"LOCAL_SIZE": "3", "CROSS_RANK": "1", "CROSS_SIZE": "2", "OMP_NUM_THREADS": "",
		"TORCH_NCCL_ASYNC_ERROR_HANDLING": "",
	} {
		if got[name] != want {
			t.Errorf("%s=%q, want %q", name, got[name], want)
		}
	}
}

// Workers that share cores know how many they have, whatever was inherited.
func TestCoresEnvironment(t *testing.T) {
	j, m := testJob("2"), testMachine(t.TempDir())
	j.Bind = job.BindRules{Mode: job.BindCores, CPUs: "0-4"}
	j.Environ = append(j.Environ, "OMP_NUM_THREADS=9")
	m.BindWorkers = func(mode string, workers int) ([][]int, error) {
		if mode != job.BindCores || workers != 2 {
			t.Errorf("asked for mode %q, %d workers", mode, workers)
		}
		return [][]int{{0, 1}, {2, 3}}, nil
	}
	p, err := New(j, m)
	if err != nil {
		t.Fatal(err)
	}
	for local, want := range [][]int{{0, 1}, {2, 3}} {
		w, err := p.Worker(testRound(2), local, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Env.set()["OMP_NUM_THREADS"]; got != "2" || !cmp.Equal(w.CPUs, want) {
			t.Errorf("local rank %d: CPUs %v, OMP_NUM_THREADS=%s", local, w.CPUs, got)
		}
	}
	m.BindWorkers = func(string, int) ([][]int, error) { return nil, strconv.ErrRange }
	if _, err := New(j, m); err == nil {
		t.Error("workers that cannot share cores are not refused")
	}
}
