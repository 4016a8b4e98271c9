package checkpointd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names in a directory of checkpoints. A step is a directory with a manifest in it, which has the step's number for a name
// unless a worker gives it another one; the manifests of steps whose files lie elsewhere are in ownDir.
const (
	ownDir          = ".muster"
	stagePrefix     = "stage-"
	trashPrefix     = "trash-"
	manifestName    = "muster_manifest.json"
	trackerName     = "muster_latest.json"
	dlroverTracker  = "dlrover_latest.txt"
	manifestVersion = 1
	manifestLimit   = 64 << 20
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
	// CRC32C is the checksum of the whole file, as eight hexadecimal digits.
	CRC32C string `json:"crc32c"`
	// Attempt is which writing of the step this file belongs to.
	Attempt string `json:"attempt"`
}

// validate makes sure that a manifest's files can be those of a step, and that all were written in one attempt.
func (m *Manifest) validate() error {
	if m.Version > manifestVersion {
		return fmt.Errorf("its manifest is of version %d, newer than this muster's %d", m.Version, manifestVersion)
	}
	if len(m.Attempt) > 64 || strings.Trim(m.Attempt, "abcdefghijklmnopqrstuvwxyz0123456789") != "" { // it is part of names of files
		return fmt.Errorf("its manifest has an attempt %q", m.Attempt)
	}
	if m.Step < 0 || m.Shards < 1 || len(m.Files) == 0 {
		return fmt.Errorf("its manifest has %d files for %d shards of step %d", len(m.Files), m.Shards, m.Step)
	}
	l := layout{Dir: m.Dir, Trackers: m.Trackers}
	if err := l.checkNames(); err != nil {
		return err
	}
	paths := make(map[string]bool, len(m.Files))
	before := 0
	for _, f := range m.Files {
		if f.Shard < before || f.Shard >= m.Shards || f.Attempt != m.Attempt || paths[f.Path] {
			return fmt.Errorf("its manifest has a file %q of shard %d and attempt %q among those of %d shards and attempt %q", f.Path, f.Shard, f.Attempt, m.Shards, m.Attempt)
		}
		if !filepath.IsAbs(f.Path) && !filepath.IsLocal(f.Path) {
			return fmt.Errorf("its manifest has a file %q that leads out of the directory", f.Path)
		}
		before, paths[f.Path] = f.Shard, true
	}
	return nil
}

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

// place is the name that a manifest's file has, or is to get.
func (f *File) place(dir string) string {
	if filepath.IsAbs(f.Path) {
		return f.Path
	}
	return filepath.Join(dir, f.Path)
}

// at is where a manifest's file lies: beside its place, where the writer was killed before it could give it its name.
func (f *File) at(dir string) string {
	path := f.place(dir)
	if staged := stagedFile(path, f.Attempt); f.Attempt != "" {
		if _, err := os.Lstat(staged); err == nil {
			return staged
		}
	}
	return path
}

// check compares the files with what was written, as far as names and sizes tell.
func (m *Manifest) check(dir string) error {
	for i := range m.Files {
		if err := m.Files[i].check(dir); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) check(dir string) error {
	info, err := os.Stat(f.at(dir))
	switch {
	case err != nil:
		return fmt.Errorf("cannot use %s: %w", f.Path, err)
	case !info.Mode().IsRegular() || info.Size() != f.Size:
		return fmt.Errorf("cannot use %s: it has %d bytes and was written with %d", f.Path, info.Size(), f.Size)
	}
	return nil
}

// compare reads a file, and compares its checksum with that of what was written. ctx ends that.
func (f *File) compare(ctx context.Context, dir string) error {
	sum, err := fileSum(ctx, f.at(dir))
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", f.Path, err)
	}
	if sum != f.CRC32C {
		return fmt.Errorf("cannot use %s: %w: %s was written as %s", f.Path, errChecksum, sum, f.CRC32C)
	}
	return nil
}

func fileSum(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := crc32.New(castagnoli)
	for buf := make([]byte, 1<<20); ; {
		n, err := f.Read(buf)
		_, _ = h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%08x", h.Sum32()), nil
}

// tracker is the newest step, for us; DLRover's has the number alone.
type tracker struct {
	Step    int64     `json:"step"`
	Attempt string    `json:"attempt"`
	Shards  int       `json:"shards"`
	Paths   []string  `json:"paths"`
	Created time.Time `json:"created"`
}

func readJSON(path string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, manifestLimit))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot read %s: %w", path, err)
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
	if err := s.check(s.Dir); err != nil || s.Foreign {
		return err
	}
	for i := range s.Files {
		if err := s.Files[i].compare(ctx, s.Dir); err != nil {
			return err
		}
	}
	return nil
}

