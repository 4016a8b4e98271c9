package proc_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/proc"
)

func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	foreign := bytes.Clone(self[:4096])
	binary.LittleEndian.PutUint16(foreign[18:], 22) // S/390

	write("bin/ok", 0o755, "#!/bin/sh\nexit 0\n")
	write("bin/env", 0o755, "#! /usr/bin/env python3\n")
	write("bin/denied", 0o644, "#!/bin/sh\n")
	write("later/denied", 0o755, "#!/bin/sh\n")
	write("bin/only-denied", 0o644, "#!/bin/sh\n")
	write("bin/dir/file", 0o644, "")
	write("bin/crlf", 0o755, "#!/bin/sh\r\nexit 0\r\n")
	write("bin/crlfarg", 0o755, "#!/usr/bin/env python3\r\n")
	write("bin/noint", 0o755, "#!/no/such/python3\n")
	write("bin/intdir", 0o755, "#!/usr/bin\n")
	write("bin/intdenied", 0o755, "#!/etc/passwd\n")
	write("bin/bare", 0o755, "#!\n")
	write("bin/text", 0o755, "print('hello')\n")
	write("bin/empty", 0o755, "")
	write("bin/foreign", 0o755, string(foreign))
	write("bin/cut", 0o755, "\x7fELF")
	write("script.py", 0o644, "print('hello')\n")
	write("here", 0o755, "#!/bin/sh\n")
	write("my here", 0o644, "#!/bin/sh\n")
	write("my script.py", 0o644, "print('hello')\n")
	write("here.py", 0o755, "#!/usr/bin/env python3\n")
	if err := unix.Mkfifo(filepath.Join(dir, "bin/fifo"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=/nowhere", "PATH=" + filepath.Join(dir, "bin") + ":" + filepath.Join(dir, "later")}

	for _, c := range []struct{ file, want string }{
		{"ok", dir + "/bin/ok"},
		{"env", dir + "/bin/env"},
		{"denied", dir + "/later/denied"}, // the search goes on after what cannot be executed
		{"./here", "./here"},
		{"bin/ok", "bin/ok"},
		{dir + "/here", dir + "/here"},
		{"/proc/self/exe", "/proc/self/exe"},
	} {
		if got, err := proc.LookPath(c.file, dir, env); got != c.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", c.file, got, err, c.want)
		}
	}
	if got, err := proc.LookPath("here", dir, []string{"PATH=/nowhere:"}); got != "./here" || err != nil {
		t.Errorf("an empty element is the working directory: %q, %v", got, err)
	}
	if got, err := proc.LookPath("sh", dir, nil); got != "/bin/sh" || err != nil {
		t.Errorf("without PATH: %q, %v", got, err)
	}

	for _, c := range []struct {
		file       string
		code       int
		text, hint string
	}{
		{"", errhint.NotFound, "empty name", ""},
		{"nope", errhint.NotFound, `cannot find the command "nope"`, "PATH is"},
		{"here", errhint.NotFound, `cannot find the command "here"`, "./here"},
		{"./nope", errhint.NotFound, "no such file", dir},
		{"/nope", errhint.NotFound, "no such file", "path"},
		{"./here/x", errhint.NotFound, "no directory", "path"},
		{"only-denied", errhint.NotExecuted, "permission denied", "chmod +x " + dir + "/bin/only-denied"},
		{"./script.py", errhint.NotExecuted, "permission denied", "give python ./script.py as the command, or make it executable"},
		{"script.py", errhint.NotFound, `cannot find the command "script.py"`, "give python script.py as the command"},
		{"here.py", errhint.NotFound, `cannot find the command "here.py"`, "try ./here.py"},
		{"my here", errhint.NotFound, `cannot find the command "my here"`, "try './my here'"},
		{"./my here", errhint.NotExecuted, "permission denied", "chmod +x '" + dir + "/my here'"},
		{"./my script.py", errhint.NotExecuted, "permission denied", "give python './my script.py' as the command"},
		{"dir", errhint.NotExecuted, "directory", "-m"},
		{"fifo", errhint.NotExecuted, "no ordinary file", ""},
		{"crlf", errhint.NotExecuted, "carriage return", `"sh"`},
		{"crlfarg", errhint.NotExecuted, "carriage return", `"python3"`},
		{"noint", errhint.NotExecuted, `"/no/such/python3" cannot be found`, "first line"},
		{"intdir", errhint.NotExecuted, "is a directory", "first line"},
		{"intdenied", errhint.NotExecuted, "not executable", "first line"},
		{"bare", errhint.NotExecuted, "no interpreter", "#!/bin/sh"},
		{"text", errhint.NotExecuted, "neither a program nor a script", "#!/usr/bin/env python3"},
		{"empty", errhint.NotExecuted, "empty", "completely"},
		{"foreign", errhint.NotExecuted, "program for S/390", "this machine"},
		{"cut", errhint.NotExecuted, "cut off", "completely"},
	} {
		got, err := proc.LookPath(c.file, dir, env)
		if err == nil || got != "" {
			t.Errorf("%q: found %q", c.file, got)
			continue
		}
		if errhint.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) || !strings.Contains(errhint.Of(err), c.hint) {
			t.Errorf("%q: status %d, %q, hint %q; want %d, %q, %q", c.file, errhint.CodeOf(err), err, errhint.Of(err), c.code,
				c.text, c.hint)
		}
	}
}

