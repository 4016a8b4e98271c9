package dialect_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch/job"
)

// accelerateCase is a file of testdata/accelerate. Its parts are the command line, the environment, the accelerators of
// the machine, the differences from accelerate that are meant, each with its reason, what muster makes of the command
// line, and files of the working directory. $WORK stands for that.
type accelerateCase struct {
	name, path  string
	archive     *txtar.Archive
	cmd         string
	env         []string
	devices     int
	differences map[string]string
	want        string
	files       map[string]string
	generated   bool // in no file
}

func accelerateCases(t *testing.T) []*accelerateCase {
	t.Helper()
	paths, err := filepath.Glob("testdata/accelerate/*.txtar")
	if err != nil || len(paths) < 30 {
		t.Fatalf("%d cases, %v", len(paths), err)
	}
	var cases []*accelerateCase
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c := &accelerateCase{
			name: strings.TrimSuffix(filepath.Base(path), ".txtar"), path: path, archive: archive, differences: map[string]string{},
			files: map[string]string{},
		}
		for _, f := range archive.Files {
			text := string(f.Data)
			switch f.Name {
			case "cmd":
				c.cmd = text
			case "env":
				c.env = strings.Split(strings.TrimSpace(text), "\n")
			case "machine":
				if _, err := fmt.Sscanf(text, "cuda %d", &c.devices); err != nil {
					t.Fatalf("%s: machine %q", path, text)
				}
			case "differences":
				for line := range strings.Lines(text) {
					key, reason, ok := strings.Cut(strings.TrimSpace(line), ": ")
					if !ok || reason == "" {
						t.Fatalf("%s: the difference %q has no reason", path, line)
					}
					c.differences[key] = reason
				}
			case "want":
				c.want = text
			default:
				c.files[f.Name] = text
			}
		}
		cases = append(cases, c)
	}
	return cases
}

// environ is the case's environment with the working directory at dir.
func (c *accelerateCase) environ(dir string) []string {
	env := []string{"PATH=/usr/bin:/bin", "HOME=" + dir + "/home"}
	for _, entry := range c.env {
		env = append(env, strings.ReplaceAll(entry, "$WORK", dir))
	}
	return env
}

func (c *accelerateCase) args() []string {
	return strings.Fields(os.Expand(c.cmd, func(name string) string {
		for _, entry := range c.env {
			if value, ok := strings.CutPrefix(entry, name+"="); ok {
				return value
			}
		}
		return ""
	}))
}

// accelerateCores are the cores of the machine of all cases.
const accelerateCores = 16

// ours reads the case's command line in a working directory that need not be there.
func (c *accelerateCase) ours(dir string) (dialect.Request, error) {
	cpus := fstest.MapFS{}
	for i := range 2 * accelerateCores {
		cpus[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/core_cpus_list", i)] = &fstest.MapFile{
			Data: fmt.Appendf(nil, "%d,%d\n", i%accelerateCores, i%accelerateCores+accelerateCores),
		}
	}
	return dialect.AccelerateLaunch(dialect.Invocation{
		Argv0: "accelerate", Args: c.args(), Environ: c.environ(dir), Dir: dir,
		Machine: dialect.Machine{Files: cpus, Accelerators: func(string) (string, int) { return "cuda", c.devices }},
		ReadFile: func(name string) ([]byte, error) {
			text, ok := c.files[strings.TrimPrefix(name, dir+"/")]
			if !ok {
				return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
			}
			return []byte(text), nil
		},
	})
}

// TestAccelerateJobs holds what becomes of command lines and configuration files.
func TestAccelerateJobs(t *testing.T) {
	for _, c := range accelerateCases(t) {
		t.Run(c.name, func(t *testing.T) {
			req, err := c.ours("/work")
			got := accelerateText(req)
			if err != nil {
				if code := errhint.CodeOf(err); code != errhint.Usage {
					t.Errorf("status %d", code)
				}
				got = "refused: " + err.Error() + "\n"
				if hint := errhint.Of(err); hint != "" {
					got += "hint: " + hint + "\n"
				}
			}
			if *update {
				c.rewrite(t, got)
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got; -update rewrites it):\n%s", c.path, diff)
			}
		})
	}
}

