package netcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"muster/netcheck/netprobe"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// defaultBudget bounds a stage where the user says nothing.
const defaultBudget = 120 * time.Second

// defaultFactor is how many times slower than the others a straggler is where the user says nothing.
const defaultFactor = 2

// Program is the check program on the devices of this node. A method that fails says which device, why, and what to
// try.
type Program interface {
	// Ready waits until the program can begin.
	Ready(ctx context.Context) error
	// Local tests every device by itself, and the devices with each other.
	Local(ctx context.Context) (Local, error)
	// Serve opens the store in which the processes of the next Exchange or Perf meet, and returns its port.
	Serve(ctx context.Context) (port int, err error)
	// Exchange runs an all-reduce among the devices of the nodes of a group, and checks what came out.
	Exchange(ctx context.Context, g Group) (Timing, error)
	// Perf measures an all-reduce of several sizes.
	Perf(ctx context.Context, g Group) ([]Timing, error)
	// Close ends the program, so that the devices are free.
	Close() error
}

// ErrUnable is wrapped by errors of a Program that cannot test anything, which speaks neither for nor against the node.
var ErrUnable = errors.New("cannot be tested")

// Group is the devices that take part in a test of several nodes.
type Group struct {
	// Store is host:port of the store where they meet.
	Store string
	// Name is another one for every group of a check.
	Name string
	// FirstRank is the rank of this node's first device among World.
	FirstRank, World int
}

// Local is what a node found out about its devices.
type Local struct {
	// Compute is how long a matrix product takes on the slowest device, Reduce an all-reduce among them; 0: not
	// measured.
	Compute time.Duration `json:"compute_ns,omitempty"`
	Reduce  time.Duration `json:"reduce_ns,omitempty"`
	// Kind is what torch calls the devices: cuda, cpu, …
	Kind string `json:"kind,omitempty"`
}

// Timing is how fast an all-reduce is. Bandwidths are in GB/s of 10^9 bytes: of the algorithm (bytes over time), and of
// the busiest link if there were only one, which does not depend on the number of devices.
type Timing struct {
	Bytes  int64         `json:"bytes,omitempty"`
	Took   time.Duration `json:"took_ns,omitempty"`
	AlgBW  float64       `json:"algbw_gbps,omitempty"`
	BusBW  float64       `json:"busbw_gbps,omitempty"`
	Device string        `json:"device,omitempty"` // as torch calls it: cuda, cpu, …
}

// Rules say how a check is done.
type Rules struct {
	// Network tests pairs of nodes; without it each node tests only itself.
	Network bool
	// Full tests every pair, in every check.
	Full bool
	// Budget bounds each stage; 0 means defaultBudget.
	Budget time.Duration
	// Factor is how many times slower than the others a straggler is, 0 means defaultFactor; Median compares with the median of all.
	Factor float64
	Median bool
	// ExcludeStraggler has stragglers leave.
	ExcludeStraggler bool
	// CommPerf measures the bandwidth of all nodes together at the end.
	CommPerf bool
	// Limits are those of the network between two nodes; the zero value is netprobe's.
	Limits netprobe.Limits
}

// Config is one node's part in the checks of a job.
type Config struct {
	// Node is its host name, Addr the address by which the others reach it.
	Node, Addr string
	// Devices is how many processes the check program has here, ≥ 1.
	Devices int
	// IDs are those of its accelerators, where they have some: by them a node that is excluded is known again.
	IDs   []string
	Rules Rules
	// Inspect examines the node without the check program, and returns what makes it unfit, "" for nothing; nil:
	// nothing is.
	Inspect func(ctx context.Context) string
	// Probe is how the network between two nodes is measured; nil: it is not, and this node offers no probes. Look
	// tells what the node is to say of itself.
	Probe *netprobe.Config
	Look  func(ctx context.Context) netprobe.Node
	// Progress, when not nil, is told what this node does next. It must not block.
	Progress func(Step)
	// Fake is said on every report of a check of fake hardware; empty for real one.
	Fake string
	Log  zerolog.Logger
}

