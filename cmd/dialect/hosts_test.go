package dialect_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch/job"
)

// hostFiles are what the command lines of the tests about hosts can read.
var hostFiles = fstest.MapFS{
	"hostfile":  {Data: []byte("# a job\nnode1 slots=4\nnode2 slots=4 port=2222\nalice@node3 slots=2\n")},
	"plain":     {Data: []byte("node1\nnode2\nnode3\nnode4\n")},
	"mpi":       {Data: []byte("node1 slots=2 max_slots=4\nnode2 slots=2\nnode1 slots=1\n")},
	"wrong":     {Data: []byte("a\nb\nc\nd\ne\nf\n-g\nh slots=x\n")},
	"conf.yaml": {Data: []byte("hosts: [a:2, 'b:2']\nssh-option: [ProxyJump=gate, 'Ciphers=x,y']\npreflight: \"off\"\n")},
}

// withHosts reads a command line, muster's own flags in front of the dialect's name, with variables NAME=VALUE before
// it.
func withHosts(t *testing.T, line string) (dialect.Request, error) {
	t.Helper()
	inv := dialect.Invocation{Argv0: "muster", ReadFile: hostFiles.ReadFile}
	words := strings.Fields(line)
	for len(words) > 0 && strings.Contains(words[0], "=") && !strings.HasPrefix(words[0], "-") {
		inv.Environ, words = append(inv.Environ, words[0]), words[1:]
	}
	own, rest, err := dialect.ParseOwn(words)
	if err != nil {
		return dialect.Request{}, err
	}
	if len(rest) == 0 {
		t.Fatalf("%s: there is no dialect", line)
	}
	inv.Own, inv.Args = own, rest[1:]
	return dialect.Read(rest[0], inv)
}

// placed says where a job runs, or why it is refused.
func placed(req dialect.Request, err error) string {
	text := meets(req, err)
	if err != nil {
		return text
	}
	var b strings.Builder
	first, warnings, _ := strings.Cut(text, "\n")
	b.WriteString(first)
	h := &req.Job.Hosts
	for _, n := range h.Nodes {
		name := n.Name
		if n.User != "" {
			name = n.User + "@" + name
		}
		fmt.Fprintf(&b, "\n    node %s: %s workers", name, cmp.Or(n.Procs, "the job's"))
		for _, more := range []struct {
			name string
			on   bool
			val  any
		}{{"slots", n.Slots > 0, n.Slots}, {"port", n.Port > 0, n.Port}, {"devices", n.Devices != nil, n.Devices}} {
			if more.on {
				fmt.Fprintf(&b, ", %s %v", more.name, more.val)
			}
		}
	}
	for _, flag := range []string{"nnodes", "nproc-per-node"} {
		if i := slices.IndexFunc(req.Settings, func(s dialect.Setting) bool { return s.Flag == flag }); i >= 0 {
			if s := req.Settings[i]; s.Source.Kind != job.FromDefault {
				fmt.Fprintf(&b, "\n    --%s %s (%s)", flag, s.Value, s.Source)
			}
		}
	}
	if warnings != "" {
		b.WriteString("\n" + warnings)
	}
	return b.String()
}

// transcript compares what each line of a text gives with a golden file.
func transcript(t *testing.T, name, lines string, say func(dialect.Request, error) string) {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		req, err := withHosts(t, line)
		if err != nil && errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s: status %d", line, errhint.CodeOf(err))
		}
		fmt.Fprintf(&b, "%s\n    %s\n", line, strings.ReplaceAll(say(req, err), "\n  * ", "\n    * "))
	}
	golden(t, name, b.String())
}

