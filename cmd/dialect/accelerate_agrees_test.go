package dialect_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"muster/cmd/dialect"
	"muster/launch/job"
)

// accelerateAnswer is what the real accelerate makes of a case, see testdata/accelerate_oracle.py.
type accelerateAnswer struct {
	Status  int
	Message string
	How     string
	Argv    []string
	Env     map[string]string
	Args    map[string]any
}

// question is what the oracle is asked about the case, whose files are put into dir.
func (c *accelerateCase) question(t *testing.T, dir string) any {
	t.Helper()
	for name, text := range c.files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{}
	for _, entry := range c.environ(dir) {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return map[string]any{"argv": c.args(), "env": env, "dir": dir, "devices": c.devices, "cores": accelerateCores}
}

// TestAccelerateAgrees compares the jobs of all cases with what the real accelerate would start: the way, the arguments
// of torchrun, and each variable. Differences must be listed in the case, with their reasons.
func TestAccelerateAgrees(t *testing.T) {
	asked := askAccelerate(t)
	cases, dirs, answers := asked.cases, asked.dirs, asked.answers
	started := 0
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			req, err := c.ours(dirs[i])
			found := differences(req, err, answers[i])
			for _, key := range slices.Sorted(maps.Keys(found)) {
				if !c.meant(key) {
					t.Errorf("%s: %s\n%s\n%s", key, found[key], c.cmd, c.files["c.yaml"])
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
	if started < len(cases)/2 {
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

func compareTorchrun(j *job.Job, args map[string]any, differ func(key string, want, got any)) {
	differ("nnodes", args["nnodes"],
		map[bool]string{true: "1:1", false: strconv.Itoa(j.Nodes.Max)}[j.Nodes.Max == 1 && args["nnodes"] == "1:1"])
	differ("nproc_per_node", args["nproc_per_node"], j.Procs)
	differ("role", args["role"], j.Role)
	differ("max_restarts", args["max_restarts"], j.Restart.MaxRestarts)
	differ("tee", args["tee"], streamsOf(j.Logs.Tee))
	dir, _ := args["log_dir"].(string)
	differ("log_dir", dir, j.Logs.Dir)
	words := argv(j.Command)
	last := []string{args["training_script"].(string)}
	for _, word := range args["training_script_args"].([]any) {
		last = append(last, word.(string))
	}
	differ("command", last, words[len(words)-len(last):])
	differ("module", args["module"] == true, j.Command.Kind == job.Module)
	differ("no_python", args["no_python"] == true, j.Command.Kind == job.Program)
	if j.Nodes.Max == 1 {
		port, _ := args["master_port"].(string)
		if n, err := strconv.Atoi(port); err == nil && n > 0 && j.Meeting.Backend == "standalone" {
			differ("port", []int{n}, j.Meeting.WorkerPorts)
		}
		return
	}
	differ("rdzv_backend", args["rdzv_backend"], j.Meeting.Backend)
	if j.Meeting.Backend == "static" {
		differ("node_rank", args["node_rank"], j.Meeting.NodeRank)
	}
	at := args["rdzv_endpoint"]
	if at == "" {
		port := args["master_port"]
		at = fmt.Sprint(args["master_addr"], ":", port)
	}
	differ("endpoint", at, j.Meeting.Endpoints[0])
}

// compareEnv compares each variable that a worker has, without those by which torchelastic tells ranks where it runs.
func compareEnv(j *job.Job, theirs accelerateAnswer, differ func(key string, want, got any)) {
	ours := map[string]string{}
	for _, entry := range j.Environ {
		name, value, _ := strings.Cut(entry, "=")
		if !job.TellsWorkers(name) {
			ours[name] = value
		}
	}
	for _, v := range slices.Concat(j.Env.Set, j.NodeEnv) {
		ours[v.Name] = v.Value
	}
	for _, name := range j.Env.Unset {
		delete(ours, name)
	}
	names := slices.Collect(maps.Keys(ours))
	for name := range theirs.Env {
		names = append(names, name)
	}
	for _, name := range names {
		if job.TellsWorkers(name) && !slices.Contains(j.Env.Unset, "RANK") {
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
