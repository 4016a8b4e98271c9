package checkpointd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"muster/internal/beneath"
	"muster/internal/durable"
)

// fileSource writes one file of a step, and returns its size and CRC-32C.
type fileSource struct {
	Shard int
	// Path is relative to the step's directory; absolute where a worker wants the file elsewhere.
	Path  string
	Write func(ctx context.Context, f *os.File) (size int64, sum uint32, err error)
}

// commitment is one attempt to bring a step to disk. The order of its writes is the whole point: whatever is cut off
// after any of them, the step before or this one is there whole, and the trackers name nothing that is not.
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
	spare    []int64     // older steps that stay
	now      func() time.Time
	decided  bool // the step is committed, whatever fails from now on
}

func newAttempt() string { return strings.ToLower(rand.Text()[:16]) }

// run writes the files and makes the step visible. An error leaves the step before as it was.
func (c *commitment) run(ctx context.Context) error {
	files, elsewhere, err := c.writeFiles(ctx)
	if err == nil {
		err = c.publish(files, elsewhere)
	}
	if err != nil && !c.decided {
		err = errors.Join(err, c.giveUp(files, elsewhere))
	}
	return err
}

// stage is the directory that becomes the step's.
func (c *commitment) stage() spot { return own(c.dir, stagePrefix+c.attempt) }

// stagedPath is where a file lies until the step is committed.
func (c *commitment) stagedPath(f *File, elsewhere bool) string { return c.staged(f, elsewhere).path() }

func (c *commitment) staged(f *File, elsewhere bool) spot {
	if elsewhere {
		at := f.spot(c.dir)
		return spot{at.dir, stagedFile(at.name, c.attempt)}
	}
	rel, err := filepath.Rel(c.stepDir, f.Path)
	if err != nil {
		rel = f.Path
	}
	return spot{c.dir, filepath.Join(c.stage().name, rel)}
}

// giveUp removes what was written.
func (c *commitment) giveUp(files []File, elsewhere bool) error {
	err := c.disk.RemoveAll(c.stage())
	if elsewhere {
		err = errors.Join(err, c.removeStaged(files))
	}
	return err
}

// removeStaged removes files that lie beside their places.
func (c *commitment) removeStaged(files []File) (err error) {
	for i := range files {
		err = errors.Join(err, c.disk.Remove(c.staged(&files[i], true)))
	}
	return err
}

// errSomeElsewhere says that only some of a step's files have paths of their own.
var errSomeElsewhere = errors.New("only some files have a path of their own: give all of them one, or none")

