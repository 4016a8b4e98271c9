package checkpointd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/internal/wire"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == serveWord {
		os.Exit(serveMain(os.Args[2], os.Args[3], os.Args[4]))
	}
	goleak.VerifyTestMain(m)
}

// testService is a service whose workers are clients of this process.
func testService(t *testing.T, change func(*Config)) (*Service, *testutil.Buffer) {
	t.Helper()
	log := &testutil.Buffer{}
	memory := shm(t)
	cfg := Config{Socket: filepath.Join(t.TempDir(), "socket"), RunID: "test", Workers: 2, Memory: memory, Log: zerolog.New(log)}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if left := inMemory(t, memory); len(left) > 0 && !strings.Contains(log.String(), HowToSave) &&
			!strings.Contains(log.String(), HowToGoOn) {
			t.Errorf("left in memory: %v", left)
		}
	})
	return s, log
}

// shm is a directory in memory of the test's own.
func shm(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(DefaultMemory, "test-") //nolint:usetesting // temporary files lie elsewhere than memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// inMemory are the names in such a directory.
func inMemory(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

const size = 300_000

// A worker dies while it copies: the step before is restored, by all, and is written to disk behind them.
func TestKilledWhileSaving(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := testService(t, nil)
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.want(a.load(0, size), fromNone, 0)
	b.want(b.load(1, size), fromNone, 0)
	for step := int64(1); step <= 3; step++ {
		a.save(step, 0, size, false)
		b.save(step, 1, size, false)
	}
	a.save(4, 0, size, false)
	if _, err := b.begin(4, state(4, 1, size)[:1000], false); err != nil {
		t.Fatal(err)
	}
	b.close()
	s.RoundOver("a test")
	a, b = dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.want(a.load(0, size), fromMemory, 3)
	b.want(b.load(1, size), fromMemory, 3)
	a.save(4, 0, size, false) // again, in another life: not to be mixed with the one of before
	s.RoundOver("another test")
	a, b = dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	b.want(b.load(1, size), fromMemory, 3)
	a.want(a.load(0, size), fromMemory, 3)
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, note := chooseDisk(context.Background(), dir)
	if found == nil || found.Step != 3 || found.Shards != 2 {
		t.Fatalf("on disk is %+v %s", found, note)
	}
}

// Save has the newest complete step in memory written while workers go on, and nothing where it is on disk already.
func TestSaveOnNotice(t *testing.T) {
	dir := t.TempDir()
	s, log := testService(t, nil)
	s.Save("nobody is there")
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	s.Save("nothing is there")
	for step := int64(1); step <= 2; step++ {
		a.save(step, 0, size, false)
		b.save(step, 1, size, false)
	}
	a.save(3, 0, size, false) // not complete
	slot, err := b.begin(3, state(3, 1, size), false)
	if err != nil {
		t.Fatal(err)
	}
	s.Save("a notice")
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found, note := chooseDisk(context.Background(), dir); found == nil || found.Step != 2 || found.Shards != 2 {
		t.Fatalf("on disk is %+v %s", found, note)
	}
	s.Save("the same")
	if err := b.ready(slot, 3, size, false); err != nil { // it went on
		t.Fatal(err)
	}
	s.Save("another one")
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found, note := chooseDisk(context.Background(), dir); found == nil || found.Step != 3 {
		t.Fatalf("on disk is %+v %s", found, note)
	}
	text := log.String()
	if !strings.Contains(text, "a notice") || !strings.Contains(text, "another one") || strings.Contains(text, "the same") {
		t.Error(text)
	}
}

// All ranks restore what the first of them was told, although another one has become complete since.
func TestOneDecision(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := testService(t, nil)
	a := dial(t, s).hello(dir, 0, 1)
	a.save(1, 0, size, false)
	s.RoundOver("a test")
	a = dial(t, s).hello(dir, 0, 1)
	reader := dial(t, s)
	if _, err := reader.ask(request{Op: "hello", Version: protocolVersion, Rank: 1, Shards: 1, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	a.want(a.load(0, size), fromMemory, 1)
	a.save(2, 0, size, false)
	reader.want(reader.load(0, size), fromMemory, 1)
	reader.want(reader.load(0, size), fromMemory, 2)
	if _, err := reader.ask(request{Op: "begin", Step: 1, Size: 1}); err == nil {
		t.Error("a rank without a shard was given memory")
	}
}

// flipBit damages the copy of a step of this round when all of the first set's are summed: a worker may do that to its
// mapping.
func flipBit(t *testing.T, s *Service, step int64) {
	t.Helper()
	testutil.Eventually(t, 30*time.Second, "the copies are summed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, slot := range s.sets[0].slots.shards[0] {
			if binary.LittleEndian.Uint32(s.sets[0].mem[slot].bytes[headerBlocks:]) == 0 {
				return false
			}
		}
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sets[0].mem[s.sets[0].slots.at(0, moment{Era: s.round << eraShift, Step: step})].bytes[headerSize+77] ^= 16
}

// A bit flips in memory after a copy was summed: the older one is used, and that is said.
func TestDamagedMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, log := testService(t, nil)
	a := dial(t, s).hello(dir, 0, 1)
	a.save(1, 0, size, false)
	a.save(2, 0, size, false)
	flipBit(t, s, 2)
	s.RoundOver("a test")
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "2")); err != nil { // what was written behind it
		t.Fatal(err)
	}
	s.mu.Lock()
	s.sets[0].committed.Step = -1
	s.mu.Unlock()
	a = dial(t, s).hello(dir, 0, 1)
	a.want(a.load(0, size), fromMemory, 1)
	if !strings.Contains(log.String(), "was damaged") {
		t.Errorf("nobody was told: %s", log.String())
	}
}

// A copy of the round before cannot be written, since it is damaged. Those who wait now have not saved it, and go on
// without it.
func TestWaitAfterDamage(t *testing.T) {
	s, log := testService(t, nil)
	dir := t.TempDir()
	a := dial(t, s).hello(dir, 0, 1)
	a.save(1, 0, size, false)
	flipBit(t, s, 1)
	a.close()
	s.RoundOver("a test")
	if err := s.Drain(t.Context()); !errors.Is(err, errChecksum) {
		t.Fatalf("what is lost is told: %v", err)
	}
	a = dial(t, s).hello(dir, 0, 1)
	a.want(a.load(0, size), fromNone, 0)
	a.save(1, 0, size, false)
	if rep, err := a.ask(request{Op: "wait", Millis: 60_000}); err != nil || !rep.Done {
		t.Errorf("%+v: %v\n%s", rep, err, log.String())
	}
	a.save(2, 0, size, true)
	if rep, err := a.ask(request{Op: "wait", Millis: 60_000}); err != nil || rep.Committed != 2 {
		t.Errorf("%+v: %v", rep, err)
	}
}

// The same with other nodes.
func TestWaitAfterDamageTogether(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, false)
	flipBit(t, c.nodes[0], 1)
	c.begin(0, 1)
	c.load(fromNone, 0)
	c.save(1, false)
	for _, w := range c.workers {
		if rep, err := w.ask(request{Op: "wait", Millis: 60_000}); err != nil || !rep.Done {
			t.Errorf("%+v: %v\n%s", rep, err, c.logs[0])
		}
	}
	c.save(2, true)
	for _, w := range c.workers {
		if rep, err := w.ask(request{Op: "wait", Millis: 60_000}); err != nil || rep.Committed != 2 {
			t.Errorf("%+v: %v", rep, err)
		}
	}
}

