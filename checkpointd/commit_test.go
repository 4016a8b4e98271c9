package checkpointd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"muster/internal/testutil"
)

// errDied is what a file system says to a process that was killed.
var errDied = errors.New("killed")

// mortal lets so many calls happen, cuts the next one off, and does nothing from then on, as if the machine had stopped
// there. torn lets the call that is cut off leave half of what it wrote.
type mortal struct {
	posix
	mu    sync.Mutex // shards are written at once
	left  int
	torn  bool
	calls int
	old   bool // a kernel or file system that cannot swap names
}

func (m *mortal) next() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.left--; m.left < 0 {
		return errDied
	}
	return nil
}

// tears reports whether the call that was cut off just now leaves half of its work.
func (m *mortal) tears() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.torn && m.left == -1
}

func (m *mortal) MkdirAll(at spot) error {
	if err := m.next(); err != nil {
		return err
	}
	return m.posix.MkdirAll(at)
}

func (m *mortal) Create(at spot) (*os.File, error) {
	if err := m.next(); err != nil {
		return nil, err
	}
	return m.posix.Create(at)
}

func (m *mortal) Sync(f *os.File) error {
	if err := m.next(); err != nil {
		if m.tears() {
			info, _ := f.Stat()
			_ = f.Truncate(info.Size() / 2)
		}
		return err
	}
	return m.posix.Sync(f)
}

func (m *mortal) Rename(from, to spot) error {
	if err := m.next(); err != nil {
		return err
	}
	return m.posix.Rename(from, to)
}

func (m *mortal) Exchange(a, b spot) error {
	if err := m.next(); err != nil {
		return err
	}
	if m.old {
		return syscall.EINVAL
	}
	return m.posix.Exchange(a, b)
}

func (m *mortal) Replace(at spot, data []byte) error {
	if err := m.next(); err != nil {
		if m.tears() { // half of the new file lies beside the old one
			_ = os.WriteFile(filepath.Join(filepath.Dir(at.path()), "."+filepath.Base(at.name)+".HALF"), data[:len(data)/2], 0o600)
		}
		return err
	}
	return m.posix.Replace(at, data)
}

func (m *mortal) SyncDir(at spot) error {
	if err := m.next(); err != nil {
		return err
	}
	return m.posix.SyncDir(at)
}

func (m *mortal) RemoveAll(at spot) error {
	if err := m.next(); err != nil {
		return err
	}
	return m.posix.RemoveAll(at)
}

func (m *mortal) Remove(at spot) error {
	if err := m.next(); err != nil {
		return err
	}
	return m.posix.Remove(at)
}

// content is what a shard's file of a writing holds.
func content(attempt string, step int64, shard int) []byte {
	return fmt.Appendf(nil, "%s step %d shard %d", attempt, step, shard)
}

func testCommitment(d disk, dir string, step int64, shards int, paths func(shard int) string) *commitment {
	c := &commitment{
		disk: d, dir: dir, step: step, stepDir: strconv.FormatInt(step, 10), runID: "test", attempt: newAttempt(), shards: shards,
		now: time.Now,
	}
	for shard := range shards {
		c.files = append(c.files,
			fileSource{Shard: shard, Path: paths(shard), Write: func(_ context.Context, f *os.File) (int64, uint32, error) {
				data := content(c.attempt, step, shard)
				_, err := f.Write(data)
				return int64(len(data)), crc32.Checksum(data, castagnoli()), err
			}})
	}
	return c
}

func noPath(shard int) string { return rankFile(shard) }

// TestCommitSharedFile: two shards that are to become the same file are refused in words, and nothing of them is left.
func TestCommitSharedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := testCommitment(posix{}, dir, 1, 2, func(int) string { return "model.pt" })
	if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "two shards have the same file") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(c.stage().path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was written is left: %v", err)
	}
}

