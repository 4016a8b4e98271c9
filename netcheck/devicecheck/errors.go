package devicecheck

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-multierror"

	"muster/internal/proc"
)

// Cause says what kind of failure a DeviceError is.
type Cause string

// The causes. Where several processes of a program failed together, the first of them in this order is told: those
// further down may be consequences of those further up.
const (
	NotStarted Cause = "not-started" // the interpreter could not be executed
	NoTorch    Cause = "no-torch"    // it has no torch: nothing can be tested
	NoDevice   Cause = "no-device"   // torch finds no accelerator, where links between such are to be tested
	Import     Cause = "import"      // it has a torch that does not work
	Died       Cause = "died"        // the process ended; Exit tells how
	Hung       Cause = "hung"        // it did not answer in time and was killed
	Garbled    Cause = "garbled"     // it said what the program does not say
	Data       Cause = "data"        // it computed or was sent wrong numbers
	Failed     Cause = "error"       // an exception in the test
	Store      Cause = "store"       // the store of the group could not be reached
	Comm       Cause = "comm"        // an exception in a collective: of this device, of another one, or of what is between
	Peer       Cause = "peer"        // another device failed or did not come
)

var causes = []Cause{NotStarted, NoTorch, NoDevice, Import, Died, Hung, Garbled, Data, Failed, Store, Comm, Peer}

// ErrNoTorch is what a DeviceError is, by errors.Is, where the interpreter has no torch. Such a node was not tested.
var ErrNoTorch = errors.New("there is no torch in the interpreter")

// DeviceError is why a device failed in a test.
type DeviceError struct {
	Local int    // rank; -1: the process that tests links
	Stage string // of the check: "local", "pair", ...
	Step  string // of the stage, in the program's words; "" before its first
	Cause Cause
	Text  string
	// Exit is how the process ended, where the cause is Died.
	Exit proc.Exit
	// Output is the last lines that it printed.
	Output []string

	told bool // by the program, to the rest of its group as well
}

// maxOutput is how many lines of output an error keeps.
const maxOutput = 20

// Error names device, stage, step and cause in one line; the last line printed is part of it where nothing tells more.
func (e *DeviceError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "device %d failed in the %s test", e.Local, e.Stage)
	if e.Local < 0 {
		b.Reset()
		fmt.Fprintf(&b, "the %s test failed", e.Stage)
	}
	if e.Step != "" {
		fmt.Fprintf(&b, " (%s)", e.Step)
	}
	fmt.Fprintf(&b, ": %s", e.Text)
	if e.Cause == Died && len(e.Output) > 0 {
		fmt.Fprintf(&b, "; it printed %q", e.Output[len(e.Output)-1])
	}
	return b.String()
}

// Is makes errors.Is(err, ErrNoTorch) true where that is the cause.
func (e *DeviceError) Is(target error) bool { return target == ErrNoTorch && e.Cause == NoTorch }

// HasNoDevice reports that a test failed because this node has no accelerator.
func HasNoDevice(err error) bool {
	fault, ok := errors.AsType[*DeviceError](err)
	return ok && fault.Cause == NoDevice
}

// all returns every failure, in order of local rank: those of devices that were tested one by one.
func all(out []outcome) error {
	merr := &multierror.Error{ErrorFormat: oneLine}
	for _, o := range out {
		if o.err != nil {
			merr = multierror.Append(merr, o.err)
		}
	}
	return merr.ErrorOrNil()
}

// oneLine is for errors that stand in a line of a log and in a table.
func oneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// first returns the failure that is nearest to the root of all of them: those of devices that were tested together.
func first(out []outcome) error {
	for _, cause := range causes {
		for _, o := range out {
			if o.err != nil && o.err.Cause == cause {
				return o.err
			}
		}
	}
	return nil
}

// known returns the cause that the program named, Garbled where it is none that a program may name.
func known(kind string) Cause {
	switch c := Cause(kind); c {
	case NoTorch, NoDevice, Import, Data, Failed, Store, Comm, Peer:
		return c
	default:
		return Garbled
	}
}
