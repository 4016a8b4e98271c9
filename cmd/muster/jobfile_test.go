package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"muster/cmd/dialect"
)

// writeJob writes a job file.
func writeJob(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestJobFileRefused starts nothing where something is wrong with the file or with what stands beside it.
func TestJobFileRefused(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "started")
	file := writeJob(t, `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: pods}
spec:
  pytorchReplicaSpecs:
    Master: &replica {template: {spec: {containers: [{name: pytorch, command: [/bin/bash, -c], args: ["touch `+mark+`"]}]}}}
    Worker: {<<: *replica, replicas: 2}
`)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-f", "nowhere.yaml"}, "nowhere.yaml"},
		{[]string{"-f", file, "--set", "spec.runPolicy.backofLimit=1"}, "did you mean backoffLimit?"},
		{[]string{"-f", file, "--set", "spec.runPolicy.suspend=true"}, "the job is suspended"},
		{[]string{"-f", file, "--hosts", "127.0.0.1,127.0.0.2"}, "there are only 2 hosts"},
		{[]string{"-f", file, "--set", "spec.pytorchReplicaSpecs.Worker.replicas=100"}, "cannot run 101 nodes on this machine"},
		{[]string{"-f", file, "--nnodes", "2"}, "the file says what runs on which nodes"},
		{[]string{"-f", file, "--name", "other"}, "no job in the file is the one"},
		{[]string{"-f", file, "--", "more"}, "arguments cannot be put behind a script"},
		{[]string{"--set", "a=b", "--", "true"}, "cannot use --set a=b: it has no effect without a job file"},
	} {
		got := muster(t, nil, append([]string{"run"}, c.args...)...)
		if got.Status != 2 || !strings.Contains(got.Stderr, c.want) {
			t.Errorf("%v: status %d, want 2 and %q\n%s", c.args, got.Status, c.want, got.Stderr)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("something was started")
	}
}

