package nodes

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// fault is something that happens to a host or to the agent on it.
type fault struct {
	agent bool // to the agent: it must run
	hit   func(j *nodes, victim int)
	heal  func(j *nodes, victim int) // nil: never
	lasts time.Duration
	clock bool // the host has a clock of its own from its start
	slow  bool // a network that is bad, but not so bad that somebody must be lost: it may be unnoticed or not
}

func onHost(do func(h *testutil.Host)) func(*nodes, int) {
	return func(j *nodes, victim int) { do(j.hosts[victim]) }
}

func onAgent(sig syscall.Signal) func(*nodes, int) {
	return func(j *nodes, victim int) {
		if err := j.agentOn(victim).Process.Signal(sig); err != nil {
			j.t.Errorf("cannot send %v to the agent on %s: %v", sig, j.hosts[victim].Name, err)
		}
	}
}

var (
	heal = onHost((*testutil.Host).Heal)
	cut  = onHost(func(h *testutil.Host) { h.Cut() })
	out  = onHost(func(h *testutil.Host) { h.CutTo() })
	in   = onHost(func(h *testutil.Host) { h.CutFrom() })
)

// A node is lost after 4 to 5 seconds of silence. What is to be no loss lasts for less, together with a heartbeat's
// pause and the pauses of TCP, which double up to then.
var faults = map[string]fault{
	"agent killed": {agent: true, hit: onAgent(syscall.SIGKILL)},
	"agent replaced": {
		agent: true, hit: onAgent(syscall.SIGKILL), lasts: 3 * time.Second,
		heal: func(j *nodes, v int) { j.start(v, j.agentOn(v).kind) },
	},
	"power off": {hit: onHost((*testutil.Host).PowerOff)},
	"reboot": {
		hit: onHost((*testutil.Host).PowerOff), lasts: 2 * time.Second,
		heal: func(j *nodes, v int) {
			j.hosts[v].Boot()
			j.start(v, j.kinds[v])
		},
	},
	"stopped 3 s":  {agent: true, hit: onAgent(syscall.SIGSTOP), heal: onAgent(syscall.SIGCONT), lasts: 3 * time.Second},
	"stopped 20 s": {agent: true, hit: onAgent(syscall.SIGSTOP), heal: onAgent(syscall.SIGCONT), lasts: 20 * time.Second},
	"cut":          {hit: cut},
	"cut 1 s":      {hit: cut, heal: heal, lasts: time.Second},
	"cut 2 s":      {hit: cut, heal: heal, lasts: 2 * time.Second},
	"cut 4 s":      {hit: cut, heal: heal, lasts: 4 * time.Second, slow: true},
	"cut 15 s":     {hit: cut, heal: heal, lasts: 15 * time.Second},
	"out cut":      {hit: out},
	"out cut 2 s":  {hit: out, heal: heal, lasts: 2 * time.Second},
	"in cut":       {hit: in},
	"in cut 2 s":   {hit: in, heal: heal, lasts: 2 * time.Second},
	"delay 300 ms": {hit: onHost(func(h *testutil.Host) { h.Delay(300 * time.Millisecond) }), slow: true},
	// A connection that loses an answer five times in a row is silent for longer than a node may be.
	"loss 20 %, 10 s": {hit: onHost(func(h *testutil.Host) { h.Loss(20) }), heal: heal, lasts: 10 * time.Second, slow: true},
	"clock 60 s on":   {clock: true, hit: func(j *nodes, v int) { j.setClock(v, time.Minute) }},
	"clock 60 s off":  {clock: true, hit: func(j *nodes, v int) { j.setClock(v, -time.Minute) }},
}

// faultCase is one cell of the matrix: a fault, when it happens, to whom, and how the agents then end.
type faultCase struct {
	fault, phase string
	// kinds are the launchers by host: m for muster, t for torchrun. node0 is where the store is asked for.
	kinds  string
	victim int
	// want are the statuses by host: alternatives joined by |, "-" for a host or an agent that does not end by itself.
	want string
	// still: the fault is not to be noticed, the workers of the first round train to the end.
	still bool
}

func (c faultCase) String() string {
	return fmt.Sprintf("%s/%s/%s%d", c.fault, c.phase, c.kinds, c.victim)
}

