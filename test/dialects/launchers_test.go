package dialects

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/cmd/here"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous"
	"muster/test/drive"
)

// launcherCase is a command line of cmd/dialect's corpus that is run by the real launcher and by muster.
type launcherCase struct {
	name, command string
	env           []string
	// dir is the working directory, with the case's files; home is in it.
	dir string
	// hosts is the hostfile's text.
	hosts string
}

// seenWorker is what a worker says of itself.
type seenWorker struct {
	Env  map[string]string
	Argv []string // less the interpreter's path
	Dir  string
}

// dumpScript is the training script: it writes down what it was started with.
const dumpScript = `import json, os, sys
place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dump")
os.makedirs(place, exist_ok=True)
with open(os.path.join(place, os.environ["RANK"]), "w") as f:
    json.dump({"Env": dict(os.environ), "Argv": sys.orig_argv[1:], "Dir": os.getcwd()}, f)
`

// launcherCases returns the cases with the file live, of which those marked soak run under MUSTER_SOAK=1 only.
func launcherCases(t *testing.T, launcher, python string) []launcherCase {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(drive.Root(), "cmd", "dialect", "testdata", launcher, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus of %s: %v", launcher, err)
	}
	var cases []launcherCase
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c := launcherCase{name: strings.TrimSuffix(filepath.Base(file), ".txtar"), dir: t.TempDir()}
		live := ""
		for _, f := range archive.Files {
			text := strings.TrimSpace(string(f.Data))
			switch f.Name {
			case "command":
				c.command = text
			case "env":
				c.env = strings.Split(text, "\n")
			case "live":
				live = text
			case "job":
			default:
				drive.WriteTree(t, filepath.Join(c.dir, f.Name), string(f.Data), 0o600)
			}
			if f.Name == "hosts" {
				c.hosts = text
			}
		}
		if live == "" || live == "soak" && !testutil.Soak() {
			continue
		}
		drive.WriteTree(t, filepath.Join(c.dir, "home", "here"), "", 0o600)
		drive.WriteTree(t, filepath.Join(c.dir, "train.py"), "#!"+python+"\n"+dumpScript, 0o700)
		cases = append(cases, c)
	}
	return cases
}

// environ is what both launchers are started in.
func (c *launcherCase) environ(bins ...string) []string {
	env := slices.DeleteFunc(drive.PeerEnviron(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"HOME", "PATH", "PWD", "OLDPWD", "SHLVL", "_", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES"}, name) ||
			strings.HasPrefix(name, "PYTHON")
	})
	env = append(env, "HOME="+filepath.Join(c.dir, "home"), "PWD="+c.dir, "PATH="+strings.Join(append(bins, os.Getenv("PATH")), ":"))
	return append(env, c.env...)
}

// run runs a command line by a shell, and returns what its workers wrote down, by rank.
func (c *launcherCase) run(t *testing.T, environ []string, command string) map[int]seenWorker {
	t.Helper()
	dump := filepath.Join(c.dir, "dump")
	if err := os.RemoveAll(dump); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "exec "+command)
	cmd.Env, cmd.Dir = environ, c.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	files, err := filepath.Glob(filepath.Join(dump, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no worker has told of itself\n%s", command, out)
	}
	seen := map[int]seenWorker{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var w seenWorker
		if err := json.Unmarshal(text, &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		rank, err := strconv.Atoi(filepath.Base(file))
		if err != nil {
			t.Fatal(err)
		}
		seen[rank] = w
	}
	return seen
}

// request is what muster makes of the command line.
func (c *launcherCase) request(t *testing.T, environ []string) dialect.Request {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `printf '%s\0' `+c.command).Output()
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	req, err := dialect.Read(words[0], dialect.Invocation{
		Argv0: "muster", Args: words[1:], Environ: environ, Dir: c.dir, ReadFile: func(name string) ([]byte, error) {
			if !filepath.IsAbs(name) {
				name = filepath.Join(c.dir, name)
			}
			return os.ReadFile(name)
		},
	})
	if err != nil {
		t.Fatalf("%s: %v", c.command, err)
	}
	return req
}

