package dialect_test

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch/job"
)

// native reads args with a settings file, which may be "", as conf.yaml.
func native(env []string, config string, args ...string) (dialect.Request, error) {
	return dialect.Native(dialect.Invocation{Argv0: "muster", Args: args, Environ: env, ReadFile: func(name string) ([]byte, error) {
		if name != "conf.yaml" {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		return []byte(config), nil
	}})
}

func accepted(t *testing.T, env []string, config string, args ...string) dialect.Request {
	t.Helper()
	req, err := native(env, config, args...)
	if err != nil {
		t.Fatalf("run %q: %v", args, err)
	}
	return req
}

func TestNativeCommand(t *testing.T) {
	for _, c := range []struct {
		args string
		want job.Command
	}{
		{"-- python train.py --lr 0.1", job.Command{Name: "python", Args: []string{"train.py", "--lr", "0.1"}}},
		{"python train.py -n 3", job.Command{Name: "python", Args: []string{"train.py", "-n", "3"}}},
		{"-n 4 train.py --tee 3", job.Command{Kind: job.Script, Name: "train.py", Args: []string{"--tee", "3"}}},
		{"-n4 -- train.py -- x", job.Command{Kind: job.Script, Name: "train.py", Args: []string{"--", "x"}}},
		{"-m pkg.mod a", job.Command{Kind: job.Module, Name: "pkg.mod", Args: []string{"a"}}},
		{"--no-python train.py", job.Command{Name: "train.py"}},
		{"--no_python=0 train.py", job.Command{Kind: job.Script, Name: "train.py"}},
		{"-- -x", job.Command{Name: "-x"}},
	} {
		got := accepted(t, nil, "", strings.Fields(c.args)...).Job.Command
		if c.want.Kind != job.Program {
			c.want.Interpreters = []string{"python", "python3"}
		}
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.args, diff)
		}
	}
}

