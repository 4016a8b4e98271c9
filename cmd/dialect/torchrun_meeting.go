package dialect

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
)

func (t *torchrunJob) nodes() {
	var err error
	t.job.Nodes, err = parseNodes(t.w.nnodes.text)
	t.refuse(&t.w.nnodes, err)
	t.job.Procs, err = parseProcs(t.w.nprocPerNode.text)
	t.refuse(&t.w.nprocPerNode, err)
}

// staticTimeout is how long torchrun 2.15.0's static and etcd rendezvous wait for a node.
const staticTimeout = 15 * time.Minute

// backend finds how the agents meet. What torchrun does on one node is kept: --standalone, and the static backend
// without an endpoint and a port (PyTorch 2.14 and newer), take a free port and a name of their own.
func (t *torchrunJob) backend() {
	v := t.w
	backend := v.rdzvBackend.text
	t.job.RunID = v.rdzvID.text
	switch {
	case v.standalone.on:
		t.job.RunID = ""
		t.ignored("--standalone", v.rdzvBackend, v.rdzvEndpoint, v.rdzvID)
		t.nodeRankIgnored()
		if t.job.Nodes.Min > 1 {
			t.refuse(&t.w.nnodes, errhint.With(errors.New("--standalone is one node by itself"),
				"leave --standalone out and say where the nodes meet, or give --nnodes 1"))
		}
		backend = backendStandalone
	case backend == backendStatic:
		if v.rdzvEndpoint.text == "" && v.masterPort.none && t.job.Nodes.Max <= 1 {
			// torchrun always makes a new name up here; a name that was asked for is kept.
			if !v.rdzvID.explicit() && t.parser.prog != dlroverRun { // whose agents make none up
				t.job.RunID = ""
			}
			t.ignored("a static rendezvous without --master-port", v.masterAddr)
			backend = backendStandalone
		}
	case backend == backendC10d, backend == backendMuster:
	case backend == backendEtcd, backend == "etcd-v2", backend == "etcd-v3":
		backend = backendEtcd
	default:
		t.refuse(&t.w.rdzvBackend,
			errhint.With(errors.New("choose static, c10d, etcd or muster: backends from Python packages cannot be loaded by muster"),
				"on one node, leave the flag out or give --standalone"))
		backend = backendC10d // to look for further mistakes
	}
	t.job.Meeting = defaultMeeting(backend)
	t.job.Meeting.DLRover = t.master
	t.job.Meeting.WorkerPorts = t.ports
	if backend != backendStatic && backend != backendStandalone {
		if rank := v.nodeRank; t.job.Nodes.Max <= 1 {
			t.nodeRankIgnored()
		} else if rank.explicit() && rank.n >= 0 {
			t.job.Meeting.Prefers = rank.n + 1
		}
	}
	if backend == backendStatic || backend == backendEtcd {
		t.job.Meeting.JoinTimeout = staticTimeout
	}
}

// place finds where the agents meet, or where the store of one node listens: c10d on its endpoint; static on its
// endpoint or --master-addr and --master-port.
func (t *torchrunJob) place() {
	m, v := &t.job.Meeting, t.w
	alone, endpoint, local := t.job.Alone(), v.rdzvEndpoint.text, v.localAddr.text
	missing := strings.TrimSpace(endpoint) == ""
	var err error
	switch {
	case !alone && missing && len(t.job.Hosts.Nodes) > 0: // who starts them says the rest
	case m.Backend == backendStandalone:
		m.Host = local
		if m.IsHost != nil && !*m.IsHost {
			t.warn("--rdzv-conf: is_host=%s has no effect on one node without an endpoint", m.Conf["is_host"])
		}
	case m.Backend == backendStatic:
		if !alone && endpoint == "" && !v.masterAddr.explicit() && v.masterPort.none {
			if t.job.Nodes.Min != t.job.Nodes.Max {
				return // which is refused as it is
			}
			t.nowhere("give --master-addr HOST (and --master-port PORT), or --rdzv-endpoint HOST:PORT, the same on all nodes; and " +
				"--node-rank N")
			return
		}
		host, port, word, err := t.staticAddress(endpoint)
		switch {
		case strings.Contains(endpoint, ","):
			err = errors.New("a static rendezvous has one endpoint, on node 0")
		case err != nil:
		case port < 0:
			err = errhint.With(errors.New("the port is missing"), "write HOST:PORT, or give --master-addr and --master-port")
		case alone:
			m.Host, m.Port = host, port
		default:
			m.Endpoints, err = parseEndpoints(job.Endpoint{Host: host, Port: port}.String(), staticPort)
		}
		t.refuse(word, err)
	case m.Backend == backendEtcd:
		if missing {
			t.refuse(&t.w.rdzvBackend,
				errhint.With(errors.New("nothing says where etcd is"), "give --rdzv-endpoint HOST:2379, several with commas between"))
			return
		}
		m.Endpoints, err = parseEndpoints(endpoint, etcdPort)
		t.refuse(&t.w.rdzvEndpoint, err)
	case alone:
		m.Port = c10dPort
		if !missing {
			m.Host, m.Port, err = parseEndpoint(endpoint)
			if strings.Contains(endpoint, ",") {
				err = errors.New("one node has one endpoint")
			}
			t.refuse(&t.w.rdzvEndpoint, err)
			if m.Port < 0 {
				m.Port = c10dPort
			}
		}
		if local != "" {
			m.Host = local
		}
	case missing:
		t.nowhere("give --rdzv-endpoint HOST:29400, the same on all nodes, where HOST is one of them")
	default:
		m.Endpoints, err = parseEndpoints(endpoint, c10dPort)
		t.refuse(&t.w.rdzvEndpoint, err)
	}
}

