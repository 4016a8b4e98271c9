package membership

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"muster/rendezvous"
)

// Bounds on what a record may claim. Seals say that an agent of the job wrote it, and not that the agent was right.
const (
	maxWorkers = 1 << 16
	maxNodes   = 1 << 20
	maxWorld   = 1 << 31
	maxRounds  = 1 << 30
	maxTerms   = 1 << 30
	maxDelay   = 10 * 365 * 24 * time.Hour
	maxHost    = 512      // bytes of a host name or address
	maxLabel   = 2 << 10  // bytes of a node as people see it, of a role, and the like
	maxMessage = 64 << 10 // bytes of a sentence for people
	maxExit    = 16       // keys of an exit barrier
)

// check refuses a record that no agent of ours would write.
func (r *joinRecord) check() error {
	switch {
	case !isNonce(r.Agent):
		return errors.New("it names no agent")
	case r.Wish != "" && !isNonce(r.Wish) || r.Job != "" && !isNonce(r.Job) || r.RoundJob != "" && !isNonce(r.RoundJob):
		return errors.New("a nonce in it is none")
	case len(r.Node) > maxHost || len(r.Addr) > maxHost || len(r.Role) > 1024 || len(r.Checks) > 8<<10 || len(r.IDs) > maxIDs*(maxID+1):
		return errors.New("a name in it is too long")
	case r.Workers < 1 || r.Workers > maxWorkers:
		return fmt.Errorf("it has %d workers", r.Workers)
	case r.Port < 0 || r.Port > 65535:
		return fmt.Errorf("it has port %d", r.Port)
	case r.NodeRank < -1 || r.NodeRank >= maxNodes || r.Round < -1 || r.Round > maxRounds || r.Rank < 0 || r.Rank >= maxNodes ||
		r.Size < 0 || r.Size > maxNodes || r.Agents < 0 || r.Agents > r.Size:
		return fmt.Errorf("it has node rank %d, rank %d of %d in round %d", r.NodeRank, r.Rank, r.Size, r.Round)
	case r.Prefers < 0 || r.Prefers > maxNodes:
		return fmt.Errorf("it would like to have node rank %d", r.Prefers-1)
	case r.Wants < 0 || r.Wants > maxNodes:
		return fmt.Errorf("it wants %d nodes", r.Wants)
	case badLosses(r.LostOf):
		return fmt.Errorf("it has %.40q of lost nodes", r.LostOf)
	case r.Restarts < 0 || r.Replacements < 0 || r.Restarts > maxRounds || r.Replacements > maxRounds:
		return fmt.Errorf("it has %d restarts and %d replacements", r.Restarts, r.Replacements)
	case r.Host != "" && !isNonce(r.Host) || r.HostRank < noRank || r.HostRank >= maxNodes:
		return fmt.Errorf("it names no host of its last store, of rank %d", r.HostRank)
	}
	return checkOrders(r.Orders)
}

func (r *coordinatorRecord) check() error {
	if !isNonce(r.Agent) || !isNonce(r.Nonce) || len(r.Node) > maxHost {
		return errors.New("it names no coordinator")
	}
	return nil
}

func (r *hostRecord) check() error { return checkAgent(r.Agent) }
func (r *leftRecord) check() error { return checkAgent(r.Agent) }

func checkAgent(id string) error {
	if !isNonce(id) {
		return errors.New("it names no agent")
	}
	return nil
}

func (r *termRecord) check() error {
	if r.Term < 0 || r.Term > maxTerms {
		return fmt.Errorf("it has term %d", r.Term)
	}
	return nil
}

func (r *elsewhereRecord) check() error { return checkHostPort(r.At) }

func (r *openRecord) check() error {
	if r.Port < 0 || r.Port > 65535 {
		return fmt.Errorf("it has port %d", r.Port)
	}
	return nil
}

func (r *tallyRecord) check() error {
	if r.Failed < 0 || r.Ended < r.Failed || r.Ended > maxWorkers {
		return fmt.Errorf("it has %d workers, and %d of them failed", r.Ended, r.Failed)
	}
	return nil
}

func (r *stoppedRecord) check() error { return checkSlot(r.Slot, 0) }

