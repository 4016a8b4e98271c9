package dialect_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/launch/job"
)

// meeting is what a job that says nothing of its meeting has, changed by change.
func meeting(change func(*job.Meeting)) job.Meeting {
	m := job.Meeting{
		NodeRank: -1, JoinTimeout: 600 * time.Second, CloseTimeout: 30 * time.Second, ReadTimeout: 60 * time.Second,
		HeartbeatTimeout: 5 * time.Second, KeepAliveAttempts: 3, Etcd: job.EtcdAccess{Prefix: "/muster/"}, Conf: map[string]string{},
	}
	change(&m)
	return m
}

// sameNetworks compares what cmp cannot look into.
var sameNetworks = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// wantMeeting reads a whole command line and compares how its job meets.
func wantMeeting(t *testing.T, env, line string, want job.Meeting, nodes job.Range, alone bool) job.Job {
	t.Helper()
	req, err := own(strings.Fields(env), "", line)
	if err != nil {
		t.Errorf("%s %s: %v", env, line, err)
		return job.Job{}
	}
	job := req.Job
	if diff := cmp.Diff(want, job.Meeting, sameNetworks); diff != "" {
		t.Errorf("%s %s (-want +got):\n%s", env, line, diff)
	}
	if job.Nodes != nodes || job.Alone() != alone {
		t.Errorf("%s %s: nodes %v, alone %v", env, line, job.Nodes, job.Alone())
	}
	return job
}

func at(list ...job.Endpoint) []job.Endpoint { return list }

