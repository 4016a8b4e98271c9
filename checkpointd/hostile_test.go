package checkpointd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

// Who writes to a directory of checkpoints chooses names in it. These tests plant what such a person would.

// plant writes the manifest of an old step whose files have paths of their own.
func plant(dir string, step int64, attempt string, files ...string) error {
	m := Manifest{Version: manifestVersion, Step: step, Attempt: attempt, Shards: 1}
	for _, path := range files {
		f := File{Path: path, Attempt: attempt}
		if info, err := os.Stat(f.place(dir)); err == nil {
			f.Size = info.Size()
		}
		m.Files = append(m.Files, f)
	}
	text, err := jsonText(m)
	return errors.Join(err, os.MkdirAll(filepath.Join(dir, ownDir), 0o700),
		os.WriteFile(filepath.Join(dir, ownDir, fmt.Sprint(step, ".json")), text, 0o600))
}

// tree is what lies in a directory: names, links and texts.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		text := e.Type().String()
		if e.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += string(content)
		}
		found[path] = text
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// Neither muster ckpt prune nor a job that keeps one step removes anything outside of the directory, or of the newest
// step, or what no step has; and what names such things is listed with a problem, where it cannot be a step.
func TestPruneHostile(t *testing.T) {
	testutil.Long(t)
	newest := func(dir string) string {
		steps, err := List(dir)
		if err != nil {
			return err.Error()
		}
		return steps[0].Attempt
	}
	for name, c := range map[string]struct {
		do      func(dir, victim string) error
		problem bool // a step is told to be unusable
	}{
		"the directory itself": {func(dir, _ string) error { return plant(dir, 0, "a", ".") }, true},
		"the one above":        {func(dir, _ string) error { return plant(dir, 0, "a", "..") }, true},
		"a step's directory":   {func(dir, _ string) error { return plant(dir, 0, "a", "4") }, true},
		"the newest's file":    {func(dir, _ string) error { return plant(dir, 0, newest(dir), "4/rank_0.pt") }, false},
		"beside its files": {func(dir, _ string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "4", "notes"), []byte("mine"), 0o600), plant(dir, 0, "a", "4/notes"))
		}, false},
		"its manifest":   {func(dir, _ string) error { return plant(dir, 0, "a", "4/"+manifestName) }, true},
		"a tracker":      {func(dir, _ string) error { return plant(dir, 0, "a", trackerName) }, true},
		"the lock":       {func(dir, _ string) error { return plant(dir, 0, "a", ownDir+"/lock") }, true},
		"an unclean one": {func(dir, _ string) error { return plant(dir, 0, "a", "x/../4/rank_0.pt") }, true},
		"with an escape": {func(dir, _ string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "\x1b[2J"), nil, 0o600), plant(dir, 0, "a", "\x1b[2J"))
		}, true},
		"a file elsewhere": {func(dir, victim string) error { return plant(dir, 0, "a", filepath.Join(victim, "file")) }, false},
		"through a link": {func(dir, victim string) error {
			return errors.Join(os.Symlink(victim, filepath.Join(dir, "link")), plant(dir, 0, "a", "link/file"))
		}, true},
		"through a link that stays inside": {func(dir, _ string) error {
			return errors.Join(os.Symlink("4", filepath.Join(dir, "link")), plant(dir, 0, newest(dir), "link/rank_0.pt"))
		}, true},
		"a link as a file": {func(dir, victim string) error {
			path := filepath.Join(dir, "1", "rank_0.pt")
			return errors.Join(os.Remove(path), os.Symlink(filepath.Join(victim, "file"), path),
				rewriteAt(dir, "1", func(m *Manifest) { m.Files[0].Size = 4 }))
		}, true},
		"a link in a step": {func(dir, victim string) error {
			return errors.Join(os.Symlink(victim, filepath.Join(dir, "1", "sub")), rewriteAt(dir, "1", func(m *Manifest) {
				m.Files = append(m.Files, File{Path: "1/sub/file", Size: 4, Attempt: m.Attempt})
			}))
		}, true},
		"a step with another's file": {func(dir, _ string) error {
			return rewriteAt(dir, "1", func(m *Manifest) {
				m.Files = append(m.Files, File{Path: "4/rank_0.pt", Size: m.Files[0].Size, Attempt: m.Attempt})
			})
		}, true},
		"a directory of steps": {func(dir, _ string) error {
			return rewriteAt(dir, "1", func(m *Manifest) { m.Dir = "." })
		}, true},
		"sizes": {func(dir, _ string) error {
			return rewriteAt(dir, "1", func(m *Manifest) { m.Files[0].Size = -1 << 40 })
		}, true},
		"sizes that are too much": {func(dir, _ string) error {
			return rewriteAt(dir, "1", func(m *Manifest) {
				m.Files[0].Size = 1 << 62
				for _, path := range []string{"1/b", "1/c"} {
					m.Files = append(m.Files, File{Path: path, Size: 1 << 62, Attempt: m.Attempt})
				}
			})
		}, true},
	} {
		for _, live := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s live %v", name, live), func(t *testing.T) {
				parent := t.TempDir()
				dir, victim := filepath.Join(parent, "checkpoints"), filepath.Join(parent, "victim")
				if err := errors.Join(os.Mkdir(victim, 0o700),
					os.WriteFile(filepath.Join(victim, "file"), []byte("data"), 0o600)); err != nil {
					t.Fatal(err)
				}
				for step := range int64(4) {
					if err := testCommitment(posix{}, dir, step+1, 1, noPath).run(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.do(dir, victim); err != nil {
					t.Fatal(err)
				}
				outside, kept := tree(t, victim), tree(t, filepath.Join(dir, "4"))
				steps, err := List(dir)
				if err != nil || len(steps) == 0 || steps[0].Step != 4 || steps[0].Verify() != nil {
					t.Fatalf("%+v, %v", steps, err)
				}
				if told := slices.ContainsFunc(steps, func(s Step) bool { return s.Problem != nil }); told != c.problem {
					t.Errorf("problem is told: %v, %+v", told, steps)
				}
				if live {
					err = pruneOn(posix{}, dir, KeepRules{Latest: 1})
				} else {
					_, err = Prune(dir, KeepRules{Latest: 1}, false)
				}
				if err != nil {
					t.Error(err)
				}
				if found, _ := chooseDisk(context.Background(), dir); found == nil || found.Step != 4 {
					t.Errorf("the newest step is %+v", found)
				}
				if !mapsEqual(tree(t, victim), outside) || !mapsEqual(tree(t, filepath.Join(dir, "4")), kept) {
					t.Errorf("outside %v, step 4 %v", tree(t, victim), tree(t, filepath.Join(dir, "4")))
				}
				for _, gone := range []string{"2", "3"} {
					if _, err := os.Lstat(filepath.Join(dir, gone)); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("step %s is still there", gone)
					}
				}
				if left, _ := filepath.Glob(filepath.Join(dir, ownDir, "*-*")); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
}

func mapsEqual(a, b map[string]string) bool {
	one, _ := json.Marshal(a)
	other, _ := json.Marshal(b)
	return string(one) == string(other)
}

// What somebody has put beside a step's files stays when the step goes.
func TestPruneLeavesOthersFiles(t *testing.T) {
	dir := t.TempDir()
	for step := int64(1); step <= 2; step++ {
		if err := testCommitment(posix{}, dir, step, 2,
			func(shard int) string { return fmt.Sprintf("parts/%d.pt", shard) }).run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	notes := filepath.Join(dir, "1", "parts", "notes.txt")
	if err := os.WriteFile(notes, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if removed, err := Prune(dir, KeepRules{Latest: 1}, false); err != nil || len(removed) != 1 {
		t.Fatalf("%+v, %v", removed, err)
	}
	if left := tree(t, filepath.Join(dir, "1")); len(left) != 3 || left[notes] == "" {
		t.Errorf("left: %v", left)
	}
	if steps, err := List(dir); err != nil || len(steps) != 1 {
		t.Errorf("%+v, %v", steps, err)
	}
}

// A .muster that leads elsewhere is refused by whoever writes, and told by whoever lists; nothing behind it changes.
func TestOwnDirPlanted(t *testing.T) {
	victim := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(victim, "trash-x"), 0o700),
		os.WriteFile(filepath.Join(victim, "trash-x", "file"), nil, 0o600),
		os.Mkdir(filepath.Join(victim, "stage-x"), 0o700), plant(victim, 3, "a", "../file")); err != nil {
		t.Fatal(err)
	}
	before := tree(t, victim)
	for name, do := range map[string]func(path string) error{
		"a link": func(path string) error { return os.Symlink(victim, path) },
		"a file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a FIFO": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		dir := t.TempDir()
		if err := testCommitment(posix{}, dir, 1, 1, noPath).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.RemoveAll(filepath.Join(dir, ownDir)), do(filepath.Join(dir, ownDir))); err != nil {
			t.Fatal(err)
		}
		if _, err := openForTest(dir); err == nil || !strings.Contains(err.Error(), ownDir) {
			t.Errorf("%s: opened, %v", name, err)
		}
		if _, err := Prune(dir, KeepRules{Latest: 1}, false); err == nil || !strings.Contains(err.Error(), ownDir) {
			t.Errorf("%s: pruned, %v", name, err)
		}
		steps, err := List(dir)
		if err != nil || len(steps) != 2 || steps[0].Verify() != nil || steps[1].Name() != ownDir ||
			!errors.Is(steps[1].Verify(), errName) {
			t.Errorf("%s: %+v, %v", name, steps, err)
		}
	}
	if !mapsEqual(before, tree(t, victim)) {
		t.Errorf("behind the link: %v", tree(t, victim))
	}
}

