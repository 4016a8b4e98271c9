package progress

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"muster/internal/python"
	"muster/internal/testutil"
)

// program runs Python with our packages as the worker with a rank, and returns what it has said.
func program(t *testing.T, runDir string, rank int, text string) string {
	t.Helper()
	packages := filepath.Join(t.TempDir(), "python")
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-c", text)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1", "MUSTER_RUN_DIR="+runDir,
		"RANK="+strconv.Itoa(rank))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func create(t *testing.T, dir string, highest *int64) *File {
	t.Helper()
	f, err := Create(dir, 3, highest)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// What a program tells with muster.progress is what is read.
func TestTold(t *testing.T) {
	dir, done := t.TempDir(), int64(12)
	f := create(t, dir, &done)
	if r, told := f.Read(); told {
		t.Errorf("nobody has told %+v", r)
	}
	began := time.Now()
	said := program(t, dir, 3, `
import time, muster
for n in range(11, 15):
    muster.progress.step(n, total=100, loss=1/n, samples=n * 8)
    time.sleep(0.03)
muster.progress.stalled(0.25)
with muster.progress.section("data"):
    time.sleep(0.02)
with muster.progress.section("all"):
    with muster.progress.section("collective"):
        time.sleep(0.05)
    with muster.progress.section("eval", timeout=900):
        time.sleep(0.5)
        f = muster.progress._file
        f._reals[18], was = 7.0, f._reals[18]
        import shutil, os
        shutil.copy(os.environ["MUSTER_RUN_DIR"] + "/progress/3", os.environ["MUSTER_RUN_DIR"] + "/inside")
        f._reals[18] = was
muster.progress.step(17, total=100, loss=float("nan"), lr=1e-4, samples=object())
`)
	r, told := f.Read()
	if !told || !r.Steps || r.Step != 17 || r.Total != 100 || r.Most != 17 || r.Back || r.Section != "" {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(said, "a value is not told") || strings.Count(said, "\n") != 1 {
		t.Errorf("said %q", said)
	}
	if len(r.Values) != 3 || r.Values[0].Name != "loss" || !math.IsNaN(r.Values[0].Number) || r.Values[1] != (Value{"lr", 1e-4}) ||
		!math.IsNaN(r.Values[2].Number) {
		t.Errorf("%+v", r.Values)
	}
	steps := uint64(0)
	for _, n := range r.Buckets {
		steps += n
	}
	if steps != 6 || r.Median < 25*time.Millisecond || r.Median > 10*time.Second ||
		r.Sum < 0.085 { // 17 are three steps; the evaluation is no part of them
		t.Errorf("%d steps, median %v, %v s in all", steps, r.Median, r.Sum)
	}
	if r.Buckets[5] < 3 && r.Buckets[6]+r.Buckets[7]+r.Buckets[8] == 0 {
		t.Errorf("%v", r.Buckets)
	}
	if r.Loading < 20*time.Millisecond || r.Collective < 50*time.Millisecond || r.Loading+r.Collective > time.Since(began) {
		t.Errorf("in %v of data, in %v of collectives", r.Loading, r.Collective)
	}
	if r.First.Before(began) || !r.Passed.After(r.First) || r.Told.Before(r.Passed) || time.Since(r.Told) < 0 {
		t.Errorf("first %v, passed %v, told %v", r.First.Sub(began), r.Passed.Sub(began), r.Told.Sub(began))
	}
	if r.Stalls != 1 || r.Stalled != 250*time.Millisecond && r.Stalled <= 0 || r.StalledFirst != 0 || r.StalledPassed != 0 {
		t.Errorf("%+v", r)
	}

	inside, err := os.Open(filepath.Join(dir, "inside"))
	if err != nil {
		t.Fatal(err)
	}
	in := &File{file: inside, created: began}
	if r, told := in.Read(); !told || r.Section != "eval" || r.SectionTimeout != 15*time.Minute || r.SectionBegan.Before(r.First) ||
		r.Sum != 7 || r.Step != 14 {
		t.Errorf("%+v", r)
	}
	in.Close()
	f.Close()
	if again, told := f.Read(); !told || again.Step != 17 {
		t.Errorf("%+v", again)
	}
}

// A program after another one of the same worker begins anew, and one that the first has started tells nothing.
func TestToldBySeveral(t *testing.T) {
	testutil.Long(t)
	dir := t.TempDir()
	f := create(t, dir, nil)
	program(t, dir, 3, "import muster; [muster.progress.step(n, a=1) for n in range(1000)]")
	program(t, dir, 3, `
import muster, os, subprocess, sys
muster.progress.step(5)
muster.progress.step(4)
if os.fork() == 0:
    muster.progress.step(77)
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", "import muster; muster.progress.step(78)"], check=True)
`)
	r, _ := f.Read()
	steps := uint64(0)
	for _, n := range r.Buckets {
		steps += n
	}
	if r.Step != 4 || r.Most != 5 || !r.Back || len(r.Values) != 0 || steps != 1 || r.Passed != r.First &&
		r.Passed.Sub(r.First) > time.Second {
		t.Errorf("%+v", r)
	}
	// What is left of it tells nothing to the next one.
	next := create(t, dir, nil)
	if r, told := next.Read(); told {
		t.Errorf("%+v", r)
	}
}

// A program forked from one that has imported the package, but told nothing, is a worker of its own (warm starts).
func TestToldAfterFork(t *testing.T) {
	dir := t.TempDir()
	f := create(t, dir, nil)
	program(t, dir, 3, `
import os
rank = os.environ.pop("RANK")
import muster, muster.progress
if os.fork() == 0:
    os.environ["RANK"] = rank
    muster.progress.step(8)
    os._exit(0)
os.wait()
`)
	if r, told := f.Read(); !told || r.Step != 8 || r.Ends {
		t.Errorf("%v %+v", told, r)
	}
}

// The end of the script is told, of the process that tells steps alone.
func TestEndTold(t *testing.T) {
	dir := t.TempDir()
	f := create(t, dir, nil)
	const forks = `
import muster, os, sys
muster.progress.step(5)
if os.fork() == 0:
    sys.exit()
os.wait()
`
	program(t, dir, 3, forks+"os._exit(0)")
	if r, told := f.Read(); !told || r.Ends {
		t.Errorf("%v %+v", told, r)
	}
	program(t, dir, 3, forks)
	if r, told := f.Read(); !told || !r.Ends || r.Step != 5 {
		t.Errorf("%v %+v", told, r)
	}
}

// Whatever is told, and wherever, the program goes on.
func TestTellWrongly(t *testing.T) {
	testutil.Long(t)
	dir := t.TempDir()
	f := create(t, dir, nil)
	said := program(t, dir, 3, `
import muster, os, threading
from muster.progress import step, section
class Device:
    type = "cuda"
class Tensor:
    device = Device()
    def __float__(self): raise SystemExit("the training waits")
    __index__ = __float__
for n in (0, 1.5, "x", None, 1 << 70, -(1 << 70), Tensor(), True):
    step(n)
for total in (-1, 1 << 80, "x", None):
    step(3, total=total)
step(4, loss=Tensor(), big=10 ** 400, text="a", inf=float("inf"))
step(5, **{"v%d" % i: i for i in range(40)})
step(6, **{"\ud800\0\n" * 100: 1.0, "": 2.0})
with section("e" * 500, timeout="soon"):
    with section(None, timeout=float("nan")):
        step(7)
try:
    with section("fails"):
        raise KeyError("mine")
except KeyError:
    pass
threads = [threading.Thread(target=lambda: [step(n) for n in range(2000)]) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
step(9, loss=1)
`)
	r, told := f.Read()
	if !told || r.Step != 9 || r.Section != "" || len(r.Values) != 1 || r.Values[0] != (Value{"loss", 1}) {
		t.Errorf("%v %+v", told, r)
	}
	if strings.Count(said, "\n") > 16 || strings.Contains(said, "Traceback") {
		t.Error(said)
	}

	// Without muster, without a place, with one that is none.
	for _, run := range []string{"", "/nowhere", t.TempDir()} {
		if out := program(t, run, 3, "import muster; muster.progress.step(1, loss=2)\nwith muster.progress.section('a'): pass"); out != "" {
			t.Error(out)
		}
	}
	fifo := t.TempDir()
	if err := os.Mkdir(filepath.Join(fifo, dirName), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(fifo, dirName, "3"), 0o600); err != nil {
		t.Fatal(err)
	}
	program(t, fifo, 3, "import muster; muster.progress.step(1, loss=2)")
}

// Any bytes are read as numbers within bounds, of a file that is cut, too.
func TestHostile(t *testing.T) {
	dir := t.TempDir()
	f := create(t, dir, nil)
	random := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(dir, dirName, "3")
	var buf [size]byte
	words := []uint64{
		0, 1, math.MaxUint64, 1 << 63, math.MaxInt64, math.Float64bits(math.NaN()), math.Float64bits(math.Inf(1)),
		math.Float64bits(-1), math.Float64bits(math.MaxFloat64),
	}
	for try := range 300 {
		for i := range size / 8 {
			w := random.Uint64()
			if try%2 == 0 {
				w = words[random.IntN(len(words))]
			}
			binary.NativeEndian.PutUint64(buf[8*i:], w)
		}
		copy(buf[:], magic)
		binary.NativeEndian.PutUint64(buf[8*wordSequence:], 2*random.Uint64())
		if err := os.WriteFile(path, buf[:], 0o600); err != nil {
			t.Fatal(err)
		}
		r, told := f.Read()
		if !told && binary.NativeEndian.Uint64(buf[8*wordTime:]) != 0 {
			t.Fatal("nothing was read")
		}
		now := time.Now()
		for _, at := range []time.Time{r.Told, r.First, r.Passed, r.SectionBegan} {
			if !at.IsZero() && (at.After(now) || at.Before(f.created)) {
				t.Fatalf("%v is outside of %v to %v", at, f.created, now)
			}
		}
		life := now.Sub(f.created)
		if r.Total < 0 || r.Median < 0 || r.Sum < 0 || math.IsInf(r.Sum, 0) || math.IsNaN(r.Sum) || r.Stalls < 0 || r.Stalled < 0 ||
			r.Stalled > life || r.StalledFirst > r.Stalled || r.StalledPassed > r.Stalled || r.SectionTimeout < 0 ||
			!r.Passed.IsZero() && (r.Passed.Before(r.First) || r.StalledPassed < r.StalledFirst) || len(r.Values) > mostValues {
			t.Fatalf("%+v", r)
		}
		for _, v := range r.Values {
			if !utf8.ValidString(v.Name) || v.Name == "" || len(v.Name) > 10*nameSize {
				t.Fatalf("%q", v.Name)
			}
		}
		if slices.ContainsFunc(r.Values, func(v Value) bool { return strings.ContainsAny(v.Name, "\n\x1b\x00") }) {
			t.Fatalf("%+v", r.Values)
		}
	}
	before, _ := f.Read()
	for name, spoil := range map[string]func() error{
		"odd": func() error {
			binary.NativeEndian.PutUint64(buf[8*wordSequence:], 7)
			binary.NativeEndian.PutUint64(buf[8*wordStep:], 4242)
			return os.WriteFile(path, buf[:], 0o600)
		},
		"cut": func() error { return os.Truncate(path, 100) }, "empty": func() error { return os.Truncate(path, 0) },
		"another": func() error { return os.WriteFile(path, make([]byte, size), 0o600) },
		"gone":    func() error { return os.Remove(path) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if r, told := f.Read(); !told || r.Step != before.Step || r.Words != before.Words {
			t.Errorf("%s: %v %+v", name, told, r)
		}
		if name == "gone" {
			if err := os.WriteFile(path, buf[:], 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What a program has told that was killed while it told something counts at its end.
func TestKilledInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	f := create(t, dir, nil)
	program(t, dir, 3, "import muster, os\nmuster.progress.step(6)\nmuster.progress._file._ints[3] |= 1\nos._exit(0)")
	if _, told := f.Read(); told {
		t.Error("it is just being written")
	}
	f.Close()
	if r, told := f.Read(); !told || r.Step != 6 {
		t.Errorf("%+v", r)
	}
}

// A program that tells something all the time is read all the time, and never half.
func TestReadWhileWritten(t *testing.T) {
	testutil.Long(t)
	dir := t.TempDir()
	f := create(t, dir, nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		program(t, dir, 3,
			"import muster, time\nend = time.monotonic() + 1\nn = 0\nwhile time.monotonic() < end:\n    n += 1\n"+
				"    muster.progress.step(n, total=n, same=n)")
	})
	testutil.Eventually(t, time.Minute, "it has begun", func() bool { _, told := f.Read(); return told })
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	reads := 0
	last := int64(0)
	for running := true; running; reads++ {
		select {
		case <-done:
			running = false
		default:
		}
		r, _ := f.Read()
		if r.Step != r.Total || r.Step != int64(r.Values[0].Number) || r.Step < last {
			t.Fatalf("%+v after %d", r, last)
		}
		last = r.Step
	}
	t.Logf("%d reads of %d steps", reads, last)
	if last < 1000 {
		t.Errorf("only %d steps", last)
	}
}

func BenchmarkRead(b *testing.B) {
	f, err := Create(b.TempDir(), 0, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	binary.NativeEndian.PutUint64(f.buf[8*wordTime:], 1)
	binary.NativeEndian.PutUint64(f.buf[8*wordFirst:], 1)
	binary.NativeEndian.PutUint64(f.buf[8*wordTold:], 64)
	if _, err := f.file.WriteAt(f.buf[:], 0); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		f.Read()
	}
}
