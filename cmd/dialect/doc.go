// Package dialect reads the command lines of the launchers that muster replaces, and muster's own, and makes a
// job.Job of them.
//
// Everything here is pure: argv and environment come in an Invocation, files are read through its ReadFile and Machine
// only, and the same input always gives the same Request. The package does not look at the machine (whether a script
// exists, how many accelerators there are, whether a port is free), starts nothing and prints nothing; cmd/muster does.
//
// Each dialect keeps the spelling, the abbreviations and the environment variables of the program it replaces, down to
// what Python's argparse makes of odd argument lists. What muster cannot do is refused with status 2 and the flag's
// name, never ignored silently. What is ignored harmlessly becomes a line in Job.Warnings.
package dialect

import (
	"io/fs"

	"muster/cmd/dialect/jobfile"
	"muster/internal/platform"
	"muster/launch/job"
)

// Invocation is one command line with its surroundings.
type Invocation struct {
	// Argv0 is the name the program was called by, argv[0] as the kernel gave it. It matters when muster was called
	// through a link that lies beside a Python interpreter, such as venv/bin/torchrun.
	Argv0 string
	// Args is what follows the dialect's name.
	Args []string
	// Environ is the environment as "NAME=VALUE"; of several entries with one name the first counts, as in C.
	Environ []string
	// ReadFile reads the file of --config; nil refuses such files.
	ReadFile func(name string) ([]byte, error)
	// ReadDir reads the names in a directory, of a Secret; nil: there are none.
	ReadDir func(name string) ([]string, error)
	// JobNameFlag is what chooses a job of a file by its name; empty: --name.
	JobNameFlag string
	// Explain asks for a request that tells what is missing for a start, where it can.
	Explain bool
	// Machine is what a platform is recognised by beside the environment: files by their paths from the root, the host
	// name, and an address of this machine. The zero value has none of them.
	Machine Machine
	// Dir is the working directory; empty stands for wherever muster runs.
	Dir string
	// Own are muster's own flags given in front of the dialect's name, from ParseOwn.
	Own Own
}

// Machine is what may be looked at on this machine to tell the platform, as platform.Input has it, and how many workers
// to start where a launcher starts one per accelerator unless there is none.
type Machine struct {
	Files    fs.FS
	Hostname string
	OwnAddr  func() string
	// Accelerators counts those that workers see, and has PyTorch's name for such devices, "" for none. fake is the
	// path of the spec of a fake accelerator that was asked for, empty for the real machine.
	Accelerators func(fake string) (backend string, n int)
	// FreePort finds a port at which nothing listens; nil: there is none to be found.
	FreePort func() (int, error)
	// Stat looks at a file, as os.Stat does; nil: nobody looks.
	Stat func(name string) (fs.FileInfo, error)
}

// Request is what a command line asks for: a job, and what to do with it.
type Request struct {
	Job job.Job
	// DryRun asks to show what would be done and to start nothing.
	DryRun bool
	// ShowValues asks for values that may be secrets in what DryRun shows.
	ShowValues bool
	// All asks to show the flags that have their defaults, too.
	All bool
	// JSON asks for output that a machine reads.
	JSON bool
	// LogLevel is how much muster itself says on standard error: debug, info, warn or error.
	LogLevel string
	// LogFormat is the form in which it says so: one of logtext.Formats.
	LogFormat string
	// SimulateNodes is how many nodes of the job are to run on this machine, each with an agent of its own; 0 for none
	// but this one. The job is one of several nodes then, and has no endpoints unless the user named a meeting place.
	SimulateNodes int
	// File is the job file that the job is of, nil for none; Placed says what each of its nodes runs, and where, and
	// Reached what hosts a launcher among them reaches. MadeUp is the spec of fake accelerators for a rehearsal of it,
	// empty for none.
	File            *jobfile.File
	Placed, Reached []PlacedNode
	MadeUp          string
	// Shown are the words of the job's command as they may be shown, of a file whose Secrets have their texts in it; nil: as
	// they are.
	Shown []string
	// SavePID asks for a file /tmp/<our process id>.deepspeed with our process id while the job runs.
	SavePID bool
	// Horovod is what horovodrun was asked beside the job; nil in other dialects.
	Horovod *HorovodRequest
	// Platform is what was found of the platform that started this process; nil where none was looked for, or found.
	Platform *platform.Facts
	// Settings are all flags of the dialect and of muster with their values and where each came from, in the order of
	// the help text.
	Settings []Setting
}

// HelpError says that the command line asks for a text and not for a job. It is an error so that no caller takes the
// empty Request for a job; it carries exit status 0.
type HelpError struct {
	// Text belongs on standard output and ends with a newline.
	Text string
}

func (e *HelpError) Error() string { return "this command line asks for a text, not for a job" }
