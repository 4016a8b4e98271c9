package drive

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"muster/cmd/console"
	"muster/internal/testutil"
	"muster/launch/control"
)

const (
	// AsText makes muster log text, as it does for people.
	AsText = console.FormatVariable + "=auto"
	// EndAtOnce spares a program with a race detector the second that it sleeps before it ends.
	EndAtOnce = "GORACE=atexit_sleep_ms=0"
	// UntilStopped is a worker that runs until it is stopped.
	UntilStopped = "echo rank $RANK is here; while :; do sleep 0.2; done"
	// ShowRank is what workers do first: they show their environment, by rank and round.
	ShowRank = `f="$OUT/$RANK.$MUSTER_ROUND"; env >"$f~" && mv "$f~" "$f"` + "\n"
)

// SomeTorch returns a Python interpreter for what needs PyTorch, and not the newest: Debian's, which is imported faster;
// under make soak the newest one, as users have it.
func SomeTorch(t testing.TB) string {
	t.Helper()
	if testutil.Soak() {
		return testutil.Torch(t)
	}
	return testutil.DebianTorch(t)
}

// SystemPython returns the interpreter of the system, for what needs no package: it starts at a third of the processor time
// of one whose packages come with its start.
func SystemPython(t testing.TB) string {
	t.Helper()
	const python = "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		testutil.Missing(t, python)
	}
	return python
}

// Warm are the flags of a job whose start is not its subject: its workers share one import of the modules. With
// MUSTER_SOAK=1 there are none, and the workers start cold.
func Warm(modules string) []string {
	if testutil.Soak() {
		return nil
	}
	return []string{"--warm", modules}
}

// Script is the path of a file below test/testdata.
func Script(t testing.TB, path ...string) string {
	t.Helper()
	script := filepath.Join(Root(), "test", "testdata", filepath.Join(path...))
	if _, err := os.Stat(script); err != nil {
		t.Fatal(err)
	}
	return script
}

// WriteScript writes a file that all hosts can read, and returns its path.
func WriteScript(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// ReadEnvironment reads what env has written; nil where there is no such file.
func ReadEnvironment(t testing.TB, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		vars[name] = value
	}
	return vars
}

// EventTypes counts the events in a file of --events by their types.
func EventTypes(t testing.TB, path string) map[control.EventType]int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	types := map[control.EventType]int{}
	for line := range strings.Lines(string(text)) {
		var e control.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.RunID == "" || e.Time.IsZero() {
			t.Errorf("%v: %s", err, line)
		}
		types[e.Type]++
	}
	return types
}

// Sums fails the test unless each of the workers of testdata/nodes/allreduce.py has added up the ranks of all.
func Sums(t testing.TB, said string, world, perHost, first int) {
	t.Helper()
	for rank := range world {
		want := fmt.Sprintf("rank %d of %d on node%d: sum %d", rank, world, first+rank/perHost, world*(world+1)/2)
		if strings.Count(said, want) != 1 {
			t.Errorf("not once %q in:\n%s", want, said)
		}
	}
}

// FreePort returns a port of loopback that nobody listens on. It is none of those that the kernel gives to whoever asks
// for any, so that it is free a moment later, too.
func FreePort(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := strconv.Itoa(20_000 + rand.IntN(9_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// StatusTask is an entry of the status file's tasks, in a line.
type StatusTask struct {
	Node     string `json:"node"`
	Ranks    string `json:"ranks"`
	Phase    string `json:"phase"`
	ExitCode *int   `json:"exitCode"`
}

// WorldFile is what tests want of a status file.
type WorldFile struct {
	Phase      string         `json:"phase"`
	Reason     string         `json:"reason"`
	ExitStatus *int           `json:"exitStatus"`
	Counts     map[string]int `json:"counts"`
	Tasks      []StatusTask   `json:"tasks"`
}

// ReadWorld reads a status file.
func ReadWorld(t *testing.T, path string) WorldFile {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var w WorldFile
	if err := json.Unmarshal(text, &w); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return w
}

// WriteTree writes a file, and makes the directories above it.
func WriteTree(t *testing.T, name, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}
