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
// place; what has no manifest is not ours to remove. Those that the newest one spares stay, and count.
func prunable(steps []Step, rules KeepRules) []Step {
	if rules.Latest <= 0 {
		return nil
	}
	var gone []Step
	var spare []int64
	if len(steps) > 0 && steps[0].Latest {
		spare = steps[0].Spare
	}
	spared := func(s Step) bool { return s.Problem == nil && slices.Contains(spare, s.Step) }
	kept := 0
	for _, s := range steps {
		if spared(s) {
			kept++
		}
	}
	for _, s := range steps {
		switch {
		case spared(s):
		case s.Foreign || s.ManifestPath == "" || s.Latest:
			if s.Latest {
				kept++
			}
		case s.Problem == nil && kept < rules.Latest:
			kept++
		case s.Problem == nil && rules.Every > 0 && s.Step%rules.Every == 0:
		case kept == 0: // a step that cannot be used now, and none that can: it may be all there is
		default:
			gone = append([]Step{s}, gone...)
		}
	}
	return gone
}

// Prune removes the steps of a directory that the rules do not keep, and returns them; with dry it only returns them. It is
// refused while a job saves there.
func Prune(dir string, rules KeepRules, dry bool) ([]Step, error) {
	if _, err := os.Stat(filepath.Join(dir, ownDir)); err == nil {
		lock, err := lockCheckpoints(dir)
		if err != nil {
			return nil, fmt.Errorf("cannot prune %s: %w", dir, err)
		}
		defer lock.close()
	}
	return pruneOn(posix{}, dir, rules, dry)
}

func pruneOn(d disk, dir string, rules KeepRules, dry bool) ([]Step, error) {
	steps, err := List(dir)
	if err != nil {
		return nil, err
	}
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
