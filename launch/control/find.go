package control

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"muster/internal/errhint"
	"muster/launch/rundir"
)

// Found is a run directory, and who answers there.
type Found struct {
	Dir string
	// PID is that of the muster that listens there, 0 where none does.
	PID int
	// Answer is what it has said of its own part; nil where Err says why nobody has answered.
	Answer *Answer
	Err    error
	// client is that of a page; nil: the run directory is asked.
	client *Client
}

// Dead reports whether the directory belongs to a muster that has died.
func (f *Found) Dead() bool { return errors.Is(f.Err, errDead) }

// Silent reports whether a muster lives there that does not answer.
func (f *Found) Silent() bool { return f.Answer == nil && errhint.CodeOf(f.Err) == errhint.TryAgain }

// RunID is the job's id, as far as the name of the directory says it where nobody has answered.
func (f *Found) RunID() string {
	if f.Answer != nil {
		return f.Answer.RunID
	}
	return rundir.IDOf(f.Dir)
}

// part reports whether a launcher has started the muster.
func (f *Found) part() bool { return f.Answer != nil && f.Answer.Muster.Part }

// Client asks there.
func (f *Found) Client() *Client {
	if f.client != nil {
		return f.client
	}
	return Dial(f.Dir)
}

// Find asks at all run directories of this user for what they are, at most Patience long. Where names are given, only
// directories whose names begin with one of them are asked.
func Find(ctx context.Context, places rundir.Places, names ...string) ([]Found, error) {
	var dirs []string
	for _, parent := range places.All() {
		more, err := rundir.List(parent)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, more...)
	}
	if len(names) > 0 {
		dirs = slices.DeleteFunc(dirs, func(dir string) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(filepath.Base(dir), name) }) ||
				strings.HasSuffix(dir, rundir.Launcher)
		})
	}
	found := make([]Found, len(dirs))
	var wg sync.WaitGroup
	for i, dir := range dirs {
		wg.Go(func() { found[i] = look(ctx, dir) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// One that has ended meanwhile, or is not ours, is no job.
	return slices.DeleteFunc(found, func(f Found) bool {
		return f.Answer == nil && (errors.Is(f.Err, errOtherUser) || f.Dead() && !rundir.Exists(f.Dir))
	}), nil
}

// look asks at one run directory.
func look(ctx context.Context, dir string) Found {
	f, c := Found{Dir: dir}, Dial(dir)
	a, err := c.Status(ctx, Node)
	f.PID = c.pid
	if f.Err = err; err == nil {
		f.Answer = &a
	}
	return f
}

// Jobs are those of the found that are jobs, and not a part of one whose launcher is among them, too: an agent of it that
// has no socket yet is none. Of several nodes of one job it has the first.
func Jobs(found []Found) []Found {
	launched := map[string]bool{}
	for i := range found {
		if found[i].Answer != nil && !found[i].part() {
			launched[found[i].RunID()] = true
		}
	}
	begins := func(dir string) bool {
		for id := range launched {
			if rundir.IsOf(dir, id) {
				return true
			}
		}
		return false
	}
	var jobs []Found
	for i := range found {
		f := &found[i]
		part := f.part() && launched[f.RunID()] || errors.Is(f.Err, errMute) && begins(f.Dir)
		if part || slices.ContainsFunc(jobs, func(other Found) bool { return f.beside(&other) }) {
			continue
		}
		jobs = append(jobs, *f)
	}
	return jobs
}

// Whole asks the jobs that have nodes beside the one that has answered for what all of them know: an agent has answered for
// itself, a launcher without its ranks. Where one does not say that now its first answer stays.
func Whole(ctx context.Context, jobs []Found) {
	var wg sync.WaitGroup
	for i := range jobs {
		f := &jobs[i]
		if f.Answer == nil || f.Answer.Muster.Role == Agent && f.Answer.Nodes <= 1 {
			continue
		}
		wg.Go(func() {
			if a, err := f.Client().Status(ctx, World); err == nil {
				f.Answer = &a
			}
		})
	}
	wg.Wait()
}

// beside reports whether both are nodes of one job.
func (f *Found) beside(other *Found) bool {
	return f.Answer != nil && other.Answer != nil && f.RunID() == other.RunID() && f.Answer.Muster.Beside(&other.Answer.Muster)
}

// Parts are those of the found that belong to the same job as one of them, itself first.
func Parts(found []Found, of Found) []Found {
	parts := []Found{of}
	for _, f := range found {
		if f.Dir != of.Dir && f.Answer != nil && of.Answer != nil && f.RunID() == of.RunID() && (f.part() || f.beside(&of)) {
			parts = append(parts, f)
		}
	}
	return parts
}

// Pick returns the job that name means: a run id or a unique beginning of one, the process id of a muster, or a run
// directory; empty: the only one there is. where says where the found were looked for. Its error has status 2 where
// there is no such job, or more than one.
func Pick(ctx context.Context, found []Found, name, where string) (Found, error) {
	if strings.Contains(name, "/") { // no file name of a run id has one
		dir, err := filepath.Abs(name)
		if err != nil {
			return Found{}, errhint.Usagef("cannot tell the directory %q: %w", name, err)
		}
		if !rundir.Exists(dir) {
			if f, err := pick(found, name, where); err == nil { // but a run id may
				return f, nil
			}
			return Found{}, errhint.With(errhint.Usagef("there is no run directory %q", dir), "muster ps lists the jobs that run here")
		}
		f := look(ctx, dir)
		return f, unanswered(&f)
	}
	return pick(found, name, where)
}

func pick(found []Found, name, where string) (Found, error) {
	alive := slices.DeleteFunc(Jobs(found), func(f Found) bool { return f.Dead() })
	ways := []func(*Found) bool{
		func(f *Found) bool { return f.RunID() == name },
		func(f *Found) bool { return f.PID > 0 && strconv.Itoa(f.PID) == name },
		func(f *Found) bool { return strings.HasPrefix(f.RunID(), name) },
	}
	among := [][]Found{alive, found, alive} // a process id may be that of a part
	if name == "" {
		ways, among = []func(*Found) bool{func(*Found) bool { return true }}, [][]Found{alive}
	}
	for i, fits := range ways {
		match := slices.DeleteFunc(slices.Clone(among[i]), func(f Found) bool { return !fits(&f) })
		match = answering(outermost(match, found))
		switch len(match) {
		case 0:
			continue
		case 1:
			return match[0], unanswered(&match[0])
		}
		err := fmt.Errorf("there are %d %w", len(match), ErrSeveral)
		if name != "" {
			err = fmt.Errorf("%d %w match %q", len(match), ErrSeveral, name)
		}
		return Found{}, errhint.With(errhint.Usagef("%w: %s", err, strings.Join(names(match), ", ")),
			"name one by its run id, by the pid of its muster, or by its run directory")
	}
	dead := slices.DeleteFunc(slices.Clone(found), func(f Found) bool { return !f.Dead() || name != "" && f.RunID() != name })
	if name != "" && len(dead) > 0 {
		return Found{}, unanswered(&dead[0])
	}
	hint := "jobs of this user with the same XDG_RUNTIME_DIR and TMPDIR are found; muster ps lists them"
	if len(alive) > 0 {
		hint = "these run: " + strings.Join(names(alive), ", ")
	}
	if name != "" {
		return Found{}, errhint.With(errhint.Usagef("%w %q: it was looked for in %s", ErrNoMatch, name, where), hint)
	}
	return Found{}, errhint.With(errhint.Usagef("%w: it was looked for in %s", ErrNoJob, where), hint)
}

// answering leaves out musters that do not answer where one does with the same run id: they may be other nodes of that job.
// Of a node whose directory has more in its name than the run id nobody can say that.
func answering(jobs []Found) []Found {
	return slices.DeleteFunc(slices.Clone(jobs), func(f Found) bool {
		return f.Silent() && slices.ContainsFunc(jobs, func(other Found) bool { return other.Answer != nil && f.RunID() == other.RunID() })
	})
}

// outermost leaves out jobs that a worker of another one of them has started, as launchers in the commands of a job file
// are: who does not name them by their process id means the job around them.
func outermost(jobs, found []Found) []Found {
	return slices.DeleteFunc(slices.Clone(jobs), func(f Found) bool {
		return slices.ContainsFunc(jobs, func(other Found) bool { return f.within(&other, found) })
	})
}

// within reports whether a worker of the other job, or of a part of it, has started the muster.
func (f *Found) within(other *Found, found []Found) bool {
	if f.Answer == nil || f.Answer.Muster.Within == "" || f.Dir == other.Dir {
		return false
	}
	return slices.ContainsFunc(Parts(found, *other), func(part Found) bool { return part.Dir == f.Answer.Muster.Within })
}

// ErrNoJob is why Pick chooses none where none was named, and none runs.
var ErrNoJob = errors.New("no job of yours runs here")

// ErrNoMatch is why Pick chooses none where one was named.
var ErrNoMatch = errors.New("no job that runs here matches")

// ErrSeveral is why Pick chooses none where more than one fits.
var ErrSeveral = errors.New("jobs here")

// unanswered is why a directory that was chosen cannot be asked.
func unanswered(f *Found) error {
	if f.Answer != nil {
		return nil
	}
	return f.Err
}

// names are the found as a person may choose one of them.
func names(found []Found) []string {
	list := make([]string, len(found))
	for i := range found {
		list[i] = fmt.Sprintf("%s (pid %d, %s)", found[i].RunID(), found[i].PID, found[i].Dir)
	}
	return list
}
