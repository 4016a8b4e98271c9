package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/rs/zerolog"

	"muster/internal/durable"
)

// jobDirPrefix begins the names of run directories.
const jobDirPrefix = "job-"

// runtimeName is what holds run directories in XDG_RUNTIME_DIR, tempName in a directory of all users.
const runtimeName = "muster"

func tempName() string { return "muster-" + strconv.Itoa(os.Getuid()) }

// runPlaces are the directories that hold the run directories of this user.
type runPlaces struct {
	parent     string   // of a new one
	safe       []string // where nobody else can put another one in their place, as they are tried
	passedOver error    // why parent is not where a variable says: another user could replace it there
}

// findRunPlaces looks for a place where no other user can replace a run directory, since workers take code from it: in
// XDG_RUNTIME_DIR, which is gone in many containers and belongs to somebody else after su, or among temporary files. A TMPDIR that
// cannot be written to ends the search, so that making a run directory fails there: whoever set it meant it.
func findRunPlaces(m Machine) (p runPlaces) {
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
		case err == nil && !slices.Contains(p.safe, path):
			p.safe = append(p.safe, path)
		case err != nil && len(p.safe) == 0 && p.passedOver == nil:
			if p.passedOver = err; variable != "" {
				p.passedOver = fmt.Errorf("%s: %w", variable, err)
			}
		}
	}
	if ownRuntimeDir(m) {
		try("XDG_RUNTIME_DIR", m.RuntimeDir, runtimeName)
	}
	for i, dir := range durable.Temporaries(m.TempDir) {
		switch err := durable.Writable(dir); {
		case err == nil && i == 0 && dir != durable.SystemTemp:
			try("TMPDIR", dir, tempName())
		case err == nil:
			try("", dir, tempName())
		case i == 0 && len(p.safe) == 0:
			return runPlaces{parent: filepath.Join(dir, tempName())}
		}
	}
	if len(p.safe) == 0 { // makeJobDir warns of it, or fails there
		return runPlaces{parent: first}
	}
	p.parent = p.safe[0]
	return p
}

// openRunDir makes the run directory, and says where it lies if that is not where a variable has it.
func (p *Plan) openRunDir(log zerolog.Logger) (jobDir, error) {
	d, err := makeJobDir(p.RunDir, log)
	if err == nil && p.passedOver != nil {
		log.Warn().Err(p.passedOver).Str("path", d.path).Str("hint", "set XDG_RUNTIME_DIR or TMPDIR to a directory to which only you can write").
			Msg("the run directory lies elsewhere: another user of this machine could have replaced it")
	}
	return d, err
}

// nameIsFree returns an error where somebody else has taken the name of our directory.
func nameIsFree(path string) error {
	if info, err := os.Lstat(path); err == nil && (!info.IsDir() || !ownedByUs(info)) {
		return fmt.Errorf("%s is not a directory of user %d", path, os.Geteuid())
	}
	return nil
}

func ownRuntimeDir(m Machine) bool {
	if !filepath.IsAbs(m.RuntimeDir) {
		return false
	}
	info, err := os.Stat(m.RuntimeDir)
	return err == nil && ownedByUs(info) && durable.Writable(m.RuntimeDir) == nil
}
