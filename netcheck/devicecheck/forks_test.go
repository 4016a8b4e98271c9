package devicecheck_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"muster/internal/proc"
	"muster/netcheck/devicecheck"
)

// A template forks processes of one interpreter, which has imported torch: an import takes one second of processor time
// or two.
type template struct {
	mu    sync.Mutex
	forks *proc.Template
}

var (
	templatesLock sync.Mutex
	templates     = map[string]*template{} // by interpreter, until all tests have ended
)

// forked has the processes of a program be forks, where their start is not what a test is about. TestHealthyNodes has
// those of the oldest torch that start as usual, and in a soak test those of the newest, too.
func forked(t testing.TB, cfg devicecheck.Config) devicecheck.Config {
	t.Helper()
	templatesLock.Lock()
	defer templatesLock.Unlock()
	python := cfg.Python[0]
	of := templates[python]
	if of == nil {
		script, err := filepath.Abs(filepath.Join("testdata", "forks.py"))
		if err != nil {
			t.Fatal(err)
		}
		forks, err := tree.StartTemplate(proc.Spec{
			Path: python, Args: []string{python, script}, Env: append(os.Environ(), "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1"),
			Files: []*os.File{nil, os.Stderr, os.Stderr}, Label: "the template of the tests",
		})
		if err != nil {
			t.Fatal(err)
		}
		of = &template{forks: forks}
		templates[python] = of
	}
	cfg.StartBy(of.start)
	return cfg
}

func (f *template) start(spec proc.Spec) (*proc.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	spares, err := f.forks.Fork(1, "fork", "")
	if err != nil {
		return nil, err
	}
	procs, err := tree.StartSpares(spares, []proc.Spec{spec}, []string{"go", ""})
	return procs[0], err
}

func closeTemplates() error {
	var errs []error
	for _, of := range templates {
		errs = append(errs, of.forks.Close())
	}
	return errors.Join(errs...)
}
