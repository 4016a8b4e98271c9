package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/test/drive"
)

// TestOrdinaryMistakes are what people get wrong without meaning anything by it: each is refused at once, with what was
// typed and what to try. Those that are found once agents run are in test/hosts, TestHostsMistakes.
func TestOrdinaryMistakes(t *testing.T) {
	t.Parallel()
	script := drive.WriteScript(t, "train.py", "")
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"a status file nowhere": {[]string{
			"run", "--hosts", "localhost,127.0.0.2", "--status-file", "/nowhere/s.json", "--",
			"true",
		}, []string{`cannot write the status file "/nowhere/s.json"`, "in a directory that exists"}},
		"a status file that is a tree": {
			[]string{"run", "--hosts", "localhost,127.0.0.2", "--status-file", t.TempDir(), "--", "true"},
			[]string{"is no regular file"},
		},
		"blanks between hosts": {
			[]string{"run", "--hosts", "localhost 127.0.0.2", "--", "true"},
			[]string{`"localhost 127.0.0.2" is no name of a host`, "write commas between hosts"},
		},
		"semicolons between hosts": {[]string{"run", "--hosts", "a;b", "--", "true"}, []string{"write commas between hosts"}},
		"more nodes than the host": {
			[]string{"run", "--hosts", "localhost", "--nnodes", "2", "--", "true"},
			[]string{"cannot use --nnodes 2 with --hosts: there is only 1 host\n"},
		},
		"more workers than a node can have": {
			[]string{"horovodrun", "-np", "5000", "true"},
			[]string{"cannot start 5000 workers on the host localhost: the limit is 4096\n"},
		},
		"a script in place of a command": {[]string{"t.py"}, []string{`unknown command "t.py"`, "as in muster run t.py\n"}},
		"a job file in its place":        {[]string{"job.yaml"}, []string{`unknown command "job.yaml"`, "as in muster run -f job.yaml\n"}},
		"a job file of two words":        {[]string{"my job.yaml"}, []string{"as in muster run -f 'my job.yaml'\n"}},
		"no flag of one letter": {
			[]string{"torchrun", "-f", "job.yaml", script},
			[]string{"unknown flag -f\n", "-h lists the flags"},
		},
		"a store's host that nobody knows": {
			[]string{"run", "--rdzv", "c10d://no..host:1", "--", "true"},
			[]string{"cannot resolve the store's host", "name no host for the store"},
		},
		"more workers than the slot": {[]string{"horovodrun", "-np", "2", "-H", "localhost:1", "true"}, []string{"-H has 1 slot\n"}},
		"mpirun's word": {
			[]string{"run", "--np", "2", "--", "true"},
			[]string{"unknown flag --np\n", "-n N is the number of workers on each node"},
		},
		"deepspeed's word": {
			[]string{"run", "--num_gpus", "2", "--", "true"},
			[]string{"unknown flag --num_gpus\n", "-n N is the number of workers on each node"},
		},
		"accelerate's word": {
			[]string{"run", "--num-machines", "2", "--", "true"},
			[]string{"unknown flag --num-machines\n", "--nnodes N is the number of nodes"},
		},
		"a misspelt word of --warm": {
			[]string{"run", "--warm", "atuo", "--", "python3", script},
			[]string{`cannot use "atuo" of --warm: the workers could import no module of that name; did you mean auto?`},
		},
		"files to collect, and none asked for": {[]string{
			"run", "--hosts", "localhost,127.0.0.2", "--tee", "0", "--collect-logs",
			t.TempDir(), "--", "true",
		}, []string{"cannot use --collect-logs with --tee and --redirects that write nothing to files"}},
		"run's own flag, torchrun": {
			[]string{"torchrun", "--simulate-nodes", "2", script},
			[]string{"unknown flag --simulate-nodes\n", "is a flag of muster run: muster run --simulate-nodes"},
		},
		"run's own flag, in front": {
			[]string{"--simulate-nodes", "2", "torchrun", script},
			[]string{"unknown flag --simulate-nodes\n", "is a flag of muster run: muster run --simulate-nodes"},
		},
		"-o json where it is --json":  {[]string{"check", "-o", "json"}, []string{"muster check --json writes JSON\n"}},
		"--output where it is --json": {[]string{"ckpt", "ls", "--output=json"}, []string{"muster ckpt ls --json writes JSON\n"}},
		"--json where it is -o json":  {[]string{"ps", "--json"}, []string{"muster ps -o json writes JSON\n"}},
		"-o json where there is none": {[]string{"scale", "-o", "json"}, []string{"muster scale --help lists the flags\n"}},
		"no rank, and no job":         {[]string{"logs", "--rank", "0,x"}, []string{`--rank "0,x": "x" is no rank`, "such as 3, or 0,4-7"}},
		"an empty --rank": {
			[]string{"logs", "--rank", ""}, []string{"muster logs was given an empty --rank\n", "is a variable not set?"},
		},
		"an empty --node":   {[]string{"logs", "--node="}, []string{"muster logs was given an empty --node\n"}},
		"an empty --run-id": {[]string{"exec", "--rank", "0", "--run-id", "", "--", "true"}, []string{"an empty --run-id\n"}},
		"an empty --at":     {[]string{"status", "--at", ""}, []string{"muster status was given an empty --at\n"}},
		"an empty --output": {[]string{"ps", "-o", ""}, []string{"muster ps was given an empty --output\n"}},
		"an empty rank, exec": {
			[]string{"exec", "--rank", "", "--", "true"}, []string{`cannot use --rank "": give a whole number`},
		},
		"a host twice, colossalai": {
			[]string{"colossalai", "run", "--nproc_per_node", "1", "--host", "a,a", script},
			[]string{"cannot use --host a,a: item 2: the host a was there before"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := muster(t, nil, c.args...)
			if got.Status != 2 || got.Stdout != "" {
				t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(got.Stderr, want) {
					t.Errorf("no %q in:\n%s", want, got.Stderr)
				}
			}
		})
	}
}

