package launch

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/internal/hosts"
)

func lookup(env Env, name string) (Var, bool) {
	i := slices.IndexFunc(env, func(v Var) bool { return v.Name == name })
	if i < 0 {
		return Var{}, false
	}
	return env[i], true
}

// Each place where a variable can come from wins over the weaker ones.
func TestEnvPrecedence(t *testing.T) {
	job := testJob("2")
	job.Environ = append(job.Environ, "FROM=inherited", "GONE=x", "GONE_TOO=x", "DEVICE=inherited", "MUSTER_ENV=secret")
	flag := Source{FromFlag, "--env"}
	config := Source{FromConfig, "hosts:3"}
	job.Env.Set = []Var{
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
	job.NodeEnv = []Var{
		{Name: "NODE", Value: "node", Source: config}, {Name: "WORKER", Value: "node", Source: config}, {Name: "WORLD_SIZE", Value: "77", Source: config}, {Name: "MUSTER_AGENT", Value: "forged"},
	}
	job.WorkerEnv = [][]Var{{{Name: "WORKER", Value: "w0"}, {Name: "LOCAL_RANK", Value: "5"}}, {{Name: "ONLY", Value: "w1"}, {Name: "MUSTER_AGENT", Value: "forged"}}, nil}
	job.Env.Unset = []string{"GONE*", "TORCHELASTIC_RUN_ID", "*AGENT"}
	m := testMachine(t.TempDir())
	m.DeviceEnv = map[string]string{"DEVICE": "fake", "FAKE": "fake"}
	p, err := NewPlan(job, m)
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
		"FROM": {"set", "set"}, "DEVICE": {"set", "set"}, "FAKE": {"fake", "fake"}, "OMP_NUM_THREADS": {"8", "8"}, "RANK": {"4", "5"}, "TWICE": {"2", "2"}, "NODE": {"node", "node"},
		"BOTH": {"set//home/me/|$HOME $5 $", "set//home/me/|$HOME $5 $"}, "RAW": {"$HOME", "$HOME"}, "WORKER": {"w0", "node"}, "ONLY": {"", "w1"}, "LOCAL_RANK": {"5", "1"},
		"WORLD_SIZE": {"77", "77"}, "GONE": {}, "GONE_TOO": {}, "TORCHELASTIC_RUN_ID": {}, "MUSTER_ENV": {}, "MUSTER_AGENT": {p.agentID, p.agentID}, "HOME": {"/home/me", "/home/me"},
	} {
		for local := range got {
			v, ok := lookup(got[local], name)
			if v.Value != want[local] || ok != (want[local] != "") || v.Expand {
				t.Errorf("local rank %d: %s=%q (set: %v), want %q", local, name, v.Value, ok, want[local])
			}
		}
	}
	for name, want := range map[string]Var{"FROM": {Source: flag}, "WORLD_SIZE": {Source: config}, "WORKER": {Own: true}, "LOCAL_RANK": {Own: true}, "FAKE": {Source: Source{FromFlag, "fake accelerator"}}} {
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

	job.WorkerEnv = job.WorkerEnv[:1]
	if _, err := NewPlan(job, m); err == nil || errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "1 workers of this node, and it has 2") {
		t.Errorf("variables for too few workers: %v", err)
	}
}

// The accelerators that workers are given win over variables that said which there are to give.
func TestEnvAndDevices(t *testing.T) {
	job := testJob("2")
	job.Environ = append(job.Environ, "CUDA_VISIBLE_DEVICES=0,1")
	job.Env.Set = []Var{{Name: "CUDA_VISIBLE_DEVICES", Value: "4,6"}}
	m := testMachine(t.TempDir())
	seen := ""
	m.AssignDevices = func(string, int) (DeviceVars, error) {
		seen, _ = job.Lookup()("CUDA_VISIBLE_DEVICES")
		var vars DeviceVars
		for device := range strings.SplitSeq(seen, ",") {
			vars.Own = append(vars.Own, []Var{{Name: "CUDA_VISIBLE_DEVICES", Value: device}})
		}
		return vars, nil
	}
	for range 2 {
		p, err := NewPlan(job, m)
		if err != nil {
			t.Fatal(err)
		}
		w, err := p.Worker(testRound(2), 1, 0, "")
		if v, _ := lookup(w.Env, "CUDA_VISIBLE_DEVICES"); err != nil || v.Value != "6" || seen != "4,6" {
			t.Errorf("worker 1 sees %q of %q, %v", v.Value, seen, err)
		}
		job.Env.Set, job.NodeEnv = nil, job.Env.Set // what a node's own variables say counts alike
	}
}

