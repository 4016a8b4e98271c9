// Package probe asks NVIDIA's management library (NVML) about the GPUs through a program of its own, nvprobe: the
// library needs cgo, and may hang or crash. Whatever it does, Run returns in time with what was said until then, and
// nothing of it reaches the process that called Run.
//
// Release builds carry nvprobe inside (build tag nvprobe_embed); others look for one that is installed. Without one
// there is no report, and an error that says what was tried: package accel still counts GPUs from files then.
//
// It judges nothing: what a value means for the node is the business of whoever asked.
package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"muster/internal/accel/nvline"
	"muster/internal/errhint"
	"muster/internal/proc"
)

// program is the file name of the probe.
const program = "nvprobe"

// Variable names the environment variable with the path of the probe to run, before any other.
const Variable = "MUSTER_NVPROBE"

// Values of Options.Exec: how an embedded probe is made executable.
const (
	ExecAuto  = "auto" // from memory, and where that is refused from a file
	ExecMemfd = "memfd"
	ExecFile  = "file" // for sites whose security tools take execution from memory for an attack
	ExecNone  = "none" // not at all, nor one that is installed
)

// What a probe may write, in bytes. A complaint of 16 GPUs is some 60 kB.
const (
	maxStdout = 4 << 20
	maxStderr = 64 << 10
)

// grace is how long a killed probe may take to die before it is abandoned.
const grace = 500 * time.Millisecond

// Options say which probe is run, and for how long.
type Options struct {
	// Environ is muster's environment, "NAME=VALUE". The probe gets it without what would change how it is loaded.
	Environ []string
	// Executable is muster's own path; a probe beside it is found. Empty: none is looked for there.
	Executable string
	// Exec is one of the Exec constants; "" is ExecAuto.
	Exec string
	// GPUs is how many GPUs, or other devices, there are to ask about; they make the default deadline.
	GPUs int
	// Moments is how often, a second apart, what only several readings tell is read; 0 for not at all.
	Moments int
	// ToolDirs is where nvidia-smi and other vendors' tools are looked for; nil: PATH and the places that each is known
	// to lie in.
	ToolDirs []string
	// Timeout is how long the probe, and each vendor's tool, may run; 0: defaultTimeout(GPUs) and the time that Moments
	// take.
	Timeout time.Duration
}

// defaultTimeout returns 15 seconds and 5 more for each GPU: a GPU that nobody uses takes 1 to 3 seconds to wake.
func defaultTimeout(gpus int) time.Duration {
	return 15*time.Second + time.Duration(max(0, gpus))*5*time.Second
}

// env returns the last value of name, as a shell would.
func (o Options) env(name string) string {
	for _, e := range slices.Backward(o.Environ) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// dropped are the variables that would keep the probe from starting (LD_BIND_NOW: its symbols are undefined until the
// library is there), or put somebody else's code or settings into it.
var dropped = []string{"LD_PRELOAD", "LD_AUDIT", "LD_BIND_NOW", "GODEBUG", "GOMAXPROCS", "GOTRACEBACK", Variable}

// environment returns what the probe gets.
func (o Options) environment() []string {
	env := slices.DeleteFunc(slices.Clone(o.Environ), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(dropped, name)
	})
	return append(env, "GOMAXPROCS=1", "GOTRACEBACK=none", fmt.Sprintf("%s=%d", nvline.MomentsVariable, o.Moments))
}

// ErrAbandoned is returned by Run after a probe that could not be killed: a second one would hang as well.
var ErrAbandoned = errors.New("an earlier probe hangs in the driver")

// ErrUnavailable is what Run's error wraps where no probe could be run, in errors.Is.
var ErrUnavailable = errors.New("no probe could be run")

// attemptsError lists what was tried.
type attemptsError struct{ attempts []string }

func (e *attemptsError) Error() string {
	return "cannot run the NVML probe: " + strings.Join(e.attempts, "; ")
}

func (e *attemptsError) Is(target error) bool { return target == ErrUnavailable }

func unavailable(attempts ...string) error {
	return errhint.With(&attemptsError{attempts}, "put nvprobe (make nvprobe) beside muster, or its path into "+Variable)
}

// left is the pid of a probe that was abandoned by this process.
var left atomic.Int64

