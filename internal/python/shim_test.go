package python

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// A program that imports dlrover gets muster's or the installed one, as the shim says.
func TestShim(t *testing.T) {
	testutil.Long(t)
	installed, none := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"__init__.py": "whose = 'theirs'", "other.py": "", "trainer/__init__.py": "", "trainer/torch/__init__.py": "",
		"trainer/torch/utils.py":                     "",
		"trainer/torch/flash_checkpoint/__init__.py": "", "trainer/torch/flash_checkpoint/engine.py": "",
	} {
		path := filepath.Join(installed, "dlrover", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// site-packages come behind PYTHONPATH.
	const program = `
import sys
sys.path.append(sys.argv[1])

def get(name):
    try:
        __import__(name)
    except ModuleNotFoundError:
        return "none"
    except ImportError:
        return "refused"
    return "there"

first = get("dlrover")
whose = "none" if first == "none" else getattr(sys.modules["dlrover"], "whose", "ours")
print(whose, *(get("dlrover." + name) for name in (
    "other", "trainer.torch.utils", "trainer.torch.flash_checkpoint", "trainer.torch.flash_checkpoint.engine")))
try:
    import muster
except ImportError:
    print("no muster")
`
	for _, try := range []struct {
		shim Shim
		path string
		role string
		want string
		said bool
	}{
		{ShimAuto, none, "", "ours none none there none", false},
		{ShimAuto, installed, "", "theirs there there there there", false},
		{ShimAlways, none, "dlrover-trainer", "ours none none there none", false},
		{ShimAlways, installed, "dlrover-trainer", "ours there there there none", true}, // what has a saver of its own is not reached
		{ShimNever, none, "", "none none none none none", false},
		{ShimNever, installed, "", "theirs there there there there", false},
		{ShimBarred, none, "dlrover-trainer", "none none none none none", false},
		{ShimBarred, installed, "dlrover-trainer", "theirs there there refused refused", false},
		{ShimBarred, installed, "default", "theirs there there there there", false},
	} {
		dir := filepath.Join(t.TempDir(), "python")
		if err := InstallCheckpoint(dir); err != nil {
			t.Fatal(err)
		}
		if err := try.shim.Settle(dir); err != nil {
			t.Fatal(err)
		}
		for _, rank := range []string{"0", "1"} {
			cmd := exec.CommandContext(t.Context(), "python3", "-S", "-c", program, try.path)
			cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1", "ROLE_NAME="+try.role, "RANK="+rank)
			var out, said strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &said
			err := cmd.Run()
			told := strings.Contains(said.String(), "muster: ") && strings.Count(said.String(), "\n") == 1
			if got := strings.TrimSpace(out.String()); err != nil || got != try.want || told != (try.said && rank == "0") || !told &&
				said.Len() > 0 {
				t.Errorf("shim %q, installed %v, role %q, rank %s: %q, want %q: %v\n%s", try.shim, try.path == installed, try.role, rank,
					got, try.want, err, said.String())
			}
		}
	}
}

// Whose package it is is said once: processes that a worker spawns, such as a data loader's, import it anew.
func TestShimSpawned(t *testing.T) {
	installed, dir := t.TempDir(), filepath.Join(t.TempDir(), "python")
	if err := os.MkdirAll(filepath.Join(installed, "dlrover"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(installed, "dlrover", "__init__.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(InstallCheckpoint(dir), ShimAlways.Settle(dir)); err != nil {
		t.Fatal(err)
	}
	const program = `
import importlib, multiprocessing, sys
sys.path.append(sys.argv[1])
import dlrover
child = multiprocessing.get_context("spawn").Process(target=importlib.import_module, args=("dlrover",))
child.start()
child.join()
sys.exit(child.exitcode)
`
	cmd := exec.CommandContext(t.Context(), "python3", "-S", "-c", program, installed)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1", "RANK=0")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "muster: ") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}