// within fails the test where do takes forever.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s: it does not come to an end", what)
	}
}

// What is no file of a sensible size, under the name of a tracker, a manifest or a step's file, is told at once, and an
// older step is used.
func TestReadersHostile(t *testing.T) {
	t.Parallel()
	for kind, make := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"endless":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"huge":      func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
		"device":    func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) },
		"link":      func(path string) error { return os.Symlink("/etc/hostname", path) },
	} {
		for _, name := range []string{trackerName, dlroverTracker, "3/" + manifestName, "3/rank_0.pt", ownDir + "/3.json"} {
			t.Run(kind+" as "+filepath.Base(name), func(t *testing.T) {
				dir := t.TempDir()
				for step := int64(1); step <= 3; step++ {
					if err := testCommitment(posix{}, dir, step, 1, noPath).run(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				path := filepath.Join(dir, name)
				_ = os.Remove(path)
				if err := make(path); errors.Is(err, unix.EPERM) {
					testutil.Missing(t, "the right to make a device")
				} else if err != nil {
					t.Fatal(err)
				}
				within(t, "list", func() {
					steps, err := List(dir)
					if err != nil || !slices.ContainsFunc(steps, func(s Step) bool { return s.Problem != nil && s.Verify() != nil }) {
						t.Errorf("%+v, %v", steps, err)
					}
				})
				within(t, "choose", func() {
					found, notes := chooseDisk(context.Background(), dir)
					if found == nil || found.Step < 2 || found.Step == 2 && len(notes) == 0 {
						t.Errorf("%+v, %q", found, notes)
					}
				})
				within(t, "open and prune", func() {
					lock, err := openForTest(dir)
					if err != nil {
						t.Fatal(err)
					}
					lock.close()
					if _, err := Prune(dir, KeepRules{Latest: 1}, false); err != nil {
						t.Error(err)
					}
				})
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("it was removed: %v", err)
				}
			})
		}
	}
}