// A rank that has saved its shard for the disk, and asks before the others have, waits for the step nevertheless.
func TestWaitBeforeOthersHaveSaved(t *testing.T) {
	s, _ := testService(t, nil)
	dir := t.TempDir()
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.save(3, 0, size, true)
	if rep, err := a.ask(request{Op: "wait", Millis: 20}); err != nil || rep.Done {
		t.Errorf("the step of one shard of two is on disk: %+v, %v", rep, err)
	}
	b.save(3, 1, size, true)
	if rep, err := a.ask(request{Op: "wait", Millis: 60_000}); err != nil || !rep.Done || rep.Committed != 3 {
		t.Errorf("%+v: %v", rep, err)
	}
	a.save(4, 0, size, true)
	b.save(5, 1, size, false) // step 4 will never be complete
	if rep, err := a.ask(request{Op: "wait", Millis: 60_000}); err != nil || !rep.Done || rep.Committed != 3 {
		t.Errorf("%+v: %v", rep, err)
	}
}

// While a step is being written, training goes on saving; what was asked for on disk gets there, the newest at last.
func TestSavesWhileWriting(t *testing.T) {
	dir := t.TempDir()
	slow := &slowDisk{open: make(chan struct{})}
	s, _ := testService(t, func(c *Config) { c.disk = slow })
	a := dial(t, s).hello(dir, 0, 1)
	a.save(1, 0, size, true)
	for step := int64(2); step <= 9; step++ {
		a.save(step, 0, size, step%3 == 0) // 3 and 6 are given up for 9
	}
	close(slow.open)
	rep, err := a.ask(request{Op: "wait", Millis: 60_000})
	if err != nil || !rep.Done || rep.Committed != 9 {
		t.Fatalf("%+v: %v", rep, err)
	}
	steps, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) != 2 || steps[0].Step != 9 || steps[1].Step != 1 || steps[0].Verify() != nil {
		t.Fatalf("on disk: %+v", steps)
	}
}

