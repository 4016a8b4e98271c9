package dialect_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/cmd/dialect/jobfile"
	"muster/internal/errhint"
	"muster/launch/job"
)

// readJob reads a command line with the files of the job file reader's tests.
func readJob(env []string, args ...string) (dialect.Request, error) {
	return dialect.Read("run", dialect.Invocation{
		Argv0: "muster", Args: args, Environ: env,
		ReadFile: func(name string) ([]byte, error) {
			if strings.HasSuffix(name, ".yaml") {
				return os.ReadFile(filepath.Join("jobfile/testdata", name))
			}
			return nil, fs.ErrNotExist
		},
		Machine: dialect.Machine{FreePort: func() (int, error) { return 4321, nil }},
	})
}

// jobFileRequest is a request with all settings of job files.
func jobFileRequest(t *testing.T) dialect.Request {
	t.Helper()
	req, err := readJob(nil, "-f", "pytorchjob.yaml", "--kind", "pytorchjob", "--name", "mnist", "--secrets", "dir", "--lenient", "--set",
		"spec.runPolicy.backoffLimit=7", "--set", "spec.unknown=1", "--env", "EPOCHS=9", "--clean-policy", "all")
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// Who asks for no restarts gets none, whatever limit the file has for them; and who asks for some where it has none, some.
func TestJobFileRestarts(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("jobfile/testdata/jobset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flag, file string
		want       int
	}{{"--max-restarts=0", "2", 0}, {"--backoff-limit=4", "0", 4}, {"--lenient", "2", 2}, {"--lenient", "0", 0}} {
		req, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: []string{"-f", "job.yaml", c.flag},
			ReadFile: func(string) ([]byte, error) {
				return []byte(strings.Replace(string(text), "maxRestarts: 2", "maxRestarts: "+c.file, 1)), nil
			},
			Machine: dialect.Machine{FreePort: func() (int, error) { return 4321, nil }},
		})
		if err != nil || req.Job.Restart.MaxRestarts != c.want {
			t.Errorf("maxRestarts %s, %s: %d restarts, want %d (%v)", c.file, c.flag, req.Job.Restart.MaxRestarts, c.want, err)
		}
	}
}

