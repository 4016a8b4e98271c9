package dialect_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
)

func torchrun(t *testing.T, env []string, args ...string) dialect.Request {
	t.Helper()
	req, err := dialect.Torchrun(dialect.Invocation{Argv0: "torchrun", Args: args, Environ: env})
	if err != nil {
		t.Fatalf("torchrun %q: %v", args, err)
	}
	return req
}

// wantRefused checks that err has exit status 2 and all the pieces in its text.
func wantRefused(t *testing.T, err error, pieces ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted; want an error with %q", pieces)
	}
	if code := errhint.CodeOf(err); code != errhint.Usage {
		t.Errorf("status %d, want %d: %v", code, errhint.Usage, err)
	}
	for _, piece := range pieces {
		if !strings.Contains(err.Error(), piece) {
			t.Errorf("no %q in: %v", piece, err)
		}
	}
}

func TestTorchrunDefaults(t *testing.T) {
	env := []string{"PATH=/bin", "A=1"}
	j := torchrun(t, env, "train.py", "--lr", "0.1").Job
	retryable, err := job.ParseExitCodes("130,137,138,143")
	if err != nil {
		t.Fatal(err)
	}
	want := job.Job{
		Dialect: "torchrun",
		Command: job.Command{
			Kind: job.Script, Name: "train.py", Args: []string{"--lr", "0.1"}, Interpreters: []string{"python", "python3"},
			Substitute: true,
		},
		Nodes: job.Range{Min: 1, Max: 1}, Procs: "1", Role: "default",
		Meeting: meeting(func(m *job.Meeting) { m.Backend = "standalone" }),
		Restart: job.RestartRules{
			Policy: job.RestartOnFailure, Scope: job.ScopeWorld, ReplaceLimit: -1, BackoffLimit: -1, Delay: time.Second, DelayFactor: 2,
			DelayMax:  time.Minute,
			Retryable: retryable, Success: job.QuorumAll, Fail: job.QuorumAny, Clean: job.CleanAll,
		},
		Warm: job.WarmRules{Wait: time.Minute},
		See:  job.SeeRules{Keep: 24 * time.Hour},
		Stop: job.StopRules{
			Grace:   30 * time.Second,
			Handled: []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT},
		},
		InheritStdin: true, EventLog: "null", Environ: env, Sources: job.Sources{},
	}
	if diff := cmp.Diff(want, j, cmp.AllowUnexported(job.ExitCodes{}), cmp.Comparer(sameCodes)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func sameCodes(a, b job.ExitCodes) bool { return a.String() == b.String() }

// Everything behind the script is the script's, also what Python 3.11's torchrun refuses as an ambiguous abbreviation
// of its own options.
func TestScriptOwnsItsOptions(t *testing.T) {
	for _, args := range [][]string{
		{"--signal", "9"},
		{"--nproc", "--log", "-h", "--help", "--print-completion", "bash"},
		{"-r", "7", "-m", "--nnodes", "4", "--bogus=1"},
		{"a", "--", "-x"},
	} {
		job := torchrun(t, nil, append([]string{"--standalone", "train.py"}, args...)...).Job
		if diff := cmp.Diff(args, job.Command.Args); diff != "" {
			t.Errorf("%q (-want +got):\n%s", args, diff)
		}
	}
}

func TestTorchrunRefusals(t *testing.T) {
	for _, c := range []struct {
		args   string
		env    string
		pieces []string
	}{
		{"t.py", "PET_NNODES=2", []string{"PET_NNODES=2: nothing says where the nodes meet"}},
		{"--nnodes a t.py", "", []string{"--nnodes a", `invalid integer "a"`, "MIN:MAX"}},
		{"--nnodes 2:1 t.py", "", []string{"--nnodes 2:1", "MIN not above MAX"}},
		{"--node-rank 1 t.py", "", []string{"--node-rank 1", "only node rank 0"}},
		{"--rdzv-backend mine t.py", "", []string{"--rdzv-backend mine: choose static, c10d, etcd or muster"}},
		{"--numa-binding cores t.py", "", []string{"--numa-binding cores: choose one of node, socket, exclusive, core-complex"}},
		{
			"t.py", "MUSTER_NUMA_BINDING=cores",
			[]string{"MUSTER_NUMA_BINDING=cores for --numa-binding: choose one of node, socket, exclusive, core-complex"},
		},
		{"--logs-specs mine t.py", "", []string{"--logs-specs mine", "loads no Python"}},
		{"--event-log-handler mine t.py", "", []string{"--event-log-handler mine: choose null or console"}},
		{"--nproc-per-node 0 t.py", "", []string{"--nproc-per-node 0", "at least 1 worker"}},
		{"--nproc-per-node=-3 t.py", "", []string{"--nproc-per-node -3", "at least 1 worker"}},
		{"--nproc-per-node 1000000 t.py", "", []string{"--nproc-per-node 1000000", "4096"}},
		{"--nproc-per-node 4097 t.py", "", []string{"4096"}},
		{"--nproc-per-node 99999999999999999999 t.py", "", []string{"4096"}},
		{"--nproc-per-node gpus t.py", "", []string{"--nproc-per-node gpus: give a number, auto, cpu or gpu"}},
		{
			"--rdzv-backend c10d --rdzv-endpoint localhost:99999 t.py", "",
			[]string{"--rdzv-endpoint localhost:99999", `"99999"`, "0 to 65535"},
		},
		{"--rdzv-endpoint h t.py", "", []string{"--rdzv-endpoint h: the port is missing"}},
		{"--master-port 70000 t.py", "", []string{"--master-port 70000", "0 to 65535"}},
		{"--tee 4 t.py", "", []string{"--tee 4", "3 (both)"}},
		{"-r 0:1,1 t.py", "", []string{"--redirects 0:1,1"}},
		{"--local-ranks-filter a t.py", "", []string{"--local-ranks-filter a", "0,1,2"}},
		{"--no-python -m t", "", []string{"--no-python", "--module"}},
		{"--max-restarts -1 t.py", "", []string{"--max-restarts -1", "from 0"}},
		{"--max-restarts many t.py", "", []string{`--max-restarts many: invalid integer "many"`}},
		{"--shutdown-timeout -1 t.py", "", []string{"--shutdown-timeout -1"}},
		{"--rdzv-conf join_timeout=0 t.py", "", []string{"--rdzv-conf join_timeout=0", "above 0"}},
		{"--rdzv-conf is_host=maybe t.py", "", []string{"is_host=maybe", "true or false"}},
		{"--rdzv-conf abc t.py", "", []string{"--rdzv-conf abc", `"abc" must have a value`}},
		{"--rdzv-conf =1 t.py", "", []string{"<key1>=<value1>"}},
		{"--signals-to-handle SIGKILL t.py", "", []string{"SIGKILL cannot be handled"}},
		{"--signals-to-handle SIGURG t.py", "", []string{"SIGURG"}},
		{"--monitor-interval 0 t.py", "", []string{"--monitor-interval 0", "above 0"}},
		{"--start-method x t.py", "", []string{"--start-method x: choose one of spawn, fork, forkserver"}},
		{"t.py", "PET_START_METHOD=x", []string{"PET_START_METHOD=x", "spawn, fork, forkserver"}},
		{"t.py", "PET_STANDALONE=yes", []string{"PET_STANDALONE=yes", "--standalone", "1 for on"}},
		{"t.py", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x", []string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x"}},
		{"", "", []string{"without a training script"}},
		{"--standalone", "", []string{"without a training script"}},
		{"--bogus t.py", "", []string{"unknown flag --bogus"}},
		{"--nproc-pre-node 2 t.py", "", []string{"unknown flag --nproc-pre-node: did you mean --nproc-per-node?"}},
		{"--nproc 2 t.py", "", []string{"--nproc", "--nproc-per-node, --nproc_per_node"}},
		{"--role", "", []string{"--role without a value"}},
		{"--role -x t.py", "", []string{"--role without a value", "--role=-x"}},
		{"-r -x t.py", "", []string{"-r without a value", "-r-x"}},
		{"--standalone=1 t.py", "", []string{`--standalone with the value "1"`}},
		{"--print-completion fish", "", []string{"--print-completion fish", "bash, zsh, tcsh"}},
		{"--nnodes 2 --tee 9 --bogus t.py", "PET_MAX_RESTARTS=x", []string{"--bogus", "PET_MAX_RESTARTS=x"}},
		{"--nnodes 2 --tee 9 --logs-specs mine t.py", "", []string{"3 problems", "--nnodes 2", "--tee 9", "--logs-specs"}},
	} {
		t.Run(c.args+" "+c.env, func(t *testing.T) {
			var env []string
			if c.env != "" {
				env = []string{c.env}
			}
			_, err := dialect.Torchrun(dialect.Invocation{Args: strings.Fields(c.args), Environ: env})
			wantRefused(t, err, c.pieces...)
		})
	}
}

