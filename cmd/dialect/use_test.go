package dialect_test

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"muster/cmd/dialect"
	"muster/internal/testutil"
	"muster/launch/job"
)

// legal are words for the settings whose tables do not tell one, none of them the default.
var legal = map[string]string{
	"nnodes": "1:1", "nproc-per-node": "2", "node-rank": "0", "master-addr": "n0", "master-port": "2345", "platform": "none",
	"topology-file": "t", "accelerator": "fake:f", "simulate-nodes": "2",
	"hosts": "a,b", "hostfile": "hosts", "include": "a", "exclude": "b", "remote-dir": "/d", "collect-logs": "d", "preflight": "off",
	"ssh-user": "u", "ssh-identity": "k",
	"ssh-host-key-policy": "off", "ssh-option": "A=b", "ssh-program": "s", "rdzv": "c10d://h", "rdzv-conf": "join_timeout=7",
	"local-addr": "h", "iface": "eth0", "token-file": "t",
	"store-allow": "10.0.0.0/8", "store-limit": "2GiB", "log-format": "json", "standalone": "true", "collect-logs-limit": "2GiB",
	"etcd-user": "u", "etcd-password-file": "p", "etcd-cacert": "a", "etcd-cert": "c", "etcd-key": "k", "role": "r", "run-id": "j",
	"warm":         "torch",
	"numa-binding": "socket", "stdin": "inherit", "env": "A=1", "env-file": "env", "env-unset": "A", "env-mode": "inherit",
	"env-profile": "jax", "env-pass": "A",
	"env-deny": "A", "python": "p", "venv": "v",
	"conda": "c", "debug-mode": "true", "straggler-rule": "median", "box-pairs": "0:1,2:3", "on-node-fault": "x", "report": "d",
	"on-hang": "dump,fail", "health-endpoint": "unix:s", "health-command": "x", "hang-dir": "d", "stacks": "on",
	"restart-policy": "exit-code", "restart-scope": "node",
	"retryable-exit-codes": "3", "fatal-exit-codes": "3", "backoff-limit": "3", "restart-limit": "3", "restart-backoff": "3:70s",
	"success-policy": "rank0", "fail-policy": "all",
	"clean-policy": "none", "log-dir": "d", "redirects": "3", "tee": "3", "local-ranks-filter": "0", "log-line-prefix-template": "x:",
	"event-log-handler": "console", "status-file": "s", "summary": "s", "http": "127.0.0.1:0", "events": "e", "sidecar": "watch d",
	"config": "empty", "log-level": "error", "ckpt": "on", "ckpt-dir": "d", "ckpt-rate": "5MB", "ckpt-shim": "on", "ckpt-slots": "2",
	"ckpt-signal": "USR1", "ckpt-on-file": "f",
	"ckpt-on-command": "c", "ckpt-notices": "off",
	"job-file": "nowhere.yaml", "kind": "Job", "name": "j", "set": "spec.x=1", "secrets": "d",
}

// word is a legal word for a setting.
func word(t *testing.T, s dialect.SettingRow) string {
	t.Helper()
	if w, ok := legal[s.Flag]; ok {
		return w
	}
	switch {
	case s.Switch:
		return "true"
	case s.Kind == "time":
		return "7s"
	case s.Kind == "number", s.Kind == "fraction":
		return "3"
	}
	t.Fatalf("--%s is new: give it a legal word here", s.Flag)
	return ""
}

// bare are jobs that have no use for most settings, with what stands behind muster's own flags.
var bare = map[string]string{
	"run": "run prog", "run on nodes": "run --nnodes 2 --rdzv muster://n0 --run-id j prog",
	"run static":  "run --nnodes 2 --node-rank 1 --master-addr n0 prog",
	"run elastic": "run --nnodes 1:2 --rdzv c10d://n0 --run-id j prog", "run on hosts": "run --hosts n0,n1 prog",
	"run on this host": "run --hosts localhost:2 prog",
	"run by etcd":      "run --nnodes 2 --rdzv etcd://n0 --run-id j prog", "simulation": "run --simulate-nodes 2 --accelerator fake:f prog",
	"torchrun":        "torchrun t.py",
	"torchrun static": "torchrun --nnodes 2 --master-addr n0 t.py", "torchrun with restarts": "torchrun --max-restarts 2 t.py",
	"torchrun by c10d":         "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n0:1 t.py",
	"torch.distributed.launch": "torch.distributed.launch t.py",
	"dlrover":                  "dlrover-run t.py",
	"elastic dlrover":          "dlrover-run --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint n0:1 t.py",
	"ft_launcher":              "ft_launcher t.py", "elastic ft_launcher": "ft_launcher --nnodes 1:2 --rdzv-endpoint n0:1 t.py",
	"accelerate": "accelerate-launch t.py", "deepspeed": "deepspeed t.py",
	"deepspeed with files": "deepspeed --enable_each_rank_log d t.py", "colossalai": "colossalairun --nproc_per_node 2 t.py",
	"mpirun": "mpirun -np 2 prog", "mpirun on hosts": "mpirun -np 2 --host a,b prog", "horovodrun": "horovodrun -np 2 prog",
	"horovodrun with files": "horovodrun -np 2 --output-filename d prog",
	"elastic horovodrun":    "horovodrun -np 2 --min-np 1 -H a:2,b:2 prog",
	"job file":              "run -f pods.yaml", "job file on hosts": "run -f pods.yaml --hosts a,b",
	"job file of muster run": "run -f musters.yaml", "job file of one node": "run -f pod.yaml", "job file of a launcher": "run -f mpi.yaml",
	"job file of a launcher on hosts": "run -f mpi.yaml --hosts a,b",
}

