package drive

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// HorovodWorker is the path of a script of horovod/elastic's tests.
func HorovodWorker(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(Root(), "horovod", "elastic", "testdata", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// HorovodWorlds reads what the elastic workers of a test have written: for each worker, "host:local.pid", the size of
// its world in its last line.
func HorovodWorlds(t testing.TB, dir string) map[string]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*:*.*"))
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		if words := strings.Fields(lines[len(lines)-1]); len(words) == 4 {
			sizes[filepath.Base(file)], _ = strconv.Atoi(words[1])
		}
	}
	return sizes
}
