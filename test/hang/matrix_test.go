package hang

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/diagnose"
	"muster/launch/report"
	"muster/test/drive"
)

// hangWay is a way in which test/testdata/hang.py hangs, and what is said of it.
type hangWay struct {
	way  string
	kind diagnose.Kind
	says []string
	// last says that nothing ends it.
	last bool
	// prepare makes what it needs before the job begins; undo has the odd rank go on where SIGUSR1 does not.
	prepare func(t *testing.T, ready string)
	undo    func(t *testing.T, ready string, pid int, v diagnose.Verdict)
	// during is done when the ranks have met, with the odd rank's process.
	during func(t *testing.T, pid int)
}

// hangWays are those that every machine with root has.
func hangWays() []hangWay {
	return []hangWay{
		{
			way: "sleep", kind: diagnose.Sleeps,
			says: []string{"rank ODD has not come to all_reduce: it sleeps at hang.py:", "in never_comes (time.sleep(3600)); "},
		},
		{
			way: "stopped", kind: diagnose.Stopped, says: []string{"rank ODD has not come to all_reduce: it is stopped by a signal " +
				"(process "},
			undo: func(t *testing.T, _ string, pid int, _ diagnose.Verdict) { signalled(t, pid, syscall.SIGCONT) },
		},
		{
			way: "loop", kind: diagnose.Runs,
			says: []string{"it computes at hang.py:", "in loops", "a long computation cannot be told from an endless loop"},
		},
		{
			way: "loader", kind: diagnose.Loader,
			says: []string{"it waits for its data loader, whose worker process ", " sleeps at hang.py:", "in __getitem__"},
		},
		{
			way: "loader-stopped", kind: diagnose.Loader,
			says: []string{"it waits for its data loader, whose worker process ", " is stopped by a signal"},
		},
		{
			way: "loader-dead", kind: diagnose.Loader,
			says: []string{"it waits for input at hang.py:", "in waits_for_dead (back.get())", "; its process ", " has died"},
		},
		{
			way: "file-lock", kind: diagnose.Deadlock, says: []string{
				"rank ODD waits for a lock on the file ", ".lock at hang.py:", "which rank HOLDER has",
				"waits for the others in all_reduce",
			},
		},
		{
			way: "file", kind: diagnose.Sleeps, says: []string{
				"it sleeps at hang.py:",
				"in waits_for_file (time.sleep(0.2)), again and again (while not os.path.exists(READY + \".never\"))",
			},
		},
		{
			way: "fifo", kind: diagnose.Input,
			says: []string{"it waits for a file to be opened at hang.py:", "in odd (open(READY + \".pipe\")), in openat of ", "ready.pipe"},
		},
		{
			way: "deadlock", kind: diagnose.Deadlock,
			says: []string{"it waits for a lock at hang.py:", "and another thread of it waits for one, too at hang.py:"},
		},
		{
			way: "gil", kind: diagnose.Interpreter,
			says: []string{"it runs native code, called at hang.py:", "qsort", "does not give up Python's lock"},
		},
		{way: "garbage", kind: diagnose.Garbage, says: []string{"it collects Python's garbage at hang.py:", "in garbage (gc.collect())"}},
		{
			way: "starved", kind: diagnose.Starved,
			says: []string{"it gets no core (", "the machine has too much to do, or it has a low priority; it is at hang.py:", "in loops"},
		},
		{
			way: "full", kind: diagnose.Full,
			says: []string{"it sleeps at hang.py:", "in full (time.sleep(0.2))", "ready.full/model.pt, which it uses, has no space left"},
			prepare: func(t *testing.T, ready string) {
				small(t, ready+".full")
			},
		},
		{
			way: "kernel", kind: diagnose.Blocked, says: []string{
				"it waits in the kernel, where no signal reaches it (process ", "state D", "; its process ",
				" waits for a file to be opened, in open", "ready.fifo",
			},
			undo: func(t *testing.T, ready string, _ int, _ diagnose.Verdict) {
				f, err := os.OpenFile(ready+".fifo", os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			},
		},
		{
			way: "other-collective", kind: diagnose.Mismatch, last: true,
			says: []string{
				"different collectives: rank ODD in broadcast of 1 float (call ", " of the default group) at hang.py:", "in odd (",
				" in all_reduce of 1 float (call ",
			},
		},
		{
			way: "sizes", kind: diagnose.Mismatch, last: true, says: []string{
				"different collectives: rank ODD in all_reduce of 0 floats (call ",
				", which has ended there, and now in all_reduce of 1 float (call ",
				" in all_reduce of 1 float (call ",
			},
		},
	}
}

// small mounts a file system of 64 KiB.
func small(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		testutil.Missing(t, "root, for a small file system")
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

func signalled(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// hangsInTurn runs one job that hangs in all ways in turn: each is explained by a sentence that names the odd rank and
// no other. After the first such sentence so many more looks have to say the same.
func hangsInTurn(t *testing.T, ways []hangWay, ranks, odd, more int) {
	t.Helper()
	python := testutil.Torch(t)
	ready := filepath.Join(t.TempDir(), "ready")
	names := make([]string, len(ways))
	for i, w := range ways {
		names[i] = w.way
		if w.prepare != nil {
			w.prepare(t, ready)
		}
	}
	j := drive.Start(t, nil, "run", "-n", strconv.Itoa(ranks), "--run-id", "hangs", "--grace", "1s", "--stacks", "on", "--warm", "torch",
		"--", python, drive.Script(t, "hang.py"), strings.Join(names, ","), ready, strconv.Itoa(odd))
	holder := (odd + 1) % ranks
	fill := strings.NewReplacer("ODD", strconv.Itoa(odd), "HOLDER", strconv.Itoa(holder))
	for i, w := range ways {
		meets(t, ready, i)
		a, _ := drive.StatusOf(t, j.RuntimeDir)
		at := slices.IndexFunc(a.Ranks, func(r report.Rank) bool { return r.Rank == odd })
		pid := a.Ranks[at].PID
		if w.during != nil {
			w.during(t, pid)
		}
		says := make([]string, len(w.says))
		for n, s := range w.says {
			says[n] = fill.Replace(s)
		}
		began := time.Now()
		v := judged(t, j, w.kind, says)
		culprits, victims := []int{odd}, []int{}
		for r := range ranks {
			if r != odd {
				victims = append(victims, r)
			}
		}
		if w.way == "file-lock" {
			culprits = []int{odd, holder}
		}
		if !slices.Equal(v.Culprits, culprits) || !slices.Equal(v.Victims, victims) || len(v.Evidence) < 3 {
			t.Errorf("%s: it blames %v, and not %v: %+v", w.way, v.Culprits, culprits, v)
		}
		t.Logf("%s, %d ranks, explained after %v: %s", w.way, ranks, time.Since(began).Round(10*time.Millisecond), v.Sentence)
		looksAgain(t, j, w, v, more)
		switch {
		case w.undo != nil:
			w.undo(t, ready, pid, v)
		case !w.last:
			signalled(t, pid, syscall.SIGUSR1)
		}
	}
	if !ways[len(ways)-1].last {
		j.End().Expect(t, 0)
		return
	}
	drive.Beside(t, j.RuntimeDir, "stop", "--now").Expect(t, 0)
	j.End().Expect(t, 143)
}

// looksAgain looks at a hang that was explained so many more times, and counts what is said. No look blames another rank.
// One may come at a moment at which the cause is not to be seen: between two calls of native code that keeps Python's
// lock another thread has that lock.
func looksAgain(t *testing.T, j *drive.Job, w hangWay, first diagnose.Verdict, more int) {
	t.Helper()
	named, cause, blamed := 0, 0, 0
	for range more {
		got := drive.Beside(t, j.RuntimeDir, "diagnose", "-o", "json", "hangs") // others may have jobs here
		var v diagnose.Verdict
		if err := json.Unmarshal([]byte(got.Stdout), &v); err != nil {
			t.Errorf("%s: %v: %+v", w.way, err, got)
			continue
		}
		if slices.Equal(v.Culprits, first.Culprits) {
			named++
		}
		if v.Kind == first.Kind {
			cause++
		} else {
			t.Logf("%s: another look says %s, of %v: %s\n%s", w.way, v.Kind, v.Culprits, v.Sentence, strings.Join(v.Evidence, "\n"))
		}
		if slices.ContainsFunc(v.Culprits, func(r int) bool { return !slices.Contains(first.Culprits, r) }) {
			blamed++
		}
	}
	if named < more || blamed > 0 || cause < more-1 {
		t.Errorf("%s: of %d looks %d name the right rank, %d the right cause, and %d blame another rank", w.way, more, named, cause, blamed)
	}
	if more > 0 {
		t.Logf("table: %s: %d looks, named right %d, cause right %d, healthy blamed %d", w.way, more, named, cause, blamed)
	}
}

// TestHangMatrix hangs jobs in many ways, each of which is explained.
func TestHangMatrix(t *testing.T) {
	t.Parallel()
	ways := hangWays()
	end := len(ways) - 1
	t.Run("collective", func(t *testing.T) {
		t.Parallel()
		hangsInTurn(t, ways[:end], 3, 1, 0)
	})
	t.Run("sizes", func(t *testing.T) {
		t.Parallel()
		hangsInTurn(t, ways[end:], 3, 1, 0)
	})
}

// TestSoakHangs does the same in any order, with any number of ranks and any odd one among them.
func TestSoakHangs(t *testing.T) {
	testutil.SoakOnly(t)
	const looks = 4
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			ways := append(hangWays(), rareWays(t)...)
			lasts := slices.DeleteFunc(slices.Clone(ways), func(w hangWay) bool { return !w.last })
			ways = slices.DeleteFunc(ways, func(w hangWay) bool { return w.last })
			r.Shuffle(len(ways), func(a, b int) { ways[a], ways[b] = ways[b], ways[a] })
			ranks := 3 + r.IntN(6)
			odd := r.IntN(ranks)
			hangsInTurn(t, append(ways, lasts[0]), ranks, odd, looks)
			hangsInTurn(t, lasts[1:], ranks, odd, looks)
		})
	}
}