// torchrun's words and, beyond them, vendors of accelerators say what to count.
func TestWordsForWorkers(t *testing.T) {
	for word := range strings.FieldsSeq(
		"auto cpu gpu xpu npu musa mlu hpu nvidia amd metax hygon ascend cambricon mthreads iluvatar thead gaudi intel") {
		if job := torchrun(t, nil, "--nproc-per-node", word, "t.py").Job; job.Procs != word {
			t.Errorf("%s: procs %q", word, job.Procs)
		}
		if job := accepted(t, nil, "", "-n", word, "--", "prog").Job; job.Procs != word {
			t.Errorf("%s: procs %q", word, job.Procs)
		}
	}
	for _, word := range []string{"cuda", "mps", "GPU"} {
		_, err := dialect.Torchrun(dialect.Invocation{Args: []string{"--nproc-per-node", word, "t.py"}})
		wantRefused(t, err, "--nproc-per-node "+word+": give a number, auto, cpu or gpu")
	}
}

// A command line of nothing but mistakes is refused quickly and with a bounded text.
func TestManyMistakes(t *testing.T) {
	_, err := dialect.Torchrun(dialect.Invocation{Args: slices.Repeat([]string{"-x", "--nnodez"}, 50000)})
	wantRefused(t, err, "20 problems", "--nnodez: did you mean --nnodes?")
	if len(err.Error()) > 4000 {
		t.Errorf("a text of %d letters", len(err.Error()))
	}
}

