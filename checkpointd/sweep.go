package checkpointd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"muster/internal/beneath"
)

// sweep finishes what a job that was killed had decided in a directory that is locked now, and removes what it had not.
func sweep(d disk, dir string) error {
	errs := []error{finishNamed(d, dir), finishStaged(d, dir)}
	return errors.Join(append(errs, in(spot{dir: dir}, func(t *beneath.Tree) error {
		entries, err := t.Names(ownDir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), stagePrefix) || strings.HasPrefix(e.Name(), trashPrefix) {
				err = errors.Join(err, d.RemoveAll(own(dir, e.Name())))
			}
		}
		beside, failed := t.Names(".")
		for _, e := range beside {
			if strings.HasPrefix(e.Name(), ".") && strings.Contains(e.Name(), tempMark) && e.Type().IsRegular() {
				err = errors.Join(err, d.Remove(spot{dir, e.Name()}))
			}
		}
		return errors.Join(err, failed)
	}))...)
}

// finishNamed gives files of committed steps their names.
func finishNamed(d disk, dir string) error {
	steps, err := List(dir)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if s.Problem != nil || filepath.Dir(s.ManifestPath) != ownDir {
			continue
		}
		for _, f := range s.Files {
			at, place := f.lies(dir), f.spot(dir)
			if at == place || at.dir != dir && (!ours(at) || !ours(spot{dir, s.ManifestPath})) {
				continue
			}
			if err := d.Rename(at, place); err != nil {
				return err
			}
			if err := d.SyncDir(spot{at.dir, filepath.Dir(at.name)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ours reports whether we alone have written a file. Only then a file that lies outside of the directory of checkpoints
// gets its name, and only by a manifest of which the same is true: who may write a manifest must not choose which names
// change elsewhere. Such a file is found under the name that it has.
func ours(at spot) bool {
	info, err := os.Lstat(at.path())
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && info.Mode().Perm()&0o022 == 0
}

// finishStaged gives whole stage directories the names of their steps, where nothing has those: swap was cut off.
func finishStaged(d disk, dir string) error {
	return in(spot{dir: dir}, func(t *beneath.Tree) error {
		entries, err := t.Names(ownDir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.IsDir() || !strings.HasPrefix(e.Name(), stagePrefix) {
				continue
			}
			stage := own(dir, e.Name())
			m, err := readManifest(t, filepath.Join(stage.name, manifestName))
			if err != nil || !m.wholeIn(t, stage.name) {
				continue
			}
			final := spot{dir, m.stepDir()}
			if _, err := os.Lstat(final.path()); err == nil {
				continue
			}
			if err := d.Rename(stage, final); err != nil {
				return err
			}
			if err := d.SyncDir(spot{dir, "."}); err != nil {
				return err
			}
		}
		return nil
	})
}

// wholeIn reports whether a step's files, all of them in its directory, are in another one.
func (m *Manifest) wholeIn(t *beneath.Tree, stage string) bool {
	for _, f := range m.Files {
		rel, ok := strings.CutPrefix(f.Path, m.stepDir()+"/")
		if !ok {
			return false // a file with a place of its own
		}
		info, err := t.Regular(filepath.Join(stage, rel))
		if err != nil || info.Size() != f.Size {
			return false
		}
	}
	return true
}

// globQuote keeps filepath.Glob from reading a directory's name as a pattern.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}
