package launch

import (
	"maps"
	"slices"
	"strings"
)

// Process returns the job's command as a process by itself, without the variables of a worker: for launchers whose processes
// find each other in another way. vars, "NAME=VALUE", win over everything but EnvRules.Unset.
func (p *Plan) Process(vars []string) Worker {
	env := maps.Clone(p.base)
	for _, kv := range vars {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = Var{Name: name, Value: value, Source: Source{FromMuster, "of this process"}, Own: true}
	}
	for _, v := range p.devices.Shared {
		env[v.Name] = v
	}
	env[agentMark] = Var{Name: agentMark, Value: p.agentID, Source: Source{FromMuster, "random: marks what descends from this agent"}}
	p.unset(env)
	sorted := Env(slices.SortedFunc(maps.Values(env), func(a, b Var) int { return strings.Compare(a.Name, b.Name) }))
	w := Worker{Path: p.entry.path, Argv: p.entry.argv(p.Job.Command, 0), Env: sorted, Dir: p.Dir}
	if p.debug != nil {
		w.Path, w.Argv = p.debug.path, p.debug.prefix
	}
	return w
}

// Mark is the variable, "NAME=VALUE", by which a guardian knows what descends from this plan's processes.
func (p *Plan) Mark() string { return agentMark + "=" + p.agentID }