func TestTorchrunMeeting(t *testing.T) {
	for _, c := range []struct {
		args  string
		want  job.Meeting
		runID string
	}{
		{"t.py", job.Meeting{Backend: "standalone"}, ""},
		{"--standalone --rdzv-id x t.py", job.Meeting{Backend: "standalone"}, ""},
		{"--rdzv-id x t.py", job.Meeting{Backend: "standalone"}, "x"},
		{"--master-addr 10.0.0.9 t.py", job.Meeting{Backend: "standalone"}, ""},
		{"--standalone --local-addr 10.0.0.1 t.py", job.Meeting{Backend: "standalone", Host: "10.0.0.1"}, ""},
		{"--master-port 5 t.py", job.Meeting{Backend: "static", Host: "127.0.0.1", Port: 5}, "none"},
		{"--master-port 5 --master-addr [::1] t.py", job.Meeting{Backend: "static", Host: "::1", Port: 5}, "none"},
		{"--rdzv-endpoint [::1]:7 --master-port 5 t.py", job.Meeting{Backend: "static", Host: "::1", Port: 7}, "none"},
		{"--rdzv-backend c10d t.py", job.Meeting{Backend: "c10d", Port: 29400}, "none"},
		{"--rdzv-backend c10d --rdzv-endpoint localhost t.py", job.Meeting{Backend: "c10d", Host: "localhost", Port: 29400}, "none"},
		{"--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id j t.py", job.Meeting{Backend: "c10d", Host: "localhost"}, "j"},
		{
			"--rdzv-backend c10d --rdzv-endpoint n1:9 --local-addr 10.0.0.1 t.py",
			job.Meeting{Backend: "c10d", Host: "10.0.0.1", Port: 9},
			"none",
		},
	} {
		j := torchrun(t, nil, strings.Fields(c.args)...).Job
		want := meeting(func(m *job.Meeting) { m.Backend, m.Host, m.Port = c.want.Backend, c.want.Host, c.want.Port })
		if want.Backend == "static" {
			want.NodeRank, want.JoinTimeout = 0, 900*time.Second
		}
		if diff := cmp.Diff(want, j.Meeting); diff != "" || j.RunID != c.runID {
			t.Errorf("%s: run id %q, want %q (-want +got):\n%s", c.args, j.RunID, c.runID, diff)
		}
	}
	conf := torchrun(t, nil, "--rdzv-conf", " join_timeout = 5 ,is_host=y", "t.py").Job.Meeting.Conf
	if diff := cmp.Diff(map[string]string{"join_timeout": "5", "is_host": "y"}, conf); diff != "" {
		t.Errorf("conf (-want +got):\n%s", diff)
	}
}

