package checkpointd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/testutil"
)

// TestSeveralByHand: nobody but the job itself uses, removes or writes what one of several nodes has left, but for
// somebody who asks.
func TestSeveralByHand(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, false)
	c.save(2, false)
	places := c.sigkillAll(0, 1)
	log := &testutil.Buffer{}
	for rank, memory := range places {
		files := inMemory(t, memory)
		label := theOnlyLabel(t, memory)
		if err := Salvage(t.Context(), label, "", zerolog.New(log)); err != nil {
			t.Error(err)
		}
		found, err := ListMemory(memory)
		if err != nil || len(found) != 2 || found[0].Step != 2 || found[0].Whole != 1 || found[0].Shards != 2 || !found[0].Several ||
			found[0].Running {
			t.Fatalf("%+v: %v", found, err)
		}
		for _, to := range []string{"", filepath.Join(t.TempDir(), "to")} {
			missing := "shards 1"
			if rank == 1 {
				missing = "shards 0"
			}
			if err := found[0].Save(t.Context(), to, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), missing) ||
				!strings.Contains(errhint.Of(err), "--rdzv-id") {
				t.Errorf("saved to %q: %v (%s)", to, err, errhint.Of(err))
			}
		}
		if after := inMemory(t, memory); !slices.Equal(files, after) {
			t.Errorf("there were %v, and there are %v", files, after)
		}
		if left, err := readLabel(label); err != nil || left.Saving {
			t.Errorf("%+v: %v", left, err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.dir, "2")); !errors.Is(err, os.ErrNotExist) || strings.Count(log.String(), HowToGoOn) != 2 {
		t.Errorf("%v\n%s", err, log)
	}
	s, alone := testService(t, func(cfg *Config) { cfg.Memory = places[0] }) // a node that is alone has another job
	a := dial(t, s).hello(c.dir, 0, 2)
	a.want(a.load(0, size), fromNone, 0)
	if !strings.Contains(alone.String(), "a job of several nodes was killed") {
		t.Errorf("nobody was told: %s", alone)
	}
	a.close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	c.round = -1
	successors := c.successors(places...)
	c.begin(successors...)
	c.load(fromMemory, 2)
	c.end(successors...)
}

// TestSeveralSave: one node has copies of all shards, and the others will not come back.
func TestSeveralSave(t *testing.T) {
	c := newNodesUnderTest(t, 2, func(cfg *Config) { cfg.Replicas = 2 })
	c.begin(0, 1)
	c.save(1, false)
	c.save(2, false)
	c.spread(2, 0)
	c.workers[0].save(3, 0, size, false)
	places := c.sigkillAll(0, 1)
	// Here is more of step 3, which may be whole together with other nodes: step 2 goes elsewhere, and nothing is
	// removed.
	found, err := ListMemory(places[0])
	if err != nil || len(found) == 0 || found[0].Step != 3 {
		t.Fatalf("%+v: %v", found, err)
	}
	if err := found[0].Save(t.Context(), "", zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "step 3") ||
		!strings.Contains(errhint.Of(err), "--to") {
		t.Errorf("saved: %v", err)
	}
	to := filepath.Join(t.TempDir(), "to")
	if err := found[0].Save(t.Context(), to, zerolog.Nop()); err != nil {
		t.Error(err)
	}
	onDisk(t, to, 2)
	if l, err := readLabel(theOnlyLabel(t, places[0])); err != nil || l.Saving || len(l.Sets) != 1 {
		t.Errorf("%+v: %v", l, err)
	}
	if found, err = ListMemory(places[1]); err != nil || len(found) == 0 || found[0].Step != 2 || found[0].Whole != 2 {
		t.Fatalf("%+v: %v", found, err)
	}
	if err := found[0].Save(t.Context(), "", zerolog.Nop()); err != nil {
		t.Error(err)
	}
	onDisk(t, c.dir, 2)
	c.nothingIn(places[1])
	if err := (&MemoryStep{label: theOnlyLabel(t, places[0])}).Drop(); err != nil {
		t.Error(err)
	}
	c.nothingIn(places[0])
}
