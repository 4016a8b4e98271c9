package jobfile_test

import (
	"strings"
	"testing"

	"muster/cmd/dialect/jobfile"
)

// TestLinesAgree: of each line there is one word, and it is what happens: nothing is called applied that nobody runs or
// reads, and what the operator takes where the file says nothing is told.
func TestLinesAgree(t *testing.T) {
	t.Parallel()
	const (
		env     = "env: [{name: A, value: a}], envFrom: [{configMapRef: {name: c, optional: true}}]"
		mpi     = "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: j}\nspec: {mpiReplicaSpecs: {"
		debug   = "apiVersion: batch.tensorstack.dev/v1beta1\nkind: %s\nmetadata: {name: j}\nspec: {runMode: {debug: {enabled: true}}, "
		pytorch = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec: {"
		worker  = "pytorchReplicaSpecs: {Worker: {replicas: 2, template: {spec: {containers: [{name: c, command: [x]}]}}}}"
		musters = "pytorchReplicaSpecs: {Worker: {replicas: 2, template: {spec: {containers: [{name: c, command: [muster, run, --, x]}]}}}}"
		indexed = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {completionMode: Indexed, completions: 3, parallelism: 5, " +
			"template: {spec: {containers: [{name: c, command: [x]}]}}}"
		noSSH, noDebug = "processes that the launcher starts over ssh do not have", "not run: debug mode runs its own command"
	)
	for name, c := range map[string]struct {
		text string
		want map[string]string // what is said, by the end of a path
		pods int
	}{
		"workers of MPI": {
			mpi + "Launcher: {template: {spec: {containers: [{name: l, command: [mpirun]}]}}}, " +
				"Worker: {replicas: 2, template: {spec: {containers: [{name: w, command: [sshd], args: [-D], " + env + "}]}}}}}",
			map[string]string{
				"Worker.template.spec.containers[0].command":                 "waits there for nothing",
				"Worker.template.spec.containers[0].args":                    "waits there for nothing",
				"Worker.template.spec.containers[0].env[0]":                  noSSH,
				"Worker.template.spec.containers[0].envFrom[0].configMapRef": noSSH,
			},
			2,
		},
		"debug mode": {
			strings.Replace(debug, "%s", "PyTorchTrainingJob", 1) +
				"replicaSpecs: [{type: a, template: {spec: {containers: [{name: python, command: [x], args: [y]}]}}}]}",
			map[string]string{"containers[0].command": noDebug, "containers[0].args": noDebug},
			1,
		},
		"debug mode of a launcher": {
			strings.Replace(debug, "%s", "ColossalAIJob", 1) +
				"worker: {command: [x], torchArgs: [--y], template: {spec: {containers: [{name: c}]}}}}",
			map[string]string{"worker.command": noDebug, "worker.torchArgs": noDebug},
			1,
		},
		"workers that are counted": {
			pytorch + "elasticPolicy: {minReplicas: 1}, " + worker + "}", map[string]string{"spec.nprocPerNode": "not given"}, 2,
		},
		"workers that are given": {
			pytorch + "elasticPolicy: {nProcPerNode: 1}, " + worker + "}", map[string]string{"spec.nprocPerNode": ""}, 2,
		},
		"workers of muster run": {
			pytorch + "nprocPerNode: '2', " + musters + "}",
			map[string]string{"spec.nprocPerNode": "PET_NPROC_PER_NODE of the node's muster run"},
			2,
		},
		"workers that muster run has itself": {
			pytorch + "elasticPolicy: {nProcPerNode: 1, maxRestarts: 3}, " +
				strings.Replace(musters, "run,", "run, --nproc-per-node=2,", 1) + "}",
			map[string]string{
				"nProcPerNode": "PET_NPROC_PER_NODE of the node's muster run, whose flag --nproc-per-node counts instead",
				"maxRestarts":  "PET_MAX_RESTARTS of the node's muster run",
			},
			2,
		},
		"restarts of an elastic job": {
			pytorch + "elasticPolicy: {minReplicas: 1}, " +
				strings.Replace(worker, "{replicas", "{restartPolicy: OnFailure, replicas", 1) + "}",
			map[string]string{"Worker.restartPolicy": "workers of a failed node start anew: --restart-scope node"},
			2,
		},
		"restarts of a job of fixed size": {
			pytorch + strings.Replace(worker, "{replicas", "{restartPolicy: OnFailure, replicas", 1) + "}",
			map[string]string{"Worker.restartPolicy": "all workers start anew together"},
			2,
		},
		"more places than work": {
			indexed, map[string]string{"spec.parallelism": "no more pods than completions", "completions": "3 nodes"}, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := read(c.text, func(o *jobfile.Options) { o.Explain, o.Run = true, runWords })
			if err != nil {
				t.Fatal(err)
			}
			for end, want := range c.want {
				var said []string
				for _, l := range f.Lines {
					if strings.HasSuffix(l.Path, end) {
						said = append(said, l.As)
						if want == noSSH && l.State != jobfile.Cluster {
							t.Errorf("%s is %s", l.Path, l.State)
						}
					}
				}
				if want == "" && len(said) > 0 || want != "" && (len(said) != 1 || !strings.Contains(said[0], want)) {
					t.Errorf("of %s is said %q, want %q", end, said, want)
				}
			}
			if len(f.Pods) != c.pods {
				t.Errorf("%d pods, want %d", len(f.Pods), c.pods)
			}
		})
	}
}

// TestTitle: reports of a job's failure name what its nodes run, and not the shell in which muster runs that, nor a
// secret.
func TestTitle(t *testing.T) {
	t.Parallel()
	const job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {completions: 2, parallelism: 2, completionMode: Indexed, " +
		"template: {spec: {containers: [{name: c, command: %s, env: [{name: T, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}}}\n" +
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: swordfish}\n"
	for command, want := range map[string]string{
		"[torchrun, --nnodes=2, train.py]":                               "torchrun",
		"[python3, -u, train.py, --address=$(MASTER_ADDR)-$(NO)]":        "train.py",
		"[python3, -c, 'login = \"$(T)\"']":                              "python3 -c",
		"[python3, -W, ignore, -X, dev, train.py, $(T)]":                 "train.py",
		"[python3, -um, pkg.train, $(T)]":                                "-m pkg.train",
		"[python3, /data/$(T)/train.py]":                                 "/data/$(T)/train.py",
		"[python3, /data/$(T)-$(JOB_COMPLETION_INDEX)/train.py]":         "/data/$(T)-0/train.py",
		"[torchrun, --nnodes=2, train.py, --token, $(T)]":                "torchrun",
		"[sh, -c, 'exec deepspeed train.py']":                            "sh",
		"[/usr/bin/python3, train.py, --index, $(JOB_COMPLETION_INDEX)]": "train.py",
	} {
		f, err := read(strings.Replace(job, "%s", command, 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := f.Place(jobfile.Places{Hosts: []string{"a", "b"}, Port: 1})
		if err != nil || c.Title != want {
			t.Errorf("%s: %q, want %q, of %s, %v", command, c.Title, want, c.Name, err)
		}
	}
}