// jobFiles are those that the lines of bare name.
var jobFiles = map[string]string{
	"pods.yaml": "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: bert}\nspec:\n  runPolicy: {backoffLimit: 2}\n" +
		"  pytorchReplicaSpecs:\n    Worker: {replicas: 2, restartPolicy: OnFailure, " +
		"template: {spec: {containers: [{name: c, command: [x], resources: {limits: {nvidia.com/gpu: 1}}}]}}}\n",
	"musters.yaml": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: bert}\nspec: {completions: 2, parallelism: 2, " +
		"completionMode: Indexed, backoffLimit: 0, " +
		"template: {spec: {containers: [{name: c, command: [muster, run, -n, '2', --max-restarts=5, --, x]}]}}}\n",
	"pod.yaml": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: bert}\nspec: {completions: 1, backoffLimit: 0, " +
		"template: {spec: {containers: [{name: c, command: [x]}]}}}\n",
	"mpi.yaml": "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: bert}\nspec: {mpiReplicaSpecs: {Launcher: " +
		"{template: {spec: {containers: [{name: c, command: [mpirun, x]}]}}}, " +
		"Worker: {replicas: 2, template: {spec: {containers: [{name: c}]}}}}}\n",
}

// settingsFile is what --config and MUSTER_CONFIG name in ask.
const settingsFile = "settings.yaml"

// ask reads a command line for which some files are there, the settings file with the given content.
func ask(settings string, env []string, words ...string) (dialect.Request, error) {
	flags, rest, err := dialect.ParseOwn(words)
	if err != nil {
		return dialect.Request{}, err
	}
	return dialect.Read(rest[0],
		dialect.Invocation{Argv0: "muster", Args: rest[1:], Environ: env, Own: flags, ReadFile: func(name string) ([]byte, error) {
			switch name {
			case settingsFile:
				return []byte(settings), nil
			case "pods.yaml", "musters.yaml", "pod.yaml", "mpi.yaml":
				return []byte(jobFiles[name]), nil
			case "hosts":
				return []byte("a slots=2\nb slots=2\n"), nil
			case "env", "empty":
				return []byte("X=1\n")[:map[bool]int{true: 4, false: 0}[name == "env"]], nil
			}
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}})
}

