package control

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTail shows the last lines of files of any shape.
func TestTail(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70<<10)
	for text, want := range map[string][4]string{ // of the last 0, 1, 2 and 100 lines
		"":                     {"", "", "", ""},
		"a":                    {"", "a", "a", "a"},
		"a\n":                  {"", "a\n", "a\n", "a\n"},
		"a\nb\nc\n":            {"", "c\n", "b\nc\n", "a\nb\nc\n"},
		"a\nb\nc":              {"", "c", "b\nc", "a\nb\nc"},
		"\n\n":                 {"", "\n", "\n\n", "\n\n"},
		long + "\n" + long:     {"", long, long + "\n" + long, long + "\n" + long},
		"a\n" + long + "\nb\n": {"", "b\n", long + "\nb\n", "a\n" + long + "\nb\n"},
	} {
		for i, n := range []int{0, 1, 2, 100} {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			l := &RankLogs{Tail: n}
			if err := l.use(LogFiles{Stdout: path}); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1<<20)
			size, _ := l.files[0].f.Read(got)
			if l.close(); string(got[:size]) != want[i] {
				t.Errorf("the last %d lines of %d bytes are %d bytes, want %d", n, len(text), size, len(want[i]))
			}
		}
	}
}