func TestTorchrunMeetsOthers(t *testing.T) {
	static := func(rank int, e job.Endpoint) job.Meeting {
		return meeting(func(m *job.Meeting) {
			m.Backend, m.NodeRank, m.Endpoints, m.JoinTimeout = "static", rank, at(e), 900*time.Second
		})
	}
	two, elastic := job.Range{Min: 2, Max: 2}, job.Range{Min: 2, Max: 4}
	for _, c := range []struct {
		env, line string
		want      job.Meeting
		nodes     job.Range
	}{
		{"", "--nnodes 2 --node-rank 1 --master-addr n0 --master-port 29501 t.py", static(1, job.Endpoint{Host: "n0", Port: 29501}), two},
		{"", "--nnodes 2:2 --master-addr n0 t.py", static(0, job.Endpoint{Host: "n0", Port: 29500}), two},
		{"", "--nnodes 2 --rdzv-endpoint [fd00::1]:7 --node_rank=1 t.py", static(1, job.Endpoint{Host: "fd00::1", Port: 7}), two},
		{"", "--nnodes 2 --rdzv-endpoint [fe80::1%eth0]:7 t.py", static(0, job.Endpoint{Host: "fe80::1%eth0", Port: 7}), two},
		{"PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=n0 PET_MASTER_PORT=5", "t.py", static(1, job.Endpoint{Host: "n0", Port: 5}), two},
		{"", "--nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint n0 t.py", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints = "c10d", at(job.Endpoint{Host: "n0", Port: 29400})
		}), elastic},
		{"", "--nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint n0:1,n1,[::2]:3 t.py", meeting(func(m *job.Meeting) {
			m.Backend = "c10d"
			m.Endpoints = at(job.Endpoint{Host: "n0", Port: 1}, job.Endpoint{Host: "n1", Port: 29400}, job.Endpoint{Host: "::2", Port: 3})
		}), elastic},
		{"", "--nnodes 2:4 --rdzv-backend muster --rdzv-endpoint n0 --local-addr [fd00::5] t.py", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.LocalAddr = "muster", at(job.Endpoint{Host: "n0", Port: 29400}), "fd00::5"
		}), elastic},
		{"", "--nnodes 1 --rdzv-backend c10d --rdzv-endpoint n0 --rdzv-conf is_host=no t.py", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.IsHost, m.Conf = "c10d", at(job.Endpoint{Host: "n0", Port: 29400}), new(bool),
				map[string]string{"is_host": "no"}
		}), job.Range{Min: 1, Max: 1}},
		{
			"",
			"--nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint n0 --rdzv-conf " +
				"join_timeout=1,last_call_timeout=2,close_timeout=3,heartbeat_timeout=4,keep_alive_interval=5," +
				"keep_alive_max_attempt=6,read_timeout=7,is_host=T,store_type=tcp,timeout=9 t.py",
			meeting(func(m *job.Meeting) {
				yes := true
				m.Backend, m.Endpoints = "c10d", at(job.Endpoint{Host: "n0", Port: 29400})
				m.JoinTimeout, m.LastCall, m.CloseTimeout, m.HeartbeatTimeout = time.Second, 2*time.Second, 3*time.Second, 4*time.Second
				m.KeepAlive, m.KeepAliveAttempts, m.ReadTimeout, m.IsHost = 5*time.Second, 6, 7*time.Second, &yes
				m.Conf = map[string]string{
					"join_timeout": "1", "last_call_timeout": "2", "close_timeout": "3", "heartbeat_timeout": "4",
					"keep_alive_interval": "5", "keep_alive_max_attempt": "6", "read_timeout": "7", "is_host": "T", "store_type": "tcp",
					"timeout": "9",
				}
			}), elastic,
		},
		{"", "--nnodes 2 --master-addr n0 --rdzv-conf timeout=33,join_timeout=4 t.py", meeting(func(m *job.Meeting) {
			m.Backend, m.NodeRank, m.Endpoints, m.JoinTimeout = "static", 0, at(job.Endpoint{Host: "n0", Port: 29500}), 33*time.Second
			m.Conf = map[string]string{"timeout": "33", "join_timeout": "4"}
		}), two},
		{"", "--nnodes 2:4 --rdzv-backend etcd-v2 --rdzv-endpoint e0,e1:5 t.py", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.JoinTimeout = "etcd", at(job.Endpoint{Host: "e0", Port: 2379}, job.Endpoint{Host: "e1", Port: 5}),
				900*time.Second
		}), elastic},
		{
			"",
			"--rdzv-backend etcd-v3 --rdzv-endpoint e0 --rdzv-conf " +
				"protocol=https,ssl_cert=c.pem,ssl_cert_key=k.pem,ca_cert=a.pem,etcd_prefix=/jobs t.py", meeting(func(m *job.Meeting) {
				m.Backend, m.Endpoints, m.JoinTimeout = "etcd", at(job.Endpoint{Host: "e0", Port: 2379}), 900*time.Second
				m.Etcd = job.EtcdAccess{TLS: true, CACert: "a.pem", Cert: "c.pem", CertKey: "k.pem", Prefix: "/jobs/"}
				m.Conf = map[string]string{
					"protocol": "https", "ssl_cert": "c.pem", "ssl_cert_key": "k.pem", "ca_cert": "a.pem",
					"etcd_prefix": "/jobs",
				}
			}),
			job.Range{Min: 1, Max: 1},
		},
		{
			"", "--nnodes 2:4 --rdzv-backend etcd --rdzv-endpoint e0 --rdzv-conf cacert=a.pem,cert=c.pem,key=k.pem t.py",
			meeting(func(m *job.Meeting) {
				m.Backend, m.Endpoints, m.JoinTimeout = "etcd", at(job.Endpoint{Host: "e0", Port: 2379}), 900*time.Second
				m.Etcd = job.EtcdAccess{TLS: true, CACert: "a.pem", Cert: "c.pem", CertKey: "k.pem", Prefix: "/muster/"}
				m.Conf = map[string]string{"cacert": "a.pem", "cert": "c.pem", "key": "k.pem"}
			}), elastic,
		},
	} {
		job := wantMeeting(t, c.env, "torchrun "+c.line, c.want, c.nodes, false)
		if job.RunID != "none" || len(job.Warnings) > 1 {
			t.Errorf("%s %s: run id %q, warnings %q", c.env, c.line, job.RunID, job.Warnings)
		}
	}
}