// stripped is what is left of a job when all is taken away that somebody else than the settings' own tables thinks it
// has no use for: an opinion on which of its fields are read. launch and cmd/muster read the rest.
func stripped(r dialect.Request) dialect.Request {
	j := &r.Job
	r.Settings, j.Sources, j.Warnings, j.Environ = nil, nil, nil, nil // which hold what was given, whoever reads it
	r.File, r.Placed, r.Reached = nil, nil, nil                       // which are of the file
	elastic, allow := r.Horovod != nil && r.Horovod.Elastic, j.Meeting.StoreAllow
	if len(j.Hosts.Nodes) == 0 && !elastic {
		j.Hosts, j.Env.Deny = job.Hosts{}, nil
		if j.Env.Mode != job.EnvClean {
			j.Env.Mode, j.Env.Pass = "", nil
		}
	} else {
		j.InheritStdin = false
	}
	m := &j.Meeting
	if j.Alone() {
		alone := job.Meeting{Backend: "alone", Host: m.Host, Port: m.Port, WorkerPorts: m.WorkerPorts}
		if j.See.HTTP != "" { // its page asks for the token
			alone.TokenFile = m.TokenFile
		}
		if !elastic { // whose hosts may be lost
			j.Restart.ReplaceLimit = 0
		}
		j.Meeting, j.Checkpoint.Replicas, j.Check.Quarantine = alone, 0, 0
		if !elastic {
			j.Check.StragglerFactor, j.Check.StragglerMedian, j.Check.ExcludeStraggler, j.Check.MinNetBandwidth = 0, false, false, 0
		}
	}
	if m.Backend == "static" || len(j.Hosts.Nodes) > 0 {
		j.Check.Quarantine = 0
	}
	if c := &j.Check; !c.Network && !j.Hang.Examines() && j.Nodes.Min == j.Nodes.Max && m.Spares == 0 {
		c.ExcludeStraggler, j.Hang.Exclude = false, false
		if len(c.Switchbox.Pairs) == 0 {
			c.OnNodeFault = ""
		}
	}
	if m.Backend != "etcd" {
		m.Etcd = job.EtcdAccess{}
	}
	if j.Nodes.Min == j.Nodes.Max && m.Spares == 0 {
		m.LastCall = 0
	}
	if restart := &j.Restart; restart.MaxRestarts == 0 && !elastic {
		restart.Fatal, restart.Retryable, restart.Scope = job.ExitCodes{}, job.ExitCodes{}, ""
		if j.Alone() {
			restart.Policy, restart.BackoffLimit, restart.Window, restart.Delay, restart.DelayFactor, restart.DelayMax = "", 0, 0, 0, 0, 0
		}
	}
	if p := j.Restart.Policy; p != job.RestartExitCode && p != job.RestartOnNodeFailOrExitCode {
		j.Restart.Retryable = job.ExitCodes{}
	}
	if s := j.Restart.Success; s != job.QuorumAny && s != job.QuorumRank0 {
		j.Restart.Linger = 0
	}
	if !j.Warm.Auto && len(j.Warm.Modules) == 0 {
		j.Warm.Wait = 0
	}
	if j.Bind.Mode == "" {
		j.Bind = job.BindRules{}
	}
	if j.Fake == "" && r.MadeUp == "" {
		j.FakeOnReal = false
	}
	if !j.Checkpoint.On {
		j.Checkpoint = job.CheckpointRules{Unasked: j.Checkpoint.Unasked}
	}
	if j.Logs.RankDir != "" {
		j.Logs = job.LogRules{RankDir: j.Logs.RankDir, Dir: j.Logs.Dir}
	}
	if j.Logs.RankFiles != "" {
		j.Logs.Tee = job.StreamMap{}
	}
	if !j.Logs.PrefixAll && !j.Logs.Tee.Any() {
		j.Logs.Prefix = ""
	}
	if elastic { // the driver reads no more
		if restart := &j.Restart; restart.Scope == job.ScopeNode && restart.Policy != job.RestartAlways {
			restart.Delay, restart.DelayFactor, restart.DelayMax = 0, 0, 0
			if restart.BackoffLimit < 0 {
				restart.Window = 0
			}
		}
		hosts := job.Hosts{SSH: j.Hosts.SSH, StartTimeout: j.Hosts.StartTimeout, Dir: j.Hosts.Dir}
		hosts.SSH.Parallel = 0
		r.Job = job.Job{
			Command: j.Command, Env: j.Env, Python: j.Python, Fake: j.Fake, FakeOnReal: j.FakeOnReal, Stop: j.Stop, Hosts: hosts,
			CompatExit: j.CompatExit,
			Logs:       job.LogRules{Prefix: j.Logs.Prefix, RankFiles: j.Logs.RankFiles}, StatusFile: j.StatusFile, See: j.See,
			Meeting: job.Meeting{StoreAllow: allow},
			Restart: j.Restart, Debug: j.Debug, Check: j.Check, Warm: j.Warm,
		}
	}
	return r
}

// sameJob has fields of jobs compared by what they mean.
var sameJob = cmp.Options{cmp.Comparer(sameCodes), cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateEmpty()}

// heard reports whether a job tells of a setting: it is refused by name, or there is a warning that names it.
func heard(req dialect.Request, err error, names ...string) bool {
	text := strings.Join(req.Job.Warnings, "\n")
	if err != nil {
		text = err.Error()
	}
	names = append(names, settingsFile+":", "with hosts") // what stands there, or makes hosts of nodes
	return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(text, name) })
}

// mute are settings of which another of muster's parts takes notice, what is asked of the program and not of the job;
// and --standalone, which asks of one node for what it does.
var mute = []string{"standalone", "config", "platform", "json", "dry-run", "log-level", "log-format"}

