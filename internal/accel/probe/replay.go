package probe

import (
	"errors"
	"syscall"

	"muster/internal/accel/nvline"
	"muster/internal/proc"
)

// fakePID is above the numbers that Linux gives.
const fakePID = 1<<22 + 1

// Replay reads what a fake says in the probe's place. All that becomes of a real probe's words becomes of these.
func Replay(s nvline.Script, o Options) (*Report, error) {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout(o.GPUs)
	}
	c, err := confined(s)
	if err != nil {
		return nil, err
	}
	r, err := parse(c.Stdout)
	if err != nil {
		return nil, err
	}
	r.Via = "fake"
	r.NoSMI = r.Fatal != nil && r.Fatal.RC == nvline.LibraryNotFound // nor has a fake an nvidia-smi
	r.end(c, o.Timeout)
	return r, nil
}

// confined is what would have become of the probe that a fake stands for; an error where it has none.
func confined(s nvline.Script) (proc.Confined, error) {
	c := proc.Confined{Stdout: s.Lines}
	switch s.End {
	case nvline.EndWell:
	case nvline.EndHung:
		c.TimedOut = true
	case nvline.EndStuck:
		c.PID = fakePID
		c.TimedOut, c.Abandoned = true, &proc.Abandoned{State: "D", Wchan: "nvidia_ioctl"}
	case nvline.EndCrashed:
		c.Exit = proc.Exit{Code: -1, Signal: syscall.SIGABRT}
	case nvline.EndNone:
		return c, unavailable("the fake has none")
	default:
		return c, errors.New("internal error: a script that ends as " + s.End)
	}
	return c, nil
}
