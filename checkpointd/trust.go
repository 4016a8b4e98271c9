package checkpointd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"muster/checkpointd/planner"
)

// Another node of the job, which has its token where there is one, is believed what it says of its checkpoints, within
// bounds: see planner's Check. It does not decide where files of this node lie: that the workers of this node do, by
// the directories that they name, and whoever started it, by Config.Dir.

// errNotNamed says that a directory is not written to, since only another node has named it.
var errNotNamed = errors.New("no worker of this node has named this directory")

// namedLocked reports whether files may be written to a directory.
func (s *Service) namedLocked(dir string) bool {
	return s.dirs[dir] || s.cfg.Dir != "" && filepath.Clean(s.cfg.Dir) == dir
}

func (s *Service) named(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.namedLocked(dir)
}

// namedLimit is how long the directory that another node's worker has named is not opened while no worker here has:
// workers of one job come at their own time.
const namedLimit = 5 * time.Minute

// awaitOpenable waits until a directory may be opened: until a worker of this node has named it. One in which this user
// has had checkpoints written by muster before is opened at once: what a killed muster has left for it is known before
// workers come. Without a token anybody may have named that one.
func (l *leading) awaitOpenable(dir string) error {
	if !l.s.participant.local && usedBefore(dir) {
		return nil
	}
	return l.awaitNamed(dir)
}

// awaitNamed waits until a directory may be written to.
func (l *leading) awaitNamed(dir string) error {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for until := time.Now().Add(namedLimit); !s.namedLocked(dir); {
		if s.participant.ended || !s.awaitLocked(until, l.ctx.Done()) {
			return fmt.Errorf("cannot save checkpoints to %s: on the node that leads, %w", dir, errNotNamed)
		}
	}
	return nil
}

// usedBefore reports whether a directory has our own within it, made by this user.
func usedBefore(dir string) bool {
	info, err := os.Lstat(filepath.Join(dir, ownDir))
	if err != nil || info.Mode().Type() != fs.ModeDir {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// placesMax bounds how many directories are remembered.
const placesMax = 1 << 16

// placeLocked remembers where a worker of this node wants files that have a place of their own.
func (s *Service) placeLocked(l *layout) {
	for i := range l.Files {
		if path := l.Files[i].Path; filepath.IsAbs(path) && len(s.places) < placesMax {
			s.places[filepath.Dir(path)] = true
		}
	}
}

// checkPlaceLocked returns an error where a path, absolute or below dir, is none where this node writes a file for
// another node.
func (s *Service) checkPlaceLocked(dir, path string) error {
	rel := path
	if filepath.IsAbs(path) {
		if filepath.Clean(path) == path && s.places[filepath.Dir(path)] {
			return nil
		}
		var err error
		if rel, err = filepath.Rel(dir, path); err != nil {
			return err
		}
	}
	first, _, _ := strings.Cut(rel, "/")
	if !isLocalName(rel) || isOwnName(first) || isOwnName(filepath.Base(rel)) {
		return fmt.Errorf("a file %q leads out of %s, and no worker of this node has files there", planner.Clean(path, 300), dir)
	}
	return nil
}

// checkLayoutLocked returns an error where the files of a copy that came from another node are none that this node
// writes.
func (s *Service) checkLayoutLocked(dir string, of *copied) error {
	if of.made() {
		return nil
	}
	for i := range of.layout.Files {
		if path := of.layout.Files[i].Path; filepath.IsAbs(path) {
			if err := s.checkPlaceLocked(dir, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// wrote reports whether this node wrote a shard of an attempt. Without a token no other node is believed what it says
// of files beside the step's.
func (s *Service) wrote(a *planner.Action, shard int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.findSetLocked(a.Key)
	return st != nil && st.attempt == a.Attempt && slices.ContainsFunc(st.written, func(w planner.Written) bool { return w.Shard == shard })
}

// filesMax is how many files a shard may have become.
const filesMax = 1 << 16

// check refuses what no node has written of a shard.
func (r *partResult) check(s *Service, a *planner.Action, shard int) error {
	names := layout{Dir: r.StepDir, Trackers: r.Trackers}
	if r.StepDir == "" || len(r.StepDir) > 255 || len(r.Trackers) > 64 || len(r.Spare) > filesMax || len(r.Files) > filesMax {
		return fmt.Errorf("it has %d files in %q, %d trackers and %d older steps", len(r.Files), planner.Clean(r.StepDir, 80),
			len(r.Trackers), len(r.Spare))
	}
	if err := names.checkNames(); err != nil {
		return err
	}
	for _, t := range r.Trackers {
		if len(t[0]) > 255 || len(t[1]) > pathLimit {
			return fmt.Errorf("a tracker has %d bytes", len(t[1]))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Files {
		f := &r.Files[i]
		path := planner.Clean(f.Path, 300)
		switch {
		case f.Shard != shard || f.Attempt != a.Attempt || f.Size < 0 || len(f.CRC32C) != 8 ||
			strings.Trim(f.CRC32C, "0123456789abcdef") != "":
			return fmt.Errorf("its file %q is of shard %d and attempt %q, with %d bytes", path, f.Shard,
				planner.Clean(f.Attempt, 80), f.Size)
		case r.Elsewhere:
			if err := s.checkPlaceLocked(a.Dir, f.Path); err != nil {
				return err
			}
		case !isLocalName(f.Path) || !strings.HasPrefix(f.Path, r.StepDir+"/"):
			return fmt.Errorf("its file %q lies outside of the step's directory", path)
		}
	}
	return nil
}