// Every setting of every dialect is given, in a job that has no use for it as well as in one that has: it changes the
// job, or is refused by name, or there is a warning that names it. In each job a setting is given in one of the ways
// that it can be, by turns, and in a soak test in each.
func TestNoSettingIsSilent(t *testing.T) {
	testutil.Long(t)
	rows := dialect.SettingRows()
	for turn, name := range slices.Sorted(maps.Keys(bare)) {
		line := bare[name]
		plain, err := ask("", nil, strings.Fields(line)...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := stripped(plain)
		words := strings.Fields(line)
		for i, s := range rows {
			text := word(t, s)
			for w := range ways {
				way, job := ways[(turn+i+w)%len(ways)], commandLine{words: words}
				if !job.give(s, text, way) {
					continue
				}
				req, err := job.ask()
				switch {
				case heard(req, err, "--"+s.Flag, job.variable, s.Flag+":", ": "+s.Flag, fmt.Sprintf("setting %q", s.Flag)),
					slices.Contains(mute, s.Flag):
				case err != nil:
					t.Errorf("%s, --%s by %s: refused by another name: %v", name, s.Flag, way, err)
				case cmp.Equal(want, stripped(req), sameJob) && !asIs(req, s, text):
					t.Errorf("%s, --%s %s by %s: nothing tells that it is not read", name, s.Flag, text, way)
				}
				if !testutil.Soak() {
					break
				}
			}
		}
	}
}

// What is said to have no effect has none: the job is the one without it. MUSTER_HOSTS moved jobs of accelerate and
// colossalai to those hosts, which the warning denied.
func TestHostsAreNotReadInFrontOfOthers(t *testing.T) {
	for name, line := range bare {
		words := strings.Fields(line)
		if slices.Contains([]string{"run", "torchrun", "torch.distributed.launch", "dlrover-run", "ft_launcher"}, words[0]) {
			continue // these take hosts from muster
		}
		plain, err := ask("", nil, words...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for flag, text := range map[string]string{"hosts": "[x, y]", "hostfile": "hosts", "include": "a", "exclude": "a"} {
			variable := "MUSTER_" + strings.ToUpper(flag)
			byVariable, err := ask("", []string{variable + "=" + strings.NewReplacer("[", "", "]", "", " ", "").Replace(text)}, words...)
			byFile, wrong := ask(flag+": "+text+"\n", []string{"MUSTER_CONFIG=" + settingsFile}, words...)
			for way, req := range map[string]dialect.Request{variable: byVariable, ": " + flag: byFile} {
				if err != nil || wrong != nil || !heard(req, nil, way) || !cmp.Equal(stripped(req), stripped(plain), sameJob) {
					t.Errorf("%s, %s by %s: %v, %v, warnings %q, hosts %v", name, flag, way, err, wrong, req.Job.Warnings,
						req.Job.Hosts.Nodes)
				}
			}
		}
	}
}

// ways are where a setting may be given.
var ways = []string{"flag", "variable", "file"}

// commandLine is a job to which settings are given.
type commandLine struct {
	words, env         []string
	settings, variable string
}

// give adds a setting by one of the ways, and reports whether that can be done: what the job has as a flag already is
// the stronger one, and a flag of the launcher itself is no setting of ours.
func (c *commandLine) give(s dialect.SettingRow, text, way string) bool {
	launcher := c.words[slices.IndexFunc(c.words, func(w string) bool { return !strings.HasPrefix(w, "--") })]
	if slices.Contains(c.words, "--"+s.Flag) {
		return false
	}
	c.variable = "MUSTER_" + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))
	switch way {
	case "flag":
		flag := "--" + s.Flag + "=" + text
		if launcher == "run" {
			c.words = slices.Insert(slices.Clone(c.words), slices.Index(c.words, "run")+1, flag)
			return true
		}
		c.words = slices.Insert(slices.Clone(c.words), 0, flag)
		return slices.Contains(dialect.InFront(launcher), s.Flag)
	case "variable":
		c.env = append(slices.Clone(c.env), c.variable+"="+text)
	default:
		if strings.Contains(text, ":") || s.Flag == "env" {
			text = `"` + text + `"`
		}
		c.settings += s.Flag + ": " + text + "\n"
		return s.Flag != "config"
	}
	return true
}

// ask reads the job.
func (c *commandLine) ask() (dialect.Request, error) {
	env := c.env
	if c.settings != "" {
		env = append(slices.Clone(env), "MUSTER_CONFIG="+settingsFile)
	}
	return ask(c.settings, env, c.words...)
}

// implied reports whether one of two settings asks for what the other one does, too.
func implied(flag, by string) bool {
	return flag == "ckpt" && strings.HasPrefix(by, "ckpt-") || flag == "max-restarts" && by == "backoff-limit" ||
		flag == "network-check" && by == "network-check-full" || flag == "tee" && by == "log-dir"
}

// given is a setting, a word for it, and one of the ways.
type given struct {
	dialect.SettingRow
	text, way string
}

// silent returns the flags of those settings that are given to a job together and neither read nor told of: without one of
// them the job is the same.
func silent(name string, all []given) (flags []string) {
	without := func(left int) (commandLine, bool) {
		job := commandLine{words: strings.Fields(bare[name])}
		for i, s := range all {
			if i != left && !job.give(s.SettingRow, s.text, s.way) {
				return job, false
			}
		}
		return job, true
	}
	whole, possible := without(-1)
	if !possible {
		return nil
	}
	req, err := whole.ask()
	if err != nil {
		return nil // it tells what is wrong before it asks what is read
	}
	for i, s := range all {
		if asIs(req, s.SettingRow, s.text) ||
			slices.ContainsFunc(all, func(by given) bool { return implied(s.Flag, by.Flag) }) ||
			heard(req, nil, "MUSTER_"+strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_")), "--"+s.Flag, ": "+s.Flag) {
			continue
		}
		rest, _ := without(i)
		if left, err := rest.ask(); err == nil && cmp.Equal(stripped(left), stripped(req), sameJob) {
			flags = append(flags, fmt.Sprintf("--%s in %q, %q with %q", s.Flag, whole.words, whole.env, whole.settings))
		}
	}
	return flags
}

