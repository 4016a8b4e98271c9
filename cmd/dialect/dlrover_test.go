package dialect_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/launch/job"
)

func dlrover(t *testing.T, env string, args ...string) dialect.Request {
	t.Helper()
	req, err := dialect.DLRover(dialect.Invocation{Argv0: "dlrover-run", Args: args, Environ: strings.Fields(env)})
	if err != nil {
		t.Fatalf("%s dlrover-run %q: %v", env, args, err)
	}
	return req
}

// dlroverCases are what each flag that DLRover adds does to a job, by its name.
var dlroverCases = map[string]struct {
	word string // what is typed behind it, and what PET_ holds; empty for a switch
	with string // what else it needs
	want func(job *job.Job) bool
	warn string
}{
	"auto-config": {want: func(j *job.Job) bool { return j.Procs == "auto" }},
	"accelerator": {
		word: "metax-tech.com/gpu", want: func(j *job.Job) bool { return j.Fake == "" },
		warn: "no such accelerator is found here",
	},
	"precheck": {word: "2", want: func(j *job.Job) bool { return j.Check.Network && j.Check.CommPerf }},
	"node-unit": {
		word: "2", with: "--nnodes 2:4 --rdzv-endpoint h",
		want: func(j *job.Job) bool { return j.Meeting.NodeUnit == 2 },
	},
	"network-check":     {want: func(j *job.Job) bool { return j.Check.Network }},
	"comm-perf-test":    {with: "--network-check", want: func(j *job.Job) bool { return j.Check.CommPerf }},
	"exclude-straggler": {with: "--network-check", want: func(j *job.Job) bool { return j.Check.ExcludeStraggler }},
	"switchbox-check":   {with: "--network-check", want: func(j *job.Job) bool { return len(j.Check.Switchbox.Pairs) == 4 }},
	"box-pairs": {
		word: "0:1 2:3", with: "--network-check --switchbox-check",
		want: func(j *job.Job) bool { return cmp.Equal(j.Check.Switchbox.Pairs, [][2]int{{0, 1}, {2, 3}}) },
	},
	"min-bandwidth": {
		word: "50", with: "--network-check --switchbox-check",
		want: func(j *job.Job) bool { return j.Check.Switchbox.MinBandwidth == 50 },
	},
	"min-channels": {
		word: "4", with: "--network-check --switchbox-check",
		want: func(j *job.Job) bool { return j.Check.Switchbox.MinChannels == 4 },
	},
	"numa-affinity": {want: func(j *job.Job) bool { return j.Bind == job.BindRules{Mode: "node", Fallback: true} }},
	"membind-policy": {
		word: "bind", with: "--numa-affinity", want: func(j *job.Job) bool { return j.Bind.Mode == "node" },
		warn: "only as strong as preferred",
	},
	"training-port": {word: "61000", want: func(j *job.Job) bool {
		return len(j.Env.Set) == 1 && j.Env.Set[0].Name == "HCCL_IF_BASE_PORT" && j.Env.Set[0].Value == "61000"
	}},
	"save-at-breakpoint": {want: func(j *job.Job) bool { return j.Checkpoint.On }, warn: "changes nothing"},
	"auto-tunning":       {want: func(*job.Job) bool { return true }, warn: "no master"},
	"ucp-device-type":    {word: "npu", want: func(*job.Job) bool { return true }, warn: "universal checkpoints"},
}

