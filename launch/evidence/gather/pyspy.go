package gather

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/evidence"
)

const (
	// spyTime is how long py-spy may take for a process, in native frames of large libraries above all.
	spyTime  = 1500 * time.Millisecond
	spyLeast = 100 * time.Millisecond // less is in vain
	// mostSpied bounds what py-spy may say of a process, in bytes.
	mostSpied = 4 << 20
	// spyVersion is what is known of py-spy begins with; another one may take other options, and stop processes for long.
	spyVersion = "0.4."
)

// noPython is said of a process that has no way to tell stacks: a Python has one where the job was started with it.
const noPython = "it is no Python that answers"

// spy reads the stacks of the process by py-spy: those of Python where it has not answered itself, and with native the
// native ones. It says why there are none.
func (l *look) spy(ctx context.Context, native bool) {
	if l.to.State == "T" || l.to.State == "t" || l.to.State == "D" || l.to.State == "Z" || l.to.State == "X" ||
		!native && len(l.to.Stacks) > 0 {
		return // who is stopped would be let go, and who hangs in the kernel would keep py-spy
	}
	tool, why, is := l.findSpy(ctx)
	switch {
	case !is:
		return
	case why != "":
		if l.to.NoStacks == noPython {
			why += "; --stacks on at the start of the job has Python tell them"
		}
		l.noSpy(why)
		return
	}
	// A thread that the kernel keeps would be left with the signal that stops it for py-spy.
	native = native && !slices.ContainsFunc(l.to.Threads, func(t evidence.Thread) bool { return t.State == "D" })
	args := []string{"py-spy", "dump", "--json", "--pid", strconv.Itoa(l.PID)}
	if native {
		args = append(args, "--native")
	} else {
		args = append(args, "--nonblocking")
	}
	said, err := runSpy(ctx, tool, args, spyTime, mostSpied)
	if err != nil {
		if native {
			l.letGo()
		}
		l.noSpy(err.Error())
		return
	}
	stacks, own, err := parseSpy(said, l.PID)
	if err != nil {
		l.noSpy(err.Error())
		return
	}
	if native {
		l.to.Native = withoutOurs(stacks)
	}
	if len(l.to.Stacks) == 0 {
		l.to.Stacks = withoutOurs(own)
	}
}

// letGo has a process go on that a killed py-spy has left stopped. It was not stopped before.
func (l *look) letGo() {
	for range 5 {
		if stat, err := os.ReadFile(l.path("stat")); err == nil && stateOf(stat) == "T" {
			_ = l.Signal(syscall.SIGCONT) // it may have ended
			return
		}
		time.Sleep(spyLeast / 5)
	}
}

// noSpy says why py-spy has told nothing, where that is missed.
func (l *look) noSpy(why string) {
	if len(l.to.Stacks) == 0 {
		l.to.NoStacks += "; " + why
	} else {
		l.to.NoStacks = "native stacks: " + why
	}
}

// findSpy finds the py-spy of the process's Python, or of its PATH. It reports false for a process that is no Python.
func (l *look) findSpy(ctx context.Context) (tool, why string, is bool) {
	var environ, command, maps string
	if !risky(ctx, func() { // a process may have its memory locked while it waits
		environ, command, maps = line64k(l.path("environ")), line64k(l.path("cmdline")), line64k(l.path("maps"))
	}) {
		return "", "", false
	}
	program, _, _ := strings.Cut(command, "\x00")
	if !strings.HasPrefix(filepath.Base(program), "python") && !strings.Contains(maps, "/libpython3") &&
		!strings.Contains(maps, "/python3") {
		return "", "", false
	}
	path := ""
	for v := range strings.SplitSeq(environ, "\x00") {
		if p, is := strings.CutPrefix(v, "PATH="); is {
			path = p
		}
	}
	if filepath.IsAbs(program) {
		path = filepath.Dir(program) + ":" + path
	}
	absolute := slices.DeleteFunc(strings.Split(path, ":"), func(dir string) bool { return !filepath.IsAbs(dir) })
	found := make(chan string, 1)
	if !risky(ctx, func() { // these directories may be on the file system that hangs
		tool, err := proc.LookPath("py-spy", "", []string{"PATH=" + strings.Join(absolute, ":")})
		if err != nil || !begins(tool) {
			tool = ""
		}
		found <- tool
	}) {
		return "", "py-spy cannot be looked for: the file system of its place does not answer", true
	}
	if tool = <-found; tool == "" || len(absolute) == 0 {
		return "", "py-spy " + spyVersion + "x is not there, which would tell more", true
	}
	said, err := runSpy(ctx, tool, []string{"py-spy", "--version"}, spyTime/3, 1<<10)
	if err != nil {
		return "", err.Error(), true
	}
	version := strings.TrimPrefix(strings.TrimSpace(string(said)), "py-spy ")
	if !strings.HasPrefix(version, spyVersion) {
		return "", fmt.Sprintf("%s is version %q, and only %sx is used", tool, printable.Line(version, 32), spyVersion), true
	}
	return tool, "", true
}