func TestJobLookup(t *testing.T) {
	job := Job{
		Env:     EnvRules{Mode: EnvClean, Pass: []string{"P_*"}, Set: []Var{{Name: "S", Value: "$P_1 $HIDDEN", Expand: true}}, Unset: []string{"U"}},
		NodeEnv: []Var{{Name: "N", Value: "n"}},
	}
	for _, name := range []string{"S", "N", "U", "P_1", "HIDDEN", "HOME", "CUDA_VISIBLE_DEVICES"} {
		job.Environ = append(job.Environ, name+"=own "+name)
	}
	find := job.Lookup()
	for name, want := range map[string]string{"S": "own P_1 own HIDDEN", "N": "n", "U": "", "P_1": "own P_1", "HIDDEN": "", "HOME": "own HOME", "CUDA_VISIBLE_DEVICES": "own CUDA_VISIBLE_DEVICES"} {
		if got, ok := find(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, ok, want)
		}
	}
}

func TestCleanEnv(t *testing.T) {
	job := testJob("1")
	job.Env = EnvRules{Mode: EnvClean, Pass: []string{"NCCL_*"}}
	job.Environ = append(job.Environ, "NCCL_DEBUG=INFO", "LD_PRELOAD=evil.so", "CUDA_VISIBLE_DEVICES=3", "LANG=C", "SECRET=x")
	p, err := NewPlan(job, testMachine(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Worker(testRound(1), 0, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	var inherited []string
	for _, v := range w.Env {
		if v.Source.Kind == Inherited {
			inherited = append(inherited, v.Name)
		}
	}
	if diff := cmp.Diff([]string{"CUDA_VISIBLE_DEVICES", "HOME", "LANG", "NCCL_DEBUG", "PATH"}, inherited); diff != "" {
		t.Errorf("inherited (-want +got):\n%s", diff)
	}
}

func TestRemoteEnviron(t *testing.T) {
	machine := []string{
		"HOME=/home/there", "USER=there", "PATH=/usr/bin:/there/bin", "LD_LIBRARY_PATH=/there/lib", "HOSTNAME=there", "PWD=/home/there", "SHLVL=1", "_=/bin/x", "SSH_CONNECTION=a b",
		"TMPDIR=/there/tmp", "CUDA_VISIBLE_DEVICES=7", "ONLY_THERE=1", "LANG=C", "TERM=dumb",
	}
	launcher := []string{
		"HOME=/home/here", "USER=here", "LOGNAME=here", "SHELL=/bin/here", "PATH=/venv/bin:/usr/bin", "LD_LIBRARY_PATH=/here/lib", "HOSTNAME=here", "HOST=here", "PWD=/job", "OLDPWD=/", "SHLVL=3",
		"_=/bin/muster", "SSH_AUTH_SOCK=/x", "DISPLAY=:0", "XAUTHORITY=x", "XDG_RUNTIME_DIR=/run/user/0", "DBUS_SESSION_BUS_ADDRESS=x", "TMPDIR=/here/tmp", "CUDA_VISIBLE_DEVICES=0",
		"NVIDIA_VISIBLE_DEVICES=all", "SLURM_STEP_ID=0", "SLURM_PROCID=3", "SLURM_JOB_ID=44", "KUBERNETES_SERVICE_HOST=x", "BASH_FUNC_f%%=() { :; }", "TERM_PROGRAM=x", "LS_COLORS=x", "MUSTER_ENV=A=secret",
		"RANK=5", "MASTER_ADDR=here", "VIRTUAL_ENV=/venv", "CONDA_PREFIX=/conda", "NCCL_DEBUG=it's \"x\"\n$HOME \xff", "LANG=de", "TERM=xterm", "EMPTY=", "AWS_KEY=x", "MY_X=1", "no equals sign",
	}
	// What never crosses, whatever the mode.
	own := []string{"CUDA_VISIBLE_DEVICES=7", "HOME=/home/there", "HOSTNAME=there"}
	for name, c := range map[string]struct {
		rules EnvRules
		want  []string
	}{
		"launcher": {EnvRules{Deny: []string{"AWS_*"}}, slices.Concat(own, []string{
			"CONDA_PREFIX=/conda", "EMPTY=", "LANG=de", "LD_LIBRARY_PATH=/here/lib:/there/lib", "MY_X=1", "NCCL_DEBUG=it's \"x\"\n$HOME \xff", "ONLY_THERE=1", "PATH=/venv/bin:/usr/bin:/there/bin",
			"SLURM_JOB_ID=44", "SSH_CONNECTION=a b", "TERM=xterm", "TMPDIR=/there/tmp", "USER=there", "VIRTUAL_ENV=/venv",
		})},
		"launcher that passes more": {EnvRules{Mode: EnvLauncher, Pass: []string{"CUDA_*", "DISPLAY", "AWS_*", "MUSTER_*", "RANK"}, Deny: []string{"AWS_*", "[L-Z]*"}}, []string{
			"CONDA_PREFIX=/conda", "CUDA_VISIBLE_DEVICES=0", "DISPLAY=:0", "EMPTY=", "HOME=/home/there", "HOSTNAME=there", "LANG=C", "LD_LIBRARY_PATH=/there/lib", "ONLY_THERE=1",
			"PATH=/usr/bin:/there/bin", "SSH_CONNECTION=a b", "TERM=dumb", "TMPDIR=/there/tmp", "USER=there",
		}},
		"inherit": {EnvRules{Mode: EnvInherit, Pass: []string{"NCCL_*", "MY_?", "PATH"}, Deny: []string{"NCCL_D*"}}, slices.Concat(own, []string{
			"LANG=C", "LD_LIBRARY_PATH=/there/lib", "MY_X=1", "ONLY_THERE=1", "PATH=/venv/bin:/usr/bin:/there/bin", "SSH_CONNECTION=a b", "TERM=dumb", "TMPDIR=/there/tmp", "USER=there",
		})},
		"clean": {EnvRules{Mode: EnvClean, Pass: []string{"MY_*"}}, []string{
			"CUDA_VISIBLE_DEVICES=7", "HOME=/home/there", "LANG=C", "MY_X=1", "PATH=/usr/bin:/there/bin", "TERM=dumb", "USER=there",
		}},
	} {
		slices.Sort(c.want)
		passed := Passed(c.rules, launcher)
		// What leaves the machine is all that the other one needs, and travels as JSON.
		text, err := json.Marshal(Strings(passed))
		if err != nil {
			t.Fatal(err)
		}
		var arrived Strings
		if err := json.Unmarshal(text, &arrived); err != nil {
			t.Fatal(err)
		}
		for _, sent := range [][]string{launcher, arrived} {
			if diff := cmp.Diff(c.want, RemoteEnviron(c.rules, machine, sent)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		for _, kv := range passed {
			if strings.HasPrefix(kv, "MUSTER_") || strings.HasPrefix(kv, "RANK=") || strings.HasPrefix(kv, "HOME=") {
				t.Errorf("%s: %s left the machine", name, kv)
			}
		}
	}
}

func TestJobAsJSON(t *testing.T) {
	codes, err := ParseExitCodes("3,128-255")
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	in := Job{
		Restart: RestartRules{Retryable: codes, Delay: time.Second}, Stop: StopRules{Handled: []syscall.Signal{syscall.SIGTERM}},
		Logs: LogRules{Tee: StreamMap{ByRank: map[int]Streams{3: Both}}}, Sources: Sources{"x": {FromFlag, "-x"}},
		Meeting: Meeting{IsHost: &yes, StoreAllow: []netip.Prefix{netip.MustParsePrefix("::1/128")}}, Hosts: Hosts{Nodes: []Node{{Host: hosts.Host{Name: "n", Slots: 2}, WorkerEnv: [][]Var{{}, {{Name: "x"}}}}}},
		WorkerEnv: [][]Var{nil, {{Name: "y", Value: "\xfe"}}},
		Environ:   []string{"A=\xff\x00x", "B=ä\n\"", ""}, Command: Command{Kind: Module, Name: "m", Args: []string{"\xfe", "{"}, LocalRankFlag: "-r"}, RunID: "j", Nodes: Range{1, 2},
		Env: EnvRules{Set: []Var{{Name: "N", Value: "\xff", Source: Source{FromFlag, "--env"}, Expand: true}, {Name: "M", Value: "plain", Own: true}}},
	}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Job
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(ExitCodes{}, codeRange{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{`[1]`, `[{"bytes":"*"}]`, `{}`} {
		if err := json.Unmarshal([]byte(`{"Environ":`+bad+`}`), &out); err == nil {
			t.Errorf("%s was read", bad)
		}
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
	script, program := Command{Kind: Script, Name: "t.py", Interpreters: []string{"/nowhere/python"}}, Command{Name: "python", Args: []string{"t.py"}}
	job := func(c Command, r PythonRules) Job {
		j := testJob("1")
		j.Command, j.Python = c, r
		j.Environ = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "PYTHONHOME=/x", "VIRTUAL_ENV=" + active, "VIRTUAL_ENV_PROMPT=x", "HIDDEN=x"}
		return j
	}
	conda := func(dir, name string) map[string]string {
		return map[string]string{"CONDA_PREFIX": dir, "CONDA_DEFAULT_ENV": name, "PATH": dir + "/bin:/usr/bin:/bin", "PYTHONHOME": "", "VIRTUAL_ENV": ""}
	}
	for _, c := range []struct {
		name  string
		rules PythonRules
		path  string
		vars  map[string]string
	}{
		{"--python", PythonRules{Path: "./mypython"}, "./mypython", map[string]string{"VIRTUAL_ENV": active}},
		{"--venv", PythonRules{Venv: "given"}, given + "/bin/python", map[string]string{"VIRTUAL_ENV": given, "PATH": given + "/bin:/usr/bin:/bin", "PYTHONHOME": "", "VIRTUAL_ENV_PROMPT": ""}},
		{"--venv auto, active", PythonRules{Venv: "auto"}, active + "/bin/python", map[string]string{"VIRTUAL_ENV": active}},
		{"--conda", PythonRules{Conda: "ml"}, ml + "/bin/python", map[string]string{"FROM_PACKAGE": "1", "OVER": "user", "HIDDEN": "", "CONDA_PREFIX": ml}},
		{"--conda base", PythonRules{Conda: "base"}, root + "/bin/python", conda(root, "base")},
		{"--conda listed", PythonRules{Conda: "listed"}, listed + "/bin/python", conda(listed, "listed")},
		{"--conda with a path", PythonRules{Conda: ml}, ml + "/bin/python", conda(ml, ml)},
	} {
		for _, command := range []Command{script, program} {
			p, err := NewPlan(job(command, c.rules), m)
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
			if told := len(p.Notes()) > 0 && strings.Contains(p.Notes()[0], "cuda.sh"); told != (filepath.Base(filepath.Dir(filepath.Dir(w.Path))) == "ml") {
				t.Errorf("%s: notes %q", c.name, p.Notes())
			}
		}
	}
	near := fakeEnvironment(t, filepath.Join(dir, "venv"), false)
	if p, err := NewPlan(job(script, PythonRules{Venv: "auto"}), m); err != nil || p.entry.path != near+"/bin/python" {
		t.Errorf("--venv auto in the working directory: %+v, %v", p, err)
	}
	put(t, filepath.Join(ml, "conda-meta/state"), `{`, 0o644)
	for _, c := range []struct {
		command Command
		rules   PythonRules
		want    []string
	}{
		{script, PythonRules{Path: "nope"}, []string{"--python nope", `"nope"`}},
		{Command{Name: "sh"}, PythonRules{Path: "./mypython"}, []string{`"sh" does not begin with Python`}},
		{script, PythonRules{Venv: "nope"}, []string{"--venv nope", filepath.Join(dir, "nope")}},
		{script, PythonRules{Conda: "nope"}, []string{"--conda nope", filepath.Join(root, "envs/nope"), "/opt/conda/envs/nope"}},
		{script, PythonRules{Conda: given}, []string{"no conda-meta in " + given}},
		{script, PythonRules{Conda: "ml"}, []string{"conda-meta/state"}},
	} {
		_, err := NewPlan(job(c.command, c.rules), m)
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