func TestHosts(t *testing.T) {
	transcript(t, "hosts.txt", `
		run --hosts node1:8,node2:8 --max-restarts 3 -- python train.py
		run --hosts node1,node2 prog
		run --hosts node[01-03]:2 prog
		run --hosts node1,u@node2:4,[2001:db8::1]:2 prog
		run --hosts node1,node2 -n 4 prog
		run --hosts node1:8,node2:8 -n 4 prog
		run --hosts node1:8,node2:8 -n gpu prog
		run --hosts node1 prog
		run --hosts node1:2 --master-port 1234 prog
		run --hostfile hostfile prog
		run --hostfile hostfile --include node1@node2:0,2 prog
		run --hostfile hostfile --exclude node1:1,3@node3 prog
		run --hostfile hostfile --nnodes 2 prog
		run --hostfile plain --nnodes 2 --spares 1 prog
		run --hostfile plain --spares 1 prog
		run --hostfile plain --nnodes 2:3 prog
		run --hostfile plain --nnodes 1:64 --spares 1 prog
		run --hosts a,b --master-addr 10.0.0.1 --master-port 2345 prog
		run --hosts a,b --rdzv etcd://e1,e2 --run-id j prog
		run --hosts a,b --rdzv c10d://a:1234 --run-id j prog
		run --hosts a,b --nnodes 1:2 --rdzv-conf join_timeout=60 prog
		run --hosts a,b --node-unit 2 prog
		run --config conf.yaml prog
		MUSTER_HOSTS=a,b run prog
		MUSTER_HOSTS=a,b run --hostfile plain prog
		MUSTER_HOSTFILE=plain run --hosts a,b prog
		MUSTER_HOSTS=a,b PET_NODE_RANK=1 PET_LOCAL_ADDR=x run prog
		MUSTER_HOSTS=a,b PET_NNODES=1 run prog
		SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=n[1-2] run --hosts n1,n2 prog
		SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=two run --hosts n1,n2 prog

		run --hosts a,a prog
		run --hosts a:x,-b prog
		run --hosts= prog
		run --hostfile none prog
		run --hostfile wrong prog
		run --hosts a --hostfile plain prog
		run --hostfile hostfile --include node1 --exclude node2 prog
		run --hostfile hostfile --include node9 prog
		run --hostfile hostfile --exclude node1:4 prog
		run --include node1 prog
		run --collect-logs d --remote-dir /d prog
		run --hosts a,b --remote-dir d prog
		run --hosts a,b --nnodes 3 prog
		run --hosts a,b --nnodes 3:4 prog
		run --hosts a,b --nnodes 2 --spares 1 prog
		run --hosts a,b --spares 2 prog
		run --hosts a:8,b:2 -n 4 prog
		run --hosts a,b --node-rank 1 --local-addr x prog
		run --hosts a,b --rdzv static://a prog
		run --hosts a,b --rdzv etcd://e --master-port 5 prog
		run --hosts a,b --rdzv-conf is_host=1 prog
		run --hosts a,b --nnodes 1:2 --rdzv-conf is_host=1 prog
		run --hosts a,b --simulate-nodes 2 --accelerator fake:f prog
		run --hosts a,b --node-unit 3 prog
		run --hosts a,b --topology-file t prog
		run --hosts a,b --ssh-port 0 --ssh-user -x --ssh-host-key-policy no --ssh-parallel 0 --preflight maybe prog
		run --hosts a,b --ssh-option ProxyJump --ssh-program 'ssh' --start-timeout 0 prog

		--hosts a:2,b:2 torchrun train.py
		--hosts a,b torchrun --nproc-per-node 4 train.py
		--hosts a:2 torchrun train.py
		--hosts a,b,c torchrun --nnodes 2:3 --rdzv-id j train.py
		--hosts a,b,c torchrun --nnodes 1:2 --rdzv-backend c10d train.py
		--hosts a,b torchrun --nnodes 2 --master-addr 10.0.0.1 --master-port 1234 train.py
		--hosts a,b torchrun --rdzv-backend static --rdzv-endpoint h:1234 train.py
		--hosts a,b torchrun --rdzv-backend c10d --rdzv-endpoint h:1234 train.py
		--hosts a,b torchrun --rdzv-backend etcd --rdzv-endpoint h train.py
		--hosts a,b torchrun --master-port 1234 train.py
		--hostfile hostfile --exclude node3 torchrun train.py
		--hosts a,b,c --spares 1 torchrun train.py
		--hosts a,b torch.distributed.launch train.py
		--hosts a,b dlrover-run --nproc_per_node=2 train.py
		PET_NODE_RANK=1 --hosts a,b torchrun train.py
		--hosts a,b,c torchrun --nnodes 2 train.py
		--hosts a,b torchrun --nnodes 3 train.py
		--hosts a,b torchrun --standalone train.py
		--hosts a,b torchrun --node-rank 1 train.py
		--hosts a,b torchrun --nnodes 1:2 --rdzv-backend static train.py
		--hosts a:1,b:8 torchrun --nproc_per_node 8 train.py
		--hosts a,,b torchrun train.py
		--include a torchrun train.py
		`, placed)
}

