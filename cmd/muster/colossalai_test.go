package main

import (
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// colossalDifferences are those between what Colossal-AI's launcher and muster give a worker. docs/compat/colossalai.md has
// them, too.
var colossalDifferences = []difference{
	musterNames(),
	{"*", "TORCHELASTIC_ERROR_FILE", `.*/attempt_0/\d+/error\.json`, `.*/attempt_0/\d+/error\.json`, "a new directory in each run"},
	{"* hosts", "MASTER_ADDR", `localhost|127\.0\.0\.1`, ``, "a name that means another machine on every host: the address by which the first one is reached, known when that is"},
}

// TestColossalAIWorkers runs command lines by the real colossalai and by muster, and compares what workers get, variable by
// variable. Where several names of this machine stand for hosts, muster's part is planned.
func TestColossalAIWorkers(t *testing.T) {
	bin := testutil.Peer(t, "colossalai")
	var used met
	t.Cleanup(func() { used.all(t, colossalDifferences) })
	for _, c := range launcherCases(t, "colossalai", filepath.Join(bin, "python")) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			environ := c.environ(bin)
			theirs := c.run(t, environ, c.command)
			req := c.request(t, environ)
			var ours map[int]seenWorker
			if len(req.Job.Hosts.Nodes) > 0 {
				ours = c.plannedHosts(t, req, nil)
			} else {
				ours = c.run(t, append(environ, "XDG_RUNTIME_DIR="+t.TempDir()), "muster "+strings.TrimPrefix(c.command, "exec "))
			}
			c.compare(t, theirs, ours, colossalDifferences, &used)
		})
	}
}