// holds has another user lock a file, until the test ends.
func holds(t *testing.T, path string) (locked bool) {
	t.Helper()
	cmd := testutil.OtherUser(t, "flock", "--nonblock", path, "sh", "-c", "echo locked; cat")
	stdin, stdout := testutil.StartPiped(t, cmd)
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	word := make([]byte, len("locked"))
	_, err := io.ReadFull(stdout, word)
	return err == nil
}

// TestLockOfReaders: another user who may read a directory cannot keep jobs out of it; not even one who has had the
// lock since it was a file that everybody could read. Jobs keep each other out.
func TestLockOfReaders(t *testing.T) {
	dir := testutil.ReachedDir(t, 0o755)
	path := filepath.Join(dir, ownDir, lockName)
	lock, err := openForTest(dir)
	if err != nil {
		t.Fatal(err)
	}
	lock.close()
	if holds(t, path) {
		t.Fatal("a reader has the lock")
	}
	if err := os.Chmod(path, 0o644); err != nil { // as earlier versions made it
		t.Fatal(err)
	}
	if !holds(t, path) {
		t.Fatal("the test's other user cannot lock what everybody can read")
	}
	lock, err = openForTest(dir)
	if err != nil {
		t.Fatalf("every save fails: %v", err)
	}
	if _, err := openForTest(dir); !errors.Is(err, errLocked) ||
		!strings.Contains(err.Error(), fmt.Sprintf("process %d of user %d holds %s", os.Getpid(), os.Getuid(), path)) {
		t.Errorf("two jobs with one directory: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o044 != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	lock.close()
}

// A directory that is shared on purpose stays so: its lock is for those who may write there.
func TestLockShared(t *testing.T) {
	dir := testutil.ReachedDir(t, 0o777)
	mask := unix.Umask(0)
	lock, err := openForTest(dir)
	unix.Umask(mask)
	if err != nil {
		t.Fatal(err)
	}
	lock.close()
	if !holds(t, filepath.Join(dir, ownDir, lockName)) {
		t.Fatal("who may write cannot lock")
	}
	if _, err := openForTest(dir); !errors.Is(err, errLocked) ||
		!strings.Contains(err.Error(), fmt.Sprint("of user ", testutil.OtherUserID)) {
		t.Errorf("two jobs with one directory: %v", err)
	}
}

// Others who may not write to the directory of checkpoints may not write to .muster, either, and need not own it.
func TestOwnDirOfAnotherUser(t *testing.T) {
	dir := testutil.ReachedDir(t, 0o755)
	own := filepath.Join(dir, ownDir)
	if err := errors.Join(os.Mkdir(own, 0o700), os.Chmod(own, 0o777)); err != nil {
		t.Fatal(err)
	}
	lock, err := openForTest(dir)
	if err != nil {
		t.Fatal(err)
	}
	lock.close()
	if info, err := os.Stat(own); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to give a directory away")
	}
	if err := os.Chown(own, testutil.OtherUserID, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := openForTest(dir); err == nil || !strings.Contains(err.Error(), fmt.Sprint("of user ", testutil.OtherUserID)) {
		t.Errorf("opened: %v", err)
	}
	if err := os.Chown(dir, testutil.OtherUserID, -1); err != nil { // root saves for somebody
		t.Fatal(err)
	}
	if lock, err = openForTest(dir); err != nil {
		t.Errorf("root cannot save to a user's directory: %v", err)
	}
	lock.close()
}

// Without trackers the newest step is the one that was committed last, whatever the clock said; steps of earlier
// versions, which have no numbers, are older, and among themselves as their times say.
func TestNewestByCommit(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	commit := func(step int64, at time.Duration) {
		t.Helper()
		c := testCommitment(posix{}, dir, step, 1, noPath)
		if step%2 == 0 { // those in .muster count, too
			c = testCommitment(posix{}, dir, step, 1, func(int) string { return filepath.Join(dir, fmt.Sprintf("%d.pt", step)) })
		}
		c.now = func() time.Time { return now.Add(at) }
		if err := c.run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	commit(1, 0)
	commit(3, time.Hour)
	for _, step := range []string{"1", "3"} {
		if err := rewriteAt(dir, step, func(m *Manifest) { m.Commit = 0 }); err != nil {
			t.Fatal(err)
		}
	}
	commit(4, -100*time.Hour) // the clock is set back
	commit(5, -200*time.Hour)
	commit(2, -300*time.Hour) // after a rollback
	order := func() (got []int64) {
		steps, err := List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			got = append(got, s.Step)
		}
		return got
	}
	want := []int64{2, 5, 4, 3, 1}
	if got := order(); !slices.Equal(got, want) {
		t.Errorf("with trackers %v, want %v", got, want)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, trackerName)), os.Remove(filepath.Join(dir, dlroverTracker))); err != nil {
		t.Fatal(err)
	}
	if got := order(); !slices.Equal(got, want) {
		t.Errorf("without trackers %v, want %v", got, want)
	}
	if err := rewriteAt(dir, "5", func(m *Manifest) { m.Commit = commitLast }); err != nil {
		t.Fatal(err)
	}
	commit(7, 0)
	if found, _ := chooseDisk(t.Context(), dir); found == nil || found.Step != 7 {
		t.Errorf("behind the last number: %+v", found)
	}
}

