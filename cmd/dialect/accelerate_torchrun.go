package dialect

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/launch/job"
)

// torchrun puts the job into torchrun's terms: all of accelerate's values, and for torchrun's other flags what
// PyTorch's variables say, as accelerate leaves those to torchrun.
func (a *accelerateJob) torchrun() {
	env := a.env
	if a.single || len(a.nodes) > 0 { // torchrun would have no part in it
		env = maps.Clone(a.env)
		maps.DeleteFunc(env, func(name, _ string) bool { return strings.HasPrefix(name, petPrefix) })
	}
	theirs := torchrunParser("torchrun", new(torchrunWords))
	if _, err := theirs.parse([]string{"script"}, env); err != nil {
		a.wrong.add(err)
		_, _ = theirs.parse([]string{"script"}, nil) // whose defaults are right
	}
	for i, o := range torchrunOptions(&a.w.torchrunWords) {
		if o.word != nil && !a.parser.has(o.name) {
			*o.word = *theirs.options[i].word
		}
	}
	a.w.nprocPerNode.become(a.perNode)
	if a.perNode.text == "" {
		a.w.nprocPerNode.become(value{text: "1"}) // which was refused, or stands in the nodes
	}
	if a.single {
		a.w.nprocPerNode.become(value{text: "1", source: a.w.numProcesses.source})
	}
	switch {
	case len(a.nodes) > 0:
		n := len(a.nodes)
		a.w.nnodes.become(value{text: strconv.Itoa(n), source: a.nodesFrom()})
		a.w.rdzvBackend.become(value{text: backendStatic})
	case a.single:
		a.w.rdzvBackend.become(value{text: backendStatic})
	case a.machines > 1:
		a.meet()
	default:
		a.alone()
	}
}

// meet says where several machines meet, each of which runs this command.
func (a *accelerateJob) meet() {
	host, port, rank := a.w.mainProcessIP, a.w.mainProcessPort, a.w.machineRank
	backend := a.w.rdzvBackend.text
	a.w.nnodes.become(value{text: strconv.Itoa(a.machines), source: a.w.numMachines.source})
	a.w.standalone.become(value{text: "false"})
	a.w.nodeRank.become(value{text: "0"})
	a.w.masterAddr.become(value{none: true})
	a.w.masterPort.become(value{none: true})
	a.w.rdzvEndpoint.become(value{})
	switch {
	case backend != backendStatic:
		if !rank.none {
			a.w.nodeRank.become(rank)
		}
	case rank.none && a.file.name == "": // a file without it means the first machine
		a.refuse(&a.w.numMachines, errhint.With(errors.New("nothing says which of them this is"),
			"give --machine-rank N, from 0, another on each machine; or --rdzv-backend c10d"))
	default:
		a.w.nodeRank.become(rank)
	}
	if host.none || strings.TrimSpace(host.text) == "" {
		a.refuse(&a.w.numMachines, errhint.With(errors.New("nothing says where the machines meet"),
			"give --main-process-ip HOST (and --main-process-port PORT), the same on all machines, where HOST is the one with rank 0"))
		a.w.rdzvEndpoint.become(value{text: "127.0.0.1:" + strconv.Itoa(staticPort)}) // to look for further mistakes
		return
	}
	at := port
	if port.none {
		at.n = staticPort
	}
	name := host.text
	if strings.Contains(name, ":") && !strings.HasPrefix(name, "[") {
		name = "[" + name + "]" // IPv6 addresses are written without brackets there
	}
	a.w.rdzvEndpoint.become(value{text: name + ":" + strconv.Itoa(at.n), source: host.source})
}

// alone is one machine, unless PyTorch's variables say that there are more. Where the port is in use the job takes
// another, as under accelerate.
func (a *accelerateJob) alone() {
	port := a.w.mainProcessPort
	nodes, err := parseNodes(a.w.nnodes.text)
	switch several := err == nil && nodes.Max > 1; {
	case several && !port.none:
		a.w.masterPort.become(port)
	case several, port.none:
	case a.w.rdzvBackend.text == backendC10d && a.w.rdzvEndpoint.text == "":
		a.w.rdzvEndpoint.become(value{text: "localhost:" + port.text, source: port.source})
	}
}

