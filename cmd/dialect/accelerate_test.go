package dialect_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch"
)

// accelerateCase is a file of testdata/accelerate. Its parts are the command line, the environment, the accelerators of the
// machine, the differences from accelerate that are meant, each with its reason, what muster makes of the command line, and
// files of the working directory. $WORK stands for that.
type accelerateCase struct {
	name, path  string
	archive     *txtar.Archive
	cmd         string
	env         []string
	devices     int
	differences map[string]string
	want        string
	files       map[string]string
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
			name: strings.TrimSuffix(filepath.Base(path), ".txtar"), path: path, archive: archive, differences: map[string]string{}, files: map[string]string{},
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
			got := jobText(req)
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

// jobText writes what matters of a job of accelerate.
func jobText(req dialect.Request) string {
	var b strings.Builder
	job := &req.Job
	line := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, text)
		}
	}
	line("command", "%s", strings.Join(argv(job.Command), " "))
	line("nodes", "%d of %s workers", job.Nodes.Max, job.Procs)
	m := job.Meeting
	line("meeting", "%s", m.Backend)
	if len(m.Endpoints) > 0 {
		line("at", "%v", m.Endpoints)
	}
	if m.Backend == "static" && len(job.Hosts.Nodes) == 0 {
		line("node rank", "%d", m.NodeRank)
	}
	if len(m.WorkerPorts) > 0 {
		line("ports", "%v, or any", m.WorkerPorts)
	}
	if len(m.Conf) > 0 {
		line("settings", "%v", m.Conf)
	}
	if job.Restart.MaxRestarts > 0 {
		line("restarts", "%d", job.Restart.MaxRestarts)
	}
	if job.Role != "default" {
		line("role", "%s", job.Role)
	}
	line("log directory", "%s", job.Logs.Dir)
	if streams := streamsOf(job.Logs.Tee); streams != 0.0 {
		line("tee", "%v", streams)
	}
	if req.LogLevel != "warn" {
		line("log level", "%s", req.LogLevel)
	}
	vars := func(what string, list []launch.Var) {
		for _, v := range list {
			line(what, "%s=%s (%s)", v.Name, v.Value, v.Source)
		}
	}
	vars("set", job.Env.Set)
	vars("set on this node", job.NodeEnv)
	line("unset", "%s", strings.Join(job.Env.Unset, " "))
	line("inherit", "%s", job.Env.Mode)
	for i, n := range job.Hosts.Nodes {
		line("host", "%d %s, %s workers, devices %v", i, n.Name, n.Procs, n.Devices)
		vars("  set", n.Env)
		for local, list := range n.WorkerEnv {
			vars("  set for "+strconv.Itoa(local), list)
		}
	}
	for _, w := range job.Warnings {
		line("warning", "%s", w)
	}
	return b.String()
}

// accelerateAnswer is what the real accelerate makes of a case, see testdata/accelerate_oracle.py.
type accelerateAnswer struct {
	Status  int
	Message string
	How     string
	Argv    []string
	Env     map[string]string
	Args    map[string]any
}

// TestAccelerateAgrees compares the jobs of all cases with what the real accelerate would start: the way, the arguments of
// torchrun, and each variable. Differences must be listed in the case, with their reasons.
func TestAccelerateAgrees(t *testing.T) {
	cases := accelerateCases(t)
	var in bytes.Buffer
	dirs := make([]string, len(cases))
	for i, c := range cases {
		dirs[i] = t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(dirs[i], name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		env := map[string]string{}
		for _, entry := range c.environ(dirs[i]) {
			name, value, _ := strings.Cut(entry, "=")
			env[name] = value
		}
		if err := json.NewEncoder(&in).Encode(map[string]any{
			"argv": c.args(), "env": env, "dir": dirs[i], "devices": c.devices, "cores": accelerateCores,
		}); err != nil {
			t.Fatal(err)
		}
	}
	answers := askAccelerate[accelerateAnswer](t, in.Bytes())
	if len(answers) != len(cases) {
		t.Fatalf("%d answers to %d cases", len(answers), len(cases))
	}
	started := 0
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			req, err := c.ours(dirs[i])
			found := differences(req, err, answers[i])
			for _, key := range slices.Sorted(maps.Keys(found)) {
				if _, ok := c.differences[key]; !ok {
					t.Errorf("%s: %s", key, found[key])
				}
			}
			for key := range c.differences {
				if _, ok := found[key]; !ok {
					t.Errorf("%s is listed as a difference, and there is none", key)
				}
			}
			if err == nil && answers[i].Status == 0 {
				started++
			}
		})
	}
	if started < 30 {
		t.Errorf("only %d of %d cases are started by both", started, len(cases))
	}
}