// TestSoakHangRestarts hangs a job in each way in its first life: it is explained, starts again and goes on to its end.
// Ranks that compute and hang all the same are found by the steps that they tell.
func TestSoakHangRestarts(t *testing.T) {
	testutil.SoakOnly(t)
	python := testutil.Torch(t)
	for _, w := range hangWays() {
		t.Run(w.way, func(t *testing.T) {
			t.Parallel()
			ready := filepath.Join(t.TempDir(), "ready")
			if w.prepare != nil {
				w.prepare(t, ready)
			}
			j := drive.Start(t, nil, "run", "-n", "3", "--run-id", "again-"+w.way, "--grace", "1s", "--ckpt", "on", "--hang-timeout", "8s",
				"--on-hang", "dump,restart", "--max-restarts", "1", "--", python, drive.Script(t, "hang.py"), w.way, ready)
			meets(t, ready, 0)
			if err := os.WriteFile(ready+".again", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			got := j.End()
			kind := w.kind
			computes := kind == diagnose.Runs || kind == diagnose.Interpreter || kind == diagnose.Garbage
			if starved := `"kind":"` + string(diagnose.Starved) + `"`; computes && strings.Contains(got.Stderr, starved) {
				kind = diagnose.Starved // on a crowded machine that is true, too
			}
			got.Expect(t, 0, `"message":"the workers hang"`, `"kind":"`+string(kind)+`"`, `"ranks":[1`)
		})
	}
}
