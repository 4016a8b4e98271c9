package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An elastic job goes by muster's deadline, exit codes and restart policy, and keeps a status file.
func TestHorovodrunElasticRules(t *testing.T) {
	t.Parallel()
	sleeping := []string{"sh", "-c", "[ $HOROVOD_RANK = 1 ] || exec sleep 1000; exit 3"}
	for name, c := range map[string]struct {
		own     []string
		command []string
		status  int
		phase   string
		reason  string
		said    string
	}{
		"deadline":   {[]string{"--active-deadline", "1s"}, []string{"sleep", "1000"}, 124, "Timeout", "DeadlineExceeded", "--active-deadline"},
		"fatal":      {[]string{"--fatal-exit-codes", "3"}, sleeping, 3, "Failed", "FatalExitCode", "3 is one of --fatal-exit-codes"},
		"never":      {[]string{"--restart-policy", "never"}, sleeping, 3, "Failed", "WorkerFailed", "--restart-policy never"},
		"exit codes": {[]string{"--restart-policy", "exit-code", "--retryable-exit-codes", "7"}, sleeping, 3, "Failed", "WorkerFailed", "3 is none of --retryable-exit-codes"},
		"success":    {nil, []string{"true"}, 0, "Succeeded", "WorkersSucceeded", ""},
	} {
		file := filepath.Join(t.TempDir(), "status.json")
		args := append(c.own, "--status-file", file, "horovodrun", "-np", "2", "--min-np", "1", "--host-discovery-script", "echo localhost:2")
		got := muster(t, nil, append(args, c.command...)...)
		if got.status != c.status || !strings.Contains(got.stderr, c.said) {
			t.Errorf("%s: status %d, want %d and %q\n%s%s", name, got.status, c.status, c.said, got.stdout, got.stderr)
		}
		var doc struct {
			Phase, Reason string
			ExitStatus    *int
			Generation    int
			WorldSize     int
			Counts        map[string]int
		}
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &doc)
		}
		if err != nil || doc.Phase != c.phase || doc.Reason != c.reason || doc.ExitStatus == nil || *doc.ExitStatus != c.status || doc.Generation != 1 || doc.WorldSize != 2 || doc.Counts["running"] != 0 {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}
