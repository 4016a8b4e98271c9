package checkpointd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

// TestDirectoryChangesMeanwhile: who may write to a directory of checkpoints renames, links and cuts there while steps
// are written and pruned, and nothing elsewhere changes. What of that succeeds inside is his: he can as well remove all
// of it.
func TestDirectoryChangesMeanwhile(t *testing.T) {
	testutil.Long(t)
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to be another user")
	}
	before := unix.Umask(0) // what is made there can be changed by all
	t.Cleanup(func() { unix.Umask(before) })
	parent := testutil.ReachedDir(t, 0o755)
	dir, victim := filepath.Join(parent, "checkpoints"), filepath.Join(parent, "victim")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{".", "1", "parts", ownDir, "stage-x", "trash-x"} { // as names of ours may lead there
		if err := os.MkdirAll(filepath.Join(victim, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"rank_0.pt", "0.pt", "latest-0.pt", manifestName, lockName, "3.json"} {
			if err := os.WriteFile(filepath.Join(victim, sub, name), []byte(sub+name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	outside := tree(t, victim)
	stop := make(chan struct{})
	var other sync.WaitGroup
	for seed := range uint64(3) {
		other.Go(func() {
			runtime.LockOSThread() // and not unlocked: the thread ends with its user
			if _, err := unix.SetfsuidRetUid(testutil.OtherUserID); err != nil {
				t.Error(err)
				return
			}
			m := meddler{rand.New(rand.NewPCG(seed, 0)), dir, victim}
			for {
				select {
				case <-stop:
					return
				default:
					m.strike()
				}
			}
		})
	}
	written := 0
	for i := range 100 {
		paths := []func(int) string{
			noPath,
			func(shard int) string { return fmt.Sprintf("parts/%d.pt", shard) },
			func(shard int) string { return filepath.Join(dir, fmt.Sprintf("latest-%d.pt", shard)) },
			func(shard int) string { return filepath.Join(dir, "parts", fmt.Sprintf("latest-%d.pt", shard)) },
		}[i%4]
		lock, err := openForTest(dir) // this and what follows may well fail
		if testCommitment(posix{}, dir, int64(i%8+1), 2, paths).run(t.Context()) == nil {
			written++
		}
		_ = pruneOn(posix{}, dir, KeepRules{Latest: 1 + i%3})
		if err == nil {
			lock.close()
		}
		_, _ = Prune(dir, KeepRules{Latest: 1}, false)
	}
	close(stop)
	other.Wait()
	if after := tree(t, victim); !mapsEqual(outside, after) {
		t.Errorf("outside of the directory there is %v now", after)
	}
	t.Logf("%d of 100 steps were written", written)
}

// meddler is somebody who may write to a directory.
type meddler struct {
	*rand.Rand
	dir, victim string
}

// place is a name that something of ours may have in the directory.
func (m meddler) place() string {
	names := []string{"1", "2", "3", "4", "5", "6", "7", "8", ownDir, "parts", "latest-0.pt", "link"}
	name := names[m.IntN(len(names))]
	if own, err := os.ReadDir(filepath.Join(m.dir, ownDir)); err == nil && len(own) > 0 && m.IntN(3) == 0 {
		name = filepath.Join(ownDir, own[m.IntN(len(own))].Name())
	}
	within := []string{"", "rank_0.pt", "parts", manifestName, "latest-0.pt"}
	return filepath.Join(m.dir, name, within[m.IntN(len(within))])
}

// strike does one thing there, which may fail.
func (m meddler) strike() {
	at := m.place()
	switch m.IntN(7) {
	case 0: // for a moment a link is there
		aside := at + ".aside"
		_ = os.Rename(at, aside)
		_ = os.Symlink(filepath.Join(m.victim, []string{".", "1", "parts", ownDir}[m.IntN(4)]), at)
		time.Sleep(time.Duration(m.IntN(300)) * time.Microsecond)
		_ = os.Remove(at)
		_ = os.Rename(aside, at)
	case 1:
		_ = os.Rename(at, m.place())
	case 2:
		_ = os.Truncate(at, int64(m.IntN(100)))
	case 3:
		_ = os.Symlink(filepath.Join(m.victim, []string{"rank_0.pt", lockName, "1"}[m.IntN(3)]), at)
	case 4:
		_ = os.Symlink("..", at)
	case 5:
		_ = os.Mkdir(at, 0o777)
	case 6:
		path := []string{"3/rank_0.pt", "../victim/rank_0.pt", filepath.Join(m.victim, "rank_0.pt"), "link/rank_0.pt"}[m.IntN(4)]
		text := fmt.Sprintf(`{"version":%d,"step":3,"attempt":"a","shards":1,"files":[{"path":%q,"size":1,"attempt":"a"}]}`,
			manifestVersion, path)
		_ = os.WriteFile(filepath.Join(m.dir, ownDir, "3.json"), []byte(text), 0o666)
	}
}
