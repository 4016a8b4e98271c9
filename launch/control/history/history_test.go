package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
)

// kept is a job whose history is kept beside its run directory.
type kept struct {
	parent string
	events control.Events
	log    bytes.Buffer
}

// open begins to keep what happens to it.
func (k *kept) open(t *testing.T, id string, change func(*Config)) *Keeper {
	t.Helper()
	dir := filepath.Join(k.parent, "job-"+id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c := Config{
		Muster: control.Muster{Role: control.Agent, PID: os.Getpid(), RunDir: dir}, Keep: time.Hour, Events: &k.events,
		Status: func() report.Status { return report.Status{RunID: id, Phase: report.PhaseRunning} }, Log: zerolog.New(&k.log),
	}
	if change != nil {
		change(&c)
	}
	return Open(c)
}

// end closes a keeper, and removes the run directory.
func end(t *testing.T, k *Keeper) {
	t.Helper()
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(k.cfg.Muster.RunDir); err != nil {
		t.Error(err)
	}
}

func (k *kept) happens(n int) {
	for range n {
		k.events.Add(control.Event{Type: control.PhaseChanged, RunID: "one"})
	}
}

// TestKept: what has happened and how the job stood is found after its end, and goes to the file that was asked for.
func TestKept(t *testing.T) {
	t.Parallel()
	k := kept{parent: t.TempDir()}
	path := filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	keeper := k.open(t, "one", func(c *Config) { c.File = file })
	k.happens(700) // more than one answer has
	testutil.Eventually(t, 20*time.Second, "the directory is there", func() bool {
		_, err := os.Stat(filepath.Join(k.parent, "job-one", dirName, recordName))
		return err == nil
	})
	if runs := Runs([]string{k.parent}); len(runs) != 0 {
		t.Errorf("it lives: %+v", runs)
	}
	end(t, keeper)
	runs := Runs([]string{filepath.Join(k.parent, "none"), k.parent})
	if len(runs) != 1 || runs[0].Died || runs[0].Status.RunID != "one" || runs[0].Muster.PID != os.Getpid() {
		t.Fatalf("%+v", runs)
	}
	events, err := runs[0].Events()
	if err != nil || len(events) != 700 || events[699].Seq != 700 {
		t.Errorf("%d events, %v", len(events), err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 701 || !strings.HasPrefix(string(text), "before\n{") {
		t.Errorf("%v: %.200s", err, text)
	}
	if k.log.Len() > 0 {
		t.Errorf("%s", k.log.String())
	}
}

// TestDied: a muster that ended without a word has a history all the same.
func TestDied(t *testing.T) {
	t.Parallel()
	k := kept{parent: t.TempDir()}
	keeper := k.open(t, "one", nil)
	k.happens(3)
	end(t, keeper)
	dir := Runs([]string{k.parent})[0].Dir
	text, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		t.Fatal(err)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	r.Ended = nil // as it is while the muster lives, whose lock has gone with it
	if text, err = json.Marshal(r); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), text, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, eventsName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"version":1,"se`) // it was writing
	_ = f.Close()
	runs := Runs([]string{k.parent})
	if len(runs) != 1 || !runs[0].Died || time.Since(*runs[0].Ended) > time.Hour {
		t.Fatalf("%+v", runs)
	}
	if events, err := runs[0].Events(); err != nil || len(events) != 3 {
		t.Errorf("%d events, %v", len(events), err)
	}
}

// TestLastHeardOf: the time of the record says until when a muster has lived that is killed, also where nothing happens.
func TestLastHeardOf(t *testing.T) {
	t.Parallel()
	k := kept{parent: t.TempDir()}
	keeper := k.open(t, "one", nil)
	defer end(t, keeper)
	k.happens(1)
	record := filepath.Join(k.parent, "job-one", dirName, recordName)
	var first time.Time
	testutil.Eventually(t, 20*time.Second, "the record is there", func() bool {
		info, err := os.Stat(record)
		if err == nil {
			first = info.ModTime()
		}
		return err == nil
	})
	testutil.Eventually(t, 30*time.Second, "it is of later than what has happened", func() bool {
		info, err := os.Stat(record)
		return err == nil && info.ModTime().Sub(first) > 2*recordEvery
	})
}

// TestNotKept: with no time to keep it, nothing is left, and what happens is in the run directory while the job runs.
func TestNotKept(t *testing.T) {
	t.Parallel()
	k := kept{parent: t.TempDir()}
	keeper := k.open(t, "one", func(c *Config) { c.Keep = 0 })
	k.happens(3)
	testutil.Eventually(t, 20*time.Second, "the events are written", func() bool {
		text, _ := os.ReadFile(filepath.Join(k.parent, "job-one", dirName, eventsName))
		return bytes.Count(text, []byte("\n")) == 3
	})
	end(t, keeper)
	if left, err := os.ReadDir(k.parent); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestSwept: what is too old or too much is removed by the next job, and nothing of one that lives.
func TestSwept(t *testing.T) {
	t.Parallel()
	k := kept{parent: t.TempDir()}
	end(t, k.open(t, "old", func(c *Config) { c.Keep = time.Nanosecond }))
	end(t, k.open(t, "big", nil))
	big := Runs([]string{k.parent})
	if len(big) != 1 || big[0].Status.RunID != "big" {
		t.Fatalf("%+v", big)
	}
	if err := os.Truncate(filepath.Join(big[0].Dir, eventsName), mostBytes+1); err != nil {
		t.Fatal(err)
	}
	longAgo := time.Now().Add(-2 * sweepEvery)
	if err := os.Chtimes(filepath.Join(k.parent, dirName, stampName), longAgo, longAgo); err != nil {
		t.Fatal(err)
	}
	lives := k.open(t, "lives", nil)
	testutil.Eventually(t, time.Minute, "both are gone", func() bool {
		names, err := filepath.Glob(filepath.Join(k.parent, dirName, "job-*"))
		return err == nil && len(names) == 1 && strings.HasPrefix(filepath.Base(names[0]), "job-lives.")
	})
	end(t, k.open(t, "last", nil))
	end(t, lives)
	if runs := Runs([]string{k.parent}); len(runs) != 2 {
		t.Errorf("%+v", runs)
	}
}

// TestSweptNotEachTime: not each of many short jobs reads what is kept of all others, unless these are very many or it has
// written much.
func TestSweptNotEachTime(t *testing.T) {
	t.Parallel()
	k := kept{parent: t.TempDir()}
	histories := filepath.Join(k.parent, dirName)
	outlived := func(n int) {
		longAgo := time.Now().Add(-time.Hour)
		for i := range n {
			dir := filepath.Join(histories, fmt.Sprintf("dead-%d", i))
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(dir, longAgo, longAgo); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(n int, why string) {
		t.Helper()
		left, err := filepath.Glob(filepath.Join(histories, "dead-*"))
		if err != nil || len(left) != n {
			t.Errorf("%s: %d are left, %v", why, len(left), err)
		}
	}
	over := func(keeper *Keeper) {
		t.Helper()
		end(t, keeper)
		<-keeper.done // on a busy machine to forget many takes longer than Close waits
	}
	outlived(3)
	over(k.open(t, "first", nil))
	want(0, "nobody has looked before")
	outlived(3)
	over(k.open(t, "second", nil))
	want(3, "somebody has looked just now")
	outlived(mostUnswept)
	other, err := os.Open(filepath.Join(histories, stampName))
	if err == nil {
		err = unix.Flock(int(other.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	over(k.open(t, "meanwhile", nil))
	want(mostUnswept, "another muster looks at them")
	_ = other.Close()
	over(k.open(t, "third", nil))
	want(0, "there are very many")
	outlived(3)
	big := k.open(t, "big", nil)
	for range 2 {
		k.events.Add(control.Event{Type: control.PhaseChanged, RunID: "big", Message: strings.Repeat("x", muchWritten/2)})
	}
	over(big)
	want(0, "the job has written much")
}

// TestEndsAtOnce: a job that is over before its history was opened has all of it.
func TestEndsAtOnce(t *testing.T) {
	t.Parallel()
	k := kept{parent: t.TempDir()}
	for i := range 3 {
		id := fmt.Sprintf("job%d", i)
		k.events = control.Events{}
		keeper := k.open(t, id, nil)
		k.happens(600)
		end(t, keeper)
		runs, err := Ended([]string{k.parent}, id)
		if err != nil || len(runs) != 1 || runs[0].Died || runs[0].Ended == nil || runs[0].Status.RunID != id {
			t.Fatalf("%+v, %v", runs, err)
		}
		events, err := runs[0].Events()
		if err != nil || len(events) != 600 || events[0].Seq != 1 || events[599].Seq != 600 {
			t.Fatalf("%d events, %v", len(events), err)
		}
	}
}

// TestLetsStart: nothing is written before workers have had the time to start, unless somebody may read it where it goes.
func TestLetsStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := kept{parent: t.TempDir()}
		keeper := k.open(t, "one", nil)
		k.happens(1)
		isThere := func() bool {
			_, err := os.Lstat(filepath.Join(k.parent, "job-one", dirName))
			return err == nil
		}
		time.Sleep(openAfter - time.Nanosecond)
		synctest.Wait()
		if isThere() {
			t.Error("it is opened while workers start")
		}
		time.Sleep(openBy - openAfter - time.Nanosecond)
		synctest.Wait()
		if isThere() {
			t.Error("it is opened while no worker has started")
		}
		k.events.Add(control.Event{Type: control.WorkerStarted, RunID: "one"})
		synctest.Wait()
		if !isThere() {
			t.Error("it is not opened when one has")
		}
		end(t, keeper)
		k.events = control.Events{}
		keeper = k.open(t, "one", nil)
		k.events.Moved("", report.Status{RunID: "one", Phase: report.PhaseRunning}) // all that a launcher sees of a start
		time.Sleep(openAfter)
		synctest.Wait()
		if !isThere() {
			t.Error("it is not opened when the nodes of a launcher run")
		}
		end(t, keeper)
		k.events = control.Events{}
		keeper = k.open(t, "one", nil)
		time.Sleep(openBy)
		synctest.Wait()
		if !isThere() {
			t.Error("it is not opened where none starts")
		}
		end(t, keeper)
		k.happens(1)
		path := filepath.Join(k.parent, "events")
		file, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		keeper = k.open(t, "two", func(c *Config) { c.File = file })
		synctest.Wait()
		if text, err := os.ReadFile(path); err != nil || bytes.Count(text, []byte("\n")) != 1 {
			t.Errorf("%s, %v", text, err)
		}
		end(t, keeper)
	})
}

// TestBounded: of events without end the newest are kept.
func TestBounded(t *testing.T) {
	t.Parallel()
	k := kept{parent: t.TempDir()}
	keeper := k.open(t, "one", nil)
	for i := range 3 {
		for range 400 { // at once: more than a file may have
			k.events.Add(control.Event{Type: control.PhaseChanged, RunID: "one", Message: strings.Repeat("x", 10<<10)})
		}
		last := fmt.Sprintf(`"seq":%d,`, 400*(i+1))
		testutil.Eventually(t, time.Minute, "they are written", func() bool {
			text, err := os.ReadFile(filepath.Join(k.parent, "job-one", dirName, eventsName))
			return err == nil && bytes.Contains(text, []byte(last))
		})
	}
	end(t, keeper)
	run := Runs([]string{k.parent})[0]
	events, err := run.Events()
	if err != nil || len(events) < 300 || events[len(events)-1].Seq != 1200 || size(run.Dir) > 2*mostEvents+1<<20 {
		t.Errorf("%d events, %d bytes, %v", len(events), size(run.Dir), err)
	}
}

// TestFileRefused: a file that cannot be appended to is refused before anything starts; one that takes no more is told
// of once.
func TestFileRefused(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/nowhere/events", t.TempDir()} {
		if f, err := OpenFile(path); err == nil || errhint.CodeOf(err) != errhint.Usage || errhint.Of(err) == "" {
			t.Errorf("%s: %v, %v", path, f, err)
		}
	}
	full, err := OpenFile("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	k := kept{parent: t.TempDir()}
	keeper := k.open(t, "one", func(c *Config) { c.File = full })
	for range 5 {
		k.happens(1)
		time.Sleep(time.Millisecond)
	}
	end(t, keeper)
	if n := strings.Count(k.log.String(), "no more events are appended"); n != 1 {
		t.Errorf("told %d times:\n%s", n, k.log.String())
	}
	if events, err := Runs([]string{k.parent})[0].Events(); err != nil || len(events) != 5 {
		t.Errorf("%d events, %v", len(events), err)
	}
}

// TestFullFIFO: a FIFO that nobody empties is told of once, and what happens is kept all the same.
func TestFullFIFO(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	file, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	k := kept{parent: t.TempDir()}
	keeper := k.open(t, "one", func(c *Config) { c.File = file })
	for range 20 { // more than a FIFO has room for
		k.events.Add(control.Event{Type: control.PhaseChanged, RunID: "one", Message: strings.Repeat("x", 10<<10)})
	}
	testutil.Eventually(t, 20*time.Second, "all are kept", func() bool {
		text, _ := os.ReadFile(filepath.Join(k.parent, "job-one", dirName, eventsName))
		return bytes.Count(text, []byte("\n")) == 20
	})
	end(t, keeper)
	if n := strings.Count(k.log.String(), "no more events are appended"); n != 1 {
		t.Errorf("told %d times:\n%s", n, k.log.String())
	}
}

// TestLockedBesideALook: who looks at a history at the moment at which it begins does not keep it from being locked.
func TestLockedBesideALook(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	looks, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(looks.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if f := locked(dir, 0); f != nil {
		t.Error("it is locked twice")
	}
	timer := time.AfterFunc(20*time.Millisecond, func() { _ = looks.Close() })
	defer timer.Stop()
	f := locked(dir, time.Minute)
	if f == nil {
		t.Fatal("it is not locked")
	}
	_ = f.Close()
}

// TestPick: a name is a run id or the only beginning of one; the newest counts, with its parts.
func TestPick(t *testing.T) {
	t.Parallel()
	at := time.Now()
	run := func(id, dir string, began, ended int, part bool) Run {
		over := at.Add(time.Duration(ended) * time.Minute)
		return Run{Dir: dir, Record: Record{
			Muster: control.Muster{Part: part}, Began: at.Add(time.Duration(began) * time.Minute), Ended: &over,
			Status: report.Status{RunID: id},
		}}
	}
	runs := []Run{
		run("train-7", "e", 50, 60, false), run("train-7", "d", 51, 59, true), run("other", "c", 0, 40, false),
		run("train-7", "b", 11, 19, true),
		run("train-7", "a", 10, 20, false), run("train-77", "z", 1, 2, false),
	}
	for name, want := range map[string]string{"train-7": "ed", "o": "c", "train-77": "z", "x": ""} {
		picked, err := pick(runs, name)
		got := ""
		for _, r := range picked {
			got += r.Dir
		}
		if err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	// A node was lost of a job that goes on, and an earlier job had its id.
	jobs := Jobs([]Run{run("train-7", "f", 70, 80, true), runs[0], runs[1]})
	if len(jobs) != 2 || jobs[0].Dir != "f" || jobs[1].Dir != "e" {
		t.Errorf("%+v", jobs)
	}
	if _, err := pick(runs, "train"); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "train-7, train-77") {
		t.Errorf("%v", err)
	}
}

// TestWhole: an ended job is told with the ranks of all its musters that were in its last round.
func TestWhole(t *testing.T) {
	t.Parallel()
	run := func(round int, ranks ...int) Run {
		r := Run{Record: Record{Status: report.Status{Generation: round, WorldSize: 4}}}
		for _, rank := range ranks {
			r.Status.Ranks = append(r.Status.Ranks, report.Rank{Rank: rank, Phase: report.PhaseRunning})
		}
		return r
	}
	runs := []Run{run(2, 2, 3), run(2, 0), run(1, 1), run(2, 3), run(2, 4)}
	runs[4].Died = true
	got := ""
	for _, r := range Whole(runs).Ranks {
		got += strconv.Itoa(r.Rank)
		if lost := r.Phase == report.PhaseUnknown; lost != (r.Rank == 4) {
			t.Errorf("rank %d is said to be %s", r.Rank, r.Phase)
		}
	}
	if got != "0234" || len(runs[0].Status.Ranks) != 2 {
		t.Errorf("ranks %s, and %d of the first", got, len(runs[0].Status.Ranks))
	}
}