// List returns the steps in a directory of checkpoints: that of the trackers first, then from the newest to the oldest.
// Errors are about the directory; those of a step are its Problem.
func List(dir string) ([]Step, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list checkpoints: %w", err)
	}
	var steps []Step
	var plain []int64 // directories named like a step, without a manifest
	for _, e := range entries {
		if !e.IsDir() || isOwnName(e.Name()) {
			continue
		}
		n, err := strconv.ParseInt(e.Name(), 10, 64)
		numbered := err == nil && n >= 0
		s, err := readStep(dir, filepath.Join(e.Name(), manifestName))
		if err == nil && s.stepDir() != e.Name() {
			err = fmt.Errorf("its manifest is of %s", s.stepDir())
		}
		switch {
		case err == nil:
			steps = append(steps, s)
		case !errors.Is(err, os.ErrNotExist):
			broken := Step{Manifest: Manifest{Step: -1, Dir: e.Name()}, Dir: dir, Problem: err}
			if numbered {
				broken.Manifest = Manifest{Step: n}
			}
			steps = append(steps, broken)
		case numbered:
			plain = append(plain, n)
		}
	}
	own, err := os.ReadDir(filepath.Join(dir, ownDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot list checkpoints: %w", err)
	}
	for _, e := range own {
		base, ok := strings.CutSuffix(e.Name(), ".json")
		n, err := strconv.ParseInt(base, 10, 64)
		if !ok || err != nil || n < 0 {
			continue
		}
		s, err := readStep(dir, filepath.Join(ownDir, e.Name()))
		if err == nil && s.Step != n {
			err = fmt.Errorf("its manifest is of step %d", s.Step)
		}
		if err != nil {
			s = Step{Manifest: Manifest{Step: n}, Dir: dir, Problem: err}
		}
		steps = append(steps, s)
	}
	latest := latestStep(dir)
	for _, n := range plain {
		if s, ok := foreignStep(dir, n); ok && n == latest.foreign {
			steps = append(steps, s)
		}
	}
	if n := latest.step; n >= 0 && latest.foreign < 0 && !slices.ContainsFunc(steps, func(s Step) bool { return s.Step == n }) {
		steps = append(steps, Step{Manifest: Manifest{Step: n}, Dir: dir, Problem: fmt.Errorf("%s names it, and there is no manifest of it", trackerName)})
	}
	for i := range steps {
		s := &steps[i]
		s.Latest = s.Foreign || s.Attempt == "" && s.Step == latest.step || s.Problem == nil && s.Step == latest.step && s.Attempt == latest.attempt && latest.foreign < 0
	}
	slices.SortStableFunc(steps, func(a, b Step) int {
		if a.Latest != b.Latest {
			if a.Latest {
				return -1
			}
			return 1
		}
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return int(b.Step - a.Step)
	})
	return steps, nil
}

func readStep(dir, path string) (Step, error) {
	s := Step{Dir: dir, ManifestPath: path}
	if err := readJSON(filepath.Join(dir, path), &s.Manifest); err != nil {
		return s, err
	}
	if err := s.validate(); err != nil {
		return s, err
	}
	s.Problem = s.check(dir)
	return s, nil
}

// latest is what the trackers say.
type latest struct {
	step    int64
	attempt string
	foreign int64 // the step that DLRover's tracker alone names, else -1
}

func latestStep(dir string) latest {
	l := latest{step: -1, foreign: -1}
	var t tracker
	if readJSON(filepath.Join(dir, trackerName), &t) == nil {
		l.step, l.attempt = t.Step, t.Attempt
	}
	text, err := os.ReadFile(filepath.Join(dir, dlroverTracker))
	if err != nil {
		return l
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n < 0 {
		return l
	}
	manifest := filepath.Join(dir, strconv.FormatInt(n, 10), manifestName)
	if _, err := os.Stat(manifest); n != l.step && errors.Is(err, os.ErrNotExist) { // one that we wrote under another name was tracked by us, too
		if _, err := os.Stat(filepath.Join(dir, ownDir, strconv.FormatInt(n, 10)+".json")); errors.Is(err, os.ErrNotExist) {
			l.foreign = n
		}
	}
	return l
}

// foreignStep describes what is left where muster did not write: DLRover's <step>/rank_<rank>.pt, or a directory of
// torch.distributed.checkpoint, whose .metadata comes last and whose files are no shards that a rank could ask for.
func foreignStep(dir string, step int64) (Step, bool) {
	s := Step{Manifest: Manifest{Step: step}, Dir: dir, Foreign: true}
	add := func(shard int, name string) bool {
		path := filepath.Join(strconv.FormatInt(step, 10), name)
		info, err := os.Stat(filepath.Join(dir, path))
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
	parts, err := filepath.Glob(filepath.Join(dir, strconv.FormatInt(step, 10), "*.distcp"))
	for _, path := range parts {
		add(0, filepath.Base(path))
	}
	return s, err == nil
}

// rankFile is the name of a shard's file where nobody gave it another one, as DLRover names it.
func rankFile(shard int) string { return fmt.Sprintf("rank_%d.pt", shard) }