// Settings meet each other: some of any kind are given at random, by any way, to any job, and in a soak test each pair. What
// is given and not read is told, whatever stands beside it; so the job without it is another one.
func TestNoSettingIsSilentBesideOthers(t *testing.T) {
	rows := slices.DeleteFunc(dialect.SettingRows(), func(s dialect.SettingRow) bool { return slices.Contains(mute, s.Flag) })
	names, texts := slices.Sorted(maps.Keys(bare)), make([]string, len(rows))
	for i, s := range rows {
		texts[i] = word(t, s)
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "job")
		picked := rapid.SliceOfNDistinct(rapid.IntRange(0, len(rows)-1), 2, 4, rapid.ID[int]).Draw(t, "settings")
		by := rapid.SliceOfN(rapid.SampledFrom(ways), len(picked), len(picked)).Draw(t, "ways")
		all := make([]given, len(picked))
		for i, at := range picked {
			all[i] = given{rows[at], texts[at], by[i]}
		}
		if flags := silent(name, all); flags != nil {
			t.Errorf("%s: nothing tells what is not read: %s", name, flags)
		}
	})
	if !testutil.Soak() {
		return
	}
	for _, name := range names {
		for turn, way := range ways {
			t.Run(name+" by "+way, func(t *testing.T) {
				t.Parallel()
				for i := range rows {
					for k := range i {
						flags := silent(name, []given{{rows[i], texts[i], way}, {rows[k], texts[k], ways[(turn+i+k)%len(ways)]}})
						if flags != nil {
							t.Errorf("nothing tells what is not read: %s", flags)
						}
					}
				}
			})
		}
	}
}

// asIs reports whether the word asks for what the job has anyway.
func asIs(req dialect.Request, s dialect.SettingRow, text string) bool {
	switch s.Flag {
	case "nnodes", "nproc-per-node", "node-rank", "hosts", "hostfile", "simulate-nodes", "module", "no-python", "start-timeout",
		"preflight":
		return true // the job says as much by itself, or in other words
	case "include", "exclude": // of one node the first host is what they leave
		return req.Job.Nodes.Max == 1 && len(req.Job.Hosts.Nodes) > 0
	case "stdin":
		return req.Job.InheritStdin // as torchrun's workers do
	case "ckpt", "ckpt-shim":
		return req.Job.Dialect == "dlrover-run"
	case "restart-scope": // of an elastic job it is that
		return text == "node" && req.Horovod != nil && req.Horovod.Elastic
	case "spares": // a flag of ft_launcher says how many, and beats variables and files
		return req.Job.Dialect == "ft_launcher" && req.Job.Meeting.Spares > 0
	case "env-mode":
		return req.Job.Dialect == "mpirun"
	case "job-file", "kind", "secrets", "lenient": // -f says another file; what it has is the only job, known, and no secret
		return req.File != nil
	}
	return text == s.Default
}

// harmless are options that make no difference in any job, and ofOperators those whose variable operators set for one
// node, too.
var (
	harmless    = []string{"monitor-interval", "standalone", "same-network"}
	ofOperators = []string{"master-addr", "node-unit"}
)

// Every option of every launcher that is replaced changes the job, or is refused, or there is a warning; or its row
// says why nobody misses anything.
func TestNoOptionIsSilent(t *testing.T) {
	for name, list := range dialect.DialectOptions() {
		plain, err := own(nil, "", strings.Join(append(leading(name), "t.py"), " "))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, o := range list {
			words := append(leading(name), o.Spelling)
			for range o.Words {
				words = append(words, map[bool]string{true: o.Choice, false: "3"}[o.Choice != ""])
			}
			told := func(req dialect.Request, err error) bool {
				return err != nil || len(req.Job.Warnings) > len(plain.Job.Warnings) || !cmp.Equal(stripped(plain), stripped(req), sameJob)
			}
			req, err := own(nil, map[bool]string{true: "params: {fusion_threshold_mb: 3}\n"}[name == "horovodrun"],
				strings.Join(append(words, "t.py"), " "))
			if !told(req, err) && !o.Moot {
				t.Errorf("%s: %s changes nothing, and nobody is told", name, strings.Join(words, " "))
			}
			for _, variable := range o.Variables { // says what the flag says; and muster's own is not the replaced launcher's
				text := map[bool]string{true: o.Choice, false: "3"}[o.Choice != ""]
				if o.Words == 0 {
					text = "1"
				}
				req, err := own([]string{variable + "=" + text}, "", strings.Join(append(leading(name), "t.py"), " "))
				mute := harmless
				if strings.HasPrefix(variable, "PET_") {
					mute = slices.Concat(harmless, ofOperators)
				}
				if !told(req, err) && (!o.Moot || strings.HasPrefix(variable, "MUSTER_")) && text != o.Default &&
					!slices.Contains(mute, o.Flag) {
					t.Errorf("%s: %s=%s changes nothing, and nobody is told", name, variable, text)
				}
			}
		}
	}
}

// Every key that accelerate's configuration file may have below its way to train changes the job, or is refused, or
// there is a warning.
func TestNoKeyOfAFileIsSilent(t *testing.T) {
	random, seen := rand.New(rand.NewPCG(3, 8)), 0
	kinds := map[string]string{
		"fsdp_config": "FSDP", "megatron_lm_config": "MEGATRON_LM", "deepspeed_config": "DEEPSPEED",
		"fp8_config": "MULTI_GPU\nmixed_precision: fp8", "dynamo_config": "MULTI_GPU",
	}
	for _, o := range dialect.AccelerateOptions() {
		group := accelerateGroup(o.Dest)
		if group == "" || o.Dest == "use_deepspeed" || strings.HasSuffix(o.Dest, "_filter") {
			continue
		}
		seen++
		file := "num_processes: 2\ndistributed_type: " + kinds[group] + "\n" + group + ":\n"
		plain, err := own(nil, file, "accelerate-launch --config_file c.yaml t.py")
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		heard := false
		for try := 0; try < 20 && !heard; try++ { // one of the values is not the default
			_, scalar := accelerateValue(random, o)
			req, err := own(nil, file+"  "+o.Dest+": "+scalar+"\n", "accelerate-launch --config_file c.yaml t.py")
			heard = err != nil || len(req.Job.Warnings) > len(plain.Job.Warnings) || !cmp.Equal(stripped(plain), stripped(req), sameJob)
		}
		if !heard {
			t.Errorf("%s: %s changes nothing, and nobody is told", group, o.Dest)
		}
	}
	if seen < 50 {
		t.Errorf("%d keys", seen)
	}
}

