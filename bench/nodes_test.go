package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A node that is lost must not say a last word: neither what left its session nor the agent itself goes on.
func TestFrozenNodeIsStillAsAWhole(t *testing.T) {
	j := shell(t, `setsid sh -c 'while :; do echo x >>"$BENCH_DIR/talk"; sleep 0.01; done' & echo "1.0 0 0 $$" >>"$BENCH_DIR/stamps"; wait`)
	if _, err := j.waitStamps(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := j.freeze(); err != nil {
		t.Fatal(err)
	}
	pids := j.processes()
	if len(pids) < 2 {
		t.Fatalf("processes %v: the node was killed, not frozen", pids)
	}
	for _, pid := range pids {
		if !still(pid) {
			t.Errorf("process %d goes on", pid)
		}
	}
	if stopped(os.Getpid()) {
		t.Error("this process counts as stopped")
	}
	if err := j.end(); err != nil {
		t.Error(err)
	}
}

// stamped is a node whose workers have left stamps.
func stamped(t *testing.T, lines ...string) *job {
	t.Helper()
	j := &job{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(j.dir, "stamps"), []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return j
}

func TestWorkersOfAllNodesAreAwaited(t *testing.T) {
	first := stamped(t, "100.0 0 0 1\n", "100.1 1 0 2\n", "200.5 2 1 3\n", "200.1 3 1 4\n")
	moved := stamped(t, "100.2 2 0 5\n", "100.3 3 0 6\n", "200.2 0 0 7\n", "200.9 1 0 8\n")
	one := stamped(t, "200.2 0 1 7\n")
	twice := stamped(t, "200.2 2 1 7\n", "200.9 1 1 8\n")
	after := time.Unix(150, 0)
	for name, c := range map[string]struct {
		nodes []*job
		after time.Time
		want  time.Time
		err   string
	}{
		"those of before do not count, whatever their ranks": {[]*job{first, moved}, after, time.Unix(200, 9), ""},
		"a worker is missing":                                {[]*job{first, one}, after, time.Time{}, "3 of 4 within"},
		"a node is missing":                                  {[]*job{first, {dir: t.TempDir()}}, after, time.Time{}, "2 of 4 within"},
		"two worlds": {
			[]*job{first, twice},
			after,
			time.Time{},
			"rank 2 of 4 has a stamp too many",
		},
		"from the beginning": {
			[]*job{stamped(t, "3.5 1 0 1\n", "2.5 0 0 2\n")},
			time.Time{},
			time.Unix(3, 5), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := await(t.Context(), c.nodes, c.after, 0)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || errors.Is(err, errLate) != strings.Contains(c.err, "within") {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(c.want) {
				t.Errorf("last worker began at %v, want %v", got, c.want)
			}
		})
	}
}
