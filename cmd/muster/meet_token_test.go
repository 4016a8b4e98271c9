package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMeetToken gives the agents of a job a token: all of them the same, or not.
func TestMeetToken(t *testing.T) {
	t.Parallel()
	waiting := map[string]func(t *testing.T){}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "MUSTER_TOKEN_FILE=" + path
	}
	good, trimmed, other := file("good", strings.Repeat("a", 64)+"\n"), file("trimmed", strings.Repeat("a", 64)),
		file("other", strings.Repeat("b", 64))
	short, none := file("short", "0123456789abcde\n"), "MUSTER_TOKEN_FILE="+filepath.Join(dir, "none")
	for name, c := range map[string]struct {
		tokens [2]string
		status [2]int // of the agent that hosts the store, and of the other
		words  string // of the other
	}{
		"the same":      {[2]string{good, trimmed}, [2]int{0, 0}, ""},
		"different":     {[2]string{good, other}, [2]int{75, 2}, "token"},
		"only one":      {[2]string{good, ""}, [2]int{75, 2}, "token"},
		"only the last": {[2]string{"", good}, [2]int{75, 2}, "token"},
		"too short":     {[2]string{good, short}, [2]int{75, 2}, "it has 15 bytes, at least 16 are wanted"},
		"unreadable":    {[2]string{good, none}, [2]int{75, 2}, "cannot read the job's token"},
	} {
		m := newMeet(t, rankOneFails, "--nnodes=2", "--rdzv=muster://127.0.0.1:"+freePort(t), "--run-id=x", "--join-timeout=4s",
			"--max-restarts=1")
		m.native = true
		m.env = []string{c.tokens[0], "MUSTER_LOG_LEVEL=debug"}
		host := m.start(0)
		m.says(host, "hosts the store")
		m.env = []string{c.tokens[1]}
		guest := m.start(1)
		waiting[name] = func(t *testing.T) {
			m.t = t
			got := m.ends(guest, c.status[1], c.words)
			m.ends(host, c.status[0])
			for _, said := range []string{got.stderr, host.err.String()} {
				if strings.Contains(said, "aaaaaaaa") || strings.Contains(said, "bbbbbbbb") || strings.Contains(said, "0123456789abcde") {
					t.Errorf("a token was told:\n%s", said)
				}
			}
			if off := "no job token"; strings.Contains(host.err.String(), off) != (c.tokens[0] == "") {
				t.Errorf("that there is no token was to be said where it is so:\n%s", host.err.String())
			}
			for node, local := range map[int]int{0: 0, 1: 0} {
				for round := range 2 {
					if was := m.worker(node, round, local) != nil; was != (c.status == [2]int{}) {
						t.Errorf("worker of node %d in round %d: %v", node, round, was)
					}
				}
			}
		}
	}
	for name, test := range waiting {
		t.Run(name, test)
	}
}

// TestMeetDryRun refuses files that the job would refuse.
func TestMeetDryRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	short := filepath.Join(dir, "short")
	if err := os.WriteFile(short, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"--token-file=" + dir + "/none":    "cannot read the job's token",
		"--token-file=" + short:            "it has 10 bytes, at least 16 are wanted",
		"--topology-file=" + dir + "/none": "cannot read topology file",
	} {
		j := start(t, []string{endAtOnce}, "run", "--dry-run", "--nnodes=2", "--rdzv=c10d://10.0.0.1", "--run-id=x", flag, "--", "true")
		if r := j.wait(); r.status != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: status %d, %s, want %q", flag, r.status, r.stderr, want)
		}
	}
}
