package sshexec_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/testutil"
	"muster/sshexec"
	"muster/sshexec/sshtest"
)

// Fifteen machines start with an empty cache that they share; the binary gets there whole, and once.
func TestUploadAtOnce(t *testing.T) {
	testutil.Long(t)
	s := sshtest.New(t, sshtest.Config{})
	client := testutil.NewSSHClient(t)
	dir := filepath.Join(s.Home, ".cache/muster/bin")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // of other versions
		name := filepath.Join(dir, fmt.Sprintf("muster-%016x", i))
		if err := os.WriteFile(name, nil, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, time.Time{}, time.Now().Add(time.Duration(i-10)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	stale := filepath.Join(dir, ".muster-stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(stale, time.Time{}, time.Now().Add(-72*time.Hour)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 { // launchers
		d := dialer(t, client, nil)
		for range 5 {
			wg.Go(func() {
				r, err := d.Start(t.Context(), at(s), []string{"agent"})
				if err != nil {
					t.Error(err)
					return
				}
				_ = r.Close()
			})
		}
	}
	wg.Wait()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(scriptText)
	var names []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".ok") {
			names = append(names, e.Name())
		}
	}
	if got := strings.Join(names, " "); len(names) != 3 || !strings.Contains(got, "muster-0000000000000004 ") ||
		!strings.Contains(got, "muster-0000000000000003 ") {
		t.Errorf("the cache has %s", got)
	}
	elsewhere, err := filepath.Glob("/tmp/muster-bin-" + strconv.Itoa(os.Geteuid()) + "/muster-" + hex.EncodeToString(sum[:8]))
	if len(elsewhere) > 0 || err != nil {
		t.Errorf("one launcher took another place: %v, %v", elsewhere, err)
	}
}

func at(s *sshtest.Server) hosts.Host { return hosts.Host{Name: "127.0.0.1", Port: s.Port, Slots: 1} }