func (c *accelerateCase) rewrite(t *testing.T, want string) {
	t.Helper()
	for i := range c.archive.Files {
		if f := &c.archive.Files[i]; f.Name == "want" {
			f.Data = []byte(want)
		}
	}
	if err := os.WriteFile(c.path, txtar.Format(c.archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

// accelerateText writes what matters of a job of accelerate.
func accelerateText(req dialect.Request) string {
	var b strings.Builder
	j := &req.Job
	line := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, text)
		}
	}
	line("command", "%s", strings.Join(argv(j.Command), " "))
	line("nodes", "%d of %s workers", j.Nodes.Max, j.Procs)
	m := j.Meeting
	line("meeting", "%s", m.Backend)
	if len(m.Endpoints) > 0 {
		line("at", "%v", m.Endpoints)
	}
	if m.Backend == "static" && len(j.Hosts.Nodes) == 0 {
		line("node rank", "%d", m.NodeRank)
	}
	if len(m.WorkerPorts) > 0 {
		line("ports", "%v, or any", m.WorkerPorts)
	}
	if len(m.Conf) > 0 {
		line("settings", "%v", m.Conf)
	}
	if j.Restart.MaxRestarts > 0 {
		line("restarts", "%d", j.Restart.MaxRestarts)
	}
	if j.Role != "default" {
		line("role", "%s", j.Role)
	}
	line("log directory", "%s", j.Logs.Dir)
	if streams := streamsOf(j.Logs.Tee); streams != 0.0 {
		line("tee", "%v", streams)
	}
	if req.LogLevel != "warn" {
		line("log level", "%s", req.LogLevel)
	}
	vars := func(what string, list []job.Var) {
		for _, v := range list {
			line(what, "%s=%s (%s)", v.Name, v.Value, v.Source)
		}
	}
	vars("set", j.Env.Set)
	vars("set on this node", j.NodeEnv)
	line("unset", "%s", strings.Join(j.Env.Unset, " "))
	line("inherit", "%s", j.Env.Mode)
	for i, n := range j.Hosts.Nodes {
		line("host", "%d %s, %s workers, devices %v", i, n.Name, n.Procs, n.Devices)
		vars("  set", n.Env)
		for local, list := range n.WorkerEnv {
			vars("  set for "+strconv.Itoa(local), list)
		}
	}
	for _, w := range j.Warnings {
		line("warning", "%s", w)
	}
	return b.String()
}

