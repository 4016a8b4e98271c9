package dialect_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"muster/cmd/dialect"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// leading are a dialect's name and the words that stand in front of its flags.
func leading(name string) []string {
	switch name {
	case "accelerate":
		return []string{name, "launch"}
	case "colossalai":
		return []string{name, "run", "--nproc_per_node", "1"}
	case "colossalairun":
		return []string{name, "--nproc_per_node", "1"}
	case "mpirun", "mpiexec", "horovodrun":
		return []string{name, "-np", "1"}
	}
	return []string{name}
}

func errorsAsHelp(err error) (string, bool) {
	if help, ok := errors.AsType[*dialect.HelpError](err); ok {
		return help.Text, true
	}
	return "", false
}

// golden compares text with a file in testdata, or rewrites the file with -update.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", path, diff)
	}
}