// plannedNode is the job on one node of several, where environ is what it has there, and the ranks before it.
func (c *launcherCase) plannedNode(t *testing.T, j job.Job, environ []string, node, nodes, base, world int, seen map[int]seenWorker) {
	t.Helper()
	j.Environ = environ
	machine, err := (&here.Here{Environ: environ}).Machine(j, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	machine.Dir = c.dir
	plan, err := plan.New(j, machine)
	if err != nil {
		t.Fatal(err)
	}
	r := rendezvous.Round{
		GroupRank: node, GroupWorldSize: nodes, BaseRank: base, BaseRoleRank: base, WorldSize: world, RoleWorldSize: world,
		MasterAddr: j.Meeting.Endpoints[0].Host, MasterPort: j.Meeting.Endpoints[0].Port, AgentStore: true,
	}
	for local := range plan.Procs {
		w, err := plan.Worker(r, local, 0, "/logs/attempt_0/0/error.json")
		if err != nil {
			t.Fatal(err)
		}
		s := seenWorker{Env: map[string]string{}, Argv: w.Argv[1:], Dir: w.Dir}
		for _, v := range w.Env {
			s.Env[v.Name] = v.Value
		}
		if plan.Job.Command.Kind == job.Program {
			s.Argv = w.Argv
		}
		seen[w.Rank] = s
	}
}

// plannedHosts is what workers on the hosts of a job get. far is the environment of a host; nil where the hosts are
// names of this machine.
func (c *launcherCase) plannedHosts(t *testing.T, req dialect.Request, far []string) map[int]seenWorker {
	t.Helper()
	seen := map[int]seenWorker{}
	world, base := 0, 0
	procs := func(n job.Node) int {
		count := n.Procs
		if count == "" {
			count = req.Job.Procs
		}
		number, err := strconv.Atoi(count)
		if err != nil {
			t.Fatal(err)
		}
		return number
	}
	for _, n := range req.Job.Hosts.Nodes {
		world += procs(n)
	}
	for i, n := range req.Job.Hosts.Nodes {
		j := req.Job
		j.Hosts = job.Hosts{}
		j.Procs, j.NodeEnv, j.WorkerEnv, j.Devices.Only = strconv.Itoa(procs(n)), n.Env, n.WorkerEnv, n.Devices
		j.Meeting.NodeRank = i
		if len(j.Meeting.Endpoints) == 0 {
			j.Meeting.Endpoints = []job.Endpoint{{Host: j.Meeting.Host, Port: j.Meeting.Port}}
		}
		environ := req.Job.Environ
		if far != nil {
			environ = job.RemoteEnviron(j.Env, far, environ)
		}
		c.plannedNode(t, j, environ, i, len(req.Job.Hosts.Nodes), base, world, seen)
		base += procs(n)
	}
	return seen
}

// difference is one between what the real launcher and muster give a worker, and why it is meant. Patterns are those of
// path.Match for cases and names, and regular expressions for values; absent stands for no variable of that name.
type difference struct{ cases, name, theirs, ours, reason string }

const absent = "(absent)"

// fits reports whether the difference explains that the variables of a case differ. A missing one has the value absent.
func (d difference) fits(c, name, theirs, ours string) bool {
	matches := func(pattern, text string) bool {
		ok, err := path.Match(pattern, text)
		return ok && err == nil
	}
	value := func(pattern, text string) bool {
		if pattern == absent || text == absent {
			return pattern == text
		}
		return regexp.MustCompile(`(?s)^(` + pattern + `)$`).MatchString(text)
	}
	inCases := slices.ContainsFunc(strings.Fields(d.cases), func(p string) bool { return matches(p, c) })
	return inCases && matches(d.name, name) && value(d.theirs, theirs) && value(d.ours, ours)
}

// ofShells are variables that shells set for themselves, and that a test needs.
var ofShells = []string{"_", "PWD", "OLDPWD", "SHLVL", "XDG_RUNTIME_DIR"}

// compare fails the test for every difference that is not listed. used collects what is met.
func (c *launcherCase) compare(t *testing.T, theirs, ours map[int]seenWorker, listed []difference, used *met) {
	t.Helper()
	used.ran()
	if !slices.Equal(slices.Sorted(maps.Keys(theirs)), slices.Sorted(maps.Keys(ours))) {
		t.Fatalf("ranks %v under the real launcher, %v under muster", slices.Sorted(maps.Keys(theirs)), slices.Sorted(maps.Keys(ours)))
	}
	explained := func(name, theirs, ours string) bool {
		for i, d := range listed {
			if d.fits(c.name, name, theirs, ours) {
				used.add(i)
				return true
			}
		}
		return false
	}
	for rank, their := range theirs {
		our := ours[rank]
		names := map[string]bool{}
		for name := range their.Env {
			names[name] = true
		}
		for name := range our.Env {
			names[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			of := func(env map[string]string) string {
				if value, ok := env[name]; ok {
					return value
				}
				return absent
			}
			if a, b := of(their.Env), of(our.Env); a != b && !slices.Contains(ofShells, name) && !explained(name, a, b) {
				t.Errorf("rank %d: %s is %q under the real launcher, %q under muster", rank, name, a, b)
			}
		}
		if a, b := fmt.Sprintf("%q", their.Argv), fmt.Sprintf("%q", our.Argv); a != b && !explained("argv", a, b) {
			t.Errorf("rank %d: arguments are %s under the real launcher, %s under muster", rank, a, b)
		}
		if their.Dir != our.Dir {
			t.Errorf("rank %d: the working directory is %s under the real launcher, %s under muster", rank, their.Dir, our.Dir)
		}
	}
}

// met are the listed differences, by their places, that cases showed, and how many cases there were.
type met struct {
	mu     sync.Mutex
	places map[int]bool
	cases  int
}

func (m *met) ran() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cases++
}

func (m *met) add(place int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.places == nil {
		m.places = map[int]bool{}
	}
	m.places[place] = true
}

// all fails the test for differences that no case showed, where all of these cases were run.
func (m *met) all(t *testing.T, listed []difference, cases int) {
	if !testutil.Soak() || m.cases < cases || t.Failed() {
		return
	}
	for i, d := range listed {
		if !m.places[i] {
			t.Errorf("nothing differs as listed: %+v", d)
		}
	}
}

// ourNames are the differences that every launcher without torchelastic's variables has.
func ourNames(reason string) []difference {
	var list []difference
	for _, name := range []string{
		"GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_*",
	} {
		list = append(list, difference{"*", name, absent, ".*", reason})
	}
	return list
}

// musterNames are variables of muster's own.
func musterNames() difference {
	return difference{"*", "MUSTER_*", absent, ".*", "by these muster knows its own"}
}

var errNoSlots = errors.New("no slots")

// slotsBefore adds up the slots of a hostfile's first n hosts, and of all.
func slotsBefore(hostfile string, n int) (before, all int, err error) {
	for i, m := range regexp.MustCompile(`slots=(\d+)`).FindAllStringSubmatch(hostfile, -1) {
		slots, err := strconv.Atoi(m[1])
		if err != nil {
			return 0, 0, err
		}
		if i < n {
			before += slots
		}
		all += slots
	}
	if all == 0 {
		return 0, 0, errNoSlots
	}
	return before, all, nil
}
