package plan

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
)

func TestTakePreflight(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "t.py"), "", 0o644)
	put(t, filepath.Join(dir, "python-odd"),
		"#!/bin/sh\necho said before\n[ \"$1\" = -c ] && echo '{\"Python\": \"3.9.1\", \"Torch\": \"'$TORCH'\"}'\n", 0o755)
	put(t, filepath.Join(dir, "python-bad"), "#!/bin/sh\necho it is broken >&2\nexit 3\n", 0o755)
	m := testMachine(dir)
	j := testJob("2")
	j.Command = job.Command{Kind: job.Script, Name: "t.py", Interpreters: []string{"./python-odd"}}
	j.Env.Set = []job.Var{{Name: "TORCH", Value: "2.0"}} // it is asked in the workers' environment
	began := time.Now()
	plan, f := TakePreflight(t.Context(), j, m)
	if plan == nil || f.Problem != "" || f.PythonProblem != "" {
		t.Fatalf("%+v", f)
	}
	if f.Time.Before(began.Round(0)) || f.OpenFiles == 0 || f.LockedMemory == 0 || f.Kernel == "" || f.SharedMemory == 0 {
		t.Errorf("%+v", f)
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	var got job.Preflight
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	got.Time, got.OpenFiles, got.LockedMemory, got.SharedMemory, got.Kernel = time.Time{}, 0, 0, 0, ""
	want := job.Preflight{
		Host: "node-7.example", Arch: runtime.GOARCH, Dir: dir, Python: filepath.Join(dir, "python-odd"), PythonVersion: "3.9.1",
		Torch: "2.0", Workers: 2, Accelerators: 8,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	j.Command.Interpreters[0] = "./python-bad"
	if _, f := TakePreflight(t.Context(), j, m); f.PythonProblem != "it cannot tell its version: it is broken" {
		t.Errorf("%q", f.PythonProblem)
	}
	j.Command = job.Command{Name: "true"}
	if plan, f := TakePreflight(t.Context(), j, m); plan == nil || f.Python != "" || f.PythonProblem != "" {
		t.Errorf("no Python: %+v", f)
	}
	j.Command = job.Command{Kind: job.Script, Name: "none.py", Interpreters: []string{"./python-odd"}}
	if plan, f := TakePreflight(t.Context(), j, m); plan != nil || !strings.Contains(f.Problem, `"none.py"`) ||
		f.Status != errhint.NotFound || f.Hint == "" {
		t.Errorf("no script: %+v", f)
	}
	m.Dir = filepath.Join(dir, "gone")
	if plan, f := TakePreflight(t.Context(), j, m); plan != nil || !strings.Contains(f.Problem, m.Dir) || f.Status != errhint.Usage {
		t.Errorf("no working directory: %+v", f)
	}
}

// A real interpreter with torch is asked, and does not import it.
func TestPreflightWithTorch(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "torch"), 0o755); err != nil { // what lies here is not what a script elsewhere imports
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "torch/__init__.py"), "raise SystemExit('imported')", 0o644)
	t.Chdir(dir)
	venv := filepath.Dir(filepath.Dir(testutil.Torch(t)))
	j := testJob("1")
	j.Command, j.Python.Venv = job.Command{Name: "python", Args: []string{"-c", ""}}, venv
	plan, f := TakePreflight(t.Context(), j, testMachine(dir))
	if plan == nil || !strings.HasPrefix(f.PythonVersion, "3.") || !strings.HasPrefix(f.Torch, "2.15.0") ||
		f.Python != filepath.Join(venv, "bin/python") {
		t.Errorf("%+v", f)
	}
}

