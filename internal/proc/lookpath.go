package proc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// defaultPath is searched when the environment has no PATH, as by glibc's execvp and Python's os.defpath.
const defaultPath = "/bin:/usr/bin"

// LookPath finds what execvp would execute for file in directory dir (empty: ours) with the PATH of env, the worker's
// environment, not ours. A relative result counts from dir. Errors have status 127 when there is no such command and
// 126 when the kernel would not execute it, and a hint; what can be seen before the start is refused before anything is
// started.
func LookPath(file, dir string, env []string) (string, error) {
	if file == "" {
		return "", errhint.Code(errors.New("cannot execute a command with an empty name"), errhint.NotFound)
	}
	if strings.Contains(file, "/") {
		if err := checkExecutable(file, dir); err != nil {
			return "", err
		}
		return file, nil
	}
	path, given := lookEnv(env, "PATH")
	if !given {
		path = defaultPath
	}
	var denied error
	for elem := range strings.SplitSeq(path, ":") {
		if elem == "" {
			elem = "."
		}
		candidate := elem + "/" + file
		var st unix.Stat_t
		if unix.Stat(within(candidate, dir), &st) != nil {
			continue
		}
		err := checkExecutable(candidate, dir)
		if err == nil {
			return candidate, nil
		}
		if denied == nil {
			denied = err // execvp goes on after EACCES, and reports it when nothing better comes
		}
	}
	if denied != nil {
		return "", denied
	}
	hint := "the worker's PATH is " + path
	if !given {
		hint = "the worker's environment has no PATH, so only " + defaultPath + " was searched"
	}
	at := within(file, dir)
	if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() {
		hint = fmt.Sprintf("there is a file of this name in the working directory; try %s", shellescape.Quote("./"+file))
		if strings.HasSuffix(file, ".py") && unix.Faccessat(unix.AT_FDCWD, at, unix.X_OK, unix.AT_EACCESS) != nil {
			hint = pythonHint(file, at)
		}
	}
	return "", errhint.Code(errhint.With(fmt.Errorf("cannot find the command %q", file), hint), errhint.NotFound)
}

// lookEnv returns the value of name in env; the last entry wins, as in the environment the worker gets.
func lookEnv(env []string, name string) (string, bool) {
	for _, entry := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// within returns where a path that counts from dir is for us.
func within(path, dir string) string {
	if filepath.IsAbs(path) || dir == "" {
		return path
	}
	return filepath.Join(dir, path)
}

// pythonHint is what to do about a Python script in place of a command: right in every launcher's command line, as not each
// has a flag that says what is a script.
func pythonHint(path, at string) string {
	return fmt.Sprintf("a Python script needs its interpreter: give python %s as the command, or make it executable with chmod +x %s",
		shellescape.Quote(path), shellescape.Quote(at))
}

func notExecutable(hint, format string, args ...any) error {
	return errhint.Code(errhint.With(fmt.Errorf(format, args...), hint), errhint.NotExecuted)
}

// checkExecutable returns why the kernel would refuse to execute path, or nil where it knows no reason. It judges the
// file that a #! line names as well.
func checkExecutable(path, dir string) error {
	at := within(path, dir)
	st, err := os.Stat(at)
	switch {
	case errors.Is(err, os.ErrNotExist):
		err := fmt.Errorf("cannot execute %q: no such file", path)
		hint := "check the path"
		if !filepath.IsAbs(path) {
			where := dir
			if where == "" {
				where, _ = os.Getwd()
			}
			hint = fmt.Sprintf("the path counts from the working directory %s", where)
		}
		return errhint.Code(errhint.With(err, hint), errhint.NotFound)
	case errors.Is(err, unix.ENOTDIR):
		return errhint.Code(errhint.With(fmt.Errorf("cannot execute %q: a part of its path is no directory", path), "check the path"),
			errhint.NotFound)
	case err != nil:
		return notExecutable("check the permissions of the directories above it", "cannot execute %q: %w", path, errors.Unwrap(err))
	case st.IsDir():
		return notExecutable("name a file in it; a Python package is started with -m", "cannot execute %q: it is a directory", path)
	case !st.Mode().IsRegular():
		return notExecutable("name a program or a script", "cannot execute %q: it is no ordinary file", path)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, at, unix.X_OK, unix.AT_EACCESS); err != nil {
		hint := "make it executable: chmod +x " + shellescape.Quote(at)
		var fs unix.Statfs_t
		if unix.Statfs(at, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0 {
			hint = "its file system is mounted with noexec; move it, or name the interpreter"
		} else if strings.HasSuffix(path, ".py") {
			hint = pythonHint(path, at)
		}
		return notExecutable(hint, "cannot execute %q: %w", path, err)
	}
	f, err := os.Open(at)
	if err != nil {
		return nil // a program that can be executed and not read is fine
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 256) // what the kernel looks at, BINPRM_BUF_SIZE
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return notExecutable("", "cannot execute %q: %w", path, err)
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("#!")):
		return checkScript(path, dir, head[2:])
	case bytes.HasPrefix(head, []byte("\x7fELF")):
		return checkELF(path, f, head)
	case foreignFormats():
		return nil // somebody else may know what this is
	case n == 0:
		return notExecutable("was it written completely?", "cannot execute %q: it is empty", path)
	default:
		return notExecutable("begin a script with a line that names its interpreter, for example #!/bin/sh or #!/usr/bin/env python3",
			"cannot execute %q: it is neither a program nor a script with a #! line", path)
	}
}