func TestNativeFlags(t *testing.T) {
	req := accepted(t, nil, "", strings.Fields(`--nodes 1 --nproc_per_node 8 --max-restarts 3 --restart-policy exit-code
		--retryable-exit-codes kubeflow --fatal-exit-codes 3,7-9 --backoff-limit 10 --restart-window 1h --restart-delay 500ms
		--restart-backoff 1.5:10s --active-deadline 90 --grace 2.5 --success-policy rank0 --fail-policy all
		--clean-policy unfinished --linger 5s --master-addr [::1] --master-port 2345
		--log-dir /dev/null -r 3 -t 0:1,10:2 --local-ranks-filter 0,10 --log-line-prefix-template x: --role r --run-id j
		--status-file s.json --summary e.json --http 127.0.0.1:1 --events e.jsonl --keep-runs 1h
		--accelerator fake:f.yaml --fake-on-real --exit-code-compat --stdin inherit --warm auto,torch,a.b_c --warm-wait 90
		--numa-binding core-complex --numa-fallback --isolate-devices --network-check --network-check-full
		--network-check-timeout 90 --comm-perf-test --switchbox-check --box-pairs 4:2 --box_pairs 5:0 1:3
		--min-bandwidth 1e4 --min-channels 3 --on-node-fault cordon --report out
		--ckpt on --ckpt-dir ck --ckpt-keep 3 --ckpt-slots 1 --ckpt-shim on --ckpt-rate 1.5MB --ckpt-salvage 5s
		--ckpt-signal usr2 --ckpt-on-file going --ckpt-on-command gone --ckpt-notices off
		--event-log-handler console --dry-run --show-values --json --log-level debug --log-format json -- prog`)...)
	codes := func(text string) job.ExitCodes {
		set, err := job.ParseExitCodes(text)
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	want := job.Job{
		Dialect: "run", RunID: "j", Role: "r", Procs: "8", Nodes: job.Range{Min: 1, Max: 1}, Command: job.Command{Name: "prog"},
		Meeting: meeting(func(m *job.Meeting) { m.Backend, m.Host, m.Port = "static", "::1", 2345 }),
		Restart: job.RestartRules{
			Policy: job.RestartExitCode, Scope: job.ScopeWorld, MaxRestarts: 3, ReplaceLimit: -1, BackoffLimit: 10, Window: time.Hour,
			Delay: 500 * time.Millisecond, DelayFactor: 1.5,
			DelayMax: 10 * time.Second, Retryable: codes(">=128"), Fatal: codes("3,7-9"), Success: job.QuorumRank0, Fail: job.QuorumAll,
			Linger: 5 * time.Second, Clean: job.CleanUnfinished, Deadline: 90 * time.Second,
		},
		Warm: job.WarmRules{Auto: true, Modules: []string{"torch", "a.b_c"}, Wait: 90 * time.Second},
		Bind: job.BindRules{Mode: "core-complex", Fallback: true},
		Check: job.CheckRules{
			Network: true, Full: true, Budget: 90 * time.Second, StragglerFactor: 2, CommPerf: true, MinNetBandwidth: 100,
			Switchbox:   job.SwitchboxRules{Pairs: [][2]int{{4, 2}, {5, 0}, {1, 3}}, MinBandwidth: 10000, MinChannels: 3},
			OnNodeFault: "cordon", ReportDir: "out", Quarantine: 10 * time.Minute,
		},
		Checkpoint: job.CheckpointRules{
			On: true, Dir: "ck", Keep: 3, Slots: 1, Shim: "on", Rate: 1_500_000, Salvage: 5 * time.Second,
			Signal: syscall.SIGUSR2, OnFile: "going", OnCommand: "gone", Unasked: true,
		},
		Stop: job.StopRules{Grace: 2500 * time.Millisecond},
		Logs: job.LogRules{
			Dir: "/dev/null", Redirect: job.StreamMap{Default: job.Both},
			Tee: job.StreamMap{ByRank: map[int]job.Streams{0: job.Stdout, 10: job.Stderr}}, Ranks: []int{0, 10}, Prefix: "x:",
			PrefixAll: true,
		},
		InheritStdin: true, Isolate: true, Fake: "f.yaml", FakeOnReal: true, EventLog: "console", StatusFile: "s.json", CompatExit: true,
		See: job.SeeRules{HTTP: "127.0.0.1:1", EventsFile: "e.jsonl", Summary: "e.json", Keep: time.Hour},
	}
	got := req.Job
	got.Stop.Handled, got.Sources = nil, nil
	if diff := cmp.Diff(want, got, cmp.Comparer(sameCodes), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !req.DryRun || !req.ShowValues || !req.JSON || req.LogLevel != "debug" || req.LogFormat != "json" {
		t.Errorf("dry run %v, JSON %v, log level %q, format %q", req.DryRun, req.JSON, req.LogLevel, req.LogFormat)
	}
	// What one node has no use for, and what only goes with something else; TestNativeMeetsOthers looks at what it
	// means.
	several := accepted(t, nil, "", strings.Fields(`--nodes 2:3 --spares 0 --node-unit 1 --topology-file topo --rdzv etcd://h
		--rdzv-conf close_timeout=7 --iface i --export-iface
		--join-timeout 8 --last-call 9 --keep-alive 3 --token-file tok --store-allow ::1 --store-limit 2GiB
		--etcd-user u --etcd-password-file p --etcd-cacert a --etcd-cert c --etcd-key k --restart-limit 4
		--restart-scope node --rdzv-id j --max-restarts 1 -- prog`)...)
	static := accepted(t, nil, "", strings.Fields("--rdzv static://h --nodes 2 --node-rank 1 --local-addr h prog")...)
	simulated := accepted(t, nil, "", strings.Fields("--simulate-nodes 2 --accelerator fake:f --platform none --dry-run --all prog")...)
	// TestHosts has --hostfile and --exclude.
	onHosts := accepted(t, nil, "", strings.Fields(`--hosts a --include a --ssh-user u --ssh-port 1 --ssh-identity k
		--ssh-host-key-policy off --ssh-option A=b --ssh-program s --ssh-parallel 1 --start-timeout 1
		--remote-dir /d --collect-logs l --collect-logs-limit 1GB --preflight off --env-deny D prog`)...)
	checked := accepted(t, nil, "", strings.Fields(`--nodes 2 --rdzv c10d://h --rdzv-id j --network-check
		--straggler-factor 1.5 --straggler-rule median --exclude-straggler --quarantine 5m --comm-perf-test
		--min-net-bandwidth 2.5e3 --ckpt-replicas 2 --token-file t prog`)...)
	rules := job.CheckRules{
		Network: true, Budget: 2 * time.Minute, StragglerFactor: 1.5, StragglerMedian: true, ExcludeStraggler: true, CommPerf: true,
		MinNetBandwidth: 2500,
		Quarantine:      5 * time.Minute,
	}
	if diff := cmp.Diff(rules, checked.Job.Check); diff != "" || checked.Job.Checkpoint.Replicas != 2 {
		t.Errorf("%d replicas, check (-want +got):\n%s", checked.Job.Checkpoint.Replicas, diff)
	}
	maps.Copy(static.Job.Sources, checked.Job.Sources)
	maps.Copy(static.Job.Sources, simulated.Job.Sources)
	maps.Copy(static.Job.Sources, onHosts.Job.Sources)
	maps.Copy(static.Job.Sources, accepted(t, nil, "", "--standalone", "prog").Job.Sources)
	// Other tests look at what these mean.
	hang := strings.Fields("--hang-timeout 5m --on-hang fail --hang-dir d --stacks on --max-restarts 3 --crash-loop 3 --sidecar s " +
		"--health-endpoint unix:s --health-command c prog")
	maps.Copy(static.Job.Sources, accepted(t, nil, "", hang...).Job.Sources)
	for _, python := range []string{"--python p", "--venv v", "--conda c"} { // TestEnvSettings looks at what these mean
		flags := "--env A=1 --env-file conf.yaml --env-expand --env-unset U --env-profile jax --env-mode clean --env-pass P --debug-mode " +
			python + " prog"
		maps.Copy(static.Job.Sources, accepted(t, nil, "", strings.Fields(flags)...).Job.Sources)
	}
	maps.Copy(static.Job.Sources, jobFileRequest(t).Job.Sources)
	for flag := range dialect.SettingFlags() {
		_, elsewhere := several.Job.Sources[flag]
		_, elsewhere2 := static.Job.Sources[flag]
		if _, ok := req.Job.Sources[flag]; !ok && !elsewhere && !elsewhere2 && flag != "config" && flag != "hostfile" &&
			flag != "exclude" && flag != "module" && flag != "no-python" {
			t.Errorf("--%s is not tested here", flag)
		}
	}
	if got := req.Job.Sources["nnodes"]; got.Name != "--nodes" {
		t.Errorf("the alias --nodes is noted as %v", got)
	}
}

func TestNativePrecedence(t *testing.T) {
	config := "role: file\ngrace: 4\n"
	env := []string{"MUSTER_CONFIG=conf.yaml"}
	for _, c := range []struct {
		env  []string
		args []string
		want string
		from string
	}{
		{nil, nil, "file", "config conf.yaml:1"},
		{[]string{"PET_ROLE=pet"}, nil, "pet", "variable PET_ROLE"},
		{[]string{"PET_ROLE=pet", "MUSTER_ROLE="}, nil, "pet", "variable PET_ROLE"},
		{[]string{"PET_ROLE=pet", "MUSTER_ROLE=own"}, nil, "own", "variable MUSTER_ROLE"},
		{[]string{"PET_ROLE=pet", "MUSTER_ROLE=own"}, []string{"--role", "flag"}, "flag", "flag --role"},
	} {
		req := accepted(t, append(c.env, env...), config, append(c.args, "prog")...)
		if from := req.Job.Sources["role"].String(); req.Job.Role != c.want || from != c.from {
			t.Errorf("%q %q: %s from %s, want %s from %s", c.env, c.args, req.Job.Role, from, c.want, c.from)
		}
		if req.Job.Stop.Grace != 4*time.Second {
			t.Errorf("grace %v", req.Job.Stop.Grace)
		}
	}
}

func TestNativeRefusals(t *testing.T) {
	for _, c := range []struct {
		args, env, config string
		pieces            []string
	}{
		{"", "", "", []string{"without a command"}},
		{"--", "", "", []string{"without a command"}},
		{"--nodes 2 x", "", "", []string{"--nnodes 2: nothing says how the nodes meet"}},
		{"-n 0 x", "", "", []string{"--nproc-per-node 0"}},
		{"-n", "", "", []string{"-n without a value"}},
		{"--role", "", "", []string{"--role without a value"}},
		{"--bogus x", "", "", []string{"unknown flag --bogus"}},
		{"--max-restart 3 x", "", "", []string{"unknown flag --max-restart: did you mean --max-restarts?"}},
		{"--nproc 3 x", "", "", []string{"unknown flag --nproc: did you mean --nproc-per-node?"}},
		{"-q x", "", "", []string{"unknown flag -q"}},
		{"--max-restarts -1 x", "", "", []string{"--max-restarts -1"}},
		{"--ckpt-rate 5 x", "", "", []string{"--ckpt-rate 5: give 64KiB a second at least"}},
		{"--numa-binding cores x", "", "", []string{"--numa-binding cores: choose one of node, socket, exclusive, core-complex"}},
		{"--numa-fallback x", "", "", []string{"--numa-fallback: it has no effect without --numa-binding"}},
		{"--restart-policy sometimes x", "", "", []string{"never, on-failure, always, exit-code"}},
		{"--max-restarts 3 --restart-policy always x", "", "", []string{"--restart-policy always without --active-deadline"}},
		{"--max-restarts 3 x", "MUSTER_RESTART_POLICY=always", "", []string{"MUSTER_RESTART_POLICY=always without --active-deadline"}},
		{"--restart-policy never --max-restarts 3 x", "", "", []string{"--restart-policy never with --max-restarts 3"}},
		{"--restart-policy on-failure x", "", "", []string{"--max-restarts is 0"}},
		{"--retryable-exit-codes 3 x", "", "", []string{"give --restart-policy exit-code"}},
		{"--retryable-exit-codes 3-1 x", "", "", []string{"3-1"}},
		{"--fatal-exit-codes 300 x", "", "", []string{"--fatal-exit-codes 300"}},
		{"--restart-delay 2m --restart-backoff 2:60s x", "", "", []string{"--restart-delay 2m", "2:60s"}},
		{"--restart-backoff 0.5 x", "", "", []string{"--restart-backoff 0.5"}},
		{"--linger 5 x", "", "", []string{"--linger 5: it has no effect where the job ends with its last worker"}},
		{"--fake-on-real x", "", "", []string{"--accelerator fake:FILE"}},
		{"--accelerator gpu x", "", "", []string{"--accelerator gpu: give auto, or fake:FILE"}},
		{"--accelerator fake: x", "", "", []string{"fake:FILE"}},
		{"--grace soon x", "", "", []string{"--grace soon", "500ms"}},
		{"--grace -1 x", "", "", []string{"--grace -1"}},
		{"--active-deadline 1e300 x", "", "", []string{"--active-deadline 1e300"}},
		{"--active-deadline NaN x", "", "", []string{"--active-deadline NaN"}},
		{"--master-port 70000 x", "", "", []string{"--master-port 70000"}},
		{"--master-addr a/b x", "", "", []string{"--master-addr a/b"}},
		{"--stdin file x", "", "", []string{"--stdin file: choose one of auto, null, inherit"}},
		{"--warm torch,,x y", "", "", []string{"--warm torch,,x", `"" is no module's name`, "off, restarts, auto"}},
		{"--warm torch,restarts x", "", "", []string{`"restarts" is no module's name`}},
		{"--max-restarts 1 --warm restarts --warm-wait 9s x", "", "", []string{"--warm-wait 9s: it has no effect without --warm auto"}},
		{"--warm torch,auto x", "", "", []string{`"auto" is no module's name`}},
		{"--warm on x", "", "", []string{`"on" is no module's name: give off, restarts, auto`}},
		{"--warm a/b.py x", "", "", []string{`"a/b.py" is no module's name`}},
		{"--warm-wait never x", "", "", []string{"--warm-wait never"}},
		{"x", "MUSTER_WARM=torch;os", "", []string{"MUSTER_WARM=torch;os"}},
		{"--dry-run=maybe x", "", "", []string{"--dry-run maybe"}},
		{"-m --no-python x", "", "", []string{"--no-python and --module"}},
		{"--log-level loud x", "", "", []string{"debug, info, warn, error"}},
		{"x", "MUSTER_GRACE=soon", "", []string{"MUSTER_GRACE=soon"}},
		{"x", "PET_NNODES=4", "", []string{"PET_NNODES=4: nothing says how the nodes meet"}},
		{
			"--grace soon --stdin file -n 0", "MUSTER_TEE=9", "",
			[]string{"5 problems", "--grace", "--stdin", "--nproc-per-node", "MUSTER_TEE=9", "without a command"},
		},
		{"--config conf.yaml x", "", "grace: soon\n", []string{"conf.yaml:1 (grace: soon)", "500ms"}},
		{"--config missing.yaml x", "", "", []string{"missing.yaml", "not exist"}},
	} {
		t.Run(c.args+" "+c.env, func(t *testing.T) {
			_, err := native([]string{c.env}, c.config, strings.Fields(c.args)...)
			wantRefused(t, err, c.pieces...)
		})
	}
}

// TestWarmDoubts: which modules of --warm may be misspelt words of it.
func TestWarmDoubts(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"atuo": {"atuo": "auto"}, "of": {"of": "off"}, "onn": {"onn": "auto"}, "restart": {"restart": "restarts"},
		"torch,atuo": {"atuo": "auto"}, "os": {"os": "auto"}, "torch,numpy,jax": nil, "auto": nil, "auto,torch": nil,
	} {
		req := accepted(t, nil, "", "--warm", text, "x")
		if diff := cmp.Diff(want, req.Job.Warm.Doubted); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestSettingsFile(t *testing.T) {
	req := accepted(t, nil, `
# a comment
nproc_per_node: 4
max-restarts: 2
restart-policy: exit-code
retryable-exit-codes: [130, ">=140"]
fatal-exit-codes: 3
local-ranks-filter: [0, 1]
grace: 1.5
linger: 0
tee: 3
exit-code-compat: &yes true
json: *yes
role: 7
`, "--config=conf.yaml", "x")
	j := req.Job
	if j.Procs != "4" || j.Restart.MaxRestarts != 2 || j.Restart.Retryable.String() != "130,140-255" || j.Restart.Fatal.String() != "3" ||
		j.Stop.Grace != 1500*time.Millisecond || j.Logs.Tee.Default != job.Both || !j.CompatExit || !req.JSON || j.Role != "7" ||
		!cmp.Equal(j.Logs.Ranks, []int{0, 1}) {
		t.Errorf("%+v", req)
	}
	if got := j.Sources["nproc-per-node"].String(); got != "config conf.yaml:3" {
		t.Errorf("source %q", got)
	}
	for _, text := range []string{"", "# nothing\n", "{}", "---\n"} {
		accepted(t, nil, text, "--config=conf.yaml", "x")
	}
	for text, pieces := range map[string][]string{
		"bogus: 1":                       {"conf.yaml:1", `unknown setting "bogus"`},
		"role: a\nmax-restart: 1":        {"conf.yaml:2", "did you mean max-restarts?"},
		"max-restarts: many":             {"conf.yaml:1", "max-restarts: give a whole number"},
		"max-restarts: 1.5":              {"conf.yaml:1", "whole number"},
		"max-restarts:":                  {"conf.yaml:1", "whole number"},
		"dry-run: 1":                     {"conf.yaml:1", "dry-run: give true or false"},
		"role: [a]":                      {"conf.yaml:1", "role: give a string"},
		"role: true":                     {"conf.yaml:1", "role: give a string"},
		"grace: true":                    {"conf.yaml:1", "30s"},
		"fatal-exit-codes: [[1]]":        {"conf.yaml:1", "item 1"},
		"role: a\nrole: b":               {"conf.yaml:2", "role is given twice"},
		"nodes: 1\nnnodes: 1":            {"conf.yaml:2", "nnodes is given twice"},
		"config: other.yaml":             {"conf.yaml:1", "cannot name another"},
		"- role":                         {"conf.yaml:1", "map of flags"},
		"role":                           {"conf.yaml:1", "map of flags"},
		"role: a\n---\nrole: b":          {"more than one YAML document"},
		"role: [":                        {"conf.yaml", "line 1"},
		"? [a]\n: b":                     {"conf.yaml:1", "unknown setting"},
		"bogus: 1\ngrace: {}\ntee: true": {"3 problems", "conf.yaml:1", "conf.yaml:2", "conf.yaml:3"},
		strings.Repeat("#", 1<<20+1):     {"exceed the limit"},
	} {
		_, err := native(nil, text, "--config=conf.yaml", "x")
		if err == nil {
			t.Errorf("accepted: %.40q", text)
			continue
		}
		wantRefused(t, err, pieces...)
	}
	_, err := dialect.Native(dialect.Invocation{Args: []string{"--config", "f", "x"}})
	wantRefused(t, err, "cannot read f")
}

func FuzzSettingsFile(f *testing.F) {
	for _, text := range []string{
		"", "---\n", "role: a\ngrace: 5\n", "retryable-exit-codes: [1, '>=3']", "a: &x 1\nb: *x", "<<: {role: a}", "? [a]\n: b",
		"role: !!binary aGk=", "{", "- a", "\xff",
		"tee: 3\nredirects: '0:1'\nlinger: 1.5\ndry-run: yes",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		req, err := native(nil, text, "--config", "conf.yaml", "x")
		if err != nil && errhint.CodeOf(err) != errhint.Usage {
			t.Fatalf("status %d: %v", errhint.CodeOf(err), err)
		}
		for flag, source := range req.Job.Sources {
			if flag != "config" && source.Kind != job.FromConfig {
				t.Fatalf("%s from %v", flag, source)
			}
		}
	})
}

func TestParseOwn(t *testing.T) {
	for _, c := range []struct{ args, rest string }{
		{"torchrun --dry-run", "torchrun --dry-run"},
		{"--dry-run --status-file s.json torchrun --standalone t.py", "torchrun --standalone t.py"},
		{"--dry-run=false --grace=3 run x", "run x"},
		{"--help", "--help"},
		{"--dry-run --version", "--version"},
		{"-h", "-h"},
		{"-- torchrun", "-- torchrun"},
		{"", ""},
	} {
		_, rest, err := dialect.ParseOwn(strings.Fields(c.args))
		if got := strings.Join(rest, " "); err != nil || got != c.rest {
			t.Errorf("%s: rest %q, %v", c.args, got, err)
		}
	}
	_, _, err := dialect.ParseOwn([]string{"--dry-rnu", "torchrun"})
	wantRefused(t, err, "unknown flag --dry-rnu: did you mean --dry-run?")
	_, _, err = dialect.ParseOwn([]string{"--grace"})
	wantRefused(t, err, "--grace without a value")
	for _, words := range []string{
		"--nnodes=1 torchrun t.py", "--dry-run --nnodes=1 torchrun t.py", "--dry-run --rdzv-backend c10d torchrun t.py",
	} {
		_, _, err = dialect.ParseOwn(strings.Fields(words))
		wantRefused(t, err, "in front of a launcher's name")
	}
	for words, want := range map[string]string{
		"--frob torchrun x.py":      "unknown flag --frob in front of torchrun",
		"--standalon torchrun x.py": "did you mean its --standalone?",
		"--multi-gpu accelerate":    "cannot use --multi-gpu in front of a launcher's name",
	} {
		_, _, err := dialect.ParseOwn(strings.Fields(words))
		wantRefused(t, err, want)
	}
	for words, hint := range map[string]string{ // of the launcher that was written
		"-np 2 horovodrun python t.py":                  "muster horovodrun -np …",
		"--dry-run -np 2 mpirun python t.py":            "muster mpirun -np …",
		"--nproc-per-node 2 t.py":                       "muster torchrun --nproc-per-node …",
		"--nproc-per-node 2 torchrun t.py":              "muster torchrun --nproc-per-node …",
		"--nproc_per_node 2 dlrover-run t.py":           "muster dlrover-run --nproc_per_node …",
		"--nproc_per_node 2 colossalai run t.py":        "muster colossalai run --nproc_per_node …",
		"--nproc-per-node=2 run t.py":                   "muster run --nproc-per-node …",
		"--use-env torch.distributed.launch t.py":       "muster torch.distributed.launch --use-env …",
		"--num-gpus 2 deepspeed t.py":                   "muster deepspeed --num-gpus …",
		"--num_processes 2 accelerate launch t.py":      "muster accelerate launch --num_processes …",
		"--map-by node mpirun t.py":                     "muster mpirun --map-by …",
		"--nproc-per-node 2 deepspeed t.py":             "deepspeed's own, which muster deepspeed --help lists",
		"--no-python horovodrun t.py":                   "horovodrun's own, which muster horovodrun --help lists",
		"--rdzv-backend c10d accelerate launch t.py":    "muster accelerate launch --rdzv-backend …",
		"--nnodes 2 accelerate launch --cpu t.py":       "accelerate launch's own, which muster accelerate launch --help lists",
		"--rdzv_endpoint h:1 torch.distributed.run .py": "muster torch.distributed.run --rdzv_endpoint …",
	} {
		_, _, err := dialect.ParseOwn(strings.Fields(words))
		if got := errhint.Of(err); !strings.Contains(got, hint) {
			t.Errorf("%s: %v, hint %q, want %q", words, err, got, hint)
		}
	}
	for _, words := range []string{"--frob status", "--frob", "--help torchrun"} { // others know of these
		if _, rest, err := dialect.ParseOwn(strings.Fields(words)); err != nil || strings.Join(rest, " ") != words {
			t.Errorf("%s: rest %q, %v", words, rest, err)
		}
	}
}

// own reads a whole command line: muster's own flags, the dialect, its arguments.
func own(env []string, config, line string) (dialect.Request, error) {
	flags, rest, err := dialect.ParseOwn(strings.Fields(line))
	if err != nil {
		return dialect.Request{}, err
	}
	return dialect.Read(rest[0],
		dialect.Invocation{Argv0: "muster", Args: rest[1:], Environ: env, Own: flags, ReadFile: func(name string) ([]byte, error) {
			if name == "/job/hostfile" { // which deepspeed looks for unasked
				return nil, fs.ErrNotExist
			}
			return []byte(config), nil
		}})
}

// likeTorchrun reports whether a dialect has torchrun's flags.
func likeTorchrun(name string) bool {
	switch name {
	case "colossalai", "colossalairun", "deepspeed", "horovodrun", "mpirun", "mpiexec":
		return false
	}
	return true
}

func TestOwnSettingsInEveryDialect(t *testing.T) {
	for _, name := range dialect.Names() {
		restarts := map[bool]string{true: " --max-restarts 2 ", false: " "}[likeTorchrun(name)]
		onHosts, again := strings.HasPrefix(name, "mpi") || name == "horovodrun", 2
		more := "--stdin=inherit --backoff-limit 2 "
		switch {
		case name == "horovodrun":
			more, again = "", 0 // its world is made once
		case onHosts:
			more = "--backoff-limit 2 "
		}
		env := []string{"MUSTER_RESTART_POLICY=exit-code", "MUSTER_FAKE=f.yaml", "MUSTER_STATUS_FILE=env.json", "MUSTER_CONFIG=own.yaml"}
		req, err := own(env, "log-level: error\nactive-deadline: 1h\nstatus-file: file.json\n",
			"--dry-run --status_file s.json "+more+strings.Join(leading(name), " ")+restarts+"t.py")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		j := req.Job
		if !req.DryRun || j.StatusFile != "s.json" || j.Restart.Policy != job.RestartExitCode || j.Fake != "f.yaml" ||
			j.Restart.Deadline != time.Hour || req.LogLevel != "error" || j.InheritStdin == onHosts || j.Restart.MaxRestarts != again {
			t.Errorf("%s: %+v", name, req)
		}
		sources := map[string]string{
			"dry-run": "flag --dry-run", "status-file": "flag --status-file", "restart-policy": "variable MUSTER_RESTART_POLICY",
			"accelerator": "variable MUSTER_FAKE", "active-deadline": "config own.yaml:2",
			"max-restarts": "flag --" + map[bool]string{true: "max-restarts", false: "backoff-limit"}[likeTorchrun(name)],
		}
		if name == "horovodrun" {
			delete(sources, "max-restarts")
		}
		for flag, want := range sources {
			if got := j.Sources[flag].String(); got != want {
				t.Errorf("%s: %s from %q, want %q", name, flag, got, want)
			}
		}
	}
}

func TestGraceMeetsShutdownTimeout(t *testing.T) {
	for _, c := range []struct {
		env, line string
		want      time.Duration
		from      string
	}{
		{"", "torchrun t.py", 30 * time.Second, "default"},
		{"", "torchrun --shutdown-timeout 5 t.py", 5 * time.Second, "flag --shutdown-timeout"},
		{"", "--grace 7 torchrun t.py", 7 * time.Second, "flag --grace"},
		{"MUSTER_GRACE=7", "torchrun --shutdown-timeout 5 t.py", 5 * time.Second, "flag --shutdown-timeout"},
		{"MUSTER_GRACE=7", "torchrun t.py", 7 * time.Second, "variable MUSTER_GRACE"},
		{"PET_SHUTDOWN_TIMEOUT=9", "--grace 7 torchrun t.py", 7 * time.Second, "flag --grace"},
		{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9", "torchrun t.py", 9 * time.Second, "variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
	} {
		req, err := own([]string{c.env}, "", c.line)
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		if from := req.Job.Sources["grace"].String(); req.Job.Stop.Grace != c.want || from != c.from {
			t.Errorf("%s %s: %v from %s, want %v from %s", c.env, c.line, req.Job.Stop.Grace, from, c.want, c.from)
		}
	}
	_, err := own(nil, "", "--grace 7 torchrun --shutdown-timeout 5 t.py")
	wantRefused(t, err, "--grace and --shutdown-timeout together")
}

func TestOwnRefusals(t *testing.T) {
	for line, pieces := range map[string][]string{
		"--restart-policy always torchrun t.py":      {"--restart-policy always without --active-deadline"},
		"--stdin file --nnodes torchrun t.py":        {"--nnodes in front of a launcher's name"},
		"--config f torchrun t.py":                   {"f:1", "nnodes", "in front of another launcher"},
		"--grace soon torchrun --nnodes 2 t.py":      {"2 problems", "--grace soon", "--nnodes 2"},
		"--accelerator x torch.distributed.run t.py": {"--accelerator x"},
	} {
		_, err := own(nil, "nnodes: 3\n", line)
		wantRefused(t, err, pieces...)
	}
	// torchrun's scripts ask for restarts where a whole machine forbids them; that is no contradiction.
	req, err := own([]string{"MUSTER_RESTART_POLICY=never"}, "", "torchrun --max-restarts 3 t.py")
	if err != nil || req.Job.Restart.Policy != job.RestartNever {
		t.Errorf("%v, %v", req.Job.Restart, err)
	}
}

func TestRunIDMeetsRdzvID(t *testing.T) {
	for _, c := range []struct{ env, line, want string }{
		{"", "--run-id j torchrun --standalone --rdzv-id x t.py", "j"},
		{"", "--run-id j torchrun t.py", "j"},
		{"", "--run-id j torchrun --master-port 1 t.py", "j"},
		{"MUSTER_RUN_ID=j", "torchrun --rdzv-id x t.py", "x"},
		{"MUSTER_RUN_ID=j", "torchrun t.py", "j"},
		{"", "torchrun --rdzv-id x t.py", "x"},
		{"", "torchrun --standalone --rdzv-id x t.py", ""},
	} {
		req, err := own([]string{c.env}, "", c.line)
		if err != nil || req.Job.RunID != c.want {
			t.Errorf("%s %s: %q, %v; want %q", c.env, c.line, req.Job.RunID, err, c.want)
		}
	}
	_, err := own(nil, "", "--run-id j torchrun --rdzv-id x t.py")
	wantRefused(t, err, "--run-id and --rdzv-id together")
}

// Errors are printed as JSON too when JSON was asked for.
func TestJSONWithErrors(t *testing.T) {
	for _, c := range []struct{ env, line string }{
		{"", "--json torchrun --bogus"},
		{"", "--json torchrun --nnodes 2 t.py"},
		{"MUSTER_JSON=1", "torchrun --bogus"},
		{"", "--json run --bogus"},
		{"", "run --json --nnodes 2 x"},
	} {
		if req, err := own([]string{c.env}, "", c.line); err == nil || !req.JSON {
			t.Errorf("%s %s: JSON %v, %v", c.env, c.line, req.JSON, err)
		}
	}
	if req, err := own(nil, "", "torchrun --bogus"); err == nil || req.JSON {
		t.Errorf("JSON %v, %v", req.JSON, err)
	}
}

func TestDelayAboveTheDefaultBound(t *testing.T) {
	if got := accepted(t, nil, "", "--max-restarts", "2", "--restart-delay", "2m", "x").Job.Restart.DelayMax; got != 2*time.Minute {
		t.Errorf("longest pause %v", got)
	}
}

// The settings of --dry-run are complete and in the order of the help text.
func TestSettings(t *testing.T) {
	torchrun := torchrun(t, []string{"PET_TEE=3", "MUSTER_LINGER=4"}, "--nproc_per", "2", "t.py")
	native := accepted(t, []string{"PET_TEE=3"}, "", "-n", "2", "x")
	var b strings.Builder
	for _, req := range []dialect.Request{torchrun, native} {
		fmt.Fprintf(&b, "%s\n", req.Job.Dialect)
		for _, s := range req.Settings {
			fmt.Fprintf(&b, "  %s = %q (%v)\n", s.Flag, s.Value, s.Source)
		}
	}
	golden(t, "settings.txt", b.String())
}

func TestHelp(t *testing.T) {
	for _, name := range []string{
		"run", "torchrun", "torch.distributed.launch", "dlrover-run", "mpirun", "accelerate-launch", "deepspeed",
		"colossalairun", "horovodrun",
	} {
		golden(t, "help-"+name+".txt", dialect.Help(name))
		for _, flag := range []string{"-h", "--help"} {
			if flag == "-h" && name == "colossalairun" { // which click does not know
				continue
			}
			_, err := dialect.Read(name, dialect.Invocation{Args: []string{flag, "x"}})
			text, ok := errorsAsHelp(err)
			if !ok || text != dialect.Help(name) || errhint.CodeOf(err) != errhint.OK {
				t.Errorf("%s %s: %v", name, flag, err)
			}
		}
		for line := range strings.SplitSeq(dialect.Help(name), "\n") {
			if len(line) > 130 {
				t.Errorf("%s: a line of %d letters: %s", name, len(line), line)
			}
		}
	}
}

// TestHelpAll: --help shows the flags that people use most, --help-all every flag.
func TestHelpAll(t *testing.T) {
	golden(t, "help-all-run.txt", dialect.HelpAll("run"))
	_, err := dialect.Read("run", dialect.Invocation{Args: []string{"-n", "2", "--help-all", "x"}})
	if text, ok := errorsAsHelp(err); !ok || text != dialect.HelpAll("run") {
		t.Errorf("--help-all: %v", err)
	}
	if req, err := dialect.Read("run", dialect.Invocation{Args: []string{"--help-all=false", "--", "x"}}); err != nil ||
		req.Job.Dialect != "run" {
		t.Errorf("--help-all=false: %v", err)
	}
	for args, want := range map[string]string{
		"--helpall x":         "did you mean --help-all?",
		"--nothing-like-it x": "--help-all lists the flags",
	} {
		_, err := dialect.Read("run", dialect.Invocation{Args: strings.Fields(args)})
		if said := fmt.Sprint(err, errhint.Of(err)); !strings.Contains(said, want) {
			t.Errorf("%s: %s", args, said)
		}
	}
	few, all := map[string]bool{}, map[string]bool{}
	named := regexp.MustCompile(`(?m)^  (?:-\w, |    )--([a-z-]+)`)
	for _, m := range named.FindAllStringSubmatch(dialect.Help("run"), -1) {
		few[m[1]] = true
	}
	for _, m := range named.FindAllStringSubmatch(dialect.HelpAll("run"), -1) {
		all[m[1]] = true
	}
	if len(few) != 27 { // with --help and --help-all
		t.Errorf("--help shows %d flags: %v", len(few), few)
	}
	dialect.Flags("run").VisitAll(func(f *pflag.Flag) {
		if !regexp.MustCompile("--" + f.Name + `[][ =,\n]`).MatchString(dialect.HelpAll("run")) {
			t.Errorf("--help-all has no --%s", f.Name)
		}
	})
	for name := range few {
		if !all[name] {
			t.Errorf("--help-all has no --%s", name)
		}
	}
}

func TestFlagsForManPages(t *testing.T) {
	for _, name := range dialect.Names() {
		flags := dialect.Flags(name)
		wanted := []string{"nnodes", "nproc-per-node", "max-restarts", "tee"}
		switch {
		case strings.HasPrefix(name, "accelerate"):
			wanted = []string{"num-machines", "num-processes", "max-restarts", "tee", "fsdp-version"}
		case name == "horovodrun":
			wanted = []string{"num-proc", "hosts", "min-np"}
		case !likeTorchrun(name):
			wanted = []string{"hostfile"}
		}
		for _, flag := range wanted {
			if flags.Lookup(flag) == nil {
				t.Errorf("%s: no --%s", name, flag)
			}
		}
	}
	if dialect.Flags("x").HasFlags() {
		t.Error("an unknown dialect has flags")
	}
	usages := dialect.OwnFlags().FlagUsages()
	for _, line := range []string{"--grace TIME ", "--dry-run  ", "[default: 30s; MUSTER_GRACE]\n"} {
		if !strings.Contains(usages, line) {
			t.Errorf("no %q in the flags as pflag shows them:\n%s", line, usages)
		}
	}
	if dialect.OwnFlags().Lookup("dry-run") == nil || dialect.OwnFlags().Lookup("nnodes") != nil {
		t.Error("own flags are wrong")
	}
}

// A directory for logs that is named gets the output, unless something says what is to go there.
func TestLogDirIsFilled(t *testing.T) {
	both, errs := job.StreamMap{Default: job.Both}, job.StreamMap{Default: job.Stderr}
	for args, want := range map[string]job.StreamMap{
		"--log-dir d": both, "--log-dir /dev/null": {}, "": {}, "--log-dir d --tee 2": errs, "--log-dir d --tee 0": {},
		"--log-dir d --redirects 3": {},
	} {
		req, err := dialect.Native(dialect.Invocation{Args: append(strings.Fields(args), "--", "true")})
		if diff := cmp.Diff(want, req.Job.Logs.Tee); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", args, err, diff)
		}
	}
	req, err := dialect.Native(dialect.Invocation{Args: []string{"--", "true"}, Environ: []string{"MUSTER_LOG_DIR=d"}})
	if diff := cmp.Diff(both, req.Job.Logs.Tee); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// So does one that is named in front of a launcher without such a flag, or by muster's variable. --log-dir behind
// torchrun alone keeps nothing, as there.
func TestLogDirOfALauncherIsFilled(t *testing.T) {
	both, errs := job.StreamMap{Default: job.Both}, job.StreamMap{Default: job.Stderr}
	for _, launcher := range []string{"mpirun -np 2 prog", "horovodrun -np 2 prog", "deepspeed t.py"} {
		for words, want := range map[string]job.StreamMap{
			"--log-dir d": both, "--log-dir /dev/null": {}, "": {}, "--log-dir d --tee 2": errs, "--log-dir d --tee 0": {},
			"--log-dir d --redirects 3": {},
		} {
			req, err := ask("", nil, strings.Fields(words+" "+launcher)...)
			if diff := cmp.Diff(want, req.Job.Logs.Tee); err != nil || diff != "" || want.Any() && req.Job.Logs.Prefix == "" {
				t.Errorf("%s %s: %v, prefix %q (-want +got)\n%s", words, launcher, err, req.Job.Logs.Prefix, diff)
			}
		}
	}
	for _, launcher := range []string{"torchrun t.py", "dlrover-run t.py", "accelerate launch --cpu t.py"} {
		for variable, want := range map[string]job.StreamMap{
			"MUSTER_LOG_DIR=d": both, "MUSTER_LOG_DIR=/dev/null": {}, "PET_LOG_DIR=d": {}, "": {}, "MUSTER_LOG_DIR=d MUSTER_TEE=2": errs,
			"MUSTER_LOG_DIR=d MUSTER_TEE=0": {}, "MUSTER_LOG_DIR=d MUSTER_REDIRECTS=3": {},
		} {
			req, err := ask("", strings.Fields(variable), strings.Fields(launcher)...)
			if diff := cmp.Diff(want, req.Job.Logs.Tee); err != nil || diff != "" {
				t.Errorf("%s %s: %v (-want +got)\n%s", variable, launcher, err, diff)
			}
		}
	}
	req, err := ask("", nil, strings.Fields("torchrun --log-dir d t.py")...)
	if err != nil || req.Job.Logs.Dir != "d" || req.Job.Logs.Tee.Any() {
		t.Errorf("behind torchrun: %+v, %v", req.Job.Logs, err)
	}
}
