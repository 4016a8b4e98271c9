package dialect_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"muster/cmd/dialect"
)

// A rehearsal whose command names what this machine lacks is refused with the place of that word, whichever launcher or
// shell it stands behind. Where a script decides, and on hosts, nothing is said.
func TestJobFileScripts(t *testing.T) {
	t.Parallel()
	machine := fstest.MapFS{
		"work/train.py": {}, "work/run.sh": {}, "bin/python": {}, "bin/sh": {}, "bin/true": {}, "bin/bash": {}, "opt/train.py": {},
	}
	const job = `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: pods}
spec:
  pytorchReplicaSpecs:
    Master: &replica
      template:
        spec:
          containers:
            - name: pytorch
              env: [{name: WHERE, value: /opt}, {name: FILE, value: gone.py}]
              command: [%s]
              args: [%s]
    Worker: *replica
`
	read := func(command, args string, more ...string) error {
		_, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: append([]string{"-f", "job.yaml"}, more...), Environ: []string{"PATH=/bin:/usr/bin"}, Dir: "/work",
			ReadFile: func(name string) ([]byte, error) {
				if name != "job.yaml" {
					return nil, fs.ErrNotExist
				}
				return fmt.Appendf(nil, job, command, args), nil
			},
			Machine: dialect.Machine{
				FreePort: func() (int, error) { return 4321, nil },
				Stat:     func(name string) (fs.FileInfo, error) { return machine.Stat(strings.TrimPrefix(name, "/")) },
			},
		})
		return err
	}
	const container = "spec.pytorchReplicaSpecs.Master.template.spec.containers[0]"
	for _, c := range []struct{ command, args, missing string }{
		{"python, -u, train.py", "", ""},
		{"python, -u, gone.py", "train.py", "12:37: " + container + `.command[2]: cannot find the script "gone.py": file does not exist`},
		{"python, -X, importtime, -c", "import x", ""},
		{"python, -m, gone", "", ""},
		{"python, -uW, ignore, train.py", "", ""},
		{"python, -Xfrozen_modules=off", "gone.py", `args[0]: cannot find the script "gone.py"`},
		{"python", "$(WHERE)/train.py", ""},
		{"python", "$(WHERE)/gone.py", "13:22: " + container + `.args[0]: cannot find the script "/opt/gone.py"`},
		{"/opt/bin/python, train.py", "", "12:25: " + container + `.command[0]: cannot find the program "/opt/bin/python"`},
		{"gone, train.py", "", `cannot find the program "gone": it is in no directory of PATH`},
		{"./run.sh", "", ""},
		{"./gone.sh", "", `cannot find the program "./gone.sh"`},
		{"torchrun", "--nproc-per-node=2, train.py", ""},
		{"torchrun", "--nproc-per-node=2, gone.py", `args[1]: cannot find the script "gone.py"`},
		{"torchrun, --nonsense", "gone.py", ""}, // torchrun says it
		{"torchrun, --no-python", "./gone", `args[0]: cannot find the program "./gone"`},
		{"python, -m, torch.distributed.run", "gone.py", `args[0]: cannot find the script "gone.py"`},
		{"accelerate, launch", "gone.py", `args[0]: cannot find the script "gone.py"`},
		{"horovodrun, -np, '2', -H, 'localhost:2', python", "gone.py", `args[0]: cannot find the script "gone.py"`},
		{"mpirun, -np, '2', python", "gone.py", `args[0]: cannot find the script "gone.py"`},
		{"sh, -e, run.sh", "", ""},
		{"bash, -euo, pipefail, gone.sh", "", `command[3]: cannot find the script "gone.sh"`},
		{"bash, -c", "'exec python train.py'", ""},
		{"bash, -lc", `"A=1 torchrun --nnodes=$PET_NNODES \\\n gone.py"`, `args[0]: cannot find the script "gone.py"`},
		{"bash, -c", `"torchrun ${FILE}"`, `args[0]: cannot find the script "gone.py"`},
		{"bash, -c", `"python gone.py && true"`, ""},
		{"bash, -c", `"cd /gone"`, ""},
		{"muster, run, -n, '2', --", "python, gone.py", `args[1]: cannot find the script "gone.py"`},
		{"muster, run, -n, '2', -m, gone", "", ""},
	} {
		err := read(c.command, c.args)
		switch {
		case c.missing == "" && err != nil:
			t.Errorf("[%s] [%s]: %v", c.command, c.args, err)
		case c.missing != "" && (err == nil || !strings.Contains(err.Error(), c.missing) || strings.Count(err.Error(), "cannot find") != 1):
			t.Errorf("[%s] [%s]: %v, want once %s", c.command, c.args, err, c.missing)
		}
		if err := read(c.command, c.args, "--hosts", "a,b"); err != nil {
			t.Errorf("[%s] [%s]: on hosts: %v", c.command, c.args, err)
		}
	}
	if err := read("torchrun", "train.py", "--", "--more"); err != nil {
		t.Error(err)
	}
	if err := read("python", "", "--", "gone.py"); err == nil ||
		!strings.Contains(err.Error(), `the command of pods-master-0: cannot find`) {
		t.Error(err)
	}
}

