package checkpointd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"muster/internal/beneath"
	"muster/internal/printable"
)

// Names in a directory of checkpoints. A step is a directory with a manifest in it, which has the step's number for a
// name unless a worker gives it another one; the manifests of steps whose files lie elsewhere are in ownDir.
const (
	ownDir          = ".muster"
	stagePrefix     = "stage-"
	trashPrefix     = "trash-"
	manifestName    = "muster_manifest.json"
	trackerName     = "muster_latest.json"
	dlroverTracker  = "dlrover_latest.txt"
	manifestVersion = 1
	manifestLimit   = 64 << 20
	trackerLimit    = 4 << 10 // of those that have a number alone
)

// Manifest says which files make up a step. A step without one was never committed.
type Manifest struct {
	Version int   `json:"version"`
	Step    int64 `json:"step"`
	// Dir is the name of the step's directory; empty: its number.
	Dir string `json:"dir,omitempty"`
	// Attempt is the name of this writing of the step, the same in all its files' entries.
	Attempt string    `json:"attempt"`
	RunID   string    `json:"run_id"`
	Shards  int       `json:"shards"`
	Created time.Time `json:"created"`
	// Commit counts what was committed to the directory, from 1 on: it says what is newer, whatever clocks say. 0: an
	// earlier muster has written it.
	Commit int64 `json:"commit,omitempty"`
	// Trackers are further files that name the newest step, for the framework's own tools: names and texts.
	Trackers [][2]string `json:"trackers,omitempty"`
	// Spare are older steps that no rule removes while this one is the newest, such as the best one so far.
	Spare []int64 `json:"spare,omitempty"`
	// Files are by shard. A manifest is only written when all shards have said which files they have.
	Files []File `json:"files"`
}

// File is one file of a step.
type File struct {
	Shard int `json:"shard"`
	// Path is relative to the directory of checkpoints, unless it lies outside of that.
	Path string `json:"path"`
	Size int64  `json:"size"`
	// CRC32C is the checksum of the whole file, as eight hexadecimal digits; empty where a worker has written it by
	// itself.
	CRC32C string `json:"crc32c"`
	// Attempt is which writing of the step this file belongs to.
	Attempt string `json:"attempt"`
}

// errName says that something in a directory of checkpoints has a name that no step's file has, or is something else
// than a file. muster never removes what has such a problem.
var errName = errors.New("it is not used, and nothing of it is removed")

// commitLast bounds the numbers of commits, far beyond what can be counted to.
const commitLast = 1 << 62

// validate makes sure that a manifest's files can be those of a step, and that all were written in one attempt.
func (m *Manifest) validate() error {
	if m.Version > manifestVersion {
		return fmt.Errorf("its manifest is of version %d, newer than this muster's %d", m.Version, manifestVersion)
	}
	if len(m.Attempt) > 64 || strings.Trim(m.Attempt, "abcdefghijklmnopqrstuvwxyz0123456789") != "" { // it is part of names of files
		return fmt.Errorf("its manifest has an attempt %q", m.Attempt)
	}
	if m.Step < 0 || m.Shards < 1 || m.Shards > shardsMax || len(m.Files) == 0 || m.Commit < 0 || m.Commit > commitLast {
		return fmt.Errorf("its manifest has %d files for %d shards of step %d, commit %d", len(m.Files), m.Shards, m.Step, m.Commit)
	}
	l := layout{Dir: m.Dir, Trackers: m.Trackers}
	if err := l.checkNames(); err != nil {
		return fmt.Errorf("%w: %w", errName, err)
	}
	paths := make(map[string]bool, len(m.Files))
	before, whole := 0, int64(0)
	for _, f := range m.Files {
		if f.Shard < before || f.Shard >= m.Shards || f.Attempt != m.Attempt || paths[f.Path] {
			return fmt.Errorf("its manifest has a file %q of shard %d and attempt %q among those of %d shards and attempt %q", f.Path,
				f.Shard, f.Attempt, m.Shards, m.Attempt)
		}
		if !f.named() {
			return fmt.Errorf("%w: its manifest has a file %q, which leads out of the directory, or is no step's", errName, f.Path)
		}
		if f.Size < 0 || f.Size > math.MaxInt64-whole {
			return fmt.Errorf("its manifest has a file %q of %d bytes", f.Path, f.Size)
		}
		whole += f.Size
		before, paths[f.Path] = f.Shard, true
	}
	return nil
}

