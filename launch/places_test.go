package launch

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous"
)

// TestPlacesWithTorchrun: an agent of torchrun offers no places for its workers, and the job is refused.
func TestPlacesWithTorchrun(t *testing.T) {
	a := &Agent{Plan: &plan.Plan{Job: job.Job{Env: job.EnvRules{Profile: job.ProfileJAX}}, Procs: 1}}
	a.meeting = &meeting{Round: rendezvous.Round{GroupWorldSize: 2, WorldSize: 2, Exchange: boardless{}}}
	if _, err := a.choosePlaces(t.Context(), false); err == nil || !strings.Contains(err.Error(), "torchrun takes part") {
		t.Errorf("got %v", err)
	}
}

func TestPlacesOf(t *testing.T) {
	got, err := placesOf([]offer{{"10.0.0.1", 0, []int{11, 12, 19}}, {"::2", 2, []int{21, 29}}}, 3)
	want := &plan.Places{Coordinator: "10.0.0.1:19", Workers: []string{"10.0.0.1:11", "10.0.0.1:12", "[::2]:21"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	for name, all := range map[string][]offer{
		"no worker":      {{"h", 0, []int{11, 19}}},
		"nobody first":   {{"h", 1, []int{11, 19}}},
		"twice":          {{"h", 0, []int{11, 12, 19}}, {"h", 1, []int{21, 29}}},
		"too many":       {{"h", 0, []int{11, 12, 13, 19}}},
		"before rank 0":  {{"h", -1, []int{11, 12, 13, 19}}},
		"no port":        {{"h", 0, []int{0, 12, 19}}},
		"no host":        {{"", 0, []int{11, 12, 19}}},
		"two hosts in 1": {{"h,i", 0, []int{11, 12, 19}}},
	} {
		if got, err := placesOf(all, 2); err == nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// TestHoldPorts: what is held nobody else gets, nothing answers there, and whoever it is held for can listen then.
func TestHoldPorts(t *testing.T) {
	held, err := holdPorts(3)
	if err != nil {
		t.Fatal(err)
	}
	defer held.release()
	for _, port := range held.numbers {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", at); err == nil {
			_ = l.Close()
			t.Errorf("somebody listens at %s, which is held", at)
		}
		if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", at); err == nil {
			_ = c.Close()
			t.Errorf("something answers at %s", at)
		}
	}
	held.release()
	for _, port := range held.numbers {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}
