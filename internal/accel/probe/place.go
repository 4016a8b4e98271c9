package probe

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"muster/internal/durable"
)

// place is an executable probe, ready to be started.
type place struct {
	via  string // for people
	path string // to execute
	// drop is called when the program was executed, or could not be: the kernel keeps what runs.
	drop func()
}

func nothing() {}

// candidates returns ways to an executable probe, in the order in which they are tried. Each makes its place only when
// it is called.
func (o Options) candidates() []candidate {
	if named := o.env(Variable); named != "" {
		// Somebody said which one; another one would be a surprise.
		return []candidate{{"$" + Variable, func() (place, error) { return onDisk(named) }}}
	}
	var all []candidate
	if blob != "" && o.Exec != ExecFile {
		all = append(all, candidate{"memfd", inMemory})
	}
	if blob != "" && o.Exec != ExecMemfd {
		for _, dir := range o.dirs() {
			all = append(all, candidate{dir, func() (place, error) { return inFile(dir) }})
		}
	}
	if o.Executable != "" {
		path := filepath.Join(filepath.Dir(o.Executable), program)
		all = append(all, candidate{path, func() (place, error) { return onDisk(path) }})
	}
	return append(all, candidate{"PATH", o.onPath})
}

type candidate struct {
	via string
	get func() (place, error)
}

// dirs returns where a file may be written and executed.
func (o Options) dirs() []string {
	var dirs []string
	add := func(dir string) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	if tmp := o.env("TMPDIR"); tmp != "" {
		add(tmp)
	} else {
		add("/tmp")
	}
	if cache := o.env("XDG_CACHE_HOME"); cache != "" {
		add(cache)
	} else if home := o.env("HOME"); home != "" {
		add(filepath.Join(home, ".cache"))
	}
	add("/var/tmp")
	add("/run")
	return dirs
}

// onDisk takes a probe that was installed.
func onDisk(path string) (place, error) {
	st, err := os.Stat(path)
	if err != nil {
		return place{}, reason(err)
	}
	if !st.Mode().IsRegular() {
		return place{}, errors.New("is not a file")
	}
	return place{path, path, nothing}, nil
}

// onPath looks for an installed probe where commands are.
func (o Options) onPath() (place, error) {
	for _, dir := range filepath.SplitList(o.env("PATH")) {
		if !filepath.IsAbs(dir) {
			continue // never what happens to lie in the working directory
		}
		if p, err := onDisk(filepath.Join(dir, program)); err == nil {
			return p, nil
		}
	}
	return place{}, errors.New("has no " + program)
}

// unpack writes the embedded probe to w.
func unpack(w io.Writer) error {
	r, err := gzip.NewReader(strings.NewReader(blob))
	if err != nil {
		return fmt.Errorf("the embedded probe is damaged: %w", err)
	}
	_, err = io.Copy(w, r) //nolint:gosec // what was embedded when muster was built
	return err
}

// inMemory writes the embedded probe into a memfd.
func inMemory() (place, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(program, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(program, flags)
	}
	if err != nil {
		return place{}, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), program)
	if err := unpack(f); err != nil {
		_ = f.Close()
		return place{}, err
	}
	// A seal that the kernel refuses protects nobody less: the descriptor is ours alone.
	_, _ = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return place{"memfd", fmt.Sprintf("/proc/self/fd/%d", fd), func() { _ = f.Close() }}, nil
}

// inFile writes the embedded probe into a file of dir that is gone as soon as it runs.
func inFile(dir string) (_ place, err error) {
	if dir, err = durable.Ours(dir); err != nil { // it is executed by its name
		return place{}, err
	}
	f, err := os.CreateTemp(dir, program+"-*")
	if err != nil {
		return place{}, reason(err)
	}
	path := f.Name()
	defer func() {
		if err != nil {
			_, _ = f.Close(), os.Remove(path)
		}
	}()
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) == nil && st.Flags&unix.ST_NOEXEC != 0 {
		return place{}, errors.New("is mounted noexec")
	}
	if err := unpack(f); err != nil {
		return place{}, reason(err)
	}
	if err := f.Chmod(0o700); err != nil {
		return place{}, reason(err)
	}
	if err := f.Close(); err != nil {
		return place{}, reason(err)
	}
	return place{path, path, func() { _ = os.Remove(path) }}, nil
}

// reason takes the path out of an error that is shown beside it.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// errNoLoader says that the probe cannot run on this system at all.
var errNoLoader = errors.New("this system has no glibc loader")

// noLoader tells, after a file that exists could not be executed for ENOENT, whether its ELF interpreter is what is
// missing. Other places would fare no better then.
func noLoader(path string, err error) bool {
	if !errors.Is(err, unix.ENOENT) {
		return false
	}
	if strings.HasPrefix(path, "/proc/self/fd/") {
		path = "/proc/self/fd"
	}
	_, err = os.Stat(path)
	return err == nil
}
