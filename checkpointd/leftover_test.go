package checkpointd

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

// killed runs an agent in another process, has save use it from two shards, and kills it.
func killed(t *testing.T, runID string, memory, dir string, save func(a, b *client)) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	agent := talk(t, exec.CommandContext(t.Context(), "/proc/self/exe", serveWord, socket, runID, memory))
	agent.hear("serving")
	a, b := dialAt(t, socket).hello(dir, 0, 2), dialAt(t, socket).hello(dir, 1, 2)
	save(a, b)
	agent.kill()
	a.close()
	b.close()
}

// saveBoth saves steps to memory, those that are multiples of 10 to disk.
func saveBoth(steps ...int64) func(a, b *client) {
	return func(a, b *client) {
		a.t.Helper()
		for _, step := range steps {
			a.save(step, 0, size, step%10 == 0)
			b.save(step, 1, size, step%10 == 0)
			if step%10 == 0 {
				if rep, err := a.ask(request{Op: "wait", Millis: 60_000}); err != nil || !rep.Done {
					a.t.Fatalf("%+v: %v", rep, err)
				}
			}
		}
	}
}

// theOnlyLabel is the label of the one agent that has left something.
func theOnlyLabel(t *testing.T, memory string) string {
	t.Helper()
	paths := labelPaths(memory)
	if len(paths) != 1 {
		t.Fatalf("labels: %v", paths)
	}
	return paths[0]
}

// onDisk wants a step to be the newest on disk, and whole.
func onDisk(t *testing.T, dir string, step int64) {
	t.Helper()
	steps, err := List(dir)
	if err != nil || len(steps) == 0 || steps[0].Step != step {
		t.Fatalf("on disk is %+v, want step %d: %v", steps, step, err)
	}
	if err := steps[0].Verify(); err != nil {
		t.Fatal(err)
	}
}

// An agent is killed: the newest complete step is brought to disk, and nothing is left of its memory. A step that one
// shard alone has saved is not a step.
func TestSalvage(t *testing.T) {
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, func(a, b *client) {
		saveBoth(10, 11, 12)(a, b)
		a.save(13, 0, size, false)
		if _, err := b.begin(13, state(13, 1, size), false); err != nil {
			t.Fatal(err)
		}
	})
	found, err := ListMemory(memory)
	if err != nil || len(found) != 2 || found[0].Step != 13 || found[0].Whole != 1 || found[1].Step != 12 || found[1].Whole != 2 {
		t.Fatalf("%+v: %v", found, err)
	}
	if s := found[1]; s.RunID != "test" || s.Dir != dir || s.Running || s.OnDisk || s.Problem != nil || s.Bytes < 2*size ||
		time.Since(s.Saved) > time.Hour {
		t.Errorf("%+v", s)
	}
	onDisk(t, dir, 10)
	label := theOnlyLabel(t, memory)
	if err := Salvage(t.Context(), label, "", zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	onDisk(t, dir, 12)
	if left := inMemory(t, memory); len(left) > 0 {
		t.Errorf("left in memory: %v", left)
	}
	if err := Salvage(t.Context(), label, "", zerolog.Nop()); err != nil {
		t.Errorf("of what is not there any more: %v", err)
	}
}

