package launch

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What DeepSpeed's workers are told beside torchelastic's variables, and what they are not.
func TestCrossEnvironment(t *testing.T) {
	job := testJob("3")
	job.Env = EnvRules{NoDefaults: true, Cross: true}
	p, err := NewPlan(job, testMachine(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Worker(testRound(3), 2, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	got := w.Env.set()
	for name, want := range map[string]string{"LOCAL_SIZE": "3", "CROSS_RANK": "1", "CROSS_SIZE": "2", "OMP_NUM_THREADS": "", "TORCH_NCCL_ASYNC_ERROR_HANDLING": ""} {
		if got[name] != want {
			t.Errorf("%s=%q, want %q", name, got[name], want)
		}
	}
}

// Workers that share cores know how many they have, whatever was inherited.
func TestCoresEnvironment(t *testing.T) {
	job, m := testJob("2"), testMachine(t.TempDir())
	job.Bind = BindRules{Mode: BindCores, CPUs: "0-4"}
	job.Environ = append(job.Environ, "OMP_NUM_THREADS=9")
	m.BindWorkers = func(mode string, workers int) ([][]int, error) {
		if mode != BindCores || workers != 2 {
			t.Errorf("asked for mode %q, %d workers", mode, workers)
		}
		return [][]int{{0, 1}, {2, 3}}, nil
	}
	p, err := NewPlan(job, m)
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
	if _, err := NewPlan(job, m); err == nil {
		t.Error("workers that cannot share cores are not refused")
	}
}
