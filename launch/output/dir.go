package output

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/job"
)

// The files in a worker's directory, and beside the workers' directories, as torchrun names them.
const (
	stdoutFile    = "stdout.log"
	stderrFile    = "stderr.log"
	errorFileName = "error.json"
	keptStdout    = "filtered_stdout.log"
	keptStderr    = "filtered_stderr.log"
	sidecarDir    = "sidecar_" // and its number
)

// logDir is the directory of one run, below the user's --log-dir or in a temporary one.
type logDir struct {
	// path is absolute; "" when nothing is written at all.
	path string
	// temporary is the directory around path that we made because none was given, "" if one was.
	temporary string
}

// makeLogDir makes the directory of a run: <dir>/<run id>_<8 random>, where dir defaults to a new torchelastic_<8
// random> in tempDir. The names are torchrun's (PyTorch 2.15.0, observed).
func makeLogDir(dir, runID, tempDir string) (logDir, error) {
	if dir == os.DevNull {
		return logDir{}, nil
	}
	d, err := makeRunDir(dir, runID, tempDir)
	if err != nil {
		if d.temporary != "" {
			_ = os.Remove(d.temporary)
		}
		at := cmp.Or(dir, tempDir)
		return logDir{}, errhint.Code(unusable(at, fmt.Errorf("cannot make the log directory: %w", err)), errhint.Usage)
	}
	return d, nil
}

// unusable gives err, which a directory of logs has met, the hint that fits.
func unusable(dir string, err error) error {
	if errhint.Full(err) {
		return errhint.With(err, errhint.MakeRoom(printable.Output(dir), "--log-dir"))
	}
	return errhint.With(err, "give a directory you can write to with --log-dir, or --log-dir /dev/null for no log files")
}

// unplaced is unusable for an error that may have another reason than the directory, as a limit of open files.
func (d logDir) unplaced(err error) error {
	if d.path == "" {
		return err
	}
	if errhint.Full(err) || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EROFS) {
		return unusable(d.path, err)
	}
	return err
}

func makeRunDir(dir, runID, tempDir string) (d logDir, err error) {
	if dir == "" {
		if dir, err = makeRandomDir(tempDir, "torchelastic_"); err != nil {
			return d, err
		}
		d.temporary = dir
	} else if err = os.MkdirAll(dir, 0o777); err != nil {
		return d, err
	}
	d.path, err = makeRandomDir(dir, job.FileName(runID)+"_")
	return d, err
}

// makeRandomDir makes a directory that nobody else has: mode 0700, 8 characters of [a-z0-9_] behind prefix. Its path is
// absolute, because workers may change their working directory.
func makeRandomDir(dir, prefix string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789_"
	for range 100 {
		name := []byte(rand.Text()[:8])
		for i, c := range name {
			name[i] = alphabet[int(c)%len(alphabet)]
		}
		path := filepath.Join(dir, prefix+string(name))
		if err = os.Mkdir(path, 0o700); !errors.Is(err, fs.ErrExist) {
			return path, err
		}
	}
	return "", err
}

// attempt makes the directory of one attempt. One that is there is never taken again, or even emptied as torchrun does
// when the group starts anew with the same restart count: then a number is added.
func (d logDir) attempt(restartCount int) (string, error) {
	if d.path == "" {
		return "", nil
	}
	base := filepath.Join(d.path, fmt.Sprintf("attempt_%d", restartCount))
	for n, path := 2, base; ; n++ {
		err := os.Mkdir(path, 0o777)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", d.unplaced(fmt.Errorf("cannot make the directory of an attempt: %w", err))
		}
		path = fmt.Sprintf("%s.%d", base, n)
	}
}

// tidy removes of a temporary directory what nobody will look for: empty files, empty directories, and after a success
// the error files of earlier attempts. Files with output stay, and so does what workers have put there.
func (d logDir) tidy(succeeded bool) error {
	if d.temporary == "" {
		return nil
	}
	root, err := os.OpenRoot(d.temporary)
	if err != nil {
		return fmt.Errorf("cannot tidy the log directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	var dirs []string
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			dirs = append(dirs, path)
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		empty := info.Mode().IsRegular() && info.Size() == 0
		if empty || succeeded && e.Name() == errorFileName {
			return root.Remove(path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot tidy the log directory: %w", err)
	}
	for _, dir := range slices.Backward(dirs) { // children come after their parents
		_ = root.Remove(dir) // fails where something is in it
	}
	_ = os.Remove(d.temporary)
	return nil
}
