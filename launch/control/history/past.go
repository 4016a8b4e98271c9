package history

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/report"
)

// What all histories together may take.
const (
	mostRuns  = 256
	mostBytes = 64 << 20
)

// Histories of earlier jobs are looked at once in sweepEvery, as the time of the file stampName in their directory says:
// all of them are read for that. They are looked at all the same where there are more than mostUnswept, or a job has
// written more than muchWritten.
const (
	stampName   = ".swept"
	sweepEvery  = 10 * time.Minute
	mostUnswept = 2 * mostRuns
	muchWritten = 1 << 20
)

// mostRecord and mostLine bound what is read, in bytes.
const (
	mostRecord = 16 << 20
	mostLine   = 1 << 20
)

// youngFor is how long a history without a record, or without a lock, may be that of a muster that has just begun.
const youngFor = time.Minute

// Run is a muster's part of a job that has ended.
type Run struct {
	Dir string
	Record
	// Died says that it has ended without a word: Ended is when it was last heard of.
	Died bool
}

// look reads the history in a directory; false where its muster lives, or nothing can be read.
func look(dir string) (r Run, over bool) {
	d, err := durable.OpenOwn(dir)
	if err != nil {
		return r, false
	}
	defer func() { _ = d.Close() }()
	lives := unix.Flock(int(d.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
	root, err := os.OpenRoot(dir)
	if err != nil {
		return r, false
	}
	defer func() { _ = root.Close() }()
	info, err := d.Stat()
	if err != nil {
		return r, false
	}
	r.Dir = dir
	f, err := root.Open(recordName)
	if err == nil {
		defer func() { _ = f.Close() }()
		var written fs.FileInfo
		if written, err = f.Stat(); err == nil {
			info = written
			err = json.NewDecoder(io.LimitReader(f, mostRecord)).Decode(&r.Record)
		}
	}
	if err != nil {
		return r, !lives && time.Since(info.ModTime()) > youngFor
	}
	if r.Ended == nil {
		at := info.ModTime().UTC()
		r.Died, r.Ended = true, &at
	}
	return r, !lives
}

// Answer is what its muster would say of the job. A muster that died has not told when that was: it was then when it was
// last heard of.
func (r *Run) Answer() control.Answer {
	a := control.Answer{Status: r.Status, Muster: r.Muster, Died: r.Died}
	if r.Died {
		a.EndTime = r.Ended
	}
	return a
}

// Whole is how the job stood last that runs are of, the first of which it is told by: with the ranks of that round which
// its other musters on this machine have kept, each its own.
func Whole(runs []Run) control.Answer {
	a := runs[0].Answer()
	a.Ranks = slices.Clone(a.Ranks)
	for i := range runs[1:] {
		other := &runs[1+i].Status
		if other.Generation != a.Generation {
			continue
		}
		if runs[1+i].Died { // it has not told what became of them
			lost := other.Lost(func(string) bool { return true })
			other = &lost
		}
		for _, rank := range other.Ranks {
			if !slices.ContainsFunc(a.Ranks, func(r report.Rank) bool { return r.Rank == rank.Rank }) {
				a.Ranks = append(a.Ranks, rank)
			}
		}
	}
	slices.SortFunc(a.Ranks, func(x, y report.Rank) int { return cmp.Compare(x.Rank, y.Rank) })
	return a
}

// When says for people that the job has ended, and when.
func (r *Run) When() string {
	at := r.Ended.Local().Format(time.DateTime)
	if r.Died {
		return "its muster died, and was last heard of at " + at
	}
	return "it has ended at " + at
}

// How says for people when and how the job has ended.
func (r *Run) How() string {
	d := &r.Status
	if r.Died || d.ExitStatus == nil {
		return r.When()
	}
	how := fmt.Sprintf("%s with status %d", r.When(), *d.ExitStatus)
	if d.Reason != "" {
		how += ", " + string(d.Reason)
	}
	return how
}

// expired reports whether a history need not be kept any more.
func (r *Run) expired() bool {
	return r.Ended == nil || time.Since(*r.Ended) > time.Duration(r.KeepSeconds*float64(time.Second))
}

// all are the histories below a directory whose musters have ended, the newest first.
func all(dir string) (runs []Run) {
	d, err := durable.OpenOwn(dir)
	if err != nil {
		return nil
	}
	names, err := d.Readdirnames(-1)
	_ = d.Close()
	if err != nil {
		return nil
	}
	for _, name := range names {
		if r, over := look(filepath.Join(dir, name)); over {
			runs = append(runs, r)
		}
	}
	slices.SortStableFunc(runs, func(x, y Run) int {
		if x.Ended == nil || y.Ended == nil {
			return cmp.Compare(bound(x.Ended == nil), bound(y.Ended == nil))
		}
		return y.Ended.Compare(*x.Ended)
	})
	return runs
}

func bound(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sweep removes what is too old, or too much, unless that was done not long ago, or another muster does it now: those of
// a job with many nodes on one machine end at the same moment. much says that more has been written than jobs do.
func sweep(dir string, much bool) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }()
	if !much && swept(root) {
		return
	}
	f, err := root.OpenFile(stampName, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil { // else they are looked at more often, and by several
		defer func() { _ = f.Close() }()
		if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
			return
		}
		now := time.Now()
		_ = root.Chtimes(stampName, now, now)
	}
	var bytes int64
	for i, r := range all(dir) {
		bytes += size(r.Dir)
		if r.expired() || i >= mostRuns || bytes > mostBytes {
			_ = root.RemoveAll(filepath.Base(r.Dir)) // what cannot be removed now stays for the next time
		}
	}
}

// swept reports whether the histories below root need not be looked at.
func swept(root *os.Root) bool {
	info, err := root.Stat(stampName)
	if err != nil || time.Since(info.ModTime()).Abs() > sweepEvery { // a clock may have been set
		return false
	}
	d, err := root.Open(".")
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(mostUnswept + 2) // the stamp is one
	return err == nil && len(names) <= mostUnswept+1
}

func size(dir string) (sum int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// Runs are those of this user that have ended and are kept, the newest first. parents are the directories of run
// directories.
func Runs(parents []string) (runs []Run) {
	for _, parent := range parents {
		runs = append(runs, all(filepath.Join(parent, dirName))...)
	}
	runs = slices.DeleteFunc(runs, func(r Run) bool { return r.expired() })
	slices.SortStableFunc(runs, func(x, y Run) int { return y.Ended.Compare(*x.Ended) })
	return runs
}

// Events are what has happened to the run, the oldest first. A line that was cut is passed over.
func (r *Run) Events() ([]control.Event, error) {
	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return nil, gone(err)
	}
	defer func() { _ = root.Close() }()
	var events []control.Event
	for _, name := range []string{olderName, eventsName} {
		f, err := root.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, gone(err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, mostLine)
		for lines.Scan() {
			var e control.Event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				events = append(events, e)
			}
		}
		_ = f.Close()
	}
	return events, nil
}

