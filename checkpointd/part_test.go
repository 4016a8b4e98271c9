package checkpointd

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
)

// What was written for a leader of an earlier round stays as long as that one may be committing it; what the round's own leader wants no
// more is removed at once.
func TestPartOfEarlierRound(t *testing.T) {
	for name, c := range map[string]struct {
		round uint64
		stays bool
	}{"of this round": {3, false}, "of an earlier round": {2, true}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			stage := filepath.Join(dir, ownDir, stagePrefix+"a1")
			if err := os.MkdirAll(stage, 0o700); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				s := &Service{cfg: Config{disk: posix{}}, round: 3}
				s.ctx, s.cancel = context.WithCancelCause(t.Context())
				st := &set{writing: writing{attempt: "a1", ordered: c.round}}
				st.dir = dir
				s.mu.Lock()
				s.endPartLocked(st)
				s.mu.Unlock()
				synctest.Wait()
				if _, err := os.Stat(stage); (err == nil) != c.stays {
					t.Errorf("it stays: %v", err == nil)
				}
				s.wg.Wait()
				if _, err := os.Stat(stage); !os.IsNotExist(err) || st.attempt != "" {
					t.Errorf("it is left: %v, attempt %q", err, st.attempt)
				}
				s.cancel(nil)
			})
		})
	}
}