// Step is what a node does in a check.
type Step struct {
	Doing Doing
	// Pairs counts the rounds of pairs, from 1; Peer is the group rank of the other node of the pair. For TestsPair
	// alone.
	Pairs, Peer int
	// Limit is how long it may take; 0: as long as the others take.
	Limit time.Duration
}

// Doing is what kind of step it is, in words.
type Doing string

// What a node does.
const (
	Waits       Doing = "waiting for the other nodes"
	TestsItself Doing = "testing this node"
	TestsPair   Doing = "testing the link to another node"
	MeasuresAll Doing = "measuring all nodes together"
)

// String says what the node does, with the other node of a pair.
func (s Step) String() string {
	if s.Doing == TestsPair {
		return fmt.Sprintf("testing the link to the node with group rank %d, round %d of pairs", s.Peer, s.Pairs)
	}
	return string(s.Doing)
}

// Checker does this node's part in the checks of a job, one before each round. Not safe for concurrent use.
type Checker struct {
	cfg     Config
	cleared bool
	fault   *Fault
	tested  bool  // by itself, at the door
	met     bool  // tested with others there, too, which says nothing of its links to those that train
	local   Local // when it was cleared, or tested

	measured []string // see leader
}

// New returns a checker.
func New(cfg Config) *Checker {
	if cfg.Rules.Budget == 0 {
		cfg.Rules.Budget = defaultBudget
	}
	if cfg.Rules.Factor == 0 {
		cfg.Rules.Factor = defaultFactor
	}
	return &Checker{cfg: cfg}
}

// Round is the round before which a check is done.
type Round struct {
	// Board is the round's; nil where this node is alone.
	Board      rendezvous.Board
	Rank, Size int
	// Suspect says that something failed here in the last round: an earlier check says nothing of the node any more.
	Suspect bool
	// Door says that the nodes are in no round yet: others train. What it finds of a node by itself is not looked for
	// again in the round that it joins.
	Door bool
	// Standard is what the check of the nodes that train has left for those at the door (rendezvous.StandardKey), nil
	// for nothing.
	Standard []byte
	// Medium is the network in between where it is rehearsed, as it is in this round; nil for the real one.
	Medium *netprobe.Medium
	// Open starts the check program. It is called when that is needed, if at all.
	Open func(ctx context.Context) (Program, error)
}

// limit is what a node's part of a stage may take.
func (r *Rules) limit(s stage) time.Duration {
	switch s {
	case stageLocal:
		return 2 * r.Budget // the links between devices, and then the devices
	case stagePairs: // the start of the check program, where it does not run, and then the test
		return r.Budget + r.exchange()
	default:
		return r.Budget
	}
}

// exchange is what the test of a pair may take when both of its nodes are ready: its work is one of a second.
func (r *Rules) exchange() time.Duration { return min(max(r.Budget/4, shortest), r.Budget) }

// shortest is what a test of a pair may take in any case, on a busy machine and a slow network.
const shortest = 15 * time.Second

// margin is how much longer than its stage may take others wait for a node's word: it has to start the check program,
// and ends it by itself where that takes too long.
const margin = 15 * time.Second

