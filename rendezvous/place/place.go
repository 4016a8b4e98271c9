// Package place opens what the nodes of a job meet through: it finds the store, or serves it where that is for this
// node to do, learns the address by which others reach this node, and makes the rendezvous.Handler.
package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/internal/tokenfile"
	"muster/launch/job"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/tcpstore"
	"muster/rendezvous/topology"
)

// What our own protocol takes where the user said nothing: a lost node leads to a new round within 6 s.
const (
	ownKeepAlive = 2 * time.Second
	ownAttempts  = 3
	ownLastCall  = 3 * time.Second
)

// Config says which job's nodes are to meet, and what of this node they are told.
type Config struct {
	Job *job.Job
	// RunID names the job, Hostname this node.
	RunID, Hostname string
	// MasterHost is where workers meet where this node is alone.
	MasterHost string
	// Token is the job's, where the launcher has brought it; else that of the job's token file counts.
	Token []byte
	// IDs are of this node's accelerators, where nodes are checked.
	IDs func(ctx context.Context) []string
	// Simulated says that all nodes are of one simulation, on this machine.
	Simulated bool
	// ClockOffset is how far this node's clock is off, 0 but in tests.
	ClockOffset time.Duration
	Log         zerolog.Logger
}

// Reach is how the other nodes of a job reach this one: its address, and the token that opens its services, nil for
// none.
type Reach struct {
	Addr  string
	Token []byte
	IDs   []string // of this node's accelerators, where nodes are checked
	// Options are those that a master of DLRover switches on, by its names.
	Options []string
}

// Open opens what the nodes meet through. The handler owns what was opened.
func Open(ctx context.Context, c Config) (rendezvous.Handler, Reach, error) {
	if c.Job.Alone() {
		server, err := listenAlone(ctx, c)
		if err != nil {
			return nil, Reach{}, err
		}
		return rendezvous.NewSolo(c.MasterHost, server), Reach{Addr: c.MasterHost}, nil
	}
	m := newMeeting(c)
	cfg, err := m.config(c.Job)
	if err != nil {
		return nil, Reach{}, err
	}
	cfg.IDs = c.IDs(ctx)
	if m.DLRover.Certain() {
		return m.openMaster(ctx, c.Job, &cfg)
	}
	err = m.open(ctx, &cfg)
	if found, is := errors.AsType[*masterError](err); is {
		m.DLRover.Service = found.service
		return m.openMaster(ctx, c.Job, &cfg)
	}
	if err != nil {
		return nil, Reach{}, err
	}
	if cfg.Token == nil {
		m.sayOpen(&cfg, c.Simulated)
	}
	handler, err := membership.New(cfg)
	if err != nil {
		release(&cfg)
		return nil, Reach{}, err
	}
	return handler, Reach{Addr: cfg.Addr, Token: cfg.Token, IDs: cfg.IDs}, nil
}

// Check returns what Open would refuse before it opens anything: a topology or a token that cannot be used.
func Check(j *job.Job) error {
	if j.Alone() {
		return nil
	}
	_, err := newMeeting(Config{Job: j, Log: zerolog.Nop()}).config(j)
	return err
}

// release closes what open has opened, for a meeting that does not come about.
func release(cfg *membership.Config) {
	_ = cfg.Store.Close()
	if cfg.Workers != nil {
		_ = cfg.Workers.Close()
	}
	if cfg.Served != nil {
		_ = cfg.Served.Close()
	}
}

// meeting finds the store that a job's agents meet at, or serves it.
type meeting struct {
	job.Meeting
	nodes    job.Range
	runID    string
	hostname string
	token    []byte // the job's, where the launcher has brought it
	offset   time.Duration
	log      zerolog.Logger
}

func newMeeting(c Config) *meeting {
	return &meeting{
		Meeting: c.Job.Meeting, nodes: c.Job.Nodes, runID: c.RunID, hostname: c.Hostname, token: c.Token, offset: c.ClockOffset, log: c.Log,
	}
}

