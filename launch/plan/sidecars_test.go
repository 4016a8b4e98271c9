package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/launch/job"
)

// Sidecars have what all workers have alike, and nothing that tells a worker its place.
func TestSidecars(t *testing.T) {
	j := testJob("2")
	j.Sidecars = [][]string{{"true", "--port", "6006"}, {"sh", "-c", "echo", "--token", "hf_secret"}}
	p, err := New(j, testMachine(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	list := p.Sidecars()
	if len(list) != 2 || list[0].Shown != "true --port 6006" || strings.Contains(list[1].Shown, "secret") ||
		!strings.HasSuffix(list[1].Path, "/sh") || list[1].Dir != p.Dir {
		t.Fatalf("%+v", list)
	}
	if diff := cmp.Diff(j.Sidecars[1], list[1].Argv); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	vars := map[string]string{}
	for _, kv := range list[1].Env {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value
	}
	if vars[sidecarVariable] != "1" || vars["HOME"] != "/home/me" || "MUSTER_AGENT="+vars["MUSTER_AGENT"] != p.Mark() {
		t.Errorf("%v", vars)
	}
	for _, name := range []string{"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} {
		if value, is := vars[name]; is {
			t.Errorf("it has %s=%s", name, value)
		}
	}
	j.Env.Set = []job.Var{{Name: "HOST", Value: "swordfish", Secret: true}}
	j.Sidecars = [][]string{{"true", "--host", "swordfish"}}
	if p, err = New(j, testMachine(t.TempDir())); err != nil || strings.Contains(p.Sidecars()[0].Shown, "swordfish") {
		t.Errorf("the value of a Secret is shown: %v", err)
	}
	j.Sidecars = [][]string{{"no-such-program", "x"}}
	_, err = New(j, testMachine(t.TempDir()))
	if err == nil || errhint.CodeOf(err) != errhint.NotFound ||
		!strings.Contains(err.Error(), `cannot run the sidecar "no-such-program x": cannot find the command "no-such-program"`) {
		t.Errorf("status %d: %v", errhint.CodeOf(err), err)
	}
}