// Check does the check. The record is the same on every node, and Fault says what it means for this one. An error means
// that the check could not be done: the round has ended, or ctx has. The node with rank 0 has the record also where a
// node at fault has left, and ended the round, before it has read the record itself.
func (c *Checker) Check(ctx context.Context, r Round) (*Record, error) {
	if r.Suspect {
		c.cleared, c.tested, c.met = false, false, false
	}
	if r.Board == nil {
		r.Board = memstore.NewSpace().Client()
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &member{cfg: &c.cfg, round: r, board: board{r.Board}}
	l := &leader{cfg: &c.cfg, size: r.Size, board: m.board, measured: &c.measured, door: r.Door, others: readStandard(r.Standard)}
	led := make(chan error, 1)
	if r.Rank == 0 {
		go func() {
			led <- l.lead(ctx)
		}()
	}
	own := hello{
		Node: c.cfg.Node, Devices: c.cfg.Devices, Cleared: c.cleared || r.Door && c.met, Tested: c.tested, IDs: c.cfg.IDs,
		Fault: c.fault,
	}
	if c.cleared || c.tested {
		own.Compute, own.Kind = c.local.Compute, c.local.Kind
	}
	ended := func() {}
	if c.cfg.Probe != nil && r.Size > 1 {
		own.Probe, ended = m.serve(ctx)
	}
	record, err := m.run(ctx, own)
	if closeErr := m.close(); closeErr != nil {
		c.cfg.Log.Warn().Err(closeErr).Msg("something of the check program is left")
	}
	ended()
	if r.Rank == 0 {
		cancel()
		switch leadErr := <-led; {
		case record != nil:
		case l.judged && outer.Err() != nil: // whoever read the verdict first has left, and ended the round
			record, err = &l.rec, nil
		case leadErr != nil && !errors.Is(err, rendezvous.ErrStoreClosed): // which ended what this node leads, too
			err = leadErr
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot check the nodes: %w", err)
	}
	verdict := &record.Nodes[r.Rank]
	if verdict.Local != (Local{}) {
		c.local = verdict.Local
	}
	c.fault = verdict.Fault
	if r.Door {
		c.tested = verdict.Fault == nil && verdict.Local != (Local{})
		c.met = verdict.Status == Pass && r.Size > 1
	} else {
		c.cleared = verdict.Status == Pass
	}
	return record, nil
}

// member is a node's part in one check.
type member struct {
	cfg     *Config
	round   Round
	board   board
	program Program
	probe   netprobe.Config
	pairs   int // rounds of pairs that this node knows of
}

// run follows the plans until there is a verdict.
func (m *member) run(ctx context.Context, own hello) (*Record, error) {
	if err := m.board.put(ctx, keyHello(m.round.Rank), own); err != nil {
		return nil, err
	}
	for n, idle := 0, false; ; n++ {
		if !idle { // one that goes on waiting does nothing new
			m.tell(Step{Doing: Waits})
		}
		var p plan
		// A leader that is lost ends the round; one that lives and says nothing may not be waited for.
		if err := m.board.get(ctx, 2*m.cfg.Rules.limit(stageLocal)+2*margin, keyPlan(n), &p); err != nil {
			return nil, err
		}
		if err := p.check(m.round.Size); err != nil {
			return nil, fmt.Errorf("cannot follow the check's plan: %w", err)
		}
		switch p.Stage {
		case stageVerdict:
			return p.Verdict, nil
		case stageFailed:
			return nil, errors.New(p.Err)
		case stagePairs:
			m.pairs++
		default:
		}
		if idle = !p.has(m.round.Rank); idle {
			continue
		}
		m.tell(m.step(&p))
		res := m.carryOut(ctx, n, &p)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := m.board.put(ctx, keyResult(n, m.round.Rank), res); err != nil {
			return nil, err
		}
	}
}

func (m *member) tell(s Step) {
	if m.cfg.Progress != nil {
		m.cfg.Progress(s)
	}
}

// step is what p means for this node.
func (m *member) step(p *plan) Step {
	s := Step{Limit: m.cfg.Rules.limit(p.Stage)}
	switch p.Stage {
	case stagePairs:
		s.Doing, s.Pairs = TestsPair, m.pairs
		pair := p.pairOf(m.round.Rank)
		if s.Peer = pair[0]; s.Peer == m.round.Rank {
			s.Peer = pair[1]
		}
	case stagePerf:
		s.Doing = MeasuresAll
	default:
		s.Doing = TestsItself
	}
	return s
}

// carryOut does this node's part of a plan.
func (m *member) carryOut(ctx context.Context, n int, p *plan) (res result) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Rules.limit(p.Stage))
	defer cancel()
	var err error
	switch p.Stage {
	case stageLocal:
		res.Local, err = m.local(ctx)
	case stagePairs:
		res.Probe = m.ask(ctx, p)
		res.Took, err = m.pair(ctx, n, p)
	case stagePerf:
		res.Perf, err = m.perf(ctx, n, p)
	default:
		err = fmt.Errorf("stage %q is not known to this version of muster", p.Stage)
	}
	if err != nil {
		res.Err, res.Unable, res.Foreign = err.Error(), errors.Is(err, ErrUnable), errors.Is(err, rendezvous.ErrUntrusted)
	}
	return res
}