// What is on disk is not written again, and what is on disk since, from somebody else, is not passed by an older step.
func TestSalvageNothing(t *testing.T) {
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, saveBoth(9, 10))
	before, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Salvage(t.Context(), theOnlyLabel(t, memory), "", zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	if after, err := List(dir); err != nil || len(after) != 1 || after[0].Attempt != before[0].Attempt || len(inMemory(t, memory)) > 0 {
		t.Errorf("%+v, %v: %v", after, inMemory(t, memory), err)
	}
	killed(t, "test", memory, dir, saveBoth(11))
	if err := testCommitment(posix{}, dir, 500, 1, noPath).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := Salvage(t.Context(), theOnlyLabel(t, memory), "", zerolog.Nop()); !errors.Is(err, errOthers) {
		t.Errorf("saved where others have written: %v", err)
	}
	onDisk(t, dir, 500)
	found, err := ListMemory(memory)
	if err != nil || len(found) == 0 || !errors.Is(found[0].Problem, errOthers) {
		t.Fatalf("%+v: %v", found, err)
	}
	elsewhere := t.TempDir()
	if err := found[0].Save(t.Context(), elsewhere, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	onDisk(t, elsewhere, 11)
}

// A worker has written a step itself, and a round has ended since: what was saved later is newer than that, and is
// brought to disk.
func TestSalvageAfterWritten(t *testing.T) {
	t.Parallel()
	memory, dir := shm(t), t.TempDir()
	socket := filepath.Join(t.TempDir(), "socket")
	agent := talk(t, exec.CommandContext(t.Context(), "/proc/self/exe", serveWord, socket, "test", memory))
	agent.hear("serving")
	a, b := dialAt(t, socket).hello(dir, 0, 2), dialAt(t, socket).hello(dir, 1, 2)
	saveBoth(10)(a, b)
	if err := testCommitment(posix{}, dir, 11, 2, noPath).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ask(request{Op: "written", Step: 11}); err != nil {
		t.Fatal(err)
	}
	agent.say("round")
	agent.hear("done")
	a, b = dialAt(t, socket).hello(dir, 0, 2), dialAt(t, socket).hello(dir, 1, 2)
	saveBoth(12)(a, b)
	agent.kill()
	if err := Salvage(t.Context(), theOnlyLabel(t, memory), "", zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	onDisk(t, dir, 12)
}

// The next agent of the run has what a killed one has left: the newest step is restored from memory, and is on disk
// soon. Later saves come after it, and the end leaves nothing.
func TestAdopt(t *testing.T) {
	t.Parallel()
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, saveBoth(10, 11, 12))
	killed(t, "other", memory, t.TempDir(), saveBoth(7))
	t.Cleanup(func() {
		if left, err := ListMemory(memory); err != nil || len(left) != 1 || left[0].RunID != "other" || left[0].Drop() != nil ||
			len(inMemory(t, memory)) > 0 {
			t.Errorf("left in the end: %+v: %v, %v", left, err, inMemory(t, memory))
		}
	})
	var s *Service
	func() {
		log := &testutil.Buffer{}
		var err error
		if s, err = Open(t.Context(), Config{
			Socket: filepath.Join(t.TempDir(), "socket"), RunID: "test", Workers: 2, Memory: memory,
			Log: zerolog.New(log),
		}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
		a.want(a.load(0, size), fromMemory, 12)
		b.want(b.load(1, size), fromMemory, 12)
		if rep, err := a.ask(request{Op: "wait", Millis: 60_000}); err != nil || rep.Committed != 12 {
			t.Fatalf("%+v: %v", rep, err)
		}
		onDisk(t, dir, 12)
		found, err := ListMemory(memory)
		if n := slices.IndexFunc(found, func(m MemoryStep) bool { return m.RunID == "test" }); err != nil || n < 0 || !found[n].Running ||
			!found[n].OnDisk {
			t.Errorf("%+v: %v", found, err)
		}
		saveBoth(3)(a, b) // the script goes back: later all the same
		s.RoundOver("a test")
		a, b = dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
		a.want(a.load(0, size), fromMemory, 3)
		b.want(b.load(1, size), fromMemory, 3)
		if err := s.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}()
	onDisk(t, dir, 3)
}

// An agent that adopts is killed, too, and again: nothing is lost, and nothing is left twice.
func TestAdoptAgain(t *testing.T) {
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, saveBoth(11, 12))
	for step := int64(13); step < 16; step++ {
		killed(t, "test", memory, dir, func(a, b *client) {
			a.want(a.load(0, size), fromMemory, step-1)
			b.want(b.load(1, size), fromMemory, step-1)
			saveBoth(step)(a, b)
		})
	}
	if err := Salvage(t.Context(), theOnlyLabel(t, memory), "", zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	onDisk(t, dir, 15)
	if left := inMemory(t, memory); len(left) > 0 {
		t.Errorf("left in memory: %v", left)
	}
}

// A step that one rank has saved once more is not mixed with what the other has saved.
func TestAdoptSavedAgain(t *testing.T) {
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, func(a, b *client) {
		saveBoth(11, 12)(a, b)
		slot, err := a.begin(12, state(99, 0, size), false) // in place of step 11, and before the other
		if err == nil {
			err = a.ready(slot, 12, size, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	s, _ := testService(t, func(c *Config) { c.RunID, c.Memory = "test", memory })
	a := dial(t, s).hello(dir, 0, 2)
	a.want(a.load(0, size), fromMemory, 12)
}

// Another number of shards cannot use what is left: it is written, and restored from disk.
func TestAdoptOtherShards(t *testing.T) {
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, saveBoth(11))
	s, _ := testService(t, func(c *Config) { c.Memory = memory })
	a := dial(t, s)
	if _, err := a.ask(request{Op: "hello", Version: protocolVersion, Shards: 1, Saves: true, Dir: dir, Reshards: true}); err != nil {
		t.Fatal(err)
	}
	a.want(a.load(0, size), fromDisk, 11)
	onDisk(t, dir, 11)
}

// A run with another id leaves alone what it finds, and says so; so does one whose directory has newer steps from
// elsewhere.
func TestNotAdopted(t *testing.T) {
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, saveBoth(11))
	label := theOnlyLabel(t, memory)
	for _, runID := range []string{"other", "test"} {
		s, log := testService(t, func(c *Config) { c.Memory, c.RunID = memory, runID })
		a := dial(t, s).hello(dir, 0, 2)
		if runID == "other" {
			a.want(a.load(0, size), fromNone, 0)
			if !strings.Contains(log.String(), "a job with another run id was killed") {
				t.Errorf("nobody was told: %s", log)
			}
			a.close()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := testCommitment(posix{}, dir, 500, 2, noPath).run(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		a.want(a.load(0, size), fromDisk, 500)
		if !strings.Contains(log.String(), errOthers.Error()) {
			t.Errorf("nobody was told: %s", log)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := (&MemoryStep{label: label}).Drop(); err != nil {
		t.Errorf("it was taken: %v", err)
	}
}

// A worker that comes while somebody saves what its predecessor has left waits for that.
func TestWaitsForSalvage(t *testing.T) {
	t.Parallel()
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, saveBoth(11))
	lo, err := openLeftover(theOnlyLabel(t, memory))
	if err != nil {
		t.Fatal(err)
	}
	lo.label.Saving = true
	if err := lo.file.write(lo.label); err != nil {
		t.Fatal(err)
	}
	lock, err := openDir(posix{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := testService(t, func(c *Config) { c.Memory, c.RunID = memory, "another" })
	a, came := dial(t, s), make(chan error, 1)
	go func() {
		_, err := a.ask(request{Op: "hello", Version: protocolVersion, Shards: 2, Saves: true, Dir: dir})
		came <- err
	}()
	select {
	case err := <-came:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond): // however long: it waits
	}
	lock.close()
	if err := <-came; err != nil {
		t.Errorf("it did not come in: %v", err)
	}
	lo.letGo()
	if err := lo.file.remove(); err != nil {
		t.Error(err)
	}
}

// Somebody asks a running agent to save.
func TestSaveNow(t *testing.T) {
	dir := t.TempDir()
	s, _ := testService(t, nil)
	a := dial(t, s).hello(dir, 0, 1)
	a.save(4, 0, size, false)
	found, err := ListMemory(s.cfg.Memory)
	if err != nil || len(found) != 1 || !found[0].Running {
		t.Fatalf("%+v: %v", found, err)
	}
	if err := found[0].Save(t.Context(), t.TempDir(), zerolog.Nop()); err == nil {
		t.Error("a running job saved elsewhere")
	}
	if err := found[0].Drop(); !errors.Is(err, errKept) {
		t.Errorf("dropped under a running job: %v", err)
	}
	if err := found[0].Save(t.Context(), "", zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	onDisk(t, dir, 4)
}

// The last step cannot be written: it stays in memory when the service ends, and can be saved later.
func TestFailedStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := &slowDisk{open: make(chan struct{}), fail: unix.ENOSPC}
	close(bad.open)
	s, log := testService(t, func(c *Config) { c.disk = bad })
	a := dial(t, s).hello(dir, 0, 1)
	a.save(4, 0, size, false)
	s.RoundOver("a test")
	if err := s.Drain(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), HowToSave) {
		t.Errorf("nobody was told: %s", log)
	}
	if err := Salvage(t.Context(), theOnlyLabel(t, s.cfg.Memory), "", zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	onDisk(t, dir, 4)
	if left := inMemory(t, s.cfg.Memory); len(left) > 0 {
		t.Errorf("left in memory: %v", left)
	}
}

// A file system of 4 MiB for the steps of a killed agent: they stay in memory, and can be saved elsewhere.
func TestSalvageFullDisk(t *testing.T) {
	memory, dir := shm(t), t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	killed(t, "test", memory, dir, func(a, b *client) {
		a.save(1, 0, 4<<20, false)
		b.save(1, 1, 4<<20, false)
	})
	label := theOnlyLabel(t, memory)
	if err := Salvage(t.Context(), label, "", zerolog.Nop()); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("8 MiB went to 4: %v", err)
	}
	if isKept(label) {
		t.Error("somebody still looks after it")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	elsewhere := t.TempDir()
	if err := Salvage(over, label, elsewhere, zerolog.Nop()); !errors.Is(err, context.Canceled) {
		t.Fatalf("saved although the time was over: %v", err)
	}
	if err := Salvage(t.Context(), label, elsewhere, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	onDisk(t, elsewhere, 1)
}

// Where the directory for memory is small, memory has no name there, which is told once. Checkpoints work.
func TestSmallMemory(t *testing.T) {
	memory, dir := t.TempDir(), t.TempDir()
	if err := syscall.Mount("tmpfs", memory, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(memory, syscall.MNT_DETACH) })
	s, log := testService(t, func(c *Config) { c.Memory = memory })
	a := dial(t, s).hello(dir, 0, 1)
	for step := int64(1); step < 5; step++ {
		a.save(step, 0, 1<<20, false)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	named := 0
	for _, m := range s.sets[0].mem {
		if m.path != "" {
			named++
		}
	}
	if told := strings.Count(log.String(), "too little room"); told != 1 || named != 1 || len(s.sets[0].mem) != 2 {
		t.Errorf("told %d times; %d of %d slots have names", told, named, len(s.sets[0].mem))
	}
	none, log := testService(t, func(c *Config) { c.Memory = filepath.Join(memory, "none") })
	b := dial(t, none).hello(t.TempDir(), 0, 1)
	b.save(1, 0, size, false)
	if !strings.Contains(log.String(), "lost if muster is killed") {
		t.Errorf("nobody was told: %s", log)
	}
	if err := none.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(none.cfg.Memory, 0o700); err != nil { // for what looks at it in the end
		t.Error(err)
	}
}

// Somebody cuts files of memory short: copies in them are lost, and the agent is not.
func TestCutMemory(t *testing.T) {
	testutil.Long(t)
	for _, length := range []int64{0, 100, headerSize, headerSize + size/2} {
		dir := t.TempDir()
		s, _ := testService(t, nil)
		a := dial(t, s).hello(dir, 0, 1)
		a.save(1, 0, size, false)
		a.save(2, 0, size, false)
		s.mu.Lock()
		st := s.sets[0]
		newest := st.mem[st.slots.at(0, st.slots.complete()[0])]
		if err := os.Truncate(newest.path, length); err != nil {
			t.Fatal(err)
		}
		s.mu.Unlock()
		s.RoundOver("a test")
		if err := s.Drain(t.Context()); !errors.Is(err, errCut) && !errors.Is(err, unix.EFAULT) {
			t.Errorf("cut at %d, it was written: %v", length, err)
		}
		a = dial(t, s).hello(dir, 0, 1)
		a.want(a.load(0, size), fromMemory, 1)
		a.save(2, 0, size, false)
		a.want(a.load(0, size), fromMemory, 2)
		slot, err := a.begin(3, state(3, 0, size), false)
		if err != nil {
			t.Fatal(err)
		}
		memories := func() []*memory {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Collect(maps.Values(st.mem))
		}
		for _, m := range memories() { // while a worker copies
			if err := os.Truncate(m.path, length); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.ask(request{Op: "ready", Slot: slot, MetaOffset: headerSize, MetaLength: 2}); err == nil {
			t.Errorf("cut at %d, it was a copy", length)
		}
		for _, m := range memories() {
			if _, whole := m.sums(size, 2, func() bool { return false }); whole && length < headerSize+size/2 {
				t.Errorf("cut at %d, it has checksums", length)
			}
			s.mu.Lock()
			m.seal(size, []uint32{1})
			s.mu.Unlock()
			if err := m.verify(size); !errors.Is(err, errCut) {
				t.Errorf("cut at %d: %v", length, err)
			}
		}
		a.save(4, 0, size, false)
		a.want(a.load(0, size), fromMemory, 4)
		if err := s.Drain(t.Context()); err != nil && !errors.Is(err, errCut) && !errors.Is(err, unix.EFAULT) {
			t.Error(err)
		}
	}
}

// What lies where segments lie may be anything: it is refused, and nothing follows from it.
func TestForeignSegments(t *testing.T) {
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, saveBoth(11, 12))
	label := theOnlyLabel(t, memory)
	files := segmentFiles(label)
	if len(files) != 4 {
		t.Fatalf("segments: %v", files)
	}
	text, err := os.ReadFile(label)
	if err != nil {
		t.Fatal(err)
	}
	// Names that look like ours.
	base := segmentPrefix + filepath.Base(label)[len(segmentPrefix):]
	for name, create := range map[string]func(path string) error{
		base + ".1-0-90": func(path string) error { return os.Symlink(files[0], path) },
		base + ".1-0-91": func(path string) error { return unix.Mkfifo(path, 0o600) },
		base + ".1-0-92": func(path string) error { return os.Mkdir(path, 0o700) },
		base + ".1-0-93": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		base + ".1-0-94": func(path string) error { return os.WriteFile(path, page("MUSTCKP9"), 0o600) },
		base + ".7-0-95": func(path string) error { return os.WriteFile(path, page(headerMagic), 0o600) },
		base + ".":       func(path string) error { return os.WriteFile(path, page(headerMagic), 0o600) },
		base + "b":       func(path string) error { return os.WriteFile(path, text, 0o644) },
		base + "c":       func(path string) error { return os.WriteFile(path, []byte(`{"version":9}`), 0o600) },
		base + "d": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":1,"sets":[{"dir":"..","shards":1}]}`), 0o600)
		},
		base + "e": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":1,"sets":[{"dir":"/x","shards":9000000}]}`), 0o600)
		},
		base + "f": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		if err := create(filepath.Join(memory, name)); err != nil {
			t.Fatal(err)
		}
	}
	found, err := ListMemory(memory)
	if err != nil {
		t.Fatal(err)
	}
	problems := 0
	for _, m := range found {
		if m.Step < 0 && m.Problem != nil {
			problems++
		}
	}
	if problems != 5 || len(found) != 7 {
		t.Errorf("%d of %d have a problem: %+v", problems, len(found), found)
	}
	s, _ := testService(t, func(c *Config) {
		c.Memory = memory
		c.Log = zerolog.Nop()
	})
	a := dial(t, s).hello(dir, 0, 2)
	a.want(a.load(0, size), fromMemory, 12)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(memory); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(memory, 0o700); err != nil { // for what looks at it in the end
		t.Fatal(err)
	}
}

// page is a header with nothing but its first word.
func page(magic string) []byte { return append([]byte(magic), make([]byte, headerSize-len(magic))...) }

// Random bytes in headers, lists and labels of what is left: it can be listed and saved, or not, and that is all.
func TestDamagedLeftovers(t *testing.T) {
	testutil.Long(t)
	memory, dir := shm(t), t.TempDir()
	killed(t, "test", memory, dir, saveBoth(11, 12))
	label := theOnlyLabel(t, memory)
	whole := map[string][]byte{}
	for _, path := range append(segmentFiles(label), label) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		whole[path] = text
	}
	random := rand.New(rand.NewPCG(1, 8))
	saved, all := 0, 100
	if testutil.Soak() {
		all = 300
	}
	for i := range all {
		for path, text := range whole {
			text = slices.Clone(text)
			list := len(text)
			if path != label {
				list = int(binary.LittleEndian.Uint64(text[headerMetaOff:]))
			}
			for range random.IntN(3) {
				switch at := random.IntN(3); {
				case path == label:
					text[random.IntN(len(text))] ^= byte(1 << random.IntN(8))
				case at == 0: // a number in the header
					binary.LittleEndian.PutUint32(text[8+4*random.IntN(22):], random.Uint32()>>random.IntN(32))
				case at == 1:
					text[random.IntN(headerSize)] ^= byte(1 << random.IntN(8))
				default:
					text[list+random.IntN(200)] = byte(random.IntN(256))
				}
			}
			if random.IntN(20) == 0 {
				text = text[:random.IntN(len(text))]
			}
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ListMemory(memory); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(t.TempDir(), "to")
		if err := Salvage(t.Context(), label, to, zerolog.Nop()); err == nil {
			if steps, err := List(to); err == nil && len(steps) > 0 {
				saved++
				onDisk(t, to, steps[0].Step)
			}
		}
		if i%50 == 0 {
			_ = os.RemoveAll(filepath.Dir(to))
		}
	}
	if saved == 0 || saved == all {
		t.Errorf("%d of %d damaged leftovers were saved", saved, all)
	}
}

// TestCutMemoryStaysCut cuts a file of memory short while its pages are being allocated.
func TestCutMemoryStaysCut(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMemory(f, f.Name(), size, 0, "run", 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer m.release()
	if err := os.Truncate(m.path, headerSize); err != nil {
		t.Fatal(err)
	}
	m.prefault(size)
	m.faulting.Wait()
	if err := m.whole(); !errors.Is(err, errCut) {
		t.Errorf("it is whole again: %v", err)
	}
}