func TestNativeMeetsOthers(t *testing.T) {
	n0, two := job.Endpoint{Host: "n0", Port: 29400}, job.Range{Min: 2, Max: 2}
	c10d := meeting(func(m *job.Meeting) { m.Backend, m.Endpoints = "c10d", at(n0) })
	for _, c := range []struct {
		env, line string
		want      job.Meeting
		nodes     job.Range
		alone     bool
		runID     string
	}{
		{"", "--nnodes 2 --rdzv c10d://n0 --run-id j x", c10d, two, false, "j"},
		{"", "--nnodes 2 --rdzv C10D://n0:29400/ --rdzv-id j x", c10d, two, false, "j"},
		{
			"PET_NNODES=2 MUSTER_RDZV=c10d://n0 PET_RDZV_ID=j PET_MASTER_ADDR=m PET_MASTER_PORT=7 PET_NODE_RANK=1", "x",
			meeting(func(m *job.Meeting) { m.Backend, m.Endpoints, m.Prefers = "c10d", at(n0), 2 }), two,
			false, "j",
		},
		{"MUSTER_RUN_ID=j MUSTER_RDZV_ID=k", "--nnodes 2 --rdzv c10d://n0 x", c10d, two, false, "j"},
		{"", "--nnodes 2:4 --rdzv muster://n0,[fd00::1]:3 --run-id j x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints = "muster", at(n0, job.Endpoint{Host: "fd00::1", Port: 3})
		}), job.Range{Min: 2, Max: 4}, false, "j"},
		{"", "--nnodes 2 --rdzv etcds://e0,e1:1 --run-id j --etcd-user u --etcd-password-file p x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints = "etcd", at(job.Endpoint{Host: "e0", Port: 2379}, job.Endpoint{Host: "e1", Port: 1})
			m.Etcd.TLS, m.Etcd.User, m.Etcd.PasswordFile = true, "u", "p"
		}), two, false, "j"},
		{
			"", "--nnodes 2 --rdzv etcd://e0 --run-id j --etcd-cert c --etcd-key k --etcd-cacert a --rdzv-conf etcd_prefix=p/ x",
			meeting(func(m *job.Meeting) {
				m.Backend, m.Endpoints = "etcd", at(job.Endpoint{Host: "e0", Port: 2379})
				m.Etcd = job.EtcdAccess{TLS: true, CACert: "a", Cert: "c", CertKey: "k", Prefix: "p/"}
				m.Conf = map[string]string{"etcd_prefix": "p/"}
			}), two, false, "j",
		},
		{"", "--nnodes 2 --rdzv etcd://e0 --run-id j --rdzv-conf protocol=https x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.Etcd.TLS = "etcd", at(job.Endpoint{Host: "e0", Port: 2379}), true
			m.Conf = map[string]string{"protocol": "https"}
		}), two, false, "j"},
		{"", "--nnodes 2 --rdzv static://n0 --node-rank 1 x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.NodeRank = "static", at(job.Endpoint{Host: "n0", Port: 29500}), 1
		}), two, false, "none"},
		{"", "--nnodes 2 --node-rank 0 --master-addr [fd00::1] x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.NodeRank = "static", at(job.Endpoint{Host: "fd00::1", Port: 29500}), 0
		}), two, false, "none"},
		{"PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=n0 PET_MASTER_PORT=7", "--run-id j x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.NodeRank = "static", at(job.Endpoint{Host: "n0", Port: 7}), 1
		}), two, false, "j"},
		{
			"",
			"--nnodes 4:8 --spares 1 --node-unit 2 --topology-file topo.txt --keep-alive 1 --last-call 500ms --join-timeout 1m " +
				"--iface eth0 --export-iface --token-file tok --store-allow 10.0.0.0/8,fd00::1,::ffff:192.168.0.0/112 " +
				"--rdzv c10d://n0 --run-id j x",
			meeting(func(m *job.Meeting) {
				m.Backend, m.Endpoints, m.Spares, m.NodeUnit, m.Topology, m.Iface, m.ExportIface, m.TokenFile = "c10d", at(n0), 1, 2,
					"topo.txt", "eth0", true, "tok"
				m.KeepAlive, m.LastCall, m.JoinTimeout = time.Second, 500*time.Millisecond, time.Minute
				m.StoreAllow = []netip.Prefix{
					netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::1/128"),
					netip.MustParsePrefix("192.168.0.0/16"),
				}
			}),
			job.Range{Min: 4, Max: 8},
			false, "j",
		},
		// A spare makes even one node meet.
		{"", "--spares 1 --rdzv c10d://n0 --run-id j x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.Spares = "c10d", at(n0), 1
		}), job.Range{Min: 1, Max: 1}, false, "j"},
		{
			"", "--rdzv c10d://n0:7 x", meeting(func(m *job.Meeting) { m.Backend, m.Host, m.Port = "c10d", "n0", 7 }),
			job.Range{Min: 1, Max: 1},
			true, "",
		},
		{
			"", "--rdzv static://n0 x", meeting(func(m *job.Meeting) { m.Backend, m.Host, m.Port = "static", "n0", 29500 }),
			job.Range{Min: 1, Max: 1},
			true, "",
		},
		{
			"", "--master-port 7 --master-addr n0 x", meeting(func(m *job.Meeting) { m.Backend, m.Host, m.Port = "static", "n0", 7 }),
			job.Range{Min: 1, Max: 1},
			true, "",
		},
		{
			"MUSTER_SPARES=2 MUSTER_KEEP_ALIVE=1", "x", meeting(func(m *job.Meeting) {
				m.Backend, m.KeepAlive = "standalone", time.Second
			}),
			job.Range{Min: 1, Max: 1},
			true, "",
		},
		// Of an address and an interface the stronger source counts.
		{"MUSTER_IFACE=eth0", "--nnodes 2 --rdzv c10d://n0 --run-id j --local-addr 10.0.0.2 x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.LocalAddr = "c10d", at(n0), "10.0.0.2"
		}), two, false, "j"},
		{"PET_LOCAL_ADDR=n7", "--nnodes 2 --rdzv c10d://n0 --run-id j --iface eth0 x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.Iface = "c10d", at(n0), "eth0"
		}), two, false, "j"},
		{"PET_RDZV_CONF=keep_alive_interval=9", "--nnodes 2 --rdzv c10d://n0 --run-id j --keep-alive 1 x", meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.KeepAlive, m.Conf = "c10d", at(n0), time.Second, map[string]string{"keep_alive_interval": "9"}
		}), two, false, "j"},
	} {
		if job := wantMeeting(t, c.env, "run "+c.line, c.want, c.nodes, c.alone); job.RunID != c.runID {
			t.Errorf("%s: run id %q", c.line, job.RunID)
		}
	}
}