// config is all of the configuration of membership that needs no store.
func (m *meeting) config(job *job.Job) (membership.Config, error) {
	cfg := membership.Config{
		RunID: m.runID, Min: m.nodes.Min, Max: m.nodes.Max, Spares: m.Spares, Unit: max(m.NodeUnit, 1),
		Fixed: m.Backend == "static" || m.Backend == "muster" && m.NodeRank >= 0, NodeRank: -1, Node: m.hostname,
		KeepAlive: cmp.Or(m.KeepAlive, ownKeepAlive), Attempts: cmp.Or(m.KeepAliveAttempts, ownAttempts),
		JoinTimeout: m.JoinTimeout, CloseTimeout: m.CloseTimeout, LastCall: cmp.Or(m.LastCall, ownLastCall),
		ReplaceLimit: job.Restart.ReplaceLimit, RankLimit: job.Restart.RankLimit, LossLimit: job.Restart.LossLimit,
		BackoffLimit: job.Restart.BackoffLimit,
		Checks:       job.Check.Flags(), Quarantine: job.Check.Quarantine, Log: m.log,
	}
	if cfg.Fixed {
		cfg.NodeRank = m.NodeRank
	} else {
		cfg.Prefers, cfg.Wants = m.Prefers, m.Wants
	}
	switches := &topology.Topology{}
	if m.Topology != "" {
		var err error
		if switches, err = topology.Load(m.Topology); err != nil {
			return cfg, errhint.Code(err, errhint.Usage)
		}
	}
	cfg.Order = orderBy(switches)
	if m.token != nil {
		cfg.Token = m.token
		return cfg, nil
	}
	if m.TokenFile == "" {
		return cfg, nil
	}
	var err error
	m.token, err = tokenfile.Read(m.TokenFile, m.log)
	cfg.Token = m.token
	return cfg, err
}

// orderBy ranks nodes by their switches. Newcomers come by address.
func orderBy(switches *topology.Topology) func([]membership.Placement) []int {
	return func(places []membership.Placement) []int {
		index := make([]int, len(places))
		addrs := make([]netip.Addr, len(places))
		for i, p := range places {
			index[i] = i
			addrs[i], _ = netip.ParseAddr(p.Addr) // a name is no address, and comes last
		}
		slices.SortStableFunc(index, func(i, j int) int {
			if addrs[i].IsValid() != addrs[j].IsValid() {
				return map[bool]int{true: -1, false: 1}[addrs[i].IsValid()]
			}
			return cmp.Or(addrs[i].Compare(addrs[j]), strings.Compare(places[i].Addr, places[j].Addr))
		})
		nodes := make([]topology.Node, len(places))
		for n, i := range index {
			nodes[n] = topology.Node{Survivor: places[i].Survivor, Rank: places[i].Rank}
			if addrs[i].IsValid() {
				nodes[n].Addrs = []netip.Addr{addrs[i]}
			}
		}
		order := switches.Order(nodes)
		for rank, n := range order {
			order[rank] = index[n]
		}
		return order
	}
}

// open reaches the agents' store, or serves it, and opens this node's own for the workers.
func (m *meeting) open(ctx context.Context, cfg *membership.Config) (err error) {
	joining, cancel := context.WithTimeout(ctx, m.patience())
	defer cancel()
	if m.Backend == "etcd" {
		err = m.openEtcd(joining, cfg)
	} else {
		err = m.openTCP(joining, cfg)
	}
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx) // a signal
		}
		return err
	}
	if cfg.Workers == nil {
		var server *tcpstore.Server
		if server, err = m.listenWorkers(ctx, cfg.Addr); err == nil {
			cfg.Workers = server
		}
	}
	switch {
	case err != nil:
	case m.Backend == "c10d":
		cfg.Bridge = m.bridge
	case m.Backend == "static":
		cfg.Bridge = m.staticBridge
		if !cfg.Hosts {
			err = m.countAtStatic(ctx, cfg.Store)
		}
	}
	if err != nil {
		release(cfg)
	}
	return err
}

// progressEvery is how often we say what is waited for.
const progressEvery = 5 * time.Second

const (
	// retryEvery is the pause between two looks for a host of the store.
	retryEvery = 200 * time.Millisecond
	// firstRetry is the first pause; it doubles. Nodes that a launcher has started together are here while the host
	// begins.
	firstRetry = 10 * time.Millisecond
)

