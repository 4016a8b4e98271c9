package launch

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

	"github.com/rs/zerolog"

	"muster/internal/durable"
)

// TestRunParent: workers take code from the run directory. It does not lie where others could rename it, or have taken its name, if
// there is another place; what lies in the others that are safe is found by muster exec.
func TestRunParent(t *testing.T) {
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
	for _, c := range []struct {
		says string
		m    Machine
		want string // "" is any other directory
		told string // the variable that is warned of
	}{
		{"XDG_RUNTIME_DIR", Machine{RuntimeDir: private, TempDir: private}, filepath.Join(private, "muster"), ""},
		{"XDG_RUNTIME_DIR, and no TMPDIR", Machine{RuntimeDir: private, TempDir: missing}, filepath.Join(private, "muster"), ""},
		{"TMPDIR", Machine{TempDir: private}, filepath.Join(private, name), ""},
		{"TMPDIR that is not there", Machine{TempDir: missing}, filepath.Join(missing, name), ""}, // where it cannot be made
		{"TMPDIR that is not there, and an open XDG_RUNTIME_DIR", Machine{RuntimeDir: open, TempDir: missing}, filepath.Join(missing, name), ""},
		{"XDG_RUNTIME_DIR to which all may write", Machine{RuntimeDir: open, TempDir: private}, filepath.Join(private, name), "XDG_RUNTIME_DIR: "},
		{"TMPDIR to which all may write", Machine{TempDir: open}, "", "TMPDIR: "},
		{"TMPDIR where the name is taken", Machine{TempDir: taken}, "", "TMPDIR: "},
	} {
		places := findRunPlaces(c.m)
		got, told := places.parent, fmt.Sprint(places.passedOver)
		if !strings.HasPrefix(told, cmp.Or(c.told, "<nil>")) {
			t.Errorf("%s: %s is told, want %s", c.says, told, c.told)
		}
		if c.want != "" && got != c.want {
			t.Errorf("%s: %s, want %s", c.says, got, c.want)
		}
		if c.want == "" {
			_, err := durable.Ours(filepath.Dir(got))
			if _, safe := durable.Ours("/tmp"); safe == nil && (err != nil || strings.HasPrefix(got, c.m.TempDir)) {
				t.Errorf("%s: %s (%v)", c.says, got, err)
			}
		}
	}
	var log bytes.Buffer
	d, err := makeJobDir(filepath.Join(open, name, "job-x"), zerolog.New(&log)) // there was no better place
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "could replace the run directory") || !strings.Contains(log.String(), open) {
		t.Errorf("the log has %q", log.String())
	}
	if err := d.remove(); err != nil {
		t.Error(err)
	}
}