func TestDLRoverFlags(t *testing.T) {
	options, own, foreign := dialect.DLRoverOptions()
	anywhere := dialect.SettingFlags()
	var ofTorchrun []string
	for _, o := range dialect.TorchrunOptions() {
		ofTorchrun = append(ofTorchrun, o.Dest)
	}
	for _, o := range options {
		flag := strings.ReplaceAll(o.Dest, "_", "-")
		if anywhere[flag] && !own[flag] && !foreign[flag] {
			t.Errorf("--%s is muster's own too: MUSTER_ would mean two things", flag)
		}
		c, ok := dlroverCases[flag]
		if !ok {
			if !slices.Contains(ofTorchrun, o.Dest) {
				t.Errorf("--%s is not tested here", flag)
			}
			continue
		}
		plain := dlrover(t, "", append(strings.Fields(c.with), "x.py")...)
		if c.want(&plain.Job) && c.warn == "" && flag != "accelerator" {
			t.Errorf("--%s changes nothing", flag)
		}
		variable := "PET_" + strings.ToUpper(o.Dest)
		for _, spelling := range o.Spellings {
			args := append(strings.Fields(c.with), spelling)
			if c.word != "" {
				args = append(args, c.word)
			}
			req := dlrover(t, "", append(args, "x.py")...)
			checkDLRover(t, spelling, &req.Job, c.want, c.warn)
			if c.word == "" {
				continue
			}
			if req := dlrover(t, variable+"=bogus", append(args, "x.py")...); !c.want(&req.Job) {
				t.Errorf("%s does not win over %s", spelling, variable)
			}
		}
		value := strings.ReplaceAll(c.word, " ", ",")
		if value == "" {
			value = "1"
		}
		req := dlrover(t, variable+"="+value, append(strings.Fields(c.with), "x.py")...)
		checkDLRover(t, variable, &req.Job, c.want, c.warn)
		if c.word == "" {
			off := dlrover(t, variable+"=0", append(strings.Fields(c.with), "x.py")...)
			if len(off.Job.Warnings) > 0 {
				t.Errorf("%s=0: %q", variable, off.Job.Warnings)
			}
			_, err := dialect.DLRover(dialect.Invocation{Args: []string{"x.py"}, Environ: []string{variable + "=true"}})
			wantRefused(t, err, variable)
		}
	}
}

func checkDLRover(t *testing.T, name string, job *job.Job, want func(*job.Job) bool, warning string) {
	t.Helper()
	if !want(job) {
		t.Errorf("%s: %+v", name, job)
	}
	all := strings.Join(job.Warnings, "\n")
	if warning == "" && all != "" || !strings.Contains(all, warning) {
		t.Errorf("%s: warnings %q, want %q", name, all, warning)
	}
}

// The command line of MetaX's guide, in the forms that people make of it.
func TestDLRoverGuide(t *testing.T) {
	for _, pairs := range []string{"0:1 2:4 3:5 6:7", "0:1,2:4,3:5,6:7", "0:1 --box-pairs 2:4 3:5 --box_pairs=6:7"} {
		line := "--network-check --switchbox-check --box-pairs " + pairs +
			" --min-bandwidth 10000 --min-channels 2 --max_restarts=3 --nnodes=2:4 --nproc_per_node=8 train.py --box-pairs 9:9"
		req := dlrover(t, "DLROVER_MASTER_ADDR=job-master:50001 ELASTIC_JOB_NAME=job", strings.Fields(line)...)
		job := &req.Job
		want := checks(switchbox)
		if diff := cmp.Diff(want, job.Check); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
		if job.Command.Name != "train.py" || !slices.Equal(job.Command.Args, []string{"--box-pairs", "9:9"}) || job.Procs != "8" ||
			job.Restart.MaxRestarts != 3 || job.Restart.ReplaceLimit != -1 || job.Restart.RankLimit != 3 || job.Role != "dlrover-trainer" ||
			job.RunID != "job" || len(job.Warnings) > 0 {
			t.Errorf("%s: %+v", line, job)
		}
	}
	quoted := dlrover(t, "", "--network-check", "--switchbox-check", "--box-pairs", "0:1 2:3", "--min-bandwidth", "1", "train.py")
	if diff := cmp.Diff([][2]int{{0, 1}, {2, 3}}, quoted.Job.Check.Switchbox.Pairs); diff != "" {
		t.Errorf("quoted (-want +got):\n%s", diff)
	}
}

