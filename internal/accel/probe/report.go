package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"muster/internal/accel/nvline"
	"muster/internal/printable"
)

// Report is what a probe said, as far as it came.
type Report struct {
	// Complete is true when the probe said all it had to say. Bad news (Fatal, a GPU's RC) are complete as well.
	Complete bool
	// Problem says why the report is not complete, as in "hung for 15s and was killed"; "" where it is.
	Problem string
	// Culprit is the call that was under way at the end of an incomplete probe, nil where there was none.
	Culprit *Culprit
	// Hung is true for a probe that had to be killed at its deadline: whatever blocks NVML blocks training too.
	Hung bool
	// Abandoned is not nil when not even SIGKILL ended the probe.
	Abandoned *Abandoned

	Fatal *Fatal // NVML as a whole cannot be used; nil where it can
	Sys   Sys
	Count int          // GPUs that NVML counts, lost ones included
	GPUs  []nvline.GPU // those that were asked, in NVML's order, which is PCI order
	NA    []NA         // what was not available, and why
	// Moments are the readings of each moment, by GPU; nil where none were asked for.
	Moments []Moment

	SMI     bool   // it was nvidia-smi that said this, which tells less
	Instead string // why it was not the probe
	NoSMI   bool   // the probe found no library, and there is no nvidia-smi either

	GoNVML string        // release of go-nvml that the probe was built with
	Via    string        // how the probe was run: "memfd", or the path of a file
	Took   time.Duration // from its start to its end or to its being given up
	Stderr string        // the beginning of what the probe and the driver's library wrote to standard error
}

// Moment is what the GPUs said within a few milliseconds of each other.
type Moment struct {
	At   time.Duration // since the first moment
	GPUs map[int]nvline.Sample
}

// Find returns what was said of the GPU at a PCI address, or with a UUID; nil where nothing was.
func (r *Report) Find(busID, uuid string) *nvline.GPU {
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if g.BDF != "" && g.BDF == strings.ToLower(busID) || g.UUID != "" && g.UUID == uuid {
			return g
		}
	}
	return nil
}

// Culprit is a call of NVML; GPU is its index there, or -1 for a call that is about no GPU.
type Culprit struct {
	Call string
	GPU  int
}

// String returns "nvmlInit_v2" or "nvmlDeviceGetHandleByIndex_v2 of GPU 3".
func (c Culprit) String() string {
	if c.GPU < 0 {
		return c.Call
	}
	return fmt.Sprintf("%s of GPU %d", c.Call, c.GPU)
}

// Abandoned is a probe that hangs in the kernel and was left behind.
type Abandoned struct {
	PID   int
	State string // "D" mostly
	Wchan string // the kernel function that it sleeps in, "" where unknown
}

// String returns "pid 123, state D in percpu_rwsem_wait".
func (a Abandoned) String() string {
	s := fmt.Sprintf("pid %d", a.PID)
	if a.State != "" {
		s += ", state " + a.State
	}
	if a.Wchan != "" {
		s += " in " + a.Wchan
	}
	return s
}

// Fatal says why NVML cannot be used.
type Fatal struct {
	Call string // "dlopen", "nvmlInit_v2"; "" where no call tells
	RC   int    // NVML's return code (nvline.LibraryNotFound and others), or 0
	Why  string
}

// String returns a sentence for people.
func (f Fatal) String() string {
	s := "cannot use NVML"
	if f.Call != "" {
		s += ": " + f.Call
	}
	if f.RC != 0 {
		s += ": " + codeText(f.RC)
	}
	if f.Why != "" {
		s += ": " + f.Why
	}
	return s
}

// codeText puts a return code of NVML into words, with its number.
func codeText(rc int) string {
	text, ok := map[int]string{
		nvline.NotSupported: "not supported", nvline.NoPermission: "no permission", nvline.DriverNotLoaded: "the driver is not loaded",
		nvline.LibraryNotFound: "the library was not found", nvline.NoFunction: "the library lacks the function",
		nvline.GPULost: "the GPU is lost (fell off the bus)", nvline.ResetRequired: "the GPU needs a reset",
		nvline.VersionMismatch: "driver and library differ: the node needs a reboot, or the container toolkit a restart",
		nvline.NotReady:        "not ready", nvline.Unknown: "unknown error",
	}[rc]
	if !ok {
		return fmt.Sprintf("return code %d", rc)
	}
	return fmt.Sprintf("%s (return code %d)", text, rc)
}

// Sys has the versions of the driver, of its library and of CUDA (1000·major + 10·minor); zero where not available.
type Sys struct {
	Driver, NVML string
	CUDA         int
}

// NA is a value that was not available. GPU is -1 for one that is about no GPU.
type NA struct {
	GPU   int
	Field string // as in package nvline's GPU
	Why   string
}

// Err returns nil for a complete report, and else an error that names the culprit.
func (r *Report) Err() error {
	if r.Complete {
		return nil
	}
	s := "the NVML probe " + r.Problem
	if r.SMI {
		s = SMI + " " + r.Problem
	}
	if r.Culprit != nil {
		s += fmt.Sprintf(" in %s", r.Culprit)
	}
	if r.Abandoned != nil {
		s += fmt.Sprintf("; SIGKILL does not end it (%s)", r.Abandoned)
	}
	return errors.New(s)
}

// Limits of what is taken from a probe. It is our own program; what it repeats comes from a library that may be broken.
const (
	maxGPUs = 1024 // NVML's own limits are lower
	maxText = 256  // bytes of any one text
)

