package dialect_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
)

// cmdline is a case for the real torchrun and for us.
type cmdline struct {
	Program string            `json:"program"`
	Argv    []string          `json:"argv"`
	Env     map[string]string `json:"env"`
}

func (c cmdline) String() string {
	return fmt.Sprintf("%s %q env %q", c.Program, c.Argv, c.Env)
}

func (c cmdline) environ() []string {
	env := []string{"PYTHON_EXEC=py", "OMP_NUM_THREADS=1"}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		env = append(env, name+"="+c.Env[name])
	}
	return env
}

// answer is what the real torchrun made of a case, see testdata/torchrun_oracle.py.
type answer struct {
	Status  int            `json:"status"`
	Help    bool           `json:"help"`
	Message string         `json:"message"`
	Values  map[string]any `json:"values"`
	Config  *struct {
		Nodes       [2]int   `json:"nodes"`
		Procs       int      `json:"procs"`
		Role        string   `json:"role"`
		RunID       string   `json:"run_id"`
		Backend     string   `json:"backend"`
		Endpoint    []any    `json:"endpoint"`
		RandomPort  bool     `json:"random_port"`
		LocalAddr   string   `json:"local_addr"`
		Argv        []string `json:"argv"`
		MaxRestarts float64  `json:"max_restarts"`
		Redirects   any      `json:"redirects"`
		Tee         any      `json:"tee"`
		Ranks       []int    `json:"ranks"`
		Prefix      string   `json:"prefix"`
		KeepStdout  []string `json:"keep_stdout"`
		KeepStderr  []string `json:"keep_stderr"`
		Virtual     bool     `json:"virtual"`
		Shutdown    float64  `json:"shutdown"`
		StartMethod string   `json:"start_method"`
		NUMA        string   `json:"numa"`
	} `json:"config"`
}

// Deliberate differences. Where we refuse what torchrun accepts, our message has one of these pieces; the reason stands
// behind it.
var refusedByUs = map[string]string{
	"nothing says where the nodes meet":     "torchrun takes 127.0.0.1: each node waits for the others at itself",
	"nothing says where etcd is":            "torchrun fails when it connects",
	"its number of nodes is fixed":          "torchrun's static rendezvous takes the larger number and is not elastic",
	"one node has only node rank 0":         "torchrun waits for a store that nobody will serve",
	"node ranks go from 0":                  "the same",
	"node ranks begin at 0":                 "the same",
	"--standalone is one node by itself":    "torchrun waits for nodes that cannot know where",
	"cannot know a free port":               "the same",
	"a number above 0":                      "torchrun takes negative times, and fails or spins later",
	"needs a name, the same on all of them": "torchrun makes a random one on each node",
	"write HOST:PORT":                       "the port of etcd's endpoint is only looked at by its Python client",
	"is neither a host name nor an IP":      "etcd's endpoint again, and --local-addr is not looked at by torchrun",
	"must be a number from 0 to 65535":      "etcd's endpoint again",
	"write one in brackets":                 "torchrun looks for a host named by the first half of the address",
	"choose one of http, https":             "etcd's protocol again",
	"a store in a file":                     "store_type=file would make workers wait for a store that is not ours",
	"choose one of spawn, fork, forkserver": "PET_START_METHOD is not held against the choices by torchrun, and fails later",
	"give local ranks separated by commas":  "torchrun takes negative ranks, which no worker has",
	"more than 4096 workers":                "a typing error",
	"more than 1048576 nodes":               "a typing error",
	"its name is empty":                     "an empty script name fails only in the worker",
	"cannot be handled by any program":      "torchrun fails when it installs the handler",
	"reasons of its own":                    "SIGCHLD and SIGURG reach muster all the time",
	"give seconds above 0":                  "an infinite monitor interval is no interval; etcd's times are not looked at",
	"is out of range":                       "our integers end at 64 bits",
	"give seconds from 0":                   "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=-1 is not checked by torchrun",
}

