package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/platform"
	"muster/launch/job"
)

// nodes gives each host its workers, and each worker its rank.
func (m *mpiJob) nodes() {
	list, source, ok := m.hosts()
	if !ok {
		return
	}
	np, each := m.count(m.w.np), m.count(m.w.npernode)
	if m.w.pernode.given {
		each = 1
	}
	oversubscribe, byNode := m.w.oversubscribe.given, false
	if word := m.w.mapBy; word.given {
		each, byNode, oversubscribe = m.mapBy(word, each, oversubscribe)
	}
	if word := m.w.rankBy; word.given && word.text != "slot" {
		m.refuse(word, errors.New("choose slot: ranks go from host to host"))
	}
	if m.wrong.list != nil {
		return
	}
	slots := 0
	for i := range list {
		if slots += list[i].Slots; each > 0 {
			list[i].Slots = each
		}
	}
	if source.Kind == job.FromDefault { // this machine, without a word about its slots
		if np == 0 && each == 0 {
			m.wrong.add(errors.New("cannot tell how many workers to start: give -np N, or hosts with slots"))
			return
		}
		list[0].Slots = cmp.Or(each, np)
		slots = list[0].Slots
	}
	procs, err := dealRanks(list, np, oversubscribe)
	switch {
	case err != nil:
		m.wrong.add(err)
		return
	case byNode && slices.ContainsFunc(procs, func(n int) bool { return n > 1 }) && len(list) > 1:
		m.wrong.add(errhint.With(errors.New("cannot use --map-by node: "+whyByNode), hintByNode))
		return
	}
	m.place(list, procs, slots)
}

// mapBy reads --map-by: how many workers each host has, 0 for as many as its slots, and whether hosts have them in
// turn.
func (m *mpiJob) mapBy(word value, each int, over bool) (perNode int, byNode, oversubscribe bool) {
	parts := strings.Split(word.text, ":")
	perNode, oversubscribe = each, over
	switch parts[0] {
	case "slot", "":
		parts = parts[1:]
	case "node":
		byNode, parts = true, parts[1:]
	case "ppr":
		n := 0
		if len(parts) >= 3 && parts[2] == "node" {
			n, _ = pyInt(parts[1])
		}
		if n < 1 || n > maxProcs {
			m.refuse(word, errors.New("give ppr:N:node, N workers on each host"))
			return perNode, byNode, oversubscribe
		}
		perNode, parts = n, parts[3:]
	default:
		m.refuse(word, errors.New("choose slot, or ppr:N:node"))
		return perNode, byNode, oversubscribe
	}
	for _, modifier := range parts {
		switch strings.ToLower(modifier) {
		case "oversubscribe":
			oversubscribe = true
		case "nooversubscribe":
			oversubscribe = false
		default:
			m.refuse(word, fmt.Errorf("%q cannot be done: workers are bound as --bind-to says, or not at all", modifier))
		}
	}
	return perNode, byNode, oversubscribe
}

// defaultHostfiles are the variables by which the MPI operator names the hostfile of Open MPI, MPICH and Intel MPI.
var defaultHostfiles = []string{
	"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE",
	"I_MPI_HYDRA_HOST_FILE",
}