func TestTorchrunWarnings(t *testing.T) {
	for _, c := range []struct {
		args, env string
		want      []string
	}{
		{"--standalone --rdzv-id x t.py", "", []string{"--rdzv-id has no effect with --standalone"}},
		{"--standalone t.py", "PET_RDZV_ID=x", nil}, // set for all jobs, and nobody typed it
		{"--standalone --node-rank 3 t.py", "", []string{"--node-rank 3 has no effect"}},
		{"--rdzv-backend c10d t.py", "PET_NODE_RANK=2", []string{"PET_NODE_RANK=2 has no effect"}},
		{"--master-addr h t.py", "", []string{"--master-addr has no effect"}},
		{"--run-path --no-python t.py", "", []string{"--no-python has no effect with --run-path"}},
		{"--rdzv-conf join_timout=3 t.py", "", []string{`"join_timout" is unknown and ignored; did you mean join_timeout?`}},
		{"--rdzv-conf timeout=3 t.py", "", []string{"timeout has no effect"}},
		{"--rdzv-conf join_timeout=x --master-port 1 t.py", "", []string{"join_timeout has no effect with the static backend"}},
		{"--signals-to-handle SIGTERM,SIGFOO t.py", "", []string{`"SIGFOO" is no signal`}},
		{"t.py", "LOGLEVEL=LOUD", []string{"LOGLEVEL=LOUD"}},
		{"t.py", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=5", []string{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"}},
		{
			"t.py", "MUSTER_RESTART_POLCY=never",
			[]string{"MUSTER_RESTART_POLCY is unknown and ignored; did you mean MUSTER_RESTART_POLICY?"},
		},
		{"t.py", "MUSTER_TEST_REQUIRE=1", nil},
		{"t.py", "MUSTER_TEE=3", nil},
		{"--duplicate-stdout-filters a -t 2 t.py", "", []string{"--duplicate-stdout-filters has no effect"}},
		{"--duplicate-stderr-filters a -t 0:1,1:0 t.py", "", []string{"--duplicate-stderr-filters has no effect"}},
		{"--duplicate-stderr-filters a --duplicate-stdout-filters b -t 0:1,1:2 t.py", "", nil},
	} {
		got := torchrun(t, []string{c.env}, strings.Fields(c.args)...).Job.Warnings
		if len(got) != len(c.want) {
			t.Errorf("%s %s: %q, want %q", c.args, c.env, got, c.want)
			continue
		}
		for i := range c.want {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%s %s: %q, want %q", c.args, c.env, got[i], c.want[i])
			}
		}
	}
}

