package checkpointd

import (
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"

	"muster/internal/testutil"
)

// TestPlacesAreFound: a step whose files have paths of their own is found again, whoever has written it and whoever
// reads: muster, or workers by themselves.
func TestPlacesAreFound(t *testing.T) {
	t.Parallel()
	testutil.Torch(t)
	for _, world := range []int{1, 2} {
		dir := filepath.Join(t.TempDir(), "ckpt")
		worker := func(socket string, step int, want string) {
			t.Helper()
			var ranks errgroup.Group
			for rank := range world {
				ranks.Go(func() error {
					out := runPython(t, socket, filepath.Join("testdata", "places.py"), dir, strconv.Itoa(step), strconv.Itoa(rank),
						strconv.Itoa(world))
					if out != want+"\n" {
						t.Errorf("world %d, rank %d, step %d: %s, want %s", world, rank, step, out, want)
					}
					return nil
				})
			}
			_ = ranks.Wait()
		}
		listed := func(steps ...int64) {
			t.Helper()
			found, err := List(dir)
			if err != nil || len(found) != len(steps) {
				t.Fatalf("%+v, %v; want steps %v", found, err, steps)
			}
			for i, s := range found {
				if s.Step != steps[i] || s.Latest != (i == 0) || s.Shards != world || s.Verify() != nil {
					t.Errorf("%+v: %v; want step %d", s, s.Verify(), steps[i])
				}
			}
		}
		worker("", 10, "found -1 none")
		listed(10)
		worker("", 5, "found 10 disk")
		listed(5, 10)
		if world > 1 {
			continue // muster's own are as with one
		}
		s, _ := testService(t, func(c *Config) { c.Workers, c.Keep = world, 2 })
		worker(s.cfg.Socket, 20, "found 5 disk")
		listed(20, 5) // what was written last stays
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		worker("", 0, "found 20 disk")
	}
}