// errForeign is returned by parse for the output of another program.
var errForeign = errors.New("is not muster's probe, or one of another version")

// parse reads what a probe wrote. It returns errForeign, and what is wrong with the first line, where another program
// wrote it. Report.Complete says whether the end is there; what a crash cut off in the middle of a line is dropped.
func parse(out []byte) (*Report, error) {
	r := &Report{}
	var at *Culprit
	done, greeted := false, false
	var bad *string // the first line that is not one of ours
	asked := map[int]bool{}
	for len(out) > 0 {
		line, rest, whole := bytes.Cut(out, []byte("\n"))
		out = rest
		if !whole {
			break
		}
		var tag struct {
			T string `json:"t"`
		}
		err := errors.New("no object")
		if bytes.HasPrefix(line, []byte("{")) { // dear, for two million lines of a flood
			err = json.Unmarshal(line, &tag)
		}
		if !greeted {
			var hello nvline.HelloLine
			if err != nil || tag.T != nvline.Hello || json.Unmarshal(line, &hello) != nil {
				return nil, fmt.Errorf("%w: it begins with %q", errForeign, clip(string(line)))
			}
			if hello.V != nvline.Version {
				return nil, fmt.Errorf("%w: it speaks version %d, and this muster version %d", errForeign, hello.V, nvline.Version)
			}
			greeted, r.GoNVML = true, clip(hello.GoNVML)
			continue
		}
		if err == nil && done {
			err = errors.New("after the end")
		}
		if err == nil {
			switch tag.T {
			case nvline.At:
				var l nvline.AtLine
				if err = json.Unmarshal(line, &l); err == nil {
					at = &Culprit{Call: clip(l.Call), GPU: l.GPU}
				}
			case nvline.Fatal:
				var l nvline.FatalLine
				if err = json.Unmarshal(line, &l); err == nil {
					r.Fatal = &Fatal{Call: clip(l.Call), RC: l.RC, Why: clip(l.Why)}
				}
			case nvline.Sys:
				var l nvline.SysLine
				if err = json.Unmarshal(line, &l); err == nil {
					r.Sys = Sys{Driver: clip(l.Driver), NVML: clip(l.NVML), CUDA: l.CUDA}
				}
			case nvline.Count:
				var l nvline.CountLine
				if err = json.Unmarshal(line, &l); err == nil {
					if l.N < 0 || l.N > maxGPUs {
						err = errors.New("no such number of GPUs")
					} else {
						r.Count = l.N
					}
				}
			case nvline.NA:
				var l nvline.NALine
				if err = json.Unmarshal(line, &l); err == nil {
					r.NA = append(r.NA, NA{GPU: l.GPU, Field: clip(l.Field), Why: clip(l.Why)})
				}
			case nvline.OfGPU:
				var l nvline.GPULine
				if err = json.Unmarshal(line, &l); err == nil {
					err = r.add(l.GPU, asked)
				}
			case nvline.Later:
				var l nvline.SampleLine
				if err = json.Unmarshal(line, &l); err == nil {
					err = r.later(l)
				}
			case nvline.Done:
				done = true
			default: // a newer probe's
			}
		}
		if err != nil && bad == nil {
			text := clip(string(line))
			bad = &text
		}
	}
	switch {
	case !greeted:
		return nil, fmt.Errorf("%w: it said nothing", errForeign)
	case bad != nil:
		r.Problem = fmt.Sprintf("wrote what is not in its language (%q)", *bad)
	case !done:
		r.Problem = "ended early"
	case r.Fatal == nil && len(r.GPUs) != r.Count:
		r.Problem = fmt.Sprintf("described %d of %d GPUs", len(r.GPUs), r.Count)
	default:
		r.Complete = true
	}
	if !r.Complete {
		r.Culprit = at
	}
	return r, nil
}

// add takes a GPU over, its texts made safe to show. asked has the indexes that came before.
func (r *Report) add(g nvline.GPU, asked map[int]bool) error {
	if g.Index < 0 || g.Index >= r.Count {
		return fmt.Errorf("GPU %d of %d", g.Index, r.Count)
	}
	if asked[g.Index] {
		return fmt.Errorf("GPU %d twice", g.Index)
	}
	if len(g.NVLink) > maxGPUs {
		return fmt.Errorf("GPU %d has %d links", g.Index, len(g.NVLink))
	}
	asked[g.Index] = true
	for _, s := range []*string{&g.UUID, &g.Name, &g.BDF, &g.Call} {
		*s = clip(*s)
	}
	r.GPUs = append(r.GPUs, g)
	return nil
}

// maxMoments bounds what is kept; the probe takes fewer.
const maxMoments = 64

// later takes a reading over. A moment ends where a GPU comes up again.
func (r *Report) later(l nvline.SampleLine) error {
	if l.GPU < 0 || l.GPU >= r.Count || l.MS < 0 {
		return fmt.Errorf("a reading of GPU %d of %d", l.GPU, r.Count)
	}
	n := len(r.Moments)
	again := n == 0
	if n > 0 {
		_, again = r.Moments[n-1].GPUs[l.GPU]
	}
	if again {
		if n == maxMoments {
			return fmt.Errorf("more than %d readings", maxMoments)
		}
		r.Moments = append(r.Moments, Moment{At: time.Duration(l.MS) * time.Millisecond, GPUs: map[int]nvline.Sample{}})
		n++
	}
	r.Moments[n-1].GPUs[l.GPU] = l.Sample
	return nil
}

// clip makes a text from outside short and safe to show.
func clip(s string) string { return printable.Line(s, maxText) }
