package report

import "testing"

// FuzzWorldStatus: whatever a node has in its status file, the launcher makes a status of the world from it.
func FuzzWorldStatus(f *testing.F) {
	f.Add([]byte(`{"phase":"running","tasks":[{"node":"a","rank":0}],"counts":{"running":1}}`), 1)
	f.Add([]byte(`{"phase":"failed","exit_status":1,"root_cause":{"rank":-1,"last_lines":["x"]},"end_time":"2026-01-01T00:00:00Z"}`), 0)
	f.Fuzz(func(t *testing.T, data []byte, status int) {
		w := NewWorldStatus([]string{"a", "b"})
		if w.Take(1, data) != nil {
			return
		}
		for _, lost := range [][]int{nil, {0}, {0, 1}} {
			if len(w.Encode()) == 0 {
				t.Error("nothing is told")
			}
			w.End(status&255, 1, lost, "why")
		}
		if len(w.Encode()) == 0 {
			t.Error("nothing is told at the end")
		}
	})
}