// A job file makes the job that flags would make, with the line that each value comes from; flags win over it.
func TestJobFile(t *testing.T) {
	t.Parallel()
	req := jobFileRequest(t)
	j := &req.Job
	if j.RunID != "mnist" || j.Nodes != (job.Range{Min: 3, Max: 3}) || j.Procs != "1" || len(j.Hosts.Nodes) != 3 ||
		j.Hosts.Nodes[2].Name != "127.0.0.3" {
		t.Errorf("%+v", j)
	}
	r := j.Restart
	if r.Policy != job.RestartExitCode || r.BackoffLimit != 7 || r.MaxRestarts != 7 || r.Success != job.QuorumRank0 ||
		r.Clean != job.CleanAll || r.Deadline.Seconds() != 600 || !r.Retryable.Has(128) || r.Retryable.Has(127) {
		t.Errorf("%+v", r)
	}
	want := map[string]string{
		"backoff-limit": "flag --set spec.runPolicy.backoffLimit", "active-deadline": "config pytorchjob.yaml:12",
		"hosts": "config pytorchjob.yaml:16", "clean-policy": "flag --clean-policy",
	}
	got := map[string]string{}
	for flag := range want {
		got[flag] = j.Sources[flag].String()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	vars := map[string]string{}
	for _, v := range j.Hosts.Nodes[1].Env {
		vars[v.Name] = v.Value
	}
	for name, want := range map[string]string{
		"PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "4321", "WORLD_SIZE": "6", "EPOCHS": "",
	} {
		if vars[name] != want {
			t.Errorf("%s is %q, want %q", name, vars[name], want)
		}
	}
	if !strings.Contains(strings.Join(j.Warnings, "\n"), "spec.unknown is unknown and passed over") {
		t.Errorf("%q", j.Warnings)
	}
	const spec = "version: 1\ndefaults: {vendor: nvidia, count: 0}\nnodes:\n  127.0.0.1: {vendor: nvidia, count: 2}\n"
	if !strings.HasPrefix(req.MadeUp, spec) {
		t.Errorf("made up: %s", req.MadeUp)
	}
}

// On hosts nothing is made up, and pods meet at the port of the file.
func TestJobFileOnHosts(t *testing.T) {
	t.Parallel()
	req, err := readJob(nil, "-f", "pytorchjob.yaml", "--hosts", "a,b,c")
	if err != nil {
		t.Fatal(err)
	}
	port := ""
	for _, v := range req.Job.Hosts.Nodes[2].Env {
		if v.Name == "PET_MASTER_PORT" {
			port = v.Value
		}
	}
	if req.MadeUp != "" || port != "23456" || req.Job.Hosts.Nodes[2].Name != "c" {
		t.Errorf("port %s, made up %q", port, req.MadeUp)
	}
	req, err = readJob(nil, "-f", "mpijob.yaml", "--hosts", "a,b")
	if err != nil {
		t.Fatal(err)
	}
	if script := strings.Join(req.Job.Command.Args, ""); len(req.Job.Hosts.Nodes) != 0 ||
		!strings.Contains(script, "a slots=2\nb slots=2\n") {
		t.Errorf("%+v\n%s", req.Job.Hosts, script)
	}
}

// The launcher of an AITrainingJob has hosts that come and go: those of --hosts behind the first are spare ones, up to
// as many as the file allows.
func TestJobFileReached(t *testing.T) {
	t.Parallel()
	req, err := readJob(nil, "-f", "aitrainingjob.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := &job.ReachedHosts{
		Hosts: []job.ReachedHost{
			{Host: "127.0.0.1", Name: "resnet-trainer-0", Slots: 1},
			{Host: "127.0.0.2", Name: "resnet-trainer-1", Slots: 1},
			{Host: "127.0.0.3", Name: "resnet-trainer-2", Slots: 1},
		},
		Min: 1, Max: 5, Prefix: "resnet-trainer-", Slots: 1, Replace: true, Limit: 100, Rehearsed: true,
	}
	if diff := cmp.Diff(want, req.Job.Reached); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(req.MadeUp, "  127.0.0.9: {vendor: nvidia, count: 1}\n") {
		t.Errorf("hosts that come later have no accelerators: %s", req.MadeUp)
	}
	req, err = readJob(nil, "-f", "aitrainingjob.yaml", "--hosts", "a,b,c,d", "--set", "spec.faultTolerant=true")
	if err != nil || req.Job.Reached.Rehearsed || len(req.Job.Reached.Spare) != 1 || req.Job.Reached.Spare[0] != "d" ||
		len(req.Job.Hosts.Nodes) != 0 {
		t.Errorf("%v %+v", err, req.Job.Reached)
	}
	const never, fixed = "spec.replicaSpecs.trainer.restartPolicy=Never", "spec.faultTolerant=false"
	for args, want := range map[string]string{
		"--hosts a,b":                                        "name 3 hosts, or up to 105 with spare ones behind them",
		"--hosts a,b,c,d,e,f":                                "",
		"--hosts a,b,c,d,e,f --set " + never:                 "name 3 hosts, or up to 5 with spare ones behind them",
		"--hosts a,b,c,d --set " + fixed:                     "",
		"--hosts a,b,c,d --set " + never + " --set " + fixed: "name as many hosts, or change the number by --set",
		"--hosts a,b,c,d,e --set " + fixed + " --set spec.replicaSpecs.trainer.restartLimit=1": "up to 4 with spare ones",
	} {
		req, err := readJob(nil, append([]string{"-f", "aitrainingjob.yaml"}, strings.Fields(args)...)...)
		switch {
		case want == "" && (err != nil || len(req.Job.Reached.Spare) == 0):
			t.Errorf("%q: %v", args, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), "with 3 nodes") || !strings.Contains(errhint.Of(err), want)):
			t.Errorf("%q: %v, %s", args, err, errhint.Of(err))
		}
	}
}

