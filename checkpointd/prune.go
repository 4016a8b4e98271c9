package checkpointd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// KeepRules say which steps Prune leaves. The newest one that can be used stays, whatever they say.
type KeepRules struct {
	// Latest is how many of the newest usable steps stay; 0: all.
	Latest int
	// Every keeps besides these each step that is a multiple of it; 0: none.
	Every int64
}

// prunable returns the steps of a directory that the rules do not keep, the oldest first. Steps that nobody can use keep no
// place; what has no manifest is not ours to remove. Those that the newest usable one spares stay, and count.
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
		case s.Foreign || s.ManifestPath == "":
		case s.Problem == nil && kept < rules.Latest:
			kept++
		case s.Problem == nil && rules.Every > 0 && s.Step%rules.Every == 0:
		default:
			gone = append([]Step{s}, gone...)
		}
	}
	return gone
}

// Prune removes the steps of a directory that the rules do not keep, and returns them; with dry it only returns them. It is
// refused while a job saves there. The newest step that stays is read, and one whose checksums are wrong counts as one that cannot be used.
func Prune(dir string, rules KeepRules, dry bool) ([]Step, error) {
	if _, err := os.Stat(filepath.Join(dir, ownDir)); err == nil {
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

// removeStep takes a step away so that at no time a part of it looks like a step. Files that another step has, too, stay, and
// so do those outside of the directory: whoever can write a manifest must not choose what is removed elsewhere.
func removeStep(d disk, s *Step, all []Step) error {
	if filepath.Dir(s.ManifestPath) != ownDir {
		trash := filepath.Join(s.Dir, ownDir, trashPrefix+newAttempt())
		if err := d.MkdirAll(filepath.Join(s.Dir, ownDir)); err != nil {
			return err
		}
		if err := d.Rename(filepath.Join(s.Dir, s.stepDir()), trash); err != nil {
			return err
		}
		return d.RemoveAll(trash)
	}
	if err := d.RemoveAll(filepath.Join(s.Dir, s.ManifestPath)); err != nil {
		return err
	}
	for _, f := range s.Files {
		shared := filepath.IsAbs(f.Path)
		for i := range all {
			for _, o := range all[i].Files {
				shared = shared || all[i].Attempt != s.Attempt && o.place(s.Dir) == f.place(s.Dir)
			}
		}
		if !shared {
			if err := d.RemoveAll(f.at(s.Dir)); err != nil {
				return err
			}
		}
	}
	return nil
}
