package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/rendezvous"
)

// testStatus opens a status file whose clock advances a second with each look.
func testStatus(t *testing.T, path string) (*StatusFile, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	now := failedAt
	s, err := OpenStatus(StatusConfig{
		Path: path, RunID: "run7", Name: "train.py", Node: "node-1", Workers: 4, Log: zerolog.New(log),
		Now: func() time.Time { now = now.Add(time.Second); return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, log
}

func conditions(doc Status) map[conditionType]string {
	m := make(map[conditionType]string)
	for _, c := range doc.Conditions {
		m[c.Type] = c.Status
	}
	return m
}

// TestStatusThroughALife follows a job that fails once, is started again and fails for good.
func TestStatusThroughALife(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	s, _ := testStatus(t, path)
	check := func(p Phase, counts Counts, want map[conditionType]string) Status {
		t.Helper()
		doc := readStatus(t, path)
		if doc.Phase != p || doc.Counts != counts || doc.Version != 1 || doc.RunID != "run7" || doc.Name != "train.py" {
			t.Errorf("phase %s with %+v: %+v", p, counts, doc)
		}
		if len(doc.Tasks) != 1 || doc.Tasks[0].Ranks != "0-3" || doc.Tasks[0].Node != "node-1" || doc.Tasks[0].Phase != p {
			t.Errorf("tasks %+v", doc.Tasks)
		}
		if diff := cmp.Diff(want, conditions(doc)); diff != "" {
			t.Errorf("%s: conditions (-want +got):\n%s", p, diff)
		}
		if (doc.ExitStatus != nil) != (doc.EndTime != nil) {
			t.Errorf("%s: exit status without end, or the reverse: %+v", p, doc)
		}
		return doc
	}
	check(PhasePending, Counts{Pending: 4}, map[conditionType]string{})
	s.Creating(rendezvous.Round{Number: 0, GroupWorldSize: 1, WorldSize: 4}, 0, "127.0.0.1:29500")
	if doc := check(PhaseCreating, Counts{Creating: 4}, map[conditionType]string{}); doc.StoreAddress != "127.0.0.1:29500" {
		t.Errorf("store address %q", doc.StoreAddress)
	}
	s.Running()
	on := map[conditionType]string{"Initialized": "True", "Running": "True", "ReplicaFailure": "False"}
	first := check(PhaseRunning, Counts{Running: 4}, on)
	s.Restarting(1, Why{Reason: job.ReasonWorkerFailed, Message: "rank 2 ended with status 137; restart 1 after 1s", Failed: true})
	off := map[conditionType]string{"Initialized": "True", "Running": "False", "ReplicaFailure": "True"}
	doc := check(PhaseRestarting, Counts{Terminating: 4}, off)
	if doc.RestartCount != 1 || doc.Tasks[0].RestartCount != 1 || doc.Message != "rank 2 ended with status 137; restart 1 after 1s" {
		t.Errorf("%+v", doc)
	}
	s.Creating(rendezvous.Round{Number: 1, GroupWorldSize: 1, WorldSize: 4}, 1, "127.0.0.1:29501")
	check(PhaseCreating, Counts{Creating: 4}, off)
	s.Running()
	doc = check(PhaseRunning, Counts{Running: 4}, on)
	if doc.Generation != 1 || doc.Reason != "" || doc.Message != "" || !doc.StartTime.Equal(*first.StartTime) {
		t.Errorf("%+v", doc)
	}
	if a, b := first.Conditions[0], doc.Conditions[0]; a.Type != "Initialized" || a.LastTransitionTime != b.LastTransitionTime {
		t.Errorf("the time of a condition that did not change moved: %+v, %+v", a, b)
	}
	if a, b := first.Conditions[1], doc.Conditions[1]; a.Type != "Running" || !b.LastTransitionTime.After(a.LastTransitionTime) {
		t.Errorf("the time of a condition that changed stayed: %+v, %+v", a, b)
	}
	d := Why{Reason: job.ReasonMaxRestarts, Message: "rank 2 ended with status 137, and no restart is left", Failed: true}
	s.Terminating(d)
	doc = check(PhaseTerminating, Counts{Terminating: 4}, off)
	if doc.Reason != job.ReasonMaxRestarts || doc.Message != "rank 2 ended with status 137, and no restart is left" {
		t.Errorf("%+v", doc)
	}
	exits := []Exit{
		{Rank: 0},
		{Rank: 1, LocalRank: 1, Signal: syscall.SIGTERM, Stopped: true},
		{
			Rank: 2, LocalRank: 2, PID: 77, Signal: syscall.SIGKILL, At: failedAt, LastLines: strings.Fields(strings.Repeat("x\x1bx ", 60)),
		},
		{Rank: 3, LocalRank: 3, Code: 1, At: failedAt, LastLines: []string{glooLine}},
	}
	report := New(Input{Title: "train.py", Host: "node-1", Exits: exits, Blamed: -1})
	s.Finished(Outcome{Status: 137, Reason: d.Reason, Message: d.Message, Exits: exits, Report: report})
	off["Failed"] = "True"
	doc = check(PhaseFailed, Counts{Succeeded: 1, Failed: 2, Stopped: 1}, off)
	if *doc.ExitStatus != 137 || *doc.Tasks[0].ExitCode != 137 || doc.Hint == "" || !doc.EndTime.After(*doc.StartTime) {
		t.Errorf("%+v", doc)
	}
	c := doc.RootCause
	if c == nil || c.Rank != 2 || c.LocalRank != 2 || c.PID != 77 || c.ExitCode != 137 || c.Signal != "SIGKILL" ||
		c.Cause != "killed" || c.Host != "node-1" || !c.Time.Equal(failedAt) {
		t.Fatalf("root cause %+v", c)
	}
	if len(c.LastLines) != LastLinesKept || c.LastLines[0] != `x\x1bx` {
		t.Errorf("%d last lines, the first is %q", len(c.LastLines), c.LastLines[0])
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("files are left: %v", left)
	}
}

func TestStatusEnds(t *testing.T) {
	for _, c := range []struct {
		outcome Outcome
		phase   Phase
		holds   conditionType
	}{
		{Outcome{Reason: job.ReasonSurplus}, PhaseSucceeded, conditionCompleted},
		{Outcome{Status: 75, Reason: job.ReasonNotMet}, PhaseFailed, conditionFailed},
		{Outcome{Status: 124, Reason: job.ReasonDeadline}, PhaseTimeout, conditionFailed},
		{Outcome{Status: 143, Reason: job.ReasonStopped}, PhaseFailed, conditionFailed},
		{Outcome{Status: 125, Reason: job.ReasonInternal, Message: "cannot start", Hint: "try"}, PhaseFailed, conditionFailed},
	} {
		path := filepath.Join(t.TempDir(), "status.json")
		s, _ := testStatus(t, path)
		s.Finished(c.outcome)
		doc := readStatus(t, path)
		if doc.Phase != c.phase || conditions(doc)[c.holds] != "True" || *doc.ExitStatus != c.outcome.Status ||
			doc.Reason != c.outcome.Reason || doc.Hint != c.outcome.Hint || doc.StartTime != nil || doc.RootCause != nil ||
			doc.Counts != (Counts{Stopped: 4}) { // no worker was started
			t.Errorf("%+v: %+v", c.outcome, doc)
		}
		s, _ = testStatus(t, path)
		s.Running()
		s.Finished(c.outcome) // nobody knows how they ended
		if doc = readStatus(t, path); doc.Counts != (Counts{Unknown: 4}) {
			t.Errorf("%+v of workers that ran: %+v", c.outcome, doc.Counts)
		}
	}
}

// TestStatusCauseFromErrorFile: what the worker wrote itself, and a signal that has no name.
func TestStatusCauseFromErrorFile(t *testing.T) {
	dir := t.TempDir()
	path, file := filepath.Join(dir, "status.json"), filepath.Join(dir, "error.json")
	writeFile(t, file, `{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback"}}}`)
	s, _ := testStatus(t, path)
	exits := []Exit{{Rank: 5, Signal: syscall.Signal(40), CoreDumped: true, At: failedAt, ErrorFile: file}}
	report := New(Input{Exits: exits, Kernel: Evidence{OOMKills: 2, OOMGroup: "/job"}, Blamed: -1})
	s.Finished(Outcome{Status: report.Status(), Reason: job.ReasonWorkerFailed, Exits: exits, Report: report})
	c := readStatus(t, path).RootCause
	if c.Error != "ValueError: boom" || c.Traceback != "Traceback" || c.ErrorFile != file {
		t.Errorf("error %q, traceback %q, file %q", c.Error, c.Traceback, c.ErrorFile)
	}
	if c.Signal != "signal 40" || c.ExitCode != 168 || !c.CoreDumped || len(c.Evidence) != 2 {
		t.Errorf("%+v", c)
	}
}

// TestStatusPathRefused: nothing may start when the status file cannot be what it should.
func TestStatusPathRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	writeFile(t, file, "")
	fifo, dangling, null := filepath.Join(dir, "fifo"), filepath.Join(dir, "dangling"), filepath.Join(dir, "null")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{dangling: filepath.Join(dir, "nowhere"), null: "/dev/null"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{
		dir, filepath.Join(dir, "missing", "status"), filepath.Join(file, "status"), fifo, dangling, null,
		"/dev/null", "/proc/status",
	} {
		s, err := OpenStatus(StatusConfig{Path: path, Workers: 1, Now: time.Now})
		if err == nil {
			t.Errorf("%s was taken: %+v", path, s)
		} else if errhint.CodeOf(err) != errhint.Usage || errhint.Of(err) == "" ||
			!strings.HasPrefix(err.Error(), "cannot write the status file ") {
			t.Errorf("%s: status %d, hint %q: %v", path, errhint.CodeOf(err), errhint.Of(err), err)
		}
	}
}

// TestStatusThroughSymlink: the file that the link leads to is replaced, not the link.
func TestStatusThroughSymlink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	writeFile(t, file, "old")
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	s, _ := testStatus(t, link)
	s.Running()
	if doc := readStatus(t, file); doc.Phase != PhaseRunning {
		t.Errorf("%+v", doc)
	}
	if to, err := os.Readlink(link); err != nil || to != "file" {
		t.Errorf("the link became %q, %v", to, err)
	}
}

// TestStatusThroughLinkOfAnotherUser: the status file is not written to where a link of another user leads, also one that
// comes while the job runs; and a status file that was private stays so.
func TestStatusThroughLinkOfAnotherUser(t *testing.T) {
	home, shared := testutil.ReachedDir(t, 0o755), testutil.ReachedDir(t, 0o777)
	keys, path := filepath.Join(home, "authorized_keys"), filepath.Join(shared, "status.json")
	writeFile(t, keys, "keys")
	testutil.RunOtherUser(t, "ln", "-s", keys, path)
	cfg := StatusConfig{Path: path, RunID: "r", Now: time.Now}
	if _, err := OpenStatus(cfg); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "symbolic link of user") {
		t.Errorf("opened: %v", err)
	}
	testutil.RunOtherUser(t, "rm", path)
	writeFile(t, path, "")
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	s, log := testStatus(t, path)
	s.Running()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	testutil.RunOtherUser(t, "ln", "-sf", keys, path)
	s.Finished(Outcome{Reason: job.ReasonSucceeded})
	if text, err := os.ReadFile(keys); err != nil || string(text) != "keys" {
		t.Errorf("%q, %v", text, err)
	}
	if !strings.Contains(log.String(), "symbolic link of user") {
		t.Errorf("log: %s", log)
	}
}

// TestStatusNoRoom: a status file for which there is no room is refused with the hint to make some.
func TestStatusNoRoom(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=1"); err != nil {
		testutil.Missing(t, "root, to mount a small tmpfs")
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	_, err := OpenStatus(StatusConfig{Path: filepath.Join(dir, "status.json"), Now: time.Now})
	if errhint.CodeOf(err) != errhint.Usage || !strings.Contains(errhint.Of(err), "make room on the file system of ") {
		t.Errorf("%v; hint %q", err, errhint.Of(err))
	}
}

// TestStatusDiskFull: a disk that fills up later costs one line of log, and the file keeps its last whole state.
func TestStatusDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		testutil.Missing(t, fmt.Sprintf("permission to mount (%v)", err))
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	path := filepath.Join(dir, "status.json")
	s, log := testStatus(t, path)
	s.Creating(rendezvous.Round{Number: 0, GroupWorldSize: 1, WorldSize: 4}, 0, "")
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	_ = filler.Close()
	s.Running()
	s.Terminating(Why{Reason: job.ReasonSucceeded})
	if doc := readStatus(t, path); doc.Phase != PhaseCreating {
		t.Errorf("phase %s", doc.Phase)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "no space left") {
		t.Errorf("log: %s", log)
	}
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	s.Finished(Outcome{Reason: job.ReasonSucceeded})
	if doc := readStatus(t, path); doc.Phase != PhaseSucceeded {
		t.Errorf("phase %s after there was room again", doc.Phase)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files are left: %v", left)
	}
}