func TestDLRoverMeets(t *testing.T) {
	at := func(host string, port int) func(*job.Meeting) {
		return func(m *job.Meeting) {
			m.Backend, m.Endpoints = "muster", []job.Endpoint{{Host: host, Port: port}}
		}
	}
	asks := func(change ...func(*job.DLRoverMaster)) func(*job.Meeting) { // whether a master is there
		return func(m *job.Meeting) {
			m.DLRover = job.DLRoverMaster{Service: job.MasterAsked, NodeType: "worker"}
			for _, f := range change {
				f(&m.DLRover)
			}
		}
	}
	nodeIP := func(m *job.DLRoverMaster) { m.NodeIP = "10.1.0.1" }
	and := func(all ...func(*job.Meeting)) job.Meeting {
		return meeting(func(m *job.Meeting) {
			for _, f := range all {
				f(m)
			}
		})
	}
	conf := func(key, value string) func(*job.Meeting) {
		return func(m *job.Meeting) { m.Conf[key] = value }
	}
	alone := meeting(func(m *job.Meeting) { m.Backend = "standalone" })
	for _, c := range []struct {
		env, line, runID string
		want             job.Meeting
		nodes            job.Range
		alone            bool
	}{
		{line: "x.py", runID: "none", want: alone, nodes: job.Range{Min: 1, Max: 1}, alone: true},
		{line: "--standalone x.py", env: "DLROVER_MASTER_ADDR=m:1 NODE_RANK=0", want: alone, nodes: job.Range{Min: 1, Max: 1}, alone: true},
		{
			line: "x.py", env: "DLROVER_MASTER_ADDR=m:1 NODE_RANK=3 POD_IP=10.0.0.1 ELASTIC_JOB_NAME=j", runID: "j", want: alone,
			nodes: job.Range{Min: 1, Max: 1}, alone: true,
		},
		{
			line: "--nnodes 2 x.py", env: "DLROVER_MASTER_ADDR=m:50001", runID: "none", want: and(at("m", 50001), asks()),
			nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2:4 --rdzv_id k x.py",
			env:  "DLROVER_MASTER_ADDR=m ELASTIC_JOB_NAME=j POD_IP=10.0.0.1 NODE_IP=10.1.0.1 NODE_RANK=1", runID: "k",
			want: and(at("m", 29400), func(m *job.Meeting) { m.LocalAddr, m.Prefers = "10.0.0.1", 2 },
				asks(nodeIP, func(m *job.DLRoverMaster) { m.NodeRank = 1 })), nodes: job.Range{Min: 2, Max: 4},
		},
		{
			line: "--nnodes 2 --local-addr 10.2.0.1 x.py", env: "DLROVER_MASTER_ADDR=m POD_IP=10.0.0.1", runID: "none",
			want: and(at("m", 29400), func(m *job.Meeting) { m.LocalAddr = "10.2.0.1" }, asks()), nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2 x.py", env: "DLROVER_MASTER_ADDR=m POD_IP=10.0.0.1 MUSTER_IFACE=eth1", runID: "none",
			want: and(at("m", 29400), func(m *job.Meeting) { m.Iface = "eth1" }, asks()), nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2 x.py", env: "DLROVER_MASTER_ADDR=m NODE_IP=10.1.0.1", runID: "none",
			want: and(at("m", 29400), func(m *job.Meeting) { m.LocalAddr = "10.1.0.1" }, asks(nodeIP)), nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2 --rdzv-endpoint h:7 x.py", env: "DLROVER_MASTER_ADDR=m:1", runID: "none", want: and(at("h", 7)),
			nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2 --master-addr h --master_port 7 x.py", runID: "none", want: and(at("h", 7)), nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2 --rdzv-backend c10d x.py", env: "DLROVER_MASTER_ADDR=m:1", runID: "none",
			want: and(at("m", 1), func(m *job.Meeting) { m.Backend = "c10d" }), nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2 --rdzv-backend static --master-addr h x.py", env: "DLROVER_MASTER_ADDR=m:1 WORKER_RANK=1 RANK=7",
			runID: "none",
			want:  and(at("h", 29500), func(m *job.Meeting) { m.Backend, m.NodeRank, m.JoinTimeout = "static", 1, 900*time.Second }),
			nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2 --rdzv-backend etcd --rdzv-endpoint e x.py", env: "DLROVER_MASTER_ADDR=m:1", runID: "none",
			want:  and(at("e", 2379), func(m *job.Meeting) { m.Backend, m.JoinTimeout = "etcd", 900*time.Second }),
			nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--auto_config x.py", env: "DLROVER_MASTER_ADDR=m NODE_NUM=3 WORKER_NUM=4", runID: "none",
			want:  and(at("m", 29400), asks()),
			nodes: job.Range{Min: 3, Max: 3},
		},
		{
			line: "--auto-config x.py", env: "DLROVER_MASTER_ADDR=m WORKER_NUM=4 WORLD_SIZE=5", runID: "none",
			want:  and(at("m", 29400), asks()),
			nodes: job.Range{Min: 4, Max: 4},
		},
		{
			line: "--auto-config --nnodes 2 x.py", env: "DLROVER_MASTER_ADDR=m WORLD_SIZE=5", runID: "none",
			want:  and(at("m", 29400), asks()),
			nodes: job.Range{Min: 2, Max: 2},
		},
		{
			line: "--nnodes 2:4 --rdzv_conf join_timeout=5,lastcall_timeout=7,node_unit=2 x.py", env: "DLROVER_MASTER_ADDR=m",
			runID: "none",
			want: and(at("m", 29400), asks(), conf("join_timeout", "5"), conf("lastcall_timeout", "7"), conf("node_unit", "2"),
				func(m *job.Meeting) {
					m.JoinTimeout, m.LastCall, m.NodeUnit = 5*time.Second, 7*time.Second, 2
				}), nodes: job.Range{Min: 2, Max: 4},
		},
		{ // a master that is there for certain is one node's, too
			line: "--rdzv-conf pend_timeout=1.5 x.py",
			env: "DLROVER_MASTER_ADDR=m:1 DLROVER_MASTER_SERVICE_TYPE=http NODE_TYPE=chief NODE_ID=7 WORKER_RANK=2 JOB_UID=u " +
				"MASTER_CLIENT_TIMEOUT=9 NODE_IP=10.1.0.1",
			runID: "none",
			want: and(at("m", 1), conf("pend_timeout", "1.5"), func(m *job.Meeting) { m.LocalAddr = "10.1.0.1" }, asks(nodeIP,
				func(m *job.DLRoverMaster) {
					m.Service, m.NodeType, m.NodeID, m.NodeRank, m.JobUID = job.MasterHTTP, "chief", 7, 2, "u"
					m.Timeout, m.PendTimeout = 9*time.Second, 1500*time.Millisecond
				})), nodes: job.Range{Min: 1, Max: 1},
		},
		{ // and the one that --standalone starts by itself is none
			line: "--standalone x.py", env: "DLROVER_MASTER_ADDR=m:1 DLROVER_MASTER_SERVICE_TYPE=grpc", want: alone,
			nodes: job.Range{Min: 1, Max: 1}, alone: true,
		},
	} {
		job := wantMeeting(t, c.env, "dlrover-run "+c.line, c.want, c.nodes, c.alone)
		if job.RunID != c.runID {
			t.Errorf("%s %s: run id %q, want %q", c.env, c.line, job.RunID, c.runID)
		}
	}
}