// A worker's path that a symbolic link in the directory leads to lies outside of it, where the user wants it: it is
// written, and never removed.
func TestPathThroughLink(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	if err := os.Symlink(other, filepath.Join(dir, "models")); err != nil {
		t.Fatal(err)
	}
	for step := int64(1); step <= 2; step++ {
		path := filepath.Join(dir, "models", fmt.Sprint(step, ".pt"))
		if err := testCommitment(posix{}, dir, step, 1, func(int) string { return path }).run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if found, notes := chooseDisk(t.Context(), dir); found == nil || found.Step != 2 {
		t.Errorf("%+v, %v", found, notes)
	}
	if removed, err := Prune(dir, KeepRules{Latest: 1}, false); err != nil || len(removed) != 1 {
		t.Errorf("%+v, %v", removed, err)
	}
	if left := tree(t, other); len(left) != 3 {
		t.Errorf("left: %v", left)
	}
}

// TestPathThroughLinkOfAnotherUser: who may write to the directory does not choose what is replaced elsewhere, by a link in
// the way of a worker's path.
func TestPathThroughLinkOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to be another user")
	}
	dir, victim := t.TempDir(), t.TempDir()
	link, file := filepath.Join(dir, "models"), filepath.Join(victim, "latest.pt")
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(file, []byte("of another job"), 0o600),
		os.Symlink(victim, link), os.Lchown(link, testutil.OtherUserID, testutil.OtherUserID)); err != nil {
		t.Fatal(err)
	}
	before := tree(t, victim)
	for _, path := range []string{filepath.Join(link, "latest.pt"), filepath.Join(link, "more", "latest.pt")} {
		err := testCommitment(posix{}, dir, 1, 1, func(int) string { return path }).run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "is a symbolic link of user") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if after := tree(t, victim); !mapsEqual(before, after) {
		t.Errorf("behind the link: %v", after)
	}
}

