// Command elfcheck fails unless every file named is a static ELF executable: no interpreter (PT_INTERP) and no needed
// library (DT_NEEDED). Such a file starts in an empty container, whatever C library the host has or lacks.
package main

import (
	"debug/elf"
	"fmt"
	"log"
	"os"
	"slices"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("elfcheck: ")
	if len(os.Args) < 2 {
		log.Fatal("usage: elfcheck FILE...")
	}
	for _, path := range os.Args[1:] {
		machine, err := check(path)
		if err != nil {
			log.Fatalf("%s: %v", path, err)
		}
		log.Printf("%s: static, %v", path, machine)
	}
}

// check returns the machine that the executable at path is for, and an error where it is not static.
func check(path string) (elf.Machine, error) {
	f, err := elf.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return 0, fmt.Errorf("is %v, not an executable", f.Type)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return 0, fmt.Errorf("has an ELF interpreter, so it is not static")
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		return 0, fmt.Errorf("cannot read its needed libraries: %w", err)
	}
	if len(libs) > 0 {
		return 0, fmt.Errorf("needs %v, so it is not static", libs)
	}
	return f.Machine, nil
}
