package testutil

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// OtherUserID is the user and the group of OtherUser's processes. Nobody has it.
const OtherUserID = 47_114

// OtherUser prepares a command of another user than the one of the test, which has to be root for that.
func OtherUser(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root, to be another user")
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: OtherUserID, Gid: OtherUserID}}
	return cmd
}

// RunOtherUser runs a command as another user, and fails the test where it fails.
func RunOtherUser(t testing.TB, name string, args ...string) {
	t.Helper()
	if err := OtherUser(t, name, args...).Run(); err != nil {
		t.Fatalf("%s %q of user %d: %v", name, args, OtherUserID, err)
	}
}

// ReachedDir is a temporary directory that every user can enter, as mode says: 0o1777 is one such as /tmp.
func ReachedDir(t testing.TB, mode os.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Chmod(dir, uint32(mode)); err != nil {
		t.Fatal(err)
	}
	return dir
}