// TestLockIsLinked: the lock may be another name of a file that lies elsewhere, whose mode is not ours to change.
func TestLockIsLinked(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(victim, nil, 0o600), os.Chmod(victim, 0o644), os.MkdirAll(filepath.Join(dir, ownDir), 0o755),
		os.Link(victim, filepath.Join(dir, ownDir, lockName))); err != nil {
		t.Fatal(err)
	}
	lock, err := lockCheckpoints(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.close()
	if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	if other, err := lockCheckpoints(dir); !errors.Is(err, errLocked) {
		other.close()
		t.Errorf("it is locked twice: %v", err)
	}
}

// Files of another user with names of our segments, as long as files can be: they take no room, are not looked at, and
// are told of.
func TestSegmentsOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to be another user")
	}
	memory := shm(t)
	if err := os.Chmod(memory, 0o1777); err != nil {
		t.Fatal(err)
	}
	s, log := testService(t, func(c *Config) { c.Memory, c.Workers = memory, 1 })
	label := s.Label()
	for i, name := range []string{label + ".1-0-1", label + ".1-0-99", label + ".new", label + "x"} {
		testutil.RunOtherUser(t, "sh", "-c", fmt.Sprintf("umask 077; truncate -s %d '%s'", int64(1)<<(40+i), name))
	}
	if !s.segments.room(1 << 20) {
		t.Error("sparse files of somebody else leave no room")
	}
	w := dial(t, s).hello(t.TempDir(), 0, 1)
	w.save(1, 0, size, false)
	found, err := ListMemory(memory)
	told := 0
	for _, m := range found {
		if m.Problem != nil {
			told++
		}
	}
	if err != nil || told != 1 || !slices.ContainsFunc(found, func(m MemoryStep) bool { return m.Step == 1 && m.Problem == nil }) {
		t.Errorf("%+v, %v", found, err)
	}
	if !strings.Contains(log.String(), "3 files of other users") {
		t.Errorf("not told: %s", log.String())
	}
	if left := segmentFiles(label); len(left) == 0 || slices.Contains(left, label+".1-0-99") {
		t.Errorf("ours are %v", left)
	}
	testutil.RunOtherUser(t, "sh", "-c", "rm -f '"+label+"'.1-0-1 '"+label+"'.1-0-99 '"+label+"'.new '"+label+"x'")
}