// The phases: before any two agents have met; while some wait for the last one; while the workers train.
const (
	before = "before"
	during = "during"
	after  = "after"
)

// faultCases is the matrix. The nodes are 2:3, or 1:2 where there are two.
var faultCases = []faultCase{
	{"agent killed", before, "mmm", 1, "0 137 0", false},
	{"agent killed", during, "mmm", 1, "0 137 0", false},
	{"agent killed", after, "mmm", 1, "0 137 0", false},
	{"agent killed", after, "mmm", 0, "137 0 0", false},
	{"agent killed", after, "mmt", 2, "0 0 137", false},
	{"agent replaced", during, "mmm", 1, "0 0 0", false},
	{"agent replaced", after, "mmm", 1, "0 0 0", false},

	{"power off", before, "mmm", 0, "- 75 75", false},
	{"power off", during, "mmm", 0, "- 75 75", false},
	{"power off", during, "mmm", 1, "0 - 0", false},
	{"power off", after, "mmm", 0, "- 0 0", false},
	{"power off", after, "mmm", 1, "0 - 0", false},
	{"power off", after, "mm", 0, "- 75", false},
	{"power off", after, "mm", 1, "0 -", false},
	{"power off", after, "mmt", 2, "0 0 -", false},
	{"power off", after, "tmm", 0, "- 75 75", false},
	{"reboot", before, "mmm", 0, "0 0 0", false},
	{"reboot", during, "mmm", 0, "0 0 0", false},
	{"reboot", after, "mmm", 2, "0 0 0", false},

	{"stopped 3 s", before, "mmm", 1, "0 0 0", false},
	{"stopped 3 s", during, "mmm", 1, "0 0 0", false},
	{"stopped 3 s", during, "mmm", 0, "0 0 0", false},
	{"stopped 3 s", after, "mmm", 1, "0 0 0", true},
	{"stopped 3 s", after, "mmm", 0, "0 0 0", true},
	{"stopped 20 s", after, "mmm", 1, "0 0|75 0", false},
	{"stopped 20 s", after, "mmm", 0, "0|75 0 0", false},

	{"cut 2 s", before, "mmm", 1, "0 0 0", false},
	{"cut 2 s", before, "mmm", 0, "0 0 0", false},
	{"cut 2 s", during, "mmm", 1, "0 0 0", false},
	{"cut 2 s", during, "mmm", 0, "0 0 0", false},
	{"cut 1 s", after, "mmm", 1, "0 0 0", true},
	{"cut 4 s", after, "mmm", 1, "0 0 0", false},
	{"cut 4 s", after, "mmm", 0, "0 0 0", false},
	{"cut 15 s", after, "mmm", 1, "0 0|75 0", false},
	{"cut", before, "mmm", 1, "0 75 0", false},
	{"cut", during, "mmm", 1, "0 75 0", false},
	{"cut", after, "mmm", 1, "0 75 0", false},
	{"cut", after, "mmm", 0, "75 0 0", false},
	{"cut", after, "mm", 1, "0 75", false},
	{"cut", after, "mmt", 1, "0 75 0", false},
	{"cut", after, "mmt", 2, "0 0 -", false},

	{"out cut 2 s", before, "mmm", 1, "0 0 0", false},
	{"in cut 2 s", before, "mmm", 1, "0 0 0", false},
	{"out cut 2 s", during, "mmm", 1, "0 0 0", false},
	{"in cut 2 s", during, "mmm", 1, "0 0 0", false},
	{"out cut", after, "mmm", 1, "0 75 0", false},
	{"in cut", after, "mmm", 1, "0 75 0", false},
	{"out cut", after, "mmm", 0, "75 0 0", false},
	{"in cut", after, "mmm", 0, "75 0 0", false},

	{"delay 300 ms", before, "mmm", 0, "0 0 0", true},
	{"delay 300 ms", during, "mmm", 1, "0 0 0", false},
	{"delay 300 ms", after, "mmm", 0, "0 0 0", true},
	{"delay 300 ms", before, "mmt", 2, "0 0 0", false},
	{"loss 20 %, 10 s", before, "mmm", 0, "0 0 0", false},
	{"loss 20 %, 10 s", during, "mmm", 1, "0 0 0", false},
	{"loss 20 %, 10 s", after, "mmm", 0, "0 0 0", false},

	{"clock 60 s on", before, "mmm", 1, "0 0 0", true},
	{"clock 60 s on", before, "mmt", 0, "0 0 0", false},
	{"clock 60 s on", before, "mmt", 2, "0 0 0", false},
	{"clock 60 s off", before, "mmt", 2, "0 0 0", false},
	{"clock 60 s on", during, "mmt", 2, "0 0 0", false},
	{"clock 60 s on", after, "mmt", 2, "0 0 0", false},
	{"clock 60 s off", after, "mmt", 2, "0 0 0", false},
}