// TestCommitCutOff commits and prunes steps, is killed at any of its calls, and opens the directory again, many times
// over: what is listed as whole is whole and of one attempt, the newest committed step is never lost, and nothing is
// left lying about.
func TestCommitCutOff(t *testing.T) {
	testutil.Long(t)
	base, n := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(base, strconv.Itoa(n))
		defer os.RemoveAll(dir)
		shards := rapid.IntRange(1, 3).Draw(t, "shards")
		layouts := map[string]func(step int64) func(int) string{
			"usual": func(int64) func(int) string { return noPath },
			"named": func(step int64) func(int) string {
				return func(shard int) string { return filepath.Join(dir, fmt.Sprintf("checkpoint-%d-%d.pt", step, shard)) }
			},
		}
		names := []string{"usual", "named"}
		if shards == 1 { // more files than one cannot be replaced at once
			layouts["same"] = func(int64) func(int) string { return func(int) string { return filepath.Join(dir, "latest.pt") } }
			names = append(names, "same")
		}
		paths := layouts[rapid.SampledFrom(names).Draw(t, "layout")]
		keep := rapid.IntRange(0, 2).Draw(t, "keep")
		committed := int64(-1)
		step := int64(0)
		for range rapid.IntRange(1, 6).Draw(t, "writings") {
			lock, err := openForTest(dir)
			if err != nil {
				t.Fatal(err)
			}
			if step > 0 && rapid.IntRange(0, 3).Draw(t, "again") == 0 {
				step-- // after a rollback
			}
			step++
			m := &mortal{left: rapid.IntRange(0, 40).Draw(t, "calls"), torn: rapid.Bool().Draw(t, "torn"), old: rapid.Bool().Draw(t, "old")}
			c := testCommitment(m, dir, step, shards, paths(step))
			err = c.run(context.Background())
			switch {
			case err == nil:
				committed = step
				if err := pruneOn(m, dir, KeepRules{Latest: keep}); err != nil && !errors.Is(err, errDied) {
					t.Fatal(err)
				}
			case !errors.Is(err, errDied):
				t.Fatal(err)
			}
			lock.close()

			lock, err = openForTest(dir)
			if err != nil {
				t.Fatal(err)
			}
			lock.close()
			found, note := chooseDisk(context.Background(), dir)
			switch {
			case found == nil && committed >= 0:
				t.Fatalf("step %d was committed, and nothing is there now (%s)", committed, note)
			case found != nil && found.Step < committed && found.Step != step:
				t.Fatalf("step %d was committed, the newest is %d (%s)", committed, found.Step, note)
			}
			if found != nil {
				committed = found.Step
			}
			steps, err := List(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range steps {
				if s.Verify() != nil {
					continue
				}
				for shard, f := range s.Files {
					got, err := os.ReadFile(f.at(dir))
					if want := content(s.Attempt, s.Step, shard); err != nil || string(got) != string(want) {
						t.Fatalf("%s holds %q: %v", f.Path, got, err)
					}
				}
			}
			left, _ := filepath.Glob(filepath.Join(dir, ownDir, "*-*"))
			temporary, _ := filepath.Glob(filepath.Join(dir, ".*"+tempMark+"*"))
			if left = append(left, temporary...); len(left) > 0 {
				t.Fatalf("left behind: %v", left)
			}
		}
	})
}

// openForTest opens a directory as a job does.
func openForTest(dir string) (*dirLock, error) {
	return openDir(posix{}, dir)
}

// TestCommitCalls is killed at every single call of one commit over an older step, in each layout: the newest step is
// always one of the two.
func TestCommitCalls(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]func(dir string) func(int) string{
		"usual": func(string) func(int) string { return noPath },
		"same":  func(dir string) func(int) string { return func(int) string { return filepath.Join(dir, "latest.pt") } },
	} {
		t.Run(name, func(t *testing.T) {
			for left := 0; ; left++ {
				dir := t.TempDir()
				if err := testCommitment(posix{}, dir, 7, 1, path(dir)).run(t.Context()); err != nil {
					t.Fatal(err)
				}
				m := &mortal{left: left}
				err := testCommitment(m, dir, 8, 1, path(dir)).run(t.Context())
				found, note := chooseDisk(context.Background(), dir)
				if found == nil || found.Step != 7 && found.Step != 8 || err == nil && found.Step != 8 {
					t.Fatalf("killed at call %d: found %+v (%s)", left, found, note)
				}
				tracked, _ := os.ReadFile(filepath.Join(dir, dlroverTracker))
				if n, err := strconv.Atoi(string(tracked)); err != nil || n != 7 && n != 8 || n == 8 && found.Step != 8 {
					t.Fatalf("killed at call %d: DLRover's tracker says %q, the newest step is %d", left, tracked, found.Step)
				}
				if err == nil {
					t.Logf("%d calls", m.calls)
					return
				}
			}
		})
	}
}

