package plan

import (
	"maps"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/launch/job"
)

// makeBase sets what all workers of this node get, whichever round it is.
func (p *Plan) makeBase() error {
	vars := map[string]job.Var{}
	for _, kv := range p.Job.Environ {
		name, value, ok := strings.Cut(kv, "=")
		if ok && name != "" && !job.Stale(name, p.Job.Platform != "") && p.Job.Env.Keeps(name) {
			vars[name] = job.Var{Name: name, Value: value, Source: job.Source{Kind: job.Inherited, Name: "environment"}}
		}
	}
	for name, value := range p.deviceEnv {
		vars[name] = job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromFlag, Name: "fake accelerator"}}
	}
	job.Assign(vars, p.Job.Env.Set, nil)
	job.Assign(vars, p.Job.NodeEnv, nil)
	p.base = vars
	if list := p.Job.WorkerEnv; list != nil && len(list) < p.Procs {
		return errhint.Usagef("there are variables for %d workers of this node, and it has %d", len(list), p.Procs)
	}
	return p.choosePython()
}

// overrule sets what other launchers' ways want, over what is torchelastic's.
func (p *Plan) overrule(vars map[string]job.Var, localRank int) {
	for _, v := range p.Job.NodeEnv {
		if (job.TellsWorkers(v.Name) || p.Job.Env.Profile.Tells(v.Name)) && v.Name != job.AgentMark {
			vars[v.Name] = p.base[v.Name]
		}
	}
	if p.Job.WorkerEnv == nil {
		return
	}
	job.Assign(vars, slices.DeleteFunc(slices.Clone(p.Job.WorkerEnv[localRank]), func(v job.Var) bool { return v.Name == job.AgentMark }),
		nil)
	for _, name := range p.varying() {
		if v, ok := vars[name]; ok {
			v.Own = true
			vars[name] = v
		}
	}
}

// varying are the names of which workers may have values of their own that others lack.
func (p *Plan) varying() []string {
	names := map[string]bool{}
	for _, list := range p.Job.WorkerEnv {
		for _, v := range list {
			names[v.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// unset takes away what workers are not to get from anywhere.
func (p *Plan) unset(vars map[string]job.Var) {
	if len(p.Job.Env.Unset) == 0 {
		return
	}
	maps.DeleteFunc(vars, func(name string, _ job.Var) bool { return name != job.AgentMark && job.Matches(p.Job.Env.Unset, name) })
}

// environ is the part of the workers' environment that all have alike, as commands are looked up with.
func (p *Plan) environ() []string {
	vars := maps.Clone(p.base)
	p.unset(vars)
	env := make([]string, 0, len(vars))
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name].Value)
	}
	return env
}
