package dialect

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/platform"
	"muster/launch/job"
)

// exports says what workers on other hosts get of the environment: what deepspeed exports to them, and nothing else of
// ours.
func (d *deepSpeedJob) exports() {
	rules := &d.job.Env
	rules.Mode = job.EnvInherit
	for _, beginning := range slices.Concat([]string{"MLFLOW", "PYTHON", "MV2", "UCX"}, d.accel.exports) {
		rules.Pass = append(rules.Pass, beginning+"*")
	}
	if _, aisc := d.env["AISC_JOB_NAME"]; aisc { // there each host has its own
		rules.Deny = append(rules.Deny, "NCCL_IB_HCA", "UCX_NET_DEVICES")
	}
	if d.inv.Dir != "" {
		list := d.inv.Dir
		if more, set := d.env["PYTHONPATH"]; set {
			list += ":" + more
		}
		d.set("the working directory in front, as deepspeed sets it", "PYTHONPATH", list)
	}
	if d.mpi != nil {
		for _, v := range d.mpi.set {
			name, value, _ := strings.Cut(v, "=")
			d.set("as deepspeed's runner for "+d.mpi.name+" sets it", name, value)
		}
	}
	file := ".deepspeed_env"
	if name := d.env["DS_ENV_FILE"]; name != "" {
		file = name
	}
	places := []string{filepath.Join(d.env["HOME"], file), file}
	if d.env["HOME"] == "" || filepath.IsAbs(file) {
		places = []string{file}
	}
	for _, place := range places {
		d.envFile(place)
	}
}

func (d *deepSpeedJob) set(why, name, value string) {
	d.job.Env.Set = append(d.job.Env.Set, job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromDefault, Name: why}})
}

// envFile takes the variables of a .deepspeed_env, if it is there. As in deepspeed, $NAME in a value means the host's.
func (d *deepSpeedJob) envFile(name string) {
	if d.inv.ReadFile == nil {
		return
	}
	content, err := d.inv.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		d.wrong.add(fmt.Errorf("cannot read the variables for the hosts: %w", err))
		return
	}
	vars, err := ParseEnvFile(name, content, true)
	d.wrong.add(err)
	d.job.Env.Set = append(d.job.Env.Set, vars...)
}

// mpiRunner is one of deepspeed's launchers that leave the ranks to MPI or to Slurm. muster starts these workers like
// all others, and tells them what they would find.
type mpiRunner struct {
	name string
	// set are variables that the runner exports.
	set []string
	// rank, localRank, size and localSize are the names by which workers know their place there.
	rank, localRank, size, localSize string
}

var mpiRunners = map[string]*mpiRunner{
	"openmpi": {
		name: "openmpi", set: []string{"UCX_TLS=tcp"},
		rank: "OMPI_COMM_WORLD_RANK", localRank: "OMPI_COMM_WORLD_LOCAL_RANK", size: "OMPI_COMM_WORLD_SIZE",
		localSize: "OMPI_COMM_WORLD_LOCAL_SIZE",
	},
	"mpich": {name: "mpich"},
	"impi":  {name: "impi", set: []string{"I_MPI_PIN=0"}},
	"mvapich": {
		name: "mvapich", set: []string{
			"MV2_SMP_USE_CMA=0", "MV2_DEBUG_SHOW_BACKTRACE=1", "MV2_USE_CUDA=1", "MV2_SUPPORT_DL=1", "MV2_ENABLE_AFFINITY=0",
			"MV2_INTER_ALLGATHER_TUNING=5", "MV2_CUDA_USE_NAIVE=0",
		},
		rank: "MV2_COMM_WORLD_RANK", localRank: "MV2_COMM_WORLD_LOCAL_RANK", size: "MV2_COMM_WORLD_SIZE",
		localSize: "MV2_COMM_WORLD_LOCAL_SIZE",
	},
	"slurm": {name: "slurm", rank: "SLURM_PROCID", localRank: "SLURM_LOCALID", size: "SLURM_NPROCS"},
}

// asMPI gives workers the variables of the named launcher beside those by which torch knows them.
func (d *deepSpeedJob) asMPI() {
	j, nodes := d.job, d.job.Hosts.Nodes
	d.warn("--launcher %s: muster reaches the hosts by ssh and starts the workers itself; they get %s's variables", d.mpi.name, d.mpi.name)
	j.Devices = job.DeviceRules{} // these launchers leave the workers' devices alone
	total := 0
	for _, n := range nodes {
		count, err := strconv.Atoi(n.Procs)
		if err != nil { // counted on the node
			return
		}
		total += count
	}
	if j.Nodes.Min != j.Nodes.Max || d.mpi.rank == "" {
		return // ranks change, or torch's own names are all there are
	}
	rank := 0
	for i := range nodes {
		count := len(nodes[i].Devices)
		for local := range count {
			var own []job.Var
			for _, v := range []struct {
				name  string
				value int
			}{{d.mpi.rank, rank}, {d.mpi.localRank, local}, {d.mpi.size, total}, {d.mpi.localSize, count}} {
				if v.name != "" {
					own = append(own, job.Var{
						Name: v.name, Value: strconv.Itoa(v.value), Source: job.Source{Kind: job.FromFlag, Name: "--launcher"}, Own: true,
					})
				}
			}
			nodes[i].WorkerEnv = append(nodes[i].WorkerEnv, own)
			rank++
		}
	}
}

// allocation are the hosts that Slurm gave to the job in which --launcher slurm was started.
func (d *deepSpeedJob) allocation() []hosts.Host {
	facts, err := platform.Detect(platform.Input{Environ: d.env, Files: d.inv.Machine.Files, Hostname: d.inv.Machine.Hostname}, "slurm")
	if err != nil || len(facts.Hosts) == 0 {
		reason := errors.New("this is no Slurm allocation: SLURM_JOB_NODELIST is not set, and there is no hostfile")
		if err != nil && d.env["SLURM_JOB_NODELIST"] != "" {
			reason = err
		}
		d.refuse(&d.w.launcher, errhint.With(reason, "start it in an allocation (salloc, sbatch), or give --hostfile"))
		return nil
	}
	slots, err := strconv.Atoi(facts.Procs.Text)
	if err != nil {
		slots = 0
	}
	var list []hosts.Host
	for _, h := range facts.Hosts {
		list = append(list, hosts.Host{Name: h.Name, Slots: max(h.Slots, slots)})
	}
	d.tell("hosts", fmt.Sprintf("%d of the allocation", len(list)), job.Source{Kind: job.FromPlatform, Name: "SLURM_JOB_NODELIST"})
	return list
}
