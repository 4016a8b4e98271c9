package hosts

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/beneath"
	"muster/internal/printable"
)

// LogFiles takes the workers' log files of all nodes of a job, each below a directory with the node's name. Nil drops
// them.
type LogFiles struct {
	dir   string
	limit int64
	log   zerolog.Logger

	mu    sync.Mutex
	taken int64               // of limit
	full  bool                // and that was told
	open  map[string]*os.File // by node
	told  map[string]bool     // nodes about which something was said
	names map[string]string   // by the name of a directory: the node that has it
}

// fileCost is what a file takes of the limit besides its bytes, and dirCost what a directory does: a node must not fill
// a disk with empty ones.
const (
	fileCost = 1 << 10
	dirCost  = 4 << 10
)

// deepest is how many directories a file may lie in below its node's.
const deepest = 32

// defaultLimit is how many bytes of log files are taken where nothing else was said.
const defaultLimit = 1 << 30

// collectLogs takes log files into dir until they have limit bytes together; 0: a GiB. An empty dir is nil.
func collectLogs(dir string, limit int64, log zerolog.Logger) *LogFiles {
	if dir == "" {
		return nil
	}
	limit = cmp.Or(limit, defaultLimit)
	return &LogFiles{dir: dir, limit: limit, log: log, open: map[string]*os.File{}, told: map[string]bool{}, names: map[string]string{}}
}

// begin opens a file of a node for what follows.
func (f *LogFiles) begin(node string, m fileMessage) {
	if f == nil {
		return
	}
	f.close(node)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch file, err := f.createLocked(node, m.Path); {
	case errors.Is(err, errLimit):
		f.fullLocked(node)
	case err != nil:
		f.complainLocked(node, err)
	default:
		f.open[node] = file
	}
}

// errLimit says that there is no room for a file or its directories.
var errLimit = errors.New("--collect-logs-limit is reached")

// createLocked makes a file below the node's directory, whatever the node calls it.
func (f *LogFiles) createLocked(node, path string) (*os.File, error) {
	if !filepath.IsLocal(path) || filepath.Clean(path) != path || path == "." || strings.ContainsFunc(path, unicode.IsControl) {
		return nil, fmt.Errorf("node %q names a log file %q, which lies elsewhere", node, path)
	}
	if err := os.MkdirAll(f.dir, 0o777); err != nil {
		return nil, err
	}
	t, err := beneath.Open(f.dir) // links in it lead nowhere else
	if err != nil {
		return nil, err
	}
	defer func() { _ = t.Close() }()
	name := dirName(node)
	if of, ok := f.names[name]; ok && of != node {
		return nil, fmt.Errorf("nodes %q and %q have the same name of a directory", of, node)
	}
	f.names[name] = node
	path = filepath.Join(name, path)
	above, cost := strings.Split(filepath.Dir(path), "/"), int64(fileCost)
	if len(above) > deepest+1 {
		return nil,
			fmt.Errorf("node %q names a log file %q, which lies in more than %d directories", node, printable.Line(path, 200), deepest)
	}
	for i := len(above); i > 0; i-- {
		if _, err := t.Lstat(filepath.Join(above[:i]...)); err == nil {
			break
		}
		cost += dirCost
	}
	if f.limit-f.taken < cost {
		return nil, errLimit
	}
	f.taken += cost
	if err := t.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	dir, last, err := t.Parent(path)
	if err != nil {
		return nil, err
	}
	if info, err := dir.Lstat(last); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", filepath.Join(dir.Name(), last))
	}
	return dir.OpenFile(last, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o666)
}

// dirName makes a node's name, which may be anything, that of a directory. One that is changed for that gets an end
// which tells it from others.
func dirName(node string) string {
	const most = 200 // of the 255 bytes that a name may have
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == utf8.RuneError || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, node)
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "")
	}
	if name == "" || name[0] == '.' {
		name = "_" + name
	}
	if name != node {
		sum := sha256.Sum256([]byte(node))
		name = fmt.Sprintf("%s.%x", name, sum[:4])
	}
	return name
}

// data appends to the file that the node has begun; nothing ends it.
func (f *LogFiles) data(node string, p []byte) {
	if f == nil {
		return
	}
	if len(p) == 0 {
		f.close(node)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.open[node]
	if file == nil {
		return
	}
	whole := len(p)
	p = p[:min(int64(whole), f.limit-f.taken)]
	f.taken += int64(len(p))
	_, err := file.Write(p)
	if err != nil {
		f.complainLocked(node, err)
	}
	if len(p) == whole {
		return
	}
	if _, err := file.WriteString("\n" + cutOff + "\n"); err != nil {
		f.complainLocked(node, err)
	}
	f.closeLocked(node)
	f.fullLocked(node)
}

// cutOff is the last line of a file that was not taken to its end.
const cutOff = "[muster: the rest of this file was not collected: --collect-logs-limit is reached]"

// fullLocked says once that the limit is reached.
func (f *LogFiles) fullLocked(node string) {
	if !f.full {
		f.full = true
		f.log.Warn().Str("node", node).Str("path", f.dir).Int64("limit", f.limit).
			Msg("no more log files are collected: --collect-logs-limit is reached; the rest stays on the nodes")
	}
}

func (f *LogFiles) close(node string) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeLocked(node)
}

func (f *LogFiles) closeLocked(node string) {
	if file := f.open[node]; file != nil {
		if err := file.Close(); err != nil {
			f.complainLocked(node, err)
		}
		delete(f.open, node)
	}
}

// complainLocked says once for each node that its files are not complete.
func (f *LogFiles) complainLocked(node string, err error) {
	if !f.told[node] {
		f.told[node] = true
		f.log.Warn().Err(err).Str("node", node).Str("path", f.dir).Msg("log files of a node could not be collected")
	}
}