func TestTerminationLog(t *testing.T) {
	lines := strings.Split(strings.Repeat(strings.Repeat("é\"", 300)+"\n", 60), "\n")
	exits := []Exit{{Rank: 1, Code: 9, At: failedAt, LastLines: lines}}
	report := New(Input{Title: "train.py", Host: "node-1", Exits: exits, Blamed: -1})
	for _, name := range []string{"train.py", strings.Repeat("\x01", 5000)} {
		log := filepath.Join(t.TempDir(), "termination-log")
		writeFile(t, log, strings.Repeat("old", 9000))
		before, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		s, err := OpenStatus(StatusConfig{TerminationLog: log, Name: name, RunID: "r", Workers: 2, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		s.Creating(rendezvous.Round{Number: 0, GroupWorldSize: 1, WorldSize: 4}, 0, "127.0.0.1:1")
		s.Running()
		s.Finished(Outcome{Status: 9, Reason: job.ReasonWorkerFailed, Message: strings.Repeat("é", 3000), Exits: exits, Report: report})
		doc := readStatus(t, log)
		if doc.Phase != PhaseFailed || *doc.ExitStatus != 9 || doc.RootCause.Rank != 1 || doc.RootCause.ExitCode != 9 {
			t.Errorf("%+v", doc)
		}
		after, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		if after.Size() > maxTerminationLog || !os.SameFile(before, after) {
			t.Errorf("%d bytes; written in place: %v", after.Size(), os.SameFile(before, after))
		}
	}
}

// TestTerminationLogOfSuccess keeps the whole state where it fits, and never makes the file.
func TestTerminationLogOfSuccess(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "termination-log")
	config := StatusConfig{TerminationLog: log, Name: "train.py", RunID: "r", Node: "n", Workers: 2, Now: time.Now}
	s, err := OpenStatus(config)
	if err != nil {
		t.Fatal(err)
	}
	s.Finished(Outcome{Reason: job.ReasonSucceeded})
	if _, err := os.Stat(log); !os.IsNotExist(err) {
		t.Fatalf("the file was made: %v", err)
	}
	writeFile(t, log, "")
	s.Finished(Outcome{Reason: job.ReasonSucceeded})
	if doc := readStatus(t, log); doc.Phase != PhaseSucceeded || len(doc.Tasks) != 1 || len(doc.Conditions) == 0 {
		t.Errorf("%+v", doc)
	}
}

// FuzzTellTermination has any bytes for the status of a job that its first node has sent: what is written is JSON, and
// fits.
func FuzzTellTermination(f *testing.F) {
	f.Add([]byte(`{"version":1,"runId":"r","phase":"Failed","message":"m","conditions":[{"type":"Failed"}],` +
		`"rootCause":{"host":"h","rank":1,"lastLines":["\u001b[2J"],"traceback":"t"}}`))
	f.Add([]byte(`{"tasks":[{}],"rootCause":{}}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, status []byte) {
		log := filepath.Join(t.TempDir(), "termination-log")
		writeFile(t, log, "")
		if err := TellTermination(log, status); err != nil {
			return
		}
		text, err := os.ReadFile(log)
		if err != nil || len(text) > maxTerminationLog || !json.Valid(text) {
			t.Errorf("%d bytes of %q: %v", len(text), text, err)
		}
	})
}

// Workers that were never started, because the job failed on another node before, have not succeeded.
func TestStatusOfWorkersNeverStarted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	s, err := OpenStatus(StatusConfig{Path: path, RunID: "r", Node: "n", Workers: 2, Log: zerolog.Nop(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for _, exits := range [][]Exit{{}, {{Rank: 0}}} {
		s.Finished(Outcome{Status: 4, Reason: job.ReasonWorkerFailed, Exits: exits})
		task, counts := s.doc.Tasks[0], s.doc.Counts
		if task.Phase != PhaseStopped || task.ExitCode != nil || counts.Stopped != 2-len(exits) || counts.Succeeded != len(exits) {
			t.Errorf("%d of 2 were started: %+v, %+v", len(exits), task, counts)
		}
	}
}
