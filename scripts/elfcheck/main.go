// Command elfcheck fails unless every file named is a static ELF executable: no interpreter (PT_INTERP) and no needed
// library (DT_NEEDED). Such a file starts in an empty container, whatever C library the host has or lacks.
//
// With -probe as first argument it fails unless every file is a dynamic executable that binds its symbols when they are
// called (no -z now), and asks for no version of glibc above 2.17: the NVML probe.
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
	if os.Args[1] == "-probe" {
		for _, path := range os.Args[2:] {
			if err := checkProbe(path); err != nil {
				log.Fatalf("%s: %v", path, err)
			}
			log.Printf("%s: dynamic, binds late, glibc %d.%d will do", path, newest[0], newest[1])
		}
		return
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

// newest is the glibc that a probe may ask for: the first one that every distribution in use has, and the first for
// arm64.
var newest = [2]int{2, 17}

func checkProbe(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("has no ELF interpreter: a static program cannot load NVML")
	}
	for tag, bit := range map[elf.DynTag]uint64{
		elf.DT_BIND_NOW: ^uint64(0), elf.DT_FLAGS: uint64(elf.DF_BIND_NOW),
		elf.DT_FLAGS_1: uint64(elf.DF_1_NOW),
	} {
		values, err := f.DynValue(tag)
		if err != nil {
			return fmt.Errorf("cannot read its dynamic section: %w", err)
		}
		if slices.ContainsFunc(values, func(v uint64) bool { return tag == elf.DT_BIND_NOW || v&bit != 0 }) {
			return fmt.Errorf("binds all symbols at the start (%v): it would not start, NVML's are undefined", tag)
		}
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return fmt.Errorf("cannot read its symbols: %w", err)
	}
	for _, s := range symbols {
		var v [2]int
		if n, _ := fmt.Sscanf(s.Version, "GLIBC_%d.%d", &v[0], &v[1]); n == 2 && slices.Compare(v[:], newest[:]) > 0 {
			return fmt.Errorf("needs %s of %s", s.Name, s.Version)
		}
	}
	return nil
}