// Run runs the probe and returns its report, complete or not; Report.Err tells which. The error is not nil where no
// probe ran: it wraps ErrUnavailable, ErrAbandoned or ctx's cause. Run takes no longer than the timeout and about a
// second. Call it while no proc.Tree is open, or the probe's exit status may be taken by that.
func Run(ctx context.Context, o Options) (*Report, error) {
	switch o.Exec {
	case "", ExecAuto, ExecMemfd, ExecFile:
	case ExecNone:
		return nil, unavailable("it is switched off")
	default:
		return nil, errhint.Usagef("cannot run the NVML probe by %q: it is auto, memfd, file or none", o.Exec)
	}
	if pid := left.Load(); pid != 0 {
		return nil, fmt.Errorf("cannot run the NVML probe: %w (pid %d)", ErrAbandoned, pid)
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout(o.GPUs) + time.Duration(o.Moments)*time.Second
	}
	var attempts []string
	failed := func(via string, err error) {
		attempts = append(attempts, fmt.Sprintf("%s: %v", via, err))
	}
	for _, c := range o.candidates() {
		p, err := c.get()
		if err != nil {
			failed(c.via, err)
			continue
		}
		r, err := o.run(ctx, p)
		switch {
		case err == nil:
			return r, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("cannot run the NVML probe: %w", context.Cause(ctx))
		}
		failed(c.via, err)
		if errors.Is(err, errNoLoader) {
			return nil, unavailable(attempts...) // another place would not change what the C library is
		}
	}
	if blob == "" {
		attempts = append(attempts, "this muster was built without one")
	}
	return nil, unavailable(attempts...)
}

// run runs the probe at p. An error means that it did not run, or was no probe.
func (o Options) run(ctx context.Context, p place) (*Report, error) {
	defer p.drop()
	begin := time.Now()
	c, err := proc.Confine(ctx, proc.Confinement{
		Path: p.path, Args: []string{program}, Env: o.environment(), Deadline: o.Timeout, Grace: grace,
		MaxStdout: maxStdout, MaxStderr: maxStderr, Started: p.drop,
	})
	if noLoader(p.path, err) {
		return nil, errNoLoader
	}
	if err != nil {
		return nil, err
	}
	took := time.Since(begin)
	if c.Abandoned != nil {
		left.Store(int64(c.PID))
	}
	if c.Canceled {
		return nil, context.Cause(ctx)
	}
	r, err := parse(c.Stdout)
	if err != nil {
		if c.Abandoned == nil && !c.TimedOut {
			return nil, fmt.Errorf("%w; it %v%s", err, c.Exit, firstLine(c.Stderr))
		}
		r = &Report{}
	}
	r.Via, r.Took, r.Stderr = p.via, took, string(c.Stderr)
	r.end(c, o.Timeout)
	return r, nil
}

// end adds to the report how the probe ended.
func (r *Report) end(c proc.Confined, timeout time.Duration) {
	r.Hung = c.TimedOut && (c.Abandoned != nil || !r.Complete)
	if c.Abandoned != nil {
		r.Abandoned = &Abandoned{PID: c.PID, State: c.Abandoned.State, Wchan: c.Abandoned.Wchan}
	}
	switch {
	case c.Flooded:
		r.Problem = fmt.Sprintf("wrote more than %d bytes and was killed", maxStdout)
	case r.Hung && r.Abandoned != nil:
		r.Problem = fmt.Sprintf("hung for %v", timeout)
	case r.Hung:
		r.Problem = fmt.Sprintf("hung for %v and was killed", timeout)
	case c.TimedOut, c.Lost:
		// It said all and hung on its way out; or nobody knows how it ended.
	case !c.Exit.Success():
		r.Problem = fmt.Sprintf("%v%s", c.Exit, firstLine(c.Stderr))
	}
	r.Complete = r.Problem == ""
}

// firstLine returns the beginning of what a program complained of, in parentheses.
func firstLine(stderr []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(stderr)), "\n")
	if line == "" {
		return ""
	}
	return " (" + clip(line) + ")"
}

// Description tells what probe this muster has.
type Description struct {
	Embedded bool   `json:"embedded"`
	Bytes    int    `json:"bytes,omitempty"`   // size of the embedded probe
	GoNVML   string `json:"go_nvml,omitempty"` // release of go-nvml that it was built with
}

// Describe returns what this build carries. It costs nothing.
func Describe() Description {
	if blob == "" {
		return Description{}
	}
	return Description{Embedded: true, Bytes: len(blob), GoNVML: nvline.GoNVML}
}

// String returns a sentence for people.
func (d Description) String() string {
	if !d.Embedded {
		return "NVML probe: none inside (built without nvprobe_embed); an installed nvprobe is looked for by $" + Variable +
			", beside muster and on PATH"
	}
	return fmt.Sprintf("NVML probe: %d bytes inside, with go-nvml %s", d.Bytes, d.GoNVML)
}