func TestInterpreters(t *testing.T) {
	for _, c := range []struct {
		argv0 string
		env   []string
		want  []string
	}{
		{"torchrun", nil, []string{"python", "python3"}},
		{"/v/bin/torchrun", nil, []string{"/v/bin/python", "python", "python3"}},
		{"./torchrun", nil, []string{"./python", "python", "python3"}},
		{"/usr/bin/muster", nil, []string{"python", "python3"}},
		{"/v/bin/torchrun", []string{"VIRTUAL_ENV=/w"}, []string{"/v/bin/python", "/w/bin/python", "python", "python3"}},
		{"/v/bin/torchrun", []string{"VIRTUAL_ENV=/w", "PYTHON_EXEC=/x/py"}, []string{"/x/py"}},
		{"torchrun", []string{"PYTHON_EXEC="}, []string{"python", "python3"}},
		{"torchrun", []string{"VIRTUAL_ENV=/w", "VIRTUAL_ENV=/z"}, []string{"/w/bin/python", "python", "python3"}},
	} {
		req, err := dialect.Torchrun(dialect.Invocation{Argv0: c.argv0, Args: []string{"t.py"}, Environ: c.env})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, req.Job.Command.Interpreters); diff != "" {
			t.Errorf("%s %q (-want +got):\n%s", c.argv0, c.env, diff)
		}
	}
}

