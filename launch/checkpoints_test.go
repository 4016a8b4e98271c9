package launch

import (
	"path/filepath"
	"slices"
	"testing"
)

func TestCheckpointEnvironment(t *testing.T) {
	m := testMachine(t.TempDir())
	python := filepath.Join(m.RuntimeDir, "muster/job-job 7_a/python")
	for name, try := range map[string]struct {
		rules CheckpointRules
		old   []string
		nodes int
		want  map[string]string
	}{
		"off":                        {CheckpointRules{}, nil, 1, map[string]string{"MUSTER_SOCKET": "", "PYTHONPATH": ""}},
		"on":                         {CheckpointRules{On: true}, nil, 1, map[string]string{"MUSTER_SOCKET": filepath.Join(filepath.Dir(python), "socket"), "PYTHONPATH": python, "MUSTER_CKPT_DIR": ""}},
		"behind others":              {CheckpointRules{On: true, Dir: "/ck"}, []string{"PYTHONPATH=/a:/b"}, 1, map[string]string{"PYTHONPATH": "/a:/b:" + python, "MUSTER_CKPT_DIR": "/ck"}},
		"empty":                      {CheckpointRules{On: true}, []string{"PYTHONPATH="}, 1, map[string]string{"PYTHONPATH": python}}, // an empty entry would be the working directory
		"several nodes with a token": {CheckpointRules{On: true}, []string{"token"}, 2, map[string]string{"PYTHONPATH": python, "MUSTER_SOCKET": filepath.Join(filepath.Dir(python), "socket")}},
		"several nodes":              {CheckpointRules{On: true}, nil, 2, map[string]string{"PYTHONPATH": python, "MUSTER_SOCKET": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			job := testJob("1")
			job.Checkpoint, job.Nodes = try.rules, Range{Min: try.nodes, Max: try.nodes}
			m := m
			if slices.Equal(try.old, []string{"token"}) {
				try.old, m.Token = nil, true
			}
			job.Environ = append(job.Environ, try.old...)
			p, err := NewPlan(job, m)
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