const (
	faultSteps = 15
	faultEvent = 5
	faultSoon  = 3 * time.Minute // bounds a hang: the slowest healing takes half of it
)

// cutFromGuest is a cut link between musters, while a torchrun is their guest.
const cutFromGuest = "cut/" + after + "/mmt1"

// fewerFaults leaves of each fault one cell, of moments that take turns, and of each mixture of launchers one at least.
// Where a fault has cells without a torchrun it is one of those, which cost less; a cell with a cut link has one as a guest.
func fewerFaults(all []faultCase) (some []faultCase) {
	var order, mixtures []string
	cells := map[string][]faultCase{}
	for _, c := range all {
		if cells[c.fault] == nil {
			order = append(order, c.fault)
		}
		if cells[c.kinds] == nil {
			mixtures = append(mixtures, c.kinds)
		}
		cells[c.fault], cells[c.kinds] = append(cells[c.fault], c), append(cells[c.kinds], c)
	}
	order = append(order, mixtures...)
	some = append(some, all[slices.IndexFunc(all, func(c faultCase) bool { return c.String() == cutFromGuest })])
	has := func(key string) bool {
		return slices.ContainsFunc(some, func(c faultCase) bool { return c.fault == key || c.kinds == key })
	}
	for i, key := range order {
		if !has(key) {
			of := slices.DeleteFunc(slices.Clone(cells[key]), func(c faultCase) bool { return strings.Contains(c.kinds, "t") })
			if len(of) == 0 {
				of = cells[key]
			}
			some = append(some, of[i%len(of)])
		}
	}
	return some
}

// TestNodesFaults runs the matrix once, with seed 1 or the one in NODES_SEED, and of each fault and of each mixture of
// launchers one cell; under MUSTER_SOAK=1 the whole matrix with 20 seeds, or NODES_COUNT of them, whose table docs/reliability.md
// shows. NODES_CASE chooses the cells whose name holds it. It does not run beside other tests: what is to be no loss
// may not take a second longer.
func TestNodesFaults(t *testing.T) {
	t.Parallel()
	testutil.Torchrun(t)
	testutil.Hosts(t, 1) // what is missing is missing here
	script, clocked := drive.Script(t, "nodes", "steps.py"), clockedMuster(t)
	seeds, cases := []uint64{1}, faultCases
	if !testutil.Soak() && os.Getenv("NODES_CASE") == "" {
		cases = fewerFaults(faultCases)
	}
	if text := os.Getenv("NODES_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds[0] = seed
	} else if testutil.Soak() {
		count := 20
		if text := os.Getenv("NODES_COUNT"); text != "" {
			var err error
			if count, err = strconv.Atoi(text); err != nil {
				t.Fatal(err)
			}
		}
		for len(seeds) < count {
			seeds = append(seeds, uint64(len(seeds))+1)
		}
	}
	var cells []faultCase
	var names []string
	var seedOf []uint64
	for _, seed := range seeds {
		for _, c := range cases {
			if strings.Contains(c.String(), os.Getenv("NODES_CASE")) {
				cells, names, seedOf = append(cells, c), append(names, fmt.Sprintf("%v/seed %d", c, seed)), append(seedOf, seed)
			}
		}
	}
	results := make([]faultResult, len(cells))
	atOnce(t, 12, names, func(t testing.TB, i int) {
		results[i].failed = true // until the end is reached
		results[i] = cells[i].run(t, script, clocked, seedOf[i])
	})
	t.Log("\n" + faultTable(cells, results))
}

// faultResult is what became of one cell under one seed.
type faultResult struct {
	failed bool
	// healed is the time from the fault to the first worker of a new round, or to the end of the last agent.
	healed time.Duration
}

