package dialect

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"muster/internal/lazyregexp"
	"muster/internal/platform"
)

func nodeSettings(w *ownWords) []option {
	return []option{
		{
			name: "nnodes", word: &w.NNodes, frequent: true, inside: insideMeeting, aliases: []string{"--nodes"}, arg: "N|MIN:MAX",
			def: "1", group: groupNodes, use: always,
			help: "Number of nodes, or the least and the most of them: then nodes may come and go while the job runs. Several nodes are " +
				"started by --hosts, or meet by --rdzv, or by --node-rank and --master-addr.",
			set: func(r *Request, text string) (err error) {
				r.Job.Nodes, err = parseNodes(text)
				return err
			},
		},
		{
			name: "standalone", word: &w.Standalone, kind: kindFlag, def: "false", group: groupNodes, use: always,
			help: "This node alone, as without any flag about other nodes: torchrun's word for it. What a platform says of other nodes " +
				"does not count.",
			set: checkSwitch,
		},
		{
			name: "nproc-per-node", word: &w.NProcPerNode, frequent: true, short: "n", arg: "N|auto|cpu|gpu", def: "1", group: groupNodes,
			use: always,
			help: "Workers on each node: a number, one per accelerator (gpu), one per CPU (cpu), or one per accelerator where there is " +
				"one and else per CPU (auto).",
			set: func(r *Request, text string) (err error) {
				r.Job.Procs, err = parseProcs(text)
				return err
			},
		},
		{
			name: "node-rank", word: &w.NodeRank, frequent: true, inside: insideMeeting, kind: kindInt, arg: "N", group: groupNodes,
			use: use{rankOf},
			help: "Rank of this node, from 0, where a fixed number of nodes meets without --rdzv; the store is on node 0. With --rdzv " +
				"the node has this rank unless another one asks for it, too, or fewer nodes are there, and says so otherwise.",
			set: func(r *Request, text string) error { return setCount(&r.Job.Meeting.NodeRank, text) },
		},
		{
			name: "master-addr", word: &w.MasterAddr, frequent: true, inside: insideMeeting, arg: "HOST", group: groupNodes,
			use: use{masterHere},
			help: "Address that the store listens on and that workers see as MASTER_ADDR: of node 0, where there are several. Default: " +
				"127.0.0.1.",
			set: func(r *Request, text string) error {
				host, _, err := parseEndpoint("[" + strings.Trim(text, "[]") + "]")
				if err != nil {
					return fmt.Errorf("%q is neither a host name nor an IP address", text)
				}
				r.Job.Meeting.Host = host
				return nil
			},
		},
		{
			name: "master-port", word: &w.MasterPort, inside: insideMeeting, kind: kindInt, arg: "PORT", group: groupNodes,
			use:  use{masterHere},
			help: "Port of the store, MASTER_PORT of the workers. Default: a free one; 29500 for several nodes.",
			set: func(r *Request, text string) error {
				n, err := pyInt(text)
				if err != nil || n < 0 || n > 65535 {
					return errors.New("give a number from 0 to 65535")
				}
				r.Job.Meeting.Port, r.Job.Meeting.Backend = n, backendStatic
				return nil
			},
		},
		{
			name: "platform", word: &w.Platform, inside: insideMeeting, arg: "auto|none|NAME", def: platform.Auto, group: groupNodes,
			use: always,
			help: "Batch system, cloud or operator whose variables say what is not given here: how many nodes there are, which this is, " +
				"and where they meet. auto: the first of these that is found; none: do not look. Names: " + strings.Join(platform.Names(),
				", ") + ".",
			set: func(_ *Request, text string) error {
				return oneOf(text, append([]string{platform.Auto, platform.None}, platform.Names()...)...)
			},
		},
		{
			name: "spares", word: &w.Spares, kind: kindInt, arg: "N", def: "0", group: groupNodes, anywhere: true,
			use:  use{byAgents, severalNodes, spareNodes},
			help: "Nodes held back while there are more than the minimum, ready to take a lost one's place.",
			set:  func(r *Request, text string) error { return setCount(&r.Job.Meeting.Spares, text) },
		},
		{
			name: "node-unit", word: &w.NodeUnit, dlrover: true, kind: kindInt, arg: "N", def: "1", group: groupNodes, anywhere: true,
			use:  use{byAgents, severalNodes},
			help: "Let only a multiple of N nodes train; the rest waits.",
			set: func(r *Request, text string) error {
				if err := setCount(&r.Job.Meeting.NodeUnit, text); err != nil || r.Job.Meeting.NodeUnit == 0 {
					return errors.New("give a number from 1")
				}
				return nil
			},
		},
		{
			name: "topology-file", word: &w.TopologyFile, arg: "FILE", group: groupNodes, anywhere: true,
			use: use{byAgents, severalNodes, looseRanks},
			help: "Rank the nodes so that neighbours share a switch: FILE has a line for each node, with the switch it hangs on, the " +
				"switch above that, and its address.",
			set: func(r *Request, text string) error { r.Job.Meeting.Topology = text; return nil },
		},
		{
			name: "accelerator", word: &w.Accelerator, arg: "auto|fake:FILE", def: "auto", group: groupNodes, anywhere: true, use: always,
			help: "Where accelerators are counted: on this machine, or in the spec of made-up ones in FILE. MUSTER_FAKE=FILE says the " +
				"same in every dialect.",
			set: func(r *Request, text string) error {
				file, fake := strings.CutPrefix(text, "fake:")
				if text == "auto" {
					return nil
				}
				if !fake || file == "" {
					return errors.New("give auto, or fake:FILE")
				}
				r.Job.Fake = file
				return nil
			},
		},
		{
			name: "simulate-nodes", word: &w.SimulateNodes, inside: insideRefused, kind: kindInt, arg: "N", group: groupNodes, use: always,
			help: "Rehearse a job of N nodes, from 2 to 64, on this machine: each has an agent, and the accelerators that the fake spec " +
				"gives its name. Needs --accelerator fake:FILE.",
			set: func(r *Request, text string) error {
				if err := setCount(&r.SimulateNodes, text); err != nil || r.SimulateNodes < 2 || r.SimulateNodes > maxSimulated {
					return fmt.Errorf("give a number from 2 to %d", maxSimulated)
				}
				return nil
			},
		},
		{
			name: "fake-on-real", word: &w.FakeOnReal, kind: kindFlag, def: "false", group: groupNodes, anywhere: true, use: use{faked},
			help: "Allow a fake accelerator on a machine that has a real one.",
			set:  func(r *Request, text string) error { return setSwitch(&r.Job.FakeOnReal, text) },
		},
	}
}