func TestComparePreflight(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	good := job.Preflight{
		Arch: "amd64", Dir: "/job", Time: at, Received: at.Add(5 * time.Millisecond), Python: "/py", PythonVersion: "3.11.2",
		Torch:   "2.15.0+cpu",
		Workers: 8, Accelerators: 8, OpenFiles: 1 << 20, LockedMemory: math.MaxUint64, SharedMemory: 64 << 30,
	}
	for name, c := range map[string]struct {
		change func(f *job.Preflight) // of the second of three nodes
		warn   string
		err    string
		status int
	}{
		"alike":           {func(*job.Preflight) {}, "", "", 0},
		"clock ahead":     {func(f *job.Preflight) { f.Time = at.Add(3 * time.Second) }, "the clock of b is 3s ahead of that of a", "", 0},
		"clock behind":    {func(f *job.Preflight) { f.Time = at.Add(-time.Hour) }, "the clock of b is 1h0m0s behind that of a", "", 0},
		"answered later":  {func(f *job.Preflight) { f.Time, f.Received = at.Add(time.Minute), at.Add(time.Minute) }, "", "", 0},
		"clock not known": {func(f *job.Preflight) { f.Received = time.Time{} }, "", "", 0},
		"Python": {
			func(f *job.Preflight) { f.PythonVersion = "3.12.2" }, "",
			"different versions of Python: 3.11 on a, c; 3.12 on b", 2,
		},
		"Python's patch": {
			func(f *job.Preflight) { f.PythonVersion = "3.11.9" },
			"different versions of Python: 3.11.2 on a, c; 3.11.9 on b", "", 0,
		},
		"torch": {
			func(f *job.Preflight) { f.Torch = "2.14.1+cpu" }, "",
			"different versions of torch: 2.15.0 on a, c; 2.14.1 on b", 2,
		},
		"no torch": {func(f *job.Preflight) { f.Torch = "" }, "", "different versions of torch: 2.15.0 on a, c; none on b", 2},
		"torch's build": {
			func(f *job.Preflight) { f.Torch = "2.15.0+cu130" },
			"different builds of torch: 2.15.0+cpu on a, c; 2.15.0+cu130 on b", "", 0,
		},
		"architecture":     {func(f *job.Preflight) { f.Arch = "arm64" }, "different architectures: amd64 on a, c; arm64 on b", "", 0},
		"directory":        {func(f *job.Preflight) { f.Dir = "/other" }, "different working directories", "", 0},
		"few accelerators": {func(f *job.Preflight) { f.Accelerators = 4 }, "b: 8 workers share 4 accelerators", "", 0},
		"no accelerators":  {func(f *job.Preflight) { f.Accelerators = 0 }, "b: no accelerator is found there", "", 0},
		"small /dev/shm":   {func(f *job.Preflight) { f.SharedMemory = 64 << 20 }, "b: /dev/shm has 64 MiB", "", 0},
		"few files":        {func(f *job.Preflight) { f.OpenFiles = 1024 }, "b: 1024 open files (ulimit -n), elsewhere 1048576", "", 0},
		"locked memory": {
			func(f *job.Preflight) { f.LockedMemory = 65536 },
			"b: 65536 bytes of locked memory (ulimit -l), elsewhere no limit", "", 0,
		},
		"missing script": {func(f *job.Preflight) {
			*f = job.Preflight{
				Problem: "cannot find the script", Hint: "look", Status: 127, OpenFiles: 1 << 20,
				LockedMemory: math.MaxUint64, SharedMemory: 64 << 30,
			}
		}, "", "b: cannot find the script", 127},
		"Python says no": {
			func(f *job.Preflight) { f.PythonProblem, f.PythonVersion, f.Torch = "broken", "", "" }, "",
			"b: cannot ask /py for its version: broken", 2,
		},
		"neither is Python": {func(f *job.Preflight) { f.Python, f.PythonVersion, f.Torch = "", "", "" }, "", "", 0},
	} {
		all := []job.Preflight{good, good, good}
		c.change(&all[1])
		warnings, err := ComparePreflight([]string{"a", "b", "c"}, all)
		text := strings.Join(warnings, "\n")
		switch {
		case (c.warn == "") != (len(warnings) == 0) && c.status == 0, !strings.Contains(text, c.warn):
			t.Errorf("%s: warnings %q, want %q", name, text, c.warn)
		case (c.err == "") != (err == nil), err != nil && !strings.Contains(err.Error(), c.err), errhint.CodeOf(err) != c.status:
			t.Errorf("%s: %v (status %d), want %q", name, err, errhint.CodeOf(err), c.err)
		}
	}
	names := make([]string, 40)
	all := make([]job.Preflight, 40)
	for i := range all {
		names[i], all[i] = "n"+string(rune('a'+i%26)), good
	}
	all[39].PythonVersion = "3.9.1"
	if _, err := ComparePreflight(names, all); err == nil || !strings.Contains(err.Error(), "and 31 more; 3.9 on") {
		t.Errorf("many nodes: %v", err)
	}
}
