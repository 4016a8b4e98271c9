package checkpointd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"muster/internal/testutil"
)

// What a job that was killed had not given its name yet gets it from the next one, outside of the directory of
// checkpoints, too; but no manifest of another user says which names change elsewhere, neither those of our files nor
// those of his.
func TestSweepElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to give files away")
	}
	const other = testutil.OtherUserID
	for name, c := range map[string]struct {
		manifest, file int // whose they are
		mode           os.FileMode
		named          bool
	}{
		"our manifest, our file":                 {0, 0, 0o600, true},
		"another user's manifest, our file":      {other, 0, 0o600, false},
		"another user's manifest, his file":      {other, other, 0o600, false},
		"our manifest, his file":                 {0, other, 0o600, false},
		"a manifest that another user may write": {0, 0, 0o606, false},
	} {
		dir, elsewhere := t.TempDir(), t.TempDir()
		place := filepath.Join(elsewhere, "model.pt")
		staged, manifest := stagedFile(place, "a1"), filepath.Join(dir, ownDir, "5.json")
		err := errors.Join(os.WriteFile(staged, []byte("new"), 0o600), os.WriteFile(place, []byte("old"), 0o600),
			plant(dir, 5, "a1", place))
		// The owner of the directory is the other user, and root saves there for him.
		err = errors.Join(err, os.Chown(dir, other, -1), os.Chown(filepath.Join(dir, ownDir), other, -1))
		err = errors.Join(err, os.Chown(manifest, c.manifest, -1), os.Chmod(manifest, c.mode), os.Chown(staged, c.file, -1))
		if err != nil {
			t.Fatal(err)
		}
		if err := sweep(posix{}, dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := map[bool]string{true: "new", false: "old"}[c.named]
		if got, err := os.ReadFile(place); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