// A row that does not say who reads its setting is a mistake that no test can miss: the package refuses it at its first
// use.
func TestUndeclaredUse(t *testing.T) {
	if err := dialect.Undeclared(); err == nil || !strings.Contains(err.Error(), "--new") {
		t.Errorf("a row without a use: %v", err)
	}
}

// What is typed and has no effect is refused, with what it would need.
func TestUnreadTyped(t *testing.T) {
	for line, want := range map[string]string{
		"run --ssh-user u prog":                           "cannot use --ssh-user u: it has no effect without hosts",
		"run --ssh-port 22 prog":                          "--ssh-port 22: it has no effect without hosts",
		"run --ssh-identity k prog":                       "--ssh-identity k",
		"run --ssh-host-key-policy x prog":                "choose one of",
		"run --ssh-host-key-policy off prog":              "--ssh-host-key-policy off: it has no effect without hosts",
		"run --ssh-option A=b prog":                       "--ssh-option A=b: it has no effect without hosts",
		"run --ssh-program s prog":                        "--ssh-program s: it has no effect without hosts",
		"run --ssh-parallel 3 prog":                       "--ssh-parallel 3: it has no effect without hosts",
		"run --start-timeout 9s prog":                     "--start-timeout 9s: it has no effect without hosts; name them by --hosts",
		"run --preflight off prog":                        "--preflight off: it has no effect without hosts",
		"run --env-deny A prog":                           "--env-deny A: it has no effect without hosts",
		"run --etcd-user u prog":                          "--etcd-user u: it has no effect where the nodes do not meet by etcd",
		"run --etcd-cacert c prog":                        "--etcd-cacert c",
		"run --warm-wait 9s prog":                         "--warm-wait 9s: it has no effect without --warm auto",
		"run --restart-delay 9s prog":                     "--restart-delay 9s: it has no effect while --max-restarts is 0",
		"run --restart-backoff 3 prog":                    "--restart-backoff 3: it has no effect while --max-restarts is 0",
		"run --join-timeout 9s prog":                      "--join-timeout 9s: it has no effect on one node",
		"run --hosts a,b --stdin inherit prog":            "--stdin inherit: it has no effect on hosts",
		"run --hosts localhost --ssh-user u prog":         "--ssh-user u: it has no effect where all hosts are this machine",
		"--max-restarts 2 horovodrun -np 2 prog":          "--max-restarts 2: it has no effect on a Horovod job",
		"--max-restarts 2 torchrun --max-restarts 2 t.py": "cannot use --max-restarts in front of torchrun and behind it: give it once",
		"--max-restarts x torchrun t.py":                  "cannot use --max-restarts x: ",
		"--max-restarts -1 dlrover-run t.py":              "cannot use --max-restarts -1: give a number from 0",
		"--local-ranks-filter 0 --log-line-prefix-template a torchrun t.py": "cannot use --log-line-prefix-template a: it has no effect " +
			"where no line has a prefix",
		"--tee 3 colossalai run --nproc_per_node 2 --extra_launch_args tee=1 t.py": "cannot use --tee in front of colossalai run and " +
			"behind it",
		"--tee 3 deepspeed --enable_each_rank_log d t.py": "--tee 3: it has no effect where",
		"--network-check --quarantine 5m run --hosts a,b prog": "--quarantine 5m: it has no effect " +
			"on hosts",
		"--network-check --quarantine 5m torchrun --nnodes 2 --node-rank 0 --master-addr h t.py": "--quarantine 5m: it has no effect " +
			"where each node's rank is fixed",
		"--topology-file t mpirun -np 2 --host a,b prog": "--topology-file t: it has no effect where each node's rank " +
			"is fixed",
		"run --nnodes 2 --rdzv c10d://n0 --run-id j --ckpt-replicas 2 prog": "--ckpt-replicas 2: it has no effect without a job token",
		"--restart-policy exit-code torchrun t.py": "--restart-policy exit-code: it has no effect while " +
			"--max-restarts is 0",
		"--warm restarts torchrun t.py": "--warm restarts: it has no effect in a job that is not restarted",
	} {
		_, err := ask("", nil, strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
			continue
		}
		wantRefused(t, err, want)
	}
	for flag := range strings.FieldsSeq(`--max-restarts=3 --restart-scope=world --restart-scope=process
		--restart-window=9s --restart-delay=3s --restart-backoff=3 --restart-limit=3/rank --quarantine=9m --ckpt=on --ckpt-dir=d`) {
		_, err := ask("", nil, append([]string{flag}, strings.Fields(bare["elastic horovodrun"])...)...)
		name, _, _ := strings.Cut(flag, "=")
		if err == nil || !strings.Contains(err.Error(), "cannot use "+name) || !strings.Contains(err.Error(), "elastic horovodrun") {
			t.Errorf("elastic horovodrun, %s: %v", flag, err)
		}
	}
}

