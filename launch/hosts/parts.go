package hosts

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/launch/job"
)

// maxPlaces is how many machines the store of the agents may be on: the first of them has it, the others are where it
// goes when that one dies.
const maxPlaces = 4

// arrange settles where the nodes meet, now that it is known which machines there are.
func (l *launcher) arrange() error {
	n := len(l.job.Hosts.Nodes)
	l.addrs = make([]string, n)
	var remote netip.Addr // of any machine but this one
	for i := range n {
		if h, ok := l.fleet.Hello(i); ok {
			if addr, err := netip.ParseAddr(l.said(i, h)); err == nil && !addr.IsLoopback() {
				remote = addr
			}
		}
	}
	here := "127.0.0.1"
	if remote.IsValid() {
		addr, err := hostaddr.ToReach(netip.AddrPortFrom(remote, 22))
		if err != nil {
			return errhint.Code(err, errhint.TryAgain)
		}
		here = addr.String()
	}
	l.own = here
	for i := range n {
		h, ok := l.fleet.Hello(i)
		if !ok {
			continue
		}
		l.addrs[i] = l.addr(i, h)
		if len(l.endpoints) < maxPlaces {
			l.endpoints = append(l.endpoints, job.Endpoint{Host: l.addrs[i], Port: h.Port})
		}
	}
	return nil
}

// said is the address of a machine, as its agent has it; empty for this machine. Who was reached by a program such as
// kubectl knows only its own.
func (l *launcher) said(i int, h Hello) string {
	if h.Addr == "" && l.away[i].Load() {
		return h.Own
	}
	return h.Addr
}

// addr is the address by which a machine is reached by the others. A machine that has come back may have a new one.
func (l *launcher) addr(i int, h Hello) string {
	// By the name that ssh knows it by the other hosts may not know it.
	if host := l.masterHost(); i == 0 && host != "" && (host != l.job.Hosts.Nodes[0].Name || h.Addr == "") {
		return host
	}
	text := l.said(i, h)
	if addr, err := netip.ParseAddr(text); text == "" || err == nil && addr.IsLoopback() {
		return l.own
	}
	return text
}

// masterHost is the address of the first node that the user gave, empty where none was given, or one that means another
// machine everywhere.
func (l *launcher) masterHost() string {
	m := &l.job.Meeting
	host := m.Host
	if host == "" && len(m.Endpoints) > 0 && m.Backend != "etcd" {
		host = m.Endpoints[0].Host
	}
	if addr, err := netip.ParseAddr(host); host == "localhost" || err == nil && (addr.IsLoopback() || addr.IsUnspecified()) {
		return ""
	}
	return host
}

// fixed reports whether every machine has its place in the job: the i-th has group rank i. Where a file says how the
// machines hang together, their places follow from that.
func fixed(job *job.Job) bool {
	return job.Meeting.Topology == "" && job.Nodes.Min == job.Nodes.Max && len(job.Hosts.Nodes) == job.Nodes.Max
}

// part is the i-th node's part of the job.
func (l *launcher) part(i int) job.Job {
	j := l.job
	n := j.Hosts.Nodes[i]
	j.Procs = cmp.Or(n.Procs, j.Procs)
	j.NodeEnv, j.WorkerEnv, j.Devices.Only = n.Env, n.WorkerEnv, n.Devices
	m := &j.Meeting
	port := m.Port
	if len(m.Endpoints) > 0 && m.Backend != "etcd" {
		port = cmp.Or(port, m.Endpoints[0].Port)
	}
	if port > 0 {
		m.WorkerPorts = []int{port}
	}
	only := 0 // the port that must be had, 0 for any
	if i == 0 && j.Sources["master-port"].Kind != job.FromDefault {
		only = port
	}
	if len(j.Hosts.Nodes) == 1 && j.Nodes.Max == 1 {
		m.Backend, m.Host, m.Port, m.Endpoints, m.NodeRank, m.IsHost = "standalone", "", only, nil, -1, nil
		j.Hosts = job.Hosts{}
		return j
	}
	if m.Backend != "etcd" {
		host := i == 0
		m.Backend, m.Endpoints, m.Host, m.Port, m.IsHost = "muster", l.endpoints, "", 0, &host
	}
	m.NodeRank = -1
	if fixed(&j) {
		m.NodeRank, m.Port = i, only
		j.Restart.LossLimit = lossLimit(&j)
		j.Restart.ReplaceLimit = replaceLimit(&j)
	}
	if m.Iface == "" { // else each machine looks for its own
		m.LocalAddr = l.addrs[i]
	}
	j.Hosts = job.Hosts{}
	return j
}

// replaceLimit is how many lost nodes a job may have in which every machine has its place: none where nothing is to be
// started again. The others would wait for a machine that comes back to no workers.
func replaceLimit(j *job.Job) int {
	rules := &j.Restart
	again := rules.MaxRestarts > 0 || rules.Policy == job.RestartOnNodeFail || rules.Policy == job.RestartOnNodeFailOrExitCode
	if rules.ReplaceLimit < 0 && rules.RankLimit == 0 && !again {
		return 0
	}
	return rules.ReplaceLimit
}

// lossLimit is how many restarts and lost nodes together such a job may have: a lost machine uses up a restart, and
// where none is left the others do not wait for it.
func lossLimit(job *job.Job) int {
	if rules := &job.Restart; rules.ReplaceLimit < 0 && rules.RankLimit == 0 {
		return rules.MaxRestarts
	}
	return 0
}

// order is what the i-th node is told.
func (l *launcher) order(i int) Order {
	if h, ok := l.fleet.Hello(i); ok { // it may not have been there when the others were, or at another address
		l.addrs[i] = l.addr(i, h)
	}
	rules := &l.job.Hosts
	o := Order{
		Job: l.part(i), Name: l.nodeNames()[i], Dir: cmp.Or(rules.Dir, l.dir), LogLevel: l.config.LogLevel, LogFormat: l.config.LogFormat,
		Token: l.token, Files: l.files,
		Collect: rules.CollectLogs != "", Preflight: rules.Preflight, Environ: job.Passed(l.job.Env, l.config.Environ),
		Events: l.config.Job.See.EventsFile != "",
	}
	o.Job.Environ = nil // made there
	if h := l.config.Horovod; h != nil {
		hello, _ := l.fleet.Hello(i)
		l.world.clients.Set(l.nodeNames()[i], cameFrom(context.Background(), rules.Nodes[i].Name, hello, l.away[i].Load()),
			whoseOn(l.fleet, i, l.away[i].Load()))
		o.Job.NodeEnv = slices.Concat(o.Job.NodeEnv, l.world.vars)
		if len(h.NICs) > 0 {
			o.Job.NodeEnv = append(o.Job.NodeEnv,
				horovodVars([]string{ifaceVars[0] + "=" + h.NICs[0], ifaceVars[1] + "=" + strings.Join(h.NICs, ",")})...)
		} else {
			o.Interfaces, o.Addr = ifaceVars, l.addrs[i]
		}
	}
	return o
}

// nodeNames are what the machines are called: as they were written, with a port where one name stands for several.
func (l *launcher) nodeNames() []string {
	count := map[string]int{}
	for _, n := range l.job.Hosts.Nodes {
		count[n.Name]++
	}
	names := make([]string, 0, len(l.job.Hosts.Nodes))
	for i, n := range l.job.Hosts.Nodes {
		name := n.Name
		if count[name] > 1 && n.Port > 0 {
			name += ":" + strconv.Itoa(n.Port)
		} else if count[name] > 1 {
			name += "#" + strconv.Itoa(i)
		}
		names = append(names, name)
	}
	return names
}