// A step that is in memory already is saved for the disk, as scripts do that save every tenth step there and every
// hundredth here. Saved to memory once more, it is not written once more.
func TestSavedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := testService(t, nil)
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	for _, persist := range []bool{false, true, false} {
		a.save(5, 0, size, persist)
		b.save(5, 1, size, persist)
		if rep, err := a.ask(request{Op: "wait", Millis: 60_000}); err != nil || !rep.Done || persist && rep.Committed != 5 {
			t.Fatalf("%+v: %v", rep, err)
		}
	}
	before, err := List(dir)
	if err != nil || len(before) != 1 || before[0].Verify() != nil {
		t.Fatalf("on disk: %+v: %v", before, err)
	}
	s.RoundOver("a test")
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, err := List(dir); err != nil || len(after) != 1 || after[0].Attempt != before[0].Attempt {
		t.Errorf("written again: %+v: %v", after, err)
	}
	a = dial(t, s).hello(dir, 0, 2)
	a.want(a.load(0, size), fromMemory, 5)
}

// A shard that finds no memory for a step is not waited for by those who ask whether that is on disk.
func TestWaitWithoutMemory(t *testing.T) {
	dir := t.TempDir()
	s, _ := testService(t, nil)
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.save(1, 0, size, true)
	if rep, err := b.ask(request{Op: "begin", Step: 1, Size: 1 << 49, Persist: true}); err != nil || !rep.Full {
		t.Fatalf("%+v: %v", rep, err)
	}
	if rep, err := a.ask(request{Op: "wait", Millis: 20_000}); err != nil || !rep.Done || rep.Committed != -1 {
		t.Errorf("%+v: %v", rep, err)
	}
}

// A worker that asks where to restore from, while that is found out by reading much, does not keep the round from its
// end.
func TestRoundEndsWhileReading(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	dir := t.TempDir()
	if err := testCommitment(posix{}, dir, 1, 1, noPath).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	// 64 GiB: 2,048 names of one file, whose bytes are on the disk.
	data := make([]byte, 32<<20)
	first := filepath.Join(dir, "1", "part-0")
	if err := os.WriteFile(first, data, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli()))
	if err := rewriteAt(dir, "1", func(m *Manifest) {
		for i := range 2048 {
			name := fmt.Sprintf("1/part-%d", i)
			if i > 0 {
				if err := os.Link(first, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			m.Files = append(m.Files, File{Path: name, Size: int64(len(data)), CRC32C: sum, Attempt: m.Attempt})
		}
	}); err != nil {
		t.Fatal(err)
	}
	s, _ := testService(t, nil)
	a := dial(t, s).hello(dir, 0, 1)
	asked := make(chan error, 1)
	go func() {
		_, err := a.ask(request{Op: "load"})
		asked <- err
	}()
	testutil.Eventually(t, 20*time.Second, "the worker asks", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.sets) == 1 && s.sets[0].loads[0] == 1
	})
	s.RoundOver("a test")
	if err := <-asked; err == nil {
		t.Error("64 GiB were read")
	}
}

