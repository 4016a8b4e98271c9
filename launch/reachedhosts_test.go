package launch

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"muster/launch/control"
	"muster/launch/job"
)

// TestReachedHosts: hosts come and go within bounds, those that come have names that none had before, and the hostfile
// has what there is.
func TestReachedHosts(t *testing.T) {
	t.Parallel()
	rules := job.ReachedHosts{
		Hosts:  []job.ReachedHost{{Host: "a", Name: "j-t-0", Slots: 2}, {Host: "b", Name: "j-t-1", Slots: 2}},
		Prefix: "j-t-", Slots: 2, Min: 1, Max: 4, Spare: []string{"c"},
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, job.PodDir), 0o700); err != nil {
		t.Fatal(err)
	}
	r := newReachedHosts(&rules, filepath.Join(dir, "missing"), zerolog.Nop())
	if _, err := r.scale(3); err == nil || !strings.Contains(err.Error(), "cannot tell the launcher") {
		t.Error(err)
	}
	r.runDir = dir // what could not be told has used up no host and no name
	for _, step := range []struct {
		n          int
		want, file string
	}{
		{2, "the launcher has 2 hosts", ""},
		{5, "of its file allow 1 to 4", ""},
		{4, "there is no other host", ""},
		{3, "finds 3 hosts from now on: j-t-2 (c)", "a slots=2\nb slots=2\nc slots=2\n"},
		{1, "finds 1 host from now on, and no more j-t-1 (b), j-t-2 (c)", "a slots=2\n"},
		{2, "finds 2 hosts from now on: j-t-3 (b)", "a slots=2\nb slots=2\n"},
	} {
		said, err := r.scale(step.n)
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, step.want) {
			t.Errorf("scale %d: %s, want %s", step.n, said, step.want)
		}
		if text, _ := os.ReadFile(filepath.Join(dir, job.PodDir, job.ReachedFile)); step.file != "" && string(text) != step.file {
			t.Errorf("scale %d: the hostfile has %q, want %q", step.n, text, step.file)
		}
	}
	if _, err := r.kill(t.Context(), control.Request{Wanted: control.Wanted{Node: "c"}}); err == nil ||
		!strings.Contains(err.Error(), `no host "c"`) {
		t.Error(err)
	}
	if _, err := r.kill(t.Context(), control.Request{Wanted: control.Wanted{Node: "0"}}); err == nil ||
		!strings.Contains(err.Error(), "does not run") {
		t.Error(err)
	}
	rules.Rehearsed = true
	r = newReachedHosts(&rules, dir, zerolog.Nop())
	if said, err := r.scale(4); err != nil || !strings.Contains(said, "j-t-2 (127.0.0.3), j-t-3 (127.0.0.4)") {
		t.Error(said, err)
	}
	rules.Min = 4
	_, err := newReachedHosts(&rules, dir, zerolog.Nop()).scale(4)
	if err == nil || !strings.Contains(err.Error(), "a fixed number of hosts, 4") {
		t.Error(err)
	}
	if newReachedHosts(nil, dir, zerolog.Nop()) != nil {
		t.Error("a job without a launcher has hosts")
	}
}

// TestReachedHostsLost: hosts that the launcher says are lost are replaced once, as often as the file allows; others stay
// named, as one that has been taken away does not come back.
func TestReachedHostsLost(t *testing.T) {
	t.Parallel()
	rules := job.ReachedHosts{
		Hosts:  []job.ReachedHost{{Host: "a", Name: "j-t-0", Slots: 1}, {Host: "b", Name: "j-t-1", Slots: 1}},
		Prefix: "j-t-", Slots: 1, Min: 2, Max: 2, Spare: []string{"c", "d"}, Replace: true, Limit: 1,
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, job.PodDir), 0o700); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r := newReachedHosts(&rules, dir, zerolog.New(&log))
	seen := r.lookForLost(0)
	for _, step := range []struct{ text, file, says string }{
		{"elsewhere\nb", "", ""}, // and half of a line
		{"elsewhere\nb\n", "a slots=1\nc slots=1\n", "j-t-1 (b) is lost, and j-t-2 (c) takes its place"},
		{"elsewhere\nb\nb\na\n", "a slots=1\nc slots=1\n", "j-t-0 (a) is lost, and is not replaced: the limit of 1 is reached"},
	} {
		log.Reset()
		if err := os.WriteFile(filepath.Join(dir, job.PodDir, job.LostFile), []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		seen = r.lookForLost(seen)
		if text, _ := os.ReadFile(filepath.Join(dir, job.PodDir, job.ReachedFile)); string(text) != step.file {
			t.Errorf("%q: the hostfile has %q, want %q", step.text, text, step.file)
		}
		if said := log.String(); !strings.Contains(said, step.says) || step.says == "" && said != "" {
			t.Errorf("%q: %s", step.text, said)
		}
	}
}

// TestReachedHostsLostAgain: a lost host of which the launcher cannot be told, as its disk is full, is replaced when it
// can be, and those that are lost behind it are, too. The error is said once.
func TestReachedHostsLostAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pod := filepath.Join(dir, job.PodDir)
	hostfile := filepath.Join(pod, job.ReachedFile)
	if err := os.MkdirAll(filepath.Join(hostfile, "in the way"), 0o700); err != nil { // nothing replaces that
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pod, job.LostFile), []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r := newReachedHosts(&job.ReachedHosts{
		Hosts: []job.ReachedHost{{Host: "a", Name: "t-0"}, {Host: "b", Name: "t-1"}}, Prefix: "t-", Min: 2, Max: 2, Limit: -1,
		Replace: true, Spare: []string{"c", "d"},
	}, dir, zerolog.New(&log))
	seen := r.lookForLost(r.lookForLost(0))
	if n := strings.Count(log.String(), "a lost host is not replaced yet"); seen != 0 || n != 1 {
		t.Errorf("%d of none are replaced, which is said %d times:\n%s", seen, n, log.String())
	}
	if err := os.RemoveAll(hostfile); err != nil {
		t.Fatal(err)
	}
	if seen = r.lookForLost(seen); seen != 2 {
		t.Errorf("%d of 2 are replaced:\n%s", seen, log.String())
	}
	if text, err := os.ReadFile(hostfile); err != nil || string(text) != "c slots=0\nd slots=0\n" {
		t.Errorf("%q, %v", text, err)
	}
}
