package checkpointd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// fileSource writes one file of a step, and returns its size and CRC-32C.
type fileSource struct {
	Shard int
	// Path is relative to the step's directory; absolute where a worker wants the file elsewhere.
	Path  string
	Write func(ctx context.Context, f *os.File) (size int64, sum uint32, err error)
}

// commitment is one attempt to bring a step to disk. The order of its writes is the whole point: whatever is cut off after
// any of them, the step before or this one is there whole, and the trackers name nothing that is not.
type commitment struct {
	disk     disk
	dir      string
	step     int64
	stepDir  string // the name of the step's directory
	runID    string
	attempt  string
	shards   int
	files    []fileSource
	trackers [][2]string // name and text, for the framework's own tools
	now      func() time.Time
	decided  bool // the step is committed, whatever fails from now on
}

func newAttempt() string { return strings.ToLower(rand.Text()[:16]) }

// run writes the files and makes the step visible. An error leaves the step before as it was.
func (c *commitment) run(ctx context.Context) (err error) {
	stage := filepath.Join(c.dir, ownDir, stagePrefix+c.attempt)
	staged := make([]string, len(c.files))
	if err := c.disk.MkdirAll(stage); err != nil {
		return err
	}
	defer func() {
		if err != nil && !c.decided {
			err = errors.Join(err, c.disk.RemoveAll(stage))
			for _, path := range staged {
				if path != "" {
					err = errors.Join(err, c.disk.RemoveAll(path))
				}
			}
		}
	}()
	m := Manifest{
		Version: manifestVersion, Step: c.step, Dir: c.stepDir, Attempt: c.attempt, RunID: c.runID, Shards: c.shards, Created: c.now().UTC(),
		Trackers: c.trackers, Files: make([]File, len(c.files)),
	}
	elsewhere, err := c.place(stage, staged, m.Files)
	if err != nil {
		return err
	}
	if err := c.write(ctx, staged, m.Files); err != nil {
		return err
	}
	if err := m.validate(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	if elsewhere {
		err = c.publishNamed(stage, staged, text)
	} else {
		err = c.publish(stage, staged, text)
	}
	if err != nil {
		return err
	}
	if err := c.track(m); err != nil || !elsewhere {
		return err
	}
	return c.forgetReplaced(m)
}

// place settles where the files lie while they are written, and where later; elsewhere says that they do not share the step's
// directory.
func (c *commitment) place(stage string, staged []string, files []File) (elsewhere bool, err error) {
	named := 0
	for i, f := range c.files {
		if !filepath.IsAbs(f.Path) {
			staged[i] = filepath.Join(stage, f.Path)
			files[i].Path = filepath.Join(c.stepDir, f.Path)
			if sub := filepath.Dir(f.Path); sub != "." {
				err = c.disk.MkdirAll(filepath.Join(stage, sub))
			}
		} else {
			named++
			staged[i] = stagedFile(f.Path, c.attempt)
			files[i].Path = f.Path
			if rel, err := filepath.Rel(c.dir, f.Path); err == nil && filepath.IsLocal(rel) {
				files[i].Path = rel
			}
			err = c.disk.MkdirAll(filepath.Dir(f.Path))
		}
		if err != nil {
			return false, err
		}
	}
	if named > 0 && named < len(c.files) {
		return false, fmt.Errorf("only %d of %d files have a path of their own: give all of them one, or none", named, len(c.files))
	}
	return named > 0, nil
}

// forgetReplaced removes the manifests of older steps whose files this one has replaced.
func (c *commitment) forgetReplaced(m Manifest) error {
	steps, err := List(c.dir)
	if err != nil {
		return err
	}
	ours := map[string]bool{}
	for _, f := range m.Files {
		ours[f.place(c.dir)] = true
	}
	for _, s := range steps {
		replaced := slices.ContainsFunc(s.Files, func(f File) bool { return ours[f.place(c.dir)] })
		if replaced && s.Attempt != m.Attempt && filepath.Dir(s.ManifestPath) == ownDir {
			if err := c.disk.RemoveAll(filepath.Join(c.dir, s.ManifestPath)); err != nil {
				return err
			}
		}
	}
	return nil
}

// tempMark is in the names of files that are being written beside the paths that workers gave.
const tempMark = ".muster-"

// stagedFile is the name of such a file.
func stagedFile(path, attempt string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+tempMark+attempt)
}

// filesAtOnce bounds how many files are written at the same time.
const filesAtOnce = 64

// write writes all files.
func (c *commitment) write(ctx context.Context, staged []string, files []File) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	for i, s := range c.files {
		g.Go(func() (err error) {
			f, err := c.disk.Create(staged[i])
			if err != nil {
				return err
			}
			size, sum, err := s.Write(ctx, f)
			if err == nil {
				err = c.disk.Sync(f)
			}
			files[i] = File{Shard: s.Shard, Path: files[i].Path, Size: size, CRC32C: fmt.Sprintf("%08x", sum), Attempt: c.attempt}
			return errors.Join(err, f.Close())
		})
	}
	return g.Wait()
}