// openTCP looks for the host of the store at each endpoint, and becomes the host where that is for this node to do.
func (m *meeting) openTCP(ctx context.Context, cfg *membership.Config) error {
	cfg.Failover = m.Backend != "static" && m.nodes.Max > 1
	cfg.Gone = func(ctx context.Context, addr string) bool {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = conn.Close() // nobody knows who listens there
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	cfg.Dial = func(ctx context.Context, addr string) (membership.Conn, error) {
		return m.dial(ctx, addr)
	}
	began, told := time.Now(), time.Now()
	for pause := firstRetry; ; pause = min(2*pause, retryEvery) {
		last := m.tryHost(ctx, cfg)
		if last == nil && cfg.Store != nil {
			return nil
		}
		for i, e := range m.Endpoints {
			if last != nil {
				break
			}
			err := m.tryClient(ctx, cfg, e, len(m.Endpoints) > 1)
			if err == nil {
				return nil
			}
			last = m.unreached(e, err)
			if i+1 < len(m.Endpoints) {
				last = nil
			}
		}
		if code := errhint.CodeOf(last); code == errhint.Usage {
			return last
		}
		if err := m.findMaster(ctx); err != nil {
			return err
		}
		if time.Since(told) >= progressEvery {
			told = time.Now()
			m.log.Warn().Err(m.explain(last)).Dur("dur_ms", time.Since(began)).Msg("waiting for " + m.awaited())
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			err := fmt.Errorf("%w; given up after %v", m.explain(last), time.Since(began).Round(time.Second))
			return errhint.Code(errhint.With(err, "does the node that hosts the store run, and can its port be reached from here?"),
				errhint.TryAgain)
		}
	}
}

// tryHost serves the store where this node is the one to do so. It leaves cfg.Store nil where it is not; an error that
// is no usage error may go away.
func (m *meeting) tryHost(ctx context.Context, cfg *membership.Config) error {
	first := m.Endpoints[0]
	if m.Backend == "static" && m.NodeRank != 0 || m.IsHost != nil && !*m.IsHost {
		return nil
	}
	must := m.IsHost != nil || m.Backend == "static"
	addrs, local, err := hostaddr.Ours(ctx, first.Host)
	if err != nil && !must {
		return nil // it is for the client to say that the name cannot be resolved
	}
	if !local && !must {
		return nil
	}
	if len(m.Endpoints) > 1 && m.active(ctx, m.Endpoints[1:]) {
		return nil // the store has moved while this node was away
	}
	if !local { // a service's address, or one behind NAT: whatever others reach, they come in by some address of this machine
		addrs = []netip.Addr{netip.IPv4Unspecified()}
		m.log.Warn().Str("host", first.Host).Msg("the endpoint is no address of this node: its store listens on every address")
	}
	server, err := m.listen(addrs, first.Port)
	if errors.Is(err, syscall.EADDRINUSE) && !must {
		m.log.Debug().Err(err).Msg("somebody else on this node hosts the store")
		return nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		why := "does another agent on this machine host it already?"
		if m.Backend == "static" {
			why = "was another agent on this machine started with node rank 0?"
		}
		err = fmt.Errorf("cannot host the store of the job: %w: %s", err, why)
	}
	if err != nil {
		return errhint.Code(err, errhint.Usage)
	}
	listens := server.Addrs()[0]
	at := job.Endpoint{Host: listens.Addr().String(), Port: server.Port()}
	if listens.Addr().IsUnspecified() {
		at.Host = "127.0.0.1"
	}
	dialed := at.String()
	client, err := m.dial(ctx, dialed)
	if err == nil {
		if !local {
			at.Host = m.hostname
		}
		err = m.ownAddr(ctx, cfg, at)
	}
	if err != nil {
		_ = server.Close()
		if ctx.Err() != nil {
			return errhint.Code(err, errhint.TryAgain)
		}
		return errhint.Code(err, errhint.Usage)
	}
	cfg.Hosts, cfg.Place, cfg.At = true, m.place(first), dialed
	if m.Backend == "static" {
		cfg.Workers, cfg.Store = server, client // one server, with a key space for agents
		if m.LocalAddr == "" && m.Iface == "" {
			cfg.Addr = first.Host
		}
	} else {
		cfg.Store, cfg.Served = client, server
	}
	return nil
}

// tryClient reaches the store at an endpoint. One of several must be the active one: its host has said so.
func (m *meeting) tryClient(ctx context.Context, cfg *membership.Config, e job.Endpoint, oneOfSeveral bool) error {
	addrs, local, err := hostaddr.Ours(ctx, e.Host)
	if err != nil {
		return err
	}
	if oneOfSeveral && local && !m.active(ctx, []job.Endpoint{e}) {
		return errors.New("no store there")
	}
	trying, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var errs []error
	for _, addr := range addrs {
		at := netip.AddrPortFrom(addr, uint16(e.Port))
		client, err := m.dial(trying, at.String())
		if err == nil && oneOfSeveral && !membership.Hosted(trying, client, m.runID, m.token) {
			_ = client.Close()
			err = errors.New("it is not the store of this job")
		}
		if err == nil {
			err = m.ownAddr(ctx, cfg, job.Endpoint{Host: addr.String(), Port: e.Port})
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		cfg.Store, cfg.Place, cfg.At = client, m.place(e), at.String()
		return nil
	}
	return errors.Join(errs...)
}

// place is how the store at an endpoint is called.
func (m *meeting) place(e job.Endpoint) string {
	if m.Backend == "static" {
		return "the store of node rank 0 at " + e.String()
	}
	return "the store at " + e.String()
}

// unreached is the error of an endpoint at which no store is reached.
func (m *meeting) unreached(e job.Endpoint, why error) error {
	if m.DLRover.Service != job.MasterAsked || errhint.CodeOf(why) == errhint.Usage {
		return fmt.Errorf("cannot reach %s: %w", m.place(e), why)
	}
	text := fmt.Sprintf("cannot reach DLRover's master, or a store of muster, at %s: %v", e, why)
	return errhint.With(errors.New(text), masterHint) // the hint of why speaks of a store alone
}

// awaited is for whom this node waits that finds nobody yet.
func (m *meeting) awaited() string {
	if m.DLRover.Service == job.MasterAsked {
		return "DLRover's master, or the host of a store of muster, at DLROVER_MASTER_ADDR"
	}
	return "the host of the store"
}

// active reports whether one of endpoints serves the store of this job.
func (m *meeting) active(ctx context.Context, endpoints []job.Endpoint) bool {
	for _, e := range endpoints {
		trying, cancel := context.WithTimeout(ctx, time.Second)
		if !listens(trying, e.String()) { // a client would wait for it
			cancel()
			continue
		}
		client, err := m.dial(trying, e.String())
		if err == nil {
			is := membership.Hosted(trying, client, m.runID, m.token)
			_ = client.Close()
			if is {
				cancel()
				return true
			}
		}
		cancel()
	}
	return false
}

// listens reports whether anybody takes connections there.
func listens(ctx context.Context, addr string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// dial reaches a store, and sees the agents' keys there.
func (m *meeting) dial(ctx context.Context, addr string) (*tcpstore.Client, error) {
	return tcpstore.Dial(ctx, addr, tcpstore.ClientConfig{Private: membership.KeyPrefix, Log: m.log})
}

// ownAddr finds the address by which others reach this node: the one asked for, or the one from which it reaches at.
func (m *meeting) ownAddr(ctx context.Context, cfg *membership.Config, at job.Endpoint) error {
	switch {
	case m.LocalAddr != "":
		cfg.Addr = m.LocalAddr
		return nil
	case m.Iface != "":
		addr, err := hostaddr.OfInterface(m.Iface)
		if err != nil {
			return errhint.Code(err, errhint.Usage)
		}
		cfg.Addr = addr.String()
		return nil
	}
	addrs, _, err := hostaddr.Ours(ctx, at.Host)
	if err != nil {
		return err
	}
	addr, err := hostaddr.ToReach(netip.AddrPortFrom(addrs[0], uint16(at.Port)))
	cfg.Addr = addr.String()
	return err
}
