package report

import (
	"syscall"
	"testing"
	"time"
)

// TestLateCauseOfAnEcho: what a connection broke of may be known later than any two failures are related otherwise.
func TestLateCauseOfAnEcho(t *testing.T) {
	began := time.Now()
	in := Input{Blamed: -1, Waited: 8500 * time.Millisecond, Exits: []Exit{
		{Rank: 0, Code: 1, At: began, LastLines: []string{glooLine}}, {Rank: 1, Code: 9, At: began.Add(8 * time.Second)},
	}}
	if r := New(in); r.Root.Rank != 1 || !r.Others[0].Secondary {
		t.Errorf("root cause %+v", r.Root)
	}
	in.Exits[1].At = began.Add(9 * time.Second)
	if r := New(in); r.Root.Rank != 0 {
		t.Errorf("root cause %+v", r.Root)
	}
	in.Exits[1].At = began.Add(-6 * time.Second) // that was borne
	if r := New(in); r.Root.Rank != 1 || r.Others[0].Secondary {
		t.Errorf("root cause %+v", r.Root)
	}
}

// A worker that was killed or crashed is no victim of a connection, whatever it had printed and survived before. A
// watchdog aborts its worker when a connection broke.
func TestKilledIsNoEcho(t *testing.T) {
	for s, want := range map[syscall.Signal]int{
		syscall.SIGKILL: 0, syscall.SIGSEGV: 0, syscall.SIGBUS: 0, syscall.SIGILL: 0, syscall.SIGFPE: 0, syscall.SIGABRT: 1,
	} {
		exit := Exit{Signal: s, At: time.Unix(100, 0), LastLines: []string{glooLine, "recovered", "step 1001"}}
		f := NewFailure(exit, Evidence{})
		if echo(&f) != want {
			t.Errorf("echo of %v: %d, want %d", s, echo(&f), want)
		}
		other := Exit{Rank: 1, Code: 1, At: exit.At.Add(time.Second)}
		if r := New(Input{Blamed: -1, Exits: []Exit{exit, other}}); r.Root.Rank != want {
			t.Errorf("%v: rank %d is to blame, want %d", s, r.Root.Rank, want)
		}
	}
}
