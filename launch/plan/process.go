package plan

import (
	"maps"
	"slices"
	"strings"

	"muster/launch/job"
)

// Process returns the job's command as a process by itself, without the variables of a worker: for launchers whose
// processes find each other in another way. vars, "NAME=VALUE", win over everything but EnvRules.Unset.
func (p *Plan) Process(vars []string) Worker {
	env := maps.Clone(p.base)
	for _, kv := range vars {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromMuster, Name: "of this process"}, Own: true}
	}
	for _, v := range p.devices.Shared {
		env[v.Name] = v
	}
	env[job.AgentMark] = job.Var{
		Name: job.AgentMark, Value: p.agentID,
		Source: job.Source{Kind: job.FromMuster, Name: "random: marks what descends from this agent"},
	}
	p.unset(env)
	sorted := Env(slices.SortedFunc(maps.Values(env), func(a, b job.Var) int { return strings.Compare(a.Name, b.Name) }))
	w := Worker{Path: p.entry.path, Argv: p.entry.argv(p.Job.Command, 0), Env: sorted, Dir: p.Dir}
	if p.debug != nil {
		w.Path, w.Argv = p.debug.path, p.debug.prefix
	}
	return w
}

// Mark is the variable, "NAME=VALUE", by which a guardian knows what descends from this plan's processes.
func (p *Plan) Mark() string { return job.AgentMark + "=" + p.agentID }
