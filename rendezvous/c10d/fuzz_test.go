package c10d_test

import (
	"encoding/base64"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/rendezvous/c10d"
)

// FuzzDecode reads anything. What is accepted must come back the same when written, and equal states must have equal
// bytes: else a compare-and-set of what nobody changed would fail.
func FuzzDecode(f *testing.F) {
	for _, states := range realStates(f) {
		for _, s := range states {
			p, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(p)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		p, err := c10d.MarshalPickle(randomState(r, 4))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := c10d.UnmarshalPickle(p)
		if err != nil {
			return
		}
		first, err := c10d.MarshalPickle(s)
		if err != nil {
			t.Fatalf("cannot write what was read: %v", err)
		}
		again, err := c10d.UnmarshalPickle(first)
		if err != nil {
			t.Fatalf("cannot read what was written: %v\n%q", err, first)
		}
		if diff := cmp.Diff(s, again, equalStates); diff != "" {
			t.Fatalf("after writing and reading (-want +got):\n%s", diff)
		}
		second, err := c10d.MarshalPickle(again)
		if err != nil || string(first) != string(second) {
			t.Fatalf("written twice: %q and %q, %v", first, second, err)
		}
	})
}

// FuzzStep asks for a decision on any state that can be read. It must not panic, what it writes must be readable, and
// must keep what a state promises.
func FuzzStep(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 20 {
		p, err := c10d.MarshalPickle(randomState(r, 4))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p, uint8(i), uint8(1+i%3), uint8(i%3), uint16(i*100))
	}
	f.Fuzz(func(t *testing.T, p []byte, want, minNodes, more uint8, seconds uint16) {
		s, err := c10d.UnmarshalPickle(p)
		if err != nil {
			return
		}
		self := c10d.Node{Addr: "self", PID: 1}
		if nodes := s.Nodes(); len(nodes) > 0 && want&4 != 0 {
			self = nodes[0]
		}
		set := c10d.DefaultSettings(1+int(minNodes), 1+int(minNodes)+int(more))
		seen := c10d.NewObserver(set, self)
		at := c10d.Instant{Wall: someTime}
		seen.Observe(s, at)
		for range seconds % 40 {
			at.Mono, at.Wall = at.Mono+time.Second, at.Wall.Add(time.Second)
			seen.Observe(s, at)
		}
		before := s.Clone()
		d := c10d.Step(c10d.Input{
			State: s, Members: []c10d.Node{self}, Settings: set, Now: at, Want: c10d.Want(want & 3), Seen: seen,
			Deadline: time.Duration(seconds) * time.Second, Round: c10d.Round{Number: s.Round, Ranks: s.Participants},
		})
		if diff := cmp.Diff(before, s, equalStates); diff != "" {
			t.Fatalf("the state was changed (-want +got):\n%s", diff)
		}
		if (d.State != nil) != (d.Action < c10d.ActionSync) {
			t.Fatalf("%v with state %v", d.Action, d.State)
		}
		if d.Action == c10d.ActionSync && d.Wait <= 0 {
			t.Fatalf("sync waits %v", d.Wait)
		}
		if d.State == nil {
			return
		}
		if d.State.Round < s.Round || d.State.Round > s.Round+1 {
			t.Fatalf("round goes from %d to %d", s.Round, d.State.Round)
		}
		if d.State.Complete && !s.Complete {
			if n := len(d.State.Participants); n > set.MaxNodes || n < set.MinNodes {
				t.Fatalf("completed with %d nodes, limits are %d and %d", n, set.MinNodes, set.MaxNodes)
			}
		}
		text, err := c10d.Encode(d.State)
		if err != nil {
			t.Fatalf("cannot write the decision %v: %v", d.Action, err)
		}
		if _, err := c10d.Decode(text); err != nil {
			t.Fatalf("cannot read the decision %v: %v", d.Action, err)
		}
	})
}
