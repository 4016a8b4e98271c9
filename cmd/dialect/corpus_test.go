package dialect_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch/job"
)

// corpusCase is one command line with its surroundings: the files command, env and live, and all others as they are
// named. cmd/muster runs those with the file live by the real launcher, too.
type corpusCase struct {
	words []string
	inv   dialect.Invocation
}

func readCorpus(t *testing.T, archive *txtar.Archive) corpusCase {
	t.Helper()
	files := fstest.MapFS{}
	c := corpusCase{inv: dialect.Invocation{Argv0: "muster", Dir: "/work", Environ: []string{"HOME=home"}}}
	for _, f := range archive.Files {
		switch text := strings.TrimSpace(string(f.Data)); f.Name {
		case "command":
			words, err := dialect.ShellWords(text)
			if err != nil {
				t.Fatal(err)
			}
			c.words = words
		case "env":
			c.inv.Environ = append(c.inv.Environ, strings.Split(text, "\n")...)
		case "live", "job":
		default:
			files[strings.TrimPrefix(f.Name, "/")] = &fstest.MapFile{Data: f.Data}
		}
	}
	c.inv.Args = c.words[1:]
	c.inv.ReadFile = func(name string) ([]byte, error) { return files.ReadFile(strings.TrimPrefix(name, "/")) }
	return c
}

// TestCorpus reads command lines of the launchers that muster replaces, and compares the jobs with those in the files.
func TestCorpus(t *testing.T) {
	for _, launcher := range []string{"deepspeed", "colossalai"} {
		names, err := filepath.Glob(filepath.Join("testdata", launcher, "*.txtar"))
		if err != nil || len(names) < 25 {
			t.Fatalf("%d command lines of %s, %v", len(names), launcher, err)
		}
		for _, name := range names {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			c := readCorpus(t, archive)
			req, err := dialect.Read(c.words[0], c.inv)
			got := jobText(req, err)
			last := &archive.Files[len(archive.Files)-1]
			if last.Name != "job" {
				t.Fatalf("%s: the last file is %s", name, last.Name)
			}
			if *update {
				last.Data = []byte(got)
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if diff := cmp.Diff(string(last.Data), got); diff != "" {
				t.Errorf("%s (-want +got; -update rewrites it):\n%s", name, diff)
			}
			if refused := strings.Contains(name, "refused-"); refused != (err != nil) || refused && errhint.CodeOf(err) != errhint.Usage {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// jobText is what a reader of the corpus wants to know of a job.
func jobText(req dialect.Request, err error) string {
	if err != nil {
		text := "error: " + err.Error() + "\n"
		if hint := errhint.Of(err); hint != "" {
			text += "hint: " + hint + "\n"
		}
		return text
	}
	var b strings.Builder
	j, m := &req.Job, &req.Job.Meeting
	fmt.Fprintf(&b, "nodes: %d:%d, %s", j.Nodes.Min, j.Nodes.Max, m.Backend)
	for _, e := range m.Endpoints {
		fmt.Fprintf(&b, " at %s", e)
	}
	if m.Host != "" || m.Port != 0 {
		fmt.Fprintf(&b, " on %q port %d", m.Host, m.Port)
	}
	fmt.Fprintf(&b, ", rank %d, id %q, role %s, restarts %d\n", m.NodeRank, j.RunID, j.Role, j.Restart.MaxRestarts)
	c := j.Command
	fmt.Fprintf(&b, "command: %s %q %q", []string{"program", "script", "module", "path"}[c.Kind], c.Name, c.Args)
	if c.LocalRankFlag != "" {
		fmt.Fprintf(&b, " %s", c.LocalRankFlag)
	}
	fmt.Fprintf(&b, "\nworkers: %s\n", j.Procs)
	show := func(name string, v, zero any) {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		if !cmp.Equal(v, zero) {
			fmt.Fprintf(&b, "%s: %s\n", name, text)
		}
	}
	show("devices", j.Devices, job.DeviceRules{})
	show("binding", j.Bind, job.BindRules{})
	show("python", j.Python, job.PythonRules{})
	show("ssh", j.Hosts.SSH, job.SSHRules{})
	show("environment", struct {
		Mode       job.EnvMode
		Pass, Deny []string
	}{j.Env.Mode, j.Env.Pass, j.Env.Deny}, struct {
		Mode       job.EnvMode
		Pass, Deny []string
	}{})
	variable := func(indent string, v job.Var) {
		fmt.Fprintf(&b, "%s%s=%s (%s)", indent, v.Name, v.Value, v.Source)
		if v.Expand {
			b.WriteString(" expanded")
		}
		b.WriteByte('\n')
	}
	for _, v := range j.Env.Set {
		variable("set: ", v)
	}
	for _, n := range j.Hosts.Nodes {
		fmt.Fprintf(&b, "host: %s, workers %q, devices %v\n", n.Name, n.Procs, n.Devices)
		for local, vars := range n.WorkerEnv {
			for _, v := range vars {
				variable(fmt.Sprintf("  worker %d: ", local), v)
			}
		}
	}
	if j.Logs.RankDir != "" || j.Logs.Dir != "" {
		fmt.Fprintf(&b, "logs: %q, for each rank %q\n", j.Logs.Dir, j.Logs.RankDir)
	}
	fmt.Fprintf(&b, "log level: %s", req.LogLevel)
	if req.SavePID {
		b.WriteString(", process id saved")
	}
	b.WriteByte('\n')
	for _, w := range j.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	var flags []string
	for _, s := range req.Settings {
		if s.Source.Kind != job.FromDefault {
			flags = append(flags, fmt.Sprintf("%s=%q (%s)", s.Flag, s.Value, s.Source))
		}
	}
	slices.Sort(flags)
	fmt.Fprintf(&b, "given: %s\n", strings.Join(flags, ", "))
	return b.String()
}