// A file's PodGroup says how long hosts are waited for that cannot be reached, and a launcher in the file is told.
func TestJobFileScheduleTimeout(t *testing.T) {
	t.Parallel()
	req, err := readJob(nil, "-f", "elasticjob.yaml", "--hosts", "a,b")
	from := req.Job.Sources["start-timeout"].String()
	if h := req.Job.Hosts.StartTimeout; err != nil || h.Seconds() != 120 || from != "config elasticjob.yaml:39" {
		t.Errorf("%v %v %v", h, from, err)
	}
	if req, err = readJob(nil, "-f", "elasticjob.yaml", "--hosts", "a,b", "--start-timeout", "9s"); err != nil ||
		req.Job.Hosts.StartTimeout.Seconds() != 9 {
		t.Errorf("%v %v", req.Job.Hosts.StartTimeout, err)
	}
	for args, want := range map[string]string{
		"-f mpigang.yaml":                                           "30s",
		"-f mpigang.yaml --hosts a,b":                               "30s",
		"-f mpigang.yaml --hosts a,b --start-timeout 9m":            "9m",
		"-f mpigang.yaml --hosts a,b --env MUSTER_START_TIMEOUT=8m": "",
		"-f mpijob.yaml --hosts a,b --start-timeout 7m":             "7m",
		"-f mpijob.yaml --hosts a,b":                                "",
		"-f mpigang.yaml --hosts a,b --set spec.slotsPerWorker=2":   "30s",
	} {
		req, err := readJob(nil, strings.Fields(args)...)
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		got := ""
		for _, v := range req.Job.NodeEnv {
			if v.Name == "MUSTER_START_TIMEOUT" {
				got += v.Value
			}
		}
		if got != want {
			t.Errorf("%s: the launcher waits %q, want %q", args, got, want)
		}
		if list := strings.Join(req.Job.Warnings, "\n"); strings.Contains(list, "-timeout") {
			t.Errorf("%s: %s", args, list)
		}
	}
	for _, limit := range []string{"0", "soon"} {
		if _, err := readJob(nil, "-f", "mpigang.yaml", "--hosts", "a,b", "--start-timeout", limit); err == nil ||
			!strings.Contains(err.Error(), "--start-timeout "+limit) {
			t.Errorf("%s: %v", limit, err)
		}
	}
}

// A PodGroup with the name of another job of the file is not the gang of this one.
func TestJobFileGangOfAnother(t *testing.T) {
	t.Parallel()
	job := func(name string, nodes int) string {
		return fmt.Sprintf("apiVersion: batch/v1\nkind: Job\nmetadata: {name: %s}\nspec: {completions: %d, parallelism: %d, "+
			"completionMode: Indexed, template: {spec: {containers: [{name: a, image: b, command: [sh, -c, 'true']}]}}}\n---\n",
			name, nodes, nodes)
	}
	gang := func(name string, least, seconds int) string {
		return fmt.Sprintf("apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: %s}\n"+
			"spec: {minMember: %d, scheduleTimeoutSeconds: %d}\n---\n", name, least, seconds)
	}
	for text, want := range map[string]float64{ // for how many seconds the job small waits
		job("big", 64) + job("small", 2) + gang("big", 64, 300):                     60,
		job("small", 2) + gang("small", 2, 20) + gang("large", 9, 300):              20,
		job("small", 2) + gang("gang", 2, 30):                                       30,
		job("big", 64) + job("small", 2) + gang("small", 2, 40):                     40,
		gang("big", 64, 9) + job("big", 64) + job("small", 2) + gang("gang", 2, 50): 50,
	} {
		req, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: []string{"-f", "f.yaml", "--name", "small", "--hosts", "a,b"},
			ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
		})
		if got := req.Job.Hosts.StartTimeout.Seconds(); err != nil || got != want {
			t.Errorf("%s\nit waits %v s, want %v: %v", text, got, want, err)
		}
	}
}

// muster run in a pod takes the number of workers and of restarts from the variables that the operator sets, unless its
// own flags say them; so does a rehearsal of the pods.
func TestJobFileTellsMusterRun(t *testing.T) {
	t.Parallel()
	const (
		pytorch = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec:\n  %s\n  pytorchReplicaSpecs:\n" +
			"    Worker: {replicas: 2, restartPolicy: OnFailure, " +
			"template: {spec: {containers: [{name: pytorch, image: b, command: [%s]}]}}}\n"
		trainJob = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: j}\nspec:\n  runtimeRef: {name: torch}\n" +
			"  trainer: {numNodes: 2, %s command: [%s]}\n"
	)
	for _, c := range []struct {
		file, says, command, procs, procsAt, restarts string
	}{
		{pytorch, "nprocPerNode: '8'", "muster, run, --, x", "8", "config f.yaml:5", "1000000000"},
		{pytorch, "nprocPerNode: '8'", "/usr/local/bin/muster, run, -n, '2', --, x", "2", "config f.yaml:7", "1000000000"},
		{pytorch, "nprocPerNode: '8'", "muster, run, --max-restarts=5, --, x", "8", "config f.yaml:5", "5"},
		{
			pytorch, "elasticPolicy: {minReplicas: 1, maxReplicas: 2, maxRestarts: 3, nProcPerNode: 4}", "muster, run, --, x", "4",
			"config f.yaml:5", "3",
		},
		{pytorch, "elasticPolicy: {maxRestarts: 3}", "muster, run, --max-restarts=5, --, x", "auto", "config f.yaml:5", "5"},
		{pytorch, "nprocPerNode: '8'", "muster, torchrun, x.py", "1", "config f.yaml:7", "1000000000"}, // torchrun's own workers are 8
		{trainJob, "numProcPerNode: 8,", "muster, run, --, x", "8", "config f.yaml:6", "0"},
		{trainJob, "", "muster, run, --, x", "1", "config f.yaml:6", "0"},
	} {
		text := fmt.Sprintf(c.file, c.says, c.command)
		req, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: []string{"-f", "f.yaml", "--hosts", "a,b"},
			ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
		})
		j := &req.Job
		if at := j.Sources["nproc-per-node"].String(); err != nil || j.Procs != c.procs || at != c.procsAt ||
			strconv.Itoa(j.Restart.MaxRestarts) != c.restarts {
			t.Errorf("%s%s workers by %s and %d restarts, want %s by %s and %s: %v", text, j.Procs, at, j.Restart.MaxRestarts,
				c.procs, c.procsAt, c.restarts, err)
		}
	}
}

