// Command muster launches distributed training on this machine in place of torchrun and its relatives.
package main

import (
	"os"
	"runtime/debug"
	"time"

	"muster/cmd/here"
	"muster/internal/onpath"
	"muster/internal/proc"
)

// version is set by the linker; see the Makefile.
var version = ""

// collectLater has no garbage collected before the workers of a job have started: there is hardly any by then, and each
// collection takes the processors from them. A user who has set how garbage is collected gets that.
func collectLater() {
	const (
		later = 200 * time.Millisecond
		most  = 64 << 20 // of memory without a collection
	)
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if _, set := os.LookupEnv(name); set {
			return
		}
	}
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(most)
	time.AfterFunc(later, func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	})
}

func main() { os.Exit(run()) }

// run is main for people and for tests.
func run() int {
	if len(os.Args) > 1 && os.Args[1] == here.GuardianArg {
		return proc.RunGuardian() // before anything that costs time or memory
	}
	collectLater()
	a := newApp(os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	a.argv, a.version = os.Args, onpath.Version(version)
	if len(os.Args) == 5 && os.Args[1] == here.SalvageArg {
		a.console.Format = os.Args[2]
		return a.salvage(os.Args[3], os.Args[4])
	}
	return a.run()
}