// TestDamagedFiles damages the newest of two steps in every way that a disk or a user does: the older one is found.
func TestDamagedFiles(t *testing.T) {
	for name, damage := range map[string]func(dir, file string) error{
		"bit flipped": func(_, file string) error {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			data[len(data)/2] ^= 4
			return os.WriteFile(file, data, 0o600)
		},
		"truncated":        func(_, file string) error { return os.Truncate(file, 3) },
		"removed":          func(_, file string) error { return os.Remove(file) },
		"foreign":          func(dir, file string) error { return os.Rename(filepath.Join(dir, "7", "rank_0.pt"), file) },
		"another's shard":  func(dir, file string) error { return os.Rename(filepath.Join(dir, "8", "rank_1.pt"), file) },
		"a directory":      func(_, file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
		"manifest cut off": func(dir, _ string) error { return os.Truncate(filepath.Join(dir, "8", manifestName), 40) },
		"manifest garbled": func(dir, _ string) error {
			return os.WriteFile(filepath.Join(dir, "8", manifestName), []byte("{\x00"), 0o600)
		},
		"manifest newer":    func(dir, _ string) error { return rewrite(dir, func(m *Manifest) { m.Version = 99 }) },
		"manifest of other": func(dir, _ string) error { return rewrite(dir, func(m *Manifest) { m.Files[0].Attempt = "other" }) },
		"attempt leads away": func(dir, _ string) error {
			return rewrite(dir, func(m *Manifest) {
				m.Attempt = "x/../../../etc/passwd"
				for i := range m.Files {
					m.Files[i].Attempt = m.Attempt
				}
			})
		},
		"manifest leads away": func(dir, _ string) error {
			return rewrite(dir, func(m *Manifest) { m.Files[0].Path = "../../etc/passwd" })
		},
		"trackers garbled": func(dir, file string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, trackerName), []byte("{"), 0o600),
				os.WriteFile(filepath.Join(dir, dlroverTracker), []byte("-8"), 0o600), os.Truncate(file, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, step := range []int64{6, 7, 8} {
				if err := testCommitment(posix{}, dir, step, 2, noPath).run(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if s, note := chooseDisk(context.Background(), dir); s == nil || s.Step != 8 || note != nil {
				t.Fatalf("before: %+v %s", s, note)
			}
			if err := damage(dir, filepath.Join(dir, "8", "rank_0.pt")); err != nil {
				t.Fatal(err)
			}
			s, note := chooseDisk(context.Background(), dir)
			if want := map[string]int64{"foreign": 6}[name]; s == nil || s.Step != max(want, 6) && s.Step != 7 || want != 0 &&
				s.Step != want || len(note) == 0 {
				t.Fatalf("found %+v, note %q", s, note)
			}
		})
	}
}

func rewrite(dir string, change func(*Manifest)) error { return rewriteAt(dir, "8", change) }

// rewriteAt changes the manifest of a step.
func rewriteAt(dir, step string, change func(*Manifest)) error {
	path := filepath.Join(dir, step, manifestName)
	var m Manifest
	text, err := os.ReadFile(path)
	if err := errors.Join(err, json.Unmarshal(text, &m)); err != nil {
		return err
	}
	change(&m)
	text, err = jsonText(m)
	return errors.Join(err, os.WriteFile(path, text, 0o600))
}

// The newest step says which older ones stay, and they count among those that are kept.
func TestPruneSpares(t *testing.T) {
	for keep, want := range map[int][]int64{0: {6, 5, 4, 3, 2, 1}, 1: {6, 3}, 2: {6, 3}, 3: {6, 5, 3}, 4: {6, 5, 4, 3}} {
		dir := t.TempDir()
		for step := int64(1); step <= 6; step++ {
			c := testCommitment(posix{}, dir, step, 1, noPath)
			if c.spare = []int64{1}; step > 3 {
				c.spare = []int64{3}
			}
			if err := c.run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Prune(dir, KeepRules{Latest: keep}, false); err != nil {
			t.Fatal(err)
		}
		var left []int64
		steps, err := List(dir)
		for _, s := range steps {
			left = append(left, s.Step)
		}
		if err != nil || !slices.Equal(left, want) {
			t.Errorf("keep %d leaves %v, want %v (%v)", keep, left, want, err)
		}
	}
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	for step := int64(1); step <= 6; step++ {
		paths := noPath
		if step%2 == 0 {
			paths = func(int) string { return filepath.Join(dir, fmt.Sprintf("checkpoint-%d.pt", step)) }
		}
		if err := testCommitment(posix{}, dir, step, 1, paths).run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	steps := func() (left []int64) {
		list, err := List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			left = append(left, s.Step)
		}
		return left
	}
	for _, try := range []struct {
		rules KeepRules
		dry   bool
		want  []int64
	}{
		{KeepRules{}, false, []int64{6, 5, 4, 3, 2, 1}},
		{KeepRules{Latest: 2}, true, []int64{6, 5, 4, 3, 2, 1}},
		{KeepRules{Latest: 2, Every: 2}, false, []int64{6, 5, 4, 2}},
		{KeepRules{Latest: 2}, false, []int64{6, 5}},
	} {
		if _, err := Prune(dir, try.rules, try.dry); err != nil {
			t.Fatal(err)
		}
		if got := steps(); !slices.Equal(got, try.want) {
			t.Fatalf("%+v leaves %v, want %v", try.rules, got, try.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "checkpoint-2.pt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of step 2 is left: %v", err)
	}
	// The newest that can be used stays, even where the newest cannot.
	if err := os.Truncate(filepath.Join(dir, "checkpoint-6.pt"), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Prune(dir, KeepRules{Latest: 1}, false); err != nil {
		t.Fatal(err)
	}
	if got := steps(); !slices.Contains(got, 5) {
		t.Fatalf("left: %v", got)
	}
	lock, err := openForTest(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.close()
	if _, err := Prune(dir, KeepRules{Latest: 1}, false); !errors.Is(err, errLocked) {
		t.Errorf("pruned beside a job: %v", err)
	}
	if _, err := openForTest(dir); !errors.Is(err, errLocked) {
		t.Errorf("two jobs with one directory: %v", err)
	}
}

// The newest step that can be used stays and counts, whatever names and sizes say of those before it.
func TestPruneDamaged(t *testing.T) {
	testutil.Long(t)
	spoil := map[string]func(dir string) error{
		"manifest": func(dir string) error { return os.WriteFile(filepath.Join(dir, "6", manifestName), []byte("{"), 0o600) },
		"path": func(dir string) error {
			return rewriteAt(dir, "6", func(m *Manifest) { m.Files[0].Path = "../../escape" })
		},
		"a bit": func(dir string) error {
			path := filepath.Join(dir, "6", "rank_0.pt")
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content[len(content)/2] ^= 4
			return os.WriteFile(path, content, 0o600)
		},
	}
	for name, do := range spoil {
		for _, spare := range []int64{0, 3} {
			dir := t.TempDir()
			for step := int64(1); step <= 6; step++ {
				c := testCommitment(posix{}, dir, step, 1, noPath)
				if spare > 0 {
					c.spare = []int64{spare}
				}
				if err := c.run(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := do(dir); err != nil {
				t.Fatal(err)
			}
			dry, err := Prune(dir, KeepRules{Latest: 1}, true)
			if err != nil {
				t.Fatal(err)
			}
			removed, err := Prune(dir, KeepRules{Latest: 1}, false)
			if err != nil || len(dry) != len(removed) {
				t.Errorf("%s: removed %d, and %d were announced: %v", name, len(removed), len(dry), err)
			}
			left := []string{"5", "6"} // 6 is newer than what can be used, and may be mended by somebody
			if spare > 0 {
				left = []string{"3", "5", "6"}
			}
			var names []string
			for n := 1; n <= 6; n++ {
				if _, err := os.Stat(filepath.Join(dir, strconv.Itoa(n))); err == nil {
					names = append(names, strconv.Itoa(n))
				}
			}
			if !slices.Equal(names, left) {
				t.Errorf("%s, spare %d: left are %v, want %v", name, spare, names, left)
			}
		}
	}
}

// TestFullDisk commits to a file system with too little room: the step before is left, and nothing of the new one.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	if err := testCommitment(posix{}, dir, 1, 1, noPath).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	slot := make([]byte, headerSize+8<<20)
	w, err := newFileWriter(slot, []part{{Archive: []record{{pickleName, span{headerSize, 10}}, {"data/0", span{headerSize, 8 << 20}}}}})
	if err != nil {
		t.Fatal(err)
	}
	c := testCommitment(posix{}, dir, 2, 1, noPath)
	c.files[0].Write = w.write
	if err := c.run(t.Context()); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("8 MiB went to 4: %v", err)
	}
	if s, _ := chooseDisk(context.Background(), dir); s == nil || s.Step != 1 {
		t.Fatalf("left is %+v", s)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ownDir, "*-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A step that the tracker names, and of which there is no manifest, or no readable one, is told of: an older one is
// restored instead.
func TestNoManifest(t *testing.T) {
	for name, do := range map[string]func(path string) error{
		"removed": os.Remove,
		"garbage": func(path string) error { return os.WriteFile(path, []byte("garbage"), 0o600) },
		"all of it": func(path string) error {
			return os.RemoveAll(filepath.Dir(path))
		},
	} {
		dir := t.TempDir()
		for step := int64(1); step <= 3; step++ {
			if err := testCommitment(posix{}, dir, step, 1, noPath).run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := do(filepath.Join(dir, "3", manifestName)); err != nil {
			t.Fatal(err)
		}
		found, notes := chooseDisk(t.Context(), dir)
		if found == nil || found.Step != 2 || len(notes) != 1 || !strings.Contains(notes[0], "step 3") {
			t.Errorf("%s: found %+v, notes %q", name, found, notes)
		}
		steps, err := List(dir)
		if err != nil || len(steps) != 3 || steps[0].Step != 3 || steps[0].Verify() == nil {
			t.Errorf("%s: %+v, %v", name, steps, err)
		}
		if removed, err := Prune(dir, KeepRules{Latest: 1}, false); err != nil || len(removed) != 1 || removed[0].Step != 1 {
			t.Errorf("%s: removed %+v, %v", name, removed, err)
		}
	}
}