// podsOf is a job of two pods whose kind has no variables of torchrun, and pytorchPods one of a kind that has.
const (
	podsOf = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {completions: 2, parallelism: 2, completionMode: Indexed%s, " +
		"template: {spec: {containers: [{name: c, command: [%s],\n env: [%s]}]}}}\n" +
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: 9s}\n"
	pytorchPods = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec:\n  %s\n  pytorchReplicaSpecs:\n" +
		"    Worker: {replicas: 2, restartPolicy: Never, template: {spec: {containers: [{name: pytorch, command: [%s],\n env: [%s]}]}}}\n"
)

// readText reads a job file on two hosts.
func readText(text string, args ...string) (dialect.Request, error) {
	return dialect.Read("run", dialect.Invocation{
		Argv0: "muster", Args: append([]string{"-f", "f.yaml", "--hosts", "a,b"}, args...),
		ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
	})
}

// muster run in a pod reads the variables of its container where no flag says it, and so does a rehearsal of the pods: a
// flag wins over MUSTER_…, this over PET_…, and of two variables with one name the operator's counts. A flag in front of
// the file wins over all of them.
func TestJobFileReadsVariables(t *testing.T) {
	t.Parallel()
	const run = "muster, run, --, x"
	for _, c := range []struct {
		file, more, command, env string
		args                     []string
		procs, restarts, grace   string
	}{
		{podsOf, "", run, "{name: MUSTER_NPROC_PER_NODE, value: '4'}, {name: PET_MAX_RESTARTS, value: '3'}", nil, "4", "3", "30s"},
		{podsOf, "", run, "{name: MUSTER_MAX_RESTARTS, value: '2'}, {name: PET_MAX_RESTARTS, value: '3'}", nil, "1", "2", "30s"},
		{podsOf, "", "muster, run, -n, '8', --, x", "{name: MUSTER_NPROC_PER_NODE, value: '4'}", nil, "8", "6", "30s"},
		{podsOf, "", run, "{name: MUSTER_GRACE, valueFrom: {secretKeyRef: {name: s, key: k}}}", nil, "1", "6", "9s"},
		{podsOf, "", run, "{name: N, value: '5'}, {name: MUSTER_NPROC_PER_NODE, value: $(N)}", nil, "5", "6", "30s"},
		{podsOf, "", "muster, run, '--max-restarts=$(N)', --, x", "{name: N, value: '5'}", nil, "1", "5", "30s"},
		{podsOf, "", run, "{name: PET_MAX_RESTARTS, value: '3'}", []string{"--max-restarts", "7"}, "1", "7", "30s"},
		{podsOf, ", backoffLimit: 1", run, "{name: PET_MAX_RESTARTS, value: '3'}", nil, "1", "3", "30s"},
		{pytorchPods, "", run, "{name: PET_MAX_RESTARTS, value: '3'}", nil, "auto", "3", "30s"},
		{pytorchPods, "elasticPolicy: {maxRestarts: 5}", run, "{name: PET_MAX_RESTARTS, value: '3'}", nil, "auto", "5", "30s"},
		{pytorchPods, "elasticPolicy: {maxRestarts: 5}", run, "{name: MUSTER_MAX_RESTARTS, value: '3'}", nil, "auto", "3", "30s"},
		{pytorchPods, "nprocPerNode: '8'", run, "{name: PET_NPROC_PER_NODE, value: '2'}", nil, "8", "0", "30s"},
		{pytorchPods, "nprocPerNode: '8'", run, "{name: MUSTER_NPROC_PER_NODE, value: '2'}", nil, "2", "0", "30s"},
		{podsOf, "", "python, x.py", "{name: PET_MAX_RESTARTS, value: '3'}", nil, "1", "6", "30s"}, // nothing reads it there
	} {
		text := fmt.Sprintf(c.file, c.more, c.command, c.env)
		req, err := readText(text, c.args...)
		j := &req.Job
		if err != nil || j.Procs != c.procs || strconv.Itoa(j.Restart.MaxRestarts) != c.restarts || j.Stop.Grace.String() != c.grace {
			t.Errorf("%s%q: %s workers, %d restarts, grace %v, want %s, %s, %s: %v", text, c.args, j.Procs, j.Restart.MaxRestarts,
				j.Stop.Grace, c.procs, c.restarts, c.grace, err)
			continue
		}
		if p := j.Restart.Policy; strings.Contains(c.env+c.command, "RESTARTS") && req.File.Native &&
			(p == job.RestartNever || j.Restart.BackoffLimit >= 0) {
			t.Errorf("%s: the restarts are forbidden: %s, %d of all nodes", text, p, j.Restart.BackoffLimit)
		}
		for _, v := range j.Hosts.Nodes[1].Env {
			if strings.HasPrefix(v.Name, "MUSTER_") && req.File.Native {
				t.Errorf("%s: workers are told %s, which muster run keeps from them", text, v.Name)
			}
		}
		for _, s := range req.Settings {
			if s.Flag == "grace" && c.grace != "30s" && s.Value != "(2 characters, not shown)" {
				t.Errorf("the text of a Secret is shown: %q", s.Value)
			}
		}
	}
}