// TestListIsLeft: a step of very many files on a slow disk does not hold up who needs to end. The list says why it was
// left.
func TestListIsLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := testCommitment(posix{}, dir, 1, 1, noPath).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := rewriteAt(dir, "1", func(m *Manifest) {
		m.Files = append(m.Files, File{Path: "1/gone", Size: 1, CRC32C: "00000000", Attempt: m.Attempt})
	}); err != nil {
		t.Fatal(err)
	}
	ended := errors.New("the round is over")
	if steps, err := listUntil(func() error { return ended }, dir); err != nil || len(steps) != 1 || !errors.Is(steps[0].Problem, ended) {
		t.Errorf("%+v, %v: want no look at its files", steps, err)
	}
	if steps, err := List(dir); err != nil || len(steps) != 1 || !errors.Is(steps[0].Problem, os.ErrNotExist) {
		t.Errorf("%+v, %v: want the file that is not there", steps, err)
	}
}

// slowDisk makes no file before open is closed.
type slowDisk struct {
	posix
	open chan struct{}
	fail error
}

func (d *slowDisk) Create(at spot) (*os.File, error) {
	<-d.open
	if d.fail != nil {
		return nil, d.fail
	}
	return d.posix.Create(at)
}

// With memory for one copy alone a save waits for the disk, or is passed over, and never tears what is being written.
func TestOneSlot(t *testing.T) {
	dir := t.TempDir()
	slow := &slowDisk{open: make(chan struct{})}
	s, log := testService(t, func(c *Config) { c.disk, c.Slots = slow, 1 })
	a := dial(t, s).hello(dir, 0, 1)
	a.save(1, 0, size, true)
	if _, err := a.begin(2, state(2, 0, size), false); err == nil {
		t.Fatal("the only copy was overwritten while it was being written to disk")
	}
	saved := make(chan error, 1)
	go func() {
		slot, err := a.begin(3, state(3, 0, size), true)
		if err == nil {
			err = a.ready(slot, 3, size, true)
		}
		saved <- err
	}()
	close(slow.open)
	if err := <-saved; err != nil {
		t.Fatal(err)
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found, _ := chooseDisk(context.Background(), dir); found == nil || found.Step != 3 {
		t.Fatalf("on disk: %+v", found)
	}
	if !strings.Contains(log.String(), "room for one copy only") {
		t.Errorf("nobody was told: %s", log.String())
	}
}

func TestNoMemory(t *testing.T) {
	s, _ := testService(t, func(c *Config) { c.available = func() int64 { return 1 << 20 } })
	a := dial(t, s).hello(t.TempDir(), 0, 1)
	rep, err := a.ask(request{Op: "begin", Size: 1 << 30})
	if err != nil || !rep.Full {
		t.Fatalf("%+v: %v", rep, err)
	}
}

// A disk that refuses a step is told to whoever waits, and the step stays in memory and is tried again.
func TestDiskRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	slow := &slowDisk{open: make(chan struct{}), fail: unix.ENOSPC}
	close(slow.open)
	s, _ := testService(t, func(c *Config) { c.disk = slow })
	a := dial(t, s).hello(dir, 0, 1)
	a.save(1, 0, size, true)
	if _, err := a.ask(request{Op: "wait", Millis: 60_000}); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("told: %v", err)
	}
	slow.fail = nil
	s.RoundOver("a test")
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found, _ := chooseDisk(context.Background(), dir); found == nil || found.Step != 1 {
		t.Fatalf("on disk: %+v", found)
	}
}

// Another number of shards: what is in memory cannot be used, is written, and the disk's says how many it has.
func TestAnotherWorld(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := testService(t, nil)
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.save(5, 0, size, false)
	b.save(5, 1, size, false)
	if _, err := dial(t, s).ask(request{Op: "hello", Version: protocolVersion, Shards: 3, Saves: true, Dir: dir}); err == nil {
		t.Error("3 shards beside 2")
	}
	if _, err := dial(t, s).ask(request{Op: "hello", Version: protocolVersion, Shards: 2, Saves: true, Dir: dir}); err == nil {
		t.Error("two workers save one shard")
	}
	s.RoundOver("a test")
	c := dial(t, s).hello(dir, 0, 3)
	if _, err := c.ask(request{Op: "load"}); err == nil || !strings.Contains(err.Error(), "2 ranks saved it") {
		t.Fatalf("told: %v", err)
	}
}