// TestManifestOfManyEntries: a manifest, or a tracker, of many entries that are nothing takes no more memory than its
// bytes allow.
func TestManifestOfManyEntries(t *testing.T) {
	testutil.Long(t)
	const most = 16 << 20
	for name, c := range map[string]struct{ file, begin, entry string }{
		"files":    {"5/" + manifestName, `{"files":[`, `{}`},
		"trackers": {"5/" + manifestName, `{"trackers":[`, `[]`},
		"spare":    {"5/" + manifestName, `{"spare":[`, `0`},
		"paths":    {trackerName, `{"paths":[`, `""`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			text := c.begin + strings.Repeat(c.entry+",", most/(len(c.entry)+1)) + c.entry + "]}"
			if err := errors.Join(os.Mkdir(filepath.Join(dir, "5"), 0o700),
				os.WriteFile(filepath.Join(dir, c.file), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			steps, err := List(dir)
			runtime.ReadMemStats(&after)
			if err != nil || len(steps) != 1 || steps[0].Problem == nil {
				t.Fatalf("%+v, %v", steps, err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 6*most { // io.ReadAll has taken some of it
				t.Errorf("%d bytes of text took %d bytes of memory", len(text), took)
			}
		})
	}
}

// TestLargeManifest: what a job of many shards writes is read, with strange names, too.
func TestLargeManifest(t *testing.T) {
	testutil.Long(t)
	m := Manifest{Version: manifestVersion, Step: 5, Attempt: "a", Shards: 1 << 18}
	for i := range m.Shards {
		m.Files = append(m.Files, File{Shard: i, Path: fmt.Sprintf("5/%d", i), CRC32C: "00000000", Attempt: "a"})
	}
	for i := range 1000 {
		m.Files[i].Path, m.Spare = "5/"+strings.Repeat("{[,", 20)+strconv.Itoa(i), append(m.Spare, int64(i))
	}
	text, err := json.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	if err := dense(text); err != nil {
		t.Error(err)
	}
}

// TestLabelsOfAnotherUser: another user may give his files the names of our labels. They are no jobs of ours: none is
// shown, and none stands in the way of what is to be saved.
func TestLabelsOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to give a file away")
	}
	dir := t.TempDir()
	for i := range 3 {
		path := filepath.Join(dir, fmt.Sprint(segmentPrefix, os.Geteuid(), "-job-imitation", i))
		if err := errors.Join(os.WriteFile(path, []byte("{}"), 0o600),
			os.Chown(path, testutil.OtherUserID, testutil.OtherUserID)); err != nil {
			t.Fatal(err)
		}
	}
	if steps, err := ListMemory(dir); err != nil || len(steps) > 0 {
		t.Errorf("%d steps in memory, %v", len(steps), err)
	}
}
