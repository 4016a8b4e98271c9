package checkpointd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"muster/internal/beneath"
)

// fuzzed is a directory of checkpoints with a step, and beside it something that nobody may touch.
func fuzzed(t *testing.T, name string, text []byte) (dir string, before map[string]string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "dir")
	if err := testCommitment(posix{}, dir, 9, 1, noPath).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "victim"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, tree(t, filepath.Join(dir, "9"))
}

// unharmed makes sure that a directory is as useful as before, whatever was in it.
func unharmed(t *testing.T, dir string, before map[string]string) {
	t.Helper()
	for _, s := range must(List(dir)) {
		if s.Bytes() < 0 || s.Step < -1 || strings.ContainsFunc(s.Name(), unprintable) {
			t.Errorf("%+v", s)
		}
		_ = s.Verify()
	}
	if err := pruneOn(posix{}, dir, KeepRules{Latest: 1}); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "victim")); err != nil || string(text) != "data" {
		t.Errorf("outside: %q, %v", text, err)
	}
	if len(tree(t, filepath.Dir(dir))) < 2+len(before) || !mapsEqual(before, tree(t, filepath.Join(dir, "9"))) {
		t.Errorf("left: %v", tree(t, dir))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// FuzzManifest has any bytes for the manifest of an older step, in its directory and in .muster.
func FuzzManifest(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"step":3,"attempt":"a","shards":1,"created":"2026-11-22T14:00:00Z",` +
			`"files":[{"shard":0,"path":"3/rank_0.pt","size":4,"crc32c":"00000000","attempt":"a"}]}`,
		`{"version":1,"step":3,"attempt":"a","shards":1,` +
			`"files":[{"path":"..","attempt":"a"},{"path":".","attempt":"a"},{"path":"9/rank_0.pt","attempt":"a"}]}`,
		`{"version":1,"step":3,"attempt":"a","shards":1,"files":[{"path":"/../victim","size":-4,"attempt":"a"}]}`,
		`{"version":1,"step":3,"dir":".","attempt":"a","shards":65536,"commit":4611686018427387904,"spare":[9],` +
			`"trackers":[["..","x"]],"files":[{"path":"3/x","attempt":"a"}]}`,
		`{"version":1,"step":9,"attempt":"","shards":1,"files":[{"path":"\u001b[2J","size":9223372036854775807}]}`,
		"null", "[]", "{", "",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, own bool) {
		name := "3/" + manifestName
		if own {
			name = ownDir + "/3.json"
		}
		dir, before := fuzzed(t, name, text)
		tree := must(beneath.Open(dir))
		if m, err := readManifest(tree, name); err == nil {
			for i := range m.Files {
				if at := m.Files[i].spot(dir); at.dir == dir && !filepath.IsLocal(at.name) {
					t.Errorf("a file at %q", at.path())
				}
			}
		}
		_ = tree.Close()
		unharmed(t, dir, before)
	})
}

// FuzzTracker has any bytes for one of the trackers.
func FuzzTracker(f *testing.F) {
	for _, seed := range []string{
		`{"step":9,"attempt":"x","shards":1,"paths":["9/rank_0.pt"]}`, `{"step":-9223372036854775808}`, "9",
		" 9\n", "-1", "99999999999999999999", "\x00", "{}", "null", "",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, dlrover bool) {
		name := trackerName
		if dlrover {
			name = dlroverTracker
		}
		dir, before := fuzzed(t, name, text)
		unharmed(t, dir, before)
		if found, _ := chooseDisk(t.Context(), dir); found == nil || found.Step != 9 {
			t.Errorf("the step is not found: %+v", found)
		}
	})
}

// FuzzLabel has any bytes for a label in memory.
func FuzzLabel(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"run_id":"r","pid":1,"sets":[{"id":1,"dir":"/data","shards":2,` +
			`"committed":{"era":0,"step":-1,"again":0},"head":"","next_at":{"era":0,"step":-1,"again":0}}]}`,
		`{"version":1,"sets":[{"dir":"..","shards":1}]}`,
		`{"version":1,"sets":[{"id":-1,"dir":"/x","shards":65536},{"id":-1,"dir":"/x","shards":1}]}`, `{"version":9}`, "null", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		memory := t.TempDir()
		path := filepath.Join(memory, segmentPrefix+"0-r-x")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := readLabel(path)
		if err != nil {
			return
		}
		for _, of := range l.Sets {
			if !filepath.IsAbs(of.Dir) || of.Shards < 1 || of.Shards > shardsMax {
				t.Errorf("%+v", of)
			}
		}
		lo := mapLeftover(path, l)
		lo.letGo()
	})
}

// FuzzHeader has any bytes for a segment of a label.
func FuzzHeader(f *testing.F) {
	page := make([]byte, headerSize+64)
	copy(page, headerMagic)
	f.Add(page, uint64(headerSize), uint64(2))
	page[headerState] = byte(slotReady)
	copy(page[headerRunID:], "r")
	copy(page[headerSize:], `{"files":[]}`)
	page[headerShards] = 2
	f.Add(page, uint64(headerSize), uint64(12))
	f.Add(page, uint64(1)<<63, uint64(1)<<63)
	f.Add([]byte(headerMagic), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, text []byte, off, length uint64) {
		memory, text := t.TempDir(), slices.Clone(text)
		path := filepath.Join(memory, segmentPrefix+"0-r-x")
		if len(text) >= headerSize {
			for i := range 8 {
				text[headerMetaOff+i], text[headerMetaLen+i] = byte(off>>(8*i)), byte(length>>(8*i))
			}
		}
		if err := os.WriteFile(path+".1-0-a", text, 0o600); err != nil {
			t.Fatal(err)
		}
		lo := mapLeftover(path, label{Version: labelVersion, RunID: "r", Sets: []labelSet{{ID: 1, Dir: "/data", Shards: 2}}})
		for _, st := range lo.sets {
			for slot, of := range st.copies {
				if of.used < 0 || of.used > int64(len(text)) || slot.At.Step < 0 {
					t.Errorf("%d bytes of step %d", of.used, slot.At.Step)
				}
			}
		}
		lo.letGo()
	})
}
