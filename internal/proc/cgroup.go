package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// cgroup is a cgroup v2 directory of our own with one below it that the workers are born in. That one is used until it
// is killed: on Linux 6.18 a process that is made in a cgroup which was killed before dies at its start (observed; as
// it seems, clone3 compares how often the cgroups of parent and child were killed).
type cgroup struct {
	path  string
	inner string   // below path, where workers are born
	dir   *os.File // inner
	count int      // of inner ones so far
	spent bool     // inner was killed
}

// newCgroup makes a cgroup below the one that we are in. It enables no controller, so limits stay those of our own.
func newCgroup(root string, self ident) (*cgroup, error) {
	own, _, err := cgroupDir(root, "")
	if err != nil {
		return nil, err
	}
	removeStale(own)
	path := filepath.Join(own, cgroupName(self))
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make a cgroup: %w", err)
	}
	c := &cgroup{path: path}
	if err := c.renew(); err != nil {
		return nil, errors.Join(err, removeCgroup(path))
	}
	return c, nil
}

// renew makes another inner cgroup. What is still in the one before, dying, is seen and killed with the outer one.
func (c *cgroup) renew() error {
	inner := filepath.Join(c.path, strconv.Itoa(c.count))
	if err := os.Mkdir(inner, 0o755); err != nil {
		return fmt.Errorf("cannot make a cgroup: %w", err)
	}
	dir, err := os.Open(inner)
	if err != nil {
		return errors.Join(fmt.Errorf("cannot open the cgroup: %w", err), os.Remove(inner))
	}
	if c.dir != nil {
		_ = c.dir.Close()
		_ = os.Remove(c.inner) // busy while something dies in it; then it goes with the outer one
	}
	c.inner, c.dir, c.spent = inner, dir, false
	c.count++
	return nil
}

func cgroupName(id ident) string { return fmt.Sprintf("muster-%d-%d", id.PID, id.Start) }

// removeStale removes the empty cgroups of agents that were killed together with their guardian. One that is in use
// cannot be removed, whatever its name makes us believe; a newborn one of an agent in another pid namespace can, and
// that agent then goes on without.
func removeStale(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		var id ident
		if _, err := fmt.Sscanf(e.Name(), "muster-%d-%d", &id.PID, &id.Start); err != nil || e.Name() != cgroupName(id) {
			continue
		}
		if p, err := statOf(id.PID); err != nil || p.ident != id {
			_ = removeCgroup(filepath.Join(dir, e.Name()))
		}
	}
}

// Close removes the cgroup. It fails when a process is left in it.
func (c *cgroup) Close() error {
	_ = c.dir.Close()
	c.letGo()
	return removeCgroup(c.path)
}

// letGo moves what is still in the cgroup, and was to be left alone, to the cgroup we were started in.
func (c *cgroup) letGo() {
	members := map[int]bool{}
	cgroupMembers(c.path, members)
	for pid := range members {
		// One that is gone needs no other place; another failure shows when the cgroup is to be removed.
		_ = os.WriteFile(filepath.Join(filepath.Dir(c.path), "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10), 0)
	}
}

// removeCgroup removes a cgroup with what its processes made below it.
func removeCgroup(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(path, e.Name())))
		}
	}
	if rerr := os.Remove(path); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("cannot remove the cgroup: %w", rerr))
	}
	return err
}