// Muster's own settings count in front of torchrun too, beside what torchrun calls them.
func TestMeetingSettingsBesideTorchruns(t *testing.T) {
	line := "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n0 --rdzv-conf " +
		"keep_alive_interval=9,join_timeout=50,last_call_timeout=8 t.py"
	job := wantMeeting(t, "MUSTER_LAST_CALL=3", "--keep-alive 1s --spares 1 "+strings.Replace(line, "keep_alive_interval=9,", "", 1),
		meeting(func(m *job.Meeting) {
			m.Backend, m.Endpoints, m.Spares, m.KeepAlive = "c10d", at(job.Endpoint{Host: "n0", Port: 29400}), 1, time.Second
			m.JoinTimeout, m.LastCall = 50*time.Second, 8*time.Second
			m.Conf = map[string]string{"join_timeout": "50", "last_call_timeout": "8"}
		}), job.Range{Min: 2, Max: 2}, false)
	want := map[string]string{
		"keep-alive": "flag --keep-alive", "join-timeout": "flag --rdzv-conf join_timeout",
		"last-call": "flag --rdzv-conf last_call_timeout", "spares": "flag --spares",
	}
	for flag, from := range want {
		if got := job.Sources[flag].String(); got != from {
			t.Errorf("%s from %q, want %q", flag, got, from)
		}
	}
	_, err := own(nil, "", "--keep-alive 1s "+line)
	wantRefused(t, err, "cannot use --keep-alive and --rdzv-conf keep_alive_interval together")
	_, err = own(nil, "", "--iface eth0 torchrun --local-addr h --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n0 t.py")
	wantRefused(t, err, "cannot use --local-addr h and --iface eth0 together")
	_, err = own(nil, "", "--etcd-cacert x torchrun --rdzv-backend etcd --rdzv-endpoint n0 --rdzv-conf cacert=y t.py")
	wantRefused(t, err, "cannot use --etcd-cacert and --rdzv-conf cacert together")
}

