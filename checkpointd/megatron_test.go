package checkpointd

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"muster/internal/testutil"
)

// megatronModules are what megatron_job imports when a job begins.
const megatronModules = "megatron.core.models.gpt,megatron.core.optimizer.distrib_optimizer,megatron.training.checkpointing"

// TestMegatron has two ranks keep a model of the real megatron-core through the functions of the real
// megatron.training, and DLRover's in front of them. Then processes without muster load what it wrote, with as many
// ranks and with one. Of its forms of checkpoints make test has each format once, one of them with the distributed optimizer.
func TestMegatron(t *testing.T) {
	t.Parallel()
	packages := testutil.PeerPackages(t, "megatron-core")
	forks, folders := trainForks(t).With("megatron_job,"+megatronModules, "testdata:"+packages), []string{packages}
	root := t.TempDir()
	s, log := testService(t, nil)
	cases, twoRanks, oneRank := []string{"classic distributed", "dist"}, 3, 2 // with the job that is damaged, and the one without room
	if testutil.Soak() {
		cases, twoRanks, oneRank = append(cases, "classic", "dist distributed"), 5, 3
	}
	asked := strings.Join(cases, ",")
	out := runRanksOf(t, forks, folders, s.cfg.Socket, 2, filepath.Join("testdata", "megatron_save.py"), root,
		filepath.Join(t.TempDir(), "store"), asked)
	for _, c := range cases {
		for _, what := range []string{"memory", "disk", "flags", "lean"} {
			if !strings.Contains(out, "done "+c+" "+what+"\n") {
				t.Errorf("not done: %s %s\n%s\n%s", c, what, out, log.String())
			}
		}
	}
	s.RoundOver("the test wants it")
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	for _, c := range cases {
		steps, err := List(filepath.Join(root, c))
		if err != nil || len(steps) == 0 {
			t.Errorf("no steps of %s: %v", c, err)
		}
		for _, s := range steps {
			if err := s.Verify(); err != nil {
				t.Errorf("%s: step %d: %v", c, s.Step, err)
			}
		}
	}
	// Back to step 3, as a user goes there; and for one of them a newer step that is damaged.
	for _, c := range cases {
		if err := os.WriteFile(filepath.Join(root, c, "latest_checkpointed_iteration.txt"), []byte("3"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil { // what is in memory goes with it
		t.Fatal(err)
	}
	next, _ := testService(t, nil)
	full, _ := testService(t, func(c *Config) { c.Workers, c.available = 1, func() int64 { return 64 << 10 } })
	damaged := filepath.Join(root, "dist", "iter_0000004", "__0_0.distcp")
	if err := os.Truncate(damaged, 100); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for ranks, want := range map[int]int{2: twoRanks, 1: oneRank} {
		store, socket := filepath.Join(t.TempDir(), "store"), map[int]*Service{2: next, 1: full}[ranks].cfg.Socket
		wg.Go(func() {
			out := runRanksOf(t, forks, folders, "", ranks, filepath.Join("testdata", "megatron_check.py"), root, store, socket, asked)
			if got := strings.Count(out, "equal "); got != want {
				t.Errorf("%d ranks: %d directories are equal, want %d\n%s", ranks, got, want, out)
			}
		})
	}
	wg.Wait()
}