func (c faultCase) run(t testing.TB, script, clocked string, seed uint64) faultResult {
	j := newNodes(t, len(c.kinds), "--no-python", drive.SystemPython(t), "-u", script)
	j.worker = append(j.worker, j.dir, strconv.Itoa(faultSteps))
	j.env, j.clocked, j.slow = []string{"PACE=0.05"}, clocked, faults[c.fault].slow
	if strings.Contains(c.kinds, "t") {
		j.join = torchrunComes
	}
	for _, kind := range c.kinds {
		j.kinds = append(j.kinds, map[rune]string{'m': "muster", 't': "torchrun"}[kind])
	}
	j.flags = []string{
		fmt.Sprintf("--nnodes=%d:%d", len(c.kinds)-1, len(c.kinds)), "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d",
		"--rdzv-endpoint=node0:29400", "--rdzv-id=faults",
	}
	j.hold(faultEvent)
	began := time.Now()
	c.begin(j, rand.New(rand.NewPCG(seed, uint64(len(c.String())))))
	hit := time.Now()
	if f := faults[c.fault]; f.heal != nil {
		time.Sleep(f.lasts)
		f.heal(j, c.victim)
	}
	if c.phase == after {
		began = hit
	}
	c.effect(j, began)
	j.release()
	succeeded := false
	for host, want := range strings.Fields(c.want) {
		if want == "-" {
			continue
		}
		var statuses []int
		for text := range strings.SplitSeq(want, "|") {
			status, _ := strconv.Atoi(text)
			statuses = append(statuses, status)
			succeeded = succeeded || status == 0
		}
		j.ends(j.agentOn(host), faultSoon-time.Since(hit), statuses...)
	}
	result := faultResult{healed: time.Since(hit)}
	lives := j.lives()
	if text, _ := os.ReadFile(filepath.Join(j.dir, "checkpoint")); succeeded && string(text) != strconv.Itoa(faultSteps) {
		t.Errorf("training ended at step %q, want %d", text, faultSteps)
	}
	// A node that a busy machine holds up may come too late for the first world; that is no failure.
	failed := slices.ContainsFunc(lives, func(l life) bool { return l.restarts > 0 })
	if c.still && (c.phase == after && j.newWorld(hit) || c.phase != after && (failed || len(lives) > 2*len(c.kinds)-1)) {
		t.Errorf("the fault was noticed: %+v", lives)
	}
	j.fenced()
	j.nothingLeft(c)
	for _, l := range lives {
		if l.began > seconds(hit) {
			result.healed = time.Duration((l.began - seconds(hit)) * 1e9)
			break
		}
	}
	result.failed = t.Failed()
	return result
}

// begin starts the agents, in any order, and lets the fault happen.
func (c faultCase) begin(j *nodes, random *rand.Rand) {
	j.t.Helper()
	pause := func(least, most time.Duration) { // the fault hits at a random moment; nothing is assumed to have happened by then
		time.Sleep(least + time.Duration(random.Int64N(int64(most-least))))
	}
	f := faults[c.fault]
	if f.clock {
		j.setClock(c.victim, 0)
	}
	order := random.Perm(len(c.kinds))
	switch c.phase {
	case before:
		if !f.agent {
			f.hit(j, c.victim)
		}
		slices.SortStableFunc(order, func(a, b int) int { return btoi(b == c.victim) - btoi(a == c.victim) })
		for _, host := range order {
			if j.hosts[host].Off() {
				continue
			}
			j.start(host, j.kinds[host])
			if f.agent && host == c.victim {
				pause(0, 100*time.Millisecond)
				f.hit(j, c.victim)
			}
		}
	case during:
		late := len(c.kinds) - 1
		for _, host := range order {
			if host != late {
				j.start(host, j.kinds[host])
			}
		}
		pause(200*time.Millisecond, 1500*time.Millisecond)
		f.hit(j, c.victim)
		j.start(late, j.kinds[late])
	case after:
		began := time.Now()
		for _, host := range order {
			j.start(host, j.kinds[host])
		}
		// torchrun may come when the others have begun.
		testutil.Eventually(j.t, faultSoon, "all train together",
			func() bool { return j.hasWorld(len(c.kinds), began) && j.step() >= faultEvent })
		pause(0, 200*time.Millisecond)
		f.hit(j, c.victim)
	}
}