// maxSimulated bounds the nodes that are simulated: they share one machine.
const maxSimulated = 64

// meetingSettings say how several nodes meet.
func meetingSettings(w *ownWords) []option {
	return []option{
		{
			name: "rdzv", word: &w.Rdzv, frequent: true, inside: insideMeeting, arg: "URL", group: groupRdzv, use: always,
			help: "Where several nodes meet, the same on all of them: c10d://HOST[:PORT] (a store on that node, port 29400, which " +
				"agents of torchrun may share; hosts that take over when it dies follow with commas), muster://… (such a store for " +
				"muster only), etcd://HOST[:PORT],… (v3; etcds:// with TLS), static://HOST[:PORT] (node 0, with --node-rank).",
			set: func(r *Request, text string) error { return parseRdzv(&r.Job.Meeting, text) },
		},
		{
			name: "rdzv-conf", word: &w.RdzvConf, inside: insideMeeting, kind: kindList, arg: "KEY=VALUE,...", group: groupRdzv,
			use:  use{confRead},
			help: "Settings of the meeting as torchrun has them, such as join_timeout=600 or is_host=1.",
			set:  func(*Request, string) error { return nil }, // applyConf reads it, before all others
		},
		{
			name: "local-addr", word: &w.LocalAddr, inside: insideMeeting, arg: "HOST", group: groupRdzv,
			use:  use{notSimulated, severalNodes, strongest("--iface", &w.LocalAddr, &w.Iface)},
			help: "Address by which the other nodes reach this one. Default: the one from which the meeting place is reached.",
			set: func(r *Request, text string) (err error) {
				r.Job.Meeting.LocalAddr, err = parseLocalAddr(text)
				return err
			},
		},
		{
			name: "iface", word: &w.Iface, inside: insideMeeting, arg: "NAME", group: groupRdzv, anywhere: true,
			use:  use{byAgents, severalNodes, strongest("--local-addr", &w.Iface, &w.LocalAddr)},
			help: "Network interface by whose address the other nodes reach this one, such as eth0.",
			set: func(r *Request, text string) error {
				if !ifaceName().MatchString(text) {
					return errors.New("give the name of one network interface, such as eth0")
				}
				r.Job.Meeting.Iface = text
				return nil
			},
		},
		{
			name: "export-iface", word: &w.ExportIface, kind: kindFlag, def: "false", group: groupRdzv, anywhere: true,
			use: use{byAgents, severalNodes},
			help: "Tell NCCL and Gloo in the workers to use the interface by whose address the other nodes reach this one: " +
				"NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, where they are not set.",
			set: func(r *Request, text string) error { return setSwitch(&r.Job.Meeting.ExportIface, text) },
		},
		{
			name: "join-timeout", word: &w.JoinTimeout, kind: kindTime, arg: "TIME", def: "600s", group: groupRdzv, anywhere: true,
			use:  use{byAgents, severalNodes},
			help: "How long nodes wait for each other; then the job ends with status 75.",
			set:  func(r *Request, text string) error { return setPositive(&r.Job.Meeting.JoinTimeout, text, time.Second) },
		},
		{
			name: "last-call", word: &w.LastCall, kind: kindTime, arg: "TIME", group: groupRdzv, anywhere: true,
			use: use{byAgents, severalNodes, elasticNodes},
			help: "How long the least number of nodes waits for more after the last one came. Default: 3s; 30s where agents of torchrun " +
				"take part.",
			set: func(r *Request, text string) error {
				return setPositive(&r.Job.Meeting.LastCall, text, time.Millisecond)
			},
		},
		{
			name: "keep-alive", word: &w.KeepAlive, kind: kindTime, arg: "TIME", group: groupRdzv, anywhere: true,
			use: use{byAgents, severalNodes},
			help: "Time between two heartbeats of a node; it is lost when 3 are missing. Default: 2s; 5s where agents of torchrun take " +
				"part.",
			set: func(r *Request, text string) error {
				return setPositive(&r.Job.Meeting.KeepAlive, text, 10*time.Millisecond)
			},
		},
		{
			name: "token-file", word: &w.TokenFile, frequent: true, inside: insideMeeting, arg: "FILE", group: groupRdzv, anywhere: true,
			use:  use{byAgents, guarded},
			help: "File with the job's token, the same on all nodes: who has it is let in where muster's own services are offered.",
			set:  func(r *Request, text string) error { r.Job.Meeting.TokenFile = text; return notBlank(text, "a file") },
		},
		{
			name: "store-allow", word: &w.StoreAllow, kind: kindList, arg: "CIDR,...", group: groupRdzv, anywhere: true,
			use: use{servesStore},
			help: "Networks whose clients the store serves, such as 10.0.0.0/8,fd00::/8. Default: all that reach it; on one node, " +
				"processes of this user and of root.",
			set: func(r *Request, text string) (err error) {
				r.Job.Meeting.StoreAllow, err = ParseNetworks(text)
				return err
			},
		},
		{
			name: "store-limit", word: &w.StoreLimit, arg: "SIZE", def: "0", group: groupRdzv, anywhere: true,
			use: use{byAgents, severalNodes},
			help: "How many bytes the store holds at most, such as 4GiB; a client that would add more is closed, and named in the log. " +
				"0: 1 GiB, or a quarter of the machine's memory where that is less.",
			set: func(r *Request, text string) (err error) {
				r.Job.Meeting.StoreLimit, err = ParseStoreLimit(text)
				return err
			},
		},
		{
			name: "etcd-user", word: &w.EtcdUser, arg: "NAME", group: groupRdzv, anywhere: true, use: use{byEtcd},
			help: "User of etcd; the password is read from --etcd-password-file.",
			set:  func(r *Request, text string) error { r.Job.Meeting.Etcd.User = text; return nil },
		},
		{
			name: "etcd-password-file", word: &w.EtcdPasswordFile, arg: "FILE", group: groupRdzv, anywhere: true, use: use{byEtcd},
			help: "File with the password of --etcd-user.",
			set:  func(r *Request, text string) error { r.Job.Meeting.Etcd.PasswordFile = text; return nil },
		},
		{
			name: "etcd-cacert", word: &w.EtcdCACert, arg: "FILE", group: groupRdzv, anywhere: true, use: use{byEtcd},
			help: "Certificates that etcd's must be signed by (PEM); asks for TLS, as the next two do.",
			set:  func(r *Request, text string) error { r.Job.Meeting.Etcd.CACert = text; return nil },
		},
		{
			name: "etcd-cert", word: &w.EtcdCert, arg: "FILE", group: groupRdzv, anywhere: true, use: use{byEtcd},
			help: "Certificate by which etcd knows this client (PEM).",
			set:  func(r *Request, text string) error { r.Job.Meeting.Etcd.Cert = text; return nil },
		},
		{
			name: "etcd-key", word: &w.EtcdKey, arg: "FILE", group: groupRdzv, anywhere: true, use: use{byEtcd},
			help: "Private key of --etcd-cert (PEM).",
			set:  func(r *Request, text string) error { r.Job.Meeting.Etcd.CertKey = text; return nil },
		},
	}
}

