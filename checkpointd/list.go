package checkpointd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"muster/internal/beneath"
)

// List returns the steps in a directory of checkpoints: that of the trackers first, then from the newest to the oldest,
// then what is there with a problem and has no number. Errors are about the directory; those of a step are its Problem.
func List(dir string) ([]Step, error) { return listUntil(func() error { return nil }, dir) }

// listUntil is List until ended returns an error: that is the Problem of a step whose files were not all looked at by
// then.
func listUntil(ended func() error, dir string) ([]Step, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	t, err := beneath.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list checkpoints: %w", err)
	}
	defer func() { _ = t.Close() }()
	steps, plain, err := listDirs(ended, t, dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list checkpoints: %w", err)
	}
	own, err := listOwn(ended, t, dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list checkpoints: %w", err)
	}
	steps = append(steps, own...)
	latest := latestStep(t)
	for _, n := range plain {
		if n != latest.foreign {
			continue
		}
		if s, ok := foreignStep(t, dir, n); ok {
			steps = append(steps, s)
		}
	}
	if n := latest.step; n >= 0 && latest.foreign < 0 && !slices.ContainsFunc(steps, func(s Step) bool { return s.Step == n }) {
		steps = append(steps,
			Step{Manifest: Manifest{Step: n}, Dir: dir, Problem: fmt.Errorf("%s names it, and there is no manifest of it", trackerName)})
	}
	for i := range steps {
		s := &steps[i]
		tracked := latest.step >= 0 && s.Step == latest.step
		s.Latest = s.Foreign || s.Attempt == "" && tracked || s.Problem == nil && tracked && s.Attempt == latest.attempt &&
			latest.foreign < 0
	}
	for _, err := range latest.problems {
		steps = append(steps, Step{Manifest: Manifest{Step: -1}, Dir: dir, Problem: err})
	}
	slices.SortStableFunc(steps, newestFirst)
	return steps, nil
}

// newestFirst orders steps. Clocks say what is newer only of what an earlier muster has written, which is older than
// all that is counted.
func newestFirst(a, b Step) int {
	if a.Latest != b.Latest {
		if a.Latest {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.Commit, a.Commit), b.Created.Compare(a.Created), cmp.Compare(b.Step, a.Step))
}

// problemAt is what stands for something that cannot be used; step is -1 where it has no number.
func problemAt(dir, name string, step int64, err error) Step {
	s := Step{Manifest: Manifest{Step: step}, Dir: dir, Problem: err}
	if step < 0 {
		s.Manifest.Dir = name
	}
	return s
}

// listDirs returns the steps that have a directory, and the numbers of those directories that may be another program's.
func listDirs(ended func() error, t *beneath.Tree, dir string) (steps []Step, plain []int64, err error) {
	entries, err := t.Names(".")
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if !e.IsDir() || isOwnName(e.Name()) {
			continue
		}
		n, err := strconv.ParseInt(e.Name(), 10, 64)
		numbered := err == nil && n >= 0
		if !numbered {
			n = -1
		}
		s, err := readStep(ended, t, dir, filepath.Join(e.Name(), manifestName))
		if err == nil && s.stepDir() != e.Name() {
			err = fmt.Errorf("its manifest is of %s", s.stepDir())
		}
		for i := range s.Files {
			if path := s.Files[i].Path; err == nil && !strings.HasPrefix(path, e.Name()+"/") {
				err = fmt.Errorf("%w: its manifest has a file %q, which lies elsewhere", errName, path)
			}
		}
		switch {
		case err == nil:
			steps = append(steps, s)
		case !errors.Is(err, os.ErrNotExist):
			steps = append(steps, problemAt(dir, e.Name(), n, err))
		case numbered:
			plain = append(plain, n)
		}
	}
	return steps, plain, nil
}