// What no setting of all nodes can be made of is refused by its name, and what is about the pod is left to the cluster.
func TestJobFileReadsVariablesNotHere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ command, env, wrong, line, as string }{
		{"muster, run, --, x", "{name: MUSTER_HOSTS, value: a}", "MUSTER_HOSTS cannot stand in a pod of a job file", "", ""},
		{"muster, run, --, x", "{name: MUSTER_MAX_RESTARTS, value: x}", "cannot use f.yaml:5 (max-restarts: x)", "", ""},
		{
			"muster, run, --, x",
			"{name: P, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: MUSTER_LOG_DIR, value: /logs/$(P)}",
			"cannot use /logs/$(P) for --log-dir: it has another value on each node", "", "",
		},
		{
			"muster, run, --log-dir=/logs/$(JOB_COMPLETION_INDEX), --, x", "",
			"cannot use /logs/$(JOB_COMPLETION_INDEX) for --log-dir: it has another value on each node", "", "",
		},
		{"muster, run, --, x", "{name: MUSTER_STATUS_FILE, value: /s}", "", "env[0]", "it is about the pod"},
		{"muster, run, --, x", "{name: PET_NNODES, value: '2'}", "", "env[0]", "how nodes meet in the cluster"},
		{"muster, run, --, x", "{name: MUSTER_GRACE, value: 3s}", "", "env[0]", "--grace of muster run's variable"},
		{"muster, run, --grace=4s, --, x", "{name: MUSTER_GRACE, value: 3s}", "", "env[0]", "no effect: --grace counts instead"},
	} {
		text := fmt.Sprintf(podsOf, "", c.command, c.env)
		req, err := readText(text)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want %q", text, err, c.wrong)
			}
			continue
		}
		told := err == nil && slices.ContainsFunc(req.File.Lines, func(l jobfile.Line) bool {
			return strings.HasSuffix(l.Path, c.line) && strings.Contains(l.As, c.as)
		})
		if !told {
			t.Errorf("%s: %v, want %s: %q", text, err, c.line, c.as)
		}
	}
	// Where somebody else says it there is no question.
	text := fmt.Sprintf(podsOf, "", "muster, run, --log-dir=/logs/$(JOB_COMPLETION_INDEX), --, x", "")
	if req, err := readText(text, "--log-dir", "/mine"); err != nil || req.Job.Logs.Dir != "/mine" {
		t.Errorf("%q, %v", req.Job.Logs.Dir, err)
	}
}

