package membership_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// link is the network between two nodes.
type link struct {
	cut   atomic.Bool
	deaf  atomic.Bool  // answers are lost, requests arrive
	delay atomic.Int64 // each way
}

// cable is a connection over a link. before and after delay one request and its answer more.
type cable struct {
	*memstore.Client
	l             *link
	before, after func(op, key string) time.Duration
}

func (c *cable) through(ctx context.Context, op, key string, do func() error) error {
	half := func(answer bool, more func(op, key string) time.Duration) error {
		d := time.Duration(0)
		if c.l != nil {
			d = time.Duration(c.l.delay.Load())
		}
		if more != nil {
			d += more(op, key)
		}
		if d > 0 {
			select {
			case <-time.After(d):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		for c.l != nil && (c.l.cut.Load() || answer && c.l.deaf.Load()) {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}
	if err := half(false, c.before); err != nil {
		return err
	}
	err := do()
	if e := half(true, c.after); e != nil {
		return e
	}
	return err
}

func (c *cable) Set(ctx context.Context, key string, value []byte) error {
	return c.through(ctx, "set", key, func() error { return c.Client.Set(ctx, key, value) })
}

func (c *cable) Get(ctx context.Context, key string) (value []byte, err error) {
	err = c.through(ctx, "get", key, func() (err error) { value, err = c.Client.Get(ctx, key); return err })
	return value, err
}

func (c *cable) Wait(ctx context.Context, keys ...string) error {
	return c.through(ctx, "wait", keys[0], func() error { return c.Client.Wait(ctx, keys...) })
}

func (c *cable) Add(ctx context.Context, key string, delta int64) (n int64, err error) {
	err = c.through(ctx, "add", key, func() (err error) { n, err = c.Client.Add(ctx, key, delta); return err })
	return n, err
}

func (c *cable) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = c.through(ctx, "cas", key, func() (err error) { value, err = c.Client.CompareAndSet(ctx, key, expected, desired); return err })
	return value, err
}

// network is nodes with a link between each two of them.
type network struct {
	*job
	mu     sync.Mutex
	spaces map[string]*memstore.Space
	links  map[[2]string]*link
	spans  []span
	lapses []span // that ended because their lease was over
	errs   map[string]error
	ports  int
}

// span is the time in which an agent has workers.
type span struct {
	who        string
	round      rendezvous.Round
	start, end time.Time
}

func newNetwork(t *testing.T, minNodes, maxNodes int) *network {
	return &network{
		job: newJob(t, minNodes, maxNodes), spaces: map[string]*memstore.Space{}, links: map[[2]string]*link{}, errs: map[string]error{},
	}
}

func (n *network) link(a, b string) *link {
	if a > b {
		a, b = b, a
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.links[[2]string{a, b}]
	if l == nil {
		l = &link{}
		n.links[[2]string{a, b}] = l
	}
	return l
}

// split cuts every link between the two sides.
func (n *network) split(one, other string) { n.between(one, other, true) }

// mend undoes split.
func (n *network) mend(one, other string) { n.between(one, other, false) }

func (n *network) between(one, other string, cut bool) {
	for a := range strings.FieldsSeq(one) {
		for b := range strings.FieldsSeq(other) {
			n.link(a, b).cut.Store(cut)
		}
	}
}

func (n *network) dial(ctx context.Context, from, to string) (*cable, error) {
	var l *link
	if from != to {
		if l = n.link(from, to); l.cut.Load() {
			<-ctx.Done()
			return nil, fmt.Errorf("%s does not reach %s", from, to)
		}
	}
	n.mu.Lock()
	client := n.spaces[to].Client()
	n.mu.Unlock()
	if _, err := client.Add(ctx, "probe", 0); err != nil { // a handshake
		return nil, err
	}
	return &cable{Client: client, l: l}, nil
}

func (n *network) node(name, host string, change ...func(*membership.Config)) *agent {
	n.ports++
	p := n.ports
	n.mu.Lock()
	if n.spaces[name] == nil {
		n.spaces[name] = memstore.NewSpace()
	}
	n.mu.Unlock()
	conn, err := n.dial(n.t.Context(), name, host)
	if err != nil {
		n.t.Fatal(err)
	}
	return n.start(name, append([]func(*membership.Config){func(c *membership.Config) {
		c.Store, c.Hosts, c.Failover, c.Workers, c.At = conn, name == host, true, port{p}, host+":0"
		c.Dial = func(ctx context.Context, addr string) (membership.Conn, error) {
			to, _, _ := strings.Cut(addr, ":")
			return n.dial(ctx, name, to)
		}
	}}, change...)...)
}

// come lets nodes live or be mortal, one after the other, at the store of a, which is alone until it waits for others.
func (n *network) come(names string, live func(*agent, *sync.WaitGroup), lives *sync.WaitGroup) []*agent {
	var agents []*agent
	for name := range strings.FieldsSeq(names) {
		x := n.node(name, "a")
		agents = append(agents, x)
		if live(x, lives); name == "a" {
			synctest.Wait()
		}
	}
	return agents
}

// firstRound is come for nodes that meet, and no more.
func (n *network) firstRound(names string) []*agent {
	var met sync.WaitGroup
	all := n.come(names, func(a *agent, met *sync.WaitGroup) {
		begun := a.begin(n.t.Context())
		met.Go(func() { <-begun })
	}, &met)
	met.Wait()
	return all
}

// reborn is a2, which serves the address of a from now on: a's supervisor has started it again.
func (n *network) reborn() *agent { return n.rebornAs("a2") }

// rebornAs is reborn for an agent of another name.
func (n *network) rebornAs(name string, change ...func(*membership.Config)) *agent {
	x := n.node(name, name, change...)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.spaces["a"] = n.spaces[name]
	return x
}

// partition cuts the network in two at random.
func (n *network) partition(rnd *rand.Rand, names []string) {
	side := map[string]bool{}
	for _, name := range names {
		side[name] = rnd.IntN(2) == 0
	}
	for i, x := range names {
		for _, y := range names[:i] {
			n.link(x, y).cut.Store(side[x] != side[y])
		}
	}
	n.t.Logf("%v partition %v", time.Now().Format("05.000"), side)
}

// heal mends every link.
func (n *network) heal(names []string) {
	for i, x := range names {
		for _, y := range names[:i] {
			n.link(x, y).cut.Store(false)
			n.link(x, y).deaf.Store(false)
		}
	}
	n.t.Logf("%v heal", time.Now().Format("05.000"))
}

// goOn wants so many agents to have workers.
func (n *network) goOn(least int) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	running := 0
	for _, s := range n.spans {
		if s.end.IsZero() {
			running++
		}
	}
	if running < least {
		n.t.Errorf("%d nodes go on, want %d or more: %v", running, least, n.errs)
	}
}

// allEnd waits until every agent has ended.
func (n *network) allEnd(lives *sync.WaitGroup) {
	n.t.Helper()
	done := make(chan struct{})
	go func() { lives.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Hour):
		n.t.Error("an agent does not end")
	}
}

// live is an agent's life: rounds, the workers of which end as late as the verdict allows, 30 s where it says nothing.
func (n *network) live(a *agent, done *sync.WaitGroup) {
	done.Go(func() {
		for {
			r := <-a.begin(n.t.Context())
			if r.err != nil {
				n.mu.Lock()
				n.errs[a.name] = r.err
				n.mu.Unlock()
				n.t.Logf("%v %s ends: %v", time.Now().Format("05.000"), a.name, r.err)
				a.Close()
				n.spacesOf(a.name).Close() // its process ends
				return
			}
			n.workers(a, r.round)
		}
	})
}

// workers is one round until its end; it returns false when the test is over.
func (n *network) workers(a *agent, r rendezvous.Round) {
	start := time.Now()
	n.t.Logf("%v %s begins round %d: rank %d of %d at %s, replacements %d", start.Format("05.000"), a.name, r.Number, r.GroupRank,
		r.GroupWorldSize, r.MasterAddr, r.Replacements)
	n.mu.Lock()
	n.spans = append(n.spans, span{a.name, r, start, time.Time{}})
	i := len(n.spans) - 1
	n.mu.Unlock()
	v := n.awaitVerdict(a, i)
	grace := v.Grace
	if grace == 0 {
		grace = 30 * time.Second
	}
	n.t.Logf("%v %s hears %s %s, grace %v: %s", time.Now().Format("05.000"), a.name, v.Kind, v.Reason, v.Grace, v.Message)
	if v.Reason == "ScaleUp" || v.Grace == 0 { // nobody is cut off: here workers end by themselves
		grace = 0
	}
	n.mu.Lock()
	if n.spans[i].end.IsZero() {
		n.spans[i].end = time.Now().Add(grace)
	} else {
		grace = 0
	}
	n.mu.Unlock()
	time.Sleep(grace)
}

// awaitVerdict kills the workers of a span when their lease is over, and says so to the others.
func (n *network) awaitVerdict(a *agent, i int) rendezvous.Verdict {
	var over <-chan time.Time
	for {
		select {
		case v := <-a.Verdict():
			return v
		case lease := <-a.Lease():
			if over = nil; !lease.IsZero() {
				over = time.After(time.Until(lease))
			}
		case <-over:
			n.mu.Lock()
			s := &n.spans[i]
			if s.end.IsZero() {
				s.end = time.Now()
				n.lapses = append(n.lapses, *s)
			}
			n.mu.Unlock()
			v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "LeaseOver", Message: a.name + " was not heard of", Rank: -1}
			n.t.Logf("%v %s: its lease is over", time.Now().Format("05.000"), a.name)
			if v, err := a.Propose(n.t.Context(), v); err == nil {
				return v
			}
		}
	}
}

