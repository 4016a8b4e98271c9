package c10d_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCompatPage keeps docs/compat/torchrun.md honest: the tests that it names exist.
func TestCompatPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/compat/torchrun.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	defined := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "../.." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range defined.FindAllSubmatch(text, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Benchmark)[A-Z]\\w+)`").FindAllSubmatch(page, -1)
	for _, m := range named {
		if !there[string(m[1])] {
			t.Errorf("the page names %s, which does not exist", m[1])
		}
	}
	if len(named) < 40 {
		t.Errorf("the page names %d tests", len(named))
	}
}
