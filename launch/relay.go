package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/internal/peertls"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/control"
	"muster/launch/control/relay"
	"muster/launch/report"
)

var (
	_ control.Reacher  = served{}
	_ control.Executor = served{}
)

// relaying is how the musters of other nodes reach this one, and it them.
type relaying struct {
	listener *relay.Listener // nil without a token
	domain   relay.Domain
	machine  string
	tree     *proc.Tree // nil while the agent has not begun
}

// reachNote is how a node's muster is reached by those of the other nodes, as it tells them together with how it stands.
type reachNote struct {
	// Relay is where it listens, in a job with a token.
	Relay peertls.Identity `json:"relay,omitempty"`
	// Dir is its run directory, and Machine where that is, for musters of the same machine.
	Dir     string `json:"dir,omitempty"`
	Machine string `json:"machine,omitempty"`
}

// machineID names what this process sees of a machine: two that have the same reach each other's sockets. Empty where
// that cannot be told.
func machineID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	id := []string{strings.TrimSpace(string(boot))}
	for _, ns := range []string{"mnt", "net", "user"} {
		var link string
		if err == nil {
			link, err = os.Readlink("/proc/self/ns/" + ns)
		}
		id = append(id, link)
	}
	if err != nil {
		return ""
	}
	return strings.Join(id, "/")
}

// OpenRelay begins to listen for the musters of other nodes at an address of this one. Without a token only those of the
// same machine reach it, through its run directory. The job runs without it, too.
func (s *Steering) OpenRelay(ctx context.Context, addr string, token []byte) {
	r := relaying{domain: relay.Domain{Token: token, RunID: s.plan.RunID}, machine: machineID()}
	if len(token) > 0 && s.server != nil {
		var err error
		if r.listener, err = relay.Listen(ctx, addr, r.domain, s.server.Take); err != nil {
			s.log.Warn().Err(err).Msg("the job runs, but muster logs and exec of other nodes cannot reach this one")
		}
	}
	s.mu.Lock()
	r.tree = s.relay.tree
	s.relay = r
	s.mu.Unlock()
}

// useTree says by what commands in the places of workers are started.
func (s *Steering) useTree(t *proc.Tree) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relay.tree = t
}

// closeRelay ends the listening.
func (s *Steering) closeRelay() error {
	s.mu.Lock()
	l := s.relay.listener
	s.mu.Unlock()
	return l.Close()
}

// Tunnel serves a connection that the launcher has made to this agent.
func (s *Steering) Tunnel(conn net.Conn) { s.server.Take(conn) }

// reachLocked is how other nodes are told to reach this one; nil: they cannot.
func (s *Steering) reachLocked() *reachNote {
	if s.server == nil {
		return nil
	}
	return &reachNote{Relay: s.relay.listener.Identity(), Dir: s.dir.Path, Machine: s.relay.machine}
}

// Reach implements control.Reacher.
func (v served) Reach(ctx context.Context, ranks []int) (*control.Far, error) {
	s := v.s
	s.mu.Lock()
	here := 0
	for _, rank := range ranks {
		if slices.ContainsFunc(s.places, func(p workerPlace) bool { return p.worker != nil && p.worker.Rank == rank }) {
			here++
		}
	}
	world := s.status.WorldSize
	own := s.status
	s.mu.Unlock()
	if here == len(ranks) || own.Nodes <= 1 {
		return nil, nil // Rank says which there are
	}
	for _, rank := range ranks {
		if world > 0 && rank >= world {
			return nil, errhint.Usagef("the job has no rank %d: its ranks are 0 to %d", rank, world-1)
		}
	}
	if here > 0 {
		return nil, errhint.Usagef("internal error: some of %d ranks are on node %s, and some are not", len(ranks), s.plan.Hostname)
	}
	heard, _ := s.hearOthers(ctx, own)
	for i, h := range heard {
		if h == nil || !slices.ContainsFunc(h.Status.Ranks, func(r report.Rank) bool { return r.Rank == ranks[0] }) {
			continue
		}
		for _, rank := range ranks {
			if !slices.ContainsFunc(h.Status.Ranks, func(r report.Rank) bool { return r.Rank == rank }) {
				return nil, errhint.Code(errhint.With(fmt.Errorf("ranks %d and %d are on several nodes now", ranks[0], rank),
					"the job has started its workers again: look at muster status, and try again"), errhint.TryAgain)
			}
		}
		name := fmt.Sprintf("%s (group rank %d)", printable.Output(h.Status.Tasks[0].Node), i)
		return s.far(name, ranks[0], h.Reach)
	}
	return nil, errhint.Code(errhint.With(fmt.Errorf("no node has said that it runs rank %d", ranks[0]),
		"try again when muster status shows the rank: nodes tell of their workers once they run"), errhint.TryAgain)
}

// far is how the muster of a node is asked that runs a rank.
func (s *Steering) far(name string, rank int, r *reachNote) (*control.Far, error) {
	s.mu.Lock()
	own := s.relay
	s.mu.Unlock()
	f := &control.Far{Node: name, From: s.plan.Hostname}
	switch {
	case r == nil:
		return nil, errhint.With(errhint.Usagef("rank %d is on node %s, whose muster has no control socket", rank, name),
			"call muster there")
	case r.Relay != "" && len(own.domain.Token) > 0:
		f.Dial = func(ctx context.Context) (net.Conn, error) { return relay.Dial(ctx, own.domain, r.Relay) }
	case r.Dir != "" && r.Machine != "" && r.Machine == own.machine:
		f.Dial = func(ctx context.Context) (net.Conn, error) { return control.DialSocket(ctx, r.Dir) }
	case len(own.domain.Token) > 0:
		return nil, errhint.With(errhint.Usagef("rank %d is on node %s, whose muster does not listen for those of other nodes", rank, name),
			"call muster there: its log says why it does not")
	default:
		return nil, errhint.With(errhint.Usagef("rank %d is on node %s, and without a job token nodes do not let each other in", rank,
			name),
			"call muster there, or start the job with --token-file on all its nodes (muster token FILE makes one)")
	}
	return f, nil
}

// Exec implements control.Executor.
func (v served) Exec(ctx context.Context, by control.Peer, w control.ExecWanted, files [3]*os.File) (control.Command, error) {
	s := v.s
	rank, err := v.Rank(ctx, w.Rank)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	tree := s.relay.tree
	var cpus []int
	for i := range s.places {
		if p := &s.places[i]; p.worker != nil && p.worker.Rank == w.Rank {
			cpus = p.worker.CPUs
		}
	}
	s.mu.Unlock()
	if tree == nil {
		return nil, errhint.Code(errors.New("the job has not begun"), errhint.TryAgain)
	}
	return s.guests.Exec(tree, rank, cpus, by, w, files)
}

// Entered implements control.Executor.
func (v served) Entered(by control.Peer, w control.ExecWanted) { v.s.guests.Entered(by, w) }

// LogsRead implements control.Executor.
func (v served) LogsRead(by control.Peer, ranks []int) { v.s.guests.LogsRead(by, ranks) }