// fill puts what goes beyond torchrun into the job.
func (a *accelerateJob) fill(t *torchrunJob) {
	j := t.job
	j.Dialect = a.parser.prog
	t.names = map[*value]string{
		&t.w.nnodes: "num-machines", &t.w.nprocPerNode: "num-processes", &t.w.nodeRank: "machine-rank",
		&t.w.rdzvEndpoint: "main-process-ip", &t.w.masterAddr: "main-process-ip", &t.w.masterPort: "main-process-port",
	}
	t.wrong.merge(a.wrong)
	j.Warnings = append(j.Warnings, a.warnings...)
	j.Env.Set, j.NodeEnv = a.vars, a.own
	j.Sources[a.w.nprocPerNode.option.name] = a.w.numProcesses.source
	switch port := a.w.mainProcessPort; {
	case a.single:
		j.Env.Unset = elasticNames(a.env)
		if a.outer {
			a.outerStore(j)
		}
	case len(a.nodes) > 0:
		j.Hosts.Nodes, j.Env.Mode = a.nodes, job.EnvLauncher
	case a.machines > 1: // they have an endpoint
	case port.none:
		t.ports = []int{staticPort}
	case port.n > 0:
		t.ports = []int{port.n}
	}
	t.last = func(j *job.Job) {
		j.Command.Substitute = a.launcher != simpleLauncher
		if a.localRank {
			j.Command.LocalRankFlag = "--local_rank"
		}
		host, port := a.w.mainProcessIP, a.w.mainProcessPort
		if len(a.nodes) > 1 && (!host.none || port.n > 0) {
			j.Meeting.Endpoints = []job.Endpoint{{Host: host.text, Port: max(port.n, 0)}}
		}
	}
}

// outerStore says where the processes that an MPI launcher started meet, as accelerate does.
func (a *accelerateJob) outerStore(j *job.Job) {
	host, port := a.w.mainProcessIP, a.w.mainProcessPort
	for _, s := range []struct {
		name, def string
		v         value
	}{{"MASTER_ADDR", "127.0.0.1", host}, {"MASTER_PORT", strconv.Itoa(staticPort), port}} {
		v := job.Var{Name: s.name, Value: s.v.text, Source: s.v.source}
		if s.v.none || s.v.text == "" {
			v.Value = s.def
			if a.env[s.name] != "" && a.procs <= 1 && a.machines <= 1 {
				v.Value, v.Source = a.env[s.name], job.Source{Kind: job.Inherited, Name: "environment"}
			}
		}
		j.NodeEnv = append(j.NodeEnv, v)
	}
	j.Env.Unset = slices.DeleteFunc(j.Env.Unset, func(name string) bool { return name == "MASTER_ADDR" || name == "MASTER_PORT" })
}

// elasticNames are the variables that workers get of torchelastic's agent and a plain process does not have.
func elasticNames(env environ) []string {
	names := []string{
		"LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
		"ROLE_WORLD_SIZE",
		"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
		"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
	}
	if own := "TORCH_NCCL_ASYNC_ERROR_HANDLING"; env[own] == "" { // which torchelastic sets unless it is set
		names = append(names, own)
	}
	return names
}

// quiet lets muster tell errors only, unless somebody said how much it is to tell.
func (a *accelerateJob) quiet(req *Request) {
	if !a.w.quiet.on {
		return
	}
	name := ownRows().blank.LogLevel.option.name
	for i := range req.Settings {
		if s := &req.Settings[i]; s.Flag == name && s.Source.Kind == job.FromDefault {
			s.Value, s.Source = "error", a.w.quiet.source
			req.LogLevel = s.Value
			req.Job.Sources[s.Flag] = s.Source
		}
	}
}
