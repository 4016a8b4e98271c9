package checkpointd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"muster/internal/beneath"
)

// KeepRules say which steps Prune leaves. The newest one that can be used stays, whatever they say.
type KeepRules struct {
	// Latest is how many of the newest usable steps stay; 0: all.
	Latest int
	// Every keeps besides these each step that is a multiple of it; 0: none.
	Every int64
}

// prunable returns the steps of a directory that the rules do not keep, the oldest first. Steps that nobody can use
// keep no place; what has no manifest, or something else than files under their names, is not ours to remove. Those
// that the newest usable one spares stay, and count.
func prunable(steps []Step, rules KeepRules) []Step {
	newest := slices.IndexFunc(steps, func(s Step) bool { return s.Problem == nil && (s.Latest || !s.Foreign) })
	if rules.Latest <= 0 || newest < 0 { // what cannot be used now may be all there is
		return nil
	}
	var gone []Step
	spared := func(s Step) bool { return s.Problem == nil && slices.Contains(steps[newest].Spare, s.Step) }
	kept := 0
	for _, s := range steps {
		if spared(s) {
			kept++
		}
	}
	for i, s := range steps {
		switch {
		case spared(s) || i < newest:
		case i == newest:
			kept++
		case s.Foreign || s.ManifestPath == "" || errors.Is(s.Problem, errName):
		case s.Problem == nil && kept < rules.Latest:
			kept++
		case s.Problem == nil && rules.Every > 0 && s.Step%rules.Every == 0:
		default:
			gone = append([]Step{s}, gone...)
		}
	}
	return gone
}

// Prune removes the steps of a directory that the rules do not keep, and returns them; with dry it only returns them.
// It is refused while a job saves there. The newest step that stays is read, and one whose checksums are wrong counts
// as one that cannot be used.
func Prune(dir string, rules KeepRules, dry bool) ([]Step, error) {
	if _, err := os.Lstat(filepath.Join(dir, ownDir)); err == nil {
		lock, err := lockCheckpoints(dir)
		if err != nil {
			return nil, fmt.Errorf("cannot prune %s: %w", dir, err)
		}
		defer lock.close()
	}
	steps, err := List(dir)
	if err != nil {
		return nil, err
	}
	for i := range steps {
		if steps[i].Problem == nil {
			if steps[i].Problem = steps[i].Verify(); steps[i].Problem == nil {
				break
			}
		}
	}
	return pruneSteps(posix{}, steps, rules, dry)
}

// pruneOn is Prune behind a step that was just written.
func pruneOn(d disk, dir string, rules KeepRules) error {
	steps, err := List(dir)
	if err == nil {
		_, err = pruneSteps(d, steps, rules, false)
	}
	return err
}

func pruneSteps(d disk, steps []Step, rules KeepRules, dry bool) ([]Step, error) {
	var removed []Step
	for _, s := range prunable(steps, rules) {
		if !dry {
			if err := removeStep(d, &s, steps); err != nil {
				return removed, fmt.Errorf("cannot remove step %d: %w", s.Step, err)
			}
		}
		removed = append(removed, s)
	}
	return removed, nil
}

// removeStep takes a step away so that at no time a part of it looks like a step, one file after the other. Files that
// another step has, too, stay, and so do those outside of the directory, and all that no manifest names: whoever can
// write a manifest must not choose what is removed.
func removeStep(d disk, s *Step, all []Step) error {
	if filepath.Dir(s.ManifestPath) == ownDir {
		return removeNamed(d, s, all)
	}
	t, err := beneath.Open(s.Dir)
	if err != nil {
		return err
	}
	listed := map[string]bool{s.ManifestPath: true}
	names := make([]string, len(s.Files))
	for i := range s.Files {
		names[i] = s.Files[i].lies(s.Dir).name
		listed[names[i]] = true
	}
	more, err := hasMore(t, s.stepDir(), listed)
	if err := errors.Join(err, t.Close()); err != nil {
		return err
	}
	from := s.stepDir()
	if !more { // then it disappears at once
		from = filepath.Join(ownDir, trashPrefix+newAttempt())
		if err := d.MkdirAll(spot{s.Dir, ownDir}); err != nil {
			return err
		}
		if err := d.Rename(spot{s.Dir, s.stepDir()}, spot{s.Dir, from}); err != nil {
			return err
		}
	}
	dirs := map[string]bool{from: true}
	remove := func(name string) error {
		rel, err := filepath.Rel(s.stepDir(), name)
		if err != nil {
			return err
		}
		for dir := filepath.Dir(filepath.Join(from, rel)); len(dir) > len(from); dir = filepath.Dir(dir) {
			dirs[dir] = true
		}
		return removeFile(d, spot{s.Dir, filepath.Join(from, rel)})
	}
	if err := remove(s.ManifestPath); err != nil { // first: without it the rest is no step
		return err
	}
	for i := range names {
		if err := remove(names[i]); err != nil {
			return err
		}
	}
	if !more { // of which no more than directories are left
		return d.RemoveAll(spot{s.Dir, from})
	}
	deepest := slices.SortedFunc(maps.Keys(dirs), func(a, b string) int { return len(b) - len(a) })
	for _, dir := range deepest {
		if err := d.Remove(spot{s.Dir, dir}); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// hasMore reports whether a step's directory has something that its manifest does not name.
func hasMore(t *beneath.Tree, dir string, listed map[string]bool) (bool, error) {
	entries, err := t.Names(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case e.Type().IsRegular() && listed[name]:
		case e.IsDir():
			if more, err := hasMore(t, name, listed); more || err != nil {
				return more, err
			}
		default:
			return true, nil
		}
	}
	return false, nil
}

// removeNamed removes a step whose files have paths of their own.
func removeNamed(d disk, s *Step, all []Step) error {
	if err := d.Remove(spot{s.Dir, s.ManifestPath}); err != nil {
		return err
	}
	for _, f := range s.Files {
		if filepath.IsAbs(f.Path) || ofAnother(s, &f, all) {
			continue
		}
		if err := removeFile(d, f.lies(s.Dir)); err != nil {
			return err
		}
	}
	return nil
}

// ofAnother reports whether a file belongs to another step than the one that names it: by a manifest, or since it lies
// in the directory of a step.
func ofAnother(s *Step, f *File, all []Step) bool {
	first, _, nested := strings.Cut(f.Path, "/")
	if _, err := os.Lstat(filepath.Join(s.Dir, first, manifestName)); nested && !errors.Is(err, os.ErrNotExist) {
		return true
	}
	return slices.ContainsFunc(all, func(o Step) bool {
		return o.ManifestPath != s.ManifestPath &&
			slices.ContainsFunc(o.Files, func(of File) bool { return of.place(s.Dir) == f.place(s.Dir) })
	})
}

// removeFile removes a regular file, and leaves anything else.
func removeFile(d disk, at spot) error {
	err := in(at, func(t *beneath.Tree) error {
		_, err := t.Regular(at.name)
		return err
	})
	if err != nil {
		return unlessGone(err)
	}
	return d.Remove(at)
}