func gone(err error) error {
	return errhint.Code(errhint.With(errhint.Usagef("cannot read the events of a job that has ended: %w", err),
		"a later job may have removed them"),
		errhint.Usage)
}

// partOf reports whether a launcher had started the muster, and its job is that of the other run.
func (r *Run) partOf(of *Run) bool {
	return r.Muster.Part && r.Status.RunID == of.Status.RunID &&
		!r.Began.Before(of.Began) && !r.Began.After(*of.Ended) // others with this id may be of an earlier job
}

// Jobs are those of the runs, which are sorted as Runs does, that are not a part of another. Of several nodes of one job
// it has the one that has ended last.
func Jobs(runs []Run) []Run {
	var jobs []Run
	for i := range runs {
		r := &runs[i]
		if slices.ContainsFunc(runs, func(other Run) bool { return !other.Muster.Part && r.partOf(&other) }) ||
			slices.ContainsFunc(jobs, func(other Run) bool { return r.beside(&other) }) {
			continue
		}
		jobs = append(jobs, *r)
	}
	return jobs
}

// beside reports whether both were nodes of one job, which was there at one time.
func (r *Run) beside(other *Run) bool {
	return r.Status.RunID == other.Status.RunID && r.Muster.Beside(&other.Muster) && !r.Began.After(*other.Ended) &&
		!other.Began.After(*r.Ended)
}

// Ended finds what is kept in directories of the job that a name means and that has ended, of the last one without a
// name: of the newest of that id each of its musters' part, the job's own first; none where nothing is kept of it.
func Ended(parents []string, name string) ([]Run, error) {
	runs := Runs(parents)
	if jobs := Jobs(runs); name == "" && len(jobs) > 0 {
		name = jobs[0].Status.RunID
	}
	return pick(runs, name)
}

// pick returns the newest of the runs, sorted as Runs does, whose job has a run id or the only one that begins so, and
// behind it the parts of that job: none where there is no such job. Its error has status 2 where more than one is
// meant.
func pick(runs []Run, name string) ([]Run, error) {
	jobs := Jobs(runs)
	ids := map[string]bool{}
	for i := range jobs {
		if id := jobs[i].Status.RunID; id == name {
			ids = map[string]bool{id: true}
			break
		} else if strings.HasPrefix(id, name) {
			ids[id] = true
		}
	}
	if len(ids) > 1 {
		return nil, errhint.With(errhint.Usagef("%d jobs that have ended match %q: %s", len(ids), name,
			strings.Join(slices.Sorted(maps.Keys(ids)), ", ")), "name one by its run id")
	}
	at := slices.IndexFunc(jobs, func(r Run) bool { return ids[r.Status.RunID] })
	if at < 0 {
		return nil, nil
	}
	return withParts(jobs[at], runs), nil
}

// withParts are a job, and those of the runs behind it that are parts of it, or other nodes.
func withParts(of Run, runs []Run) []Run {
	all := []Run{of}
	for _, r := range runs {
		if r.Dir != of.Dir && (r.partOf(&of) || r.beside(&of)) {
			all = append(all, r)
		}
	}
	return all
}