// writeFiles writes the files to where they lie until the step is committed; elsewhere says that they do not share the
// step's directory. What it returns with an error is what it has begun.
func (c *commitment) writeFiles(ctx context.Context) (files []File, elsewhere bool, err error) {
	files = make([]File, len(c.files))
	if err := c.disk.MkdirAll(c.stage()); err != nil {
		return nil, false, err
	}
	elsewhere = len(c.files) > 0 && filepath.IsAbs(c.files[0].Path)
	for i, f := range c.files {
		if filepath.IsAbs(f.Path) != elsewhere {
			return nil, false, errSomeElsewhere
		}
		files[i].Path = f.Path
		if !elsewhere {
			files[i].Path = filepath.Join(c.stepDir, f.Path)
		} else if files[i].Path, err = placeOf(c.dir, f.Path); err != nil {
			return nil, false, err
		}
		if at := c.staged(&files[i], elsewhere); elsewhere || filepath.Dir(at.name) != c.stage().name {
			if err := c.disk.MkdirAll(spot{at.dir, filepath.Dir(at.name)}); err != nil {
				return nil, elsewhere, err
			}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	for i, s := range c.files {
		g.Go(func() (err error) {
			f, err := c.disk.Create(c.staged(&files[i], elsewhere)) // nobody else writes it in this attempt
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("two shards have the same file: give each rank a path of its own: %w", err)
			}
			if err != nil {
				return err
			}
			size, sum, err := s.Write(ctx, f)
			if err == nil {
				err = c.disk.Sync(f)
			}
			files[i].Shard, files[i].Size, files[i].CRC32C, files[i].Attempt = s.Shard, size, fmt.Sprintf("%08x", sum), c.attempt
			return errors.Join(err, f.Close())
		})
	}
	return files, elsewhere, g.Wait()
}

// placeOf is where a worker's path lies: relative where it is in a directory of checkpoints, whatever way leads there.
// A symbolic link in the directory leads outside, where its user wants the file: what it leads to is named, so that
// nothing in the directory is on the way. Who else may write to the directory does not choose that.
func placeOf(dir, path string) (string, error) {
	rel, ok := nameIn(dir, path)
	for at := filepath.Dir(rel); ok && at != "."; at = filepath.Dir(at) {
		if info, err := os.Lstat(filepath.Join(dir, at)); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		to, err := durable.Target(filepath.Join(dir, at))
		if err != nil {
			return "", err
		}
		path = filepath.Join(to, strings.TrimPrefix(rel, at))
		rel, ok = nameIn(dir, path)
		break
	}
	if ok {
		return rel, nil
	}
	return path, nil
}

// nameIn is the name in a directory that a path has, if it lies there.
func nameIn(dir, path string) (name string, ok bool) {
	root, err := os.Stat(dir)
	if err != nil {
		return "", false
	}
	for at := path; at != "/" && at != "."; {
		at = filepath.Dir(at)
		if info, err := os.Stat(at); err == nil && os.SameFile(root, info) {
			name, err := filepath.Rel(at, path)
			return name, err == nil
		}
	}
	return "", false
}

// filesAtOnce bounds how many files are written at the same time.
const filesAtOnce = 64

// publish makes a step of files that were written, and names it in the trackers.
func (c *commitment) publish(files []File, elsewhere bool) error {
	commit, err := nextCommit(c.dir)
	if err != nil {
		return err
	}
	m := Manifest{
		Commit: commit, Version: manifestVersion, Step: c.step, Dir: c.stepDir, Attempt: c.attempt, RunID: c.runID, Shards: c.shards,
		Created:  c.now().UTC(),
		Trackers: c.trackers, Spare: c.spare, Files: files,
	}
	if err := m.validate(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	if elsewhere {
		err = c.publishFiles(files, text)
	} else {
		err = c.publishDir(files, text)
	}
	if err != nil {
		return err
	}
	if err := c.track(m); err != nil || !elsewhere {
		return err
	}
	return c.forgetReplaced(m)
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
			if err := c.disk.Remove(spot{c.dir, s.ManifestPath}); err != nil {
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

// publishDir gives the stage directory, with the manifest in it, the step's name.
func (c *commitment) publishDir(files []File, manifest []byte) error {
	stage := c.stage()
	if err := c.disk.Replace(spot{c.dir, filepath.Join(stage.name, manifestName)}, manifest); err != nil {
		return err
	}
	synced := map[string]bool{}
	for i := range files {
		for dir := filepath.Dir(c.staged(&files[i], false).name); len(dir) >= len(stage.name) && !synced[dir]; dir = filepath.Dir(dir) {
			synced[dir] = true
			if err := c.disk.SyncDir(spot{c.dir, dir}); err != nil {
				return err
			}
		}
	}
	final := spot{c.dir, c.stepDir}
	if _, err := os.Lstat(final.path()); err == nil { // the step was saved before: by this job before it went back, or by another
		if err := c.swap(stage, final); err != nil {
			return err
		}
	} else if err := c.disk.Rename(stage, final); err != nil {
		return err
	}
	return c.disk.SyncDir(spot{c.dir, "."})
}

// swap puts the stage directory in the place of what has the step's name. Where the file system cannot do that at once,
// what was there is moved aside first.
func (c *commitment) swap(stage, final spot) error {
	old := stage
	if err := c.disk.Exchange(stage, final); err != nil {
		old = own(c.dir, trashPrefix+c.attempt)
		if err := c.disk.Rename(final, old); err != nil {
			return err
		}
		if err := c.disk.Rename(stage, final); err != nil {
			return err
		}
	}
	if err := c.disk.SyncDir(spot{c.dir, "."}); err != nil {
		return err
	}
	return c.disk.RemoveAll(old)
}

// publishFiles gives files the names that workers chose. Several names cannot change at once, so the manifest decides:
// from then on the files count, under the names that they have until they get their own, and whoever opens the
// directory next finishes what is cut off here.
func (c *commitment) publishFiles(files []File, manifest []byte) error {
	dirs := map[spot]bool{}
	for i := range files {
		at := files[i].spot(c.dir)
		dirs[spot{at.dir, filepath.Dir(at.name)}] = true
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
	at := own(c.dir, strconv.FormatInt(c.step, 10)+".json")
	if err := c.disk.Replace(at, manifest); err != nil {
		_ = in(at, func(t *beneath.Tree) error {
			m := Manifest{}
			if err := readJSON(t, at.name, &m); err == nil && m.Attempt == c.attempt {
				c.decided = true // it is there; only its durability is in doubt
			}
			return nil
		})
		return err
	}
	c.decided = true
	for i := range files {
		if err := c.disk.Rename(c.staged(&files[i], true), files[i].spot(c.dir)); err != nil {
			return err
		}
	}
	if err := sync(); err != nil {
		return err
	}
	return c.disk.RemoveAll(c.stage())
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
	if err := c.disk.Replace(spot{c.dir, trackerName}, append(text, '\n')); err != nil {
		return err
	}
	for _, t := range m.Trackers {
		if err := c.disk.Replace(spot{c.dir, t[0]}, []byte(t[1])); err != nil {
			return err
		}
	}
	return c.disk.Replace(spot{c.dir, dlroverTracker}, strconv.AppendInt(nil, m.Step, 10))
}
