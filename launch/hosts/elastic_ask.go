package hosts

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"muster/horovod"
	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/report"
)

// ask has a host be lost, as somebody wants it. All else is the driver's, which starts each worker by itself.
func (j *elasticJob) ask(ctx context.Context, r control.Request) (string, error) {
	if r.What != control.KillRequested {
		return "", errhint.With(errhint.Usagef("cannot %s an elastic job of Horovod from outside: its driver starts each worker by itself",
			r.Verb()), "change what its hosts are found by, or stop the job and start it again")
	}
	running := j.running()
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

// running are the hosts that are used now.
func (j *elasticJob) running() map[string]*elasticHost {
	j.mu.Lock()
	defer j.mu.Unlock()
	running := map[string]*elasticHost{}
	for name, h := range j.hosts {
		select {
		case <-h.ended:
		default:
			running[name] = h
		}
	}
	return running
}

// began takes note of a world, and tells hosts which ranks the workers have that go on in it. It waits for none.
func (j *elasticJob) began(number int, slots []horovod.Slot) {
	j.rules.began(number, slots)
	j.mu.Lock()
	j.world = number
	j.mu.Unlock()
	ranks := map[string]map[int]int{} // by host and local rank
	for _, s := range slots {
		if ranks[s.Host] == nil {
			ranks[s.Host] = map[int]int{}
		}
		ranks[s.Host][s.LocalRank] = s.Rank
	}
	for name, h := range j.running() {
		h.mu.Lock()
		var told []RankProcess
		for id, p := range h.processes {
			if rank, has := ranks[name][p.local]; has {
				told = append(told, RankProcess{ID: id, World: number, Rank: rank})
			}
		}
		h.mu.Unlock()
		go func() {
			for _, m := range told {
				_ = h.fleet.RankProcess(0, m) // a host that is lost is found out elsewhere
			}
		}()
	}
}

// used takes what the host with a name has said of its workers.
func (j *elasticJob) used(name string, text []byte) {
	var d report.Status
	if err := json.Unmarshal(text, &d); err != nil {
		j.launcher.config.Log.Warn().Err(err).Str("node", name).Msg("what the workers of this node use is not known")
		return
	}
	j.rules.used(name, d)
}

// reachRanks says how the agent is asked that runs ranks.
func (j *elasticJob) reachRanks(ranks []int) (*control.Far, error) {
	d, _ := j.told.now(context.Background())
	hosts := map[string]bool{}
	for _, rank := range ranks {
		i := slices.IndexFunc(d.Ranks, func(r report.Rank) bool { return r.Rank == rank })
		if i < 0 {
			return nil, errhint.Usagef("the job has no rank %d now: its world has %d", rank, d.WorldSize)
		}
		hosts[d.Ranks[i].Node] = true
	}
	name := slices.Sorted(maps.Keys(hosts))[0]
	h := j.running()[name]
	switch {
	case len(hosts) > 1:
		return nil, errhint.Code(errhint.With(errors.New("these ranks are on several hosts now"),
			"the world has changed: look at muster status, and try again"), errhint.TryAgain)
	case h == nil:
		return nil, errhint.Code(errhint.With(fmt.Errorf("host %s is lost", name), "muster status shows the next world"), errhint.TryAgain)
	}
	return h.fleet.reachMuster(0, "the launcher on "+j.launcher.config.Hostname)
}

// look has all hosts look at their workers.
func (j *elasticJob) look(ctx context.Context, native bool) (all control.Looked, err error) {
	running := j.running()
	names := slices.Sorted(maps.Keys(running))
	seen, errs := make([]control.Looked, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			seen[i], errs[i] = running[name].fleet.look(ctx, "the launcher on "+j.launcher.config.Hostname, native)
		})
	}
	wg.Wait()
	for i, name := range names {
		all.Nodes = append(all.Nodes, seen[i].Nodes...)
		if errs[i] != nil {
			all.Missing = append(all.Missing, name)
		}
	}
	if len(all.Nodes) == 0 {
		err = cmp.Or(cmp.Or(errs...), errhint.Code(errors.New("the job has no host now"), errhint.TryAgain))
	}
	return all, err
}