func (r *reportedRecord) check() error {
	if len(r.Slots) > maxReports {
		return fmt.Errorf("it has %d reports", len(r.Slots))
	}
	for _, slot := range r.Slots {
		if err := checkSlot(slot, 1); err != nil {
			return err
		}
	}
	return nil
}

func checkSlot(slot, least int) error {
	if slot < least || slot > maxReports {
		return fmt.Errorf("it has report %d", slot)
	}
	return nil
}

func (r *voteRecord) check() error {
	if !isNonce(r.Agent) || !isNonce(r.Nonce) || r.Round < 0 || r.Round > maxRounds || r.Rank < 0 || r.Rank >= maxNodes ||
		r.Silent < 0 || r.Silent > maxDelay || len(r.Host) > maxHost || len(r.Addr) > maxHost {
		return errors.New("it is no vote")
	}
	return nil
}

func (r *rollRecord) check() error {
	if !isNonce(r.Job) || !isNonce(r.Nonce) || r.Round < 0 || r.Round > maxRounds || r.Size < 1 || r.Size > maxNodes ||
		len(r.Members) > r.Size ||
		r.Restarts < 0 || r.Restarts > maxRounds || r.Replacements < 0 || r.Replacements > maxRounds {
		return fmt.Errorf("it has %d of %d members in round %d", len(r.Members), r.Size, r.Round)
	}
	for _, m := range r.Members {
		if !isNonce(m.Agent) || m.Rank < 0 || m.Rank >= r.Size || len(m.Host) > maxHost || len(m.Addr) > maxHost {
			return fmt.Errorf("it has a member with rank %d of %d", m.Rank, r.Size)
		}
	}
	return nil
}

func (l *waitlist) check() error {
	if len(l.Joined) > waitlistNames || len(l.Missing) > waitlistNames || l.Count < 0 || l.Count > maxNodes || l.Lacking < 0 ||
		l.Lacking > maxNodes {
		return fmt.Errorf("it has %d nodes", l.Count)
	}
	return checkStandbys(l.Standbys)
}

func checkStandbys(standbys []standby) error {
	if len(standbys) > maxStandbys {
		return fmt.Errorf("it has %d successors of the host", len(standbys))
	}
	for _, h := range standbys {
		if err := checkHostPort(h.Addr); err != nil {
			return err
		}
		if !isNonce(h.Agent) || len(h.Node) > maxLabel {
			return errors.New("it names no successor of the host")
		}
	}
	return nil
}

func checkHostPort(at string) error {
	host, port, err := net.SplitHostPort(at)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || host == "" || len(at) > maxHost || n > 65535 {
		return fmt.Errorf("%.80q is no address of a store", at)
	}
	return nil
}

// check refuses an answer that says nothing, and what check refuses of its parts.
func (a *answer) check() error {
	switch {
	case !isNonce(a.Agent):
		return errors.New("it is for no agent")
	case a.Begin != nil:
		return a.Begin.check()
	case a.Over != nil:
		if k := a.Over.Kind; k != rendezvous.Succeed && k != rendezvous.Fail {
			return fmt.Errorf("the job is over with a verdict of kind %q", k)
		}
		return checkVerdict(a.Over)
	case a.Prepare != nil:
		if p := a.Prepare; !isNonce(p.Nonce) || p.Round < 0 || p.Round > maxRounds {
			return fmt.Errorf("it prepares round %d", p.Round)
		}
	case a.Wait != nil:
		w := a.Wait
		if w.Job != "" && !isNonce(w.Job) {
			return errors.New("a nonce in it is none")
		}
		if w.Held < 0 || w.Held > longestCool || len(w.Why) > maxLabel {
			return fmt.Errorf("it says that the node is in quarantine for %v", w.Held)
		}
		if w.Door != nil {
			return w.Door.check()
		}
	case a.Elsewhere != "":
		return checkHostPort(a.Elsewhere)
	case !a.Again && a.Refused == "" || len(a.Refused) > maxMessage:
		return errors.New("it says nothing")
	}
	return nil
}

