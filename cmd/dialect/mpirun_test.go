package dialect_test

import (
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch/job"
)

// asMPI says what an mpirun asks for: where workers run, what they see, and the command.
func asMPI(req dialect.Request, err error) string {
	text := placed(req, err)
	if err != nil {
		return text
	}
	text, warnings, _ := strings.Cut(text, "\n    warning: ")
	var b strings.Builder
	b.WriteString(text)
	j := &req.Job
	for _, n := range j.Hosts.Nodes {
		fmt.Fprintf(&b, "\n    on %s:", n.Name)
		for _, v := range n.Env {
			fmt.Fprintf(&b, " %s=%s", strings.TrimPrefix(v.Name, "OMPI_"), v.Value)
		}
		b.WriteString(";")
		for local, vars := range n.WorkerEnv {
			if local > 0 {
				b.WriteString(" |")
			}
			for _, v := range vars {
				fmt.Fprintf(&b, " %s=%s", strings.TrimSuffix(strings.TrimPrefix(v.Name, "OMPI_COMM_WORLD_"), "RANK"), v.Value)
			}
		}
	}
	if e := j.Env; len(e.Set)+len(e.Pass) > 0 || e.Mode != job.EnvInherit {
		fmt.Fprintf(&b, "\n    environment %s, pass %q, set", e.Mode, e.Pass)
		for _, v := range e.Set {
			fmt.Fprintf(&b, " %s=%q", v.Name, v.Value)
		}
	}
	if s := j.Hosts.SSH; gocmp.Diff(job.SSHRules{Parallel: 64}, s) != "" {
		fmt.Fprintf(&b, "\n    ssh %+v", s)
	}
	for _, more := range [][2]string{{"in", j.Hosts.Dir}, {"bound", j.Bind.Mode}, {"prefix", j.Logs.Prefix}} {
		if more[1] != "" {
			fmt.Fprintf(&b, "\n    %s %s", more[0], more[1])
		}
	}
	if req.LogLevel != "warn" {
		fmt.Fprintf(&b, "\n    log level %s", req.LogLevel)
	}
	fmt.Fprintf(&b, "\n    runs %q", append([]string{j.Command.Name}, j.Command.Args...))
	if warnings != "" {
		b.WriteString("\n    warning: " + warnings)
	}
	return b.String()
}

// Which ranks each host has, and the variables, are those that mpirun of Open MPI 4.1.4 shows (--do-not-launch
// --display-map) for the same lines, but where docs/compat/mpirun.md says otherwise. The shapes are those of Open MPI's
// manual, of Horovod's and DeepSpeed's documentation, and of the MPI operator's examples.
func TestMPIRun(t *testing.T) {
	transcript(t, "mpirun.txt", `
		mpirun -np 4 python train.py
		mpirun -n 2 ./a.out -x 3
		mpiexec --n 2 ./a.out
		mpirun -c 1 hostname
		mpirun -np 4 -H node1:2,node2:2 python train.py
		mpirun -H aa,bb ./a.out
		mpirun -H aa,aa,bb ./a.out
		mpirun -np 3 --host node1:2,node2:2,node3:2 prog
		mpirun --hostfile mpi prog
		mpirun -np 3 -hostfile mpi prog
		mpirun -machinefile plain -np 4 prog
		mpirun --hostfile=mpi -np=2 prog
		mpirun -npernode 4 -H a,b prog
		mpirun -N 2 -np 3 -H a,b prog
		mpirun -ppn 1 -np 2 -hosts a,b prog
		mpirun --pernode -H a:8,b:8 prog
		mpirun --map-by ppr:1:node -H a:8,b:8 prog
		mpirun --map-by slot --bind-to none -np 2 prog
		mpirun --map-by node -H a:1,b:1 prog
		FOO=bar BAR_1=x mpirun -x FOO -x BAZ=qux=1 -x BAR_* -x NONE -np 1 prog
		mpirun -wdir /data --tag-output --allow-run-as-root -q -np 1 prog
		mpirun --oversubscribe -np 5 -H a:1,b:1 prog
		mpirun --map-by slot:OVERSUBSCRIBE -np 5 -H a:1,b:2 prog
		mpirun -bind-to socket -v -np 2 prog
		NCCL_DEBUG=INFO LD_LIBRARY_PATH=/l PATH=/bin mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 `+
		`-bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python train.py
		mpirun -np 2 -H a,b -mca plm_rsh_agent ssh --mca plm_rsh_args -p2222 prog
		OMPI_MCA_orte_default_hostfile=mpi OMPI_MCA_plm_rsh_args=-oConnectionAttempts=10 mpirun -np 2 prog
		SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=4(x2) mpirun prog
		SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=n[1-2] mpirun -H localhost:2 prog
		--numa-fallback --ssh-port 2222 mpirun --bind-to numa -H a,b prog
		--log-level debug mpirun -np 1 prog
		mpirun -np 2 -- prog -np 3

		mpirun prog
		mpirun -np 0 prog
		mpirun -np x prog
		mpirun -np
		mpirun -np 2
		mpirun -np 5 -H a:2,b:2 prog
		mpirun -np 4 -npernode 2 prog
		mpirun -np 5000 prog
		mpirun -H a:x,b prog
		mpirun -H a --hostfile plain prog
		mpirun --hostfile wrong prog
		mpirun --map-by node -H a:2,b:2 prog
		mpirun --bynode -np 2 prog
		mpirun --map-by core -np 2 prog
		mpirun --map-by ppr:2:socket -np 2 prog
		mpirun --map-by slot:PE=2 -np 2 prog
		mpirun --rank-by node -np 2 prog
		mpirun --bind-to core -np 2 prog
		mpirun --report-bindings -np 2 prog
		mpirun -x 1A=b -x A,B -np 2 prog
		mpirun -wdir data -np 2 prog
		mpirun -mca pml
		mpirun -np 1 -mca plm_rsh_args -x prog
		mpirun -np 1 a : -np 2 b
		mpirun --timeout 30 -np 1 prog
		mpirun -q -v -np 1 prog
		mpirun --tag-output=yes -np 1 prog
		mpirun --hostfle f -np 1 prog
		mpirun --dry-run -np 1 prog
		mpirun --genv A b -np 1 prog
		--hosts a,b mpirun -np 1 prog
		--log-level info mpirun -q -np 1 prog
		MUSTER_HOSTS=a,b mpirun -np 1 prog
		`, asMPI)
}

