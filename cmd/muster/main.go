// Command muster launches distributed training on this machine in place of torchrun and its relatives.
package main

import (
	"os"

	"muster/internal/proc"
)

// version is set by the linker; see the Makefile.
var version = ""

// guardianArg is the argument with which muster starts itself as a guardian.
const guardianArg = "_guardian"

func main() { os.Exit(run()) }

// run is main for people and for tests.
func run() int {
	if len(os.Args) > 1 && os.Args[1] == guardianArg {
		return proc.RunGuardian() // before anything that costs time or memory
	}
	return (&app{
		argv: os.Args, environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		version: buildVersion(version),
	}).run()
}