// Another number of shards, and a disk that is full: what is in memory stays there until it can be written.
func TestAnotherWorldFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := &slowDisk{open: make(chan struct{}), fail: unix.ENOSPC}
	close(bad.open)
	s, _ := testService(t, func(c *Config) { c.disk = bad })
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.save(5, 0, size, false)
	b.save(5, 1, size, false)
	s.RoundOver("a test")
	if err := s.Drain(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("told: %v", err)
	}
	dial(t, s).hello(dir, 0, 3)
	if err := s.Drain(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("told: %v", err)
	}
	bad.fail = nil
	s.RoundOver("a test")
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	onDisk(t, dir, 5)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.retired) > 0 {
		t.Error("what is on disk stays in memory")
	}
}

// A state that grows gets more room, and tears nothing.
func TestGrowingState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := testService(t, nil)
	a := dial(t, s).hello(dir, 0, 1)
	for step := int64(1); step <= 5; step++ {
		a.save(step, 0, int(step)*size, false)
	}
	s.RoundOver("a test")
	a = dial(t, s).hello(dir, 0, 1)
	a.want(a.load(0, 5*size), fromMemory, 5)
}

// TestHostileWorkers sends what no client of ours does. Each is refused in words or cut off, and the service goes on.
func TestHostileWorkers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := testService(t, func(c *Config) { c.Memory = "" })
	a := dial(t, s).hello(dir, 0, 1)
	a.save(1, 0, size, false)
	for name, bytes := range map[string]string{
		"huge": "\xff\xff\xff\xff", "not JSON": "\x00\x00\x00\x02{]", "cut off": "\x00\x00\x00\x50{", "a list": "\x00\x00\x00\x02[]",
		"deep": "\x00\x01\x00\x00" + strings.Repeat("[", 65536),
	} {
		conn := dial(t, s).conn
		if _, err := conn.Write([]byte(bytes)); err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseWrite()
		if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
			t.Errorf("%s: answered %q: %v", name, rest, err)
		}
	}
	for _, req := range []request{
		{Op: "begin"},
		{Op: ""},
		{Op: "load"},
		{Op: "hello", Version: 2, Dir: dir, Shards: 1},
		{Op: "hello", Version: 1, Dir: "relative", Shards: 1},
		{Op: "hello", Version: 1, Dir: "/", Shards: 1},
		{Op: "hello", Version: 1, Dir: dir},
		{Op: "hello", Version: 1, Dir: dir, Shards: 1 << 30},
		{Op: "hello", Version: 1, Dir: dir, Shards: 1, Shard: -1},
		{Op: "hello", Version: 1, Dir: "/proc/none", Shards: 1},
	} {
		if rep, err := dial(t, s).ask(req); err == nil {
			t.Errorf("%+v was answered %+v", req, rep)
		}
	}
	slot, err := a.begin(2, state(2, 0, size), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []request{
		{Op: "ready", Slot: 99},
		{Op: "abort", Slot: 99},
		{Op: "begin", Size: -1},
		{Op: "begin", Size: 1 << 60},
		{Op: "hello"},
		{Op: "ready", Slot: slot, MetaOffset: 1 << 62, MetaLength: 1 << 62},
	} {
		if rep, err := a.ask(req); err == nil {
			t.Errorf("%+v was answered %+v", req, rep)
		}
	}
	s.RoundOver("a test")
	a = dial(t, s).hello(dir, 0, 1)
	a.want(a.load(0, size), fromMemory, 1)
	// What a worker does to memory without a name cannot make the agent fault; TestCutMemory has the others.
	if err := unix.Ftruncate(int(s.sets[0].mem[s.sets[0].slots.shards[0][0]].file.Fd()), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("memory can be made shorter: %v", err)
	}
}