func TestMeetingRefusals(t *testing.T) {
	const c10d = " --rdzv c10d://n0 --run-id j "
	for line, pieces := range map[string][]string{
		// torchrun's own
		"torchrun --nnodes 2 t.py": {
			"cannot use --nnodes 2: nothing says where the nodes meet",
		},
		"torchrun --nnodes 2:3 t.py":                       {"cannot use --nnodes 2:3 with a static rendezvous"},
		"torchrun --nnodes 1:4 --rdzv-backend c10d t.py":   {"cannot use --nnodes 1:4: nothing says where"},
		"torchrun --nnodes 1:4 --rdzv-backend muster t.py": {"cannot use --nnodes 1:4: nothing says where"},
		"torchrun --nnodes 2:3 --rdzv-endpoint n0:5 t.py":  {"cannot use --nnodes 2:3 with a static rendezvous"},
		"torchrun --nnodes 2 --node-rank 2 --master-addr n0 t.py": {
			"cannot use --node-rank 2 with --nnodes 2: node ranks go from 0 to 1",
		},
		"torchrun --nnodes 2 --node-rank=-1 --master-addr n0 t.py": {"cannot use --node-rank -1: node ranks begin at 0"},
		"torchrun --nnodes 2 --master-port 0 --master-addr n0 t.py": {"cannot use --master-port 0: n0:0: the other nodes " +
			"cannot know a free port"},
		"torchrun --nnodes 2 --master-port 70000 t.py": {"cannot use --master-port 70000: give a number from " +
			"0 to 65535"},
		"torchrun --nnodes 2 --master-addr 0.0.0.0 t.py": {"cannot use --master-addr 0.0.0.0: 0.0.0.0:29500: " +
			"the other nodes cannot reach it"},
		"torchrun --nnodes 2 --rdzv-endpoint a:1,b:2 t.py": {"--rdzv-endpoint a:1,b:2: a static rendezvous has " +
			"one endpoint"},
		"torchrun --nnodes 2 --rdzv-endpoint a t.py":            {"--rdzv-endpoint a: the port is missing"},
		"torchrun --rdzv-backend c10d --rdzv-endpoint a,b t.py": {"--rdzv-endpoint a,b: one node has one endpoint"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a,a t.py": {"--rdzv-endpoint a,a: the endpoint a:29400 is " +
			"there twice"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a,,b t.py": {"an endpoint is empty"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint [::]:5 t.py": {"--rdzv-endpoint [::]:5: [::]:5: the other nodes " +
			"cannot reach it"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint fe80::1 t.py": {`"fe80:" is not an IPv6 address`, "in brackets"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint [fe80::1]:5 t.py": {"[fe80::1]:5: a link-local address needs its " +
			"interface: [fe80::1%eth0]"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:99999 t.py": {
			"--rdzv-endpoint a:99999",
			"0 to 65535",
		},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --local-addr a/b t.py": {"cannot use --local-addr a/b"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --local-addr :: t.py": {
			"cannot use --local-addr ::",
			"give an address of this machine",
		},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --rdzv-id= t.py": {"cannot use --rdzv-id: a " +
			"job of several nodes needs a name"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --rdzv-conf store_type=file t.py": {"store_type=file"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --rdzv-conf keep_alive_interval=0 t.py": {"keep_alive_interval=0: " +
			"give a number above 0"},
		"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --rdzv-conf keep_alive_max_attempt=-1 t.py": {
			"keep_alive_max_attempt=-1: give a number above 0",
		},
		"torchrun --nnodes 2 --master-addr a --rdzv-conf timeout=0 t.py": {"timeout=0: give a number above 0"},
		"torchrun --rdzv-backend etcd t.py": {"cannot use --rdzv-backend etcd: " +
			"nothing says where etcd is"},
		"torchrun --rdzv-backend etcd --rdzv-endpoint e --rdzv-conf protocol=ftp t.py": {"protocol=ftp: choose one of " +
			"http, https"},
		"torchrun --rdzv-backend etcd --rdzv-endpoint e --rdzv-conf protocol=http,cacert=x t.py": {"protocol=http with certificates"},
		"torchrun --rdzv-backend etcd --rdzv-endpoint e --rdzv-conf cert=x t.py":                 {"without --etcd-key"},
		"torchrun --rdzv-backend etcd --rdzv-endpoint e --rdzv-conf cert=x,key=k,ssl_cert=y t.py": {"cannot use --rdzv-conf cert and " +
			"ssl_cert=y together"},
		"--topology-file f torchrun --nnodes 2 --master-addr a t.py": {"cannot use --topology-file f: it has no effect where each node's " +
			"rank is fixed beforehand"},
		"--spares 1 torchrun --nnodes 2 --master-addr a t.py": {"cannot use --spares 1: it has no effect where each node's rank is fixed"},
		"--spares 1 torchrun t.py":                            {"cannot use --spares 1: it has no effect on one node"},
		"--etcd-user u --etcd-password-file p torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a t": {
			"2 problems",
			"cannot use --etcd-user u: it has no effect where the nodes do not meet by etcd",
		},
		"--restart-policy on-node-fail torchrun t.py": {"cannot use --restart-policy on-node-fail: it has no effect on one node: it has " +
			"no others"},
		// muster's own
		"run --nnodes 2 x":                  {"cannot use --nnodes 2: nothing says how the nodes meet"},
		"run --nnodes 2 --node-rank 0 x":    {"nothing says how the nodes meet"},
		"run --nnodes 2 --master-addr n0 x": {"nothing says how the nodes meet"},
		"run --nnodes 2 --rdzv c10d://n0 x": {"several nodes without --run-id"},
		"run --nnodes 2 --rdzv etcd://n0 x": {"several nodes without --run-id"},
		"run --nnodes 3:2" + c10d + "x":     {"--nnodes 3:2", "MIN not above MAX"},
		"run --nnodes 9999999" + c10d + "x": {"--nnodes 9999999: more than 1048576 nodes"},
		"run --nnodes 3 --node-unit 2" + c10d +
			"x": {"cannot use --node-unit 2 with --nnodes 3: no multiple of 2 nodes is in that range"},
		"run --nnodes 5:7 --node-unit 4" + c10d + "x":     {"no multiple of 4"},
		"run --node-unit 2 x":                             {"cannot use --node-unit 2 with --nnodes: no multiple of 2"},
		"run --nnodes 2 --node-unit 0" + c10d + "x":       {"--node-unit 0: give a number from 1"},
		"run --nnodes 2 --spares -1" + c10d + "x":         {"--spares -1: give a number from 0"},
		"run --nnodes 2 --keep-alive 0" + c10d + "x":      {"--keep-alive 0: give a time of at least 10ms"},
		"run --nnodes 2 --last-call 0" + c10d + "x":       {"--last-call 0: give a time of at least 1ms"},
		"run --nnodes 2 --join-timeout 10ms" + c10d + "x": {"--join-timeout 10ms: give a time of at least 1s"},
		"run --nnodes 2 --node-rank 2" + c10d + "x":       {"cannot use --node-rank 2 with --nnodes 2: node ranks go from 0 to 1"},
		"run --nnodes 2 --topology-file f --node-rank 1" + c10d +
			"x": {"cannot use --node-rank 1 with --topology-file f: the switches give the ranks"},
		"run --nnodes 2 --master-addr n1" + c10d + "x": {"cannot use --master-addr n1 with --rdzv"},
		"run --nnodes 2 --rdzv static://n0 x": {"cannot use --rdzv static://n0 without --node-rank: give " +
			"this node's rank, from 0 to 1"},
		"run --nnodes 2 --rdzv static://n0,n1 --node-rank 0 x":            {"--rdzv static://n0,n1: a static rendezvous has one endpoint"},
		"run --nnodes 2:3 --rdzv static://n0 --node-rank 0 x":             {"cannot use --nnodes 2:3 with a static rendezvous"},
		"run --nnodes 2 --rdzv static://n0 --node-rank 2 x":               {"cannot use --node-rank 2 with --nnodes 2"},
		"run --nnodes 2 --node-rank 0 --master-addr n0 --master-port 0 x": {"--master-port 0: n0:0: the other nodes cannot know"},
		"run --node-rank 1 x":                                     {"cannot use --node-rank 1: one node has only node rank 0"},
		"run --node-rank -1 x":                                    {"--node-rank -1: give a number from 0"},
		"run --nnodes 2 --run-id j --rdzv n0:1 x":                 {"--rdzv n0:1: write it as c10d://HOST:PORT"},
		"run --nnodes 2 --run-id j --rdzv http://n0 x":            {`the scheme "http" is unknown`},
		"run --nnodes 2 --run-id j --rdzv c10d:// x":              {"an endpoint is empty"},
		"run --nnodes 2 --run-id j --rdzv c10d://n0:0 x":          {"cannot know a free port"},
		"run --nnodes 2 --run-id j --rdzv etcd://e/path x":        {`nothing may stand behind the endpoints, but "/path" does`},
		"run --rdzv c10d://n0,n1 x":                               {"--rdzv c10d://n0,n1: one node has one endpoint"},
		"run --nnodes 2 --iface eth0 --local-addr a" + c10d + "x": {"cannot use --local-addr a and --iface eth0 together"},
		"run --nnodes 2 --iface e/0" + c10d + "x":                 {"--iface e/0: give the name of one network interface"},
		"run --store-allow 10.0.0.0/33 x":                         {`--store-allow 10.0.0.0/33: "10.0.0.0/33" is no network`},
		"run --store-allow 10.0.0.1/8 x": {
			`"10.0.0.1/8" has more bits than it counts: did you mean 10.0.0.0/8?`,
		},
		"run --store-allow 10.0.0.0/8, x":                                    {`"" is no network`},
		"run --store-allow ::ffff:0.0.0.0/90 x":                              {"wider than IPv4"},
		"run --nnodes 2 --run-id j --rdzv etcd://e --etcd-user u x":          {"cannot use --etcd-user u without --etcd-password-file"},
		"run --nnodes 2 --run-id j --rdzv etcd://e --etcd-password-file p x": {"cannot use --etcd-password-file p without --etcd-user"},
		"run --nnodes 2 --run-id j --rdzv etcd://e --etcd-cert c x":          {"cannot use --etcd-cert c without --etcd-key"},
		"run --nnodes 2 --run-id j --rdzv etcd://e --etcd-key k x":           {"cannot use --etcd-key k without --etcd-cert"},
		"run --nnodes 2 --run-id j --rdzv etcds://e --rdzv-conf protocol=http x": {
			"protocol=http with certificates or etcds://",
		},
		"run --nnodes 2 --etcd-cacert a" + c10d +
			"x": {"cannot use --etcd-cacert a: it has no effect where the nodes do not meet by etcd"},
		"run --nnodes 2 --rdzv-conf keep_alive_interval=2 --keep-alive 1" + c10d +
			"x": {"--keep-alive and --rdzv-conf keep_alive_interval together"},
		"run --nnodes 2 --rdzv-conf x" + c10d +
			"x": {`cannot use --rdzv-conf x: the key "x" must have a value`},
		"run --nnodes 2 --restart-limit 0/rank" + c10d +
			"x": {"--restart-limit 0/rank: give a number from 1 in front of /rank"},
		"run --restart-limit x y":      {"--restart-limit x: give a number from 0, or none"},
		"run --restart-scope galaxy y": {"--restart-scope galaxy: choose one of world, node, process"},
		"run --nnodes 2 --restart-policy on-node-fail --max-restarts 2" + c10d +
			"x": {"cannot use --restart-policy on-node-fail with --max-restarts 2"},
		"run --nnodes 2 --restart-policy on-node-fail --restart-limit 0" + c10d +
			"x": {"cannot use --restart-policy on-node-fail with --restart-limit 0"},
		"run --nnodes 2 --restart-policy on-node-fail-or-exit-code" + c10d + "x": {"--max-restarts is 0"},
	} {
		t.Run(line, func(t *testing.T) {
			_, err := own(nil, "", line)
			wantRefused(t, err, pieces...)
		})
	}
}

// What a platform's variables say for every job does not refuse a job that has no use for it.
func TestMeetingWarnings(t *testing.T) {
	for _, c := range []struct {
		env, line string
		want      []string
	}{
		{
			"", "torchrun --nnodes 2 --master-addr localhost t.py",
			[]string{"the nodes meet at localhost:29500, which is this machine itself: only agents on this machine can join"},
		},
		{"", "torchrun --nnodes 2 --master-port 5 t.py", []string{"127.0.0.1:5, which is this machine"}},
		{"", "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint [::1]:5 t.py", []string{"[::1]:5, which is this machine"}},
		{"", "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint [::ffff:127.0.0.1]:5 t.py", []string{"which is this machine"}},
		{"", "torchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint localhost t.py", nil},
		{"", "torchrun --nnodes 1:3 --standalone t.py", nil},
		{
			"", "torchrun --nnodes 2 --node-rank 1 --rdzv-backend c10d --rdzv-endpoint a t.py",
			nil,
		},
		{
			"", "--topology-file f torchrun --nnodes 2 --node-rank 1 --rdzv-backend c10d --rdzv-endpoint a t.py",
			[]string{"the switches of --topology-file give the ranks: --node-rank 1 has no effect"},
		},
		{"", "torchrun --rdzv-conf is_host=0 t.py", []string{"is_host=0 has no effect on one node"}},
		{
			"", "torchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint a --rdzv-conf is_host=1 t.py",
			[]string{"is_host has no effect with the etcd backend"},
		},
		{"MUSTER_SPARES=1", "torchrun --nnodes 2 --master-addr a t.py", []string{"MUSTER_SPARES (where each node's rank is fixed"}},
		{
			"MUSTER_TOPOLOGY_FILE=f", "torchrun --nnodes 2 --master-addr a t.py",
			[]string{"MUSTER_TOPOLOGY_FILE (where each node's rank is fixed"},
		},
		{
			"MUSTER_ETCD_USER=u", "run --nnodes 2 --rdzv c10d://a --run-id j x",
			[]string{"no effect on this job: MUSTER_ETCD_USER (where the nodes do not meet by etcd)"},
		},
		{"MUSTER_RESTART_POLICY=on-node-fail", "torchrun t.py", []string{"MUSTER_RESTART_POLICY (on one node: it has no others"}},
		{
			"MUSTER_KEEP_ALIVE=1 MUSTER_NODE_UNIT=4", "torchrun t.py",
			[]string{"no effect on this job: MUSTER_NODE_UNIT, MUSTER_KEEP_ALIVE (on one node)"},
		},
		{"MUSTER_KEEP_ALIV=1", "torchrun t.py", []string{"did you mean MUSTER_KEEP_ALIVE?"}},
		{"MUSTER_RDZV_ID=j MUSTER_TOKEN_FILE=f", "torchrun t.py", []string{"MUSTER_TOKEN_FILE (on one node)"}},
	} {
		req, err := own(strings.Fields(c.env), "", c.line)
		got := req.Job.Warnings
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s %s: %q, %v; want %q", c.env, c.line, got, err, c.want)
			continue
		}
		for i := range c.want {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%s %s: %q, want %q", c.env, c.line, got, c.want)
			}
		}
	}
}

