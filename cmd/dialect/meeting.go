package dialect

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"muster/cmd/dialect/jobfile"
	"muster/internal/errhint"
	"muster/launch/job"
)

// Backends of the rendezvous.
const (
	backendStandalone = "standalone"
	backendStatic     = "static"
	backendC10d       = "c10d"
	backendMuster     = "muster"
	backendEtcd       = "etcd"
)

// defaultMeeting are the bounds of torchrun 2.15.0's c10d rendezvous. The time between heartbeats and the last call are
// left to the protocol: muster's own is faster than torchrun's.
func defaultMeeting(backend string) job.Meeting {
	return job.Meeting{
		Backend: backend, NodeRank: -1,
		JoinTimeout: 10 * time.Minute, CloseTimeout: 30 * time.Second, ReadTimeout: time.Minute, HeartbeatTimeout: 5 * time.Second,
		KeepAliveAttempts: 3, Etcd: job.EtcdAccess{Prefix: "/muster/"},
	}
}

// checkEndpoints warns of a place that is another one on every machine.
func checkEndpoints(job *job.Job) {
	if job.Meeting.Backend == backendEtcd {
		return // which may have a proxy on every machine
	}
	if newEnviron(job.Environ)[jobfile.ReplicaVariable] != "" {
		return // a launcher in a replica of a job file, which is told where they meet
	}
	for _, e := range job.Meeting.Endpoints {
		if isLoopback(e.Host) {
			job.Warnings = append(job.Warnings,
				fmt.Sprintf("the nodes meet at %s, which is this machine itself: only agents on this machine can join", e))
		}
	}
}

// settleMeeting holds the settings of the meeting against each other, wherever they came from. words are all flags that
// were given in any way, by name.
func settleMeeting(r *Request, words *ownWords, wrong *problems) {
	j, m := &r.Job, &r.Job.Meeting
	if m.LocalAddr != "" && m.Iface != "" {
		settleAddress(m, words, wrong)
	}
	if m.Backend == backendStandalone || m.Backend == backendStatic {
		m.Spares = 0 // nodes with fixed ranks have none, nor has one node by itself; see the setting's use
	}
	alone := j.Alone()
	if unit := max(m.NodeUnit, 1); j.Nodes.Max/unit*unit < j.Nodes.Min && (!alone || words.NodeUnit.source.Kind == job.FromFlag) {
		wrong.add(fmt.Errorf("cannot use %s with %s: no multiple of %d nodes is in that range",
			words.NodeUnit.written(), words.NNodes.written(), unit))
	}
	if alone {
		return
	}
	if at := words.Rdzv.source; at.Kind == job.FromPlatform && strings.HasPrefix(at.Name, dlroverMasterAddr) {
		m.DLRover = masterAgent(newEnviron(j.Environ), wrong)
	}
	checkEndpoints(j)
	checkConfTimes(m, wrong)
	if m.Backend == backendStatic {
		if j.Nodes.Min != j.Nodes.Max {
			wrong.add(errhint.With(fmt.Errorf("cannot use %s with a static rendezvous: its number of nodes is fixed",
				words.NNodes.written()),
				"give one number, or let the nodes meet by c10d, muster or etcd"))
		}
		if !looseRanks.met(r, words) {
			m.Topology = ""
		}
	}
	if m.Topology != "" && m.Prefers > 0 {
		if rank := words.NodeRank; rank.source.Kind == job.FromFlag && j.Dialect == "run" {
			wrong.add(fmt.Errorf("cannot use %s with %s: the switches give the ranks; leave one of them out",
				rank.written(), words.TopologyFile.written()))
		} else {
			j.Warnings = append(j.Warnings, "the switches of --topology-file give the ranks: "+rank.written()+" has no effect")
		}
		m.Prefers = 0
	}
	if rank := words.NodeRank; m.Prefers > j.Nodes.Max && rank.source.Kind == job.FromFlag && j.Dialect == "run" {
		wrong.add(fmt.Errorf("cannot use %s with %s: node ranks go from 0 to %d",
			rank.written(), words.NNodes.written(), j.Nodes.Max-1))
	}
	if m.Backend == backendStatic {
		if m.NodeRank >= j.Nodes.Max {
			wrong.add(fmt.Errorf("cannot use %s with %s: node ranks go from 0 to %d",
				words.NodeRank.written(), words.NNodes.written(), j.Nodes.Max-1))
		}
	}
	settleEtcd(m, words, wrong)
}

// settleAddress decides between an address and an interface: the stronger source wins.
func settleAddress(m *job.Meeting, words *ownWords, wrong *problems) {
	addr, iface := words.LocalAddr, words.Iface
	switch {
	case addr.source.Kind > iface.source.Kind:
		m.Iface = ""
	case iface.source.Kind > addr.source.Kind:
		m.LocalAddr = ""
	default:
		wrong.add(fmt.Errorf("cannot use %s and %s together: give one of them", addr.written(), iface.written()))
	}
}