// What variables and files say for many jobs is told in one line, and does not stop the job.
func TestUnreadElsewhere(t *testing.T) {
	env := []string{
		"MUSTER_SSH_USER=u", "MUSTER_SSH_OPTION=A=b\nC=d", "MUSTER_RESTART_DELAY=9s", "MUSTER_CONFIG=" + settingsFile,
		"MUSTER_GRACE=3s", "PET_NODE_RANK=0", "MUSTER_ENV_MODE=launcher",
	}
	req, err := ask("keep-alive: 3s\nstart-timeout: 9s\n", env, "run", "prog")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"no effect on this job: settings.yaml:2: start-timeout, MUSTER_SSH_USER, MUSTER_SSH_OPTION (without hosts); " +
		"settings.yaml:1: keep-alive (on one node); MUSTER_RESTART_DELAY (while --max-restarts is 0 on one node: nothing would be " +
		"restarted)"}
	if diff := cmp.Diff(want, req.Job.Warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	env = []string{
		"MUSTER_CKPT=on", "MUSTER_MAX_RESTARTS=3", "MUSTER_NUMA_BINDING=node", "MUSTER_STATUS_FILE=s",
		"MUSTER_RESTART_SCOPE=world",
	}
	elastic, err := ask("", env, strings.Fields(bare["elastic horovodrun"])...)
	if err != nil || len(elastic.Job.Warnings) != 1 {
		t.Errorf("elastic horovodrun: %q, %v", elastic.Job.Warnings, err)
	}
	for _, name := range []string{"MUSTER_NUMA_BINDING", "MUSTER_MAX_RESTARTS", "MUSTER_RESTART_SCOPE", "MUSTER_CKPT"} {
		if !heard(elastic, nil, name+" (") {
			t.Errorf("elastic horovodrun does not tell of %s: %q", name, elastic.Job.Warnings)
		}
	}
	if j := elastic.Job; j.Checkpoint.On || j.Bind.Mode != "" || j.Restart.MaxRestarts != 0 || j.Restart.Scope != job.ScopeNode {
		t.Errorf("elastic horovodrun: %+v", j)
	}
}

// Flags of torchrun that other launchers lack count in front of those, and as variables.
func TestLentSettings(t *testing.T) {
	for _, line := range []string{"deepspeed t.py", "mpirun -np 2 prog"} {
		env := []string{"MUSTER_MAX_RESTARTS=2", "MUSTER_LOG_DIR=d", "MUSTER_TEE=3", "MUSTER_NUMA_BINDING=socket"}
		byVariable, err := ask("", env, strings.Fields(line)...)
		if err != nil {
			t.Fatal(err)
		}
		typed, err := ask("", nil, strings.Fields("--max-restarts 2 --log-dir d --tee 3 --numa-binding socket "+line)...)
		if err != nil {
			t.Fatal(err)
		}
		for how, j := range map[string]job.Job{"variables": byVariable.Job, "flags": typed.Job} {
			if j.Restart.MaxRestarts != 2 || j.Logs.Dir != "d" || j.Logs.Tee.Default != job.Both || j.Bind.Mode != "socket" ||
				len(j.Warnings) > 0 {
				t.Errorf("%s, %s: %+v", line, how, j)
			}
		}
	}
	req, err := ask("", []string{"MUSTER_MAX_RESTARTS=2", "MUSTER_LOG_DIR=d", "MUSTER_NUMA_BINDING=socket"},
		strings.Fields("--tee 3 horovodrun -np 2 prog")...)
	if err != nil || req.Job.Logs.Dir != "d" || req.Job.Bind.Mode != "socket" || req.Job.Logs.Tee.Default != job.Both ||
		req.Job.Restart.MaxRestarts != 0 ||
		!heard(req, nil, "MUSTER_MAX_RESTARTS (on a Horovod job") {
		t.Errorf("horovodrun: %+v, %v", req.Job, err)
	}
	both, err := ask("", nil, strings.Fields("--numa-binding socket mpirun -np 2 --bind-to numa prog")...)
	if err == nil {
		t.Errorf("two ways to bind: %+v", both.Job.Bind)
	}
	weaker, err := ask("", []string{"MUSTER_NUMA_BINDING=socket"}, strings.Fields("mpirun -np 2 --bind-to numa prog")...)
	if err != nil || weaker.Job.Bind.Mode != "node" {
		t.Errorf("a flag against a variable: %+v, %v", weaker.Job.Bind, err)
	}
}