// nowhere refuses several nodes that would each meet itself: torchrun takes the own machine where no other is named.
func (t *torchrunJob) nowhere(instead string) {
	if t.job.Dialect == dlroverRun {
		instead = "set DLROVER_MASTER_ADDR=HOST:PORT to where muster store listens, or " + instead
	}
	t.refuse(&t.w.nnodes, errhint.With(errors.New("nothing says where the nodes meet"), instead))
}

// settle holds what remains against each other. words are those of muster's own settings.
func (t *torchrunJob) settle(words *ownWords) {
	m, v := &t.job.Meeting, t.w
	all := *words
	for own, theirs := range map[*value]value{
		&all.NNodes: t.w.nnodes, &all.NodeRank: t.w.nodeRank, &all.LocalAddr: t.w.localAddr,
	} {
		if own.say(theirs.text, theirs.source); !theirs.explicit() {
			own.source = job.Source{}
		}
	}
	switch {
	case m.Backend == backendStandalone && !v.standalone.on && v.nodeRank.n != 0:
		t.refuse(&t.w.nodeRank, errors.New("one node has only node rank 0"))
	case m.Backend != backendStatic:
	case v.nodeRank.n < 0:
		t.refuse(&t.w.nodeRank, errors.New("node ranks begin at 0"))
	case t.job.Alone() && v.nodeRank.n > 0:
		t.refuse(&t.w.nodeRank, errors.New("one node has only node rank 0"))
	default:
		m.NodeRank = v.nodeRank.n
	}
	if !t.job.Alone() {
		if local := v.localAddr.text; local != "" {
			var err error
			m.LocalAddr, err = parseLocalAddr(local)
			t.refuse(&t.w.localAddr, err)
		}
		if t.job.RunID == "" {
			t.refuse(&t.w.rdzvID, errors.New("a job of several nodes needs a name, the same on all of them"))
		}
	}
	settleMeeting(&t.req, &all, &t.wrong)
}

// staticAddress is the endpoint, or --master-addr and --master-port, and the flag to name when it cannot be used. port
// is -1 where an endpoint has none.
func (t *torchrunJob) staticAddress(endpoint string) (host string, port int, word *value, err error) {
	if endpoint != "" {
		host, port, err = parseEndpoint(endpoint)
		return host, port, &t.w.rdzvEndpoint, err
	}
	port = staticPort
	if v := t.w.masterPort; !v.none {
		port = v.n
	}
	if port < 0 || port > 65535 {
		return "", 0, &t.w.masterPort, errors.New("give a number from 0 to 65535")
	}
	host, port, err = parseEndpoint(t.w.masterAddr.text + ":" + strconv.Itoa(port))
	if err == nil && port == 0 {
		return host, port, &t.w.masterPort, nil
	}
	return host, port, &t.w.masterAddr, err
}

// ignored warns of flags that were typed, or stand in variables of muster, and have no effect. Operators set torchrun's
// own variables for all jobs, so they are passed over in silence, as torchrun does.
func (t *torchrunJob) ignored(by string, words ...value) {
	for _, word := range words {
		switch {
		case word.source.Kind == job.FromFlag:
			t.warn("--%s has no effect with %s", word.option.name, by)
		case word.ours():
			t.warn("%s has no effect with %s", word.source.Name, by)
		}
	}
}

func (t *torchrunJob) nodeRankIgnored() {
	if v := t.w.nodeRank; v.n != 0 {
		t.warn("%s has no effect on one node", v.written())
	}
}

// meetingBackends are the backends that completion offers.
func meetingBackends() []string {
	return []string{backendStatic, backendC10d, backendMuster, backendEtcd}
}