// publish gives the stage directory, with the manifest in it, the step's name.
func (c *commitment) publish(stage string, staged []string, manifest []byte) error {
	if err := c.disk.Replace(filepath.Join(stage, manifestName), manifest); err != nil {
		return err
	}
	synced := map[string]bool{}
	for _, path := range append(staged, stage+"/") {
		for dir := filepath.Dir(path); len(dir) >= len(stage) && !synced[dir]; dir = filepath.Dir(dir) {
			synced[dir] = true
			if err := c.disk.SyncDir(dir); err != nil {
				return err
			}
		}
	}
	final := filepath.Join(c.dir, c.stepDir)
	if _, err := os.Lstat(final); err == nil { // the step was saved before: by this job before it went back, or by another
		if err := c.swap(stage, final); err != nil {
			return err
		}
	} else if err := c.disk.Rename(stage, final); err != nil {
		return err
	}
	return c.disk.SyncDir(c.dir)
}

// swap puts the stage directory in the place of what has the step's name. Where the file system cannot do that at once,
// what was there is moved aside first.
func (c *commitment) swap(stage, final string) error {
	old := stage
	if err := c.disk.Exchange(stage, final); err != nil {
		old = filepath.Join(c.dir, ownDir, trashPrefix+c.attempt)
		if err := c.disk.Rename(final, old); err != nil {
			return err
		}
		if err := c.disk.Rename(stage, final); err != nil {
			return err
		}
	}
	if err := c.disk.SyncDir(c.dir); err != nil {
		return err
	}
	return c.disk.RemoveAll(old)
}

// publishNamed gives files the names that workers chose. Several names cannot change at once, so the manifest decides: from
// then on the files count, under the names that they have until they get their own, and whoever opens the directory next
// finishes what is cut off here.
func (c *commitment) publishNamed(stage string, staged []string, manifest []byte) error {
	dirs := map[string]bool{}
	for _, f := range c.files {
		dirs[filepath.Dir(f.Path)] = true
	}
	sync := func() error {
		for dir := range dirs {
			if err := c.disk.SyncDir(dir); err != nil {
				return err
			}
		}
		return nil
	}
	if err := sync(); err != nil {
		return err
	}
	path := filepath.Join(c.dir, ownDir, strconv.FormatInt(c.step, 10)+".json")
	if err := c.disk.Replace(path, manifest); err != nil {
		if m := (Manifest{}); readJSON(path, &m) == nil && m.Attempt == c.attempt {
			c.decided = true // it is there; only its durability is in doubt
		}
		return err
	}
	c.decided = true
	for i, f := range c.files {
		if err := c.disk.Rename(staged[i], f.Path); err != nil {
			return err
		}
	}
	if err := sync(); err != nil {
		return err
	}
	return c.disk.RemoveAll(stage)
}

// track writes the trackers, those that have no manifest to be compared with last.
func (c *commitment) track(m Manifest) error {
	t := tracker{Step: m.Step, Attempt: m.Attempt, Shards: m.Shards, Created: m.Created}
	for _, f := range m.Files {
		t.Paths = append(t.Paths, f.Path)
	}
	text, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return err
	}
	if err := c.disk.Replace(filepath.Join(c.dir, trackerName), append(text, '\n')); err != nil {
		return err
	}
	for _, t := range m.Trackers {
		if err := c.disk.Replace(filepath.Join(c.dir, t[0]), []byte(t[1])); err != nil {
			return err
		}
	}
	return c.disk.Replace(filepath.Join(c.dir, dlroverTracker), strconv.AppendInt(nil, m.Step, 10))
}

// sweep finishes what a job that was killed had decided in a directory that is locked now, and removes what it had not.
func sweep(d disk, dir string) error {
	errs := []error{finishNamed(d, dir), finishStaged(d, dir)}
	for _, pattern := range []string{
		filepath.Join(ownDir, stagePrefix+"*"), filepath.Join(ownDir, trashPrefix+"*"), ".*" + tempMark + "*",
	} {
		found, err := filepath.Glob(filepath.Join(globQuote(dir), pattern))
		if err != nil {
			return err
		}
		for _, path := range found {
			errs = append(errs, d.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
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
			if at := f.at(dir); at != f.place(dir) {
				if err := d.Rename(at, f.place(dir)); err != nil {
					return err
				}
				if err := d.SyncDir(filepath.Dir(at)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// finishStaged gives whole stage directories the names of their steps, where nothing has those: swap was cut off.
func finishStaged(d disk, dir string) error {
	found, err := filepath.Glob(filepath.Join(globQuote(dir), ownDir, stagePrefix+"*"))
	if err != nil {
		return err
	}
	for _, stage := range found {
		var m Manifest
		if readJSON(filepath.Join(stage, manifestName), &m) != nil || m.validate() != nil {
			continue
		}
		whole := true
		for _, f := range m.Files {
			rel, err := filepath.Rel(m.stepDir(), f.Path)
			if err != nil || !filepath.IsLocal(rel) {
				whole = false // a file with a place of its own
				break
			}
			info, err := os.Stat(filepath.Join(stage, rel))
			whole = whole && err == nil && info.Size() == f.Size
		}
		final := filepath.Join(dir, m.stepDir())
		if _, err := os.Lstat(final); !whole || err == nil {
			continue
		}
		if err := d.Rename(stage, final); err != nil {
			return err
		}
		if err := d.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// globQuote keeps filepath.Glob from reading a directory's name as a pattern.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}