// check refuses a place that no coordinator of ours would give.
func (a *assignment) check() error {
	within := func(n, least, most int) bool { return n >= least && n <= most }
	if !within(a.Round, 0, maxRounds) || !within(a.Size, 1, maxNodes) || !within(a.Rank, 0, a.Size-1) || !within(a.World, 1, maxWorld) ||
		!within(a.BaseRank, 0, a.World-1) || !within(a.RoleWorld, 1, a.World) || !within(a.BaseRoleRank, 0, a.RoleWorld-1) ||
		a.MasterAddr == "" || len(a.MasterAddr) > maxHost || !within(a.MasterPort, 0, 65535) || !within(a.Agents, 1, a.Size) ||
		!within(a.AgentRank, 0, a.Agents-1) || !within(a.Workers, 1, a.World) || !within(a.Restarts, 0, maxRounds) ||
		!within(a.Replacements, 0, maxRounds) || !within(a.Min, 1, maxNodes) || !within(a.Max, a.Min, maxNodes) || !isNonce(a.Job) ||
		a.Heard < 0 || !isNonce(a.Nonce) || a.Host != "" && !isNonce(a.Host) || len(a.Exit) > maxExit ||
		badLosses(a.LostOf) || !within(a.LeadRank, noRank, a.Size-1) || !within(a.HostRank, noRank, a.Size-1) ||
		a.LeadNode.tooLong() || a.HostNode.tooLong() {
		return fmt.Errorf("cannot use the place that the coordinator gave: %+v", *a)
	}
	for _, key := range a.Exit {
		if len(key) > maxLabel {
			return fmt.Errorf("cannot use the place that the coordinator gave: a key of %d bytes", len(key))
		}
	}
	if err := checkOrders(a.Orders); err != nil {
		return fmt.Errorf("cannot use the place that the coordinator gave: %w", err)
	}
	if err := checkStandbys(a.Standbys); err != nil {
		return fmt.Errorf("cannot use the place that the coordinator gave: %w", err)
	}
	return nil
}

func (n nodeID) tooLong() bool { return len(n.Host) > maxHost || len(n.Addr) > maxHost }

// checkOrders refuses a count or a command that no agent of ours would write.
func checkOrders(p rendezvous.Orders) error {
	if p.Version < 0 || p.Version > maxRounds || p.Pauses < 0 || p.Pauses > maxRounds || p.Nodes < 0 || p.Nodes > maxNodes ||
		p.CheckAt < rendezvous.CheckResumed || p.CheckAt > maxRounds || len(p.Command) > rendezvous.MaxCommand {
		return fmt.Errorf("it has orders %d with a command of %d bytes", p.Version, len(p.Command))
	}
	return nil
}

// verdictRecord is a rendezvous.Verdict as it is read.
type verdictRecord struct{ rendezvous.Verdict }

func (v *verdictRecord) check() error { return checkVerdict(&v.Verdict) }

// checkVerdict refuses what no agent of ours would say.
func checkVerdict(v *rendezvous.Verdict) error {
	switch v.Kind {
	case rendezvous.Restart, rendezvous.Reassemble, rendezvous.Succeed, rendezvous.Fail:
	default:
		return fmt.Errorf("verdict of kind %.40q", v.Kind)
	}
	late := func(d time.Duration) bool { return d < 0 || d > maxDelay }
	if v.Status < 0 || v.Status > 255 || v.Restarts < 0 || v.Restarts > maxRounds || late(v.Delay) || late(v.Linger) || late(v.Grace) ||
		v.Rank < -1 || v.Rank >= maxWorld || v.Lost < 0 || v.Lost > maxNodes {
		return fmt.Errorf("status %d, rank %d, delay %v, restarts %d", v.Status, v.Rank, v.Delay, v.Restarts)
	}
	if len(v.Reason) > maxLabel || len(v.Node) > maxLabel || len(v.Subject) > maxLabel || len(v.Message) > maxMessage {
		return errors.New("a text in it is too long")
	}
	if e := v.Exclude; e.GroupRank < 0 || e.GroupRank >= maxWorld || e.Status < 0 || e.Status > 255 || len(e.Node) > maxLabel ||
		len(e.Reason) > maxMessage {
		return fmt.Errorf("it excludes node %d with status %d", e.GroupRank, e.Status)
	}
	return checkOrders(v.Orders)
}