// named reports whether a file can have its name: a clean one, of nothing that muster itself has in a directory of
// checkpoints.
func (f *File) named() bool {
	if filepath.IsAbs(f.Path) {
		return filepath.Clean(f.Path) == f.Path && f.Path != "/" && !strings.ContainsFunc(f.Path, unprintable)
	}
	return isLocalName(f.Path) && !slices.ContainsFunc(strings.Split(f.Path, "/"), isOwnName)
}

// unprintable reports whether no name has a rune.
func unprintable(r rune) bool { return unicode.IsControl(r) }

// stepDir is the name of the step's directory.
func (m *Manifest) stepDir() string {
	if m.Dir != "" {
		return m.Dir
	}
	return strconv.FormatInt(m.Step, 10)
}

// shardFile returns the first file of a shard, nil where it has none.
func (m *Manifest) shardFile(shard int) *File {
	for i := range m.Files {
		if m.Files[i].Shard == shard {
			return &m.Files[i]
		}
	}
	return nil
}

// spot is where a file lies when it has its name: in the directory of checkpoints, or in that one outside of it which a
// worker chose.
func (f *File) spot(dir string) spot {
	if filepath.IsAbs(f.Path) {
		return spot{filepath.Dir(f.Path), filepath.Base(f.Path)}
	}
	return spot{dir, f.Path}
}

// staged is where a file lies before it has its name, if it does not lie in the step's directory.
func (f *File) staged(dir string) spot {
	at := f.spot(dir)
	return spot{at.dir, stagedFile(at.name, f.Attempt)}
}

// place is the name that a manifest's file has, or is to get.
func (f *File) place(dir string) string { return f.spot(dir).path() }

// at is where a manifest's file lies: beside its place, where the writer was killed before it could give it its name.
func (f *File) at(dir string) string { return f.lies(dir).path() }

func (f *File) lies(dir string) spot {
	if f.Attempt != "" {
		at := f.staged(dir)
		if _, err := os.Lstat(at.path()); err == nil {
			return at
		}
	}
	return f.spot(dir)
}

// look calls do with the directory that a file lies in, and its name there. t is the directory of checkpoints.
func (f *File) look(t *beneath.Tree, dir string, do func(t *beneath.Tree, name string) error) error {
	at := f.lies(dir)
	if at.dir == dir {
		return do(t, at.name)
	}
	return in(at, func(t *beneath.Tree) error { return do(t, at.name) })
}

// check compares the files with what was written, as far as names and sizes tell, until ended returns an error.
func (m *Manifest) check(ended func() error, t *beneath.Tree, dir string) error {
	for i := range m.Files {
		if err := ended(); err != nil {
			return err
		}
		f := &m.Files[i]
		if err := f.look(t, dir, func(t *beneath.Tree, name string) error {
			info, err := t.Regular(name)
			return f.fits(info, err)
		}); err != nil {
			return err
		}
	}
	return nil
}

// fits compares what was found with what was written.
func (f *File) fits(info fs.FileInfo, err error) error {
	switch {
	case errors.Is(err, beneath.ErrKind):
		return fmt.Errorf("cannot use %s: %w: %w", f.Path, err, errName)
	case err != nil:
		return fmt.Errorf("cannot use %s: %w", f.Path, err)
	case info.Size() != f.Size:
		return fmt.Errorf("cannot use %s: it has %d bytes and was written with %d", f.Path, info.Size(), f.Size)
	}
	return nil
}

