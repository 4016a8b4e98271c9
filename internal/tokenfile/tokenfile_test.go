package tokenfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

// A token that others could have written is refused, and that they can read one is told, save of mounted secrets.
func TestTokenFileModes(t *testing.T) {
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to give files away,")
	}
	disk, memory := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", memory, "tmpfs", 0, "size=1m"); err != nil {
		testutil.Missing(t, "the right to mount file systems")
	}
	defer func() { _ = unix.Unmount(memory, unix.MNT_DETACH) }()
	token := strings.Repeat("5ecret", 10)
	for name, c := range map[string]struct {
		dir     string
		mode    os.FileMode
		owner   int
		refused string
		warns   bool
	}{
		"ours alone":             {disk, 0o600, 0, "", false},
		"read-only":              {disk, 0o400, 0, "", false},
		"a group reads":          {disk, 0o640, 0, "", true},
		"all read":               {disk, 0o644, 0, "", true},
		"a mounted secret":       {memory, 0o444, 0, "", false},
		"a group writes":         {disk, 0o660, 0, "others may write to it (mode 0660)", false},
		"all write":              {disk, 0o606, 0, "others may write to it", false},
		"all write, in memory":   {memory, 0o666, 0, "others may write to it", false},
		"of somebody else":       {disk, 0o600, 12345, "it belongs to another user (uid 12345)", false},
		"of somebody, in memory": {memory, 0o444, 12345, "it belongs to another user", false},
	} {
		path := filepath.Join(c.dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, c.owner, c.owner); err != nil {
			t.Fatal(err)
		}
		var log testutil.Buffer
		got, err := Read(path, zerolog.New(&log))
		if c.refused == "" && (err != nil || string(got) != token) || c.refused != "" &&
			(err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: %v", name, err)
		}
		if warned := strings.Contains(log.String(), "may read the job's token") && strings.Contains(log.String(), path); warned != c.warns {
			t.Errorf("%s: warned %v: %s", name, warned, log.String())
		}
	}
	for _, path := range []string{disk, "/dev/zero", filepath.Join(disk, "none")} {
		if _, err := Read(path, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	big := filepath.Join(disk, "big")
	if err := os.WriteFile(big, make([]byte, maxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(big, zerolog.Nop()); err == nil {
		t.Error("a token of any size was read")
	}
}

// A token is as little taken through another user's pipe or link as from his file: he knows what it says. The user's own
// ones stay.
func TestTokenOfAnotherUser(t *testing.T) {
	ours, shared := testutil.ReachedDir(t, 0o755), testutil.ReachedDir(t, 0o1777)
	token := strings.Repeat("5ecret", 10)
	known := filepath.Join(ours, "known") // whoever may read a file of ours could use what it says
	for path, mode := range map[string]os.FileMode{known: 0o644, filepath.Join(ours, "mine"): 0o600} {
		if err := os.WriteFile(path, []byte(token), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range [][2]string{{"mine", filepath.Join(ours, "link")}, {ours, filepath.Join(shared, "ours")}} {
		if err := os.Symlink(link[0], link[1]); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(shared, name) }
	testutil.RunOtherUser(t, "mkfifo", "-m", "600", in("pipe"))
	testutil.RunOtherUser(t, "mkfifo", "-m", "644", in("open-pipe"))
	testutil.RunOtherUser(t, "ln", "-s", known, in("link"))
	testutil.RunOtherUser(t, "ln", "-s", ours, in("dir"))
	for name, c := range map[string]struct {
		mode    uint32
		refused string
	}{"mine": {0o600, ""}, "writable": {0o622, "others may write to it (mode 0622)"}} {
		if err := unix.Mkfifo(filepath.Join(ours, "fifo-"+name), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(ours, "fifo-"+name), os.FileMode(c.mode)); err != nil {
			t.Fatal(err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString(token); err != nil {
		t.Fatal(err)
	}
	w.Close()
	done := make(chan error, 1)
	go func() { // it waits for a reader
		f, err := os.OpenFile(filepath.Join(ours, "fifo-mine"), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(token)
			f.Close()
		}
		done <- err
	}()
	for path, refused := range map[string]string{
		in("pipe"):                            "it belongs to another user (uid 47114)",
		in("open-pipe"):                       "it belongs to another user (uid 47114)",
		in("link"):                            "is a symbolic link of user 47114, which is not followed",
		filepath.Join(in("dir"), "known"):     "is a symbolic link of user 47114, which is not followed",
		filepath.Join(ours, "fifo-writable"):  "others may write to it (mode 0622)",
		filepath.Join(ours, "mine"):           "",
		filepath.Join(ours, "link"):           "",
		filepath.Join(in("ours"), "link"):     "",
		filepath.Join(ours, "fifo-mine"):      "",
		fmt.Sprintf("/dev/fd/%d", r.Fd()):     "",
		filepath.Join(shared, "ours", "none"): "no such file",
	} {
		got, err := Read(path, zerolog.Nop())
		if refused == "" && (err != nil || string(got) != token) || refused != "" &&
			(err == nil || !strings.Contains(err.Error(), refused)) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