// TestDryRunOfSecretPath: a dry run finds what a run would find, though the text of a Secret is in its path, and shows the
// path without that.
func TestDryRunOfSecretPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "swordfish"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"run.sh", "train.py"} {
		if err := os.WriteFile(filepath.Join(dir, "swordfish", name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range []string{
		dir + "/$(T)/run.sh, a, $(T)", "python3, " + dir + "/$(T)/train.py, a", "muster, run, --, " + dir + "/$(T)/train.py, a",
		"muster, run, --, " + dir + "/$(T)/run.sh", "muster, run, --, python3, " + dir + "/$(T)/train.py",
		"sh, -c, 'exec " + dir + "/$(T)/run.sh'", "python3, -c, 'print(\"/$(T)/\")'", "muster, run, --, sh, " + dir + "/$(T)/run.sh",
		"torchrun, " + dir + "/$(T)/train.py",
	} {
		for _, n := range []string{"1", "2"} {
			file := writeJob(t, `apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec: {completions: `+n+`, parallelism: `+n+`, completionMode: Indexed, template: {spec: {containers: [{name: c,
  command: [`+command+`], env: [{name: T, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {k: swordfish}}
`)
			for _, flags := range [][]string{nil, {"--json"}, {"--debug-mode"}} {
				got := muster(t, nil, append([]string{"run", "-f", file, "--dry-run"}, flags...)...)
				if got.Status != 0 || !strings.Contains(got.Stdout, "/$(T)/") || strings.Contains(got.Stdout+got.Stderr, "swordfish") {
					t.Errorf("[%s] of %s, %v: status %d\n%s%s", command, n, flags, got.Status, got.Stdout, got.Stderr)
				}
			}
			got := muster(t, nil, "run", "-f", file, "--dry-run", "--show-values")
			if got.Status != 0 || !strings.Contains(got.Stdout, "/swordfish/") {
				t.Errorf("[%s] of %s: status %d\n%s%s", command, n, got.Status, got.Stdout, got.Stderr)
			}
		}
	}
}

// TestExplain tells of every line of a job file what becomes of it, and starts nothing.
func TestExplain(t *testing.T) {
	t.Parallel()
	got := muster(t, nil, "explain", "../dialect/jobfile/testdata/pytorchjob.yaml", "-o", "json", "--hosts", "a,b,c")
	var told struct {
		Rehearsal bool
		Nodes     []struct{ Replica, Host string }
		Lines     []struct{ Path, Source, State, As string }
	}
	if err := json.Unmarshal([]byte(got.Stdout), &told); err != nil || got.Status != 0 {
		t.Fatalf("status %d, %v\n%s", got.Status, err, got.Stderr)
	}
	if told.Rehearsal || len(told.Nodes) != 3 || told.Nodes[2].Replica != "mnist-worker-1" || told.Nodes[2].Host != "c" {
		t.Errorf("%+v", told.Nodes)
	}
	states := map[string]string{}
	for _, l := range told.Lines {
		states[l.Path] = l.State
		if l.Source == "" || l.As == "" {
			t.Errorf("nothing is said of %+v", l)
		}
	}
	for path, want := range map[string]string{
		"spec.runPolicy.backoffLimit": "applied", "spec.nprocPerNode": "mapped", "spec.runPolicy.ttlSecondsAfterFinished": "cluster",
	} {
		if states[path] != want {
			t.Errorf("%s is %q, want %s", path, states[path], want)
		}
	}
	text := muster(t, nil, "explain", "../dialect/jobfile/testdata/mpijob.yaml")
	if text.Status != 0 || !strings.Contains(text.Stdout, "MPIJob pi: 3 nodes on this machine, as a rehearsal") ||
		!strings.Contains(text.Stdout, "(started by the launcher)") {
		t.Errorf("status %d\n%s%s", text.Status, text.Stdout, text.Stderr)
	}
	if wrong := muster(t, nil, "explain", "nowhere.yaml"); wrong.Status != 2 {
		t.Errorf("status %d\n%s", wrong.Status, wrong.Stderr)
	}
}

// TestExplainTakesFlagsOfRun: what muster run -f takes beside the file muster explain takes, and answers as for that run.
func TestExplainTakesFlagsOfRun(t *testing.T) {
	t.Parallel()
	flags := newExplainCmd(newApp(nil, nil, os.Stdout, os.Stderr)).Flags()
	dialect.Flags("run").VisitAll(func(f *pflag.Flag) {
		if own := flags.Lookup(f.Name); own == nil || own.Shorthand != f.Shorthand {
			t.Errorf("it does not take --%s, -%s", f.Name, f.Shorthand)
		}
	})
	file := writeJob(t, `apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: j}
spec: {minSuccess: 1, tasks: [{replicas: 2, template: {spec: {containers: [{name: c, command: ["true"]}]}}}]}
`)
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{file}, 2, "spec.minSuccess: muster knows success of all nodes"},
		{[]string{file, "--success-policy", "any"}, 0, "no effect: --success-policy says whose success is the job's"},
		{[]string{"--success_policy=any", "-f", file}, 0, "VolcanoJob j: 2 nodes"},
		{[]string{"--success-policy=any", file, "--", "--lr", "0.1"}, 0, "true --lr 0.1"},
		{[]string{"--success-policy=any", file, "--set=spec.tasks[0].name=a", "--set", "spec.tasks[0].replicas=3"}, 0, "j-a-2"},
		{[]string{"--success-policy=any", file, "--json"}, 0, `"kind": "VolcanoJob"`},
		{[]string{"--success-policy=some", file}, 2, "cannot use --success-policy some: choose one of"},
		{[]string{"--success-policy=any", file, "--nnodes", "3"}, 2, "cannot use --nnodes 3"},
		{[]string{"-f", file, "other.yaml"}, 2, "are two files, and a job has one"},
		{[]string{"--", file}, 2, "no job file is named"},
		{
			[]string{"../dialect/jobfile/testdata/jobset.yaml", "--max-restarts", "7"},
			0,
			"7                    flag --max-restarts, in place of line 6\n",
		},
	} {
		got := muster(t, nil, append([]string{"explain"}, c.args...)...)
		if got.Status != c.status || !strings.Contains(got.Stdout+got.Stderr, c.want) {
			t.Errorf("%q: status %d, want %d and %q\n%s%s", c.args, got.Status, c.status, c.want, got.Stdout, got.Stderr)
		}
	}
}
