package ranks

import (
	"context"
	"errors"
	"slices"
	"sync"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/evidence"
)

// Look has all nodes of a job look at their workers at once; its parts on this machine are told. missing are the nodes
// that have not said what they see. With native py-spy looks, too.
func Look(ctx context.Context, job control.Found, parts []control.Found, native bool) (nodes []evidence.Node, missing []string, err error) {
	launchers := slices.DeleteFunc(slices.Clone(parts), func(f control.Found) bool {
		return f.Answer == nil || f.Answer.Muster.Role != control.Launcher && f.Answer.Muster.Role != control.Driver
	})
	parts = slices.DeleteFunc(slices.Clone(parts), func(f control.Found) bool {
		return f.Answer == nil || f.Answer.Muster.Role != control.Agent
	})
	for i := range launchers { // it knows of all nodes, also of those that cannot ask each other
		if all, err := launchers[i].Client().Evidence(ctx, control.World, native); err == nil || len(parts) == 0 {
			return all.Nodes, all.Missing, err
		}
	}
	if len(parts) == 0 {
		return nil, nil, errhint.With(errhint.Usagef("no worker of job %s runs under a muster of this machine", job.RunID()),
			"ask on the machines where they run: muster status shows them")
	}
	all, err := parts[0].Client().Evidence(ctx, control.World, native)
	if len(parts) > 1 && (err != nil || len(all.Missing) > 0) { // where nodes cannot ask each other those here are asked
		here, failed := lookHere(ctx, parts, native)
		if len(here) > len(all.Nodes) {
			all.Nodes, err = here, failed
			names := map[string]bool{}
			for _, n := range here {
				names[n.Node] = true
			}
			all.Missing = slices.DeleteFunc(all.Missing, func(n string) bool { return names[n] })
		}
	}
	return all.Nodes, all.Missing, err
}

// lookHere has musters of this machine look at their workers at once. An error says why none could.
func lookHere(ctx context.Context, parts []control.Found, native bool) (nodes []evidence.Node, err error) {
	seen, errs := make([]control.Looked, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { seen[i], errs[i] = parts[i].Client().Evidence(ctx, control.Node, native) })
	}
	wg.Wait()
	for _, s := range seen {
		nodes = append(nodes, s.Nodes...)
	}
	if len(nodes) == 0 {
		return nil, errors.Join(errs...)
	}
	return nodes, nil
}