// checkScript judges the interpreter line of a script.
func checkScript(path, dir string, line []byte) error {
	line, _, _ = bytes.Cut(line, []byte("\n"))
	crlf := bytes.HasSuffix(line, []byte("\r"))
	fields := bytes.Fields(line)
	if len(fields) == 0 {
		return notExecutable("for example #!/bin/sh", "cannot execute %q: its #! line names no interpreter", path)
	}
	// The kernel splits at blanks only: a carriage return is a part of the name, or of the argument.
	interp := string(fields[0])
	if crlf {
		err := fmt.Errorf("cannot execute %q: its #! line ends with a carriage return", path)
		if len(fields) > 1 {
			interp = string(fields[1])
		}
		return errhint.Code(errhint.With(err,
			fmt.Sprintf("the file has line ends of Windows, so that %q with an invisible character is looked for; "+
				"try: sed -i 's/\\r$//' %s", filepath.Base(interp), path)), errhint.NotExecuted)
	}
	st, err := os.Stat(within(interp, dir))
	switch {
	case err != nil:
		return notExecutable("install it, or correct the first line of the script", "cannot execute %q: its interpreter %q cannot be found",
			path, interp)
	case st.IsDir():
		return notExecutable("correct the first line of the script", "cannot execute %q: its interpreter %q is a directory", path, interp)
	case unix.Faccessat(unix.AT_FDCWD, within(interp, dir), unix.X_OK, unix.AT_EACCESS) != nil:
		return notExecutable("correct the first line of the script, or make the interpreter executable",
			"cannot execute %q: its interpreter %q is not executable", path, interp)
	}
	return nil
}

// ELF machine numbers, from the System V ABI's registry.
var elfMachines = map[uint16]string{
	3: "x86 (32 bits)", 20: "PowerPC", 21: "POWER (64 bits)", 22: "S/390", 40: "ARM (32 bits)",
	62: "x86-64", 183: "ARM (64 bits)", 243: "RISC-V", 258: "LoongArch",
}

// checkELF judges what a program was built for, and the dynamic loader that it asks for.
func checkELF(path string, f io.ReaderAt, head []byte) error {
	if len(head) < 64 {
		return notExecutable("was it copied completely?", "cannot execute %q: the program is cut off after %d bytes", path, len(head))
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[5] == 2 {
		order = binary.BigEndian
	}
	machine := order.Uint16(head[18:])
	native := map[string][]uint16{"amd64": {62, 3}, "arm64": {183, 40}}[runtime.GOARCH]
	known := len(native) == 0
	for _, m := range native {
		known = known || m == machine
	}
	if !known {
		if foreignFormats() {
			return nil
		}
		name := elfMachines[machine]
		if name == "" {
			name = fmt.Sprintf("machine %d", machine)
		}
		return notExecutable("take the build for this machine", "cannot execute %q: it is a program for %s, and this machine is %s", path,
			name, runtime.GOARCH)
	}
	if head[4] != 2 { // 64-bit layout below
		return nil
	}
	const ptInterp = 3
	at, size, count := int64(order.Uint64(head[32:])), int64(order.Uint16(head[54:])), int64(order.Uint16(head[56:]))
	ph := make([]byte, 56)
	for i := range count {
		if _, err := f.ReadAt(ph, at+i*size); err != nil {
			return notExecutable("was it copied completely?", "cannot execute %q: the program is cut off", path)
		}
		if order.Uint32(ph) != ptInterp {
			continue
		}
		name := make([]byte, min(order.Uint64(ph[32:]), 4096))
		if _, err := f.ReadAt(name, int64(order.Uint64(ph[8:]))); err != nil {
			return notExecutable("was it copied completely?", "cannot execute %q: the program is cut off", path)
		}
		loader := string(bytes.TrimRight(name, "\x00"))
		if _, err := os.Stat(loader); err != nil {
			return notExecutable("it was built for another Linux (glibc or musl); install that loader, or take another build",
				"cannot execute %q: its dynamic loader %q cannot be found", path, loader)
		}
	}
	return nil
}

// foreignFormats reports whether binfmt_misc has handlers (qemu, wine, ...), so that the kernel may execute files that
// it does not know itself.
func foreignFormats() bool {
	entries, err := os.ReadDir("/proc/sys/fs/binfmt_misc")
	return err == nil && len(entries) > 2 // register and status are always there
}