// killCgroup has the kernel kill all that is in the cgroup at path and below, forks in flight included. Before Linux
// 5.14 there is no such file, and the caller's own loop does the work.
func killCgroup(path string) {
	if path == "" {
		return
	}
	fd, err := unix.Open(filepath.Join(path, "cgroup.kill"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte("1"))
	_ = unix.Close(fd)
}

// cgroupMembers adds the processes in the cgroup at path and below.
func cgroupMembers(path string, to map[int]bool) {
	if path == "" {
		return
	}
	b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
	if err != nil {
		return // the cgroup is gone
	}
	for field := range bytes.FieldsSeq(b) {
		if pid, err := strconv.Atoi(string(field)); err == nil {
			to[pid] = true
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			cgroupMembers(filepath.Join(path, e.Name()), to)
		}
	}
}

// makeCgroup begins to make a cgroup for the workers, beside the start of the guardian: each takes the kernel about a
// millisecond. The returned function waits for it, and tells the guardian.
func (t *Tree) makeCgroup() (use func()) {
	if !t.cfg.Cgroup {
		return func() {}
	}
	made := make(chan *cgroup, 1)
	go func() {
		c, err := newCgroup("/", t.self)
		if err != nil {
			t.log.Debug().Err(err).Msg("no cgroup for the workers")
		}
		made <- c
	}()
	return func() {
		c := <-made
		t.mu.Lock()
		defer t.mu.Unlock()
		t.cgroup = c
		t.pushLocked()
	}
}

// birthplaceLocked returns the cgroup for another worker, nil for none.
func (t *Tree) birthplaceLocked() *cgroup {
	if t.cgroup != nil && t.cgroup.spent {
		if err := t.cgroup.renew(); err != nil {
			t.log.Debug().Err(err).Msg("no cgroup for the workers")
			t.dropCgroupLocked()
		}
	}
	return t.cgroup
}

// killCgroup has the kernel kill all that is in the workers' cgroup at path.
func (t *Tree) killCgroup(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cgroup != nil {
		t.cgroup.spent = true
	}
	killCgroup(path)
}

func (t *Tree) dropCgroupLocked() {
	if err := t.cgroup.Close(); err != nil {
		t.log.Debug().Err(err).Msg("cgroup left behind")
	}
	t.cgroup = nil
}

func (t *Tree) cgroupPathLocked() string {
	if t.cgroup == nil {
		return ""
	}
	return t.cgroup.path
}

// cgroupDir returns the directory of the cgroup that this process is in, and the mount point above which there is
// nothing to look for. controller names one of version 1; "" means the version 2 hierarchy. root is "/" but in tests.
func cgroupDir(root, controller string) (dir, mount string, err error) {
	what := "cgroup v2"
	if controller != "" {
		what = "cgroup v1 controller " + controller
	}
	own, ok, err := ownCgroup(root, controller)
	if err != nil {
		return "", "", fmt.Errorf("cannot find our cgroup: %w", err)
	}
	if !ok {
		return "", "", fmt.Errorf("no %s here", what)
	}
	b, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return "", "", fmt.Errorf("cannot find our cgroup: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		// 36 35 98:0 /root /mount/point options [optional ...] - type source super-options, proc_pid_mountinfo(5)
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 3 {
			continue
		}
		match := r[0] == "cgroup2"
		if controller != "" {
			match = r[0] == "cgroup" && containsItem(r[2], controller)
		}
		if !match {
			continue
		}
		mount = filepath.Join(root, unescapeMount(l[4]))
		// What is mounted may itself be a part of the hierarchy (containers); our path counts from its top. Where we
		// are not below it, the mount point is the nearest that can be seen.
		rel, err := filepath.Rel(unescapeMount(l[3]), own)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			rel = "."
		}
		return filepath.Join(mount, rel), mount, nil
	}
	return "", "", fmt.Errorf("%s is not mounted", what)
}

// ownCgroup reads the path for controller from /proc/self/cgroup: "hierarchy:controllers:path", one a line.
func ownCgroup(root, controller string) (path string, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if controller == "" && f[0] == "0" && f[1] == "" || controller != "" && containsItem(f[1], controller) {
			return f[2], true, nil
		}
	}
	return "", false, nil
}

func containsItem(list, item string) bool {
	for s := range strings.SplitSeq(list, ",") {
		if s == item {
			return true
		}
	}
	return false
}

// unescapeMount undoes the octal escapes of mountinfo (space, tab, line end, backslash).
func unescapeMount(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// OOMKills returns how many processes the kernel's OOM killer has killed so far where our workers' memory is counted,
// and the file that says so. Two calls tell whether one of them happened in between; not which process it was. Sources,
// in this order: cgroup v1 memory.oom_control, cgroup v2 memory.events of the nearest cgroup that has one (children
// included), /proc/vmstat for the whole machine.
func OOMKills() (n int64, where string, err error) { return oomKills("/") }

func oomKills(root string) (int64, string, error) {
	if dir, _, err := cgroupDir(root, "memory"); err == nil {
		if n, file, err := readCounter(filepath.Join(dir, "memory.oom_control")); err == nil {
			return n, file, nil
		}
	}
	if dir, mount, err := cgroupDir(root, ""); err == nil {
		for {
			if n, file, err := readCounter(filepath.Join(dir, "memory.events")); err == nil {
				return n, file, nil
			}
			if dir == mount || dir == filepath.Dir(dir) {
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	n, file, err := readCounter(filepath.Join(root, "proc/vmstat"))
	if err != nil {
		return 0, "",
			errhint.With(fmt.Errorf("cannot count OOM kills: %w", err), "no memory cgroup can be read, and the kernel is older than 4.13")
	}
	return n, file, nil
}

// readCounter finds the line "oom_kill N" in a file of names and numbers.
func readCounter(file string) (int64, string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, "", err
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "oom_kill "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err != nil {
				return 0, "", fmt.Errorf("malformed oom_kill in %s: %w", file, err)
			}
			return n, file, nil
		}
	}
	return 0, "", fmt.Errorf("no oom_kill in %s", file)
}
