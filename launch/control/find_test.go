package control

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/internal/unixsocket"
	"muster/launch/rundir"
)

// runDir makes a run directory in a parent, locked as that of a job that runs unless it is to be a dead one's.
func runDir(t *testing.T, parent, id string, locked bool) string {
	t.Helper()
	dir := filepath.Join(parent, rundir.Name(id))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if locked {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// parentDir makes what holds run directories.
func parentDir(t *testing.T) (string, rundir.Places) {
	t.Helper()
	parent := t.TempDir()
	if err := os.Chmod(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	return parent, rundir.Places{Parent: parent, Safe: []string{parent}}
}

// TestFind: jobs that answer, one that does not, one without a socket, dead ones with and without a socket.
func TestFind(t *testing.T) {
	t.Parallel()
	parent, places := parentDir(t)
	serve(t, Config{Dir: runDir(t, parent, "alive", true), Served: &fakeJob{id: "alive"}, Muster: Muster{Role: Agent}})
	silent, err := unixsocket.Listen(filepath.Join(runDir(t, parent, "silent", true), socketName))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	runDir(t, parent, "mute", true)
	runDir(t, parent, "dead", false)
	gone, err := unixsocket.Listen(filepath.Join(runDir(t, parent, "stale", false), socketName))
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	began := time.Now()
	found, err := Find(t.Context(), places)
	if err != nil || len(found) != 5 {
		t.Fatalf("%+v, %v", found, err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	by := map[string]Found{}
	for _, f := range found {
		by[f.RunID()] = f
	}
	if f := by["alive"]; f.Answer == nil || f.PID != os.Getpid() || f.Dead() || f.Silent() {
		t.Errorf("%+v", f)
	}
	if f := by["silent"]; !f.Silent() || f.Dead() || f.PID != os.Getpid() || !strings.Contains(f.Err.Error(), "does not answer within 5s") {
		t.Errorf("%+v", f)
	}
	if f := by["mute"]; f.Silent() || f.Dead() || errhint.CodeOf(f.Err) != errhint.Usage ||
		!strings.Contains(f.Err.Error(), "no control socket") {
		t.Errorf("%+v", f)
	}
	for _, id := range []string{"dead", "stale"} {
		if f := by[id]; !f.Dead() || errhint.CodeOf(f.Err) != errhint.Usage || !strings.Contains(f.Err.Error(), "its muster is dead") {
			t.Errorf("%+v", f)
		}
	}
	for name, want := range map[string]int{"silent": errhint.TryAgain, "dead": errhint.Usage, "mute": errhint.Usage, "alive": 0} {
		if _, err := Pick(t.Context(), found, name, "here"); errhint.CodeOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWholeOfLauncher: a list of jobs tells as many restarts of a launcher's job as its status does, which has its ranks.
func TestWholeOfLauncher(t *testing.T) {
	t.Parallel()
	for _, role := range []Role{Launcher, Simulation, Driver} {
		parent, places := parentDir(t)
		dir := runDir(t, parent, "it", true)
		serve(t, Config{Dir: dir, Served: &manyRanks{fakeJob: fakeJob{id: "it"}}, Muster: Muster{Role: role}})
		found, err := Find(t.Context(), places)
		if err != nil || len(found) != 1 {
			t.Fatalf("%+v, %v", found, err)
		}
		Whole(t.Context(), found)
		if n := found[0].Answer.Restarts(); n != 2 {
			t.Errorf("%s: %d restarts, want 2", role, n)
		}
	}
}

// TestPick: which job a name means.
func TestPick(t *testing.T) {
	t.Parallel()
	job := func(id string, pid int, role Role, part bool) Found {
		a := &Answer{Muster: Muster{Role: role, Part: part}}
		a.RunID = id
		return Found{Dir: "/run/" + id + strconv.Itoa(pid), PID: pid, Answer: a}
	}
	dead := Found{Dir: "/run/job-old", Err: errhint.Code(errDead, errhint.Usage)}
	all := []Found{
		job("train-1", 10, Agent, false), job("train-22", 11, Agent, false), job("eval", 12, Launcher, false),
		job("eval", 13, Agent, true), job("eval", 14, Agent, true), dead,
	}
	// Node 1 of llama runs dlrover-run, whose job has the same name; a worker of that has started something else.
	inner, deeper := job("llama", 32, Agent, false), job("data", 33, Agent, false)
	inner.Answer.Muster.Within, deeper.Answer.Muster.Within = "/run/llama31", "/run/llama32"
	nested := []Found{deeper, inner, job("llama", 30, Launcher, false), job("llama", 31, Agent, true)}
	// Node 0 of fz stands still, node 1 answers.
	silent := func(dir string, pid int) Found {
		return Found{Dir: dir, PID: pid, Err: errhint.Code(errSilent, errhint.TryAgain)}
	}
	still := []Found{silent("/run/job-fz", 40), silent("/run/job-fz.abcd", 41), job("fz", 42, Agent, false)}
	for _, c := range []struct {
		found     []Found
		name      string
		pid       int    // of the one that is chosen
		code      int    // of the error
		says, not string // in the error
	}{
		{all, "train-1", 10, 0, "", ""},
		{all, "train-2", 11, 0, "", ""}, // a beginning
		{all, "train", 0, 2, `2 jobs here match "train": train-1 (pid 10`, "eval"},
		{all, "eval", 12, 0, "", ""}, // and not its parts
		{all, "14", 14, 0, "", ""},   // by pid: a part
		{all, "1", 0, 2, `no job that runs here matches "1": it was looked for in HERE`, ""},
		{all, "", 0, 2, "there are 3 jobs here", "pid 13"},
		{all, "old", 0, 2, "its muster is dead", ""},
		{all[2:], "", 12, 0, "", ""},
		{all[3:4], "", 13, 0, "", ""}, // its launcher is on another machine
		{nested, "", 30, 0, "", ""},
		{nested, "llama", 30, 0, "", ""},
		{nested, "32", 32, 0, "", ""},
		{nested, "data", 33, 0, "", ""},
		{append(nested[:4:4], all[0]), "", 0, 2, "there are 2 jobs here: llama (pid 30", "data"},
		{nested[:2], "", 32, 0, "", ""}, // the node's own launcher is on another machine
		{nil, "", 0, 2, "no job of yours runs here", ""},
		{all[5:], "", 0, 2, "no job of yours runs here", ""},
		{still, "fz", 42, 0, "", ""},
		{still[1:], "fz", 42, 0, "", ""},
		{[]Found{still[0], still[2]}, "", 42, 0, "", ""},
		{still, "", 0, 2, "there are 2 jobs here: fz.abcd (pid 41", "pid 40"}, // fz.abcd may be another job
		{still, "f", 0, 2, `2 jobs here match "f"`, ""},
		{still, "40", 0, 75, errSilent.Error(), ""},
		{still[:1], "fz", 0, 75, errSilent.Error(), ""},
		{append(still[:1:1], all[0]), "", 0, 2, "there are 2 jobs here: fz (pid 40", ""},
	} {
		f, err := Pick(t.Context(), c.found, c.name, "HERE")
		if err == nil && f.PID != c.pid || errhint.CodeOf(err) != c.code {
			t.Errorf("%q: pid %d, status %d: %v", c.name, f.PID, errhint.CodeOf(err), err)
			continue
		}
		if err != nil && (!strings.Contains(err.Error(), c.says) || c.not != "" && strings.Contains(err.Error(), c.not)) {
			t.Errorf("%q: %v", c.name, err)
		}
	}
	if parts := Parts(all, all[2]); len(parts) != 3 || parts[0].PID != 12 {
		t.Errorf("%+v", parts)
	}
	if parts := Parts(all, all[0]); len(parts) != 1 {
		t.Errorf("%+v", parts)
	}
}

// TestPickDirectory: a run directory by its path, from wherever it is.
func TestPickDirectory(t *testing.T) {
	t.Parallel()
	parent, _ := parentDir(t)
	dir := serve(t, Config{Dir: runDir(t, parent, "away", true), Served: &fakeJob{id: "away"}})
	if f, err := Pick(t.Context(), nil, dir, "HERE"); err != nil || f.RunID() != "away" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := Pick(t.Context(), nil, filepath.Join(parent, "none"), "HERE"); errhint.CodeOf(err) != errhint.Usage ||
		!strings.Contains(err.Error(), "there is no run directory") {
		t.Errorf("%v", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Pick(t.Context(), nil, dir, "HERE"); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "only you") {
		t.Errorf("others can write there: %v", err)
	}
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to be two users")
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, testutil.OtherUserID, testutil.OtherUserID)); err != nil {
		t.Fatal(err)
	}
	if _, err := Pick(t.Context(), nil, dir, "HERE"); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "only you") {
		t.Errorf("of another user: %v", err)
	}
}

// TestOddAnswers: what answers there is not a muster, or dies while it answers.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		code   int
		says   string
	}{
		"nothing":     {"", errhint.TryAgain, "has ended while it was asked"},
		"half":        {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"runId\":", errhint.TryAgain, "has ended while it was asked"},
		"no JSON":     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", errhint.Internal, "cannot read the answer"},
		"no sentence": {"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nhi", errhint.Internal, "the answer is 500 No"},
		"escapes": {
			"HTTP/1.1 404 No\r\nContent-Length: 35\r\n\r\n{\"error\":\"a\\u001b[2Jb\",\"status\":2}\n", errhint.Usage,
			`a\x1b[2Jb`,
		},
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := unixsocket.Listen(filepath.Join(dir, socketName))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func(conn net.Conn) {
					defer conn.Close()
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = io.WriteString(conn, c.answer)
				}(conn)
			}
		}()
		if _, err := Dial(dir).Status(t.Context(), World); errhint.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: status %d: %v", name, errhint.CodeOf(err), err)
		}
	}
}

