package python

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

//go:embed stacks/sitecustomize.py
var stacks []byte

// StacksSignal has a Python process that InstallStacks has reached write the stacks of its threads. StacksFile is what
// the name of the file in memory that it writes to begins with; the process id follows, as the process itself sees it.
const (
	StacksSignal syscall.Signal = 57
	StacksFile                  = "/memfd:muster-stacks-"
	// FlightFile is what the name of the file in memory begins with that a process writes to what PyTorch's Flight
	// Recorder knows, when a byte is written into its pipe: the process id follows, a dash, and the pipe's descriptor.
	// What is written is a length of 8 bytes, the least first, and so many bytes: pickles, each behind its own length.
	FlightFile = "/memfd:muster-flight-"
	// MarksFile is the same for what tells a program that gets somewhere: MarksSize bytes, numbers of 8 bytes, the least byte first. They
	// are how often it has answered, whether it uses a device (1), how often it has taken memory there or replayed a graph, how many
	// collectives it has begun, and a number for the place where its main thread is.
	MarksFile = "/memfd:muster-marks-"
	MarksSize = 40
	// AskFlight is the byte that asks for what stands in FlightFile.
	AskFlight = 1
	// AskMarks is the byte that asks for what stands in MarksFile.
	AskMarks = 2
)

// InstallStacks writes what has Python answer to StacksSignal to dir, which it makes. dir then belongs on Python's
// path, behind the user's own entries.
func InstallStacks(dir string) error {
	if strings.Contains(dir, ":") {
		return fmt.Errorf("cannot put %q on Python's path: it contains a colon", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "sitecustomize.py"), stacks, 0o600)
}
