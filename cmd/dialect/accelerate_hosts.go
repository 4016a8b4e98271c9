package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/launch/job"
)

// ofHostfile is what muster starts itself, for messages.
const ofHostfile = "machines of a hostfile"

// multinode is how several machines are reached with DeepSpeed.
func (a *accelerateJob) multinode() string {
	launchers := []string{"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"}
	v := a.w.deepspeedMultinodeLauncher
	switch text := strings.ToLower(v.text); {
	case v.none:
		return launchers[0]
	case slices.Contains(launchers, text):
		return text
	}
	a.refuse(&a.w.deepspeedMultinodeLauncher, fmt.Errorf("choose one of %s", strings.Join(launchers, ", ")))
	return launchers[0]
}

// deepspeedNodes are the machines of DeepSpeed's hostfile. muster starts them itself, whichever launcher was named, but
// for nossh: there this command runs on each of them, and the hostfile says how many workers each has.
func (a *accelerateJob) deepspeedNodes(launcher string) {
	v := a.w.deepspeedHostfile
	if v.none {
		a.refuse(&a.w.numMachines,
			errhint.With(fmt.Errorf("nothing says which machines they are, as --deepspeed-multinode-launcher %s needs it", launcher),
				"give --deepspeed-hostfile FILE with lines HOST slots=N; or --deepspeed-multinode-launcher standard, and run this "+
					"command on every machine"))
		return
	}
	list := a.hostfile(&a.w.deepspeedHostfile, hosts.DeepSpeed)
	list = a.filtered(list)
	if len(list) == 0 {
		return
	}
	total := 0
	for _, h := range list {
		total += h.Slots
	}
	if len(list) != a.machines {
		a.warn("the job has %d machines, those that %s and the filters leave, and not %d as --num-machines says", len(list),
			v.text, a.machines)
	}
	if a.procs > 0 && total != a.procs {
		a.warn("the job has %d processes, the slots of those machines, and not %d as --num-processes says", total, a.procs)
	}
	a.machines, a.procs = len(list), total
	var nodes []job.Node
	for i, h := range list {
		node := job.Node{Host: h, Procs: strconv.Itoa(h.Slots)}
		source := job.Source{Kind: v.source.Kind, Name: v.text}
		set := func(name, text string) {
			node.Env = append(node.Env, job.Var{Name: name, Value: text, Source: source, Own: true})
		}
		devices := h.Devices
		if devices == nil {
			devices = upTo(h.Slots)
		}
		set("CUDA_VISIBLE_DEVICES", joinInts(devices))
		set("CROSS_RANK", strconv.Itoa(i))
		set("CROSS_SIZE", strconv.Itoa(len(list)))
		set("LOCAL_SIZE", strconv.Itoa(h.Slots))
		nodes = append(nodes, node)
	}
	if launcher != "nossh" {
		a.nodes = nodes
		a.idle(ofHostfile, a.w.rdzvBackend, a.w.rdzvConf)
		return
	}
	rank := a.w.machineRank
	switch {
	case rank.none:
		a.refuse(&a.w.deepspeedMultinodeLauncher, errhint.With(errors.New("nothing says which machine of the hostfile this is"),
			"give --machine-rank N, from 0, another on each machine"))
	case rank.n >= len(nodes):
		a.refuse(&a.w.machineRank,
			fmt.Errorf("%s and the filters leave %d machines: their ranks go from 0 to %d", v.text, len(nodes), len(nodes)-1))
	default:
		a.own = nodes[rank.n].Env
		a.perNode = value{text: nodes[rank.n].Procs, source: v.source}
		a.localRank = true
		a.w.numMachines.become(value{text: strconv.Itoa(len(nodes)), n: len(nodes), source: v.source})
		if a.w.mainProcessIP.none {
			a.w.mainProcessIP.become(value{text: list[0].Name, source: v.source})
		}
	}
}