// acceptedByUs says whether we deliberately accept what torchrun refuses.
func acceptedByUs(c cmdline, theirs answer) (string, bool) {
	switch {
	case strings.Contains(theirs.Message, "ambiguous option"):
		// Python 3.11 looks at all words before it knows where the script begins; ours takes the script's words, and
		// those behind a -h, as they are. TestScriptOwnsItsOptions holds us to it.
		return "ambiguous behind the script", true
	case strings.Contains(theirs.Message, "requires the 'shtab' package"):
		return "our completion needs no package", true
	case strings.Contains(theirs.Message, "does not match: <^[0123]$>"):
		return "local ranks of several digits", strings.Contains(strings.Join(c.Argv, " ")+fmt.Sprint(c.Env), "12:")
	case strings.Contains(theirs.Message, "backend is not registered"):
		return "backends of ours", slices.ContainsFunc(c.Argv, func(word string) bool { return word == "muster" || word == "etcd-v3" })
	case strings.Contains(theirs.Message, "rendezvous endpoint") || strings.Contains(theirs.Message, "hostname"):
		return "several endpoints", strings.Contains(strings.Join(c.Argv, " "), ",")
	}
	return "", false
}

// torchForks returns forks of a Python that has imported torchrun: what is asked of real launchers is asked there.
func torchForks(t *testing.T) *testutil.Forks {
	t.Helper()
	return testutil.ForksOf(testutil.Torch(t), "torch.distributed.run", "")
}

// askForked returns what an oracle answers to questions.
func askForked(t *testing.T, forks *testutil.Forks, environ []string, oracle string, questions []byte) []byte {
	t.Helper()
	asked := filepath.Join(t.TempDir(), "questions")
	if err := os.WriteFile(asked, questions, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := forks.Run(t.Context(), environ, "-W", "ignore", oracle, asked)
	if err != nil {
		t.Fatalf("the oracle: %v\n%s", err, out)
	}
	return out
}

func askTorchrun(t *testing.T, cases []cmdline) []answer {
	t.Helper()
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, c := range cases {
		if err := enc.Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	oracle, err := filepath.Abs("testdata/torchrun_oracle.py")
	if err != nil {
		t.Fatal(err)
	}
	environ := append(os.Environ(), "TMPDIR="+t.TempDir(), "PYTHON_EXEC=py", "OMP_NUM_THREADS=1")
	out := askForked(t, torchForks(t), environ, oracle, in.Bytes())
	var answers []answer
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			t.Fatalf("%v in %s", err, lines.Bytes())
		}
		answers = append(answers, a)
	}
	if len(answers) != len(cases) {
		t.Fatalf("%d answers to %d cases", len(answers), len(cases))
	}
	return answers
}

func TestTorchrunAgreesWithPyTorch(t *testing.T) {
	cases := slices.Concat(chosenCases(), generatedCases(testutil.Count(150, 600)))
	answers := askTorchrun(t, cases)
	accepted, refused, different := 0, 0, map[string]int{}
	for i, c := range cases {
		theirs := answers[i]
		compareValues(t, c, theirs)
		req, err := dialect.Read(c.Program, dialect.Invocation{Argv0: "torchrun", Args: c.Argv, Environ: c.environ()})
		_, help := errorsAsHelp(err)
		switch {
		case theirs.Status == 0 && theirs.Help:
			if !help {
				t.Errorf("%v\ntorchrun prints help, we say: %v", c, err)
			}
		case theirs.Status == 0 && err != nil:
			if piece, ok := known(err); ok {
				different[piece]++
				break
			}
			t.Errorf("%v\ntorchrun accepts, we refuse: %v", c, err)
		case theirs.Status == 0:
			accepted++
			compareJob(t, c, theirs, req)
		case err != nil && !help:
			refused++
			if status := errhint.CodeOf(err); status != errhint.Usage {
				t.Errorf("%v\nstatus %d: %v", c, status, err)
			}
		default:
			reason, ok := acceptedByUs(c, theirs)
			if !ok {
				t.Errorf("%v\ntorchrun refuses, we accept: %s", c, theirs.Message)
			}
			different[reason]++
		}
	}
	t.Logf("%d cases: %d accepted, %d refused by both; deliberate differences: %v", len(cases), accepted, refused, different)
	if accepted < len(cases)/4 || refused < len(cases)/10 {
		t.Errorf("the cases are lopsided: %d accepted and %d refused of %d", accepted, refused, len(cases))
	}
}

