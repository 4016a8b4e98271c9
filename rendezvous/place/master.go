package place

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
	"muster/rendezvous"
	"muster/rendezvous/dlrover"
	"muster/rendezvous/membership"
)

// masterLastCall is how long a round of DLRover's master that has enough nodes waits for more, as its agents ask for.
const masterLastCall = time.Minute

// masterError says that a master of DLRover answers where a store may be.
type masterError struct{ service string }

func (e *masterError) Error() string { return "a master of DLRover answers there, by " + e.service }

// askPatience bounds how long a server that may be a master is asked for what only a master knows.
const askPatience = 10 * time.Second

// masterPatience is how long a pod of DLRover's operator waits for its master, as DLRover's agents do (0.6.1, read).
const masterPatience = time.Minute

// masterHint is what helps where neither a master of DLRover nor a store answers.
const masterHint = "does the pod of DLRover's master run, and is DLROVER_MASTER_ADDR its address? " +
	"Where the nodes need no master, does the node there run whose muster serves the store?"

// patience bounds how long this node waits for who is at the endpoints. The master of a job has been there before its
// pods, which know the job by JOB_UID; other nodes may come later than this one.
func (m *meeting) patience() time.Duration {
	if m.DLRover.Service == job.MasterAsked && m.DLRover.JobUID != "" {
		return min(m.JoinTimeout, masterPatience)
	}
	return m.JoinTimeout
}

// findMaster is a masterError where the first endpoint may be that of DLRover's master, and is.
func (m *meeting) findMaster(ctx context.Context) error {
	if m.DLRover.Service != job.MasterAsked {
		return nil
	}
	what, at := m.otherListener()
	service, known := map[string]string{grpcServer: job.MasterGRPC, webServer: job.MasterHTTP}[what]
	if !known {
		return nil
	}
	client, err := m.masterClient(service, at.String(), m.DLRover.NodeIP, askPatience)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if _, err := client.RunConfig(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errhint.With(
			errhint.Usagef(
				"cannot meet at DLROVER_MASTER_ADDR=%s: %s answers there, and neither a store of muster nor a master of DLRover: %v",
				at, what, err), // its status and hint are those of a master that is away
			fmt.Sprintf("muster's agents need no master: run muster store --bind 0.0.0.0:%d in its place, "+
				"or give --rdzv-endpoint HOST:PORT, where HOST is one of the nodes", at.Port))
	}
	return &masterError{service}
}

func (m *meeting) masterClient(service, addr, nodeIP string, patience time.Duration) (*dlrover.Client, error) {
	d := m.DLRover
	if asked := m.Prefers - 1; asked >= 0 && asked != d.NodeRank {
		m.log.Warn().Int("node_rank", asked).Msg(
			"DLRover's master ranks nodes by NODE_RANK: this node has another rank than it was started with")
	}
	return dlrover.NewClient(dlrover.ClientConfig{
		Addr: addr, Service: service, NodeID: d.NodeID, NodeType: d.NodeType, NodeIP: nodeIP, JobUID: d.JobUID,
		Timeout: cmp.Or(patience, d.Timeout), Patience: patience, Log: m.log,
	})
}

// openMaster takes part in the rounds of DLRover's master.
func (m *meeting) openMaster(ctx context.Context, j *job.Job, cfg *membership.Config) (rendezvous.Handler, Reach, error) {
	at := m.Endpoints[0]
	if err := m.masterRefuses(j); err != nil {
		return nil, Reach{}, err
	}
	joining, cancel := context.WithTimeout(ctx, m.JoinTimeout)
	defer cancel()
	for {
		err := m.ownAddr(joining, cfg, at)
		if err == nil {
			break
		}
		select { // the name of the master's service may be known only later
		case <-time.After(retryEvery):
		case <-joining.Done():
			if ctx.Err() != nil {
				return nil, Reach{}, context.Cause(ctx)
			}
			return nil, Reach{}, errhint.Code(fmt.Errorf("cannot reach DLRover's master at %s: %w", at, err), errhint.TryAgain)
		}
	}
	d := m.DLRover
	client, err := m.masterClient(d.Service, at.String(), cmp.Or(d.NodeIP, cfg.Addr), 0)
	if err != nil {
		return nil, Reach{}, err
	}
	options, err := client.RunConfig(ctx)
	if err != nil {
		_ = client.Close()
		return nil, Reach{}, err
	}
	m.log.Info().Str("addr", at.String()).Str("service", d.Service).Int("node_rank", d.NodeRank).Msg("rounds come from DLRover's master")
	handler, err := dlrover.Open(ctx, dlrover.Config{
		Client: client, Min: m.nodes.Min, Max: m.nodes.Max, Unit: max(m.NodeUnit, 1), NodeRank: d.NodeRank, Node: m.hostname,
		Addr:        cfg.Addr,
		JoinTimeout: m.JoinTimeout, PendTimeout: d.PendTimeout, LastCall: cmp.Or(m.LastCall, masterLastCall),
		Listen: func(ctx context.Context) (dlrover.Server, error) { return m.listenWorkers(ctx, cfg.Addr) },
		Ports:  m.WorkerPorts,
		Dial:   func(ctx context.Context, addr string) (dlrover.Conn, error) { return m.dial(ctx, addr) },
		Log:    m.log,
	})
	if err != nil {
		return nil, Reach{}, err
	}
	return handler, Reach{Addr: cfg.Addr, IDs: cfg.IDs, Options: options}, nil
}

// masterRefuses is an error for what a job asks of its meeting that DLRover's master cannot do, or does itself.
func (m *meeting) masterRefuses(j *job.Job) error {
	var given []string
	for flag, asked := range map[string]bool{
		"spares": m.Spares > 0, "topology-file": m.Topology != "", "token-file": m.TokenFile != "" || m.token != nil,
	} {
		if asked {
			given = append(given, "--"+flag)
		}
	}
	slices.Sort(given)
	if len(given) > 0 {
		return errhint.With(
			errhint.Usagef(
				"cannot use %s at DLRover's master (%s): it says itself which nodes form a round and in which order, and has no secret",
				strings.Join(given, ", "), m.Endpoints[0]),
			"leave that out, or let the nodes meet without that master: --rdzv-endpoint HOST:PORT, where HOST is one of the nodes")
	}
	for _, flag := range []string{"restart-limit", "quarantine"} {
		if s := j.Sources[flag]; s.Kind == job.FromFlag || s.Kind == job.FromVariable {
			m.log.Warn().Str("source", s.String()).Msg(
				"no effect with DLRover's master, which says itself which nodes are replaced, and how often")
		}
	}
	return nil
}