// filtered are the machines and slots that the filters leave of list; without filters each machine has its part of the
// processes.
func (a *accelerateJob) filtered(list []hosts.Host) []hosts.Host {
	if list == nil {
		return nil
	}
	filter, v := hosts.Include, &a.w.deepspeedInclusionFilter
	if exclude := &a.w.deepspeedExclusionFilter; !exclude.none {
		if !v.none {
			a.wrong.add(errors.New("cannot use --deepspeed-inclusion-filter and --deepspeed-exclusion-filter together: give one of them"))
		}
		filter, v = hosts.Exclude, exclude
	}
	if !v.none {
		left, err := filter(list, v.text)
		a.refuse(v, err)
		return left
	}
	if a.procs == 0 {
		return list
	}
	if a.share(); a.perNode.text == "" {
		return nil
	}
	per := a.procs / a.machines
	for i := range list {
		if list[i].Slots < per {
			a.refuse(&a.w.numProcesses, fmt.Errorf("%d on each machine are more than the %d slots of %s", per, list[i].Slots, list[i].Name))
			return nil
		}
		if list[i].Slots > per {
			list[i].Slots, list[i].Devices = per, upTo(per)
		}
	}
	return list
}

// hostfile reads the file that an option names.
func (a *accelerateJob) hostfile(v *value, read func(name string, content []byte) (hosts.File, error)) []hosts.Host {
	if a.inv.ReadFile == nil {
		a.refuse(v, errors.New("no files can be read here"))
		return nil
	}
	content, err := a.inv.ReadFile(v.text)
	if err != nil {
		a.refuse(v, err)
		return nil
	}
	file, err := read(v.text, content)
	if err != nil {
		a.refuse(v, err)
		return nil
	}
	a.warnings = append(a.warnings, file.Warnings...)
	return file.Hosts
}

// mpiNodes are the machines of a hostfile of MPI, which get an equal part of the processes each. muster starts them
// itself, and tells workers their places by Open MPI's variables, too.
func (a *accelerateJob) mpiNodes(v value) {
	list := a.hostfile(&a.w.mpirunHostfile, hosts.MPI)
	if a.share(); list == nil || a.perNode.text == "" {
		return
	}
	if len(list) < a.machines {
		a.refuse(&a.w.numMachines, fmt.Errorf("%s names %d of the %d machines", v.text, len(list), a.machines))
		return
	}
	a.idle(ofHostfile, a.w.rdzvBackend, a.w.rdzvConf)
	per := a.procs / a.machines
	for i, h := range list[:a.machines] {
		node := job.Node{Host: h, Procs: strconv.Itoa(per)}
		for local := range per {
			var vars []job.Var
			for _, s := range []struct {
				name string
				n    int
			}{
				{"RANK", i*per + local}, {"SIZE", a.procs}, {"LOCAL_RANK", local}, {"LOCAL_SIZE", per}, {"NODE_RANK", local},
			} {
				vars = append(vars, job.Var{
					Name: "OMPI_COMM_WORLD_" + s.name, Value: strconv.Itoa(s.n), Own: true,
					Source: job.Source{Kind: v.source.Kind, Name: v.text},
				})
			}
			node.WorkerEnv = append(node.WorkerEnv, vars)
		}
		a.nodes = append(a.nodes, node)
	}
}

// nodesFrom is where the machines that muster starts were named.
func (a *accelerateJob) nodesFrom() job.Source {
	if a.launcher == deepspeedLauncher {
		return a.w.deepspeedHostfile.source
	}
	return a.w.mpirunHostfile.source
}

// passMPI gives the one process what its MPI launcher said to us.
func (a *accelerateJob) passMPI() {
	prefixes := []string{"OMPI_COMM_WORLD_", "PMI", "MV2_COMM_WORLD_", "MPI_LOCAL"}
	for _, entry := range a.inv.Environ {
		name, text, ok := strings.Cut(entry, "=")
		if ok && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			a.set(name, text, job.Source{Kind: job.Inherited, Name: "environment"})
		}
	}
}

// withoutHosts tells of hostfiles and filters that nobody looks at.
func (a *accelerateJob) withoutHosts() {
	if a.launcher != simpleLauncher && a.w.mpirunHostfile.source.Kind == job.FromFlag {
		a.warn("--mpirun-hostfile has no effect: it is for jobs on CPUs, with --cpu")
	}
	if a.launcher == deepspeedLauncher && a.machines > 1 {
		return
	}
	for _, v := range []value{a.w.deepspeedHostfile, a.w.deepspeedInclusionFilter, a.w.deepspeedExclusionFilter} {
		if v.fromFlag() {
			a.warn("--%s has no effect: it is for several machines with --use-deepspeed", v.option.name)
		}
	}
}

func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

func joinInts(list []int) string {
	words := make([]string, len(list))
	for i, n := range list {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}
