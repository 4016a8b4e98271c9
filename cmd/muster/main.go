// Command muster launches distributed training on this machine in place of torchrun and its relatives.
package main

import (
	"os"

	"muster/internal/onpath"
	"muster/internal/proc"
)

// version is set by the linker; see the Makefile.
var version = ""

// guardianArg is the argument with which muster starts itself as a guardian, salvageArg that with which the guardian
// starts it to save what a killed agent has left in memory.
const (
	guardianArg = "_guardian"
	salvageArg  = "_salvage"
)

func main() { os.Exit(run()) }

// run is main for people and for tests.
func run() int {
	if len(os.Args) > 1 && os.Args[1] == guardianArg {
		return proc.RunGuardian() // before anything that costs time or memory
	}
	a := newApp(os.Environ(), os.Stdin, os.Stdout, os.Stderr, "")
	a.argv, a.version = os.Args, onpath.Version(version)
	if len(os.Args) == 5 && os.Args[1] == salvageArg {
		a.console.Format = os.Args[2]
		return a.salvage(os.Args[3], os.Args[4])
	}
	return a.run()
}