// overlaps reports worlds that run at the same time.
func (n *network) overlaps() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.spans {
		for _, y := range n.spans {
			same := x.round.Number == y.round.Number && x.round.MasterAddr == y.round.MasterAddr &&
				x.round.GroupWorldSize == y.round.GroupWorldSize
			xEnds := x.end.IsZero() || x.end.After(y.start)
			if !same && x.start.Before(y.start) && xEnds {
				n.t.Errorf("workers of %s (round %d at %s) run until %v; %s has begun round %d at %s at %v", x.who, x.round.Number,
					x.round.MasterAddr,
					x.end.Format("05.000"), y.who, y.round.Number, y.round.MasterAddr, y.start.Format("05.000"))
			}
		}
	}
}

// end ends the job everywhere.
func (n *network) end(agents ...*agent) {
	for _, x := range agents {
		n.spacesOf(x.name).Close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		l.cut.Store(true)
	}
}

func (n *network) spacesOf(name string) *memstore.Space {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.spaces[name]
}

// late lets another agent claim the leadership first.
func late(c *membership.Config) {
	c.Store.(*cable).before = func(op, key string) time.Duration {
		if op == "cas" && strings.HasSuffix(key, "/coordinator") {
			return 100 * time.Millisecond
		}
		return 0
	}
}