// settleEtcd checks how etcd is spoken to.
func settleEtcd(m *job.Meeting, words *ownWords, wrong *problems) {
	if m.Backend != backendEtcd {
		m.Etcd = defaultMeeting("").Etcd
		return
	}
	e := &m.Etcd
	for _, pair := range []struct {
		one, other value
		has, lacks bool
	}{
		{words.EtcdUser, words.EtcdPasswordFile, e.User != "", e.PasswordFile == ""},
		{words.EtcdPasswordFile, words.EtcdUser, e.PasswordFile != "", e.User == ""},
		{words.EtcdCert, words.EtcdKey, e.Cert != "", e.CertKey == ""},
		{words.EtcdKey, words.EtcdCert, e.CertKey != "", e.Cert == ""},
	} {
		if pair.has && pair.lacks {
			wrong.add(fmt.Errorf("cannot use %s without --%s", pair.one.written(), pair.other.option.name))
		}
	}
	files := e.CACert != "" || e.Cert != "" || e.CertKey != ""
	if m.Conf["protocol"] == "http" && (files || e.TLS) {
		wrong.add(errors.New("cannot use --rdzv-conf protocol=http with certificates or etcds://: they are for TLS, which is " +
			"protocol=https"))
	}
	e.TLS = e.TLS || files
}

// placeAlone puts the one endpoint of a node that meets nobody where its store listens.
func placeAlone(m *job.Meeting) error {
	if len(m.Endpoints) > 1 {
		return errors.New("one node has one endpoint")
	}
	if len(m.Endpoints) == 1 {
		m.Host, m.Port, m.Endpoints = m.Endpoints[0].Host, m.Endpoints[0].Port, nil
	}
	return nil
}

// nativeMeeting finds how the nodes of muster's own run command meet: by --rdzv, or by fixed ranks.
func nativeMeeting(r *Request, words *ownWords, wrong *problems) {
	j, m := &r.Job, &r.Job.Meeting
	url := words.Rdzv
	switch {
	case url.given:
		// A platform's variables may name a master for all jobs; who types both wants two things.
		for _, word := range []value{words.MasterAddr, words.MasterPort} {
			if word.source.Kind == job.FromFlag {
				wrong.add(fmt.Errorf("cannot use %s with --rdzv: the URL says where the nodes meet; leave one of them out",
					word.written()))
			}
		}
		m.Host, m.Port = "", 0
	case r.SimulateNodes > 0: // at a place that is found when they start
	case j.Nodes.Max > 1 && m.Host != "" && m.NodeRank >= 0:
		m.Backend = backendStatic
		if !words.MasterPort.given {
			m.Port = staticPort
		}
		list, err := parseEndpoints(job.Endpoint{Host: m.Host, Port: m.Port}.String(), staticPort)
		if err != nil {
			wrong.add(fmt.Errorf("cannot use --master-addr %s and --master-port %d: %w", m.Host, m.Port, err))
		}
		m.Endpoints, m.Host, m.Port = list, "", 0
	case j.Nodes.Max > 1:
		if _, err := parseNodes(words.NNodes.text); err != nil {
			return // that is what is wrong
		}
		hint := "give --hosts HOST,... to start all of them from here; or --rdzv c10d://HOST:29400 and --run-id NAME, the same on all " +
			"nodes; or --node-rank N and --master-addr HOST"
		if r.Platform != nil && len(r.Platform.Notes) > 0 {
			hint += fmt.Sprintf(" (platform %s: %s)", r.Platform.Name, strings.Join(r.Platform.Notes, "; "))
		}
		wrong.add(errhint.With(fmt.Errorf("cannot use %s: nothing says how the nodes meet", words.NNodes.written()), hint))
		return
	}
	if m.Backend == backendStatic && m.NodeRank < 0 && j.Nodes.Max > 1 {
		wrong.add(fmt.Errorf("cannot use %s without --node-rank: give this node's rank, from 0 to %d", url.written(), j.Nodes.Max-1))
	}
	if m.Backend == backendStatic && len(m.Endpoints) > 1 {
		wrong.add(fmt.Errorf("cannot use %s: a static rendezvous has one endpoint, on node 0", url.written()))
	}
	if m.Backend != backendStatic && m.Backend != backendStandalone {
		if r.SimulateNodes == 0 {
			m.Prefers = m.NodeRank + 1
		}
		m.NodeRank = -1
	}
	settleMeeting(r, words, wrong)
	if j.Alone() {
		if m.NodeRank > 0 {
			wrong.add(fmt.Errorf("cannot use %s: one node has only node rank 0", words.NodeRank.written()))
		}
		if err := placeAlone(m); err != nil {
			wrong.add(fmt.Errorf("cannot use %s: %w", url.written(), err))
		}
		return
	}
	if r.SimulateNodes == 0 { // the others know a random one, too
		nativeRunID(r, words, wrong)
	}
}

// nativeRunID makes sure that all nodes have the same name for the job: a random one would be another on each.
func nativeRunID(r *Request, words *ownWords, wrong *problems) {
	j := &r.Job
	switch {
	case j.RunID != "":
	case j.Meeting.Backend == backendStatic:
		j.RunID = "none" // as torchrun's
		r.tell(&words.RunID, j.RunID, job.Source{})
	default:
		wrong.add(errhint.With(errors.New("cannot start a job of several nodes without --run-id"),
			"give it a name that no other job at this meeting place has, the same on all nodes, such as --run-id "+
				strings.ToLower(j.Meeting.Backend)+"-job-7"))
	}
}
