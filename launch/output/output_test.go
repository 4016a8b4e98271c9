package output

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/launch/job"
)

// TestLogWorker is no test: it is the worker process of the tests here, which start the test binary again.
func TestLogWorker(t *testing.T) {
	args := strings.Fields(os.Getenv("MUSTER_LOG_WORKER"))
	if len(args) == 0 {
		t.Skip("not started as a worker")
	}
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch args[0] {
	case "lines": // rank, count, bytes of the longest line
		writeLines(os.Stdout, number(1), number(2), number(3))
	case "bulk": // megabytes, bytes a line
		block := bytes.Repeat([]byte(strings.Repeat("x", number(2)-1)+"\n"), max(1, 64<<10/number(2)))
		for left := number(1) * 1e6; left > 0; left -= len(block) {
			if _, err := os.Stdout.Write(block); err != nil {
				os.Exit(3)
			}
		}
	case "busy": // megabytes, megabytes per second of computing, bytes a write
		writeBusy(number(1)*1e6, number(2)*1e6, number(3))
	}
	os.Exit(0)
}

// lineLength gives the length of a worker's line number i: all sizes, with a giant now and then.
func lineLength(rank, i, longest int) int {
	switch {
	case i%97 == 96:
		return longest>>rank - i
	case i%31 == 30:
		return 70_000 + i
	case i%7 == 6:
		return 4096 - 8 + i%16
	}
	return i * 37 % 300
}

// writeLines writes lines "<rank> <number> <length> <rank as a letter, length times>" in pieces that end anywhere.
func writeLines(w io.Writer, rank, count, longest int) {
	random := rand.New(rand.NewPCG(uint64(rank), 7))
	var pending []byte
	for i := range count {
		n := lineLength(rank, i, longest)
		pending = fmt.Appendf(pending, "%d %d %d ", rank, i, n)
		pending = append(pending, bytes.Repeat([]byte{'a' + byte(rank)}, n)...)
		pending = append(pending, '\n')
		for len(pending) > 0 && (i == count-1 || len(pending) > 20_000) {
			n := min(len(pending), 1+random.IntN(100_000))
			if _, err := w.Write(pending[:n]); err != nil {
				os.Exit(3)
			}
			pending = pending[n:]
		}
	}
}

// writeBusy computes and writes in turn, like a worker that prints a lot while it trains. In the end it says on
// standard error how many nanoseconds that took, without the time it was ready to run and had no processor.
func writeBusy(total, rate, size int) {
	runtime.LockOSThread()
	cpu := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			panic(err)
		}
		return time.Duration(ts.Nano())
	}
	block := bytes.Repeat([]byte(strings.Repeat("x", 99)+"\n"), 1+size/100)[:size]
	begin, waited := time.Now(), runDelay()
	for range total / size {
		for end := cpu() + time.Duration(size)*time.Second/time.Duration(rate); cpu() < end; {
			continue
		}
		if _, err := os.Stdout.Write(block); err != nil {
			os.Exit(3)
		}
	}
	fmt.Fprintln(os.Stderr, int64(time.Since(begin)-(runDelay()-waited)))
}

// runDelay is how long this thread has waited for a processor (Linux, Documentation/scheduler/sched-stats.rst).
func runDelay() time.Duration {
	data, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		panic(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		panic(err)
	}
	return time.Duration(n)
}

// checkLines fails the test unless out is the whole lines of all workers, in each one's order, each behind
// prefix(rank).
func checkLines(t *testing.T, out []byte, workers, count, longest int, prefix func(rank int) string) {
	t.Helper()
	next := make([]int, workers)
	r := bufio.NewReaderSize(bytes.NewReader(out), longest+100)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		var head string
		if head = string(line[:min(len(line), 60)]); err != nil {
			t.Fatalf("a last line without newline: %q", head)
		}
		rank := -1
		for i := range workers {
			if rest, ok := bytes.CutPrefix(line, fmt.Appendf([]byte(prefix(i)), "%d ", i)); ok {
				rank, line = i, rest
				break
			}
		}
		if rank < 0 {
			t.Fatalf("a line of no worker: %q", head)
		}
		at := next[rank]
		next[rank]++
		n := lineLength(rank, at, longest)
		rest, ok := bytes.CutPrefix(line, fmt.Appendf(nil, "%d %d ", at, n))
		if !ok || len(rest) != n+1 || bytes.Count(rest, []byte{'a' + byte(rank)}) != n {
			t.Fatalf("rank %d: want line %d of %d bytes, got %d bytes: %q", rank, at, n, len(rest)-1, head)
		}
	}
	for rank, n := range next {
		if n != count {
			t.Errorf("rank %d: %d of %d lines", rank, n, count)
		}
	}
}

