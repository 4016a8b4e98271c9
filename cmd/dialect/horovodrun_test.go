package dialect_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
)

// horovodCase is a file of testdata/horovodrun: environment and command line, files, and what we make of it. A case
// that horovodrun makes something else of says why.
type horovodCase struct {
	name    string
	archive *txtar.Archive
	env     []string
	argv    []string
	differs string
	dir     string // with the files
}

func horovodCases(t *testing.T) []horovodCase {
	t.Helper()
	files, err := filepath.Glob("testdata/horovodrun/*.txtar")
	if err != nil || len(files) < 25 {
		t.Fatalf("%d cases: %v", len(files), err)
	}
	var cases []horovodCase
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c := horovodCase{name: strings.TrimSuffix(filepath.Base(file), ".txtar"), archive: archive, dir: t.TempDir()}
		for line := range strings.Lines(string(archive.Comment)) {
			kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch kind {
			case "env":
				c.env = append(c.env, rest)
			case "differs":
				c.differs = rest
			case "horovodrun":
				c.argv = quotedWords(rest)
			default:
				t.Fatalf("%s: %q", file, line)
			}
		}
		for _, f := range archive.Files {
			if err := os.WriteFile(filepath.Join(c.dir, f.Name), f.Data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cases = append(cases, c)
	}
	return cases
}

// quotedWords splits a command line at blanks outside of single quotes.
func quotedWords(line string) []string {
	var all []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			all = append(all, part)
			continue
		}
		all = append(all, strings.Fields(part)...)
	}
	return all
}

func (c *horovodCase) read() (dialect.Request, error) {
	return dialect.Read("horovodrun", dialect.Invocation{
		Argv0: "horovodrun", Args: c.argv, Environ: c.env,
		ReadFile: func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(c.dir, name)) },
	})
}

// shown is a request as the golden files have it.
func shown(req dialect.Request, err error) string {
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "status %d\nerror: %v\n", errhint.CodeOf(err), err)
		if hint := errhint.Of(err); hint != "" {
			fmt.Fprintf(&b, "hint: %s\n", hint)
		}
		return b.String()
	}
	job, h := &req.Job, req.Horovod
	fmt.Fprintf(&b, "command: %q %q\n", job.Command.Name, job.Command.Args)
	if h.Elastic {
		fmt.Fprintf(&b, "elastic: np %d, min %d, max %d, slots per host %d, cool-down %v to %v, resets %d, timeout %v\n",
			h.NP, h.MinNP, h.MaxNP, h.SlotsPerHost, h.Cooldown.Min, h.Cooldown.Max, h.ResetLimit, h.ElasticTimeout)
		fmt.Fprintf(&b, "hosts: %v script %q hostfile %q dns %q\n", h.Hosts, h.Script, h.Hostfile, h.DNS)
	}
	for _, n := range job.Hosts.Nodes {
		fmt.Fprintf(&b, "node %s: %s workers\n", n.Name, n.Procs)
	}
	for _, s := range h.Slots {
		fmt.Fprintf(&b, "rank %s\n", strings.Join(s.Env(), " "))
	}
	for _, v := range job.Env.Set {
		fmt.Fprintf(&b, "set %s=%s (%s)\n", v.Name, v.Value, v.Source)
	}
	ssh := job.Hosts.SSH
	fmt.Fprintf(&b, "ssh: port %d, identity %q; start timeout %v; NICs %q; log level %s\n", ssh.Port, ssh.Identity, job.Hosts.StartTimeout,
		h.NICs, req.LogLevel)
	fmt.Fprintf(&b, "meeting: %s; nodes %d\n", job.Meeting.Backend, job.Nodes.Max)
	if logs := job.Logs; logs.RankFiles != "" || logs.Stamp {
		fmt.Fprintf(&b, "logs: %q with %d digits, stamped %v\n", logs.RankFiles, logs.RankDigits, logs.Stamp)
	}
	for _, w := range job.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