func TestMissingDynamicLoader(t *testing.T) {
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	loader := "/lib/ld-musl-nowhere.so.1"
	b := make([]byte, 64+56, 256)
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(b[18:], machine)
	binary.LittleEndian.PutUint64(b[32:], 64) // program headers right after this one
	binary.LittleEndian.PutUint16(b[54:], 56)
	binary.LittleEndian.PutUint16(b[56:], 1)
	binary.LittleEndian.PutUint32(b[64:], 3) // PT_INTERP
	binary.LittleEndian.PutUint64(b[64+8:], uint64(len(b)))
	binary.LittleEndian.PutUint64(b[64+32:], uint64(len(loader)+1))
	b = append(append(b, loader...), 0)
	err := proc.CheckELF("x", bytes.NewReader(b), b)
	if err == nil || !strings.Contains(err.Error(), loader) || errhint.CodeOf(err) != errhint.NotExecuted {
		t.Errorf("error %v, want one naming %s", err, loader)
	}
	if err := proc.CheckELF("x", bytes.NewReader(b[:len(b)-9]), b); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("truncated: %v", err)
	}
	binary.LittleEndian.PutUint64(b[64+32:], 1<<63) // a length from the file is bounded before it is used
	if err := proc.CheckELF("x", bytes.NewReader(b), b); err == nil {
		t.Error("no error for an absurd length")
	}
}

func TestStartErrors(t *testing.T) {
	tree := openTree(t, proc.Config{})
	dir := t.TempDir()
	script := filepath.Join(dir, "crlf")
	if err := os.WriteFile(script, []byte("#!/bin/sh\r\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		spec proc.Spec
		code int
		text string
	}{
		{"missing", proc.Spec{Path: "/no/such"}, errhint.NotFound, `cannot start rank 3: cannot execute "/no/such": no such file`},
		{"missing relative to dir", proc.Spec{Path: "./sh", Dir: dir}, errhint.NotFound, "no such file"},
		{"directory", proc.Spec{Path: "/bin"}, errhint.NotExecuted, "it is a directory"},
		{"carriage return", proc.Spec{Path: script}, errhint.NotExecuted, "carriage return"},
		{"working directory missing", proc.Spec{Path: "/bin/sh", Dir: dir + "/no"}, errhint.NotExecuted, "working directory"},
		{"working directory is a file", proc.Spec{Path: "/bin/sh", Dir: script}, errhint.NotExecuted, "is not a directory"},
		{
			"too large",
			proc.Spec{Path: "/bin/sh", Args: []string{"sh", strings.Repeat("x", 1<<18)}},
			errhint.NotExecuted,
			"argument list too long",
		},
		{"NUL", proc.Spec{Path: "/bin/sh\x00"}, errhint.Internal, "invalid argument"},
	} {
		c.spec.Label = "rank 3"
		p, err := tree.Start(c.spec)
		if err == nil {
			t.Errorf("%s: it started: %v", c.name, p.Exit())
			continue
		}
		if errhint.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) ||
			!strings.HasPrefix(err.Error(), "cannot start rank 3") {
			t.Errorf("%s: status %d, %q; want %d, %q", c.name, errhint.CodeOf(err), err, c.code, c.text)
		}
	}
	if p, err := tree.Start(proc.Spec{Path: "bin/true", Dir: "/usr"}); err != nil {
		t.Errorf("a relative path counts from Dir: %v", err)
	} else if !waitExit(t, p).Success() {
		t.Error(p.Exit())
	}
}

func TestParseStat(t *testing.T) {
	line := "1234 (a) b (c\n) Z 1 55 66 0 -1 4194560 78 0 0 0 0 1 0 0 20 0 2 0 9876543 8704000 244 18446744073709551615\n"
	got, err := proc.ParseStat(1234, []byte(line))
	want := proc.Stat{PPID: 1, PGRP: 55, SID: 66, Threads: 2, Start: 9876543, State: 'Z', Comm: "a) b (c\n", Dead: false}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	got, err = proc.ParseStat(1234, []byte(strings.Replace(line, " 20 0 2 0", " 20 0 1 0", 1)))
	if err != nil || !got.Dead {
		t.Errorf("a zombie with one thread: %+v, %v", got, err)
	}
	for _, bad := range []string{
		"", "1 (a", "1 )a(", "1 (a) S 1 2", "1 (a) S x" + strings.Repeat(" 1", 30),
		"1 (a) SS" + strings.Repeat(" 1", 30), "1 (a) S" + strings.Repeat(" -1", 30),
	} {
		if got, err := proc.ParseStat(1, []byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestRemovals(t *testing.T) {
	if tree, err := proc.Open(proc.Config{RemoveOnDeath: []string{"x"}}); err == nil {
		tree.Close()
		t.Error("open: a relative path was accepted")
	}
	tree := openTree(t, proc.Config{})
	for _, bad := range []string{"", "/", "relative", "/a/../b", "/tmp/", "*"} {
		if err := tree.RemoveOnDeath(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