// collector is a console whose output is collected.
type collector struct {
	w     *os.File
	done  chan struct{}
	buf   bytes.Buffer
	lines atomic.Int64
}

// Write is called by one goroutine; lines can be read by any.
func (c *collector) Write(p []byte) (int, error) {
	c.lines.Add(int64(bytes.Count(p, []byte{'\n'})))
	return c.buf.Write(p)
}

func collect(t *testing.T) *collector {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{w: w, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer r.Close()
		if _, err := io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{r}, make([]byte, 1<<20)); err != nil {
			t.Error(err)
		}
	}()
	return c
}

// end waits for the last byte; the console was closed.
func (c *collector) end() []byte {
	c.w.Close()
	<-c.done
	return c.buf.Bytes()
}

// rig is an agent's output with collected consoles.
type rig struct {
	*Logs
	out, err *collector
}

func newRig(t *testing.T, rules job.LogRules) *rig {
	t.Helper()
	goroutines, descriptors := goleak.IgnoreCurrent(), openDescriptors(t)
	t.Cleanup(func() {
		goleak.VerifyNone(t, goroutines)
		if n := openDescriptors(t); n > descriptors {
			t.Errorf("%d descriptors are open, %d were before", n, descriptors)
		}
	})
	r := &rig{out: collect(t), err: collect(t)}
	var err error
	r.Logs, err = Open(Setup{
		Rules: rules, RunID: "job", TempDir: t.TempDir(), Stdout: r.out.w, Stderr: r.err.w, Log: zerolog.New(zerolog.NewTestWriter(t)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) shownLines() int { return int(r.out.lines.Load()) }

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// run runs one attempt of workers to its end and returns what they left.
func (r *rig) run(t *testing.T, restartCount int, commands ...[]string) []*Worker {
	t.Helper()
	a, err := r.Attempt(restartCount, len(commands))
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*Worker, len(commands))
	running := make([]*exec.Cmd, len(commands))
	for i, argv := range commands {
		all[i], running[i] = start(t, a, i, argv...)
	}
	for i, w := range all {
		running[i].Wait()
		w.Finish(t.Context())
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	return all
}

// close closes the agent's side and returns what the consoles showed.
func (r *rig) close(t *testing.T, succeeded bool) (stdout, stderr string) {
	t.Helper()
	if err := r.Close(succeeded); err != nil {
		t.Error(err)
	}
	return string(r.out.end()), string(r.err.end())
}

func start(t *testing.T, a *Attempt, localRank int, argv ...string) (*Worker, *exec.Cmd) {
	t.Helper()
	w, err := a.Worker(Identity{LocalRank: localRank, Rank: 100 + localRank, Role: "default", Host: "node"})
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := w.Files()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // no Pdeathsig: it comes when the thread ends that has started it
	if argv[0] == os.Args[0] {
		cmd.Args, cmd.Env = []string{argv[0], "-test.run=^TestLogWorker$"}, append(os.Environ(),
			"MUSTER_LOG_WORKER="+strings.Join(argv[1:], " "), "GORACE=atexit_sleep_ms=0")
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }) // what the worker may have left
	w.Started()
	return w, cmd
}

func workerArgv(args ...any) []string {
	return append([]string{os.Args[0]}, strings.Fields(fmt.Sprintln(args...))...)
}

func shell(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestLinesOfWorkersAreNeverTorn(t *testing.T) {
	testutil.Long(t)
	const workers, count, longest = 4, 120, 8 << 20
	var commands [][]string
	for rank := range workers {
		commands = append(commands, workerArgv("lines", rank, count, longest))
	}
	none := func(int) string { return "" }
	torchrun := func(rank int) string { return fmt.Sprintf("[default%d]:", rank) }
	ranks := func(rank int) string { return fmt.Sprintf("[%d] ", 100+rank) }
	for _, c := range []struct {
		name   string
		rules  job.LogRules
		prefix func(int) string
	}{
		{"pipes", job.LogRules{Dir: os.DevNull}, none},
		{"pipes with prefix", job.LogRules{Dir: os.DevNull, PrefixAll: true}, ranks},
		{"tee", job.LogRules{Tee: job.StreamMap{Default: job.Both}}, torchrun},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.rules.Dir == "" {
				c.rules.Dir = t.TempDir()
			}
			r := newRig(t, c.rules)
			all := r.run(t, 0, commands...)
			for _, w := range all {
				for i := range 2 {
					if w.dir == "" || i == 1 {
						continue
					}
					data, err := os.ReadFile(filepath.Join(w.dir, stdoutFile))
					if err != nil {
						t.Fatal(err)
					}
					var want bytes.Buffer
					writeLines(&want, w.id.LocalRank, count, longest)
					if !bytes.Equal(data, want.Bytes()) {
						t.Errorf("rank %d: the file differs from what was written", w.id.LocalRank)
					}
				}
			}
			out, _ := r.close(t, true)
			checkLines(t, []byte(out), workers, count, longest, c.prefix)
		})
	}
}

func TestStreams(t *testing.T) {
	say := shell("echo out; echo err >&2; printf tail")
	two := func(m map[int]job.Streams) job.StreamMap { return job.StreamMap{ByRank: m} }
	for _, c := range []struct {
		name           string
		rules          job.LogRules
		stdout, stderr string
		files          []string // of the attempt, with their size
		last           string   // of local rank 1
	}{
		{
			"shown as it is",
			job.LogRules{},
			"out\nout\ntailtail", "err\nerr\n", nil, "err",
		},
		{
			"shown with prefix",
			job.LogRules{PrefixAll: true, Prefix: "${hostname}/$rank> "},
			"node/100> out\nnode/100> tail\nnode/101> out\nnode/101> tail\n", "node/100> err\nnode/101> err\n", nil, "err",
		},
		{
			"redirected",
			job.LogRules{Redirect: job.StreamMap{Default: job.Both}},
			"", "",
			[]string{"0/stderr.log 4", "0/stdout.log 8", "1/stderr.log 4", "1/stdout.log 8"},
			"err",
		},
		{
			"tee'd",
			job.LogRules{Tee: job.StreamMap{Default: job.Both}},
			"[default0]:out\n[default0]:tail\n[default1]:out\n[default1]:tail\n", "[default0]:err\n[default1]:err\n",
			[]string{"0/stderr.log 4", "0/stdout.log 8", "1/stderr.log 4", "1/stdout.log 8"},
			"err",
		},
		{
			"tee wins over redirect",
			job.LogRules{Tee: two(map[int]job.Streams{0: job.Stdout}), Redirect: two(map[int]job.Streams{0: job.Both, 1: job.Stderr})},
			"[default0]:out\n[default0]:tail\nout\ntail", "",
			[]string{"0/stderr.log 4", "0/stdout.log 8", "1/stderr.log 4"},
			"err",
		},
		{
			"one rank shown",
			job.LogRules{Ranks: []int{0}},
			"out\ntail", "err\n", nil, "err",
		},
		{
			"one rank shown, tee'd",
			job.LogRules{Ranks: []int{0}, Tee: job.StreamMap{Default: job.Stdout}},
			"[default0]:out\n[default0]:tail\n", "err\n",
			[]string{"0/stdout.log 8", "1/stdout.log 8"},
			"err",
		},
		{
			"no files: all is shown as it is, as torchrun does",
			job.LogRules{Dir: os.DevNull, Tee: job.StreamMap{Default: job.Stdout}, Redirect: job.StreamMap{Default: job.Both}},
			"out\nout\ntailtail", "err\nerr\n", nil, "err",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.rules.Dir == "" {
				c.rules.Dir = t.TempDir()
			}
			r := newRig(t, c.rules)
			all := r.run(t, 0, say, say)
			stdout, stderr := r.close(t, true)
			if diff := cmp.Diff(sortedLines(c.stdout), sortedLines(stdout)); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(sortedLines(c.stderr), sortedLines(stderr)); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.files, logFiles(t, r.RunDir())); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if got := strings.Join(all[1].LastLines(20), "|"); got != c.last {
				t.Errorf("last lines %q, want %q", got, c.last)
			}
		})
	}
}

