package rundir

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/durable"
)

// TestFindPlaces: workers take code from the run directory. It does not lie where others could rename it, or have taken
// its name, if there is another place; what lies in the others that are safe is found by muster exec.
func TestFindPlaces(t *testing.T) {
	mkdir := func(mode os.FileMode) string {
		dir := filepath.Join(t.TempDir(), "x")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	missing := filepath.Join(t.TempDir(), "missing")
	private, open := mkdir(0o700), mkdir(0o777)
	name := "muster-" + strconv.Itoa(os.Getuid())
	taken := mkdir(0o777 | os.ModeSticky)
	if err := os.WriteFile(filepath.Join(taken, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	type places struct{ runtimeDir, tempDir string }
	for _, c := range []struct {
		says string
		m    places
		want string // "" is any other directory
		told string // the variable that is warned of
	}{
		{"XDG_RUNTIME_DIR", places{runtimeDir: private, tempDir: private}, filepath.Join(private, "muster"), ""},
		{"XDG_RUNTIME_DIR, and no TMPDIR", places{runtimeDir: private, tempDir: missing}, filepath.Join(private, "muster"), ""},
		{"TMPDIR", places{tempDir: private}, filepath.Join(private, name), ""},
		{"TMPDIR that is not there", places{tempDir: missing}, filepath.Join(missing, name), ""}, // where it cannot be made
		{
			"TMPDIR that is not there, and an open XDG_RUNTIME_DIR",
			places{runtimeDir: open, tempDir: missing},
			filepath.Join(missing, name), "",
		},
		{
			"XDG_RUNTIME_DIR to which all may write",
			places{runtimeDir: open, tempDir: private},
			filepath.Join(private, name),
			"XDG_RUNTIME_DIR: ",
		},
		{"TMPDIR to which all may write", places{tempDir: open}, "", "TMPDIR: "},
		{"TMPDIR where the name is taken", places{tempDir: taken}, "", "TMPDIR: "},
	} {
		found := FindPlaces(c.m.runtimeDir, c.m.tempDir)
		got, told := found.Parent, fmt.Sprint(found.PassedOver)
		if !strings.HasPrefix(told, cmp.Or(c.told, "<nil>")) {
			t.Errorf("%s: %s is told, want %s", c.says, told, c.told)
		}
		if c.want != "" && got != c.want {
			t.Errorf("%s: %s, want %s", c.says, got, c.want)
		}
		if c.want == "" {
			_, err := durable.Ours(filepath.Dir(got))
			if _, safe := durable.Ours("/tmp"); safe == nil && (err != nil || strings.HasPrefix(got, c.m.tempDir)) {
				t.Errorf("%s: %s (%v)", c.says, got, err)
			}
		}
	}
	var log bytes.Buffer
	d, err := Make(filepath.Join(open, name, "job-x"), zerolog.New(&log)) // there was no better place
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "could replace the run directory") || !strings.Contains(log.String(), open) {
		t.Errorf("the log has %q", log.String())
	}
	if err := d.Remove(); err != nil {
		t.Error(err)
	}
}

// TestNeverShared makes the directory of two jobs with one run id.
func TestNeverShared(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "muster", "job-x")
	first, err := Make(dir, zerolog.Nop())
	if err != nil || first.Path != dir {
		t.Fatalf("%q, %v", first.Path, err)
	}
	second, err := Make(dir, zerolog.Nop())
	if err != nil || second.Path == first.Path {
		t.Fatalf("the second job got %q, %v", second.Path, err)
	}
	for _, d := range []string{first.Path, second.Path} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, info.Mode(), err)
		}
	}
	for _, d := range []Dir{first, second} {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(dir)); err == nil {
		t.Error("the empty parent stays")
	}
}

// TestStale removes what killed agents left, and nothing that is in use.
func TestStale(t *testing.T) {
	parent, other := filepath.Join(t.TempDir(), "muster"), filepath.Join(t.TempDir(), "muster-7")
	elsewhere := filepath.Join(other, "job-elsewhere") // of a job that had another TMPDIR
	running, err := Make(filepath.Join(parent, "job-running"), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"job-dead", "other"} {
		if err := os.MkdirAll(filepath.Join(parent, name, "below"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"job-running", "job-dead", "other"} {
		if err := os.Chtimes(filepath.Join(parent, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(elsewhere, old, old); err != nil {
		t.Fatal(err)
	}
	next, err := Make(filepath.Join(parent, "job-next"), zerolog.Nop(), parent, other)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"job-running": true, "job-dead": false, "other": true, "job-next": true} {
		if _, err := os.Stat(filepath.Join(parent, name)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", name, err == nil, want)
		}
	}
	if _, err := os.Stat(elsewhere); err == nil {
		t.Error("what was left in another place stays")
	}
	for _, d := range []Dir{running, next} {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	}
}

// TestOfSomebodyElse refuses a directory that another user has put where ours goes.
func TestOfSomebodyElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a directory of somebody else")
	}
	parent := filepath.Join(t.TempDir(), "muster-0")
	if err := os.Mkdir(parent, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(parent, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := Make(filepath.Join(parent, "job-x"), zerolog.Nop()); err == nil {
		t.Error("took a directory that belongs to somebody else")
	}
	link := filepath.Join(t.TempDir(), "muster-0")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := Make(filepath.Join(link, "job-x"), zerolog.Nop()); err == nil {
		t.Error("followed a link")
	}
}

// A directory of run directories that others could write to is closed for them.
func TestClosed(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "muster-0")
	if err := errors.Join(os.Mkdir(parent, 0o700), os.Chmod(parent, 0o777)); err != nil {
		t.Fatal(err)
	}
	d, err := Make(filepath.Join(parent, "job-x"), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(parent); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if err := d.Remove(); err != nil {
		t.Error(err)
	}
}