func TestDLRoverEnvironment(t *testing.T) {
	for env, ok := range map[string]func(dialect.Request) bool{
		"NETWORK_CHECK_TIMEOUT=200": func(r dialect.Request) bool {
			return r.Job.Check.Budget == 200*time.Second
		},
		"NETWORK_CHECK_TIMEOUT=200 MUSTER_NETWORK_CHECK_TIMEOUT=9": func(r dialect.Request) bool {
			return r.Job.Check.Budget == 9*time.Second
		},
		"DLROVER_LOG_LEVEL=INFO":                func(r dialect.Request) bool { return r.LogLevel == "info" },
		"DLROVER_LOG_LEVEL=INFO LOGLEVEL=ERROR": func(r dialect.Request) bool { return r.LogLevel == "error" },
		"MUSTER_FAKE=f.yaml":                    func(r dialect.Request) bool { return r.Job.Fake == "f.yaml" },
		"MUSTER_ACCELERATOR=fake:f.yaml":        func(r dialect.Request) bool { return r.Job.Fake == "f.yaml" },
		"MUSTER_PRECHECK=2":                     func(r dialect.Request) bool { return r.Job.Check.CommPerf },
		"MUSTER_EXCLUDE_STRAGGLER=yes":          func(r dialect.Request) bool { return r.Job.Check.ExcludeStraggler },
		"MUSTER_RESTART_LIMIT=7": func(r dialect.Request) bool {
			return r.Job.Restart.ReplaceLimit == 7 &&
				r.Job.Restart.RankLimit == 0
		},
		"MUSTER_RESTART_LIMIT=2/rank": func(r dialect.Request) bool {
			return r.Job.Restart.ReplaceLimit == -1 &&
				r.Job.Restart.RankLimit == 2
		},
		"HOST_PORTS=7001,7002": func(r dialect.Request) bool { return cmp.Equal(r.Job.Meeting.WorkerPorts, []int{7001, 7002}) },
		"PET_ROLE=r":           func(r dialect.Request) bool { return r.Job.Role == "r" },
	} {
		args := []string{"--network-check", "x.py"}
		if strings.Contains(env, "STRAGGLER") || strings.Contains(env, "LIMIT") { // which are about other nodes
			args = append([]string{"--nnodes", "2", "--rdzv-endpoint", "a"}, args...)
		}
		if req := dlrover(t, env, args...); !ok(req) || len(req.Job.Warnings) > 0 {
			t.Errorf("%s: %+v", env, req)
		}
	}
	four := dlrover(t, "NODE_NUM=4 DLROVER_MASTER_ADDR=m", "--auto-config", "x.py")
	if !four.Job.Check.Network {
		t.Error("--auto_config with 4 nodes does not check them")
	}
	if got := four.Job.Sources["nnodes"].String(); got != "platform NODE_NUM" {
		t.Errorf("source of nnodes: %q", got)
	}
	for line, want := range map[string]string{
		"NODE_NUM=4 x.py":                                             "NODE_NUM=4 has no effect: give --nnodes 4, or --auto_config",
		"FAILURE_NODE_ERRORS=#x# x.py":                                "FAILURE_NODE_ERRORS is not supported",
		"DLROVER_EXTENSION_DYNAMIC_FAILOVER=a::b x.py":                "DLROVER_EXTENSION_DYNAMIC_FAILOVER is not supported",
		"MOCK_ERR_RANK=1 x.py":                                        "MOCK_ERR_RANK has no effect without --network-check",
		"DLROVER_TRAINING_ELASTIC_MODE=ucp x.py":                      "universal checkpoints",
		"--exclude-straggler x.py":                                    "--exclude-straggler has no effect without --network-check",
		"--comm-perf-test x.py":                                       "--comm-perf-test has no effect without --network-check",
		"--membind-policy bind x.py":                                  "no effect without --numa-affinity",
		"--numa-affinity --numa-binding socket x.py":                  "--numa-affinity has no effect with --numa-binding",
		"--rdzv-conf pend_timeout=9 x.py":                             "pend_timeout has no effect",
		"DLROVER_MASTER_ADDR=m --nnodes 2 --master-addr h x.py":       "--master-addr has no effect with DLROVER_MASTER_ADDR",
		"DLROVER_MASTER_ADDR=m --nnodes 2 --rdzv-conf timeout=9 x.py": "timeout has no effect",
	} {
		var env, args []string
		for word := range strings.FieldsSeq(line) {
			if name, _, ok := strings.Cut(word, "="); ok && name == strings.ToUpper(name) {
				env = append(env, word)
			} else {
				args = append(args, word)
			}
		}
		if warnings := dlrover(t, strings.Join(env, " "), args...).Job.Warnings; !strings.Contains(strings.Join(warnings, "\n"), want) {
			t.Errorf("%s: warnings %q, want %q", line, warnings, want)
		}
	}
}