func TestTorchrunVariables(t *testing.T) {
	env := []string{
		"PET_NPROC_PER_NODE=2", "PET_ROLE=pet", "MUSTER_ROLE=ours", "PET_MAX_RESTARTS=5", "PET_TEE=3", "MUSTER_TEE=", "MUSTER_MODULE=yes",
		"LOGLEVEL=debug",
		"TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE=/tmp/t",
	}
	req := torchrun(t, env, "--max-restarts=1", "t")
	j := req.Job
	if j.Procs != "2" || j.Role != "ours" || j.Restart.MaxRestarts != 1 || j.Logs.Tee.Default != job.Both || j.Command.Kind != job.Module {
		t.Errorf("procs %s, role %s, restarts %d, tee %v, kind %v", j.Procs, j.Role, j.Restart.MaxRestarts, j.Logs.Tee, j.Command.Kind)
	}
	if !j.Watchdog || j.WatchdogFile != "/tmp/t" {
		t.Errorf("watchdog %v at %q", j.Watchdog, j.WatchdogFile)
	}
	if req.LogLevel != "debug" {
		t.Errorf("log level %q", req.LogLevel)
	}
	want := job.Sources{
		"nproc-per-node": {Kind: job.FromVariable, Name: "PET_NPROC_PER_NODE"},
		"role":           {Kind: job.FromVariable, Name: "MUSTER_ROLE"},
		"tee":            {Kind: job.FromVariable, Name: "PET_TEE"},
		"module":         {Kind: job.FromVariable, Name: "MUSTER_MODULE"},
		"max-restarts":   {Kind: job.FromFlag, Name: "--max-restarts"},
		"log-level":      {Kind: job.FromVariable, Name: "LOGLEVEL"},
	}
	if diff := cmp.Diff(want, j.Sources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

func TestLogLevelOfTorchrun(t *testing.T) {
	for text, want := range map[string]string{
		"": "warn", "NOTSET": "debug", "info": "info", "20": "info", "WARNING": "warn", "Warn": "warn", "ERROR": "error",
		"CRITICAL": "error", "50": "error", "5": "debug", "LOUD": "warn",
	} {
		if got := torchrun(t, []string{"LOGLEVEL=" + text}, "t.py").LogLevel; got != want {
			t.Errorf("LOGLEVEL=%s: %s, want %s", text, got, want)
		}
	}
}

func TestStreamsOfManyRanks(t *testing.T) {
	j := torchrun(t, nil, "-r", "0:1,12:3", "-t", "3", "--local-ranks-filter", "3,1,3", "--log-dir", "/dev//null", "t.py").Job
	want := job.LogRules{
		Dir:      "/dev/null",
		Redirect: job.StreamMap{ByRank: map[int]job.Streams{0: job.Stdout, 12: job.Both}},
		Tee:      job.StreamMap{Default: job.Both}, Ranks: []int{1, 3},
	}
	if diff := cmp.Diff(want, j.Logs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTorchLaunch(t *testing.T) {
	for _, c := range []struct {
		args string
		want job.Command
	}{
		{"t.py a", job.Command{Kind: job.Script, Name: "t.py", Args: []string{"a"}, LocalRankFlag: "--local-rank"}},
		{"--use-env t.py a", job.Command{Kind: job.Script, Name: "t.py", Args: []string{"a"}}},
		{"--use_env -m mod", job.Command{Kind: job.Module, Name: "mod", Args: []string{}}},
		{"--no-python --use-env prog", job.Command{Kind: job.Program, Name: "prog", Args: []string{}}},
	} {
		req, err := dialect.Read("torch.distributed.launch", dialect.Invocation{Args: strings.Fields(c.args)})
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		c.want.Substitute = true
		if c.want.Kind != job.Program {
			c.want.Interpreters = []string{"python", "python3"}
		}
		if diff := cmp.Diff(c.want, req.Job.Command); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.args, diff)
		}
		if req.Job.Dialect != "torch.distributed.launch" {
			t.Errorf("dialect %q", req.Job.Dialect)
		}
	}
	_, err := dialect.TorchLaunch(dialect.Invocation{Args: []string{"--no-python", "prog"}})
	wantRefused(t, err, "--no-python without --use-env")
}

func TestNames(t *testing.T) {
	for _, name := range dialect.Names() {
		if !dialect.Named(name) {
			t.Errorf("%s is not named", name)
		}
		if _, err := dialect.Read(name, dialect.Invocation{Args: append(leading(name)[1:], "x.py")}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if dialect.Help(name) == "" {
			t.Errorf("no help for %s", name)
		}
	}
	if dialect.Named("train.py") || dialect.Help("train.py") != "" {
		t.Error("train.py is a dialect")
	}
	_, err := dialect.Read("train.py", dialect.Invocation{})
	wantRefused(t, err, "train.py", "torchrun")
}

// The own settings that count everywhere must not collide with flags of torchrun: their variables would mean two
// things.
func TestOwnSettingsAreNoFlagsOfTorchrun(t *testing.T) {
	anywhere := dialect.SettingFlags()
	for _, o := range dialect.TorchrunOptions() {
		if flag := strings.ReplaceAll(o.Dest, "_", "-"); anywhere[flag] {
			t.Errorf("--%s is both", flag)
		}
	}
}

func TestPythonValues(t *testing.T) {
	for text, want := range map[string]string{
		"5": "5", " +5\n": "5", "-0": "0", "1_000": "1000", "_1": "-", "1_": "-", "1__0": "-", "": "-", "0x1": "-", "1e3": "-",
		"--5": "-", "+": "-",
	} {
		got := "-"
		if n, err := dialect.PyInt(text); err == nil {
			got = fmt.Sprint(n)
		}
		if got != want {
			t.Errorf("int(%q): %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"0.5": "0.5", " 1e3 ": "1000", "1_0.5": "10.5", "INF": "+Inf", "-infinity": "-Inf", "nan": "NaN", "-NaN": "NaN", "1e999": "+Inf",
		"0x1p2": "-", "": "-", "--nan": "-", "1_e3": "-", "in": "-",
	} {
		got := "-"
		if f, err := dialect.PyFloat(text); err == nil {
			got = fmt.Sprint(f)
		}
		if got != want {
			t.Errorf("float(%q): %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string][]string{
		"": {""}, "a": {"a"}, "a,b": {"a", "b"}, "a,,b,c": {"a,b", "c"}, ",,,": {",", ""}, "ü,": {"ü", ""},
	} {
		if got := dialect.CommaList(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"--nproc-per-node", "--nnodes", "--node-rank", "--tee"}
	for word, want := range map[string]string{
		"--nproc-per-nod": "--nproc-per-node", "--nproc_per_ndoe": "--nproc-per-node", "--nodes": "--nnodes", "--tea": "--tee",
		"--bogus": "", "--nproc": "--nproc-per-node", "--n": "", "--nproc_per": "--nproc-per-node",
		"--" + strings.Repeat("n", 1000): "",
	} {
		if got := dialect.Nearest(word, known); got != want {
			t.Errorf("%.20s: %q, want %q", word, got, want)
		}
	}
}

func FuzzTorchrun(f *testing.F) {
	testutil.Long(f)
	for _, c := range append(chosenCases(), generatedCases(100)...) {
		var env strings.Builder
		for name, value := range c.Env {
			env.WriteString(name + "=" + value + "\x00")
		}
		f.Add(strings.Join(c.Argv, "\x00"), env.String())
	}
	f.Fuzz(func(t *testing.T, args, env string) {
		inv := dialect.Invocation{Args: strings.Split(args, "\x00"), Environ: strings.Split(env, "\x00")}
		for _, name := range dialect.Names() {
			req, err := dialect.Read(name, inv)
			if _, help := errorsAsHelp(err); help {
				if errhint.CodeOf(err) != errhint.OK {
					t.Fatalf("%s: help with status %d", name, errhint.CodeOf(err))
				}
				continue
			}
			if err != nil {
				if errhint.CodeOf(err) != errhint.Usage {
					t.Fatalf("%s: status %d: %v", name, errhint.CodeOf(err), err)
				}
				continue
			}
			if req.Job.Command.Name == "" || req.Job.Procs == "" || req.Job.Nodes.Min < 1 || req.Job.Nodes.Max < req.Job.Nodes.Min ||
				req.Job.Alone() != (len(req.Job.Meeting.Endpoints) == 0) || !req.Job.Alone() && req.Job.RunID == "" ||
				req.Job.Stop.Grace < 0 ||
				req.Job.Restart.MaxRestarts < 0 || len(req.Settings) == 0 {
				t.Fatalf("%s accepted an impossible job: %+v", name, req.Job)
			}
		}
	})
}

func TestNUMABinding(t *testing.T) {
	for _, c := range []struct {
		args, env string
		want      job.BindRules
		source    string
	}{
		{"t.py", "", job.BindRules{}, "default"},
		{"--numa-binding core-complex t.py", "", job.BindRules{Mode: "core-complex"}, "flag --numa-binding"},
		{"--numa_binding=exclusive t.py", "MUSTER_NUMA_BINDING=node", job.BindRules{Mode: "exclusive"}, "flag --numa-binding"},
		{"t.py", "MUSTER_NUMA_BINDING=socket", job.BindRules{Mode: "socket"}, "variable MUSTER_NUMA_BINDING"},
		{"t.py", "PET_NUMA_BINDING=node", job.BindRules{}, "default"}, // torchrun reads none
		{"t.py", "MUSTER_NUMA_FALLBACK=1", job.BindRules{Fallback: true}, "default"},
	} {
		job := torchrun(t, []string{c.env}, strings.Fields(c.args)...).Job
		if got := job.Sources["numa-binding"].String(); job.Bind != c.want || got != c.source {
			t.Errorf("%s %s: %+v from %s, want %+v from %s", c.env, c.args, job.Bind, got, c.want, c.source)
		}
	}
}

// The page that README's "What each flag does" leads to says of every flag what becomes of it.
func TestTorchrunPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/compat/torchrun.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"torchrun", "torch.distributed.launch"} {
		dialect.Flags(name).VisitAll(func(f *pflag.Flag) {
			if !bytes.Contains(page, []byte("`--"+f.Name+"`")) {
				t.Errorf("%s: --%s is not on the page", name, f.Name)
			}
		})
	}
}