// TestScriptInPlaceOfCommand: where a command is expected and a Python script is given, the hint is right in each dialect.
func TestScriptInPlaceOfCommand(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"horovodrun -np 1", "mpirun -np 1", "run --no-python", "torchrun --no-python", "dlrover-run --no-python", "deepspeed --no_python",
		"accelerate launch --cpu --num_processes 2 --no_python",
	} {
		got := muster(t, nil, append(append([]string{"--dry-run"}, strings.Fields(line)...), script)...)
		if got.Status != 126 || !strings.Contains(got.Stderr, "give python "+script+" as the command") {
			t.Errorf("%s: status %d\n%s", line, got.Status, got.Stderr)
		}
	}
}

// TestFlagsBehindTheScript: what says how many workers there are is no use behind the script, and that is told; a
// launcher that muster starts takes it for its own.
func TestFlagsBehindTheScript(t *testing.T) {
	t.Parallel()
	script := drive.WriteScript(t, "train.py", "")
	for line, told := range map[string]bool{
		"run -- python3 SCRIPT --nproc-per-node 2": true, "run -- python3 SCRIPT --nnodes=2": true,
		"torchrun SCRIPT --nproc_per_node 2":       true,
		"run --nproc-per-node 1 -- python3 SCRIPT": false, "run -- torchrun --nproc-per-node 2 SCRIPT": false,
		"run -- python3 SCRIPT -- -n 2": false,
	} {
		got := muster(t, nil, append([]string{"--dry-run"}, strings.Fields(strings.ReplaceAll(line, "SCRIPT", script))...)...)
		if strings.Contains(got.Stderr, "stands behind the script's name") != told {
			t.Errorf("%s: status %d, want it told: %v\n%s", line, got.Status, told, got.Stderr)
		}
	}
}

// What no DLRover's master does is refused by name, before anything is started.
func TestElasticJobRefuses(t *testing.T) {
	t.Parallel()
	environ := []string{"DLROVER_MASTER_ADDR=127.0.0.1:1", "DLROVER_MASTER_SERVICE_TYPE=grpc", "MUSTER_SPARES=1"}
	got := muster(t, environ, "dlrover-run", "--nnodes=2:3", "--no-python", "true")
	if got.Status != 2 || !strings.Contains(got.Stderr, "cannot use --spares at DLRover's master (127.0.0.1:1)") {
		t.Errorf("status %d:\n%s", got.Status, got.Stderr)
	}
}
