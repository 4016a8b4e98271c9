package dispatch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/rs/zerolog"
)

// files takes the workers' log files of all nodes, each below a directory with the node's name. The zero value drops them.
type files struct {
	*fileStore
}

type fileStore struct {
	dir string
	log zerolog.Logger

	mu   sync.Mutex
	open map[string]*os.File // by node
	told map[string]bool     // nodes about which something was said
}

func newFiles(dir string, log zerolog.Logger) files {
	if dir == "" {
		return files{}
	}
	return files{&fileStore{dir: dir, log: log, open: map[string]*os.File{}, told: map[string]bool{}}}
}

// begin opens a file of a node for what follows.
func (f files) begin(node string, m fileMessage) {
	if f.fileStore == nil {
		return
	}
	f.close(node)
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.create(node, m.Path)
	if err != nil {
		f.complainLocked(node, err)
		return
	}
	f.open[node] = file
}

// create makes a file below the node's directory, whatever the node calls it.
func (f *fileStore) create(node, path string) (*os.File, error) {
	if !filepath.IsLocal(path) {
		return nil, fmt.Errorf("node %s names a log file %q, which lies elsewhere", node, path)
	}
	root := filepath.Join(f.dir, strings.ReplaceAll(node, "/", "_"))
	if err := os.MkdirAll(root, 0o777); err != nil {
		return nil, err
	}
	r, err := os.OpenRoot(root) // links in it lead nowhere else
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	if dir := filepath.Dir(path); dir != "." {
		if err := r.MkdirAll(dir, 0o777); err != nil {
			return nil, err
		}
	}
	return r.Create(path)
}

// data appends to the file that the node has begun; nothing ends it.
func (f files) data(node string, p []byte) {
	if f.fileStore == nil {
		return
	}
	if len(p) == 0 {
		f.close(node)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.open[node]; file != nil {
		if _, err := file.Write(p); err != nil {
			f.complainLocked(node, err)
		}
	}
}

func (f files) close(node string) {
	if f.fileStore == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.open[node]; file != nil {
		if err := file.Close(); err != nil {
			f.complainLocked(node, err)
		}
		delete(f.open, node)
	}
}

// complainLocked says once for each node that its files are not complete.
func (f *fileStore) complainLocked(node string, err error) {
	if !f.told[node] {
		f.told[node] = true
		f.log.Warn().Err(err).Str("node", node).Str("path", f.dir).Msg("log files of a node could not be collected")
	}
}