// An option with two words, one of them with blanks, as a shell would give it.
func TestMPIParameters(t *testing.T) {
	inv := dialect.Invocation{Args: []string{
		"-np", "1", "--mca", "plm_rsh_args", "-p 2222 -l bob -i key -o 'ProxyJump=g'", "-mca",
		"plm_rsh_agent", "ssh -q", "-mca", "x", "a b", "prog",
	}}
	req, err := dialect.MPIRun(inv)
	if err != nil {
		t.Fatal(err)
	}
	want := job.SSHRules{
		Program: []string{"ssh", "-q"}, User: "bob", Port: 2222, Identity: "key", Options: []string{"ProxyJump=g"},
		Parallel: 64,
	}
	if diff := gocmp.Diff(want, req.Job.Hosts.SSH); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if set := req.Job.Env.Set; len(set) != 1 || set[0].Name != "OMPI_MCA_x" || set[0].Value != "a b" {
		t.Errorf("%+v", set)
	}
}

// FuzzMPIRun: any command line is a job whose workers are all told apart, or a mistake of its user.
func FuzzMPIRun(f *testing.F) {
	for _, seed := range []string{
		"-np 4 prog", "-H a:2,b -npernode 3 prog", "--map-by ppr:2:node --hostfile mpi p",
		"-x A=b -mca a b -np 1 p", "-np", "-", "-- p", "-h",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		req, err := dialect.MPIRun(dialect.Invocation{Args: strings.Fields(line), ReadFile: hostFiles.ReadFile})
		if _, help := errorsAsHelp(err); help {
			return
		}
		if err != nil {
			if errhint.CodeOf(err) != errhint.Usage {
				t.Errorf("%s: %v", line, err)
			}
			return
		}
		rank := 0
		for _, n := range req.Job.Hosts.Nodes {
			if n.Procs != fmt.Sprint(len(n.WorkerEnv)) {
				t.Fatalf("%s: %s workers, %d of them with variables", line, n.Procs, len(n.WorkerEnv))
			}
			for _, vars := range n.WorkerEnv {
				if got := vars[2].Value; got != fmt.Sprint(rank) {
					t.Fatalf("%s: rank %s, want %d", line, got, rank)
				}
				rank++
			}
		}
		if world := req.Job.Hosts.Nodes[0].Env[1].Value; rank == 0 || world != fmt.Sprint(rank) ||
			len(req.Job.Hosts.Nodes) != req.Job.Nodes.Max {
			t.Fatalf("%s: %d workers of %s", line, rank, world)
		}
	})
}
