package drive

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/internal/testutil"
)

// HostsJob is a job that is started from one host on others, by ssh.
type HostsJob struct {
	T *testing.T
	// Launcher is where muster is started; On are the other hosts, node1 and so on, with an sshd each.
	Launcher *testutil.Host
	On       []*testutil.Host
	SSHD     []*testutil.SSHServer
	Client   *testutil.SSHClient
	Out      string // a file per worker, with its environment
	Env      []string
	Runs     []*HostsRun
}

// HostsRun is one launcher.
type HostsRun struct {
	*testutil.HostCommand
	Out, Err testutil.Buffer
	Began    time.Time
}

// hostsCache is where hosts keep our binary. All tests of a process have the same one: to pack it, bring it, unpack it and
// add it up takes a second and more of processor time. A test of how it comes has a place of its own.
var hostsCache = sync.OnceValues(func() (string, error) {
	return makeDir("muster-hosts-")
})

// NewHostsJob makes a launcher's host and n others, whose servers may be changed.
func NewHostsJob(t *testing.T, n int, change ...func(name string, cfg *testutil.SSHDConfig)) *HostsJob {
	t.Helper()
	testutil.Long(t)
	all := testutil.Hosts(t, n+1)
	j := &HostsJob{T: t, Launcher: all[0], On: all[1:], Client: testutil.NewSSHClient(t), Out: t.TempDir()}
	cache, err := hostsCache()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range j.On {
		cfg := testutil.SSHDConfig{Client: j.Client, Host: h, Env: []string{"XDG_CACHE_HOME=" + cache, EndAtOnce}}
		for _, f := range change {
			f(h.Name, &cfg)
		}
		j.SSHD = append(j.SSHD, testutil.SSHD(t, cfg))
	}
	t.Cleanup(j.Tell)
	return j
}

// Tell shows what the launchers have said, where the test has failed.
func (j *HostsJob) Tell() {
	if !j.T.Failed() {
		return
	}
	for _, r := range j.Runs {
		line := strings.Join(r.Args, " ")
		j.T.Logf("%s:\n%s%s", line[:min(len(line), 2000)], r.Out.String(), r.Err.String())
	}
}

// Names are those of the hosts with an sshd.
func (j *HostsJob) Names() string {
	var names []string
	for _, h := range j.On {
		names = append(names, h.Name)
	}
	return strings.Join(names, ",")
}

// Start starts muster with args on the launcher's host.
func (j *HostsJob) Start(args ...string) *HostsRun {
	j.T.Helper()
	r := &HostsRun{HostCommand: j.Launcher.Command("muster", args...), Began: time.Now()}
	r.Env = append(append(CleanEnviron(), j.Launcher.Environ()...), "HOME="+j.Client.Home, "OUT="+j.Out, EndAtOnce)
	r.Env = append(r.Env, j.Env...)
	r.Stdout, r.Stderr = &r.Out, &r.Err
	if err := r.Start(); err != nil {
		j.T.Fatal(err)
	}
	j.Runs = append(j.Runs, r)
	return r
}

// Ends fails the test unless the launcher ends with the status, and has said the words.
func (j *HostsJob) Ends(r *HostsRun, want int, words ...string) {
	j.T.Helper()
	select {
	case <-r.Ended():
	case <-time.After(2 * time.Minute):
		j.T.Fatalf("the launcher has not ended after 2 minutes")
	}
	if r.Status() != want {
		j.T.Errorf("status %d, want %d", r.Status(), want)
	}
	for _, w := range words {
		if !strings.Contains(r.Out.String()+ForPeople(r.Err.String()), w) {
			j.T.Errorf("nobody has said %q", w)
		}
	}
	for line := range strings.Lines(r.Err.String()) {
		if key := twiceIn(line); key != "" {
			j.T.Errorf("a line of the log has %q twice: %s", key, line)
		}
	}
}

// twiceIn returns a key that an object of JSON has twice, empty where there is none, or no object: who reads it would
// take the last one.
func twiceIn(object string) string {
	d := json.NewDecoder(strings.NewReader(object))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return ""
	}
	seen := map[any]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return ""
		}
		if seen[key] {
			return fmt.Sprint(key)
		}
		seen[key] = true
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return ""
		}
	}
	return ""
}

// Says waits until the launcher has said something.
func (j *HostsJob) Says(r *HostsRun, words string) {
	j.T.Helper()
	testutil.Eventually(j.T, time.Minute, "the launcher says "+strconv.Quote(words), func() bool {
		return strings.Contains(r.Out.String()+ForPeople(r.Err.String()), words)
	})
}

// Workers returns the environments of the workers that have shown themselves, by file name.
func (j *HostsJob) Workers() map[string]map[string]string {
	j.T.Helper()
	files, err := filepath.Glob(filepath.Join(j.Out, "[0-9]*"))
	if err != nil {
		j.T.Fatal(err)
	}
	all := map[string]map[string]string{}
	for _, file := range files {
		if !strings.HasSuffix(file, "~") {
			all[filepath.Base(file)] = ReadEnvironment(j.T, file)
		}
	}
	return all
}

// Clean waits until nothing of a job runs on any host: muster, or a worker.
func (j *HostsJob) Clean(within time.Duration) {
	j.T.Helper()
	left := func() []string {
		var all []string
		for _, h := range append([]*testutil.Host{j.Launcher}, j.On...) {
			for _, p := range h.Processes() {
				if cmd := strings.Join(p.Args, " "); strings.Contains(cmd, "muster") || strings.Contains(cmd, "sleep") {
					all = append(all, h.Name+": "+cmd)
				}
			}
		}
		return all
	}
	testutil.Eventually(j.T, within, "nothing of the job is left", func() bool { return len(left()) == 0 })
}

// Again forgets what workers have shown, and fails the test through t from now on.
func (j *HostsJob) Again(t *testing.T) *HostsJob {
	t.Helper()
	next := *j
	next.T, next.Out, next.Runs = t, t.TempDir(), nil
	t.Cleanup(next.Tell)
	return &next
}

// RanksOn fails the test unless the workers of a round were those, by rank, of the hosts of these names.
func (j *HostsJob) RanksOn(round int, names ...string) {
	j.T.Helper()
	all := j.Workers()
	for rank, name := range names {
		worker := all[strconv.Itoa(rank)+"."+strconv.Itoa(round)]
		if worker["HOST"] != name || worker["WORLD_SIZE"] != strconv.Itoa(len(names)) {
			j.T.Errorf("rank %d of round %d was on %q in a world of %q, want %s and %d", rank, round, worker["HOST"], worker["WORLD_SIZE"],
				name, len(names))
		}
	}
}

// Forget removes what workers have shown.
func (j *HostsJob) Forget() {
	j.T.Helper()
	files, _ := filepath.Glob(filepath.Join(j.Out, "*"))
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			j.T.Fatal(err)
		}
	}
}