func TestDLRoverRefused(t *testing.T) {
	for _, c := range []struct{ env, line, want string }{
		{"", "dlrover-run --switchbox-check x.py", "--switchbox-check without --network-check"},
		{"PET_SWITCHBOX_CHECK=1", "dlrover-run x.py", "PET_SWITCHBOX_CHECK=true without --network-check"},
		{"", "--switchbox-check dlrover-run x.py", "--switchbox-check without --network-check"},
		{"", "--network-check dlrover-run --network-check x.py", "in front of dlrover-run and behind it"},
		{"", "dlrover-run --network x.py", "did you mean --network-check?"},
		{"", "dlrover-run --nproc_per 2 x.py", "did you mean --nproc-per-node?"},
		{"", "dlrover-run --precheck 3 x.py", "choose one of 0, 1, 2"},
		{"", "dlrover-run --accelerator tpu x.py", "choose one of nvidia.com/gpu"},
		{"", "dlrover-run --training_port 70000 x.py", "--training-port 70000"},
		{"", "dlrover-run --node_unit 0 x.py", "--node-unit 0"},
		{"", "dlrover-run --rdzv-conf node_unit=0 x.py", "node_unit=0: give a number above 0"},
		{"", "dlrover-run --network-check --switchbox-check --box-pairs 0:1 1:2 x.py", `"1:2": device 1`},
		{"", "dlrover-run --rdzv-backend zookeeper x.py", "choose static, c10d, etcd or muster"},
		{"", "dlrover-run --nnodes 2 x.py", "nothing says where the nodes meet"},
		{"DLROVER_MASTER_ADDR=a:b", "dlrover-run --nnodes 2 x.py", "DLROVER_MASTER_ADDR=a:b"},
		{"DLROVER_MASTER_ADDR=m DLROVER_MASTER_SERVICE_TYPE=ray", "dlrover-run x.py", "DLROVER_MASTER_SERVICE_TYPE=ray"},
		{"DLROVER_MASTER_ADDR=m DLROVER_MASTER_SERVICE_TYPE=grpc NODE_ID=x", "dlrover-run x.py", "NODE_ID=x"},
		{"DLROVER_MASTER_ADDR=m NODE_RANK=-1", "dlrover-run --nnodes 2 x.py", "NODE_RANK=-1"},
		{"DLROVER_MASTER_ADDR=m POD_IP=::", "dlrover-run --nnodes 2 x.py", "POD_IP=::"},
		{"NODE_RANK=1", "dlrover-run --standalone x.py", "NODE_RANK=1: --standalone is one node by itself"},
		{"WORKER_RANK=2", "dlrover-run --standalone x.py", "WORKER_RANK=2"},
		{"RANK=x", "dlrover-run --standalone x.py", "RANK=x for --node-rank"},
		{"", "dlrover-run --standalone --node_rank 1 x.py", "--node-rank 1"},
		{"HOST_PORTS=1,x", "dlrover-run x.py", "HOST_PORTS=1,x: give ports"},
		{"NETWORK_CHECK_TIMEOUT=0", "dlrover-run --network-check x.py", "NETWORK_CHECK_TIMEOUT=0"},
	} {
		_, err := own(strings.Fields(c.env), "", c.line)
		wantRefused(t, err, c.want)
	}
}

// The page says of every flag what becomes of it.
func TestDLRoverPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/compat/dlrover.md")
	if err != nil {
		t.Fatal(err)
	}
	options, _, _ := dialect.DLRoverOptions()
	for _, o := range options {
		if o.Dest == "help" || slices.ContainsFunc(o.Spellings, func(s string) bool {
			return bytes.Contains(page, []byte("`"+s+"`")) || bytes.Contains(page, []byte("`"+s+" 0"))
		}) {
			continue
		}
		t.Errorf("--%s is not on the page", o.Dest)
	}
}