// hosts are those of --host or --hostfile, else those that the platform names, else this machine, which nothing names.
// All have slots.
func (m *mpiJob) hosts() (list []hosts.Host, source job.Source, ok bool) {
	byList, file := m.w.host, m.w.hostfile
	for _, name := range defaultHostfiles {
		if text := m.env[name]; text != "" && !byList.given && !file.given {
			file.say(text, job.Source{Kind: job.FromVariable, Name: name})
		}
	}
	var err error
	switch {
	case byList.given && file.given:
		m.wrong.add(errors.New("cannot use --host and --hostfile together: give one of them"))
		return nil, source, false
	case byList.given:
		source = byList.source
		list, err = hosts.ParseMPIList(byList.text)
	case file.given:
		source = file.source
		list, err = readHostfile(&m.req, m.inv, file.text, hosts.MPI)
	}
	if err != nil {
		m.wrong.addEach(source, err)
		return nil, source, false
	}
	facts, err := platform.Detect(platform.Input{
		Environ: m.env, Files: m.inv.Machine.Files, Hostname: m.inv.Machine.Hostname, OwnAddr: m.inv.Machine.OwnAddr,
	}, platform.Auto)
	switch {
	case err == nil && facts.Name != "":
		m.req.Platform, m.job.Platform = &facts, facts.Name
	case err != nil && list == nil:
		m.wrong.add(errhint.With(err, "correct it, or name the hosts by --host or --hostfile"))
		return nil, source, false
	}
	switch {
	case list != nil:
		return list, source, true
	case facts.Process != nil || len(facts.Hosts) == 0:
		return []hosts.Host{{Name: "localhost"}}, source, true
	}
	for _, h := range facts.Hosts {
		list = append(list, hosts.Host{Name: h.Name, Slots: max(h.Slots, 1)})
	}
	return list, job.Source{Kind: job.FromPlatform, Name: facts.Name}, true
}

// dealRanks returns how many workers each host has: its slots, from the first host on until there are np; 0 for all of
// the slots. What is more than all slots is shared out evenly where that is allowed.
func dealRanks(list []hosts.Host, np int, oversubscribe bool) ([]int, error) {
	procs, left := make([]int, len(list)), np
	for i, h := range list {
		procs[i] = h.Slots
		if np > 0 {
			procs[i] = min(h.Slots, left)
			left -= procs[i]
		}
	}
	if left > 0 && !oversubscribe {
		return nil, errhint.With(fmt.Errorf("cannot start %d workers: there are slots for %d", np, np-left),
			"name more hosts or slots, or give --oversubscribe")
	}
	for i := range list {
		share := left / (len(list) - i)
		if left%(len(list)-i) > 0 {
			share++
		}
		procs[i] += share
		left -= share
		if procs[i] > maxProcs {
			return nil, fmt.Errorf("cannot start %d workers on the host %s: the limit is %d", procs[i], list[i].Name, maxProcs)
		}
	}
	return procs, nil
}

// place makes the nodes, in the order of the hosts, and tells the workers what mpirun would. Hosts without a worker are
// left out.
func (m *mpiJob) place(list []hosts.Host, procs []int, slots int) {
	world, rank := 0, 0
	for _, n := range procs {
		world += n
	}
	source := job.Source{Kind: job.FromMuster, Name: "as mpirun sets it"}
	number := func(name string, n int, own bool) job.Var {
		return job.Var{Name: name, Value: strconv.Itoa(n), Source: source, Own: own}
	}
	for i, h := range list {
		if procs[i] == 0 {
			m.warn("the host %s is not used: there are enough slots in front of it", h.Name)
			continue
		}
		node := job.Node{Host: h, Procs: strconv.Itoa(procs[i]), Env: []job.Var{
			number("OMPI_COMM_WORLD_LOCAL_SIZE", procs[i], false), number("OMPI_COMM_WORLD_SIZE", world, false),
			number("OMPI_UNIVERSE_SIZE", slots, false),
		}}
		for local := range procs[i] {
			node.WorkerEnv = append(node.WorkerEnv, []job.Var{
				number("OMPI_COMM_WORLD_LOCAL_RANK", local, true), number("OMPI_COMM_WORLD_NODE_RANK", local, true),
				number("OMPI_COMM_WORLD_RANK", rank, true),
			})
			rank++
		}
		m.job.Hosts.Nodes = append(m.job.Hosts.Nodes, node)
	}
	n := len(m.job.Hosts.Nodes)
	m.job.Nodes = job.Range{Min: n, Max: n}
	m.job.Procs = m.job.Hosts.Nodes[0].Procs
	if n > 1 {
		m.job.Meeting.Backend = backendStatic
	}
}
