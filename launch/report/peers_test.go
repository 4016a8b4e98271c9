package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/launch/job"
	"muster/rendezvous"
)

var peerRound = rendezvous.Round{GroupRank: 1, GroupWorldSize: 3, BaseRank: 4096, WorldSize: 3 * 4096}

// someFailures are n failures of node 0 from failedAt on, one a second.
func someFailures(n int) []Failure {
	failures := make([]Failure, n)
	for i := range failures {
		failures[i] = Failure{
			Exit: Exit{
				Rank: i, LocalRank: i, PID: 100 + i, Code: 1, At: failedAt.Add(time.Duration(i) * time.Second),
				LastLines: []string{fmt.Sprint("line ", i)},
			},
			Host: "node-0",
		}
	}
	return failures
}

// TestPeerReportRoundTrip: another node learns all of a failure, and its time as our clock would have had it.
func TestPeerReportRoundTrip(t *testing.T) {
	failures := someFailures(2)
	failures[0] = Failure{
		Exit: Exit{
			Rank: 3, LocalRank: 3, PID: 77, Code: -1, Signal: syscall.SIGSEGV, CoreDumped: true, At: failedAt.Add(5 * time.Second),
			LastLines: []string{"first", "bell \a", "\x1b[31mred\x1b[0m"}, ErrorFile: "/there/error.json",
		},
		Host: "node-0", Cause: "segfault", Hint: "try", Evidence: []string{"core dumped"},
		Error: &workerError{Path: "/there/error.json", Message: "E: x", Traceback: "T\n  \x1b[2Jof it"},
	}
	text := EncodeFailures(failures, failedAt)
	ours := failedAt.Add(-time.Hour) // our clock is late
	from, got, err := DecodeFailures(text, &peerRound, ours)
	if err != nil || from != 0 {
		t.Fatal(from, err)
	}
	want := someFailures(2)
	want[0] = failures[0]
	want[0].At, want[1].At = ours.Add(5*time.Second), ours.Add(time.Second)
	want[0].Code, want[0].ErrorFile = 0, ""
	want[0].LastLines = []string{"first", `bell \a`, "red"}
	want[0].Error = &workerError{Path: "/there/error.json", Message: "E: x", Traceback: "T\n  " + `\x1b[2J` + "of it"}
	want[1].Evidence = []string{}
	for i := range want {
		want[i].Elsewhere = true
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Failure{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if text := EncodeFailures(nil, failedAt); text != nil {
		t.Errorf("no failure became %q", text)
	}
}

// TestPeerReportIsBounded: whatever workers say, a report fits, and the root cause keeps its words.
func TestPeerReportIsBounded(t *testing.T) {
	for _, c := range []struct {
		name  string
		n     int
		lines int
		line  string
	}{
		{"one", 1, 50, "x"},
		{"long lines", 9, 50, strings.Repeat("\x01", 5000)},
		{"a whole node", job.MaxProcs, 50, strings.Repeat("é", 400)},
		{"no two alike", job.MaxProcs, 50, "y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			failures := someFailures(c.n)
			// All say the same words, which are there once.
			lines := slices.Repeat([]string{c.line}, c.lines)
			said := &workerError{
				Path: strings.Repeat("p", 4096), Message: strings.Repeat("\"", 1<<20),
				Traceback: strings.Repeat("t\n", 1<<19),
			}
			hint, evidence := strings.Repeat("h", 1<<16), []string{strings.Repeat("e", 1<<16)}
			for i := range failures {
				f := &failures[i]
				f.LastLines, f.Error, f.Hint, f.Evidence = lines, said, hint, evidence
				f.Cause = causeConnectionLost
				if c.name == "no two alike" {
					f.Code = 1 + i%255
				}
			}
			root := &failures[c.n-1]
			root.Cause = ""
			text := EncodeFailures(failures, failedAt)
			if len(text) > maxPeerReport {
				t.Fatalf("%d bytes", len(text))
			}
			_, got, err := DecodeFailures(text, &peerRound, failedAt)
			if err != nil {
				t.Fatal(err)
			}
			if got[0].Rank != root.Rank || len(got[0].Error.Traceback) < 1000 || len(got[0].LastLines) == 0 {
				t.Errorf("the root cause is rank %d with a call stack of %d bytes and %d lines", got[0].Rank, len(got[0].Error.Traceback),
					len(got[0].LastLines))
			}
			if len(got) != c.n && c.name != "no two alike" {
				t.Errorf("%d failures of %d", len(got), c.n)
			}
		})
	}
}

// TestPeerReportRefused: what cannot be is not believed.
func TestPeerReportRefused(t *testing.T) {
	good := `{"version":1,"host":"h","groupRank":0,"failures":[{"rank":1,"localRank":1,"pid":1,"code":1,"afterNs":1}]}`
	if _, _, err := DecodeFailures([]byte(good), &peerRound, failedAt); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{`"version":1`, `"version":2`},
		{`"version":1`, `"version":1,"more":[{"first":0,"last":4096,"code":1,"afterNs":0}]`},
		{`"version":1`, `"version":1,"more":[{"first":5,"last":4,"code":1,"afterNs":0}]`},
		{`"version":1`, `"version":1,"more":[{"first":0,"last":4095,"code":1,"afterNs":0},{"first":0,"last":4095,"code":1,"afterNs":0}]`},
		{`"version":1`, `"version":1,"more":[{"first":12287,"last":12288,"code":1,"afterNs":0}]`},
		{`"version":1`, `"version":1,"surprise":1`},
		{`"groupRank":0`, `"groupRank":3`},
		{`"groupRank":0`, `"groupRank":-1`},
		{`"rank":1,"l`, `"rank":12288,"l`},
		{`"rank":1,"l`, `"rank":-1,"l`},
		{`"localRank":1`, `"localRank":4096`},
		{`"pid":1`, `"pid":-1`},
		{`"code":1`, `"code":0`},
		{`"code":1`, `"code":256`},
		{`"code":1`, `"code":1,"signal":9`},
		{`"code":1`, `"signal":128`},
		{`"afterNs":1`, `"afterNs":-1`},
		{`"afterNs":1`, `"afterNs":9223372036854775807`},
		{`"afterNs":1`, `"afterNs":1,"lastLines":[` + strings.Repeat(`"",`, 50) + `""]`},
		{`"afterNs":1}`, `"afterNs":1}` + strings.Repeat(`,{"rank":1,"localRank":1,"pid":1,"code":1,"afterNs":1}`, 8)},
		{`]}`, `]}{}`},
		{`]}`, `]`},
		{`"h"`, `"` + strings.Repeat("h", maxPeerReport) + `"`},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("%q is not in it", change[0])
		}
		if _, failures, err := DecodeFailures([]byte(bad), &peerRound, failedAt); err == nil {
			t.Errorf("%.200s was taken: %d failures", bad, len(failures))
		}
	}
}

