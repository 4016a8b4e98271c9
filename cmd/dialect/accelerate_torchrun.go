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

// accelerateNames are accelerate's names for torchrun's flags.
var accelerateNames = map[string]string{
	"nnodes": "num-machines", "nproc-per-node": "num-processes", "node-rank": "machine-rank", "rdzv-endpoint": "main-process-ip",
	"master-addr": "main-process-ip", "master-port": "main-process-port",
}

// torchrun puts the job into torchrun's terms: all of accelerate's values, and for torchrun's other flags what
// PyTorch's variables say, as accelerate leaves those to torchrun.
func (a *accelerateJob) torchrun() map[string]value {
	env := a.env
	if a.single || len(a.nodes) > 0 { // torchrun would have no part in it
		env = maps.Clone(a.env)
		maps.DeleteFunc(env, func(name, _ string) bool { return strings.HasPrefix(name, petPrefix) })
	}
	theirs, err := torchrunParser("torchrun").parse([]string{"script"}, env)
	if err != nil {
		a.wrong.add(err)
		theirs, _ = torchrunParser("torchrun").parse([]string{"script"}, nil) // whose defaults are right
	}
	values := theirs.values
	maps.Copy(values, a.v)
	values["nproc_per_node"] = a.perNode
	if a.perNode.text == "" {
		values["nproc_per_node"] = value{text: "1"} // which was refused, or stands in the nodes
	}
	if a.single {
		values["nproc_per_node"] = value{text: "1", source: a.v["num_processes"].source}
	}
	switch {
	case len(a.nodes) > 0:
		n := len(a.nodes)
		values["nnodes"] = value{text: strconv.Itoa(n), source: a.nodesFrom()}
		values["rdzv_backend"] = value{text: backendStatic}
	case a.single:
		values["rdzv_backend"] = value{text: backendStatic}
	case a.machines > 1:
		a.meet(values)
	default:
		a.alone(values)
	}
	return values
}

// meet says where several machines meet, each of which runs this command.
func (a *accelerateJob) meet(values map[string]value) {
	host, port, rank := a.v["main_process_ip"], a.v["main_process_port"], a.v["machine_rank"]
	backend := values["rdzv_backend"].text
	values["nnodes"] = value{text: strconv.Itoa(a.machines), source: a.v["num_machines"].source}
	values["standalone"] = value{text: "false"}
	values["node_rank"] = value{text: "0"}
	for _, dest := range []string{"master_addr", "master_port"} {
		values[dest] = value{none: true}
	}
	values["rdzv_endpoint"] = value{}
	switch {
	case backend != backendStatic:
		if !rank.none {
			values["node_rank"] = rank
		}
	case rank.none && a.file.name == "": // a file without it means the first machine
		a.refuse("num_machines", errhint.With(errors.New("nothing says which of them this is"),
			"give --machine-rank N, from 0, another on each machine; or --rdzv-backend c10d"))
	default:
		values["node_rank"] = rank
	}
	if host.none || strings.TrimSpace(host.text) == "" {
		a.refuse("num_machines", errhint.With(errors.New("nothing says where the machines meet"),
			"give --main-process-ip HOST (and --main-process-port PORT), the same on all machines, where HOST is the one with rank 0"))
		values["rdzv_endpoint"] = value{text: "127.0.0.1:" + strconv.Itoa(staticPort)} // to look for further mistakes
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
	values["rdzv_endpoint"] = value{text: name + ":" + strconv.Itoa(at.n), source: host.source}
}

// alone is one machine, unless PyTorch's variables say that there are more. Where the port is in use the job takes
// another, as under accelerate.
func (a *accelerateJob) alone(values map[string]value) {
	port := a.v["main_process_port"]
	nodes, err := parseNodes(values["nnodes"].text)
	switch several := err == nil && nodes.Max > 1; {
	case several && !port.none:
		values["master_port"] = port
	case several, port.none:
	case values["rdzv_backend"].text == backendC10d && values["rdzv_endpoint"].text == "":
		values["rdzv_endpoint"] = value{text: "localhost:" + port.text, source: port.source}
	}
}

// fill puts what goes beyond torchrun into the job.
func (a *accelerateJob) fill(t *torchrunJob) {
	j := t.job
	j.Dialect = a.parser.prog
	t.names = accelerateNames
	t.wrong.merge(a.wrong)
	j.Warnings = append(j.Warnings, a.warnings...)
	j.Env.Set, j.NodeEnv = a.vars, a.own
	j.Sources["nproc-per-node"] = a.v["num_processes"].source
	switch port := a.v["main_process_port"]; {
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
		host, port := a.v["main_process_ip"], a.v["main_process_port"]
		if len(a.nodes) > 1 && (!host.none || port.n > 0) {
			j.Meeting.Endpoints = []job.Endpoint{{Host: host.text, Port: max(port.n, 0)}}
		}
	}
}

// outerStore says where the processes that an MPI launcher started meet, as accelerate does.
func (a *accelerateJob) outerStore(j *job.Job) {
	host, port := a.v["main_process_ip"], a.v["main_process_port"]
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
	if !a.on("quiet") {
		return
	}
	for i := range req.Settings {
		if s := &req.Settings[i]; s.Flag == "log-level" && s.Source.Kind == job.FromDefault {
			s.Value, s.Source = "error", a.v["quiet"].source
			req.LogLevel = s.Value
			req.Job.Sources[s.Flag] = s.Source
		}
	}
}