// mustMeetLater runs f with two agents in a round, of which a is the coordinator.
func (j *job) mustMeetLater(t *testing.T, f func(a, b *agent)) {
	t.Helper()
	a := j.start("a")
	first := a.begin(t.Context())
	synctest.Wait()
	b := j.start("b")
	if n := <-b.begin(t.Context()); n.err != nil {
		t.Fatal(n.err)
	}
	if n := <-first; n.err != nil {
		t.Fatal(n.err)
	}
	f(a, b)
}

// bridge is a Bridge whose Join returns when it is told to, and whose Barrier nobody else enters.
type bridge struct {
	join chan membership.Joined
}

func (b *bridge) Appeared(context.Context) error { return nil }

func (b *bridge) Join(ctx context.Context, company func() []membership.Peer, _ <-chan struct{},
	_ membership.Master,
) (membership.Joined, error) {
	select {
	case j := <-b.join:
		for rank, f := range company() {
			j.Places = append(j.Places, membership.Place{
				Agent: f.Agent, Rank: rank + 1, BaseRank: 2 * (rank + 1),
				BaseRoleRank: 2 * (rank + 1), RoleWorldSize: j.World,
			})
		}
		return j, nil
	case <-ctx.Done():
		return membership.Joined{}, context.Cause(ctx)
	}
}

func (b *bridge) Stay(ctx context.Context, _ func() []membership.Peer, _ <-chan struct{}) (string, error) {
	<-ctx.Done()
	return "", context.Cause(ctx)
}

func (b *bridge) Hold(ctx context.Context, _ func() []membership.Peer) error {
	<-ctx.Done()
	return nil
}

func (b *bridge) Barrier(ctx context.Context, _ func() []membership.Peer, _ <-chan struct{}) error {
	<-ctx.Done()
	return context.Cause(ctx)
}
func (b *bridge) Close(context.Context) error { return nil }
func (b *bridge) Progress() string            { return "" }

// failing is a store that has begun to refuse one key, as etcd does when permissions change.
type failing struct {
	*memstore.Client
	calls atomic.Int64
	on    atomic.Bool
}

func (f *failing) Get(ctx context.Context, key string) ([]byte, error) {
	if f.on.Load() && strings.HasSuffix(key, "/verdict") {
		if f.calls.Add(1) > 100_000 {
			<-ctx.Done()
		}
		return nil, fmt.Errorf("cannot GET %q: permission denied", key)
	}
	if strings.HasSuffix(key, "/verdict") {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second) // the watch ends, and is refused when it is made anew
		defer cancel()
		value, err := f.Client.Get(limited, key)
		if err != nil {
			return nil, fmt.Errorf("cannot GET %q: permission denied", key)
		}
		return value, err
	}
	return f.Client.Get(ctx, key)
}

// worlds reports the worlds that run now, where there are several.
func (n *network) worlds() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	running := map[string][]string{}
	for _, s := range n.spans {
		if s.end.IsZero() {
			w := fmt.Sprintf("round %d of %d at %s", s.round.Number, s.round.GroupWorldSize, s.round.MasterAddr)
			running[w] = append(running[w], s.who)
		}
	}
	if len(running) > 1 {
		n.t.Errorf("worlds of one job: %v", running)
	}
	n.t.Logf("%v", running)
}