func (m *member) local(ctx context.Context) (*Local, error) {
	if m.cfg.Inspect != nil && m.program == nil { // the check program is a process that computes, as others must not
		if wrong := m.cfg.Inspect(ctx); wrong != "" {
			return nil, errors.New(wrong)
		}
	}
	program, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	l, err := program.Local(ctx)
	return &l, err
}

// open starts the check program where it does not run.
func (m *member) open(ctx context.Context) (Program, error) {
	if m.program == nil {
		program, err := m.round.Open(ctx)
		if err != nil {
			return nil, err
		}
		m.program = program
	}
	return m.program, nil
}

func (m *member) close() error {
	if m.program == nil {
		return nil
	}
	return m.program.Close()
}

// pair tests the link to the peer.
func (m *member) pair(ctx context.Context, n int, p *plan) (Timing, error) {
	pair := p.pairOf(m.round.Rank)
	g, err := m.group(ctx, n, pair[:], p.Devices)
	if err != nil {
		return Timing{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Rules.exchange())
	defer cancel()
	return m.program.Exchange(ctx, g)
}

func (m *member) perf(ctx context.Context, n int, p *plan) ([]Timing, error) {
	g, err := m.group(ctx, n, p.Nodes, p.Devices)
	if err != nil {
		return nil, err
	}
	return m.program.Perf(ctx, g)
}

// group prepares a test of several nodes, of which the first one opens the store.
func (m *member) group(ctx context.Context, n int, nodes, devices []int) (Group, error) {
	g := Group{Name: fmt.Sprintf("%d/%d", n, nodes[0])}
	if len(devices) != m.round.Size {
		return g, fmt.Errorf("the plan is about %d nodes, not %d", len(devices), m.round.Size)
	}
	for _, rank := range nodes {
		if rank == m.round.Rank {
			g.FirstRank = g.World
		}
		g.World += devices[rank]
	}
	// Whoever is not ready in time says so, so that nobody waits for it, and the test itself can be short.
	var where meeting
	starting, cancel := context.WithTimeout(ctx, m.cfg.Rules.Budget)
	defer cancel()
	program, err := m.open(starting)
	if err == nil {
		err = program.Ready(starting)
	}
	if err == nil && nodes[0] == m.round.Rank {
		var port int
		port, err = program.Serve(starting)
		where.Addr = net.JoinHostPort(m.cfg.Addr, strconv.Itoa(port))
	}
	if err != nil {
		where = meeting{Err: err.Error()}
	}
	own := keyReady(n, m.round.Rank)
	if nodes[0] == m.round.Rank {
		own, g.Store = keyMeeting(n, nodes[0]), where.Addr
	}
	telling, told := context.WithTimeout(context.WithoutCancel(ctx), tellTime)
	defer told()
	if err := errors.Join(err, m.board.put(telling, own, where)); err != nil {
		return g, err
	}
	for _, rank := range nodes {
		if rank == m.round.Rank {
			continue
		}
		key := keyReady(n, rank)
		if rank == nodes[0] {
			key = keyMeeting(n, rank)
		} else if nodes[0] != m.round.Rank {
			continue // the first one alone waits for all: the others wait for it in the test
		}
		var other meeting
		if err := m.board.get(ctx, 0, key, &other); err != nil {
			return g, fmt.Errorf("node %d did not get ready: %w", rank, err)
		}
		if other.Err != "" {
			return g, fmt.Errorf("node %d could not begin: %s", rank, other.Err)
		}
		if rank == nodes[0] {
			g.Store = other.Addr
		}
	}
	return g, nil
}

// tellTime bounds what a node still says when its part is over: the store may be lost.
const tellTime = 2 * time.Second