func FuzzLayout(f *testing.F) {
	for _, list := range []string{
		`{"files":[{"path":"","parts":[{"archive":[["data.pkl",4096,3],["data/0",4100,10]]},{"bytes":[4096,9]}]}]}`,
		`{"files":[{"path":"a/b","parts":[{"archive":[["data.pkl",9223372036854775807,1]]}]}]}`,
		`{"files":[{"path":"../a","parts":[{"bytes":[4096,-1]}]}],"dir":"x","trackers":[["latest","x"]]}`,
		`{"files":[{"path":"a","parts":[{}]}],"dir":"../x","trackers":[["../latest","x"],[]]}`,
	} {
		f.Add([]byte(list), int64(headerSize), int64(len(list)))
	}
	f.Add([]byte(`{"files":[]}`), int64(-1), int64(1<<62))
	f.Fuzz(func(t *testing.T, data []byte, off, length int64) {
		slot := append(make([]byte, headerSize), data...)
		l, used, err := readLayout(slot, off, length)
		if err != nil {
			return
		}
		if used < 0 || used > int64(len(data)) {
			t.Fatalf("%d bytes of %d are used", used, len(data))
		}
		for _, file := range l.Files {
			if _, err := newFileWriter(slot, file.Parts); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The second signal: what is being written is given up, and nothing of it is left when the service was closed.
func TestDrainGivenUp(t *testing.T) {
	dir := t.TempDir()
	slow := &slowDisk{open: make(chan struct{})}
	s, _ := testService(t, func(c *Config) { c.disk = slow })
	a := dial(t, s).hello(dir, 0, 1)
	a.save(1, 0, size, true)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("a second signal came"))
	if err := s.Drain(ctx); err == nil || !strings.Contains(err.Error(), "second signal") {
		t.Fatalf("told: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, func() { close(slow.open) }) // a disk that hangs ends at last; Close waits for it
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if steps, err := List(dir); err != nil || len(steps) != 0 {
		t.Fatalf("%+v: %v", steps, err)
	}
}

// A rank that waits for another one is let go at once when the round is over.
func TestRoundOverWhileWaiting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := testService(t, nil)
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.save(1, 0, size, false)
	b.save(1, 1, size, false)
	a.save(2, 0, size, false)
	refused := make(chan error, 1)
	go func() {
		_, err := a.begin(3, state(3, 0, size), false)
		refused <- err
	}()
	began := time.Now()
	s.RoundOver("a test")
	if err := <-refused; err == nil || time.Since(began) > waitRanks/2 {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
}

// hungDir is a disk that makes no directory before open is closed.
type hungDir struct {
	posix
	path string
	open chan struct{}
}

func (d *hungDir) MkdirAll(at spot) error {
	if at.dir == d.path {
		<-d.open
	}
	return d.posix.MkdirAll(at)
}

// A disk that hangs while a directory is opened keeps nobody waiting but those who want that directory.
func TestOpeningHangs(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	hung := &hungDir{path: dir, open: make(chan struct{})}
	s, _ := testService(t, func(c *Config) { c.disk = hung })
	ended := make(chan error, 2)
	for shard := range 2 {
		c := dial(t, s)
		go func() {
			_, err := c.ask(request{Op: "hello", Version: protocolVersion, Rank: shard, Shard: shard, Shards: 2, Saves: true, Dir: dir})
			ended <- err
		}()
	}
	testutil.Eventually(t, time.Minute, "the directory is being opened", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.openings[dir] != nil
	})
	a := dial(t, s).hello(other, 0, 1)
	a.save(1, 0, size, true)
	if _, err := a.ask(request{Op: "wait", Millis: 60_000}); err != nil {
		t.Fatal(err)
	}
	s.RoundOver("a test")
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a directory was opened on a disk that hangs")
		}
	}
	close(hung.open)
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.save(1, 0, size, true)
	b.save(1, 1, size, true)
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if steps, err := List(dir); err != nil || len(steps) != 1 {
		t.Fatalf("%+v: %v", steps, err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0e{\"op\":\"begin\"}"))
	f.Add([]byte("\x00\x00\x00\x16{\"op\":\"ready\",\"slot\":-1}"))
	f.Add([]byte("\x7f\xff\xff\xff{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var req request
		err := wire.Read(strings.NewReader(string(data)), frameLimit, &req)
		if err == nil && len(data) < 4+len(req.Op) {
			t.Fatalf("%d bytes became %+v", len(data), req)
		}
	})
}