// differences are those between our job and accelerate's, by what they are about.
func differences(req dialect.Request, err error, theirs accelerateAnswer) map[string]string {
	found := map[string]string{}
	switch {
	case err != nil && theirs.Status == 0:
		found["we refuse"] = fmt.Sprintf("accelerate starts %s, we say: %v", theirs.How, err)
		return found
	case err == nil && theirs.Status != 0:
		found["accelerate refuses"] = theirs.Message
		return found
	case err != nil:
		return found
	}
	job := &req.Job
	differ := func(key string, want, got any) {
		if fmt.Sprint(want) != fmt.Sprint(got) {
			found[key] = fmt.Sprintf("%v in accelerate, %v here", want, got)
		}
	}
	how := "torchrun"
	switch {
	case slices.Contains(job.Env.Unset, "RANK"):
		how = "simple"
	case len(job.Hosts.Nodes) > 0:
		how = "hosts"
	}
	differ("how", theirs.How, how)
	if theirs.How == "torchrun" && how == "torchrun" {
		compareTorchrun(job, theirs.Args, differ)
	}
	if theirs.How == "simple" && how == "simple" {
		words := argv(job.Command)
		if len(words) > 1 && words[0] == "py" { // -u is ours; their Python has a path
			words = slices.Concat([]string{theirs.Argv[0]}, words[2:])
		}
		differ("argv", theirs.Argv, words)
	}
	compareEnv(job, theirs, differ)
	return found
}

func compareTorchrun(job *launch.Job, args map[string]any, differ func(key string, want, got any)) {
	differ("nnodes", args["nnodes"], map[bool]string{true: "1:1", false: strconv.Itoa(job.Nodes.Max)}[job.Nodes.Max == 1 && args["nnodes"] == "1:1"])
	differ("nproc_per_node", args["nproc_per_node"], job.Procs)
	differ("role", args["role"], job.Role)
	differ("max_restarts", args["max_restarts"], job.Restart.MaxRestarts)
	differ("tee", args["tee"], streamsOf(job.Logs.Tee))
	dir, _ := args["log_dir"].(string)
	differ("log_dir", dir, job.Logs.Dir)
	words := argv(job.Command)
	last := []string{args["training_script"].(string)}
	for _, word := range args["training_script_args"].([]any) {
		last = append(last, word.(string))
	}
	differ("command", last, words[len(words)-len(last):])
	differ("module", args["module"] == true, job.Command.Kind == launch.Module)
	differ("no_python", args["no_python"] == true, job.Command.Kind == launch.Program)
	if job.Nodes.Max == 1 {
		port, _ := args["master_port"].(string)
		if n, err := strconv.Atoi(port); err == nil && n > 0 && job.Meeting.Backend == "standalone" {
			differ("port", []int{n}, job.Meeting.WorkerPorts)
		}
		return
	}
	differ("rdzv_backend", args["rdzv_backend"], job.Meeting.Backend)
	if job.Meeting.Backend == "static" {
		differ("node_rank", args["node_rank"], job.Meeting.NodeRank)
	}
	at := args["rdzv_endpoint"]
	if at == "" {
		port := args["master_port"]
		at = fmt.Sprint(args["master_addr"], ":", port)
	}
	differ("endpoint", at, job.Meeting.Endpoints[0])
}

// compareEnv compares each variable that a worker has, without those by which torchelastic tells ranks where it runs.
func compareEnv(job *launch.Job, theirs accelerateAnswer, differ func(key string, want, got any)) {
	ours := map[string]string{}
	for _, entry := range job.Environ {
		name, value, _ := strings.Cut(entry, "=")
		if !launch.TellsWorkers(name) {
			ours[name] = value
		}
	}
	for _, v := range slices.Concat(job.Env.Set, job.NodeEnv) {
		ours[v.Name] = v.Value
	}
	for _, name := range job.Env.Unset {
		delete(ours, name)
	}
	names := slices.Collect(maps.Keys(ours))
	for name := range theirs.Env {
		names = append(names, name)
	}
	for _, name := range names {
		if launch.TellsWorkers(name) && !slices.Contains(job.Env.Unset, "RANK") {
			continue // torchelastic's
		}
		want, theyHave := theirs.Env[name]
		got, weHave := ours[name]
		if !theyHave {
			want = "not set"
		}
		if !weHave {
			got = "not set"
		}
		differ("env "+name, want, got)
	}
}
