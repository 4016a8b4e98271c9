package platform

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

// mpiLauncher is a program that starts processes, and what it tells each.
type mpiLauncher struct {
	name, rank, size     string
	localRank, localSize []string
	once                 string // how it starts one process on each node
}

// mpiLaunchers: jsrun comes before Open MPI, whose variables it sets, too.
func mpiLaunchers() []mpiLauncher {
	return []mpiLauncher{
		{
			"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
			[]string{"JSM_NAMESPACE_LOCAL_RANK"},
			[]string{"JSM_NAMESPACE_LOCAL_SIZE"},
			"jsrun --rs_per_host 1 --tasks_per_rs 1",
		},
		{
			"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
			[]string{"OMPI_COMM_WORLD_LOCAL_RANK"},
			[]string{"OMPI_COMM_WORLD_LOCAL_SIZE"},
			"mpirun --map-by ppr:1:node",
		},
		{
			"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
			[]string{"MV2_COMM_WORLD_LOCAL_RANK"},
			[]string{"MV2_COMM_WORLD_LOCAL_SIZE"},
			"mpiexec -ppn 1",
		},
		{
			"mpiexec", "PMI_RANK", "PMI_SIZE",
			[]string{"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"},
			[]string{"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
			"mpiexec -ppn 1",
		},
	}
}

// mpi is the launcher that started this process, nil for none. srun sets PMI's variables, too; where they say what
// Slurm says they are its own, and Slurm knows more.
func (l *lookup) mpi() *mpiLauncher {
	for _, m := range mpiLaunchers() {
		if !l.has(m.rank) {
			continue
		}
		if m.rank == "PMI_RANK" && len(l.set(m.localSize...)) == 0 {
			s, err := l.step()
			if err == nil && s.real && s.tasks > 0 && l.get(m.size) == strconv.Itoa(s.tasks) && l.get(m.rank) == l.get("SLURM_PROCID") {
				return nil
			}
		}
		return &m
	}
	return nil
}

func findMPI(l *lookup) []string {
	m := l.mpi()
	if m == nil {
		return nil
	}
	return l.set(append([]string{m.rank, m.size}, m.localSize...)...)
}

func readMPI(l *lookup, f *Facts) error {
	m := l.mpi()
	rank, size, err := l.place(f, m.rank, m.size)
	if err != nil {
		return err
	}
	p := &Process{Rank: rank, World: size}
	localRank, localSize := l.value(m.localRank...), l.value(m.localSize...)
	if p.LocalRank, _, err = l.number(localRank.From, 0); err != nil {
		return err
	}
	if p.LocalWorld, _, err = l.number(localSize.From, 1); err != nil {
		return err
	}
	f.Process = p
	switch {
	case size == 1:
		return nil
	case p.LocalWorld == 1:
		return l.mpiMaster(f)
	}
	f.Nodes, f.NodeRank = Value{}, Value{}
	who := fmt.Sprintf("%s starts %d processes, %d of them on this node", m.name, size, p.LocalWorld)
	if p.LocalWorld == 0 {
		who = fmt.Sprintf("%s starts %d processes, and does not say how many on a node", m.name, size)
	}
	once := m.once
	if l.has("AZUREML_EXPERIMENT_ID") {
		once = "process_count_per_instance: 1"
	}
	f.Problem = oneOfMany(p, who, "start muster once on each node, and let it start the workers: "+once)
	return nil
}

// mpiMaster finds the node of rank 0, which no launcher of MPI tells: by what the user passes on, and by the lists of
// hosts of what the launcher runs on, whose first one has rank 0 unless somebody maps processes otherwise.
func (l *lookup) mpiMaster(f *Facts) error {
	switch {
	case l.has("MASTER_ADDR"):
		l.master(f, []string{"MASTER_ADDR"}, []string{"MASTER_PORT"})
		return nil
	case l.has(azureMaster) || l.has(azureMPIMaster):
		return l.azureMaster(f)
	case l.has("SLURM_JOB_ID"):
		list := l.value("SLURM_JOB_NODELIST", "SLURM_NODELIST")
		hosts, err := l.slurmHosts(list, "")
		if err != nil || len(hosts) == 0 {
			return err
		}
		f.MasterAddr = Value{Text: hosts[0].Name, From: list.From, Derived: true}
		return l.batchJob(f, "SLURM_JOB_ID", "") // without the step: those that mpirun makes differ from node to node
	case l.has("LSB_JOBID"):
		hosts, from, err := l.lsfHosts()
		if hosts, _ = withoutLaunchNode(hosts); err != nil || len(hosts) == 0 {
			return err
		}
		f.MasterAddr = Value{Text: hosts[0].Name, From: from, Derived: true}
		return l.batchJob(f, "LSB_JOBID", "LSB_JOBINDEX")
	}
	for _, file := range []string{l.get("PBS_NODEFILE"), mpiHostfile} {
		if file == "" || !l.exists(file) {
			continue
		}
		hosts, err := l.mpiHosts(file)
		if err != nil {
			return err
		}
		if len(hosts) == 0 {
			continue
		}
		f.MasterAddr = Value{Text: hosts[0].Name, From: file, Derived: true}
		if l.has("PBS_JOBID") {
			return l.batchJob(f, "PBS_JOBID", "")
		}
		return nil
	}
	f.Notes = append(f.Notes,
		"the launcher does not say where rank 0 is: give --master-addr HOST, or pass MASTER_ADDR on (mpirun -x MASTER_ADDR=HOST)")
	return nil
}

// mpiHostfile is where MPIJob's launcher finds its workers.
const mpiHostfile = "/etc/mpi/hostfile"

func findMPIJob(l *lookup) []string {
	found := l.set("K_MPI_JOB_ROLE")
	if l.exists(mpiHostfile) {
		found = append(found, mpiHostfile)
	}
	return found
}

func readMPIJob(l *lookup, f *Facts) error {
	hosts, err := l.mpiHosts(mpiHostfile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if role := l.get("K_MPI_JOB_ROLE"); role == "worker" || len(hosts) == 0 {
		f.Notes = append(f.Notes, "a pod of an MPIJob is a node when the launcher's mpirun starts muster in it")
		return nil
	}
	f.Hosts = hosts
	f.Problem = &Problem{
		fmt.Sprintf("this is the launcher of an MPIJob, and none of the %d nodes in %s", len(hosts), mpiHostfile),
		"let mpirun start muster on every node: mpirun --map-by ppr:1:node muster run ...; or give --nnodes 1 to start in this pod",
	}
	return nil
}

// mpiHosts reads a file of hosts as Open MPI writes it (host slots=N), or MPICH (host:N). A host that comes again has
// more slots.
func (l *lookup) mpiHosts(file string) ([]Host, error) {
	content, err := l.file(file)
	if err != nil {
		return nil, err
	}
	var hosts []Host
	for line := range strings.Lines(string(content)) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		name, count, counted := strings.Cut(words[0], ":")
		if _, behind, user := strings.Cut(name, "@"); user {
			name = behind
		}
		slots := 1
		for _, word := range words[1:] {
			if text, ok := strings.CutPrefix(word, "slots="); ok {
				count, counted = text, true
			}
		}
		if counted {
			if slots, err = strconv.Atoi(count); err != nil {
				return nil, fmt.Errorf("cannot read %s: %s is no number of slots", file, shown(count))
			}
		}
		if hosts, err = addHost(hosts, name, slots); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", file, err)
		}
	}
	return dedupe(hosts), nil
}

// azureMaster takes node 0's address from Azure ML's variables. The port there is another service's; 6105 is what
// Azure's own launchers take.
func (l *lookup) azureMaster(f *Facts) error {
	v := l.value(azureMaster, azureMPIMaster)
	host := v.Text
	if at, err := netip.ParseAddrPort(v.Text); err == nil {
		host = at.Addr().String()
	} else if name, port, ok := strings.Cut(v.Text, ":"); ok {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return l.bad(v.From, errors.New("it must be HOST:PORT"))
		}
		host = name
	}
	f.MasterAddr = Value{Text: host, From: v.From, Derived: host != v.Text}
	f.MasterPort = Value{Text: "6105", From: v.From, Derived: true}
	return nil
}
