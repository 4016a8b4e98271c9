package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
)

// meeting is a number of agents that meet again and again, in our own protocol or in torchrun's.
type meeting struct {
	agents int
	c10d   bool
	token  bool // all that the agents tell each other is sealed
}

// meetings are the figures of all runs of one kind, in s.
type meetings struct {
	first   []float64 // the first round
	restart []float64 // the rounds after it
}

const (
	fewAgents, manyAgents = 1000, 4000
	published             = "373 s, later 10 s" // of torchelastic, by its authors, elsewhere
)

// agents measures how long thousands of agents take to complete a round.
func agents(ctx context.Context, b *bench) ([]row, error) {
	const runs = 3
	log.Printf("agents: %d and %d of them in one process complete rounds, %d times each", fewAgents, manyAgents, runs)
	sealed := meeting{agents: manyAgents, token: true}
	kinds := []meeting{{agents: fewAgents}, {agents: manyAgents}, sealed, {agents: fewAgents, c10d: true}, {agents: manyAgents, c10d: true}}
	found := map[meeting]*meetings{}
	for _, k := range kinds {
		found[k] = &meetings{}
	}
	for range runs {
		for _, k := range kinds {
			if err := b.rounds(ctx, k, found[k]); err != nil {
				return nil, fmt.Errorf("%d agents: %w", k.agents, err)
			}
		}
	}
	var rows []row
	for _, c10d := range []bool{false, true} {
		few, many := meeting{agents: fewAgents, c10d: c10d}, meeting{agents: manyAgents, c10d: c10d}
		rows = append(rows, agentRows(c10d, found[few], found[many])...)
	}
	return append(rows, sealedRows(found[sealed], found[meeting{agents: manyAgents}])...), nil
}

// sealedRows compare meetings with a job token to those without.
func sealedRows(sealed, plain *meetings) []row {
	const most = 1.3
	var rows []row
	for _, part := range []struct {
		name          string
		sealed, plain []float64
	}{{"first round", sealed.first, plain.first}, {"restart", sealed.restart, plain.restart}} {
		with, without := median(part.sealed), median(part.plain)
		rows = append(rows, row{
			Figure: fmt.Sprintf("%d agents, own protocol, %s: time with a job token in that without", manyAgents, part.name),
			Ours:   with / without, Unit: "×", Budget: fmt.Sprintf("≤ %v ×", most), Pass: with/without <= most,
			Note: fmt.Sprintf("%s and %s s", number(with), number(without)),
		})
	}
	return rows
}

// agentRows are the rows of one protocol.
func agentRows(c10d bool, few, many *meetings) []row {
	protocol, most := "own protocol", 2.0
	if c10d {
		protocol, most = "torchrun's", 10
	}
	var rows []row
	for _, part := range []struct {
		name      string
		few, many []float64
	}{{"first round", few.first, many.first}, {"restart", few.restart, many.restart}} {
		small, large := median(part.few), median(part.many)
		spread := func(values []float64) string {
			return fmt.Sprintf("%s to %s s", number(slices.Min(values)), number(slices.Max(values)))
		}
		name := func(agents int) string { return fmt.Sprintf("%d agents, %s, %s", agents, protocol, part.name) }
		growth := row{
			Figure: fmt.Sprintf("%s, %s: time of %d agents in those of %d", protocol, part.name, manyAgents, fewAgents),
			Ours:   large / small, Unit: "×", Budget: "≤ 5 ×",
		}
		growth.Pass = growth.Ours <= 5
		rows = append(
			rows,
			row{Figure: name(fewAgents), Ours: small, Unit: "s", Budget: "information", Pass: true, Note: spread(part.few)},
			row{
				Figure: name(manyAgents), Ours: large, Unit: "s", PeerText: published, Budget: fmt.Sprintf("≤ %v s", most),
				Pass: large <= most,
				Note: spread(part.many) + "; the peer is torchelastic as published, on machines of its own",
			},
			growth,
		)
	}
	return rows
}

// rounds runs a meeting once, at a store in a process of its own.
func (b *bench) rounds(ctx context.Context, k meeting, into *meetings) (err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }()
	store, err := b.start(ctx, launcher{name: "store", argv: []string{b.binary, "store", "--bind", "127.0.0.1:0"}}, jobSpec{stdout: write})
	_ = write.Close() // the store has its own copy
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.end()) }()
	addr, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the store did not say its address: %w%s", err, store.lastWords())
	}
	args := []string{"-store", strings.TrimSpace(addr), "-agents", strconv.Itoa(k.agents), "-rounds", "3"}
	if k.c10d {
		args = append(args, "-c10d")
	}
	if k.token {
		args = append(args, "-token")
	}
	out, err := b.output(ctx, b.meetbench, args...)
	if err != nil {
		return err
	}
	return into.add(out)
}

// add takes in what meetbench printed.
func (m *meetings) add(out []byte) error {
	for decoder, round := json.NewDecoder(bytes.NewReader(out)), 0; ; round++ {
		var line struct {
			Round   int     `json:"round"`
			Seconds float64 `json:"seconds"`
		}
		err := decoder.Decode(&line)
		switch {
		case errors.Is(err, io.EOF) && round > 1:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("there were %d rounds", round)
		case err != nil:
			return err
		case line.Round != round || line.Seconds <= 0:
			return fmt.Errorf("round %d was printed as %+v", round, line)
		case round == 0:
			m.first = append(m.first, line.Seconds)
		default:
			m.restart = append(m.restart, line.Seconds)
		}
	}
}
