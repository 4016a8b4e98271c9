package hosts

import (
	"context"
	"maps"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/launch/control"
)

// ask has a host be lost, as somebody wants it. All else is the driver's, which starts each worker by itself.
func (j *elasticJob) ask(ctx context.Context, r control.Request) (string, error) {
	if r.What != control.KillRequested {
		return "", errhint.With(errhint.Usagef("cannot %s an elastic job of Horovod from outside: its driver starts each worker by itself",
			r.Verb()), "change what its hosts are found by, or stop the job and start it again")
	}
	j.mu.Lock()
	running := map[string]*elasticHost{}
	for name, h := range j.hosts {
		select {
		case <-h.ended:
		default:
			running[name] = h
		}
	}
	j.mu.Unlock()
	h := running[r.Node]
	if h == nil {
		return "", errhint.With(errhint.Usagef("the job has no host %q now", r.Node),
			"its hosts are "+strings.Join(slices.Sorted(maps.Keys(running)), ", "))
	}
	if _, err := h.fleet.Ask(ctx, Ask{Request: r}); err != nil {
		return "", err
	}
	return "the agent of " + r.Node + " kills itself, as if its machine were lost; the others go on by the job's rules", nil
}
