package place

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch/job"
)

// TestNoMaster: where nobody answers at DLROVER_MASTER_ADDR, and it is not known whether a master should, the error
// names the master. A pod of DLRover's operator waits for it as long as DLRover's agents do.
func TestNoMaster(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := job.Endpoint{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}
	if err := l.Close(); err != nil { // nobody listens there any more
		t.Fatal(err)
	}
	never := false
	j := &job.Job{Nodes: job.Range{Min: 2, Max: 2}, Meeting: job.Meeting{
		Backend: "muster", Endpoints: []job.Endpoint{at}, IsHost: &never, NodeRank: -1, JoinTimeout: 100 * time.Millisecond,
		DLRover: job.DLRoverMaster{Service: job.MasterAsked},
	}}
	_, _, err = Open(t.Context(), Config{Job: j, Log: zerolog.Nop(), IDs: func(context.Context) []string { return nil }})
	if errhint.CodeOf(err) != errhint.TryAgain || !strings.Contains(errhint.Of(err), "is DLROVER_MASTER_ADDR its address?") ||
		!strings.Contains(err.Error(), "cannot reach DLRover's master, or a store of muster, at 127.") {
		t.Errorf("%v; %s", err, errhint.Of(err))
	}
	j.Meeting.JoinTimeout = 10 * time.Minute
	m := newMeeting(Config{Job: j})
	if got := m.patience(); got != 10*time.Minute {
		t.Errorf("a node that may be one of muster's alone waits for %v", got)
	}
	if m.DLRover.JobUID = "5"; m.patience() != time.Minute {
		t.Errorf("a pod of an ElasticJob waits for %v", m.patience())
	}
}
