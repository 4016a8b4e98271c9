package netprobe

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
	"muster/internal/peertls"
)

// minToken is the length of the shortest token that is taken, in bytes: a probe server shows to whoever has the token
// what the network can do, and lets it be loaded.
const minToken = peertls.MinToken

// Config is what both ends of a probe are told; zero means the default.
type Config struct {
	// Token is the job's secret, the same on all nodes, at least minToken bytes. There is no default: without one a
	// node must not offer its probes.
	Token []byte
	// Node is what this node tells its peers of itself. Its Name must be set.
	Node Node

	// Peer is what the node that Pair probes is called. Medium is the network in between where it is rehearsed; nil:
	// the real one. It asks by that name.
	Peer   string  `json:"-"`
	Medium *Medium `json:"-"`

	// Listen is where the server listens, "host:port"; default ":0". Datagrams are exchanged at the same number.
	Listen string
	// Host is the name or address by which the others reach the server, default: where it listens.
	Host string
	// MaxConns is how many connections the server serves at a time, default 128. A pair needs six at once at most;
	// those above it are told that it is busy, and try again.
	MaxConns int
	// MaxRuns is how many runs of streams the server takes part in at a time, default 1: two at once measure each
	// other.
	MaxRuns int
	// MaxBytes is how many bytes the server sends or takes in one run, default 64 GiB. A run that reaches it ends
	// early.
	MaxBytes int64

	// Serve is Server.Identity of this node's own server, by which Pair lets the other node try the way back; empty
	// leaves that out.
	Serve string
	// Budget bounds the whole probe of one pair, default 10 s. What does not fit is left out, and the facts say so.
	Budget time.Duration
	// Tries is how often is connected, default 10, each time for Patience at most (default 1 s), Gap apart after a
	// failure (default 200 ms) and a quarter of it after a success.
	Tries         int
	Patience, Gap time.Duration
	// Echoes is how many round trips are measured, default 2000, for EchoTime at most (default 1.5 s); the first tenth
	// does not count.
	Echoes   int
	EchoTime time.Duration
	// Sizes are the datagrams tried beside the MTU of the interface, headers included, in bytes; default 1500 and 4200.
	// One of 1280 goes ahead of them: where it is lost nothing is said about sizes.
	Sizes []int
	// SizeTries is how often each is sent, default 3, SizePatience apart (default 300 ms; twice the round trip is
	// added).
	SizeTries    int
	SizePatience time.Duration
	// Streams are the numbers of streams of the runs, default 1 and 4; each is done in both directions. An empty list
	// that is not nil leaves runs out.
	Streams []int
	// WarmUp is not measured, default 400 ms; Timed is, default 1 s. Each run takes their sum. Runs are shortened, down
	// to a quarter, where the budget does not hold them.
	WarmUp, Timed time.Duration
}

// Limits of what may be set, and of what is taken from a peer.
const (
	maxStreams = 16
	maxTries   = 100
	maxEchoes  = 1 << 20
	maxRun     = 30 * time.Second // warm-up and measuring
	maxBudget  = 10 * time.Minute
)

// domain is what the nodes of the job have in common.
func (c *Config) domain() peertls.Domain { return peertls.Domain{Token: c.Token, Purpose: "probes"} }

// withDefaults returns the settings as they are used, or everything that is wrong with them.
func (c Config) withDefaults() (Config, error) {
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	number := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	if c.Listen == "" {
		c.Listen = ":0"
	}
	number(&c.MaxConns, 128)
	number(&c.MaxRuns, 1)
	number(&c.Tries, 10)
	number(&c.Echoes, 2000)
	number(&c.SizeTries, 3)
	if c.MaxBytes == 0 {
		c.MaxBytes = 64 << 30
	}
	set(&c.Budget, 10*time.Second)
	set(&c.Patience, time.Second)
	set(&c.Gap, 200*time.Millisecond)
	set(&c.EchoTime, 1500*time.Millisecond)
	set(&c.SizePatience, 300*time.Millisecond)
	set(&c.WarmUp, 400*time.Millisecond)
	set(&c.Timed, time.Second)
	if c.Sizes == nil {
		c.Sizes = []int{1500, 4200}
	}
	if c.Streams == nil {
		c.Streams = []int{1, 4}
	}
	return c, c.check()
}

func (c *Config) check() error {
	var merr *multierror.Error
	within := func(what string, n, low, high int64) {
		if n < low || n > high {
			merr = multierror.Append(merr, fmt.Errorf("%s is %d, want %d to %d", what, n, low, high))
		}
	}
	last := func(what string, d, high time.Duration) {
		if d < 0 || d > high {
			merr = multierror.Append(merr, fmt.Errorf("%s is %v, want up to %v", what, d, high))
		}
	}
	if len(c.Token) < minToken {
		merr = multierror.Append(merr, errhint.With(fmt.Errorf("the token has %d bytes, at least %d are wanted", len(c.Token), minToken),
			"give every agent of the job the same token (MUSTER_TOKEN_FILE); without one nodes do not probe each other"))
	}
	if c.Node.Name == "" {
		merr = multierror.Append(merr, errors.New("the node has no name"))
	}
	within("the number of connections", int64(c.MaxConns), 1, 1<<16)
	within("the number of runs at a time", int64(c.MaxRuns), 1, 1<<10)
	within("the number of bytes in a run", c.MaxBytes, 1<<20, 1<<50)
	within("the number of tries", int64(c.Tries), 1, maxTries)
	within("the number of round trips", int64(c.Echoes), 10, maxEchoes)
	within("the number of datagrams of a size", int64(c.SizeTries), 1, maxTries)
	for _, n := range c.Streams {
		within("a number of streams", int64(n), 1, maxStreams)
	}
	for _, n := range c.Sizes {
		within("a size of datagrams", int64(n), smallestSize, largestSize)
	}
	last("the budget", c.Budget, maxBudget)
	last("the wait for a connection", c.Patience, time.Minute)
	last("the time between tries", c.Gap, time.Minute)
	last("the time for round trips", c.EchoTime, time.Minute)
	last("the wait for a datagram", c.SizePatience, time.Minute)
	last("a run", c.WarmUp, maxRun)
	last("a run", c.Timed, maxRun-c.WarmUp)
	if err := merr.ErrorOrNil(); err != nil {
		return fmt.Errorf("cannot probe the network: %w", err)
	}
	return nil
}