// listOwn returns the steps whose files have paths of their own: their manifests are in ownDir.
func listOwn(ended func() error, t *beneath.Tree, dir string) (steps []Step, err error) {
	entries, err := t.Names(ownDir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, beneath.ErrKind):
		return []Step{problemAt(dir, ownDir, -1, fmt.Errorf("%w: %w", err, errName))}, nil
	case err != nil:
		return nil, err
	}
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), ".json")
		n, err := strconv.ParseInt(base, 10, 64)
		if !ok || err != nil || n < 0 {
			continue
		}
		s, err := readStep(ended, t, dir, filepath.Join(ownDir, e.Name()))
		if err == nil && s.Step != n {
			err = fmt.Errorf("its manifest is of step %d", s.Step)
		}
		if err != nil {
			s = problemAt(dir, e.Name(), n, err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// readManifest reads a manifest, and makes sure that it can be one.
func readManifest(t *beneath.Tree, path string) (m Manifest, err error) {
	if err = readJSON(t, path, &m); err == nil {
		err = m.validate()
	}
	return m, err
}

// readStep reads a manifest, and looks for the files.
func readStep(ended func() error, t *beneath.Tree, dir, path string) (s Step, err error) {
	s = Step{Dir: dir, ManifestPath: path}
	if s.Manifest, err = readManifest(t, path); err != nil {
		return s, err
	}
	s.Problem = s.check(ended, t, dir)
	return s, nil
}

// nextCommit is the number of the next commit to a directory.
func nextCommit(dir string) (next int64, err error) {
	t, err := beneath.Open(dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = t.Close() }()
	count := func(path string) {
		if m, err := readManifest(t, path); err == nil {
			next = max(next, m.Commit)
		}
	}
	for _, at := range []struct{ dir, ends, manifest string }{{".", "", manifestName}, {ownDir, ".json", ""}} {
		entries, err := t.Names(at.dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if e.IsDir() == (at.manifest != "") && strings.HasSuffix(e.Name(), at.ends) && e.Name() != ownDir {
				count(filepath.Join(at.dir, e.Name(), at.manifest))
			}
		}
	}
	return min(next+1, commitLast), nil
}

// latest is what the trackers say.
type latest struct {
	step     int64
	attempt  string
	foreign  int64   // the step that DLRover's tracker alone names, else -1
	problems []error // of the trackers themselves
}

// latestOf reads the trackers of a directory.
func latestOf(dir string) latest {
	t, err := beneath.Open(dir)
	if err != nil {
		return latest{step: -1, foreign: -1}
	}
	defer func() { _ = t.Close() }()
	return latestStep(t)
}

func latestStep(t *beneath.Tree) latest {
	l := latest{step: -1, foreign: -1}
	var of tracker
	if err := readJSON(t, trackerName, &of); err == nil && of.Step >= 0 {
		l.step, l.attempt = of.Step, of.Attempt
	} else {
		l.problem(trackerName, err)
	}
	text, err := t.Read(dlroverTracker, trackerLimit)
	if err != nil {
		l.problem(dlroverTracker, err)
		return l
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n < 0 {
		l.problem(dlroverTracker, errors.New("it names no step"))
		return l
	}
	name := strconv.FormatInt(n, 10)
	missing := func(path string) bool {
		_, err := t.Lstat(path)
		return errors.Is(err, os.ErrNotExist)
	}
	if n != l.step && missing(filepath.Join(name, manifestName)) &&
		missing(filepath.Join(ownDir, name+".json")) { // else we wrote it, and tracked it
		l.foreign = n
	}
	return l
}

// problem notes why a tracker that is there cannot be used.
func (l *latest) problem(name string, err error) {
	if err == nil {
		err = errors.New("it names no step")
	}
	if !errors.Is(err, os.ErrNotExist) {
		l.problems = append(l.problems, fmt.Errorf("cannot use the tracker %s: %w", name, err))
	}
}

// foreignStep describes what is left where muster did not write: DLRover's <step>/rank_<rank>.pt, or a directory of
// torch.distributed.checkpoint, whose .metadata comes last and whose files are no shards that a rank could ask for.
func foreignStep(t *beneath.Tree, dir string, step int64) (Step, bool) {
	s := Step{Manifest: Manifest{Step: step}, Dir: dir, Foreign: true}
	add := func(shard int, name string) bool {
		path := filepath.Join(strconv.FormatInt(step, 10), name)
		info, err := t.Regular(path)
		if err == nil {
			s.Files = append(s.Files, File{Shard: shard, Path: path, Size: info.Size()})
			s.Created = info.ModTime()
		}
		return err == nil
	}
	for shard := 0; add(shard, rankFile(shard)); shard++ {
		s.Shards++
	}
	if s.Shards > 0 || !add(0, ".metadata") {
		return s, s.Shards > 0
	}
	s.Shards = 1
	entries, err := t.Names(strconv.FormatInt(step, 10))
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".distcp" {
			add(0, e.Name())
		}
	}
	return s, err == nil
}
