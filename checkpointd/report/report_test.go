package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/checkpointd"
	"muster/internal/errhint"
)

// TestState: what is said of a step in memory is whether its job runs, and what of the step is where.
func TestState(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]checkpointd.MemoryStep{
		"its job runs; only in memory":                               {Running: true, Shards: 2, Whole: 2},
		"its job has ended; on disk":                                 {Shards: 2, Whole: 2, OnDisk: true},
		"its job has ended, and it is being saved; only in memory":   {Saving: true, Shards: 2, Whole: 2},
		"its job has ended; 1 of 2 shards":                           {Shards: 2, Whole: 1},
		"its job runs; 1 of 2 shards, the others are on other nodes": {Running: true, Several: true, Shards: 2, Whole: 1},
		"its job has ended; no step is whole":                        {Step: -1},
		`its job has ended; bad \x1b name`:                           {Problem: errors.New("bad \x1b name")},
	} {
		if got := stateOf(&m); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestAgents: an agent is saved by its newest complete step, and by none where it has no such; without agents there is
// nothing to do.
func TestAgents(t *testing.T) {
	t.Parallel()
	steps := []checkpointd.MemoryStep{{Step: 9, Shards: 2, Whole: 1}, {Step: 8, Shards: 2, Whole: 2}, {Step: 7, Shards: 2, Whole: 2}}
	got, err := Agents(steps)
	if err != nil || len(got) != 1 || got[0].Step != 8 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := Agents(steps[:1]); err != nil || len(got) != 1 || got[0].Step != 9 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Agents(nil); errhint.CodeOf(err) != 1 {
		t.Errorf("%v", err)
	}
}

// TestChoose: a directory without the step that was asked for is an error with status 1, one that cannot be read and a
// number that no step has are errors of usage.
func TestChoose(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		dir    string
		step   int64
		status int
		says   string
	}{
		{dir, -1, 1, "no checkpoint is in " + dir},
		{dir, 3, 1, "no checkpoint of step 3 is in " + dir},
		{dir, -2, errhint.Usage, "there is no step -2"},
		{filepath.Join(dir, "gone"), 3, errhint.Usage, "cannot list checkpoints"},
		{"3", 3, errhint.Usage, "this is the place of the directory"},
	} {
		if _, err := Choose(c.dir, c.step); errhint.CodeOf(err) != c.status || !strings.Contains(err.Error(), c.says) {
			t.Errorf("step %d of %s: %v", c.step, c.dir, err)
		}
	}
	for _, step := range []string{"6", "7"} {
		if err := os.MkdirAll(filepath.Join(dir, step), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, step, "muster_manifest.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Choose(dir, allSteps); err != nil || len(got) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	got, err := Choose(dir, 6)
	if err != nil || len(got) != 1 || got[0].Step != 6 {
		t.Fatalf("%+v, %v", got, err)
	}
	if verdict, whole := Verify(&got[0]); whole || !strings.HasPrefix(verdict, "damaged: ") {
		t.Errorf("%v: %s", whole, verdict)
	}
	if r := Of(&got[0]); r.Manifest != nil || r.Problem == "" {
		t.Errorf("%+v", r)
	}
}

// TestTables: a step that nobody knows has no number, and no time; a name cannot command a terminal. In JSON steps on disk
// come first, and a step in memory says that it is one.
func TestTables(t *testing.T) {
	t.Parallel()
	disk := []checkpointd.Step{
		{Manifest: checkpointd.Manifest{Step: 3, Shards: 2}, Latest: true},
		{Manifest: checkpointd.Manifest{Step: -1, Dir: "\x1b[2J"}, Problem: errors.New("no \x1b manifest")},
	}
	memory := []checkpointd.MemoryStep{
		{RunID: "x\x1b", Step: 4, Shards: 1, Whole: 1, Bytes: 3 << 20, Dir: "/d", Saved: time.Now()}, {RunID: "y", Step: -1},
	}
	var out bytes.Buffer
	if err := errors.Join(Write(&out, disk), WriteMemory(&out, memory), Write(&out, nil)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{
		"STEP", "3     2       0.0 MiB  -        latest", `-     0       0.0 MiB  -        \x1b[2J: no \x1b manifest`,
		"IN MEMORY OF", `x\x1b`, "y ", "no checkpoints",
	} {
		if !strings.HasPrefix(lines[i], want) || strings.ContainsRune(lines[i], '\x1b') {
			t.Errorf("%q, want %q in front", lines[i], want)
		}
	}
	text, err := json.Marshal(All(disk, memory))
	if err != nil || strings.Count(string(text), `"memory":true`) != 2 || strings.Count(string(text), `"saved"`) != 1 ||
		strings.Index(string(text), `"latest":true`) > strings.Index(string(text), `"memory":true`) {
		t.Errorf("%s: %v", text, err)
	}
}
