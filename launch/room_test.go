package launch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"muster/launch/plan"
)

// Processes run without a run directory where none can be made, and a debug job does not.
func TestOpenRoomWithoutDir(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &plan.Plan{RunDir: filepath.Join(file, "parent", "job")}
	room, err := OpenRoom(p, zerolog.Nop())
	if err != nil || room.Dir() != "" || room.Tell(plan.Worker{}) != nil || room.Forget(plan.Worker{}) != nil ||
		room.Close() != nil {
		t.Errorf("%+v, %v", room, err)
	}
	p.Job.Debug.On = true
	if room, err := OpenRoom(p, zerolog.Nop()); err == nil {
		t.Errorf("a debug job has %+v", room)
	}
}
