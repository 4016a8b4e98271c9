package report

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

var failedAt = time.Date(2026, 11, 21, 1, 59, 59, 0, time.Local)

func ranks(failures []Failure) []int {
	list := []int{}
	for _, f := range failures {
		list = append(list, f.Rank)
	}
	return list
}

// TestRootCause checks who is blamed. Times are milliseconds after failedAt.
func TestRootCause(t *testing.T) {
	exit := func(rank, ms, code int, lines ...string) Exit {
		return Exit{Rank: rank, At: failedAt.Add(time.Duration(ms) * time.Millisecond), Code: code, LastLines: lines}
	}
	killed := func(rank, ms int) Exit {
		e := exit(rank, ms, 0)
		e.Signal = syscall.SIGKILL
		return e
	}
	stopped := func(rank, ms int) Exit {
		e := exit(rank, ms, 0)
		e.Signal, e.Stopped = syscall.SIGTERM, true
		return e
	}
	for _, c := range []struct {
		name      string
		exits     []Exit
		blamed    int
		root      int
		others    []int
		secondary []int
		status    int
	}{
		{"one", []Exit{exit(0, 0, 0), exit(1, 5, 7)}, -1, 1, []int{}, nil, 7},
		{"first by time", []Exit{exit(0, 9, 1), exit(1, 5, 7)}, -1, 1, []int{0}, nil, 7},
		{"lower rank at the same time", []Exit{exit(1, 5, 7), exit(0, 5, 1)}, -1, 0, []int{1}, nil, 1},
		{"victim later", []Exit{exit(0, 40, 1, glooLine), killed(1, 5)}, -1, 1, []int{0}, []int{0}, 137},
		{"victim seen first", []Exit{exit(0, 1, 1, glooLine), killed(1, 5)}, -1, 1, []int{0}, []int{0}, 137},
		{"victims around", []Exit{exit(0, 1, 1, glooLine), exit(1, 5, 3), exit(2, 9, 1, glooLine)}, -1, 1, []int{0, 2}, []int{0, 2}, 3},
		{"too far away", []Exit{exit(0, 0, 1, glooLine), exit(1, 5001, 3)}, -1, 0, []int{1}, nil, 1},
		{"near enough", []Exit{exit(0, 0, 1, glooLine), exit(1, 5000, 3)}, -1, 1, []int{0}, []int{0}, 3},
		{"only victims", []Exit{exit(0, 2, 1, glooLine), exit(1, 1, 9, glooLine)}, -1, 1, []int{0}, nil, 9},
		{"ours are no failures", []Exit{exit(0, 1, 1, glooLine), stopped(1, 0)}, -1, 0, []int{}, nil, 1},
		{"fatal code", []Exit{exit(0, 1, 1), exit(1, 5, 3), killed(2, 9)}, 1, 1, []int{0, 2}, nil, 3},
		{"fatal code of a victim", []Exit{exit(0, 1, 1, glooLine), killed(1, 0)}, 0, 0, []int{1}, nil, 1},
		{"blamed rank did not fail", []Exit{exit(0, 1, 0), killed(1, 0)}, 0, 1, []int{}, nil, 137},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := New(Input{Exits: c.exits, Blamed: c.blamed})
			if r.Root.Rank != c.root || r.Status() != c.status {
				t.Errorf("root cause is rank %d with %d, want rank %d with %d", r.Root.Rank, r.Status(), c.root, c.status)
			}
			if diff := cmp.Diff(c.others, ranks(r.Others)); diff != "" {
				t.Errorf("others (-want +got):\n%s", diff)
			}
			var secondary []int
			for _, f := range r.Others {
				if f.Secondary {
					secondary = append(secondary, f.Rank)
					if f.VictimOf != c.root {
						t.Errorf("rank %d is a victim of %d, want %d", f.Rank, f.VictimOf, c.root)
					}
				}
			}
			if diff := cmp.Diff(c.secondary, secondary); diff != "" || r.Root.Secondary {
				t.Errorf("secondary, root %v (-want +got):\n%s", r.Root.Secondary, diff)
			}
		})
	}
}