// Two nodes of one job on this machine are one job; two jobs with one run id are two.
func TestJobsOfSeveralNodes(t *testing.T) {
	t.Parallel()
	node := func(id, meets string, pid int, role Role) Found {
		a := &Answer{Muster: Muster{Role: role, PID: pid, Meets: meets}}
		a.RunID = id
		return Found{Dir: "/run/" + id + strconv.Itoa(pid), PID: pid, Answer: a}
	}
	found := []Found{
		node("it", "static 10.0.0.1:29500", 1, Agent), node("it", "static 10.0.0.1:29500", 2, Agent),
		node("it", "static 10.0.0.2:29500", 3, Agent),
		node("alone", "", 4, Agent), node("alone", "", 5, Agent), node("other", "static 10.0.0.1:29500", 6, Agent),
		{Dir: "/run/dead", Err: errDead},
	}
	var pids []int
	for _, f := range Jobs(found) {
		pids = append(pids, f.PID)
	}
	if want := []int{1, 3, 4, 5, 6, 0}; !slices.Equal(pids, want) {
		t.Errorf("%v, want %v", pids, want)
	}
	if parts := Parts(found, found[1]); len(parts) != 2 || parts[0].PID != 2 || parts[1].PID != 1 {
		t.Errorf("%+v", parts)
	}
	two := found[:2]
	if f, err := Pick(t.Context(), two, "it", "here"); err != nil || f.PID != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := Pick(t.Context(), two, "2", "here"); err != nil || f.PID != 2 {
		t.Errorf("by its process id: %+v, %v", f, err)
	}
}

// An agent that has no socket yet, or no longer, is no job of its own beside its launcher; one that does not answer is
// listed.
func TestJobsOfAgentThatBegins(t *testing.T) {
	t.Parallel()
	launcher := &Answer{Muster: Muster{Role: Driver, PID: 1}}
	launcher.RunID = "it"
	found := []Found{
		{Dir: "/run/job-it", Err: errMute},
		{Dir: "/run/job-it.launcher", PID: 1, Answer: launcher},
		{Dir: "/run/job-it.2", PID: 2, Err: errDead},
		{Dir: "/run/job-it.abcd2345", Err: errMute}, // another agent of the job
		{Dir: "/run/job-it.abcd2345.y", Err: errMute},
		{Dir: "/run/job-other", Err: errMute},
	}
	var dirs []string
	for _, f := range Jobs(found) {
		dirs = append(dirs, f.Dir)
	}
	want := []string{"/run/job-it.launcher", "/run/job-it.2", "/run/job-it.abcd2345.y", "/run/job-other"}
	if !slices.Equal(dirs, want) {
		t.Errorf("%v, want %v", dirs, want)
	}
}