// In front of launchers that have such flags themselves, too, they count as muster's variables do.
func TestLentSettingsOfTheirOwn(t *testing.T) {
	flags := map[string]string{
		"max-restarts": "2", "log-dir": "d", "redirects": "1", "tee": "2", "local-ranks-filter": "0", "log-line-prefix-template": "a",
		"event-log-handler": "console", "numa-binding": "socket",
	}
	for _, line := range []string{
		"torchrun t.py", "torch.distributed.run t.py", "torch.distributed.launch t.py", "dlrover-run t.py", "ft_launcher t.py",
		"accelerate launch --cpu t.py", "colossalai run --nproc_per_node 2 t.py",
		"colossalai run --nproc_per_node 2 --extra_launch_args monitor_interval=1 t.py",
	} {
		for _, names := range [][]string{slices.Sorted(maps.Keys(flags)), {"log-dir"}, {"max-restarts"}, {"tee"}} {
			var typed, env []string
			for _, name := range names {
				typed = append(typed, "--"+name, flags[name])
				env = append(env, "MUSTER_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+flags[name])
			}
			byVariable, err := ask("", env, strings.Fields(line)...)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			byFlag, err := ask("", []string{"MUSTER_MAX_RESTARTS=7", "PET_TEE=1"}, append(typed, strings.Fields(line)...)...)
			if err != nil {
				t.Errorf("%q %s: %v", typed, line, err)
				continue
			}
			var file strings.Builder
			for _, name := range names {
				fmt.Fprintf(&file, "%s: %s\n", name, flags[name])
			}
			byFile, err := ask(file.String(), nil, append([]string{"--config", settingsFile}, strings.Fields(line)...)...)
			if err != nil {
				t.Errorf("a file with %q, %s: %v", file.String(), line, err)
				continue
			}
			for _, got := range []job.Job{byFlag.Job, byFile.Job} {
				want := byVariable.Job
				if diff := cmp.Diff(want.Logs, got.Logs); (slices.Contains(names, "tee") || len(got.Environ) == 0) && diff != "" {
					t.Errorf("%q %s: output (-want +got):\n%s", typed, line, diff)
				}
				if slices.Contains(names, "max-restarts") && got.Restart.MaxRestarts != 2 || got.Bind != want.Bind ||
					got.EventLog != want.EventLog || got.Logs.Dir != want.Logs.Dir {
					t.Errorf("%q %s: %+v", typed, line, got)
				}
			}
		}
	}
}

// The file of --config is weaker than variables and than the launcher's own flags, and is read once: it may be a pipe.
func TestLentSettingsOfAFile(t *testing.T) {
	for _, c := range []struct {
		line, env string
		want      int
		from      string
	}{
		{"torchrun t.py", "", 2, "config " + settingsFile + ":1"},
		{"torchrun --max-restarts 4 t.py", "", 4, "flag --max-restarts"},
		{"torchrun t.py", "PET_MAX_RESTARTS=5", 5, "variable PET_MAX_RESTARTS"},
		{"accelerate launch --cpu t.py", "", 2, "config " + settingsFile + ":1"},
		{"accelerate launch --cpu --max_restarts 4 t.py", "", 4, "flag --max-restarts"},
		{"colossalai run --nproc_per_node 2 --extra_launch_args max_restarts=4 t.py", "", 4, "flag --max-restarts"},
	} {
		reads := 0
		words := strings.Fields(c.line)
		req, err := dialect.Read(words[0], dialect.Invocation{
			Argv0: "muster", Args: words[1:], Environ: []string{c.env, "MUSTER_CONFIG=" + settingsFile},
			ReadFile: func(name string) ([]byte, error) {
				if name != settingsFile {
					return nil, fs.ErrNotExist
				}
				reads++
				return []byte("max-restarts: 2\n"), nil
			},
		})
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		if from := req.Job.Sources["max-restarts"].String(); req.Job.Restart.MaxRestarts != c.want || from != c.from || reads != 1 {
			t.Errorf("%s %s: %d from %s, read %d times", c.env, c.line, req.Job.Restart.MaxRestarts, from, reads)
		}
	}
	_, err := ask("max-restarts: -1\n", nil, "--config", settingsFile, "torchrun", "t.py")
	wantRefused(t, err, settingsFile+":1 (max-restarts: -1)")
	_, err = ask("max-restarts: x\n", nil, "--config", settingsFile, "torchrun", "t.py")
	wantRefused(t, err, settingsFile+":1: max-restarts: give a whole number")
}

// DLRover's settings that muster makes nothing of are told by name.
func TestDLRoverUnread(t *testing.T) {
	for env, want := range map[string]string{
		"NCCL_SETTINGS=A=1": "NCCL_SETTINGS has no effect", "MCCL_SETTINGS=A=1": "MCCL_SETTINGS has no effect",
		"PET_ACCELERATOR=ascend-npu": "PET_ACCELERATOR=ascend-npu has no effect",
	} {
		req, err := ask("", []string{env}, "dlrover-run", "t.py")
		if err != nil || !heard(req, nil, want) {
			t.Errorf("%s: %q, %v", env, req.Job.Warnings, err)
		}
	}
	inv := dialect.Invocation{Args: []string{"--accelerator", "ascend-npu", "t.py"}}
	inv.Machine.Accelerators = func(string) (string, int) { return "npu", 8 }
	if req, err := dialect.DLRover(inv); err != nil || len(req.Job.Warnings) > 0 {
		t.Errorf("the accelerator that is there: %q, %v", req.Job.Warnings, err)
	}
}