func TestNoFailureNoReport(t *testing.T) {
	exits := []Exit{{Rank: 0}, {Rank: 1, Signal: syscall.SIGTERM, Stopped: true}, {Rank: 2, Code: 1, Stopped: true}}
	if r := New(Input{Exits: exits, Blamed: -1}); r != nil {
		t.Errorf("report %+v", r)
	}
}

// TestStoppedOfOneNode: of a job on several nodes those that muster has stopped are known of one node alone.
func TestStoppedOfOneNode(t *testing.T) {
	exits := []Exit{{Rank: 3, Code: 1, At: failedAt}, {Rank: 4, Signal: syscall.SIGTERM, Stopped: true}}
	for nodes, want := range map[int]string{1: "the workers:\n", 2: "the workers, on node-1 (other nodes are not listed):\n"} {
		got := New(Input{Title: "a", Host: "node-1", Nodes: nodes, Exits: exits, Blamed: -1}).Text()
		if !strings.Contains(got, "Ended while muster was stopping "+want+"  SIGTERM: rank 4") {
			t.Errorf("%d nodes: it does not say %q:\n%s", nodes, want, got)
		}
	}
}

// TestSummaryText compares whole summaries with testdata/failure (rewritten by -update).
func TestSummaryText(t *testing.T) {
	goldens, err := filepath.Abs("testdata/failure")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir()) // so that the error file's path has always the same length
	const errorFile = "error.json"
	writeFile(t, errorFile, `{"message": {"message": "ValueError: boom",
		"extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"train.py\", line 3\nValueError: boom\n", `+
		`"timestamp": "1795226405"}}}`)
	var lines []string
	for i := range 60 {
		lines = append(lines, fmt.Sprintf("line %d", i))
	}
	killed := Exit{
		Rank: 1, LocalRank: 1, PID: 14086, Signal: syscall.SIGKILL, At: failedAt, LastLines: lines,
	}
	many := []Exit{{Rank: 0, PID: 100, Code: 3, At: failedAt, LastLines: []string{"\x1b[31mred\x1b[0m", "bell\a", "no utf8 \xff", ""}}}
	for i := 1; i <= 20; i++ {
		many = append(many, Exit{
			Rank: i, LocalRank: i, PID: 100 + i, Code: 1, At: failedAt.Add(time.Second), LastLines: []string{glooLine},
		})
	}
	for _, c := range []struct {
		name string
		in   Input
	}{
		{"torchrun", Input{Title: "wrk.py", Exits: []Exit{
			{Rank: 0, PID: 14085, Signal: syscall.SIGTERM, At: failedAt.Add(time.Second)},
			{Rank: 1, LocalRank: 1, PID: 14086, Code: 7, At: failedAt},
		}}},
		{"oom", Input{
			Title: "train.py", Exits: []Exit{
				killed,
				{Rank: 0, PID: 14085, Code: 1, At: failedAt, LastLines: []string{glooLine}},
				{Rank: 2, Signal: syscall.SIGTERM, Stopped: true},
				{Rank: 3, Signal: syscall.SIGTERM, Stopped: true},
				{Rank: 4, Signal: syscall.SIGKILL, Stopped: true},
				{Rank: 5, Signal: syscall.SIGTERM, Stopped: true},
				{Rank: 6, Code: 0},
			},
			Kernel: Evidence{OOMKills: 1, OOMGroup: "/job"},
		}},
		{"errorfile", Input{Title: "train.py", Exits: []Exit{
			{Rank: 0, PID: 9, Code: 1, At: failedAt, ErrorFile: errorFile, LastLines: []string{"not shown"}},
		}}},
		{"core", Input{Title: "a.out", Exits: []Exit{
			{Rank: 0, PID: 9, Signal: syscall.SIGBUS, CoreDumped: true, At: failedAt},
		}, Kernel: Evidence{ShmSize: 64 << 20, ShmFree: 1 << 20}}},
		{"notfound", Input{Title: "run.sh", Exits: []Exit{
			{Rank: 0, PID: 9, Code: 127, At: failedAt, LastLines: []string{"run.sh: 1: trian: not found"}},
		}}},
		{"many", Input{Title: "train\n.py", Exits: many}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Host, c.in.Blamed = "node-1", -1
			got := New(c.in).Text()
			golden := filepath.Join(goldens, c.name+".txt")
			if *update {
				writeFile(t, golden, got)
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadErrorFile(t *testing.T) {
	for _, c := range []struct {
		name, text         string
		message, traceback string
		problem            string
	}{
		{"object", `{"message":{"message":"E: x","extraInfo":{"py_callstack":"T","timestamp":"1"}}}`, "E: x", "T", ""},
		{"string", `{"message":"gone","timestamp":"1"}`, "gone", "", ""},
		{"no call stack", `{"message":{"message":"E: x"}}`, "E: x", "", ""},
		{"strange call stack", `{"message":{"message":"E: x","extraInfo":[1]}}`, "E: x", "", ""},
		{"strange message", `{"message":{"message":7,"extraInfo":{"py_callstack":"T"}}}`, "", "T", ""},
		{"number", `{"message":7}`, "", "", "no message"},
		{"null", `{"message":null}`, "", "", "no message"},
		{"missing", `{}`, "", "", "no message"},
		{"array", `[]`, "", "", "no JSON object"},
		{"torn", `{"message":{"message":"E`, "", "", "no JSON object"},
		{"no JSON", "Traceback", "", "", "no JSON object"},
		{"no UTF-8", "{\"message\":\"caf\xe9\"}", "caf\ufffd", "", ""},
		{"deep", strings.Repeat("[", 1<<19), "", "", "no JSON object"},
		{"largest", `{"message":"` + strings.Repeat("x", maxErrorFile-14) + `"}`, strings.Repeat("x", maxErrorFile-14), "", ""},
		{"too large", `{"message":"` + strings.Repeat("x", maxErrorFile-13) + `"}`, "", "", "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "error.json")
			writeFile(t, path, c.text)
			e := readErrorFile(path)
			if e == nil {
				t.Fatal("nothing was read")
			}
			if e.Message != c.message || e.Traceback != c.traceback {
				t.Errorf("message %.80q, traceback %q", e.Message, e.Traceback)
			}
			if (e.Problem == "") != (c.problem == "") || !strings.Contains(e.Problem, c.problem) {
				t.Errorf("problem %q, want %q", e.Problem, c.problem)
			}
		})
	}
	t.Run("nothing to read", func(t *testing.T) {
		empty := filepath.Join(t.TempDir(), "empty")
		writeFile(t, empty, "")
		for _, path := range []string{"", empty, empty + "-missing"} {
			if e := readErrorFile(path); e != nil {
				t.Errorf("%q: %+v", path, e)
			}
		}
	})
	t.Run("no regular file", func(t *testing.T) {
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{fifo, t.TempDir(), "/dev/zero"} {
			if e := readErrorFile(path); e == nil || !strings.Contains(e.Problem, "no regular file") {
				t.Errorf("%s: %+v", path, e)
			}
		}
	})
}

// TestCopyErrorFile checks what an agent above us gets to read.
func TestCopyErrorFile(t *testing.T) {
	for _, c := range []struct{ name, text, want, problem string }{
		{
			"object", `{"message":{"message":"E","extraInfo":{"timestamp":"17"},"n":12345678901234567890},"more":[1]}`,
			`{"message":{"errorCode":-9,"extraInfo":{"timestamp":"17"},"message":"E","n":12345678901234567890},"more":[1]}`, "",
		},
		{"string", `{"message":"gone"}`, `{"message":"gone"}`, ""},
		{"no JSON", "nonsense", "", "cannot copy the error file of rank 3"},
		{"none", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
			writeFile(t, from, c.text)
			r := New(Input{
				Exits: []Exit{{Rank: 3, Signal: syscall.SIGKILL, ErrorFile: from}}, Blamed: -1,
			})
			err := r.CopyErrorFile(to)
			if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("error %v, want %q", err, c.problem)
			}
			got, err := os.ReadFile(to)
			if c.want == "" {
				if !errors.Is(err, os.ErrNotExist) {
					t.Errorf("something was written: %q", got)
				}
			} else if string(got) != c.want {
				t.Errorf("copied\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	t.Run("unwritable", func(t *testing.T) {
		from := filepath.Join(t.TempDir(), "from")
		writeFile(t, from, `{"message":"gone"}`)
		r := New(Input{Exits: []Exit{{Code: 1, ErrorFile: from}}, Blamed: -1})
		if err := r.CopyErrorFile(filepath.Join(from, "to")); err == nil || errhint.Of(err) == "" {
			t.Errorf("error %v", err)
		}
	})
}

func FuzzReadErrorFile(f *testing.F) {
	for _, seed := range []string{
		`{"message":{"message":"E","extraInfo":{"py_callstack":"T"}}}`, `{"message":"x"}`, `[]`, `{"message":[[[]]]}`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "error.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		r := New(Input{Exits: []Exit{{Code: 1, ErrorFile: path}}, Blamed: -1})
		for _, c := range r.Text() {
			if c != '\n' && c != '\t' && !unicode.IsPrint(c) {
				t.Fatalf("the summary has the character %q", c)
			}
		}
		if code, err := addErrorCode(text, 1); err == nil && !json.Valid(code) {
			t.Fatalf("%q became %q", text, code)
		}
	})
}

func TestGatherEvidence(t *testing.T) {
	statfs := func(path string, fs *unix.Statfs_t) error {
		switch path {
		case "/dev/shm", "/full":
			*fs = unix.Statfs_t{Bsize: 4096, Blocks: 100, Bfree: 1, Bavail: 1}
		case "/roomy":
			*fs = unix.Statfs_t{Bsize: 4096, Blocks: 100, Bfree: 50, Bavail: 50} // Files is 0 on file systems without a limit of them
		case "/inodes":
			*fs = unix.Statfs_t{Bsize: 4096, Blocks: 100, Bfree: 50, Bavail: 50, Files: 10}
		case "/endless":
			*fs = unix.Statfs_t{Bsize: 4096}
		default:
			t.Errorf("looked at %s", path)
		}
		return nil
	}
	for logs, full := range map[string]string{"": "", "/roomy": "", "/endless": "", "/full": "/full", "/inodes": "/inodes"} {
		want := Evidence{OOMKills: 2, OOMGroup: "/job", ShmSize: 409600, ShmFree: 4096, FullLogs: full}
		if got := GatherEvidence(3, 5, "/job", logs, statfs); got != want || !got.shmFull() {
			t.Errorf("%q: %+v, full %v", logs, got, got.shmFull())
		}
	}
	gone := func(string, *unix.Statfs_t) error { return unix.ENOENT }
	if got := GatherEvidence(5, 3, "", "/logs", gone); got != (Evidence{}) || got.shmFull() || got.shmScarce() {
		t.Errorf("without counters: %+v", got)
	}
}

// TestNoRoomForRoot: root may use what a file system keeps for it.
func TestNoRoomForRoot(t *testing.T) {
	fs := unix.Statfs_t{Bsize: 4096, Blocks: 10_000, Bfree: 500}
	if noRoom(&fs, true) || !noRoom(&fs, false) {
		t.Error("500 blocks that are kept for root are room for root alone")
	}
}

var update = flag.Bool("update", false, "rewrite golden files")