// Who says how often workers are started anew is not held back by what the file says of that in other words.
func TestJobFileRestartsByFlag(t *testing.T) {
	t.Parallel()
	const pytorch = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec:\n  runPolicy: {backoffLimit: 2}\n" +
		"  pytorchReplicaSpecs:\n    Worker: {replicas: 2, restartPolicy: %s, " +
		"template: {spec: {containers: [{name: pytorch, command: [x]}]}}}\n"
	const none = job.Unlimited
	for _, c := range []struct {
		policy, flags  string
		want           job.RestartPolicy
		restarts, most int
		wrong          string
	}{
		{"OnFailure", "", job.RestartOnFailure, 2, 2, ""},
		{"OnFailure", "--max-restarts 7", job.RestartOnFailure, 7, -1, ""},
		{"OnFailure", "--backoff-limit 5", job.RestartOnFailure, 5, 5, ""},
		{"OnFailure", "--backoff-limit none", job.RestartOnFailure, none, -1, ""},
		{"OnFailure", "--backoff-limit 0", job.RestartOnFailure, 0, 0, ""},
		{"OnFailure", "--max-restarts 7 --backoff-limit 5", job.RestartOnFailure, 7, 5, ""},
		{"OnFailure", "--restart-policy never", job.RestartNever, 0, -1, ""},
		{"Never", "", job.RestartNever, 0, -1, ""},
		{"Never", "--max-restarts 7", job.RestartOnFailure, 7, -1, ""},
		{"Never", "--max-restarts 0", job.RestartNever, 0, -1, ""},
		{"Never", "--backoff-limit 5", job.RestartOnFailure, 5, 5, ""},
		{"Never", "--restart-policy on-failure", "", 0, 0, "cannot use --restart-policy on-failure: it has no effect"},
		{"ExitCode", "--max-restarts 7", job.RestartExitCode, 7, -1, ""},
	} {
		req, err := readText(fmt.Sprintf(pytorch, c.policy), strings.Fields(c.flags)...)
		r := req.Job.Restart
		switch {
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s, %s: %v, want %q", c.policy, c.flags, err, c.wrong)
		case c.wrong == "" && (err != nil || r.Policy != c.want || r.MaxRestarts != c.restarts || r.BackoffLimit != c.most):
			t.Errorf("%s, %s: %s, %d restarts, %d of all nodes, want %s, %d, %d: %v", c.policy, c.flags, r.Policy, r.MaxRestarts,
				r.BackoffLimit, c.want, c.restarts, c.most, err)
		}
	}
	set, err := os.ReadFile("jobfile/testdata/jobset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	req, err := dialect.Read("run", dialect.Invocation{
		Argv0: "muster", Args: []string{"-f", "job.yaml", "--max-restarts=7"},
		ReadFile: func(string) ([]byte, error) { return set, nil },
		Machine:  dialect.Machine{FreePort: func() (int, error) { return 4321, nil }},
	})
	if r := req.Job.Restart; err != nil || r.MaxRestarts != 7 || r.BackoffLimit != -1 {
		t.Errorf("a JobSet: %d restarts, %d of all nodes: %v", r.MaxRestarts, r.BackoffLimit, err)
	}
}

