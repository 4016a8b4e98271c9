package dialects

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// colossalDifferences are those between what Colossal-AI's launcher and muster give a worker. docs/compat/colossalai.md
// has them, too.
var colossalDifferences = []difference{
	musterNames(),
	{"*", "TORCHELASTIC_ERROR_FILE", `.*/attempt_0/\d+/error\.json`, `.*/attempt_0/\d+/error\.json`, "a new directory in each run"},
	{
		"hosts hostfile include-order exclude num-nodes", "MASTER_ADDR", `localhost|127\.0\.0\.1`, ``,
		"a name that means another machine on every host: the address by which the first one is reached, known when that is",
	},
	{"standalone", "MASTER_ADDR", "localhost", `127\.0\.0\.1`, "no name has to be looked up"},
	{"standalone", "MASTER_PORT", `\d+`, `\d+`, "a free one"},
	{"standalone", "TORCHELASTIC_RUN_ID", `[0-9a-f-]{36}`, `[0-9a-z]{12}`, "made up in each run"},
	{
		"elastic", "MASTER_*", `localhost|\d+`, `127\.0\.0\.1|\d+`,
		"the plan has the meeting place here: where workers meet is decided in each round",
	},
	{"variables", "JSON", `\{a: 1\}`, `\{"a": 1\}`, "colossalai puts values into a shell's double quotes as they are"},
	{"variables", "HOME_OF", `/.*/home`, `\$HOME`, "the same"},
	{"blanks", "argv", `.*"a" "b".*`, `.*"a b".*`, "colossalai joins arguments by blanks, for a shell to split"},
}

// forkedColossalAI puts the real colossalai, and the torchrun that it starts, into a folder, in forks of Pythons that have
// imported them.
func forkedColossalAI(t *testing.T, bin, folder string) {
	t.Helper()
	python := filepath.Join(bin, "python")
	colossalai := testutil.ForksOf(python, "colossalai.cli", "")
	torchrun := testutil.ForksOf(python, "torch.distributed.run,torch.numa.binding", "")
	if err := errors.Join(os.MkdirAll(folder, 0o700),
		colossalai.Program(filepath.Join(folder, "colossalai"), "-c", // initialize sets a variable when it is imported
			"import importlib, colossalai.initialize; importlib.reload(colossalai.initialize); from colossalai.cli import cli; cli()"),
		torchrun.Program(filepath.Join(folder, "torchrun"), "-c", "from torch.distributed.run import main; main()")); err != nil {
		t.Fatal(err)
	}
}

// TestColossalAIWorkers runs command lines by the real colossalai and by muster, and compares what workers get,
// variable by variable. Where several names of this machine stand for hosts, muster's part is planned.
func TestColossalAIWorkers(t *testing.T) {
	bin := testutil.Peer(t, "colossalai")
	var used met
	cases := launcherCases(t, "colossalai", filepath.Join(bin, "python"))
	t.Cleanup(func() { used.all(t, colossalDifferences, len(cases)) })
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			stand := filepath.Join(c.dir, "bin")
			forkedColossalAI(t, bin, stand)
			environ := c.environ(stand, bin)
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
