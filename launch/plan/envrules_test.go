package plan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/launch/job"
)

func lookup(env Env, name string) (job.Var, bool) {
	i := slices.IndexFunc(env, func(v job.Var) bool { return v.Name == name })
	if i < 0 {
		return job.Var{}, false
	}
	return env[i], true
}

// Each place where a variable can come from wins over the weaker ones.
func TestEnvPrecedence(t *testing.T) {
	j := testJob("2")
	j.Environ = append(j.Environ, "FROM=inherited", "GONE=x", "GONE_TOO=x", "DEVICE=inherited", "MUSTER_ENV=secret")
	flag := job.Source{Kind: job.FromFlag, Name: "--env"}
	config := job.Source{Kind: job.FromConfig, Name: "hosts:3"}
	j.Env.Set = []job.Var{
		{Name: "FROM", Value: "set", Source: flag},
		{Name: "DEVICE", Value: "set", Source: flag},
		{Name: "OMP_NUM_THREADS", Value: "8", Source: flag},
		{Name: "RANK", Value: "set", Source: flag},
		{Name: "TWICE", Value: "1", Source: flag},
		{Name: "TWICE", Value: "2", Source: flag},
		{Name: "NODE", Value: "set", Source: flag},
		{Name: "BOTH", Value: "$NODE/${HOME}/$NONE|$$HOME $5 $", Source: flag, Expand: true},
		{Name: "RAW", Value: "$HOME", Source: flag},
	}
	j.NodeEnv = []job.Var{
		{Name: "NODE", Value: "node", Source: config},
		{Name: "WORKER", Value: "node", Source: config},
		{Name: "WORLD_SIZE", Value: "77", Source: config},
		{Name: "MUSTER_AGENT", Value: "forged"},
	}
	j.WorkerEnv = [][]job.Var{
		{{Name: "WORKER", Value: "w0"}, {Name: "LOCAL_RANK", Value: "5"}},
		{{Name: "ONLY", Value: "w1"}, {Name: "MUSTER_AGENT", Value: "forged"}},
		nil,
	}
	j.Env.Unset = []string{"GONE*", "TORCHELASTIC_RUN_ID", "*AGENT"}
	m := testMachine(t.TempDir())
	m.DeviceEnv = map[string]string{"DEVICE": "fake", "FAKE": "fake"}
	p, err := New(j, m)
	if err != nil {
		t.Fatal(err)
	}
	var got [2]Env
	for local := range got {
		w, err := p.Worker(testRound(2), local, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		got[local] = w.Env
		if w.Rank != 4+local {
			t.Errorf("rank %d", w.Rank)
		}
		if diff := cmp.Diff([]string{"LOCAL_RANK", "MUSTER_AGENT", "ONLY", "WORKER"}, w.Varying); diff != "" {
			t.Error(diff)
		}
	}
	for name, want := range map[string][2]string{
		"FROM": {"set", "set"}, "DEVICE": {"set", "set"}, "FAKE": {"fake", "fake"}, "OMP_NUM_THREADS": {"8", "8"}, "RANK": {"4", "5"},
		"TWICE": {"2", "2"}, "NODE": {"node", "node"},
		"BOTH": {"set//home/me/|$HOME $5 $", "set//home/me/|$HOME $5 $"}, "RAW": {"$HOME", "$HOME"}, "WORKER": {"w0", "node"},
		"ONLY": {"", "w1"}, "LOCAL_RANK": {"5", "1"},
		"WORLD_SIZE": {"77", "77"}, "GONE": {}, "GONE_TOO": {}, "TORCHELASTIC_RUN_ID": {}, "MUSTER_ENV": {},
		"MUSTER_AGENT": {p.agentID, p.agentID}, "HOME": {"/home/me", "/home/me"},
	} {
		for local := range got {
			v, ok := lookup(got[local], name)
			if v.Value != want[local] || ok != (want[local] != "") || v.Expand {
				t.Errorf("local rank %d: %s=%q (set: %v), want %q", local, name, v.Value, ok, want[local])
			}
		}
	}
	for name, want := range map[string]job.Var{
		"FROM": {Source: flag}, "WORLD_SIZE": {Source: config}, "WORKER": {Own: true},
		"LOCAL_RANK": {Own: true}, "FAKE": {Source: job.Source{Kind: job.FromFlag, Name: "fake accelerator"}},
	} {
		if v, _ := lookup(got[0], name); v.Source != want.Source || v.Own != want.Own {
			t.Errorf("%s: source %v, own %v", name, v.Source, v.Own)
		}
	}
	if v, ok := p.Lookup("NODE"); v != "node" || !ok {
		t.Errorf("Lookup: %q, %v", v, ok)
	}
	if _, ok := p.Lookup("GONE"); ok {
		t.Error("Lookup found what was taken away")
	}

	j.WorkerEnv = j.WorkerEnv[:1]
	if _, err := New(j, m); err == nil || errhint.CodeOf(err) != errhint.Usage ||
		!strings.Contains(err.Error(), "1 workers of this node, and it has 2") {
		t.Errorf("variables for too few workers: %v", err)
	}
}

// The accelerators that workers are given win over variables that said which there are to give.
func TestEnvAndDevices(t *testing.T) {
	j := testJob("2")
	j.Environ = append(j.Environ, "CUDA_VISIBLE_DEVICES=0,1")
	j.Env.Set = []job.Var{{Name: "CUDA_VISIBLE_DEVICES", Value: "4,6"}}
	m := testMachine(t.TempDir())
	seen := ""
	m.AssignDevices = func(string, int) (DeviceVars, error) {
		seen, _ = j.Lookup()("CUDA_VISIBLE_DEVICES")
		var vars DeviceVars
		for device := range strings.SplitSeq(seen, ",") {
			vars.Own = append(vars.Own, []job.Var{{Name: "CUDA_VISIBLE_DEVICES", Value: device}})
		}
		return vars, nil
	}
	for range 2 {
		p, err := New(j, m)
		if err != nil {
			t.Fatal(err)
		}
		w, err := p.Worker(testRound(2), 1, 0, "")
		if v, _ := lookup(w.Env, "CUDA_VISIBLE_DEVICES"); err != nil || v.Value != "6" || seen != "4,6" {
			t.Errorf("worker 1 sees %q of %q, %v", v.Value, seen, err)
		}
		j.Env.Set, j.NodeEnv = nil, j.Env.Set // what a node's own variables say counts alike
	}
}

func TestCleanEnv(t *testing.T) {
	j := testJob("1")
	j.Env = job.EnvRules{Mode: job.EnvClean, Pass: []string{"NCCL_*"}}
	j.Environ = append(j.Environ, "NCCL_DEBUG=INFO", "LD_PRELOAD=evil.so", "CUDA_VISIBLE_DEVICES=3", "LANG=C", "SECRET=x")
	p, err := New(j, testMachine(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Worker(testRound(1), 0, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	var inherited []string
	for _, v := range w.Env {
		if v.Source.Kind == job.Inherited {
			inherited = append(inherited, v.Name)
		}
	}
	if diff := cmp.Diff([]string{"CUDA_VISIBLE_DEVICES", "HOME", "LANG", "NCCL_DEBUG", "PATH"}, inherited); diff != "" {
		t.Errorf("inherited (-want +got):\n%s", diff)
	}
}

// fakeEnvironment is a directory in which an interpreter seems to be.
func fakeEnvironment(t *testing.T, dir string, conda bool) string {
	t.Helper()
	for _, d := range []string{"bin", "conda-meta", "etc/conda/activate.d", "etc/conda/env_vars.d"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if !conda {
		if err := os.RemoveAll(filepath.Join(dir, "conda-meta")); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(dir, "bin/python"), "#!/bin/sh\necho "+dir+"\n", 0o755)
	return dir
}

func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestPythonRules(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	m := testMachine(dir)
	put(t, filepath.Join(dir, "t.py"), "", 0o644)
	put(t, filepath.Join(dir, "mypython"), "#!/bin/sh\n", 0o755)
	given := fakeEnvironment(t, filepath.Join(dir, "given"), false)
	active := fakeEnvironment(t, filepath.Join(home, "active"), false)
	root := fakeEnvironment(t, filepath.Join(home, "miniforge3"), true)
	ml := fakeEnvironment(t, filepath.Join(root, "envs/ml"), true)
	listed := fakeEnvironment(t, filepath.Join(home, "elsewhere/listed"), true)
	if err := os.MkdirAll(filepath.Join(home, ".conda"), 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(home, ".conda/environments.txt"), root+"\n"+listed+"\n", 0o644)
	put(t, filepath.Join(ml, "etc/conda/activate.d/cuda.sh"), "", 0o644)
	put(t, filepath.Join(ml, "etc/conda/env_vars.d/a.json"), `{"FROM_PACKAGE": "1", "OVER": "package"}`, 0o644)
	put(t, filepath.Join(ml, "conda-meta/state"), `{"version": 1, "env_vars": {"OVER": "user", "HIDDEN": "***unset***"}}`, 0o644)
	script, program := job.Command{Kind: job.Script, Name: "t.py", Interpreters: []string{"/nowhere/python"}},
		job.Command{Name: "python", Args: []string{"t.py"}}
	asked := func(c job.Command, r job.PythonRules) job.Job {
		j := testJob("1")
		j.Command, j.Python = c, r
		j.Environ = []string{
			"PATH=/usr/bin:/bin", "HOME=" + home, "PYTHONHOME=/x", "VIRTUAL_ENV=" + active,
			"VIRTUAL_ENV_PROMPT=x", "HIDDEN=x",
		}
		return j
	}
	conda := func(dir, name string) map[string]string {
		return map[string]string{
			"CONDA_PREFIX": dir, "CONDA_DEFAULT_ENV": name, "PATH": dir + "/bin:/usr/bin:/bin", "PYTHONHOME": "",
			"VIRTUAL_ENV": "",
		}
	}
	for _, c := range []struct {
		name  string
		rules job.PythonRules
		path  string
		vars  map[string]string
	}{
		{"--python", job.PythonRules{Path: "./mypython"}, "./mypython", map[string]string{"VIRTUAL_ENV": active}},
		{
			"--venv",
			job.PythonRules{Venv: "given"},
			given + "/bin/python",
			map[string]string{"VIRTUAL_ENV": given, "PATH": given + "/bin:/usr/bin:/bin", "PYTHONHOME": "", "VIRTUAL_ENV_PROMPT": ""},
		},
		{"--venv auto, active", job.PythonRules{Venv: "auto"}, active + "/bin/python", map[string]string{"VIRTUAL_ENV": active}},
		{
			"--conda",
			job.PythonRules{Conda: "ml"},
			ml + "/bin/python",
			map[string]string{"FROM_PACKAGE": "1", "OVER": "user", "HIDDEN": "", "CONDA_PREFIX": ml},
		},
		{"--conda base", job.PythonRules{Conda: "base"}, root + "/bin/python", conda(root, "base")},
		{"--conda listed", job.PythonRules{Conda: "listed"}, listed + "/bin/python", conda(listed, "listed")},
		{"--conda with a path", job.PythonRules{Conda: ml}, ml + "/bin/python", conda(ml, ml)},
	} {
		for _, command := range []job.Command{script, program} {
			p, err := New(asked(command, c.rules), m)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			w, err := p.Worker(testRound(1), 0, 0, "")
			if err != nil || w.Path != c.path {
				t.Errorf("%s: %s, %v; want %s", c.name, w.Path, err, c.path)
			}
			for name, want := range c.vars {
				if v, ok := lookup(w.Env, name); v.Value != want || ok != (want != "") {
					t.Errorf("%s: %s=%q, want %q", c.name, name, v.Value, want)
				}
			}
			if told := len(p.Notes()) > 0 &&
				strings.Contains(p.Notes()[0], "cuda.sh"); told != (filepath.Base(filepath.Dir(filepath.Dir(w.Path))) == "ml") {
				t.Errorf("%s: notes %q", c.name, p.Notes())
			}
		}
	}
	near := fakeEnvironment(t, filepath.Join(dir, "venv"), false)
	if p, err := New(asked(script, job.PythonRules{Venv: "auto"}), m); err != nil || p.entry.path != near+"/bin/python" {
		t.Errorf("--venv auto in the working directory: %+v, %v", p, err)
	}
	put(t, filepath.Join(ml, "conda-meta/state"), `{`, 0o644)
	for _, c := range []struct {
		command job.Command
		rules   job.PythonRules
		want    []string
	}{
		{script, job.PythonRules{Path: "nope"}, []string{"--python nope", `"nope"`}},
		{job.Command{Name: "sh"}, job.PythonRules{Path: "./mypython"}, []string{`"sh" does not begin with Python`}},
		{script, job.PythonRules{Venv: "nope"}, []string{"--venv nope", filepath.Join(dir, "nope")}},
		{script, job.PythonRules{Conda: "nope"}, []string{"--conda nope", filepath.Join(root, "envs/nope"), "/opt/conda/envs/nope"}},
		{script, job.PythonRules{Conda: given}, []string{"no conda-meta in " + given}},
		{script, job.PythonRules{Conda: "ml"}, []string{"conda-meta/state"}},
	} {
		_, err := New(asked(c.command, c.rules), m)
		if err == nil || errhint.CodeOf(err) == errhint.Internal {
			t.Errorf("%+v: %v", c.rules, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v; want %q", c.rules, err, want)
			}
		}
	}
}
