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

// shardSource writes one shard to a new file, and returns its size and CRC-32C.
type shardSource struct {
	// Path is the file that a worker asked for, absolute; empty: the usual one.
	Path  string
	Write func(ctx context.Context, f *os.File) (size int64, sum uint32, err error)
}

// commitment is one attempt to bring a step to disk. The order of its writes is the whole point: whatever is cut off after
// any of them, the step before or this one is there whole, and the trackers name nothing that is not.
type commitment struct {
	disk    disk
	dir     string
	step    int64
	runID   string
	attempt string
	shards  []shardSource
	now     func() time.Time
	decided bool // the step is committed, whatever fails from now on
}

func newAttempt() string { return strings.ToLower(rand.Text()[:16]) }

// run writes the files and makes the step visible. An error leaves the step before as it was.
func (c *commitment) run(ctx context.Context) (err error) {
	stage := filepath.Join(c.dir, ownDir, stagePrefix+c.attempt)
	if err := c.disk.MkdirAll(stage); err != nil {
		return err
	}
	m := Manifest{
		Version: manifestVersion, Step: c.step, Attempt: c.attempt, RunID: c.runID, Shards: len(c.shards), Created: c.now().UTC(),
		Files: make([]File, len(c.shards)),
	}
	staged, named := make([]string, len(c.shards)), 0
	for shard, s := range c.shards {
		if s.Path == "" {
			staged[shard] = filepath.Join(stage, rankFile(shard))
			m.Files[shard].Path = filepath.Join(strconv.FormatInt(c.step, 10), rankFile(shard))
			continue
		}
		named++
		if err := c.disk.MkdirAll(filepath.Dir(s.Path)); err != nil {
			return err
		}
		staged[shard] = stagedFile(s.Path, c.attempt)
		m.Files[shard].Path = s.Path
		if rel, err := filepath.Rel(c.dir, s.Path); err == nil && filepath.IsLocal(rel) {
			m.Files[shard].Path = rel
		}
	}
	defer func() {
		if err != nil && !c.decided {
			err = errors.Join(err, c.disk.RemoveAll(stage))
			for _, path := range staged {
				err = errors.Join(err, c.disk.RemoveAll(path))
			}
		}
	}()
	if named > 0 && named < len(c.shards) {
		return fmt.Errorf("only %d of %d shards have a path: give all of them one, or none", named, len(c.shards))
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
	if named == 0 {
		err = c.publish(stage, text)
	} else {
		err = c.publishNamed(stage, staged, text)
	}
	if err != nil {
		return err
	}
	if err := c.track(m); err != nil || named == 0 {
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

// write writes all shards.
func (c *commitment) write(ctx context.Context, staged []string, files []File) error {
	g, ctx := errgroup.WithContext(ctx)
	for shard, s := range c.shards {
		g.Go(func() (err error) {
			f, err := c.disk.Create(staged[shard])
			if err != nil {
				return err
			}
			size, sum, err := s.Write(ctx, f)
			if err == nil {
				err = c.disk.Sync(f)
			}
			files[shard] = File{Shard: shard, Path: files[shard].Path, Size: size, CRC32C: fmt.Sprintf("%08x", sum), Attempt: c.attempt}
			return errors.Join(err, f.Close())
		})
	}
	return g.Wait()
}

// publish gives the stage directory, with the manifest in it, the step's name.
func (c *commitment) publish(stage string, manifest []byte) error {
	if err := c.disk.Replace(filepath.Join(stage, manifestName), manifest); err != nil {
		return err
	}
	if err := c.disk.SyncDir(stage); err != nil {
		return err
	}
	final := filepath.Join(c.dir, strconv.FormatInt(c.step, 10))
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
	for _, s := range c.shards {
		dirs[filepath.Dir(s.Path)] = true
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
	for shard, s := range c.shards {
		if err := c.disk.Rename(staged[shard], s.Path); err != nil {
			return err
		}
	}
	if err := sync(); err != nil {
		return err
	}
	return c.disk.RemoveAll(stage)
}

// track writes the trackers, DLRover's last: it has no manifest to be compared with.
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
		for i, f := range m.Files {
			info, err := os.Stat(filepath.Join(stage, rankFile(i)))
			whole = whole && err == nil && info.Size() == f.Size
		}
		final := filepath.Join(dir, strconv.FormatInt(m.Step, 10))
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
