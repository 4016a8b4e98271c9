package checkpointd

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestUnreadOptions: options of DLRover's checkpointers that mean nothing here are told once by name, and rules of a
// later call than the first count where that had none, the number of replicas among them.
func TestUnreadOptions(t *testing.T) {
	dir := t.TempDir()
	s, log := testService(t, func(c *Config) { c.Workers = 1 })
	out := runPython(t, s.cfg.Socket, filepath.Join("testdata", "unread.py"), dir)
	for _, line := range []string{"options", "late"} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("not done: %s\n%s\n%s", line, out, log.String())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.setLocked(filepath.Join(dir, "late"), 1)
	if err != nil || st.replicas != 2 || st.keep.Latest != 2 {
		t.Errorf("%+v, %v; want 2 replicas, and 2 steps on disk", st, err)
	}
}