func known(err error) (string, bool) {
	for piece := range refusedByUs {
		if strings.Contains(err.Error(), piece) {
			return piece, true
		}
	}
	return "", false
}

// compareValues holds the parser alone against argparse's namespace.
func compareValues(t *testing.T, c cmdline, theirs answer) {
	t.Helper()
	values, script, rest, err := dialect.ParseTorchrun(c.Program, c.Argv, c.environ())
	if theirs.Values == nil {
		return // that both refuse is seen in the whole
	}
	if err != nil {
		if _, ok := known(err); !ok {
			t.Errorf("%v\nargparse accepts, we refuse: %v", c, err)
		}
		return
	}
	values["training_script"], values["training_script_args"] = script, rest
	if diff := cmp.Diff(flat(theirs.Values), flat(values)); diff != "" {
		t.Errorf("%v\nvalues (-torchrun +muster):\n%s", c, diff)
	}
}

// flat makes values from JSON and from Go comparable.
func flat(values map[string]any) map[string]string {
	out := map[string]string{}
	for name, v := range values {
		switch v := v.(type) {
		case nil:
			out[name] = "None"
		case []any:
			out[name] = fmt.Sprintf("%q", v)
		case []string:
			out[name] = fmt.Sprintf("%q", v)
		case float64:
			out[name] = strconv.FormatFloat(v, 'g', -1, 64)
		case string:
			if f, err := strconv.ParseFloat(v, 64); err == nil && name == "monitor_interval" {
				out[name] = strconv.FormatFloat(f, 'g', -1, 64)
				continue
			}
			out[name] = strconv.Quote(v)
		default:
			out[name] = fmt.Sprint(v)
		}
	}
	return out
}

// compareJob holds the job against what torchrun would launch.
func compareJob(t *testing.T, c cmdline, theirs answer, req dialect.Request) {
	t.Helper()
	j, config := req.Job, theirs.Config
	same := func(what string, want, got any) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v\n%s (-torchrun +muster):\n%s", c, what, diff)
		}
	}
	same("nodes", config.Nodes, [2]int{j.Nodes.Min, j.Nodes.Max})
	if _, err := strconv.Atoi(j.Procs); err == nil {
		same("workers", strconv.Itoa(config.Procs), j.Procs)
	}
	same("role", config.Role, j.Role)
	same("restarts", config.MaxRestarts, float64(j.Restart.MaxRestarts))
	same("argv", config.Argv, argv(j.Command))
	same("redirects", config.Redirects, streamsOf(j.Logs.Redirect))
	same("tee", config.Tee, streamsOf(j.Logs.Tee))
	same("ranks", config.Ranks, j.Logs.Ranks)
	same("prefix", config.Prefix, j.Logs.Prefix)
	same("stdout filters", config.KeepStdout, j.Logs.KeepStdout)
	same("stderr filters", config.KeepStderr, j.Logs.KeepStderr)
	same("NUMA binding", config.NUMA, j.Bind.Mode)
	same("virtual local rank", config.Virtual, j.VirtualLocalRank)
	same("shutdown timeout", time.Duration(config.Shutdown)*time.Second, j.Stop.Grace)
	if j.Command.Kind == job.RunPath {
		same("start method", config.StartMethod, j.Command.StartMethod)
	}
	if config.RandomPort && (theirs.Values["standalone"] == true || theirs.Values["rdzv_backend"] == "static") {
		same("backend", "standalone", j.Meeting.Backend)
		same("port", 0, j.Meeting.Port)
		same("host", config.LocalAddr, j.Meeting.Host)
		// torchrun makes a random id; so do we, unless one was asked for and --standalone was not.
		if id, _ := theirs.Values["rdzv_id"].(string); j.RunID != "" && (j.RunID != id || theirs.Values["standalone"] == true) {
			t.Errorf("%v\nrun id %q", c, j.RunID)
		}
		return
	}
	same("run id", config.RunID, j.RunID)
	if strings.HasPrefix(config.Backend, "etcd") {
		same("backend", "etcd", j.Meeting.Backend)
		return // what it is given is checked by its Python client, and by TestTorchrunMeeting
	}
	same("backend", config.Backend, j.Meeting.Backend)
	host, port := config.Endpoint[0].(string), int(config.Endpoint[1].(float64))
	if !j.Alone() {
		same("endpoints", []job.Endpoint{{Host: host, Port: port}}, j.Meeting.Endpoints)
		same("local address", strings.Trim(config.LocalAddr, "[]"), j.Meeting.LocalAddr)
		if config.Backend == "static" {
			same("node rank", theirs.Values["node_rank"], float64(j.Meeting.NodeRank))
		}
		return
	}
	same("port", port, j.Meeting.Port)
	if config.Backend == "c10d" && config.LocalAddr != "" {
		host = config.LocalAddr
	}
	if host == "localhost" && j.Meeting.Host == "" {
		host = "" // no endpoint: both mean this node
	}
	same("host", host, j.Meeting.Host)
}

