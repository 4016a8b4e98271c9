package plan

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"muster/internal/python"
	"muster/launch/job"
)

func TestCheckpointEnvironment(t *testing.T) {
	m := testMachine(t.TempDir())
	dir := filepath.Join(m.RuntimeDir, "muster/job-job 7_a/python")
	for name, try := range map[string]struct {
		rules job.CheckpointRules
		old   []string
		nodes int
		want  map[string]string
	}{
		"off": {job.CheckpointRules{}, nil, 1, map[string]string{"MUSTER_SOCKET": "", "PYTHONPATH": ""}},
		"on": {
			job.CheckpointRules{On: true},
			nil, 1,
			map[string]string{"MUSTER_SOCKET": filepath.Join(filepath.Dir(dir), "socket"), "PYTHONPATH": dir, "MUSTER_CKPT_DIR": ""},
		},
		"behind others": {
			job.CheckpointRules{On: true, Dir: "/ck"},
			[]string{"PYTHONPATH=/a:/b"},
			1,
			map[string]string{"PYTHONPATH": "/a:/b:" + dir, "MUSTER_CKPT_DIR": "/ck"},
		},
		"empty": {
			job.CheckpointRules{On: true},
			[]string{"PYTHONPATH="},
			1,
			map[string]string{"PYTHONPATH": dir},
		}, // an empty entry would be the working directory
		"several nodes with a token": {
			job.CheckpointRules{On: true},
			[]string{"token"},
			2,
			map[string]string{"PYTHONPATH": dir, "MUSTER_SOCKET": filepath.Join(filepath.Dir(dir), "socket")},
		},
		"in front of others": {
			job.CheckpointRules{On: true, Shim: python.ShimAlways},
			[]string{"PYTHONPATH=/a:/b"},
			1,
			map[string]string{"PYTHONPATH": dir + ":/a:/b"},
		},
		"several nodes": {
			job.CheckpointRules{On: true},
			nil, 2,
			map[string]string{"PYTHONPATH": dir, "MUSTER_SOCKET": filepath.Join(filepath.Dir(dir), "socket")},
		},
		"no saver": {
			job.CheckpointRules{Shim: python.ShimBarred},
			[]string{"PYTHONPATH=/a"},
			1,
			map[string]string{"PYTHONPATH": dir + ":/a", "MUSTER_SOCKET": ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := testJob("1")
			j.Checkpoint, j.Nodes = try.rules, job.Range{Min: try.nodes, Max: try.nodes}
			m := m
			if slices.Equal(try.old, []string{"token"}) {
				try.old, m.Token = nil, true
			}
			j.Environ = append(j.Environ, try.old...)
			p, err := New(j, m)
			if err != nil {
				t.Fatal(err)
			}
			w, err := p.Worker(testRound(1), 0, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			set := w.Env.set()
			for name, want := range try.want {
				if set[name] != want {
					t.Errorf("%s=%q, want %q", name, set[name], want)
				}
			}
		})
	}
}

// TestWrongPath: a disk that is in trouble is not the user's mistake.
func TestWrongPath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":      {nil, false},
		"a file":       {writable(file), true},
		"below a file": {writable(filepath.Join(file, "a", "b")), true},
		"a disk fails": {&os.PathError{Op: "stat", Path: "/data", Err: unix.EIO}, false},
		"a stale one":  {&os.PathError{Op: "stat", Path: "/data", Err: unix.ESTALE}, false},
	} {
		if got := WrongPath(c.err); got != c.want {
			t.Errorf("%s: %v is said to be the user's mistake: %t", name, c.err, got)
		}
	}
}
