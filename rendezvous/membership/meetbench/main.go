// Command meetbench measures how long many agents take to complete a round. All of them are in this process, each with
// connections of its own to one store, which runs elsewhere.
//
//	meetbench -store 127.0.0.1:29400 -agents 4000 -rounds 3 [-c10d] [-token] [-hold 20s]
//
// It prints one line of JSON per round: agents and seconds, counted from when the first agent joins, all being
// connected, until the last one has its place. With -c10d the rounds are those of a job in which an agent of torchrun
// has been: all nodes are in the pickled state of its protocol, with ranks given there. With -token the agents have a
// job token, so that all they tell each other is sealed. With -hold the last round runs for so long, and a line says
// how much of a processor the agents took in that time: what their heartbeats cost.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"muster/rendezvous"
	"muster/rendezvous/c10d"
	"muster/rendezvous/membership"
	"muster/rendezvous/mixed"
	"muster/rendezvous/tcpstore"
)

func main() {
	store := flag.String("store", "127.0.0.1:29400", "address of the store")
	agents := flag.Int("agents", 1000, "number of agents")
	rounds := flag.Int("rounds", 3, "number of rounds, each a restart of the one before")
	c10d := flag.Bool("c10d", false, "in torchrun's rendezvous")
	sealed := flag.Bool("token", false, "with a job token")
	hold := flag.Duration("hold", 0, "how long the last round runs")
	flag.Parse()
	var token []byte
	if *sealed {
		token = []byte("a token of thirty-two bytes here")
	}
	if err := run(context.Background(), *store, *agents, *rounds, *c10d, token, *hold); err != nil {
		fmt.Fprintln(os.Stderr, "meetbench:", err)
		os.Exit(1) //nolint:forbidigo // this is a main
	}
}

type result struct {
	Agents  int     `json:"agents"`
	Round   int     `json:"round"`
	Seconds float64 `json:"seconds"`
}

func run(ctx context.Context, store string, n, rounds int, torchrun bool, token []byte, hold time.Duration) error {
	handlers := make([]*membership.Handler, n)
	g, dialing := errgroup.WithContext(ctx)
	g.SetLimit(64)
	id := fmt.Sprintf("bench-%d-%d", n, time.Now().UnixNano())
	for i := range handlers {
		g.Go(func() (err error) {
			handlers[i], err = agent(dialing, store, id, i, n, torchrun, token)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if torchrun {
		if err := visit(ctx, store, id); err != nil {
			return err
		}
	}
	out, met := json.NewEncoder(os.Stdout), make([]rendezvous.Round, n)
	for round := range rounds {
		began := time.Now()
		g, meeting := errgroup.WithContext(ctx) // without one of them the others would wait for it, for minutes
		for i, h := range handlers {
			g.Go(func() error {
				r, err := h.Next(meeting, rendezvous.Member{Role: "default", LocalWorldSize: 8})
				if err == nil && (r.GroupWorldSize != n || r.Number != round || r.WorldSize != 8*n) {
					err = fmt.Errorf("agent %d is in round %d of %d nodes, %d workers", i, r.Number, r.GroupWorldSize, r.WorldSize)
				}
				met[i] = r
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if err := out.Encode(result{n, round, time.Since(began).Seconds()}); err != nil {
			return err
		}
		if round == rounds-1 && hold > 0 {
			before := processorTime()
			time.Sleep(hold)
			if err := out.Encode(held{n, hold.Seconds(), (processorTime() - before).Seconds() / hold.Seconds()}); err != nil {
				return err
			}
		}
		v := rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: round + 1}
		if round == rounds-1 {
			v = rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}
		}
		if _, err := met[n/2].Propose(ctx, v); err != nil {
			return err
		}
		for _, r := range met {
			<-r.Verdict()
		}
	}
	var closing errgroup.Group
	for _, h := range handlers {
		closing.Go(h.Close)
	}
	return closing.Wait()
}

// held is what agents cost while a round runs.
type held struct {
	Agents     int     `json:"agents"`
	Held       float64 `json:"held_s"`
	Processors float64 `json:"processors"`
}

// processorTime is how long this process has used processors.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// visit does what an agent of torchrun does first, and no more.
func visit(ctx context.Context, store, id string) error {
	conn, err := tcpstore.Dial(ctx, store, tcpstore.ClientConfig{})
	if err != nil {
		return err
	}
	_, err = conn.CompareAndSet(ctx, "/torch.rendezvous."+id, nil, []byte(c10d.NoState))
	return errors.Join(err, conn.Close())
}

func agent(ctx context.Context, store, id string, i, n int, torchrun bool, token []byte) (*membership.Handler, error) {
	conn, err := tcpstore.Dial(ctx, store, tcpstore.ClientConfig{})
	if err != nil {
		return nil, err
	}
	var bridge func(membership.Conn) (membership.Bridge, error)
	if torchrun {
		bridge = func(conn membership.Conn) (membership.Bridge, error) {
			return mixed.New(c10d.BridgeConfig{Store: conn, RunID: id, Settings: c10d.DefaultSettings(n, n), Log: zerolog.Nop()})
		}
	}
	return membership.New(membership.Config{
		Bridge: bridge, Token: token,
		RunID: id, Min: n, Max: n, Unit: 1, NodeRank: -1, Node: fmt.Sprintf("node%05d", i),
		Addr:      fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255),
		KeepAlive: 2500 * time.Millisecond, Attempts: 3, JoinTimeout: time.Minute, CloseTimeout: 30 * time.Second,
		LastCall:     3 * time.Second,
		ReplaceLimit: -1, BackoffLimit: -1, Order: identity, Store: conn, Place: store, Log: zerolog.Nop(),
	})
}

// identity keeps the order that nodes are given in.
func identity(places []membership.Placement) []int {
	order := make([]int, len(places))
	for i := range order {
		order[i] = i
	}
	return order
}