// A machine that dies in the middle of a copy has nothing that would be taken for the binary.
func TestDiesInCopy(t *testing.T) {
	s := sshtest.New(t, sshtest.Config{DieAfter: 1 << 16})
	d := dialer(t, testutil.NewSSHClient(t), nil)
	_, err := d.Start(t.Context(), at(s), []string{"agent"})
	if err == nil || !sshexec.Transient(err) {
		t.Errorf("it died, and the error is %v", err)
	}
	if err := filepath.WalkDir(s.Home, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.HasPrefix(e.Name(), ".muster-") {
			t.Errorf("there is %s", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.DieAfter.Store(0)
	r := startAt(t, d, s)
	_ = r.Close()
	// As if the machine had lost what it had not written yet, behind the file's final name.
	names, _ := filepath.Glob(filepath.Join(s.Home, ".cache/muster/bin/muster-*"))
	if len(names) != 1 {
		t.Fatalf("the cache has %v", names)
	}
	if err := os.Remove(names[0]); err != nil { // a program that may still run cannot be cut short
		t.Fatal(err)
	}
	if err := os.WriteFile(names[0], make([]byte, 1<<17), 0o700); err != nil {
		t.Fatal(err)
	}
	greet(t, startAt(t, d, s))
}

// The binary is read on a machine when it has come there, or has changed since, and not at every start.
func TestReadOnce(t *testing.T) {
	bin := t.TempDir()
	log := filepath.Join(bin, "log")
	if err := os.WriteFile(filepath.Join(bin, "sha256sum"), []byte("#!/bin/sh\necho >>"+log+"\nPATH=/usr/bin:/bin exec sha256sum\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	s := sshtest.New(t, sshtest.Config{Env: []string{"PATH=" + bin + ":/usr/bin:/bin"}})
	d := dialer(t, testutil.NewSSHClient(t), nil)
	start := func(want int) {
		t.Helper()
		greet(t, startAt(t, d, s))
		if text, err := os.ReadFile(log); err != nil || len(text) != want {
			t.Errorf("it was read %d times, and not %d (%v)", len(text), want, err)
		}
	}
	start(1) // as it came
	start(1)
	names, _ := filepath.Glob(filepath.Join(s.Home, ".cache/muster/bin/muster-*"))
	if len(names) != 1 {
		t.Fatalf("the cache has %v", names)
	}
	if err := os.Chtimes(names[0], time.Time{}, time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	start(2)
	if err := os.Remove(filepath.Join(s.Home, ".cache/muster/bin", "."+filepath.Base(names[0])+".ok")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(names[0], time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	start(3)
	start(3)
}

func startAt(t *testing.T, d *sshexec.Dialer, s *sshtest.Server) *sshexec.Remote {
	t.Helper()
	r, err := d.Start(t.Context(), at(s), []string{"agent", "with words"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// Where the cache cannot hold programs another directory does, and where none can, that is said.
func TestPlaces(t *testing.T) {
	testutil.Long(t)
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to mount file systems,")
	}
	mine := "muster-bin-" + strconv.Itoa(os.Geteuid())
	for name, c := range map[string]struct {
		cache, tmp, shm string // mount options
		before          string // of the shell
		want            string // where it gets to
		err             []string
	}{
		"cache not executable": {"noexec", "size=64m", "size=64m", "", "/tmp/" + mine, nil},
		"cache full":           {"size=64k", "size=64m", "size=64m", "", "/tmp/" + mine, nil},
		"cache read-only":      {"ro", "size=64m", "size=64m", "", "/tmp/" + mine, nil},
		"two are no good":      {"size=64k", "noexec", "size=64m", "", "/dev/shm/" + mine, nil},
		"somebody else's":      {"size=64k", "size=64m", "size=64m", "mkdir -m 777 /tmp/" + mine, "/dev/shm/" + mine, nil},
		"link":                 {"size=64k", "size=64m", "size=64m", "mkdir -m 700 /tmp/x; ln -s x /tmp/" + mine, "/dev/shm/" + mine, nil},
		"no place at all": {
			"size=64k", "noexec", "size=64k", "", "",
			[]string{"no place for our program", "has no room for", "takes no programs (Permission denied)", "/dev/shm/" + mine},
		},
		"limit of a file's size": {
			"size=64m", "size=64m", "size=64m", "limit", "",
			[]string{"/.cache/muster/bin (", "/dev/shm/" + mine + " ("},
		},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			script := `set -e; mount --make-rprivate /; mount -t tmpfs tmpfs /dev/shm; mkdir /dev/shm/h; mount --bind "$1" /dev/shm/h
				mount -t tmpfs -o "$3" tmpfs /tmp; mount -o remount,size=64m,exec /tmp
				mkdir -p "$1"; mount --move /dev/shm/h "$1"; rmdir /dev/shm/h
				mount -o "remount,$3" /tmp; mount -t tmpfs -o "$4" tmpfs /dev/shm
				mkdir "$1/.cache"; mount -t tmpfs -o "$2" tmpfs "$1/.cache"
				[ "$5" = limit ] || eval "$5"; echo ready; exec cat`
			hold := exec.CommandContext(ctx, "unshare", "-m", "sh", "-c", script, "sh", home, c.cache, c.tmp, c.shm, c.before)
			_, stdout := testutil.StartPiped(t, hold)
			defer func() { cancel(); _ = hold.Wait() }()
			if _, err := stdout.Read(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			shell := filepath.Join(t.TempDir(), "shell")
			limit := ""
			if c.before == "limit" {
				limit = "ulimit -f 128\n"
			}
			text := fmt.Sprintf("#!/bin/sh\n%sexport HOME=%s\nexec nsenter -t %d -m /bin/sh \"$@\"\n", limit, home, hold.Process.Pid)
			if err := os.WriteFile(shell, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
			s := sshtest.New(t, sshtest.Config{Shell: shell})
			d := dialer(t, testutil.NewSSHClient(t), nil)
			r, err := d.Start(t.Context(), at(s), []string{"agent", "with words"})
			if err != nil {
				if len(c.err) == 0 {
					t.Fatal(err)
				}
				for _, want := range c.err {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%v has no %q", err, want)
					}
				}
				if sshexec.Transient(err) || errhint.CodeOf(err) != errhint.TryAgain {
					t.Errorf("%v has the code %d", err, errhint.CodeOf(err))
				}
				return
			}
			greet(t, r)
			_ = r.Close()
			if len(c.err) > 0 {
				t.Fatal("it was started")
			}
			if out, err := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(hold.Process.Pid), "-m", "sh", "-c",
				"ls "+c.want+"/muster-*").CombinedOutput(); err != nil {
				t.Errorf("it is not in %s: %s", c.want, out)
			}
			before := s.Sessions()
			_ = startAt(t, d, s).Close()
			if s.Sessions() != before+1 {
				t.Error("it was not found again")
			}
		})
	}
}

// program writes a shell script into a directory that a server's PATH begins with.
func program(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestOtherMachine(t *testing.T) {
	bin := t.TempDir()
	s := sshtest.New(t, sshtest.Config{Env: []string{"PATH=" + bin + ":" + os.Getenv("PATH")}})
	d := dialer(t, testutil.NewSSHClient(t), nil)
	program(t, bin, "uname", "echo pdp11\n")
	_, err := d.Start(t.Context(), at(s), []string{"agent"})
	if e, ok := errors.AsType[*sshexec.Error](err); !ok || e.Reason != sshexec.NoProgram || !strings.Contains(err.Error(), "it is pdp11") ||
		errhint.Of(err) == "" {
		t.Errorf("a machine of another kind: %v", err)
	}
	program(t, bin, "muster", "echo muster version of old\n")
	if _, err := d.Start(t.Context(), at(s), []string{"agent"}); err == nil {
		t.Error("another version was started")
	}
	program(t, bin, "muster",
		`[ "$1" != --version ] || { echo muster version of the tests; echo more; exit; }; echo "agent $2 in $HOME"; cat; exit 7`)
	greet(t, startAt(t, d, s))
}

// A binary that an image has in its PATH is not sent again.
func TestInPath(t *testing.T) {
	bin := t.TempDir()
	if err := os.Symlink(script(t), filepath.Join(bin, "muster")); err != nil {
		t.Fatal(err)
	}
	s := sshtest.New(t, sshtest.Config{Env: []string{"PATH=" + bin + ":" + os.Getenv("PATH")}})
	greet(t, startAt(t, dialer(t, testutil.NewSSHClient(t), nil), s))
	if s.Sessions() != 1 {
		t.Errorf("it took %d sessions", s.Sessions())
	}
}

// Small systems lack gzip, or sha256sum.
func TestFewTools(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{
		"sh", "id", "uname", "cut", "wc", "ls", "mkdir", "df", "tail", "chmod", "mv", "rm", "grep", "find",
		"cat", "head",
	} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := sshtest.New(t, sshtest.Config{Env: []string{"PATH=" + bin}})
	d := dialer(t, testutil.NewSSHClient(t), nil)
	greet(t, startAt(t, d, s))
	greet(t, startAt(t, d, s))
	if s.Sessions() != 4 {
		t.Errorf("it took %d sessions, and not 3 and 1", s.Sessions())
	}
}

// The login shell may be any, and the tools those of a small system.
func TestShells(t *testing.T) {
	testutil.Long(t)
	client := testutil.NewSSHClient(t)
	tools := t.TempDir()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		testutil.Missing(t, "Debian's busybox")
	}
	if out, err := exec.CommandContext(t.Context(), busybox, "--install", "-s", tools).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// In place of /bin/sh, which the scripts are run by.
	ash := filepath.Join(t.TempDir(), "ash")
	text := "#!/bin/sh\ncommand=\"exec " + busybox + " ash ${2#exec /bin/sh}\"\nexec " + busybox + " ash -c \"$command\"\n"
	if err := os.WriteFile(ash, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]sshtest.Config{
		"bash": {Shell: "/bin/bash"}, "dash": {Shell: "/bin/dash"}, "tcsh": {Shell: "/usr/bin/tcsh"},
		"busybox": {Shell: ash, Env: []string{"PATH=" + tools}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(cfg.Shell); err != nil {
				testutil.Missing(t, "Debian's "+name)
			}
			s := sshtest.New(t, cfg)
			d := dialer(t, client, nil)
			greet(t, startAt(t, d, s))
			greet(t, startAt(t, d, s))
			if s.Sessions() != 4 {
				t.Errorf("it took %d sessions, and not 3 and 1", s.Sessions())
			}
		})
	}
}