// effect waits, while training is held, until the fault has had its effect or has had the time for one: a world that
// began after a time.
func (c faultCase) effect(j *nodes, since time.Time) {
	j.t.Helper()
	f := faults[c.fault]
	if c.phase != after || !c.still && !f.slow && !f.clock {
		everybody := strings.Trim(c.want, "0 ") == "" // then who was hit takes part
		testutil.Eventually(j.t, faultSoon, "the fault has its effect", func() bool {
			if everybody {
				return j.hasWorld(len(c.kinds), since) || j.over(c)
			}
			return j.newWorld(since) || j.over(c)
		})
	}
	switch whole := time.Now(); {
	case f.clock: // a node that is wrongly thought to be dead is so after 15 seconds
		time.Sleep(20 * time.Second)
		if c.phase != after && j.newWorld(whole) { // torchrun's agents may well be lost, and come back, when a clock is set while they run
			j.t.Errorf("clocks that differ led to another round: %+v", j.lives())
		}
	case f.slow && f.heal != nil: // who was lost comes back
		time.Sleep(5 * time.Second)
		testutil.Eventually(j.t, faultSoon, "all train together again", func() bool { return j.whole(len(c.kinds)) || j.over(c) })
	case c.still || f.slow:
		time.Sleep(time.Second)
	}
}

// whole reports whether the newest workers of all hosts are in one world and live.
func (j *nodes) whole(size int) bool {
	newest := map[string]life{}
	for _, l := range j.lives() {
		newest[l.host] = l
	}
	rounds, now := map[int]bool{}, seconds(time.Now())
	for _, l := range newest {
		if rounds[l.round] = true; l.worldSize != size || now-l.last > 2 {
			return false
		}
	}
	return len(newest) == size && len(rounds) == 1
}

// newWorld reports whether a worker has begun since a time.
func (j *nodes) newWorld(since time.Time) bool {
	lives := j.lives()
	return len(lives) > 0 && lives[len(lives)-1].began > seconds(since)
}

// over reports whether every agent has ended that is to end.
func (j *nodes) over(c faultCase) bool {
	for host, want := range strings.Fields(c.want) {
		if want == "-" {
			continue
		}
		select {
		case <-j.agentOn(host).Ended():
		default:
			return false
		}
	}
	return true
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fenced checks that no worker has lived on into a later round: two worlds would write one checkpoint.
func (j *nodes) fenced() {
	j.t.Helper()
	lives := j.lives()
	for _, old := range lives {
		for _, l := range lives {
			if old.round >= 0 && old.round < l.round && old.last > l.began {
				j.t.Errorf("a worker lived on into a later round for %.2f s: %+v beside %+v", old.last-l.began, old, l)
			}
		}
	}
}

// nothingLeft checks that no process is left where muster ran and ended.
func (j *nodes) nothingLeft(c faultCase) {
	j.t.Helper()
	for host, h := range j.hosts {
		if j.kinds[host] != "muster" || strings.Fields(c.want)[host] == "-" {
			continue
		}
		testutil.Eventually(j.t, 30*time.Second, "nothing runs any more on "+h.Name, func() bool { return len(h.Processes()) == 0 })
	}
}

// faultTable is the matrix as docs/reliability.md shows it: a line for each cell, over all seeds.
func faultTable(cells []faultCase, results []faultResult) string {
	type line struct {
		runs, good int
		slowest    time.Duration
	}
	lines := map[faultCase]*line{}
	for i, c := range cells {
		if lines[c] == nil {
			lines[c] = &line{}
		}
		l := lines[c]
		l.runs++
		l.good += btoi(!results[i].failed)
		l.slowest = max(l.slowest, results[i].healed)
	}
	var b strings.Builder
	b.WriteString("| fault | when | launchers | to | statuses | as wanted | slowest |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, c := range faultCases {
		if l := lines[c]; l != nil {
			fmt.Fprintf(&b, "| %s | %s | %s | node%d | %s | %d of %d | %.1f s |\n", c.fault, c.phase, c.kinds, c.victim,
				strings.ReplaceAll(c.want, "|", " or "), l.good, l.runs, l.slowest.Seconds())
		}
	}
	return b.String()
}