// A password in a URL is refused, and not shown again.
func TestSecretsAreNotRepeated(t *testing.T) {
	for _, c := range []struct{ env, line string }{
		{"", "run --nnodes 2 --run-id j --rdzv etcd://root:hunter2@e0:2379 x"},
		{"MUSTER_RDZV=etcd://root:hunter2@e0", "run --nnodes 2 --run-id j x"},
		{"", "run --nnodes 2 --run-id j --node-rank 1 --rdzv etcd://root:hunter2@e0,u:hunter2@e1 x"},
	} {
		_, err := own(strings.Fields(c.env), "", c.line)
		wantRefused(t, err, "do not belong on a command line", "//…@")
		if text := err.Error() + errhint.Of(err); strings.Contains(text, "hunter2") || !strings.Contains(text, "--etcd-password-file") &&
			errhint.Of(err) != "" {
			t.Errorf("%s: %s", c.line, text)
		}
	}
}

func TestRestartRulesOfSeveralNodes(t *testing.T) {
	for line, want := range map[string]job.RestartRules{
		"run --nnodes 2 --rdzv c10d://n0 --run-id j --restart-policy on-node-fail --restart-limit 3 x": {
			Policy: job.RestartOnNodeFail, Scope: job.ScopeWorld, ReplaceLimit: 3, BackoffLimit: -1,
		},
		"run --nnodes 2 --rdzv c10d://n0 --run-id j --restart-policy on-node-fail --backoff-limit 3 x": {
			Policy: job.RestartOnNodeFail, Scope: job.ScopeWorld, ReplaceLimit: -1, BackoffLimit: 3, // and no exit is restarted
		},
		"run --nnodes 2 --rdzv c10d://n0 --run-id j --max-restarts 1 " +
			"--restart-policy on-node-fail-or-exit-code --retryable-exit-codes 3 x": {
			Policy: job.RestartOnNodeFailOrExitCode, Scope: job.ScopeWorld, ReplaceLimit: -1, BackoffLimit: -1, MaxRestarts: 1,
		},
		"--restart-scope process --restart-limit none torchrun --max-restarts 2 t.py": {
			Policy: job.RestartOnFailure, Scope: job.ScopeProcess, ReplaceLimit: -1, BackoffLimit: -1, MaxRestarts: 2,
		},
		"run --nnodes 2 --rdzv c10d://n0 --run-id j --backoff-limit 3 x": {
			Policy: job.RestartOnFailure, Scope: job.ScopeWorld, ReplaceLimit: -1, BackoffLimit: 3, MaxRestarts: 3,
		},
		"run --nnodes 2 --rdzv c10d://n0 --run-id j --max-restarts 0 --backoff-limit 3 x": { // which bounds the loss of nodes
			Policy: job.RestartOnFailure, Scope: job.ScopeWorld, ReplaceLimit: -1, BackoffLimit: 3,
		},
		"--backoff-limit 3 torchrun --nnodes 2 --master-addr n0 --node-rank 0 --max-restarts 0 t.py": {
			Policy: job.RestartOnFailure, Scope: job.ScopeWorld, ReplaceLimit: -1, BackoffLimit: 3,
		},
		"--backoff-limit 3 torchrun --nnodes 2 --master-addr n0 --node-rank 0 t.py": {
			Policy: job.RestartOnFailure, Scope: job.ScopeWorld, ReplaceLimit: -1, BackoffLimit: 3, MaxRestarts: 3,
		},
	} {
		req, err := own(nil, "", line)
		got := req.Job.Restart
		if err != nil || got.Policy != want.Policy || got.Scope != want.Scope || got.ReplaceLimit != want.ReplaceLimit ||
			got.BackoffLimit != want.BackoffLimit || got.MaxRestarts != want.MaxRestarts {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
	}
}

// A settings file may hold the new flags in any of their spellings, and lists as lists.
func TestMeetingFromSettingsFile(t *testing.T) {
	req, err := own(nil,
		"nnodes: 2:3\nrdzv: c10d://n0\nrdzv_id: j\nstore-allow: [10.0.0.0/8, 'fd00::/8']\nkeep-alive: 1.5\nspares: 1\n"+
			"restart-limit: none\nrdzv-conf: [join_timeout=9, is_host=1]\n",
		"run --config f x")
	if err != nil {
		t.Fatal(err)
	}
	m := req.Job.Meeting
	if req.Job.Nodes.Max != 3 || req.Job.RunID != "j" || len(m.StoreAllow) != 2 || m.KeepAlive != 1500*time.Millisecond || m.Spares != 1 ||
		m.JoinTimeout != 9*time.Second || m.IsHost == nil {
		t.Errorf("%+v", req.Job)
	}
	if got := req.Job.Sources["join-timeout"].String(); got != "config f:8 join_timeout" {
		t.Errorf("source %q", got)
	}
	_, err = own(nil, "rdzv-id: j\n", "--config f torchrun t.py")
	wantRefused(t, err, "in front of another launcher")
}

// What the documentation shows is accepted, and meets others.
func TestDocumentedMeetings(t *testing.T) {
	text, err := os.ReadFile("../../docs/several-nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for line := range strings.Lines(string(text)) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "muster ")
		if !ok {
			continue
		}
		shown++
		if req, err := own(nil, "", command); err != nil || req.Job.Alone() || len(req.Job.Warnings) > 0 {
			t.Errorf("%s: alone %v, warnings %q, %v", command, req.Job.Alone(), req.Job.Warnings, err)
		}
	}
	if shown == 0 {
		t.Error("the page shows no command")
	}
}