// ifaceName is what Linux takes for an interface's name: up to 15 bytes without blanks and slashes.
var ifaceName = lazyregexp.New(`^[^\s/,]{1,15}$`)

// setPositive is setTime for times that cannot be below least.
func setPositive(to *time.Duration, text string, least time.Duration) error {
	d, err := parseTime(text)
	if err == nil && d < least {
		err = fmt.Errorf("give a time of at least %v", least)
	}
	*to = d
	return err
}

// parseLocalAddr reads a host name or an address, which may stand in brackets.
func parseLocalAddr(text string) (string, error) {
	host := strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	}
	if err := checkHost(host); err != nil {
		return "", err
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.Unmap().IsUnspecified() {
		return "", fmt.Errorf("the other nodes cannot reach %s: give an address of this machine", host)
	}
	return host, nil
}

// ParseNetworks reads a list of networks; a lone address is a network of one.
func ParseNetworks(text string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		p, err := netip.ParsePrefix(item)
		if addr, lone := netip.ParseAddr(item); lone == nil && addr.Zone() == "" {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q is no network: write it as ADDRESS/BITS, such as 10.0.0.0/8 or fd00::/8", item)
		}
		if mapped := p.Addr(); mapped.Is4In6() { // clients are compared as IPv4
			if p.Bits() < 96 {
				return nil, fmt.Errorf("%q is wider than IPv4: write the IPv4 network as 10.0.0.0/8", item)
			}
			p = netip.PrefixFrom(mapped.Unmap(), p.Bits()-96)
		}
		if p.Masked() != p {
			return nil, fmt.Errorf("%q has more bits than it counts: did you mean %s?", item, p.Masked())
		}
		list = append(list, p)
	}
	return list, nil
}