func argv(c job.Command) []string {
	local := []string(nil)
	if c.LocalRankFlag != "" {
		local = []string{c.LocalRankFlag + "=${local_rank}"}
	}
	front := map[job.CommandKind][]string{
		job.Program: {c.Name}, job.Script: {"py", "-u", c.Name}, job.Module: {"py", "-u", "-m", c.Name},
		job.RunPath: {"<runpy>", c.Name},
	}[c.Kind]
	return slices.Concat(front, local, c.Args)
}

func streamsOf(m job.StreamMap) any {
	if m.ByRank == nil {
		return float64(m.Default)
	}
	out := map[string]any{}
	for rank, s := range m.ByRank {
		out[strconv.Itoa(rank)] = float64(s)
	}
	return out
}

// chosenCases are the corners that were found by reading argparse and torchrun, each once.
func chosenCases() []cmdline {
	lines := [][]string{
		{"train.py"},
		{"--", "train.py"},
		{"--", "--", "x"},
		{"train.py", "--", "x"},
		{"train.py", "a", "--", "b"},
		{"--", "train.py", "--", "b"},
		{},
		{"--"},
		{"--standalone"},
		{"--standalone", "--"},
		{"--nproc", "2", "t.py"},
		{"--nproc-per", "2", "t.py"},
		{"--nproc_per", "2", "t.py"},
		{"--nproc-per_node", "2", "t.py"},
		{"--max-re", "3", "t.py"},
		{"--standalon", "t.py"},
		{"--rdzv", "x", "t.py"},
		{"--r", "3", "t.py"},
		{"--ro", "r", "t.py"},
		{"--red", "3", "t.py"},
		{"--t=3", "t.py"},
		{"-r3", "t.py"},
		{"-r", "3", "t.py"},
		{"-r=3", "t.py"},
		{"-r", "t.py"},
		{"-r"},
		{"-t", "0:3,1:2", "t.py"},
		{"-t12:3", "t.py"},
		{"-t", "4", "t.py"},
		{"-t", "0:4", "t.py"},
		{"-t", "0:1,", "t.py"},
		{"-t", "", "t.py"},
		{"-mr3", "mod"},
		{"-mr", "3", "mod"},
		{"-mt", "1", "mod"},
		{"-mm", "mod"},
		{"-mx", "mod"},
		{"-m=", "mod"},
		{"-m=1", "mod"},
		{"-mr=3", "mod"},
		{"-m", "pkg.mod", "-m", "x"},
		{"-m", "--no-python", "x"},
		{"-m", "--no-python", "--run-path", "x.py"},
		{"--no-python", "./prog", "a"},
		{"--run-path", "--start-method", "fork", "/a/b.py", "x"},
		{"--standalone=1", "t.py"},
		{"--standalone=", "t.py"},
		{"--role=", "t.py"},
		{"--role", "", "t.py"},
		{"--role", "-x", "t.py"},
		{"--role", "-5", "t.py"},
		{"--role", "-a b", "t.py"},
		{"--role", "-r b", "t.py"},
		{"--role", "--", "t.py"},
		{"--role=-x", "t.py"},
		{"--role=a=b", "t.py"},
		{"--ro=a b", "t.py"},
		{"--role", "-.5", "t.py"},
		{"--role", "-5.", "t.py"},
		{"-5", "x"},
		{"-", "x"},
		{"", "x"},
		{"-x y", "z"},
		{"--foo bar", "z"},
		{"--bogus", "t.py"},
		{"--bogus=1", "t.py"},
		{"-x", "t.py"},
		{"-h"},
		{"--help"},
		{"--hel"},
		{"--bogus", "-h"},
		{"-h", "--max-restarts", "x"},
		{"--max-restarts", "x", "-h"},
		{"-mh", "x"},
		{"-hm", "x"},
		{"-hx"},
		{"t.py", "-h"},
		{"t.py", "--nproc-per-node", "4"},
		{"t.py", "-r", "9"},
		{"t.py", "--bogus", "--", "-x"},
		{"--max-restarts", "-1", "t.py"},
		{"--max-restarts=-1", "t.py"},
		{"--max-restarts", "+3", "t.py"},
		{"--max-restarts", " 7 ", "t.py"},
		{"--max-restarts", "1_0", "t.py"},
		{"--max-restarts", "1__0", "t.py"},
		{"--max-restarts", "0x2", "t.py"},
		{"--max-restarts", "007", "t.py"},
		{"--max-restarts", "3.0", "t.py"},
		{"--max-restarts", "99999999999999999999", "t.py"},
		{"--monitor-interval", "1e-3", "t.py"},
		{"--monitor-interval", "inf", "t.py"},
		{"--monitor-interval", "nan", "t.py"},
		{"--monitor-interval", "0x1p3", "t.py"},
		{"--monitor-interval", "-1", "t.py"},
		{"--monitor-interval", "1_0.5", "t.py"},
		{"--monitor-interval", "0", "t.py"},
		{"--nnodes", "1:1", "t.py"},
		{"--nnodes", "a", "t.py"},
		{"--nnodes", "2:1", "t.py"},
		{"--nnodes", "1:2:3", "t.py"},
		{"--nnodes", "0", "t.py"},
		{"--nnodes", "2", "t.py"},
		{"--nnodes", "1:2", "t.py"},
		{"--nnodes", " 1 ", "t.py"},
		{"--nnodes", "", "t.py"},
		{"--nproc-per-node", "0", "t.py"},
		{"--nproc-per-node", "-2", "t.py"},
		{"--nproc-per-node", "auto", "t.py"},
		{"--nproc-per-node", "cpu", "t.py"},
		{"--nproc-per-node", "foo", "t.py"},
		{"--nproc-per-node", "1000000", "t.py"},
		{"--start-method", "x", "t.py"},
		{"--numa-binding", "x", "t.py"},
		{"--numa-binding", "node", "t.py"},
		{"--numa_binding=core-complex", "t.py"},
		{"--numa", "exclusive", "t.py"},
		{"--nu=socket", "t.py"},
		{"--numa-binding", "core_complex", "t.py"},
		{"--numa-binding", "Node", "t.py"},
		{"--numa-binding", "", "t.py"},
		{"--numa-binding", "t.py"},
		{"--numa-binding", "node", "--numa-binding", "socket", "t.py"},
		{"--logs-specs", "x", "t.py"},
		{"--event-log-handler", "console", "t.py"},
		{"--event-log-handler", "dynamic_rendezvous", "t.py"},
		{"--event-log-handler", "x", "t.py"},
		{"--print-completion", "bash"},
		{"--print-completion", "fish"},
		{"--print-completion"},
		{"--master-port", "29501", "t.py"},
		{"--master-port", "29501", "--master-addr", "[::1]", "t.py"},
		{"--master-port", "29501", "--master-addr", "::1", "t.py"},
		{"--master-port", "70000", "t.py"},
		{"--master-port", "0", "t.py"},
		{"--master-port", "-1", "t.py"},
		{"--master-addr", "h1", "t.py"},
		{"--node-rank", "1", "--master-port", "5", "t.py"},
		{"--rdzv-endpoint", "h1:5", "t.py"},
		{"--rdzv-endpoint", "h1", "t.py"},
		{"--rdzv-endpoint", "h 1:5", "t.py"},
		{"--rdzv-endpoint", " h1:5 ", "t.py"},
		{"--rdzv-endpoint", ":5", "t.py"},
		{"--rdzv-endpoint", "h1:", "t.py"},
		{"--rdzv-endpoint", "h1:99999", "t.py"},
		{"--rdzv-endpoint", "[::1]:5", "t.py"},
		{"--rdzv-endpoint", "[::1]", "--rdzv-backend", "c10d", "t.py"},
		{"--rdzv-endpoint", "::1", "--rdzv-backend", "c10d", "t.py"},
		{"--rdzv-backend", "c10d", "t.py"},
		{"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "t.py"},
		{"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:99999", "t.py"},
		{"--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--local-addr=10.0.0.1", "t.py"},
		{"--rdzv-backend", "bogus", "t.py"},
		{"--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "h:2379", "t.py"},
		{"--rdzv-backend", "", "t.py"},
		{"--rdzv-backend", "etcd", "t.py"},
		{"--rdzv-backend", "etcd-v3", "--rdzv-endpoint", "h:2379", "t.py"},
		{
			"--rdzv-backend", "etcd", "--rdzv-endpoint", "h1,h2:5", "--rdzv-conf", "protocol=https,cacert=ca.pem,etcd_prefix=/x",
			"--nnodes", "1:3", "t.py",
		},
		{"--nnodes", "2", "--node-rank", "1", "--master-addr", "h1", "--master-port", "29501", "t.py"},
		{"--nnodes", "2", "--node-rank", "1", "--master-addr", "h1", "t.py"},
		{"--nnodes", "2", "--node-rank", "2", "--master-addr", "h1", "t.py"},
		{"--nnodes", "2", "--node-rank", "-1", "--master-addr", "h1", "t.py"},
		{"--nnodes", "2", "--master-addr", "[fd00::1]", "--local-addr", "[fd00::2]", "t.py"},
		{"--nnodes", "2", "--master-port", "29501", "t.py"},
		{"--nnodes", "2", "--master-port", "0", "t.py"},
		{"--nnodes", "2", "--rdzv-endpoint", "h1:5", "--node-rank", "1", "t.py"},
		{"--nnodes", "2", "--rdzv-endpoint", "h1", "t.py"},
		{"--nnodes", "2:3", "--rdzv-endpoint", "h1:5", "t.py"},
		{"--nnodes", "2", "--rdzv-endpoint", "h1:5,h2:5", "t.py"},
		{"--nnodes", "2", "--standalone", "t.py"},
		{"--nnodes", "1:3", "--standalone", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1", "--rdzv-id", "j", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1:7", "--rdzv-id", "", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1:0", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1:1,h2:2", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "c10d", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1", "--local-addr", "10.0.0.2", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1", "--rdzv-conf", "is_host=0,keep_alive_interval=2", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1", "--rdzv-conf", "keep_alive_interval=0", "t.py"},
		{"--nnodes", "2:4", "--rdzv-backend", "muster", "--rdzv-endpoint", "h1", "t.py"},
		{"--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1", "--rdzv-conf", "is_host=0", "t.py"},
		{"--nnodes", "99999999", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1", "t.py"},
		{"--rdzv-id", "job7", "t.py"},
		{"--rdzv-id", "job7", "--standalone", "t.py"},
		{"--rdzv-id", "job7", "--master-port", "5", "t.py"},
		{"--rdzv-backend", "c10d", "--node-rank", "3", "t.py"},
		{"--standalone", "--node-rank", "3", "--rdzv-backend", "bogus", "t.py"},
		{"--rdzv-conf", "join_timeout=0", "t.py"},
		{"--rdzv-conf", "is_host=maybe", "t.py"},
		{"--rdzv-conf", "is_host=0", "t.py"},
		{"--rdzv-conf", "is_host=Y,read_timeout=5", "t.py"},
		{"--rdzv-conf", "abc", "t.py"},
		{"--rdzv-conf", "=3", "t.py"},
		{"--rdzv-conf", "a=", "t.py"},
		{"--rdzv-conf", "a=1,", "t.py"},
		{"--rdzv-conf", " a = 1 , b=2=3 ", "t.py"},
		{"--rdzv-conf", "join_timeout=x", "--master-port", "5", "t.py"},
		{"--rdzv-conf", "timeout=x", "--master-port", "5", "t.py"},
		{"--rdzv-conf", "timeout=x", "t.py"},
		{"--rdzv-conf", "store_type=file", "t.py"},
		{"--rdzv-conf", "store_type=etcd", "t.py"},
		{"--rdzv-conf", "store_type=TCP", "t.py"},
		{"--rdzv-conf", "cas_backoff_max_seconds=nan", "t.py"},
		{"--rdzv-conf", "cas_backoff_max_seconds=0.5,keep_alive_interval=1", "t.py"},
		{"--rdzv-conf", "keep_alive_interval=x", "t.py"},
		{"--local-ranks-filter", "0, 1", "t.py"},
		{"--local-ranks-filter", "a", "t.py"},
		{"--local-ranks-filter", "1,0,1", "t.py"},
		{"--local-ranks-filter=-1", "t.py"},
		{"--local-ranks-filter", "", "t.py"},
		{"--duplicate-stdout-filters", "a,,b,c", "t.py"},
		{"--duplicate-stdout-filters", "", "t.py"},
		{"--duplicate-stderr-filters", ",,,", "t.py"},
		{"--duplicate-stderr-filters", ",", "t.py"},
		{"--shutdown-timeout", "-1", "t.py"},
		{"--shutdown-timeout", "0", "t.py"},
		{"--shutdown-timeout", "45", "t.py"},
		{"--log-dir", "/dev/null", "t.py"},
		{"--log-dir", "logs", "t.py"},
		{"--signals-to-handle", "SIGTERM,SIGUSR1,BOGUS", "t.py"},
		{"--signals-to-handle", "SIGKILL", "t.py"},
		{"t.py", "--signal", "9"},
		{"t.py", "--nproc", "--log", "-h"},
		{"-h", "--nproc"},
	}
	var cases []cmdline
	for _, argv := range lines {
		cases = append(cases, cmdline{"torchrun", argv, nil})
	}
	for _, env := range []map[string]string{
		{"PET_STANDALONE": "yes"},
		{"PET_STANDALONE": "1"},
		{"PET_STANDALONE": "0"},
		{"PET_STANDALONE": "-2"},
		{"PET_STANDALONE": ""},
		{"PET_NNODES": ""},
		{"PET_NPROC_PER_NODE": "3"},
		{"PET_MAX_RESTARTS": "x"},
		{"PET_MAX_RESTARTS": ""},
		{"PET_START_METHOD": "x"},
		{"PET_MODULE": "1"},
		{"PET_MASTER_PORT": "5"},
		{"PET_DUPLICATE_STDOUT_FILTERS": ""},
		{"PET_DUPLICATE_STDOUT_FILTERS": "a,b"},
		{"PET_LOG_DIR": ""},
		{"PET_NUMA_BINDING": "x"},
		{"PET_USE_ENV": "1"},
		{"PET_HELP": "1"},
		{"PET_RDZV_ID": ""},
		{"PET_TEE": "3", "PET_REDIRECTS": "12:1"},
		{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"},
		{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"},
		{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "-7"},
		{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7", "PET_SHUTDOWN_TIMEOUT": "8"},
		{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]"},
		{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]", "PET_LOG_LINE_PREFIX_TEMPLATE": "x"},
	} {
		cases = append(cases, cmdline{"torchrun", []string{"t.py"}, env},
			cmdline{"torchrun", []string{"--standalone", "--max-restarts", "2", "--start-method=fork", "t.py"}, env})
	}
	for _, argv := range [][]string{
		{"t.py", "a"},
		{"--use-env", "t.py", "a"},
		{"--use_env", "-m", "mod"},
		{"-m", "mod"},
		{"--no-python", "prog"},
		{"--no-python", "--use-env", "prog"},
		{"--use", "t.py"},
		{"--use-e", "t.py"},
		{"--run-path", "/t.py", "x"},
		{"t.py", "--", "x"},
		{"--use-env=1", "t.py"},
	} {
		cases = append(cases, cmdline{"torch.distributed.launch", argv, nil},
			cmdline{"torch.distributed.launch", argv, map[string]string{"PET_USE_ENV": "1"}})
	}
	return cases
}

// words are values to draw from, good and bad, by dest; other options draw from "".
var words = map[string][]string{
	"":                         {"x", "a b", "", "-5", "-x", "--", "3", "ü"},
	"nnodes":                   {"1", "1", "1:1", "1", "2", "1:2", "x", "0"},
	"nproc_per_node":           {"1", "2", "8", "cpu", "auto", "0", "x", "-1"},
	"rdzv_backend":             {"static", "c10d", "c10d", "static", "etcd", "x"},
	"rdzv_endpoint":            {"localhost:29400", "localhost", "127.0.0.1:5", "[::1]:5", "h:x", "a_b-c.d:80"},
	"rdzv_conf":                {"join_timeout=5", "is_host=1,timeout=3", "x", "read_timeout=-1", "a=b"},
	"max_restarts":             {"0", "3", "10", "-1", "x", " 2"},
	"monitor_interval":         {"0.1", "5", "1e2", "0", "x"},
	"start_method":             {"spawn", "fork", "forkserver", "x"},
	"event_log_handler":        {"null", "console", "x"},
	"redirects":                {"0", "1", "2", "3", "0:1,1:2", "4", "x", "12:1"},
	"tee":                      {"0", "1", "2", "3", "0:1,1:2", "4", "x", "12:1"},
	"local_ranks_filter":       {"0", "0,1", "x", ""},
	"duplicate_stdout_filters": {"a", "a,b", "a,,b", ""},
	"node_rank":                {"0", "0", "1", "x"},
	"master_port":              {"29500", "0", "1", "70000", "x"},
	"numa_binding":             {"node", "socket", "exclusive", "core-complex", "x"},
	"signals_to_handle":        {"SIGTERM", "SIGTERM,SIGUSR1", "TERM"},
	"shutdown_timeout":         {"0", "5", "-1", "x"},
	"print_completion":         {"bash", "x"},
	"log_dir":                  {"/dev/null", "logs", ""},
}

func generatedCases(n int) []cmdline {
	rng := rand.New(rand.NewPCG(3, 15)) // seeded: the same cases in every run
	options := dialect.TorchrunOptions()
	draw := func(list []string) string { return list[rng.IntN(len(list))] }
	word := func(dest string) string {
		if list, ok := words[dest]; ok && rng.IntN(12) > 0 {
			return draw(list[:max(1, len(list)-rng.IntN(len(list)))]) // the good ones come first and more often
		}
		return draw(words[""])
	}
	// Python 3.11 makes an empty list of the value in --role=--, which breaks whatever uses it (3.13 does not); ours is
	// the word itself.
	joinable := func(dest string) string { return strings.TrimPrefix(word(dest), "--") }
	cases := make([]cmdline, n)
	for i := range cases {
		c := cmdline{Program: "torchrun", Argv: []string{}, Env: map[string]string{}}
		if rng.IntN(10) == 0 {
			c.Program = "torch.distributed.launch"
		}
		for range rng.IntN(5) {
			o := options[rng.IntN(len(options))]
			spelling := draw(o.Spellings)
			if len(spelling) > 4 && rng.IntN(4) == 0 {
				spelling = spelling[:len(spelling)-rng.IntN(len(spelling)-3)]
			}
			switch {
			case !o.TakesWord:
				c.Argv = append(c.Argv, spelling)
			case rng.IntN(25) == 0: // the value is forgotten
				c.Argv = append(c.Argv, spelling)
			case rng.IntN(2) == 0:
				c.Argv = append(c.Argv, spelling+"="+joinable(o.Dest))
			case len(spelling) == 2:
				c.Argv = append(c.Argv, spelling+joinable(o.Dest))
			default:
				c.Argv = append(c.Argv, spelling, word(o.Dest))
			}
		}
		if rng.IntN(20) == 0 {
			c.Argv = append(c.Argv, draw([]string{"--bogus", "-x", "--nproc", "--log", "-5", "-mr3", "--", "-h"}))
		}
		if rng.IntN(30) > 0 {
			c.Argv = append(c.Argv, draw([]string{"train.py", "-", "pkg.mod"}))
		}
		for range rng.IntN(3) {
			c.Argv = append(c.Argv, draw([]string{"--lr", "0.1", "--", "-h", "--nnodes", "--signal", "x=${local_rank}", ""}))
		}
		for range rng.IntN(3) {
			if o := options[rng.IntN(len(options))]; o.Variable != "" {
				c.Env[o.Variable] = word(o.Dest)
				if !o.TakesWord {
					c.Env[o.Variable] = draw([]string{"0", "1", "1", "0", "2", " 1", "yes", ""})
				}
			}
		}
		cases[i] = c
	}
	return cases
}
