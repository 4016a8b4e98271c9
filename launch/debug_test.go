package launch_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch"
	"muster/launch/plan"
)

// Another user makes the directory of our run directories before we have one, or a run directory in ours, and holds a
// lock there as a job does: what he says of a rank is not executed, and a FIFO in a job's place is not waited for.
func TestStrangersDebugJob(t *testing.T) {
	const says = `{"run_id":"x","dir":"/","env":["PATH=/stranger","LD_PRELOAD=/stranger.so"]}`
	plant := func(t *testing.T, parent string) string {
		t.Helper()
		dir := filepath.Join(parent, "job-x")
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "debug"), 0o755),
			os.WriteFile(filepath.Join(dir, "debug", "rank0"), []byte(says), 0o644))
		if err != nil {
			t.Fatal(err)
		}
		held, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = held.Close() })
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	find := func(runtime, dir string) (launch.DebugRank, error) {
		return launch.FindDebugRank(plan.Machine{RuntimeDir: runtime, TempDir: runtime}, dir, "", 0)
	}
	ours := t.TempDir()
	parent := filepath.Join(ours, "muster")
	dir := plant(t, parent)
	if r, err := find(ours, ""); err != nil || r.RunID != "x" {
		t.Fatalf("our own job is not found: %+v, %v", r, err)
	}
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to be two users")
	}
	refused := func(what, named string) {
		t.Helper()
		if r, err := find(ours, named); err == nil || errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s: believed %+v, %v", what, r, err)
		}
	}
	if err := os.Chown(dir, testutil.OtherUserID, testutil.OtherUserID); err != nil {
		t.Fatal(err)
	}
	refused("a stranger's run directory", "")
	refused("a stranger's run directory by name", dir)
	if err := errors.Join(os.Chown(dir, 0, 0), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	refused("a directory that everybody can write to", dir)
	if err := errors.Join(os.Chmod(dir, 0o700), os.Chown(parent, testutil.OtherUserID, testutil.OtherUserID)); err != nil {
		t.Fatal(err)
	}
	if _, err := find(ours, ""); err == nil || !strings.Contains(err.Error(), parent) {
		t.Errorf("a stranger's parent: %v", err)
	}
	link := filepath.Join(ours, "link")
	if err := errors.Join(os.Chown(parent, 0, 0), os.Symlink(dir, link),
		unix.Mkfifo(filepath.Join(parent, "job-fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	refused("a link", link)
	if r, err := find(ours, ""); err != nil || r.RunID != "x" {
		t.Errorf("beside a FIFO: %+v, %v", r, err)
	}
}