// What chooses among hosts is refused where a rehearsal has none, and named where it leaves too few.
func TestJobFileChoosesHosts(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-f pytorchjob.yaml --include 127.0.0.1":       "cannot use --include 127.0.0.1: it has no effect without hosts",
		"-f pytorchjob.yaml --hosts a,b,c --exclude b": "with --hosts and --exclude b: there are only 2 hosts",
		"-f mpijob.yaml --hosts a,b --exclude b":       "cannot use --hosts a,b and --exclude b with 2 nodes",
	} {
		if _, err := readJob(nil, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	req, err := readJob([]string{"MUSTER_EXCLUDE=127.0.0.1"}, "-f", "pytorchjob.yaml")
	if err != nil || len(req.Job.Hosts.Nodes) != 3 || !strings.Contains(strings.Join(req.Job.Warnings, "\n"), "MUSTER_EXCLUDE=127.0.0.1") {
		t.Errorf("%d nodes, %q, %v", len(req.Job.Hosts.Nodes), req.Job.Warnings, err)
	}
}

// What --env says wins over the operator's variables, but for those by which the nodes meet; and words of --env add to
// those that muster run in the pods has.
func TestJobFileEnvOverOperators(t *testing.T) {
	t.Parallel()
	seen := func(req dialect.Request, name string) (list []string) {
		for _, v := range slices.Concat(req.Job.Env.Set, req.Job.Hosts.Nodes[0].Env) {
			if v.Name == name {
				list = append(list, v.Value)
			}
		}
		return list
	}
	text := fmt.Sprintf(pytorchPods, "elasticPolicy: {maxRestarts: 5}", "torchrun, x.py", "")
	req, err := readText(text, "--env", "PET_MAX_RESTARTS=9")
	if err != nil || !slices.Equal(seen(req, "PET_MAX_RESTARTS"), []string{"9"}) {
		t.Errorf("%v, %v", seen(req, "PET_MAX_RESTARTS"), err)
	}
	for _, name := range []string{"PET_NNODES", "PET_RDZV_ENDPOINT"} {
		if _, err := readText(text, "--env", name+"=9"); err == nil || !strings.Contains(err.Error(), name+" by --env") {
			t.Errorf("%s: %v", name, err)
		}
	}
	text = fmt.Sprintf(podsOf, "", "muster, run, --env=A=1, --env, B=2, --env, C, --, x", "{name: C, value: '3'}")
	if req, err = readText(text, "--env", "B=4"); err != nil || !slices.Equal(seen(req, "A"), []string{"1"}) ||
		!slices.Equal(seen(req, "B"), []string{"2", "4"}) || !slices.Equal(seen(req, "C"), []string{"3"}) {
		t.Errorf("A=%v B=%v C=%v, %v", seen(req, "A"), seen(req, "B"), seen(req, "C"), err)
	}
}

// The jobs of a JobSet are indexed where they do not say it, as JobSet's webhook makes them.
func TestJobSetIsIndexed(t *testing.T) {
	t.Parallel()
	const set = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: s}\nspec:\n  replicatedJobs:\n" +
		"  - name: workers\n    template:\n      spec: {completions: 2, parallelism: 2%s, " +
		"template: {spec: {containers: [{name: a, image: b, command: [sh, -c, 'true']}]}}}\n"
	for mode, want := range map[string]string{
		"": "", ", completionMode: Indexed": "", ", completionMode: NonIndexed": "do not know their ranks",
	} {
		req, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: []string{"-f", "f.yaml", "--hosts", "a,b"},
			ReadFile: func(string) ([]byte, error) { return fmt.Appendf(nil, set, mode), nil },
		})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d nodes, %v", mode, len(req.Placed), err)
		}
	}
}

// What variables say of the nodes is the file's to say, and is told.
func TestJobFileIgnoresTellsIt(t *testing.T) {
	t.Parallel()
	req, err := readJob([]string{"MUSTER_NNODES=2", "PET_NPROC_PER_NODE=4"}, "-f", "elasticjob.yaml", "--hosts", "a,b")
	list := strings.Join(req.Job.Warnings, "\n")
	if err != nil || !strings.Contains(list, "no effect with elasticjob.yaml") || !strings.Contains(list, "MUSTER_NNODES=2") ||
		!strings.Contains(list, "PET_NPROC_PER_NODE=4") {
		t.Errorf("%s: %v", list, err)
	}
	if req, err = readJob(nil, "-f", "elasticjob.yaml"); err != nil || strings.Contains(strings.Join(req.Job.Warnings, ""), "no effect") {
		t.Errorf("%q: %v", req.Job.Warnings, err)
	}
}

// A job has one file: a second one is refused, and the same one again is no other.
func TestJobFileTwice(t *testing.T) {
	t.Parallel()
	for _, second := range []string{"-f", "--job-file", "--job_file"} {
		_, err := readJob(nil, "-f", "elasticjob.yaml", second, "pytorchjob.yaml")
		if errhint.CodeOf(err) != errhint.Usage || err == nil || !strings.Contains(errhint.Of(err), "put several into one") ||
			!strings.Contains(err.Error(), "cannot use --job-file elasticjob.yaml and --job-file pytorchjob.yaml together") {
			t.Errorf("%v; %s", err, errhint.Of(err))
		}
	}
	if _, err := readJob(nil, "-f", "elasticjob.yaml", "-f", "elasticjob.yaml"); err != nil {
		t.Error(err)
	}
}

