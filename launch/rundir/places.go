package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/launch/job"
)

// prefix begins the names of run directories.
const prefix = "job-"

// Launcher ends the name of a launcher's run directory: an agent of the job may run on the same machine.
const Launcher = ".launcher"

// Name is the name of a job's run directory, by its run id.
func Name(runID string) string { return prefix + job.FileName(runID) }

// runtimeName is what holds run directories in XDG_RUNTIME_DIR, tempName in a directory of all users.
const runtimeName = "muster"

func tempName() string { return "muster-" + strconv.Itoa(os.Getuid()) }

// Places are the directories that hold the run directories of this user.
type Places struct {
	Parent     string   // of a new one
	Safe       []string // where nobody else can put another one in their place, as they are tried
	PassedOver error    // why Parent is not where a variable says: another user could replace it there
}

// FindPlaces looks for a place where no other user can replace a run directory, since workers take code from it: in
// XDG_RUNTIME_DIR, which is gone in many containers and belongs to somebody else after su, or among temporary files. A
// TMPDIR that cannot be written to ends the search, so that making a run directory fails there: whoever set it meant
// it.
func FindPlaces(runtimeDir, tempDir string) (p Places) {
	first := ""
	try := func(variable, dir, name string) {
		if first == "" {
			first = filepath.Join(dir, name)
		}
		dir, err := durable.Ours(dir)
		path := filepath.Join(dir, name)
		if err == nil {
			err = nameIsFree(path)
		}
		switch {
		case err == nil && !slices.Contains(p.Safe, path):
			p.Safe = append(p.Safe, path)
		case err != nil && len(p.Safe) == 0 && p.PassedOver == nil:
			if p.PassedOver = err; variable != "" {
				p.PassedOver = fmt.Errorf("%s: %w", variable, err)
			}
		}
	}
	if ownRuntimeDir(runtimeDir) {
		try("XDG_RUNTIME_DIR", runtimeDir, runtimeName)
	}
	for i, dir := range durable.Temporaries(tempDir) {
		switch err := durable.Writable(dir); {
		case err == nil && i == 0 && dir != durable.SystemTemp:
			try("TMPDIR", dir, tempName())
		case err == nil:
			try("", dir, tempName())
		case i == 0 && len(p.Safe) == 0:
			return Places{Parent: filepath.Join(dir, tempName())}
		}
	}
	if len(p.Safe) == 0 { // Make warns of it, or fails there
		return Places{Parent: first}
	}
	p.Parent = p.Safe[0]
	return p
}

// nameIsFree returns an error where somebody else has taken the name of our directory.
func nameIsFree(path string) error {
	if info, err := os.Lstat(path); err == nil && (!info.IsDir() || !durable.OwnedByUs(info)) {
		return fmt.Errorf("%s is not a directory of user %d", path, os.Geteuid())
	}
	return nil
}

func ownRuntimeDir(dir string) bool {
	if !filepath.IsAbs(dir) {
		return false
	}
	info, err := os.Stat(dir)
	return err == nil && durable.OwnedByUs(info) && durable.Writable(dir) == nil
}

// All are the directories in which run directories of this user may be found.
func (p Places) All() []string {
	if len(p.Safe) == 0 {
		return []string{p.Parent}
	}
	return p.Safe
}

// IDOf is the run id of a run directory, as far as its name has it.
func IDOf(dir string) string {
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), prefix), Launcher)
}

// IsOf reports whether a directory has the name of a run directory of an agent of the job with a run id: where several of
// its agents run on one machine, all but one have more in their names.
func IsOf(dir, runID string) bool {
	more, is := strings.CutPrefix(filepath.Base(dir), Name(runID))
	return is && (more == "" || more != Launcher && len(more) == len(".")+added)
}

// Exists reports whether there is a directory at a path.
func Exists(dir string) bool {
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir()
}

// List returns the run directories of this user's jobs, without looking into them. Somebody else's parent is refused:
// the user would run what that says.
func List(parent string) ([]string, error) {
	d, err := durable.OpenOwn(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot look for jobs in %s: %w", parent, err), errhint.Usage)
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot look for jobs in %s: %w", parent, err)
	}
	var dirs []string
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			dirs = append(dirs, filepath.Join(parent, name))
		}
	}
	slices.Sort(dirs)
	return dirs, nil
}