func TestHostRules(t *testing.T) {
	req, err := withHosts(t,
		"run --hosts a,b --ssh-user u --ssh-port 2222 --ssh-identity key --ssh-host-key-policy strict --ssh-option ProxyJump=g "+
			"--ssh-option Ciphers=x,y --ssh-program /bin/ssh --ssh-parallel 8 --start-timeout 90 --remote-dir /d --collect-logs logs "+
			"--preflight off prog")
	if err != nil {
		t.Fatal(err)
	}
	want := job.Hosts{
		SSH: job.SSHRules{
			Program: []string{"/bin/ssh"}, User: "u", Port: 2222, Identity: "key", HostKeys: "strict",
			Options: []string{"ProxyJump=g", "Ciphers=x,y"}, Parallel: 8,
		},
		StartTimeout: 90 * time.Second, Dir: "/d", CollectLogs: "logs",
	}
	req.Job.Hosts.Nodes = nil
	if diff := gocmp.Diff(want, req.Job.Hosts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The same by variables, by a file, and in front of another dialect.
	for line, want := range map[string]job.Hosts{
		"MUSTER_SSH_PORT=2222 MUSTER_PREFLIGHT=off run --hosts a prog": {
			SSH:          job.SSHRules{Port: 2222, Parallel: 64},
			StartTimeout: time.Minute,
		},
		"--config conf.yaml --ssh-port 22 torchrun t.py": {SSH: job.SSHRules{
			Port: 22, Parallel: 64,
			Options: []string{"ProxyJump=gate", "Ciphers=x,y"},
		}, StartTimeout: time.Minute},
		"--ssh-option A=1 --ssh-option B=2 --hosts a torchrun t.py": {
			SSH:          job.SSHRules{Parallel: 64, Options: []string{"A=1", "B=2"}},
			StartTimeout: time.Minute, Preflight: true,
		},
	} {
		req, err := withHosts(t, line)
		if err != nil || len(req.Job.Hosts.Nodes) == 0 {
			t.Fatalf("%s: %v, %+v", line, err, req.Job.Hosts)
		}
		req.Job.Hosts.Nodes = nil
		if diff := gocmp.Diff(want, req.Job.Hosts); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
	// A job without hosts has no rules for them.
	req, err = withHosts(t, "run prog")
	if err != nil || gocmp.Diff(job.Hosts{}, req.Job.Hosts) != "" {
		t.Errorf("%v, %+v", err, req.Job.Hosts)
	}
	req, err = dialect.Native(dialect.Invocation{
		Args:    []string{"--hosts", "a", "p"},
		Environ: []string{"MUSTER_SSH_OPTION=A=1\n\nB=2 3\n"},
	})
	if diff := gocmp.Diff([]string{"A=1", "B=2 3"}, req.Job.Hosts.SSH.Options); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// A hostfile needs a way to be read.
func TestHostfileWithoutFiles(t *testing.T) {
	_, err := dialect.Native(dialect.Invocation{Args: []string{"--hostfile", "f", "prog"}})
	if err == nil || err.Error() != "cannot use --hostfile: f cannot be read here" {
		t.Error(err)
	}
}

// Machines that people type are waited for for a minute, pods that are being made for five.
func TestStartTimeoutOfPods(t *testing.T) {
	for line, want := range map[string]time.Duration{
		"run --hosts a prog": time.Minute,
		"KUBERNETES_SERVICE_HOST=10.0.0.1 run --hosts a prog":                      5 * time.Minute,
		"KUBERNETES_SERVICE_HOST= run --hosts a prog":                              time.Minute,
		"KUBERNETES_SERVICE_HOST=10.0.0.1 run --hosts a --start-timeout 20 prog":   20 * time.Second,
		"KUBERNETES_SERVICE_HOST=10.0.0.1 --hosts a torchrun t.py":                 5 * time.Minute,
		"KUBERNETES_SERVICE_HOST=10.0.0.1 horovodrun -np 1 -H a:1 prog":            30 * time.Second,
		"SLURM_JOB_ID=7 SLURM_JOB_NODELIST=a,b SLURM_NNODES=2 run --hosts a prog ": time.Minute,
	} {
		req, err := withHosts(t, line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if got := req.Job.Hosts.StartTimeout; got != want {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
}

// What a job does about a node that has to leave counts where it can do without one, also where hosts make the nodes; and is
// refused where it cannot. It was taken and dropped where muster's --hosts stood in front of torchrun and dlrover-run.
func TestRulesForNodesOnHosts(t *testing.T) {
	const slow, loop = "--exclude-straggler", "--max-restarts 3 --crash-loop 1 --on-node-fault cordon"
	for _, line := range []string{
		"run --hosts node1,node2 --nnodes 1:2 RULES prog",
		"run --hosts node1,node2 --spares 1 RULES prog",
		"RULES --hosts node1,node2 torchrun --nnodes 1:2 t.py",
		"RULES --hosts node1,node2 --spares 1 torchrun t.py",
		"RULES --hosts node1,node2 dlrover-run --nnodes 1:2 t.py",
		"RULES --hosts node1,node2 ft_launcher --nnodes 1:2 t.py",
	} {
		for rules, want := range map[string]string{slow: "true ", loop: "false cordon"} {
			req, err := withHosts(t, strings.Replace(line, "RULES", rules, 1))
			c := req.Job.Check
			if got := fmt.Sprint(c.ExcludeStraggler, " ", c.OnNodeFault); err != nil || got != want || c.On() {
				t.Errorf("%s, %s: %v, %q", line, rules, err, got)
			}
		}
	}
	for _, line := range []string{
		"run --hosts node1,node2 RULES prog",
		"RULES --hosts node1,node2 torchrun t.py",
		"RULES --hosts node1,node2 dlrover-run t.py",
		"RULES deepspeed -H hostfile t.py",
		"RULES colossalai run --nproc_per_node 1 --host node1,node2 t.py",
		"RULES mpirun -np 2 --host node1,node2 prog",
		"RULES horovodrun -np 2 -H node1:1,node2:1 prog",
	} {
		for rules, named := range map[string]string{
			slow: "--exclude-straggler", "--on-node-fault cordon": "--on-node-fault cordon",
			"--max-restarts 2 --hang-timeout 9m --on-hang exclude": "--on-hang exclude",
		} {
			if strings.Contains(line, "horovodrun") && strings.Contains(rules, "restarts") {
				continue // of which it has no use either
			}
			_, err := withHosts(t, strings.Replace(line, "RULES", rules, 1))
			if err == nil || !strings.Contains(err.Error(), named) {
				t.Errorf("%s, %s: %v", line, rules, err)
			}
		}
	}
}

// A check that is switched off stays off: what asks for it from as strong a place is refused, from a weaker one told of.
func TestNoNetworkCheck(t *testing.T) {
	for line, want := range map[string]string{
		"MUSTER_NETWORK_CHECK_FULL=1 --network-check=false torchrun t.py":               "MUSTER_NETWORK_CHECK_FULL=1 has no effect",
		"MUSTER_NETWORK_CHECK_FULL=1 run --network-check=false prog":                    "MUSTER_NETWORK_CHECK_FULL=1 has no effect",
		"--network-check=false --network-check-full torchrun t.py":                      "together",
		"--network-check=false dlrover-run --precheck 1 t.py":                           "together",
		"--network-check=false dlrover-run --auto_config --nnodes 4 --node-rank 0 t.py": "together",
		"PET_PRECHECK=1 --network-check=false dlrover-run t.py":                         "has no effect",
		"MUSTER_NETWORK_CHECK=false --network-check-full torchrun t.py":                 "on",
		"MUSTER_NETWORK_CHECK=false dlrover-run --precheck 1 t.py":                      "on",
		"MUSTER_SWITCHBOX_CHECK=true dlrover-run t.py":                                  "MUSTER_SWITCHBOX_CHECK=true has no effect",
	} {
		req, err := withHosts(t, line)
		got := strings.Join(req.Job.Warnings, "; ")
		if err != nil {
			got = err.Error()
		} else if req.Job.Check.On() {
			got = "on"
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q", line, got)
		}
	}
}
