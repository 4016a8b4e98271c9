package checkpointd

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"muster/internal/admission"
	"muster/internal/peertls"
	"muster/internal/wire"
)

// accept serves the other nodes.
func (t *participant) accept() {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			return // it was closed: others pass
		}
		conns.Go(func() {
			stop := context.AfterFunc(t.s.ctx, func() { _ = conn.Close() })
			defer stop()
			defer func() { _ = conn.Close() }()
			proven, err := t.acceptor.Server(t.s.ctx, conn)
			if err == nil && admission.Proven(conn) { // else a peer without the token, of which there is nothing to say
				t.answer(proven)
			}
		})
	}
}

// peerMisbehaved is said of a node that has the token, and says what no node of ours does.
const peerMisbehaved = "a node says about checkpoints what cannot be: its connection was ended"

// answer serves one connection of another node.
func (t *participant) answer(conn *peertls.Conn) {
	_ = conn.SetDeadline(time.Now().Add(peerTime))
	var g greeting
	if wire.Read(conn, greetingLimit, &g) != nil {
		return // it has gone, or is none of ours
	}
	if err := g.check(); err != nil {
		t.s.cfg.Log.Warn().Err(err).Stringer("addr", conn.RemoteAddr()).Msg(peerMisbehaved)
		if g.Op != "join" {
			_ = wire.Write(conn, copyHead{Error: err.Error()})
		}
		return
	}
	_ = conn.SetDeadline(time.Time{})
	switch g.Op {
	case "join":
		if l := t.leads(); l != nil {
			l.serve(conn, &g)
		}
	case "fetch":
		t.giveCopy(conn, g)
	case "find":
		t.s.mu.Lock()
		head := copyHead{Error: "there is no such file"}
		if st := t.s.findSetLocked(g.Key); st != nil {
			if shard, ok := st.shardOf(g.Path, g.At); ok {
				head = copyHead{Shard: shard}
			}
		}
		t.s.mu.Unlock()
		_ = wire.Write(conn, head)
	}
}

// giveCopy sends a copy to another node.
func (t *participant) giveCopy(conn net.Conn, g greeting) {
	s := t.s
	s.mu.Lock()
	var slot *slot
	st := s.findSetLocked(g.Key)
	if st != nil {
		slot = st.slots.at(g.Shard, g.At)
	}
	if slot == nil {
		s.mu.Unlock()
		_ = wire.Write(conn, copyHead{Error: fmt.Sprintf("shard %d of step %d is not in memory any more", g.Shard, g.At.Step)})
		return
	}
	slot.Pins++
	m, of := st.mem[slot], st.copies[slot]
	s.mu.Unlock()
	err := guarded(func() error { return sendCopy(conn, m, of, g.Part, g.Parts) })
	s.mu.Lock()
	defer s.mu.Unlock()
	slot.Pins--
	s.notifyLocked()
	if err != nil && !strings.Contains(err.Error(), "reset by peer") {
		s.cfg.Log.Debug().Err(err).Int("shard", g.Shard).Msg("a copy of a checkpoint was not sent to its end")
	}
}
