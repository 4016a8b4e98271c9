package checkpointd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultMemory is where slots lie that are to outlive the agent.
const DefaultMemory = "/dev/shm"

// Names in the directory of segments: a label is muster-<uid>-<run id>-<token>, and each of its segments that, a dot,
// and what the segment is of: <set>-<shard>-<random>. The token is the agent's, so that two agents of one run id do not
// meet.
const segmentPrefix = "muster-"

// segments is a directory in memory where an agent's slots lie as files, so that they outlive it. Nil: there is none,
// and memory has no name.
type segments struct {
	dir   string
	label *labelFile
	told  bool // that there was no room
	// foreign says that files of others were told of.
	foreign bool
}

// errNoSegments says that memory cannot have names.
var errNoSegments = errors.New("cannot keep checkpoints where they outlive muster")

// openSegments prepares a directory for the slots of a run. It has to be a file system in memory, unless somebody chose
// it.
func openSegments(dir string, chosen bool, l label) (*segments, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errNoSegments, dir, err)
	}
	if !chosen && st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC {
		return nil, fmt.Errorf("%w: %s is not in memory", errNoSegments, dir)
	}
	base := segmentPrefix + strconv.Itoa(os.Geteuid()) + "-" + plainName(l.RunID) + "-" + strings.ToLower(rand.Text()[:10])
	f, err := newLabel(filepath.Join(dir, base), l)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoSegments, err)
	}
	return &segments{dir: dir, label: f}, nil
}

// plainName is a run id as a part of a file's name, for people: what counts is in the label.
func plainName(id string) string {
	plain := []byte(id[:min(len(id), 100)])
	for i, c := range plain {
		if c < '0' || c > 'z' || c > '9' && c < 'A' || c > 'Z' && c < 'a' && c != '_' {
			plain[i] = '_'
		}
	}
	return string(plain)
}

// path is the name of another segment, which nobody can have taken before.
func (g *segments) path(set, shard int) string {
	return fmt.Sprintf("%s.%d-%d-%s", g.label.path, set, shard, strings.ToLower(rand.Text()[:10]))
}

// othersShare is the part of the file system that segments leave to others: a worker that loads data through it, or
// writes to a page that it cannot have, is killed.
const othersShare = 8

// room reports whether a file of size bytes has room beside all segments that there are, when they will have been
// filled. What counts besides is what the file system has given away: files of others may be as long as they like.
func (g *segments) room(size int64) bool {
	var st unix.Statfs_t
	if unix.Statfs(g.dir, &st) != nil {
		return false
	}
	total, free := int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	for _, path := range g.label.files() { // pages that nobody has touched yet
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o077 == 0 {
			free -= max(0, st.Size-st.Blocks*512)
		}
	}
	return free-size >= total/othersShare
}

// newFile makes memory for a slot, and returns its name, empty for memory without one.
func (s *Service) newFile(st *set, shard int, size int64) (*os.File, string, error) {
	g := s.segments
	if g != nil && !g.foreign {
		if err := errForeignFiles(g.label.path); err != nil {
			g.foreign = true
			s.cfg.Log.Warn().Err(err).Msg("somebody imitates checkpoints in memory")
		}
	}
	if g != nil && g.room(size) {
		path := g.path(st.id, shard)
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			return f, path, nil
		}
		s.cfg.Log.Warn().Err(err).Msg("cannot give a checkpoint's memory a name")
	}
	if g != nil && !g.told {
		g.told = true
		s.cfg.Log.Warn().Str("path", g.dir).Int64("bytes", size).
			Msg("too little room for checkpoints that outlive muster: some are lost if it is killed (a larger file system there " +
				"changes that)")
	}
	fd, err := unix.MemfdCreate("muster-checkpoint", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, "", fmt.Errorf("cannot make memory for a checkpoint: %w", err)
	}
	return os.NewFile(uintptr(fd), "muster-checkpoint"), "", nil
}

// openOwn opens a file in the directory of segments that has to be this user's, an ordinary one, and nobody else's to
// write to.
func openOwn(path string, flags int) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, nil, errors.Join(fmt.Errorf("%s is not a file of this user alone", path), f.Close())
	}
	return f, info, nil
}
