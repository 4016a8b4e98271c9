package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// digits is a training of the digits model on three hosts, to which something happens.
type digits struct {
	name   string
	kinds  [3]string // by host; node0 is the store's
	victim int       // the host whose worker is killed, which is killed or comes late
	// torchrun's agents remember the store of the workers, and its keys, over restarts, unless told not to.
	forgetful bool
}

// The launchers that share a job. Each victim is the one that the others have most trouble with: the guest.
var digitsJobs = []digits{
	{"all muster", [3]string{"muster", "muster", "muster"}, 2, false},
	{"muster hosts a torchrun", [3]string{"muster", "muster", "torchrun"}, 2, false},
	{"torchrun hosts musters", [3]string{"torchrun", "muster", "muster"}, 1, true},
}

// Training is held behind digitsEvent, where it happens.
const (
	digitsSteps = 120
	digitsEvent = 60
	digitsSoon  = 2 * time.Minute
)

// digitsLater holds training a second time, where more than one thing happens.
const digitsLater = 80

var digitsEvents = map[string]func(j *nodes, d digits){
	"undisturbed": func(j *nodes, d digits) {
		j.flags[0] = "--nnodes=3" // torchrun takes its time to come
		j.release()
		j.startAll(d)
	},
	"a worker is killed": func(j *nodes, d digits) {
		j.startAll(d)
		j.trains(3)
		j.killWorker(d.victim)
		j.release()
	},
	"a node is killed": func(j *nodes, d digits) {
		j.startAll(d)
		j.trains(3)
		j.hosts[d.victim].PowerOff()
		j.release()
	},
	"a node is added": func(j *nodes, d digits) {
		j.adds(d)
		j.release()
	},
	"a node is added, then killed": func(j *nodes, d digits) {
		j.adds(d)
		j.hold(digitsLater)
		testutil.Eventually(j.t, digitsSoon, "three workers train", func() bool { return j.step() >= digitsLater })
		j.hosts[2].PowerOff()
		j.release()
	},
}

// adds starts the launcher of node2 when the other two train, and waits until three workers have begun.
func (j *nodes) adds(d digits) {
	j.t.Helper()
	for host, kind := range d.kinds {
		if host != 2 {
			j.start(host, kind)
		}
	}
	j.trains(2)
	added := time.Now()
	j.start(2, d.kinds[2])
	testutil.Eventually(j.t, digitsSoon, "a world of three begins", func() bool { return j.hasWorld(3, added) })
}

func (j *nodes) startAll(d digits) {
	j.t.Helper()
	for host, kind := range d.kinds {
		j.start(host, kind)
	}
}

// trains waits until a world of so many workers is held at the event.
func (j *nodes) trains(size int) {
	j.t.Helper()
	testutil.Eventually(j.t, digitsSoon, fmt.Sprintf("%d workers train", size), func() bool {
		for _, a := range j.agents {
			select {
			case <-a.Ended():
				j.t.Fatalf("%s on %s has ended before %d workers train", a.kind, a.Host().Name, size)
			default:
			}
		}
		return j.hasWorld(size, time.Time{}) && j.step() >= digitsEvent
	})
}

// digitsByDefault are the jobs and events of TestNodesDigits without MUSTER_SOAK=1: both mixtures of muster and torchrun, and
// each event but for "undisturbed".
var digitsByDefault = map[string][]string{
	"muster hosts a torchrun": {"a node is added, then killed"},
	"torchrun hosts musters":  {"a worker is killed"},
}

// TestNodesDigits trains the digits model on three hosts under one launcher or a mixture, whatever happens to one of
// them.
func TestNodesDigits(t *testing.T) {
	t.Parallel()
	testutil.Torchrun(t)
	for _, d := range digitsJobs {
		for event, happen := range digitsEvents {
			if !slices.Contains(digitsByDefault[d.name], event) && !testutil.Soak() {
				continue
			}
			t.Run(d.name+"/"+event, func(t *testing.T) {
				t.Parallel()
				j := newNodes(t, 3, drive.Script(t, "nodes", "digits.py"))
				j.worker = append(j.worker, j.dir, "--steps", fmt.Sprint(digitsSteps), "--save-every", "20")
				j.python = drive.ForkedPython(t)
				if testutil.Soak() { // which has no forks of ours
					j.own = []string{"--warm=torch"}
				}
				if d.forgetful {
					j.env = append(j.env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
				}
				j.flags = []string{
					"--nnodes=2:3", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d",
					"--rdzv-endpoint=node0:29400", "--rdzv-id=digits",
				}
				j.join = torchrunComes
				j.hold(digitsEvent)
				happen(j, d)
				for _, a := range j.agents {
					if !a.Host().Off() {
						j.ends(a, digitsSoon, 0)
					}
				}
				j.trained(d, event)
			})
		}
	}
}

// trained checks what the job has left behind.
func (j *nodes) trained(d digits, event string) {
	j.t.Helper()
	var accuracy float64
	text, err := os.ReadFile(filepath.Join(j.dir, "result"))
	if err != nil {
		j.t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &accuracy); err != nil || accuracy < 0.9 {
		j.t.Errorf("accuracy %q, want at least 0.9: %v", text, err)
	}
	// Each step was done, and never one whose predecessor was not.
	last := 0
	for line := range strings.Lines(j.read("progress")) {
		var when float64
		var attempt, step int
		if _, err := fmt.Sscan(line, &when, &attempt, &step); err != nil || step > last+1 {
			j.t.Errorf("after step %d comes %q", last, line)
		}
		last = step
	}
	if last != digitsSteps {
		j.t.Errorf("training ended at step %d, want %d", last, digitsSteps)
	}
	want := 3
	switch event {
	case "a node is killed", "a node is added, then killed":
		want = 2
	case "undisturbed":
		if n := len(j.lives()); n != 3 {
			j.t.Errorf("%d workers have lived, want 3", n)
		}
	}
	j.lastWorld(want)
	for i, h := range j.hosts {
		if left := h.Processes(); d.kinds[i] == "muster" && len(left) > 0 {
			j.t.Errorf("left on %s: %v", h.Name, left)
		}
	}
}

func (j *nodes) read(name string) string {
	j.t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, name))
	if err != nil {
		j.t.Fatal(err)
	}
	return string(text)
}

// lastWorld checks that the workers that have lived to the end were one world of this size, with dense ranks.
func (j *nodes) lastWorld(size int) {
	j.t.Helper()
	newest := map[string]life{} // by host; each has one worker
	for _, l := range j.lives() {
		if n, ok := newest[l.host]; !ok || l.began > n.began {
			newest[l.host] = l
		}
	}
	ranks := map[int]bool{}
	for _, l := range newest {
		if l.worldSize == size {
			ranks[l.rank] = true
		}
	}
	if len(ranks) != size || !ranks[0] || !ranks[size-1] {
		j.t.Errorf("the last world was to have %d workers: %+v", size, newest)
	}
}