// TestRootCauseOfTheWorld: failures of several nodes are put in one order, whatever their clocks say.
func TestRootCauseOfTheWorld(t *testing.T) {
	began := failedAt
	exit := func(rank int, after time.Duration, lines ...string) Exit {
		return Exit{Rank: rank, Code: rank + 1, At: began.Add(after), LastLines: lines}
	}
	// The other node's clock is two hours ahead.
	there := Input{Host: "node-0", Nodes: 2, Exits: []Exit{
		{Rank: 0, Code: 1, At: began.Add(2*time.Hour + 3*time.Second), LastLines: []string{"the real one"}},
		{Rank: 1, Code: 2, At: began.Add(2*time.Hour + 9*time.Second)},
	}}
	_, elsewhere, err := DecodeFailures(EncodeFailures(there.Failures(), began.Add(2*time.Hour)), &peerRound, began)
	if err != nil {
		t.Fatal(err)
	}
	in := Input{
		Title: "train.py", Host: "node-1", GroupRank: 1, Nodes: 2, Blamed: -1, Elsewhere: elsewhere,
		Exits: []Exit{exit(4096, 2*time.Second, glooLine), exit(4097, 4*time.Second)},
	}
	r := New(in)
	if r.Root.Rank != 0 || r.Root.Host != "node-0" || !r.Root.At.Equal(began.Add(3*time.Second)) {
		t.Errorf("root cause %+v", r.Root)
	}
	if diff := cmp.Diff([]int{4096, 4097, 1}, ranks(r.Others)); diff != "" || !r.Others[0].Secondary || r.Others[0].VictimOf != 0 {
		t.Errorf("others (-want +got):\n%s", diff)
	}
	text := r.Text()
	for _, want := range []string{"  host      : node-0\n", "  node      : group rank 0 of 2 nodes\n", "the real one"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestManyVictims: thousands of workers whose connections broke are judged without comparing each with each.
func TestManyVictims(t *testing.T) {
	testutil.Long(t)
	failures := someFailures(200_000) // each with each would take minutes
	for i := range failures {
		failures[i].Cause = causeConnectionLost
	}
	in := Input{Blamed: -1, Elsewhere: failures}
	if r := New(in); r.Root.Rank != 0 || r.Root.Secondary || len(r.Others) != len(failures)-1 {
		t.Errorf("root cause %+v", r.Root)
	}
	failures[100_000].Cause = ""
	r := New(in)
	var victims []int
	for _, f := range r.Others {
		if f.Secondary {
			victims = append(victims, f.Rank)
		}
	}
	if want := []int{99_995, 99_996, 99_997, 99_998, 99_999, 100_001, 100_002, 100_003, 100_004, 100_005}; !cmp.Equal(want, victims) {
		t.Errorf("victims %v, want %v", victims, want)
	}
}

func FuzzDecodePeerReport(f *testing.F) {
	f.Add(EncodeFailures(someFailures(12), failedAt))
	f.Add([]byte(`{"version":1,"host":"\u001b","groupRank":0,"failures":[{"rank":1,"localRank":1,"pid":1,` +
		`"signal":9,"afterNs":1,"hint":"\u0007","error":{"message":"\n"}}]}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, failures, err := DecodeFailures(text, &peerRound, failedAt)
		if err != nil {
			return
		}
		in := Input{Title: "x", Host: "here", Nodes: 3, Elsewhere: failures, Blamed: -1}
		r := New(in)
		if r == nil {
			if len(failures) > 0 {
				t.Fatal("failures without a report")
			}
			return
		}
		for _, c := range r.Text() {
			if c != '\n' && c != '\t' && !unicode.IsPrint(c) {
				t.Fatalf("the summary has the character %q", c)
			}
		}
		if doc, err := json.Marshal(newCause(&r.Root)); err != nil || bytes.Contains(doc, []byte(`\u001b`)) {
			t.Fatalf("status %s, %v", doc, err)
		}
	})
}