// Exit codes at which a job of several groups ends, by its own policies and by those of each group, are all taken, each once.
func TestJobFileFatalCodes(t *testing.T) {
	t.Parallel()
	task := "  - {policies: [{exitCode: 3, action: AbortJob}], name: t%d, " +
		"template: {spec: {containers: [{name: c, command: [sh, -c, 'true']}]}}}\n"
	text := "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n" +
		"  policies: [{event: PodEvicted, action: AbortJob}, {exitCode: 4, action: AbortJob}, {exitCode: 3, action: TerminateJob}]\n" +
		"  tasks:\n" + fmt.Sprintf(task, 1) + fmt.Sprintf(task, 2)
	req, err := dialect.Read("run", dialect.Invocation{
		Argv0: "muster", Args: []string{"-f", "f.yaml"}, Machine: dialect.Machine{FreePort: func() (int, error) { return 4321, nil }},
		ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
	})
	if got := req.Job.Restart.Fatal.String(); err != nil || got != "3,4" || req.Job.Restart.ReplaceLimit != 0 {
		t.Errorf("%s, %v", got, err)
	}
}

// Where the nodes of a file run muster run itself, what its command is called has no secret in it either.
func TestTitleOfNativeShowsNoSecret(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		`python3, -c, "login = '$(T)'"`: "python3 -c",
		`python3, -W, ignore, train.py`: "train.py",
		`"$(T).py", --x`:                "(12 characters, not shown)",
	} {
		text := "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {completions: 2, parallelism: 2, completionMode: Indexed, " +
			"template: {spec: {containers: [{name: c, command: [muster, run, --nnodes=2, --, " + command +
			"], env: [{name: T, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}}}\n" +
			"---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: swordfish}\n"
		req, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: []string{"-f", "j.yaml"},
			ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
			Machine:  dialect.Machine{FreePort: func() (int, error) { return 4321, nil }},
		})
		if err != nil || !req.File.Native || req.Job.Command.Title != want {
			t.Errorf("%s: %q, want %q, %v", command, req.Job.Command.Title, want, err)
		}
	}
}

// TestSuccessPolicyGiven: --success-policy, which refusals advise, takes the place of what a file says of success.
func TestSuccessPolicyGiven(t *testing.T) {
	t.Parallel()
	const (
		pod   = "template: {spec: {containers: [{name: c, command: [x]}]}}"
		batch = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {successPolicy: {rules: [{succeededCount: 1}]}, " +
			pod + "}\n"
		jobSet  = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: j}\nspec: {%sreplicatedJobs: [%s, %s]}\n"
		one     = "{name: NAME, replicas: 2, template: {spec: {" + pod + "}}}"
		volcano = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec: {%stasks: [{name: a, " + pod +
			"}, {name: b, %s" + pod + "}]}\n"
		complete = "policies: [{event: TaskCompleted, action: CompleteJob}], "
	)
	for name, text := range map[string]string{
		"Job": batch,
		"JobSet": fmt.Sprintf(jobSet, "successPolicy: {targetReplicatedJobs: [b]}, ", strings.Replace(one, "NAME", "a", 1),
			strings.Replace(one, "NAME", "b", 1)),
		"minSuccess":             fmt.Sprintf(volcano, "minSuccess: 1, ", ""),
		"any task is complete":   fmt.Sprintf(volcano, complete, ""),
		"the second is complete": fmt.Sprintf(volcano, "", complete),
	} {
		for _, given := range []bool{false, true} {
			args := []string{"-f", "job.yaml"}
			if given {
				args = append(args, "--success-policy", "any")
			}
			req, err := dialect.Read("run", dialect.Invocation{
				Argv0: "muster", Args: args, ReadFile: func(string) ([]byte, error) { return []byte(text), nil }, Explain: true,
			})
			if !given {
				if err == nil || !strings.Contains(errhint.Of(err), "give --success-policy") {
					t.Errorf("%s: %v (%s)", name, err, errhint.Of(err))
				}
				continue
			}
			told := err == nil && slices.ContainsFunc(req.File.Lines, func(l jobfile.Line) bool {
				return strings.HasPrefix(l.As, "no effect: --success-policy says")
			})
			if err != nil || req.Job.Restart.Success != job.QuorumAny || !told {
				t.Errorf("%s: %v, %v, told %v", name, err, req.Job.Restart.Success, told)
			}
		}
	}
}

// TestConfigLine: of a settings file that is no YAML the line is named in which the mistake is.
func TestConfigLine(t *testing.T) {
	t.Parallel()
	_, err := dialect.Read("run", dialect.Invocation{
		Argv0: "muster", Args: []string{"--config", "c.yaml", "train.py"},
		ReadFile: func(string) ([]byte, error) { return []byte("#\nmax-restarts: 3\nenv: [A=1, B=2\ngrace: 3s\n"), nil },
	})
	if err == nil || !strings.Contains(err.Error(), "cannot read c.yaml: line 3: did not find expected ',' or ']'") {
		t.Error(err)
	}
}