// compare reads a file, and compares its checksum with that of what was written. ctx ends that.
func (f *File) compare(ctx context.Context, t *beneath.Tree, dir string) error {
	return f.look(t, dir, func(t *beneath.Tree, name string) error {
		file, info, err := t.OpenFile(name)
		if err := f.fits(info, err); err != nil {
			if file != nil {
				err = errors.Join(err, file.Close())
			}
			return err
		}
		defer func() { _ = file.Close() }()
		if f.CRC32C == "" {
			return nil
		}
		sum, err := fileSum(ctx, file, f.Size)
		if err != nil {
			return fmt.Errorf("cannot use %s: %w", f.Path, err)
		}
		if sum != f.CRC32C {
			return fmt.Errorf("cannot use %s: %w: %s was written as %s", f.Path, errChecksum, sum, f.CRC32C)
		}
		return nil
	})
}

// tracker is the newest step, for us; DLRover's has the number alone.
type tracker struct {
	Step    int64     `json:"step"`
	Attempt string    `json:"attempt"`
	Shards  int       `json:"shards"`
	Paths   []string  `json:"paths"`
	Created time.Time `json:"created"`
}

// readJSON reads a file of a directory of checkpoints.
func readJSON(t *beneath.Tree, name string, into any) error {
	text, err := t.Read(name, manifestLimit)
	if errors.Is(err, beneath.ErrKind) {
		return fmt.Errorf("%w: %w", err, errName)
	}
	if err != nil {
		return err
	}
	err = dense(text)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", name, err)
	}
	return nil
}

// entryBytes is less than any file takes in a manifest, numberBytes less than a number of a step's; fewEntries are read
// whatever they take. "{}," becomes 30 times as many bytes in memory, and entries of files no more than these have.
const (
	entryBytes  = 48
	numberBytes = 8
	fewEntries  = 1 << 16
)

// dense returns an error for JSON that would take far more memory than its text, as no manifest or tracker of ours
// does.
func dense(text []byte) error {
	objects := bytes.Count(text, []byte("{")) + bytes.Count(text, []byte("["))
	if objects > fewEntries+len(text)/entryBytes || bytes.Count(text, []byte(",")) > fewEntries+len(text)/numberBytes {
		return fmt.Errorf("its %d bytes have more entries than such a file can have", len(text))
	}
	return nil
}

// Step is a step as it lies on disk.
type Step struct {
	Manifest
	// Dir is the directory of checkpoints, ManifestPath where the manifest lies in it.
	Dir          string
	ManifestPath string
	// Foreign is true where there is no manifest: DLRover wrote it, or torch.save. Nothing proves such files.
	Foreign bool
	// Latest is true for the step that the trackers name.
	Latest bool
	// Problem is why the step cannot be used, as far as names and sizes tell; nil where it can.
	Problem error
}

// Name is what a step is called towards people: its number, or the name of what is there instead.
func (s *Step) Name() string {
	switch {
	case s.Step >= 0:
		return "step " + strconv.FormatInt(s.Step, 10)
	case s.Manifest.Dir != "":
		return printable.Line(s.Manifest.Dir, 100)
	}
	return "a tracker"
}

// Bytes is the size of all its files.
func (s *Step) Bytes() (n int64) {
	for _, f := range s.Files {
		n += f.Size
	}
	return n
}

// Verify reads all files of a step and compares their checksums.
func (s *Step) Verify() error { return s.verify(context.Background()) }

func (s *Step) verify(ctx context.Context) error {
	if s.Problem != nil {
		return s.Problem
	}
	return in(spot{dir: s.Dir}, func(t *beneath.Tree) error {
		if err := s.check(func() error { return context.Cause(ctx) }, t, s.Dir); err != nil || s.Foreign {
			return err
		}
		for i := range s.Files {
			if err := s.Files[i].compare(ctx, t, s.Dir); err != nil {
				return err
			}
		}
		return nil
	})
}

// rankFile is the name of a shard's file where nobody gave it another one, as DLRover names it.
func rankFile(shard int) string { return fmt.Sprintf("rank_%d.pt", shard) }