// accelerate has other commands than launch, which are told from mistakes.
func TestAccelerateCommands(t *testing.T) {
	read := func(args ...string) (dialect.Request, error) {
		return dialect.Read("accelerate", dialect.Invocation{Argv0: "accelerate", Args: args})
	}
	req, err := read("launch", "--num_processes", "3", "train.py")
	if err != nil || req.Job.Procs != "3" || req.Job.Dialect != "accelerate launch" {
		t.Errorf("%s workers of %q, %v", req.Job.Procs, req.Job.Dialect, err)
	}
	for _, name := range []string{"accelerate-launch", "accelerate.commands.launch"} {
		req, err := dialect.Read(name, dialect.Invocation{Argv0: name, Args: []string{"--num_processes", "3", "train.py"}})
		if err != nil || req.Job.Procs != "3" {
			t.Errorf("%s: %s workers, %v", name, req.Job.Procs, err)
		}
	}
	for _, word := range []string{"config", "env", "test", "estimate-memory", "merge-weights", "to-fsdp2", "tpu-config"} {
		_, err := read(word, "--help")
		wantRefused(t, err, "accelerate "+word, "muster replaces launch only")
	}
	_, err = read("lunch", "train.py")
	wantRefused(t, err, `no command "lunch"`)
	_, err = read()
	wantRefused(t, err, "no command")
	for _, args := range [][]string{{"-h"}, {"--help"}, {"launch", "--help"}} {
		_, err := read(args...)
		if text, ok := errorsAsHelp(err); !ok || text != dialect.Help("accelerate-launch") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// The default configuration file is found where Hugging Face's libraries keep their files, and may be missing.
func TestAccelerateDefaultFile(t *testing.T) {
	for _, c := range []struct {
		env  string
		want string
	}{
		{"HOME=/me", "/me/.cache/huggingface/accelerate/default_config.yaml"},
		{"HOME=/me XDG_CACHE_HOME=/c", "/c/huggingface/accelerate/default_config.yaml"},
		{"HOME=/me XDG_CACHE_HOME=~/c", "/me/c/huggingface/accelerate/default_config.yaml"},
		{"HOME=/me XDG_CACHE_HOME=/c HF_HOME=/h", "/h/accelerate/default_config.yaml"},
		{"HF_HOME=rel", "rel/accelerate/default_config.yaml"},
		{"A=1", ""},
	} {
		asked := ""
		inv := dialect.Invocation{Args: []string{"train.py"}, Environ: strings.Fields(c.env), ReadFile: func(name string) ([]byte, error) {
			asked = name
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}}
		if _, err := dialect.AccelerateLaunch(inv); err != nil || asked != c.want {
			t.Errorf("%s: %q was read, %v; want %q", c.env, asked, err, c.want)
		}
		asked = ""
		inv.Args = []string{"--cpu", "train.py"}
		if _, err := dialect.AccelerateLaunch(inv); err != nil || asked != "" {
			t.Errorf("%s --cpu: %q was read, %v", c.env, asked, err)
		}
	}
	inv := dialect.Invocation{Args: []string{"train.py"}, Environ: []string{"HOME=/me"}, ReadFile: func(name string) ([]byte, error) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}}
	_, err := dialect.AccelerateLaunch(inv)
	wantRefused(t, err, "permission")
}

// What muster tells is less with -q, unless somebody says how much.
func TestAccelerateQuiet(t *testing.T) {
	for env, want := range map[string]string{"A=1": "error", "LOGLEVEL=DEBUG": "debug", "MUSTER_LOG_LEVEL=info": "info"} {
		req, err := dialect.AccelerateLaunch(dialect.Invocation{
			Args:    []string{"-q", "--num_processes", "1", "t.py"},
			Environ: []string{env},
		})
		if err != nil || req.LogLevel != want {
			t.Errorf("%s: %q, %v; want %q", env, req.LogLevel, err, want)
		}
	}
}

// Accelerators of a fake are counted as those of the machine are.
func TestAccelerateFake(t *testing.T) {
	own, _, err := dialect.ParseOwn([]string{"--accelerator", "fake:spec.yaml", "accelerate"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		own  dialect.Own
		env  string
		want string
	}{
		{own, "A=1", "spec.yaml"},
		{dialect.Own{}, "MUSTER_FAKE=a.yaml", "a.yaml"},
		{dialect.Own{}, "MUSTER_ACCELERATOR=fake:b.yaml", "b.yaml"},
		{dialect.Own{}, "A=1", ""},
	} {
		asked := "none"
		req, err := dialect.AccelerateLaunch(dialect.Invocation{
			Args: []string{"t.py"}, Environ: []string{c.env}, Own: c.own,
			Machine: dialect.Machine{Accelerators: func(fake string) (string, int) { asked = fake; return "npu", 4 }},
		})
		if err != nil || asked != c.want || req.Job.Procs != "4" {
			t.Errorf("%s: fake %q, %s workers, %v", c.env, asked, req.Job.Procs, err)
		}
	}
}

// FuzzAccelerateConfig: whatever a configuration file says, it is taken or refused.
func FuzzAccelerateConfig(f *testing.F) {
	paths, err := filepath.Glob("testdata/accelerate/config-*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if strings.HasSuffix(file.Name, ".yaml") {
				f.Add(file.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		_, err := dialect.AccelerateLaunch(dialect.Invocation{
			Args: []string{"--config_file", "c.yaml", "t.py"}, ReadFile: func(string) ([]byte, error) { return content, nil },
		})
		if err != nil && errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("status %d: %v", errhint.CodeOf(err), err)
		}
	})
}

// TestAccelerateDocs: docs/compat/accelerate.md says of each flag what becomes of it.
func TestAccelerateDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/compat/accelerate.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	_, table, ok := strings.Cut(string(page), "\n## Flags\n")
	if !ok {
		t.Fatal("the page has no flags")
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `-") || len(cells) < 2 {
			continue
		}
		for word := range strings.FieldsFuncSeq(cells[0], func(r rune) bool { return strings.ContainsRune("|`, ", r) }) {
			rows[word]++
		}
	}
	for _, o := range dialect.AccelerateOptions() {
		if name := o.Spellings[len(o.Spellings)-1]; rows[name] != 1 {
			t.Errorf("%s stands in %d rows of the page, want 1", name, rows[name])
		}
	}
}