func TestHorovodrunCorpus(t *testing.T) {
	for _, c := range horovodCases(t) {
		want := &c.archive.Files[len(c.archive.Files)-1]
		if want.Name != "want" {
			t.Fatalf("%s: the last file is %s", c.name, want.Name)
		}
		got := strings.ReplaceAll(shown(c.read()), c.dir+"/", "")
		if *update {
			want.Data = []byte(got)
			if err := os.WriteFile(filepath.Join("testdata/horovodrun", c.name+".txtar"), txtar.Format(c.archive), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(string(want.Data), got); diff != "" {
			t.Errorf("%s (-want +got; -update rewrites it):\n%s", c.name, diff)
		}
	}
}

// theirs is what horovodrun makes of a case, see testdata/horovodrun_oracle.py.
type theirs struct {
	Error        string
	Env          map[string]string
	Elastic      bool
	Command      []string
	NP           int
	NICs         []string
	SSHPort      int `json:"ssh_port"`
	Identity     string
	StartTimeout int `json:"start_timeout"`
	Slots        [][]any
	Min, Max     int
	Script       string
	SlotsPerHost int `json:"slots_per_host"`
	ResetLimit   int `json:"reset_limit"`
	Cooldown     []int
}

func askHorovodrun(t *testing.T, cases []horovodCase) []theirs {
	t.Helper()
	var in bytes.Buffer
	for _, c := range cases {
		env := map[string]string{}
		for _, kv := range c.env {
			name, value, _ := strings.Cut(kv, "=")
			env[name] = value
		}
		if err := json.NewEncoder(&in).Encode(map[string]any{"argv": c.argv, "env": env, "dir": c.dir}); err != nil {
			t.Fatal(err)
		}
	}
	oracle, err := filepath.Abs("testdata/horovodrun_oracle.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(testutil.Peer(t, "horovod"), "python"), oracle)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr, cmd.Dir = &in, &stderr, t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the oracle: %v\n%s", err, stderr.String())
	}
	var answers []theirs
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a theirs
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

// ofOurs are variables that muster sets beside the tuning flags; horovodrun sets them when it starts workers.
var ofOurs = []string{
	"HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "PYTHONUNBUFFERED", "HOROVOD_ELASTIC", "HOROVOD_GLOO_IFACE",
	"NCCL_SOCKET_IFNAME",
}

func TestHorovodrunAgreesWithHorovod(t *testing.T) {
	cases := horovodCases(t)
	accepted, refused, different := 0, 0, 0
	for i, a := range askHorovodrun(t, cases) {
		c := cases[i]
		kind, _, _ := strings.Cut(c.differs, ":")
		if c.differs != "" {
			different++
		}
		req, err := c.read()
		if ours := err != nil; ours != (a.Error != "") {
			if kind != "refused" && kind != "accepted" || (kind == "accepted") != ours {
				t.Errorf("%s: horovodrun says %q, muster %v", c.name, a.Error, err)
			}
			continue
		}
		if kind == "refused" || kind == "accepted" {
			t.Errorf("%s: does not differ as it says", c.name)
		}
		if err != nil {
			refused++
			continue
		}
		accepted++
		env := map[string]string{}
		for _, v := range req.Job.Env.Set {
			if !slices.Contains(ofOurs, v.Name) {
				env[v.Name] = v.Value
			}
		}
		if diff := cmp.Diff(a.Env, env); diff != "" {
			t.Errorf("%s: variables (-horovodrun +muster):\n%s", c.name, diff)
		}
		h, job := req.Horovod, &req.Job
		command := append([]string{job.Command.Name}, job.Command.Args...)
		slices.Sort(h.NICs)
		got := theirs{
			Env: a.Env, Elastic: h.Elastic, Command: command, NP: a.NP, NICs: append([]string{}, h.NICs...), SSHPort: job.Hosts.SSH.Port,
			Identity: job.Hosts.SSH.Identity, StartTimeout: int(job.Hosts.StartTimeout.Seconds()), Slots: [][]any{},
		}
		for _, s := range h.Slots {
			numbers := []any{s.Host}
			for _, n := range []int{s.Rank, s.Size, s.LocalRank, s.LocalSize, s.CrossRank, s.CrossSize} {
				numbers = append(numbers, float64(n))
			}
			got.Slots = append(got.Slots, numbers)
		}
		if kind == "slots" {
			if len(got.Slots) != a.NP || len(a.Slots) == a.NP {
				t.Errorf("%s: %d slots, horovodrun has %d", c.name, len(got.Slots), len(a.Slots))
			}
			got.Slots = a.Slots
		}
		if h.Elastic {
			got.Min, got.Max, got.Script, got.SlotsPerHost, got.ResetLimit = h.MinNP, h.MaxNP, h.Script, h.SlotsPerHost, h.ResetLimit
			got.NP, got.Cooldown = h.NP, []int{}
			if len(a.Cooldown) > 0 {
				got.Cooldown = []int{int(h.Cooldown.Min.Seconds()), int(h.Cooldown.Max.Seconds())}
			}
		}
		if diff := cmp.Diff(a, got); diff != "" {
			t.Errorf("%s (-horovodrun +muster):\n%s", c.name, diff)
		}
	}
	t.Logf("%d accepted and %d refused by both, %d differ on purpose", accepted, refused, different)
	if accepted < 25 || refused < 8 {
		t.Errorf("the cases are lopsided: %d accepted, %d refused", accepted, refused)
	}
}

// What a worker of the real horovodrun has in its environment, and what ours would have.
func TestHorovodrunWorkersEnvironment(t *testing.T) {
	bin := testutil.Peer(t, "horovod")
	dir := t.TempDir()
	config := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(config, []byte("params:\n  cycle_time_ms: 7\n  cache_capacity: 99\ntimeline:\n  filename: /tmp/t.json\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-np", "2", "-H", "localhost:2", "--gloo", "--fusion-threshold-mb", "32", "--config-file", config, "--cycle-time-ms", "3",
		"--log-level", "ERROR",
		"--no-stall-check", "sh", "-c", "env -0 > " + dir + "/rank.$HOROVOD_RANK",
	}
	site := testutil.PeerPackages(t, "horovod")
	environ := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "KEPT=a b\nc", "PYTHONPATH=" + site}
	out, err := torchForks(t).With("horovod.runner.launch", site).Run(t.Context(), environ,
		append([]string{filepath.Join(bin, "horovodrun")}, args...)...)
	if err != nil {
		t.Fatalf("horovodrun: %v\n%s", err, out)
	}
	req, err := dialect.Horovodrun(dialect.Invocation{Args: args, Environ: environ, ReadFile: os.ReadFile})
	if err != nil {
		t.Fatal(err)
	}
	for rank := range 2 {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank.%d", rank)))
		if err != nil {
			t.Fatal(err)
		}
		theirs := map[string]string{}
		for kv := range strings.SplitSeq(strings.TrimRight(string(text), "\x00"), "\x00") {
			name, value, _ := strings.Cut(kv, "=")
			theirs[name] = value
		}
		ours := map[string]string{}
		for _, kv := range environ {
			name, value, _ := strings.Cut(kv, "=")
			ours[name] = value
		}
		for _, v := range slices.Concat(req.Job.Env.Set, req.Job.Hosts.Nodes[0].WorkerEnv[rank]) {
			ours[v.Name] = v.Value
		}
		for name, why := range map[string]string{
			"HOROVOD_GLOO_RENDEZVOUS_ADDR": "known when the rendezvous is served",
			"HOROVOD_GLOO_RENDEZVOUS_PORT": "known when the rendezvous is served",
			"HOROVOD_GLOO_IFACE":           "looked up on each host",
			"NCCL_SOCKET_IFNAME":           "looked up on each host",
			"PWD":                          "of horovodrun's shell",
			"SHLVL":                        "of horovodrun's shell",
			"_":                            "of horovodrun's shell",
			"LC_CTYPE":                     "set by its Python where no locale is",
			"OLDPWD":                       "of horovodrun's shell",
		} {
			if _, ok := ours[name]; ok {
				t.Errorf("%s is set already: %s", name, why)
			}
			delete(theirs, name)
		}
		if diff := cmp.Diff(theirs, ours); diff != "" {
			t.Errorf("rank %d (-horovodrun +muster):\n%s", rank, diff)
		}
	}
}

func TestHorovodrunTexts(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-v"}, "0.28.1\n"},
		{[]string{"--version", "-np", "x"}, "0.28.1\n"},
		{[]string{"-cb"}, "[X] Gloo"},
		{[]string{"--check-build"}, "[ ] MPI"},
		{[]string{"-h"}, "--host-discovery-script COMMAND"},
		{[]string{"-np", "2", "--help"}, "-np N"},
	} {
		_, err := dialect.Read("horovodrun", dialect.Invocation{Args: c.args})
		if text, ok := errorsAsHelp(err); !ok || !strings.Contains(text, c.want) {
			t.Errorf("%q: %v %q", c.args, err, text)
		}
	}
}

// Muster's own flags stand in front, and the workers get nothing of torchelastic.
func TestHorovodrunOwnFlags(t *testing.T) {
	own, rest, err := dialect.ParseOwn(strings.Fields("--dry-run --grace 9s --status-file s.json horovodrun -np 2 python x.py"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := dialect.Read(rest[0], dialect.Invocation{Args: rest[1:], Own: own})
	if err != nil {
		t.Fatal(err)
	}
	j := &req.Job
	if !req.DryRun || j.StatusFile != "s.json" || j.Stop.Grace.Seconds() != 9 || len(j.Stop.Handled) == 0 {
		t.Errorf("%+v", j)
	}
	for _, name := range []string{"RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} {
		if !slices.Contains(j.Env.Unset, name) {
			t.Errorf("%s is not unset", name)
		}
	}
	if got := j.Sources["num-proc"]; got != (job.Source{Kind: job.FromFlag, Name: "--num-proc"}) {
		t.Errorf("source of -np: %v", got)
	}
}

// The page says of every flag what becomes of it.
func TestHorovodrunPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/compat/horovodrun.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range dialect.HorovodrunOptions() {
		for _, spelling := range o.Spellings {
			if !strings.Contains(spelling, "_") && !bytes.Contains(page, []byte("`"+spelling+"`")) &&
				!bytes.Contains(page, []byte("`"+spelling+" ")) {
				t.Errorf("%s is not on the page", spelling)
			}
		}
	}
}

func FuzzHorovodrun(f *testing.F) {
	f.Add("-np\x002\x00-H\x00a:2\x00python", "params:\n  cycle_time_ms: 3\n")
	f.Add("-np\x002\x00--config-file\x00c\x00x", "autotune: [1]\nparams: {cache_capacity: 1e99}\n")
	f.Add("--blacklist-cooldown-range\x001", "")
	f.Fuzz(func(t *testing.T, args, config string) {
		req, err := dialect.Horovodrun(dialect.Invocation{
			Args: strings.Split(args, "\x00"), ReadFile: func(string) ([]byte, error) { return []byte(config), nil },
		})
		if err != nil {
			if code := errhint.CodeOf(err); code != errhint.Usage && code != errhint.OK {
				t.Fatalf("status %d: %v", code, err)
			}
			return
		}
		names := map[string]bool{}
		for _, v := range req.Job.Env.Set {
			if names[v.Name] {
				t.Fatalf("%s is set twice", v.Name)
			}
			names[v.Name] = true
		}
		if !req.Horovod.Elastic && len(req.Horovod.Slots) == 0 {
			t.Fatalf("a world of nobody: %+v", slices.Sorted(maps.Keys(names)))
		}
	})
}

// TestFilesThatWereAskedFor: --output-filename writes all output to files, unless somebody says what goes there.
func TestFilesThatWereAskedFor(t *testing.T) {
	for words, want := range map[string]job.LogRules{
		"":              {Tee: job.StreamMap{Default: job.Both}},
		"--redirects 2": {Redirect: job.StreamMap{Default: job.Stderr}},
	} {
		own, _, err := dialect.ParseOwn(strings.Fields(words))
		if err != nil {
			t.Fatal(err)
		}
		req, err := dialect.Read("horovodrun", dialect.Invocation{
			Argv0: "muster", Own: own,
			Args: []string{"-np", "2", "--output-filename", "logs", "true"},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := job.LogRules{Tee: req.Job.Logs.Tee, Redirect: req.Job.Logs.Redirect}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", words, diff)
		}
	}
}
