package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"muster/launch/job"
	"muster/rendezvous"
)

// Env is a worker's whole environment, sorted by name.
type Env []job.Var

// Strings returns the environment as exec wants it.
func (e Env) Strings() []string {
	out := make([]string, len(e))
	for i, v := range e {
		out[i] = v.Name + "=" + v.Value
	}
	return out
}

// Lookup returns a variable that all workers of this node have alike: what was inherited, what the job's rules and the
// choice of Python make of that, what a fake accelerator sets, and the network interface that they are told to use.
func (p *Plan) Lookup(name string) (string, bool) {
	vars := maps.Clone(p.base)
	p.exportIface(vars)
	p.unset(vars)
	v, ok := vars[name]
	return v.Value, ok
}

// exportIface tells NCCL and Gloo which interface to use, where nobody else has.
func (p *Plan) exportIface(vars map[string]job.Var) {
	if p.Iface == "" {
		return
	}
	for name, value := range map[string]string{
		"NCCL_SOCKET_IFNAME": "=" + p.Iface, // without the sign it would be the beginning of a name
		"GLOO_SOCKET_IFNAME": p.Iface,
	} {
		if _, ok := vars[name]; !ok {
			vars[name] = job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromDefault, Name: "--export-iface"}}
		}
	}
}

// workerEnv returns the environment of one worker, which is made of, weakest first: what muster inherited, less what
// outer launchers left; a fake accelerator's variables; EnvRules.Set; NodeEnv; the choice of Python (all these are
// p.base); which accelerators the worker sees; torchelastic's variables (read in PyTorch 2.15.0,
// torch/distributed/elastic/agent/server/local_elastic_agent.py) and our own; those of EnvRules.Profile; NodeEnv once
// more, as other launchers' ways may need other values of those; WorkerEnv. EnvRules.Unset takes away last.
func (p *Plan) workerEnv(r rendezvous.Round, localRank, restarts int, errorFile string) (Env, error) {
	vars := maps.Clone(p.base)
	set := func(kind job.SourceKind, why, name, value string) {
		vars[name] = job.Var{Name: name, Value: value, Source: job.Source{Kind: kind, Name: why}}
	}
	own := func(kind job.SourceKind, why, name, value string) {
		set(kind, why, name, value)
		v := vars[name]
		v.Own = true
		vars[name] = v
	}
	orSet := func(why, name, value string) {
		if _, ok := vars[name]; !ok {
			set(job.FromDefault, why, name, value)
		}
	}
	rank := r.BaseRank + localRank
	if p.roundEnv != nil {
		for name, value := range p.roundEnv(r.Number) {
			own(job.FromFlag, "fake accelerator", name, value)
		}
	}
	for _, v := range p.devices.Shared {
		vars[v.Name] = v
	}

	// torchelastic's names, exactly.
	shownLocalRank := localRank
	if p.Job.VirtualLocalRank {
		shownLocalRank = 0
	}
	switch {
	case p.OwnDevices():
		for _, v := range p.devices.Own[localRank] {
			own(v.Source.Kind, v.Source.Name, v.Name, v.Value)
		}
	case p.Job.VirtualLocalRank:
		device, err := virtualDevice(vars, localRank)
		if err != nil {
			return nil, err
		}
		own(job.FromFlag, "--virtual-local-rank", "CUDA_VISIBLE_DEVICES", device)
		if _, metax := vars["MACA_VISIBLE_DEVICES"]; metax { // which of the two wins is not documented
			own(job.FromFlag, "--virtual-local-rank", "MACA_VISIBLE_DEVICES", device)
		}
	}
	own(job.FromMuster, "index on this node", "LOCAL_RANK", strconv.Itoa(shownLocalRank))
	own(job.FromMuster, "base rank of this node + local rank", "RANK", strconv.Itoa(rank))
	own(job.FromMuster, "agent's rank in the round", "GROUP_RANK", strconv.Itoa(r.GroupRank))
	own(job.FromMuster, "base rank in the role + local rank", "ROLE_RANK", strconv.Itoa(r.BaseRoleRank+localRank))
	set(p.source("role").Kind, p.source("role").Name, "ROLE_NAME", p.Job.Role)
	set(p.procsFrom.Kind, p.procsFrom.Name, "LOCAL_WORLD_SIZE", strconv.Itoa(p.Procs))
	own(job.FromMuster, "workers of all nodes", "WORLD_SIZE", strconv.Itoa(r.WorldSize))
	own(job.FromMuster, "agents in the round", "GROUP_WORLD_SIZE", strconv.Itoa(r.GroupWorldSize))
	own(job.FromMuster, "workers of the role", "ROLE_WORLD_SIZE", strconv.Itoa(r.RoleWorldSize))
	own(job.FromMuster, "where the workers' store listens", "MASTER_ADDR", r.MasterAddr)
	own(job.FromMuster, "where the workers' store listens", "MASTER_PORT", strconv.Itoa(r.MasterPort))
	own(job.FromMuster, "restarts so far", "TORCHELASTIC_RESTART_COUNT", strconv.Itoa(restarts))
	set(p.source("max-restarts").Kind, p.source("max-restarts").Name, "TORCHELASTIC_MAX_RESTARTS", strconv.Itoa(p.Job.Restart.MaxRestarts))
	set(p.runIDFrom.Kind, p.runIDFrom.Name, "TORCHELASTIC_RUN_ID", p.RunID)
	own(job.FromMuster, "an agent serves the store", "TORCHELASTIC_USE_AGENT_STORE", pythonBool(r.AgentStore))
	own(job.FromMuster, "directory of this attempt's logs", "TORCHELASTIC_ERROR_FILE", errorFile)
	set(p.source("signals-to-handle").Kind, p.source("signals-to-handle").Name, "TORCHELASTIC_SIGNALS_TO_HANDLE",
		signalNames(p.Job.Stop.Handled))
	if p.Job.Env.Cross {
		set(p.procsFrom.Kind, p.procsFrom.Name, "LOCAL_SIZE", strconv.Itoa(p.Procs))
		own(job.FromMuster, "this node's rank", "CROSS_RANK", strconv.Itoa(r.GroupRank))
		own(job.FromMuster, "nodes of the job", "CROSS_SIZE", strconv.Itoa(r.GroupWorldSize))
	}
	if p.Job.Bind.Mode == job.BindCores && p.cpus != nil {
		own(job.FromMuster, "CPUs of this worker", "OMP_NUM_THREADS", strconv.Itoa(len(p.cpus[localRank])))
	}
	defaults := !p.Job.Env.NoDefaults
	if defaults {
		orSet("unless set", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
	}
	if defaults && p.Procs > 1 {
		orSet("several workers on a node, so that they do not fight for cores", "OMP_NUM_THREADS", "1")
	}

	if p.Job.Command.Kind == job.Program && !p.Job.InheritStdin {
		orSet("so that output shows at once", "PYTHONUNBUFFERED", "1") // torchrun's workers run under python -u
	}
	if p.Job.Watchdog {
		set(job.FromVariable, "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE", p.WatchdogFile())
	}
	if p.Job.Hang.Monitor != nil {
		own(job.FromMuster, "where NVRx's RankMonitorClient is listened to", "FT_RANK_MONITOR_IPC_SOCKET", p.RankMonitorSocket(localRank))
	}
	p.exportIface(vars)
	p.setCheckpoints(vars)
	p.setStacks(vars)
	set(job.FromMuster, "directory of this job", "MUSTER_RUN_DIR", p.RunDir)
	set(job.FromMuster, "random: marks what descends from this agent", "MUSTER_AGENT", p.agentID)
	own(job.FromMuster, "round number", "MUSTER_ROUND", strconv.Itoa(r.Number))
	if err := p.setProfile(vars, r, localRank); err != nil {
		return nil, err
	}
	p.overrule(vars, localRank)
	p.unset(vars)

	env := slices.Collect(maps.Values(vars))
	slices.SortFunc(env, func(a, b job.Var) int { return strings.Compare(a.Name, b.Name) })
	return env, nil
}

// virtualDevice returns the one entry of CUDA_VISIBLE_DEVICES that a worker under --virtual-local-rank sees.
func virtualDevice(vars map[string]job.Var, localRank int) (string, error) {
	list, ok := vars["CUDA_VISIBLE_DEVICES"]
	if !ok {
		return strconv.Itoa(localRank), nil
	}
	entries := strings.Split(list.Value, ",")
	if localRank >= len(entries) {
		return "", fmt.Errorf("--virtual-local-rank: local rank %d has no entry in CUDA_VISIBLE_DEVICES=%s", localRank, list.Value)
	}
	return strings.TrimSpace(entries[localRank]), nil
}

// pythonBool spells a truth value as torch compares it.
func pythonBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// CheckEnv is CheckInput's Env.
func (p *Plan) CheckEnv(r rendezvous.Round, localRank int) ([]string, error) {
	plan := *p
	plan.places = nil
	if localRank < 0 {
		localRank, plan.Job.VirtualLocalRank, plan.devices.Own, plan.Job.WorkerEnv = 0, false, nil, nil
	}
	env, err := plan.workerEnv(r, localRank, 0, "")
	return env.Strings(), err
}
