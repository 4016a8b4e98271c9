package meet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/test/drive"
)

// TestMeetDocs has every command line of docs/several-nodes.md show its plan.
func TestMeetDocs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "several-nodes.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"train.py", "topo.txt", "ca.pem"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	seen := 0
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if !strings.HasPrefix(line, "    muster ") {
			continue
		}
		seen++
		args := append([]string{"--dry-run"}, words[1:]...)
		if words[1] == "run" {
			args = append([]string{"run", "--dry-run"}, words[2:]...)
		}
		if got := drive.Run(t, []string{drive.EndAtOnce}, args...); got.Status != 0 || !strings.Contains(got.Stdout, "node0") &&
			!strings.Contains(got.Stdout, "etcd0") {
			t.Errorf("%s: status %d\n%s%s", strings.TrimSpace(line), got.Status, got.Stdout, got.Stderr)
		}
	}
	if seen < 6 {
		t.Errorf("%d command lines were found", seen)
	}
}
