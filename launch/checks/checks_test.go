package checks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/check"
	"muster/internal/errhint"
	"muster/internal/logtext"
	"muster/internal/proc"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/netcheck"
	"muster/netcheck/devicecheck"
	"muster/rendezvous"
	"muster/rendezvous/place"
)

var tree *proc.Tree

// TestMain is "muster check", too, where a check starts it as that: its last argument says what it does.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "check" {
		os.Exit(examination(os.Args[2]))
	}
	var err error
	if tree, err = proc.Open(proc.Config{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	if err := errors.Join(tree.Stop(context.Background(), proc.Ladder{}), tree.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// examination is what stands for "muster check" and returns its exit status.
func examination(how string) int {
	report := check.Report{Status: check.Pass, Results: []check.Result{
		{ID: "shm-size", Status: check.Warn, Reason: "64 MiB", Try: "mount more"}, {ID: "disk-space", Status: check.Pass},
	}}
	status := errhint.OK
	switch how {
	case "faulty":
		status = errhint.Faulty
		report.Results = append(report.Results,
			check.Result{ID: "gpu-lost", Status: check.Fail, Reason: "it is gone", Subject: check.Subject{Node: "n", GPU: new(3)}},
			check.Result{ID: "open-files", Status: check.Fail, Reason: "16 in round " + os.Getenv("ROUND")})
	case "garbage":
		fmt.Println("hello")
		return errhint.OK
	case "refused":
		fmt.Fprintln(os.Stderr, "no such spec")
		return errhint.Usage
	case "hangs":
		time.Sleep(time.Hour)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		return 1
	}
	return status
}

// TestInspect: a node is unfit by what fails there, and by an examination that cannot be read; a warning is told.
func TestInspect(t *testing.T) {
	for how, want := range map[string]string{
		"fit":     "",
		"faulty":  "gpu 3: gpu-lost: it is gone; open-files: 16 in round 7",
		"garbage": "this node cannot be examined: cannot read what muster check says: invalid character 'h' looking for beginning of value",
		"refused": "this node cannot be examined: muster check ended with status 2: no such spec",
	} {
		var log bytes.Buffer
		got := examiner(how, &log).inspect(t.Context())
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", how, d)
		}
		if warned := strings.Contains(log.String(), "mount more"); warned != (how == "fit" || how == "faulty") {
			t.Errorf("%s: log %s", how, log.String())
		}
	}
}

// TestInspectStopped: whoever ends a check ends what examines the node.
func TestInspectStopped(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
	defer cancel()
	if got := examiner("hangs", &bytes.Buffer{}).inspect(ctx); got != "this node cannot be examined: enough" {
		t.Error(got)
	}
}

func examiner(how string, log *bytes.Buffer) *Checker {
	return &Checker{
		log: zerolog.New(log), in: launch.CheckInput{Tree: tree, Round: rendezvous.Round{Number: 7}},
		config: Config{Examine: func(round int) (args, environ []string) {
			return []string{"muster", "check", how}, []string{"ROUND=" + strconv.Itoa(round)}
		}},
	}
}

// TestOutcome: a node at fault leaves with its status, the others meet again, and one tells of it; where nobody can be
// blamed all leave.
func TestOutcome(t *testing.T) {
	t.Parallel()
	faulty := netcheck.Record{Nodes: []netcheck.NodeRecord{
		{Node: "a"},
		{Node: "b", IDs: []string{"GPU-1"}, Fault: &netcheck.Fault{Status: errhint.Faulty, Reason: "it is broken"}},
		{Node: "c"},
	}}
	gone := []rendezvous.Exclusion{{Node: "b", IDs: []string{"GPU-1"}, Reason: "it is broken"}}
	for name, c := range map[string]struct {
		record netcheck.Record
		rank   int
		want   launch.CheckOutcome
	}{
		"fit": {netcheck.Record{Nodes: []netcheck.NodeRecord{{Node: "a"}, {Node: "b"}}}, 1, launch.CheckOutcome{}},
		"skipped": {
			netcheck.Record{Nodes: []netcheck.NodeRecord{{Node: "a", Unable: "it has no torch"}}},
			0,
			launch.CheckOutcome{Skipped: "it has no torch"},
		},
		"leader": {faulty, 0, launch.CheckOutcome{
			Again: true, Excluded: gone, Faults: []launch.NodeFault{{Node: "b", Reason: "it is broken", Status: errhint.Faulty}},
		}},
		"at fault": {faulty, 1, launch.CheckOutcome{
			Again: true, Excluded: gone, Status: errhint.Faulty, Message: "node b (group rank 1) has to leave: it is broken",
		}},
		"another": {faulty, 2, launch.CheckOutcome{Again: true, Excluded: gone}},
		"undecided": {netcheck.Record{Nodes: faulty.Nodes, Undecided: []string{"one", "two"}}, 1, launch.CheckOutcome{
			Status: errhint.Undecided, Everybody: true, Message: "the check of the nodes failed, and nobody can be blamed: one; two",
		}},
	} {
		if d := cmp.Diff(c.want, outcomeFor(&c.record, c.rank)); d != "" {
			t.Errorf("%s (-want +got)\n%s", name, d)
		}
	}
}

// TestUnable: where torch or an accelerator is missing nothing was tested; every other failure is one of the node.
func TestUnable(t *testing.T) {
	t.Parallel()
	for cause, want := range map[devicecheck.Cause]bool{
		devicecheck.NoTorch: true, devicecheck.NoDevice: true, devicecheck.Died: false, devicecheck.Data: false,
	} {
		err := fmt.Errorf("in the test: %w", &devicecheck.DeviceError{Cause: cause})
		if got := errors.Is(unable(err), netcheck.ErrUnable); got != want {
			t.Errorf("%s: unable is %v", cause, got)
		}
	}
}

// TestProcesses: as many processes test devices as there are workers, but no more than the devices that all of them see.
func TestProcesses(t *testing.T) {
	t.Parallel()
	gpus := func(n int) accel.Inventory {
		f := accel.Family{Vendor: "nvidia", Backend: "cuda", VisibleCount: n, Devices: make([]accel.Device, n)}
		return accel.Inventory{Family: f, Families: []accel.Family{f}}
	}
	for _, c := range []struct{ workers, gpus, want int }{{4, 2, 2}, {2, 4, 2}, {3, 0, 3}} {
		p := &plan.Plan{Procs: c.workers}
		if got := processes(p, gpus(c.gpus)); got != c.want {
			t.Errorf("%d workers and %d devices: %d, want %d", c.workers, c.gpus, got, c.want)
		}
	}
}

// TestCheckAlone checks a node by itself: one that is unfit leaves; before it joins others, that is told in other words,
// and of a check that blames nobody nothing comes.
func TestCheckAlone(t *testing.T) {
	for how, c := range map[string]struct {
		door    bool
		status  int
		message string
	}{
		"fit":     {false, errhint.OK, ""},
		"faulty":  {false, errhint.Faulty, "node n (group rank 0) has to leave: "},
		"refused": {true, errhint.Faulty, "node n does not join: this node cannot be examined: "},
	} {
		var log bytes.Buffer
		p := &plan.Plan{Hostname: "n", Procs: 1, Job: job.Job{Check: job.CheckRules{Network: true, Budget: time.Minute}}}
		n := New(Config{
			Plan: p, At: place.Reach{Addr: "127.0.0.1"}, Hostname: "n", Files: accel.Real(), Log: zerolog.New(&log), Tables: &log,
			Examine: examiner(how, nil).config.Examine,
			Progress: func(step string) *logtext.Progress {
				return logtext.NewProgress(func(string) bool { return true }, zerolog.Nop(), step)
			},
		})
		out, err := n.Check(t.Context(), launch.CheckInput{
			Round: rendezvous.Round{GroupWorldSize: 1}, Tree: tree, Dir: t.TempDir(), Door: c.door, // and no Python
		})
		if err != nil || out.Status != c.status || !strings.HasPrefix(out.Message, c.message) {
			t.Errorf("%s: %+v, %v", how, out, err)
		}
	}
}
