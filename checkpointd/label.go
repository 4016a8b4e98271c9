package checkpointd

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// label says what the segments beside it are, for whoever finds them when their agent is dead. It is locked while the
// agent, or somebody who saves what is left, looks after them. Fields are only ever added.
type label struct {
	Version int       `json:"version"`
	RunID   string    `json:"run_id"`
	PID     int       `json:"pid"`
	Begun   time.Time `json:"begun"`
	// Lineage is that of the nodes of which the agent was one; 0 where it was alone. See nodeState.
	Lineage int64 `json:"lineage,omitempty"`
	// Socket is where the agent is asked to save.
	Socket string `json:"socket,omitempty"`
	// Saving says that the agent is dead, and that whoever holds the lock brings to disk what it has left.
	Saving bool       `json:"saving,omitempty"`
	Sets   []labelSet `json:"sets"`
}

// labelSet is what has to be known of a set beside the headers of its slots.
type labelSet struct {
	ID       int       `json:"id"`
	Dir      string    `json:"dir"`
	Shards   int       `json:"shards"`
	Reshards bool      `json:"reshards,omitempty"`
	Keep     KeepRules `json:"keep"`
	// Committed is the newest moment on disk, Step -1 for none.
	Committed moment `json:"committed"`
	// Head is what the trackers of the directory named when the agent looked last; see headOf. Next is the attempt by
	// which it writes, or has just written, NextAt.
	Head   string `json:"head"`
	Next   string `json:"next,omitempty"`
	NextAt moment `json:"next_at"`
}

const (
	labelVersion = 1
	labelLimit   = 1 << 20
)

// validate makes sure that a label can be one.
func (l *label) validate() error {
	if l.Version != labelVersion {
		return fmt.Errorf("its label is of version %d, and this muster knows %d", l.Version, labelVersion)
	}
	seen := map[int]bool{}
	for _, s := range l.Sets {
		if !filepath.IsAbs(s.Dir) || filepath.Clean(s.Dir) != s.Dir || s.Dir == "/" || s.Shards < 1 || s.Shards > shardsMax || seen[s.ID] {
			return fmt.Errorf("its label has %d shards of %q, which cannot be", s.Shards, s.Dir)
		}
		seen[s.ID] = true
	}
	return nil
}

// headOf identifies the step that the trackers of a directory name: by its attempt, or the number where DLRover wrote
// it. Empty for none. Another head than the one before means that somebody else has written there.
func headOf(dir string) string {
	if wait := beforeHead.Load(); wait != nil {
		(*wait)(dir)
	}
	l := latestOf(dir)
	if l.foreign >= 0 {
		return "step " + strconv.FormatInt(l.foreign, 10)
	}
	return l.attempt
}

// beforeHead is what headOf waits for in tests: a disk that hangs.
var beforeHead atomic.Pointer[func(dir string)]

// labelFile is a label that is locked by us.
type labelFile struct {
	path string
	file *os.File
}

// errKept says that a process looks after segments.
var errKept = errors.New("a process of muster looks after it")

func newLabel(path string, l label) (*labelFile, error) {
	f := &labelFile{path: path}
	return f, f.write(l)
}

// write replaces the label by another one, which is locked before anybody can see it.
func (f *labelFile) write(l label) (err error) {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	temp := f.path + "." + strings.ToLower(rand.Text()[:8]) + newSuffix // nobody else can have put something there
	file, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp), file.Close())
		}
	}()
	if err := lockLabel(file); err != nil {
		return err
	}
	if _, err := file.Write(text); err != nil {
		return err
	}
	if err := os.Rename(temp, f.path); err != nil {
		return err
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file = file
	return nil
}

// files are the names of the segments.
func (f *labelFile) files() []string { return segmentFiles(f.path) }

// close lets go of the label. It stays.
func (f *labelFile) close() { _ = f.file.Close() }

// newSuffix is at the end of labels that are being written.
const newSuffix = ".new"

// remove takes the label away, and all segments that are left.
func (f *labelFile) remove() error {
	var errs []error
	for _, path := range append(f.files(), f.path) {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	f.close()
	return errors.Join(errs...)
}

// segmentFiles are this user's files that belong to a label. What somebody else gives such a name does not.
func segmentFiles(path string) []string {
	files, _ := filesOf(path)
	return files
}

// filesOf returns the files with names of a label's segments: this user's, and those of others.
func filesOf(path string) (files, foreign []string) {
	found, _ := filepath.Glob(globQuote(path) + ".*") // the pattern is a good one
	for _, path := range found {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			continue
		}
		if int(st.Uid) == os.Geteuid() {
			files = append(files, path)
		} else {
			foreign = append(foreign, path)
		}
	}
	return files, foreign
}

// errForeignFiles names files of others that have names of a label's segments; nil where there are none.
func errForeignFiles(path string) error {
	_, foreign := filesOf(path)
	if len(foreign) == 0 {
		return nil
	}
	return fmt.Errorf("%d files of other users have names of checkpoints in memory, and are not looked at: %s", len(foreign),
		foreign[0])
}

// labelPaths are the names of this user's labels in a directory.
func labelPaths(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(globQuote(dir), segmentPrefix+strconv.Itoa(os.Geteuid())+"-*")) // the pattern is a good one
	return slices.DeleteFunc(found, func(path string) bool {
		var st unix.Stat_t
		return filepath.Ext(path) != "" || unix.Lstat(path, &st) == nil && int(st.Uid) != os.Geteuid() // somebody else's is none
	})
}

// labelRun is the run id of which a label's name tells: plainName's.
func labelRun(path string) string {
	_, id, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), segmentPrefix), "-") // the user
	return id[:max(0, strings.LastIndexByte(id, '-'))]
}

// readLabel reads a label, whoever looks after it.
func readLabel(path string) (l label, err error) {
	file, _, err := openOwn(path, os.O_RDONLY)
	if err != nil {
		return l, err
	}
	defer func() { _ = file.Close() }()
	return decodeLabel(file)
}

func decodeLabel(file *os.File) (l label, err error) {
	text, err := io.ReadAll(io.LimitReader(file, labelLimit))
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return l, fmt.Errorf("cannot read the label %s: %w", file.Name(), err)
	}
	return l, l.validate()
}

// takeLabel locks the label of a dead agent. It returns errKept where somebody looks after it.
func takeLabel(path string) (*labelFile, label, error) {
	for {
		file, info, err := openOwn(path, os.O_RDWR)
		if err != nil {
			return nil, label{}, err
		}
		if err := lockLabel(file); err != nil {
			return nil, label{}, errors.Join(err, file.Close())
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(info, now) { // it was replaced before we had the lock
			_ = file.Close()
			if err != nil {
				return nil, label{}, err
			}
			continue
		}
		l, err := decodeLabel(file)
		return &labelFile{path, file}, l, err
	}
}

// lockLabel locks a label for as long as the file is open, by a lock that can be asked about without being taken.
func lockLabel(file *os.File) error {
	err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errKept
	}
	return err
}

// isKept reports whether a process looks after a label.
func isKept(path string) bool {
	for {
		file, info, err := openOwn(path, os.O_RDONLY)
		if err != nil {
			return false
		}
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		err = unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock)
		_ = file.Close()
		now, gone := os.Lstat(path)
		if gone != nil || os.SameFile(info, now) { // else it was replaced meanwhile
			return gone == nil && err == nil && lock.Type != unix.F_UNLCK
		}
	}
}