// sortedLines makes output comparable where the order of workers is open, and with it after which unfinished line the
// console has to put a newline.
func sortedLines(s string) string {
	var kept []string
	for l := range strings.SplitSeq(strings.ReplaceAll(s, "tail", "\ntail\n"), "\n") {
		if l != "" {
			kept = append(kept, l)
		}
	}
	slices.Sort(kept)
	return strings.Join(kept, "\n")
}

func logFiles(t *testing.T, runDir string) []string {
	t.Helper()
	if runDir == "" {
		return nil
	}
	paths, err := filepath.Glob(filepath.Join(runDir, "attempt_0", "*", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		paths[i] = fmt.Sprintf("%s/%s %d", filepath.Base(filepath.Dir(p)), filepath.Base(p), info.Size())
	}
	return paths
}

func TestStdoutIsRememberedWhereStderrIsEmpty(t *testing.T) {
	r := newRig(t, job.LogRules{Dir: os.DevNull})
	all := r.run(t, 0, shell("echo only; echo ' ' >&2"))
	r.close(t, true)
	if diff := cmp.Diff([]string{"only"}, all[0].LastLines(20)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBothStreamsOnOneOutputKeepTheirOrder(t *testing.T) {
	both := collect(t)
	l, err := Open(Setup{Rules: job.LogRules{Dir: os.DevNull}, Stdout: both.w, Stderr: both.w, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Logs: l}
	all := r.run(t, 0, shell("for i in 0 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done"), shell(""))
	if err := l.Close(true); err != nil {
		t.Error(err)
	}
	want := ""
	for i := range 10 {
		want += fmt.Sprintf("o%d\ne%d\n", i, i)
	}
	if diff := cmp.Diff(want, string(both.end())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := strings.Join(all[0].LastLines(3), " "); got != "e8 o9 e9" {
		t.Errorf("last lines %q", got)
	}
}

func TestAKilledWorkersLastLineIsThere(t *testing.T) {
	for name, rules := range map[string]job.LogRules{
		"pipe":       {Dir: os.DevNull},
		"redirected": {Redirect: job.StreamMap{Default: job.Both}},
		"tee'd":      {Tee: job.StreamMap{Default: job.Both}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rules)
			all := r.run(t, 0, shell("seq 1 30000 >&2; printf last >&2; kill -9 $$"), shell("echo other"))
			_, stderr := r.close(t, false)
			if rules.Redirect.Default == 0 && !strings.Contains(stderr, "last") {
				t.Errorf("the last line was not shown: %q", stderr[max(0, len(stderr)-40):])
			}
			lines := all[0].LastLines(20)
			if len(lines) != 20 || lines[0] != "29982" || lines[19] != "last" {
				t.Errorf("last lines are %q", lines)
			}
		})
	}
}

func TestGrandchildThatKeepsThePipeDelaysTheEndOnlyForAWhile(t *testing.T) {
	r := newRig(t, job.LogRules{Dir: os.DevNull})
	r.outputWait = 200 * time.Millisecond
	begin := time.Now()
	r.run(t, 0, shell("sleep 600 & echo before"), shell("(while :; do echo flood; done) & echo before"))
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("it took %v", d)
	}
	if stdout, _ := r.close(t, true); strings.Count(stdout, "before\n") != 2 {
		t.Errorf("shown: %.200q", stdout)
	}
}

func TestAReaderThatLeavesDoesNotHarmWorkers(t *testing.T) {
	r := newRig(t, job.LogRules{Dir: os.DevNull})
	// The collector's end goes away: like "| head" after its lines.
	a, err := r.Attempt(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	gone, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	r.Logs.out.close()
	r.Logs.out.out = newFDSink(int(w.Fd()))
	logs, cmd := start(t, a, 0, workerArgv("bulk", 30, 100)...)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the worker failed: %v", err)
	}
	logs.Finish(t.Context())
	if !r.Logs.out.lost.Load() {
		t.Error("the console was not given up")
	}
	w.Close()
	r.close(t, true)
}

func TestAFullDiskBehindTheConsoleDoesNotHarmWorkers(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	var logged bytes.Buffer
	l, err := Open(Setup{Rules: job.LogRules{Dir: os.DevNull}, Stdout: full, Stderr: io.Discard, Log: zerolog.New(&logged)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Attempt(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	w, cmd := start(t, a, 0, workerArgv("bulk", 10, 100)...)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the worker failed: %v", err)
	}
	w.Finish(t.Context())
	if err := l.Close(true); err != nil {
		t.Error(err)
	}
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("logged %d times: %s", n, &logged)
	}
}

// stalled is a console that nobody reads until go.
func stalled(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestAConsoleThatStandsStill(t *testing.T) {
	const mb = 40
	for _, c := range []struct {
		name  string
		rules job.LogRules
		tee   bool
	}{
		{"tee", job.LogRules{Tee: job.StreamMap{Default: job.Stdout}}, true},
		{"pipe", job.LogRules{Dir: os.DevNull}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			defer goleak.VerifyNone(t, before)
			read, write := stalled(t)
			l, err := Open(Setup{Rules: c.rules, TempDir: t.TempDir(), Stdout: write, Stderr: io.Discard, Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			a, err := l.Attempt(0, 2)
			if err != nil {
				t.Fatal(err)
			}
			heap := heapInUse()
			w, cmd := start(t, a, 0, workerArgv("bulk", mb, 100)...)
			if c.tee { // the worker does not even notice
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
			}
			testutil.Eventually(t, time.Minute, "the console is full", func() bool { return len(l.out.turn) == 1 })
			if grown := heapInUse() - heap; grown > 8<<20 {
				t.Errorf("%d bytes of memory are used", grown)
			}
			if c.tee {
				// Somebody wants to end: what was not shown is in the file.
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				w.Finish(ctx)
				if info, err := os.Stat(filepath.Join(w.dir, stdoutFile)); err != nil || info.Size() < mb*1e6 {
					t.Errorf("the file: %v, %v", info, err)
				}
				if err := errors.Join(a.Close(), l.Close(true)); err != nil {
					t.Error(err)
				}
				return
			}
			total := make(chan int64)
			go func() {
				n, _ := io.Copy(io.Discard, read)
				total <- n
			}()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			w.Finish(t.Context())
			if err := errors.Join(a.Close(), l.Close(true)); err != nil {
				t.Error(err)
			}
			write.Close()
			if n := <-total; n < mb*1e6 {
				t.Errorf("%d bytes were shown", n)
			}
		})
	}
}

func heapInUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse)
}

func TestANonBlockingConsole(t *testing.T) {
	// Another process that shares our standard output may have made it non-blocking; a socket cannot be opened anew.
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	defer far.Close()
	l, err := Open(Setup{Rules: job.LogRules{Dir: os.DevNull}, Stdout: near, Stderr: io.Discard, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	total := make(chan int64)
	go func() {
		n, _ := io.Copy(io.Discard, far)
		total <- n
	}()
	r := &rig{Logs: l}
	r.run(t, 0, workerArgv("bulk", 5, 1000))
	if err := l.Close(true); err != nil {
		t.Error(err)
	}
	near.Close()
	if n := <-total; n < 5e6 {
		t.Errorf("%d bytes arrived", n)
	}
}

func TestAWorkerThatCouldNotBeStarted(t *testing.T) {
	r := newRig(t, job.LogRules{})
	a, err := r.Attempt(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	w, err := a.Worker(Identity{Role: "default"})
	if err != nil {
		t.Fatal(err)
	}
	w.Finish(t.Context())
	fmt.Fprintln(r.Message(), "cannot start")
	if lines := w.LastLines(20); lines != nil {
		t.Errorf("last lines %q", lines)
	}
	if stdout, stderr := r.close(t, false); stdout != "" || stderr != "cannot start\n" {
		t.Errorf("shown: %q %q", stdout, stderr)
	}
}

func TestTeedLinesAreShownWhileTheWorkerRuns(t *testing.T) {
	for name, blind := range map[string]bool{"with inotify": false, "without inotify": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, job.LogRules{Dir: t.TempDir(), Tee: job.StreamMap{Default: job.Stdout}, KeepStdout: []string{"a"}})
			if blind {
				r.watchOnce.Do(func() {})
			} else if r.watcher() == nil {
				t.Fatal("inotify cannot be had")
			}
			a, err := r.Attempt(0, 1)
			if err != nil {
				t.Fatal(err)
			}
			hold, feed, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			// The worker says each line it is told, and ends with its input.
			w, cmd := start(t, a, 0,
				shell("while read line <&3; do echo $line; done 3<"+fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), hold.Fd()))...)
			kept := filepath.Join(filepath.Dir(w.dir), keptStdout)
			for i := range 20 {
				// Sometimes the follower still looks, sometimes it waits for inotify.
				time.Sleep(time.Duration(i%4) * time.Millisecond)
				fmt.Fprintf(feed, "a%d\n", i)
				testutil.Eventually(t, time.Minute, "the line is shown and kept", func() bool {
					data, _ := os.ReadFile(kept)
					return strings.Count(string(data), "\n") == i+1 && r.shownLines() == i+1
				})
			}
			if err := os.Truncate(filepath.Join(w.dir, stdoutFile), 0); err != nil { // as a log rotator does
				t.Fatal(err)
			}
			testutil.Eventually(t, time.Minute, "the line after the rotation is shown", func() bool {
				fmt.Fprintln(feed, "rotated") // the follower need not see the file between the emptying and the next line
				return r.shownLines() > 20
			})
			feed.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			hold.Close()
			w.Finish(t.Context())
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			r.close(t, true)
		})
	}
}
