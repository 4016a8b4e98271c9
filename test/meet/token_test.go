package meet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/test/drive"
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
		m := drive.NewMeet(t, drive.RankOneFails, "--nnodes=2", "--rdzv=muster://127.0.0.1:"+drive.FreePort(t), "--run-id=x",
			"--join-timeout=4s", "--max-restarts=1")
		m.Native = true
		m.Env = []string{c.tokens[0], "MUSTER_LOG_LEVEL=debug"}
		host := m.Start(0)
		m.Says(host, "hosts the store")
		m.Env = []string{c.tokens[1]}
		guest := m.Start(1)
		waiting[name] = func(t *testing.T) {
			m.T = t
			got := m.Ends(guest, c.status[1], c.words)
			m.Ends(host, c.status[0])
			if c.status[1] != 0 {
				drive.Beside(t, guest.RuntimeDir, "status", "x").Expect(t, 0, "Failed, Refused")
			}
			for _, said := range []string{got.Stderr, host.Err.String()} {
				if strings.Contains(said, "aaaaaaaa") || strings.Contains(said, "bbbbbbbb") || strings.Contains(said, "0123456789abcde") {
					t.Errorf("a token was told:\n%s", said)
				}
			}
			if off := "no job token"; strings.Contains(host.Err.String(), off) != (c.tokens[0] == "") {
				t.Errorf("that there is no token was to be said where it is so:\n%s", host.Err.String())
			}
			for node, local := range map[int]int{0: 0, 1: 0} {
				for round := range 2 {
					if was := m.Worker(node, round, local) != nil; was != (c.status == [2]int{}) {
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
		j := drive.Start(t, []string{drive.EndAtOnce},
			"run", "--dry-run", "--nnodes=2", "--rdzv=c10d://10.0.0.1", "--run-id=x", flag, "--", "true")
		if r := j.End(); r.Status != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: status %d, %s, want %q", flag, r.Status, r.Stderr, want)
		}
	}
}
