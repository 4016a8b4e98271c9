package durable

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

// TestSwappedDirectory has another user put a link in the place of a directory of his, in which somebody else's path
// lies, again and again: what is looked at and what is written to are the same. Nothing is written through his link,
// whenever it comes.
func TestSwappedDirectory(t *testing.T) {
	shared, private := testutil.ReachedDir(t, 0o1777), t.TempDir()
	out, link := filepath.Join(shared, "out"), filepath.Join(shared, "link")
	testutil.RunOtherUser(t, "mkdir", out)
	testutil.RunOtherUser(t, "ln", "-s", private, link)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // as the other user can, who owns both
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, out, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	written := 0
	for end := time.Now().Add(time.Duration(testutil.Few(3000)) * time.Millisecond); time.Now().Before(end) || written == 0; {
		if Replace(filepath.Join(out, "status.json"), []byte("{}"), 0o644) == nil {
			written++
		}
		if f, err := Create(filepath.Join(out, "rank.log"), os.O_TRUNC, 0o644); err == nil {
			_ = f.Close()
		}
	}
	close(stop)
	<-stopped
	for _, name := range []string{"status.json", "rank.log"} {
		if _, err := os.Lstat(filepath.Join(private, name)); err == nil {
			t.Errorf("%s was written through the other user's link", name)
		}
	}
}