// What is not here is told without the texts of Secrets: $(NAME) stands for them.
func TestJobFileScriptsHidden(t *testing.T) {
	t.Parallel()
	machine := fstest.MapFS{"bin/python": {}, "bin/sh": {}}
	const pods = `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: pods}
spec:
  pytorchReplicaSpecs:
    Master:
      template:
        spec:
          containers:
            - name: pytorch
              env:
                - {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: a}}}
                - {name: PART, valueFrom: {secretKeyRef: {name: s, key: b}}}
                - {name: OTHER, valueFrom: {secretKeyRef: {name: s, key: c}}}
                - {name: MADE, value: of-$(TOKEN)}
              command: [%s]
---
{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {a: 'hunter"2', b: hunter, c: py}}
`
	for command, missing := range map[string]string{
		"python, $(TOKEN).py":               `the script "$(TOKEN).py": file does not exist`,
		"python, $(PART)/$(TOKEN).py":       `the script "$(PART)/$(TOKEN).py"`,
		"python, $(MADE).py":                `the script "$(MADE).py"`,
		"torchrun, $(TOKEN).py":             `the script "$(TOKEN).py"`,
		"sh, -c, 'python $PART.py'":         `the script "$(PART).py"`,
		"sh, -c, 'exec torchrun ${PART}.x'": `the script "$(PART).x"`,
		"./$(TOKEN)":                        `the program "./$(TOKEN)"`,
		"$(PART)":                           `the program "$(PART)"`,
		"muster, run, --, ./$(PART)":        `the program "./$(PART)"`,
	} {
		_, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: []string{"-f", "job.yaml"}, Environ: []string{"PATH=/bin"}, Dir: "/work",
			ReadFile: func(string) ([]byte, error) { return fmt.Appendf(nil, pods, command), nil },
			Machine: dialect.Machine{
				FreePort: func() (int, error) { return 4321, nil },
				Stat:     func(name string) (fs.FileInfo, error) { return machine.Stat(strings.TrimPrefix(name, "/")) },
			},
		})
		if err == nil || !strings.Contains(err.Error(), "cannot find "+missing) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("[%s]: %v, want %s", command, err, missing)
		}
	}
}

// What the command line says of the nodes' Python and variables counts where a rehearsal looks for what they run. What
// the operator mounts is there, too.
func TestJobFileScriptsChosen(t *testing.T) {
	t.Parallel()
	machine := fstest.MapFS{"work/train.py": {}, "bin/sh": {}, "opt/bin/tool": {}}
	const pods = `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: pods}
spec:
  pytorchReplicaSpecs:
    Master:
      template: {spec: {containers: [{name: pytorch, command: [%s]}]}}
`
	const trainers = `apiVersion: kongming.cce.baiudbce.com/v1
kind: AITrainingJob
metadata: {name: resnet}
spec:
  frameworkType: horovod
  faultTolerant: true
  plugin: {discovery: [""]}
  replicaSpecs:
    launcher:
      template: {spec: {containers: [{name: aitj-0, command: [%s]}]}}
    trainer:
      minReplicas: 1
      replicas: 1
      maxReplicas: 2
      template: {spec: {containers: [{name: aitj-0}]}}
`
	for _, c := range []struct {
		file, command string
		args          []string
		missing       string
	}{
		{pods, "python, train.py", nil, `cannot find the program "python"`},
		{pods, "python, train.py", []string{"--python", "/opt/python"}, ""},
		{pods, "python, gone.py", []string{"--python", "/opt/python"}, `cannot find the script "gone.py"`},
		{pods, "python, train.py", []string{"--venv", ".venv"}, ""},
		{pods, "python, train.py", []string{"--conda", "env"}, ""},
		{pods, "tool, train.py", nil, `cannot find the program "tool"`},
		{pods, "tool, train.py", []string{"--venv", ".venv"}, ""},
		{pods, "tool, train.py", []string{"--env", "PATH=/opt/bin:/bin"}, ""},
		{pods, "tool, train.py", []string{"--env", "PATH=/opt:/bin"}, `cannot find the program "tool"`},
		{pods, "tool, train.py", []string{"--env", "PATH=${MORE}:/bin", "--env-expand"}, ""},
		{pods, "sh, -c, 'torchrun $SCRIPT'", nil, `cannot find the script "old.py"`},
		{pods, "sh, -c, 'torchrun $SCRIPT'", []string{"--env", "SCRIPT=train.py"}, ""},
		{pods, "muster, run, --conda, env, python, train.py", nil, ""},
		{trainers, "sh, /etc/edl/discover_hosts.sh", nil, ""},
		{trainers, "/etc/edl/discover_hosts.sh", nil, ""},
		{trainers, "sh, /etc/edl/gone.sh", nil, `cannot find the script "/etc/edl/gone.sh"`},
	} {
		_, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: append([]string{"-f", "job.yaml"}, c.args...), Environ: []string{"PATH=/bin", "SCRIPT=old.py"},
			Dir: "/work", ReadFile: func(string) ([]byte, error) { return fmt.Appendf(nil, c.file, c.command), nil },
			Machine: dialect.Machine{
				FreePort: func() (int, error) { return 4321, nil },
				Stat:     func(name string) (fs.FileInfo, error) { return machine.Stat(strings.TrimPrefix(name, "/")) },
			},
		})
		switch {
		case c.missing == "" && err != nil:
			t.Errorf("[%s] %q: %v", c.command, c.args, err)
		case c.missing != "" && (err == nil || !strings.Contains(err.Error(), c.missing)):
			t.Errorf("[%s] %q: %v, want %s", c.command, c.args, err, c.missing)
		}
	}
}