// begins reads the beginning of a program: what cannot be read would keep whoever starts it.
func begins(program string) bool {
	f, err := os.Open(program)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	_, err = f.Read(make([]byte, 4096))
	return err == nil
}

// runSpy runs py-spy. It ends with ctx at the latest.
func runSpy(ctx context.Context, tool string, args []string, most time.Duration, size int) ([]byte, error) {
	left := most
	if end, is := ctx.Deadline(); is {
		left = min(left, time.Until(end)-spyLeast)
	}
	if left < spyLeast {
		return nil, fmt.Errorf("%s had no time left", tool)
	}
	c, err := proc.Confine(ctx, proc.Confinement{
		Path: tool, Args: args, Env: []string{"LC_ALL=C"}, Deadline: left, Grace: spyLeast, MaxStdout: size, MaxStderr: 4 << 10,
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s cannot be run: %w", tool, err)
	case c.TimedOut || c.Canceled || c.Abandoned != nil:
		return nil, fmt.Errorf("%s has said nothing within %v", tool, left.Round(time.Millisecond))
	case c.Flooded:
		return nil, fmt.Errorf("%s says more than %d bytes", tool, size)
	case len(c.Stdout) == 0 && (!c.Exit.Success() || c.Lost):
		return nil, fmt.Errorf("%s says nothing but %q", tool, printable.Line(strings.TrimSpace(string(c.Stderr)), 200))
	}
	return c.Stdout, nil
}

// parseSpy reads what py-spy dump --json says: all frames, and those of Python alone, of each thread. The main thread
// is the first of the stacks, the innermost frame the last of each.
func parseSpy(text []byte, pid int) (all, python []evidence.Stack, err error) {
	var threads []struct {
		Name string `json:"thread_name"`
		ID   int    `json:"os_thread_id"`
		GIL  bool   `json:"owns_gil"`
		Of   []struct {
			Name   string  `json:"name"`
			File   string  `json:"filename"`
			Module *string `json:"module"`
			Line   int     `json:"line"`
		} `json:"frames"`
	}
	if err := json.Unmarshal(text, &threads); err != nil {
		return nil, nil, fmt.Errorf("py-spy does not say what is known of it: %w", err)
	}
	for _, t := range threads {
		a := evidence.Stack{Thread: t.Name, GIL: t.GIL}
		p := a
		for _, f := range slices.Backward(t.Of) {
			frame := evidence.Frame{Func: f.Name, File: f.File, Line: max(f.Line, 0)}
			a.Frames = append(a.Frames, frame)
			if f.Module == nil {
				frame.Func = frame.Func[strings.LastIndexByte(frame.Func, '.')+1:] // faulthandler has no class there
				p.Frames = append(p.Frames, frame)
			}
		}
		if t.ID == pid {
			all, python = slices.Insert(all, 0, a), slices.Insert(python, 0, p)
		} else {
			all, python = append(all, a), append(python, p)
		}
	}
	python = slices.DeleteFunc(python, func(s evidence.Stack) bool { return len(s.Frames) == 0 })
	return all, python, nil
}
