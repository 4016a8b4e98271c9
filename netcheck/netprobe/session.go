package netprobe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"time"

	"muster/internal/peertls"
)

// session is one client at the server. One goroutine runs it.
type session struct {
	server      *Server
	conn        *peertls.Conn
	key         []byte
	local, peer netip.AddrPort

	datagrams *responder // nil while none are exchanged
	run       *run       // that this connection controls, nil for none
}

// end gives back what the session holds.
func (se *session) end() {
	se.endDatagrams()
	se.endRun()
}

func (se *session) endDatagrams() {
	if se.datagrams != nil {
		se.datagrams.close()
		se.datagrams = nil
	}
}

func (se *session) endRun() {
	if se.run != nil {
		se.server.dropRun(se.run)
		se.run.end()
		<-se.server.runSlots
		se.run = nil
	}
}

var errOver = errors.New("the connection is used up")

// next serves one request. An error ends the connection.
func (se *session) next(ctx context.Context) error {
	_ = se.conn.SetDeadline(time.Now().Add(idleTime))
	var size [1]byte // wait for the beginning, then for the rest with another limit
	if _, err := io.ReadFull(se.conn, size[:]); err != nil {
		return err
	}
	_ = se.conn.SetDeadline(time.Now().Add(requestTime))
	var r request
	err := readMessage(io.MultiReader(bytes.NewReader(size[:]), se.conn), &r)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		_ = se.answer(answer{Error: err.Error()})
		return err
	}
	se.endDatagrams()
	switch r.Op {
	case opReach:
		return se.answer(answer{Tries: se.reachBack(ctx, &r)})
	case opEcho:
		return se.echo(r.Echoes)
	case opSizes:
		return se.sizes(ctx, &r)
	case opRun:
		return se.openRun(ctx, &r)
	case opJoin:
		return se.join(ctx, &r)
	case opResult:
		return se.result(ctx)
	default: // opAbout, the last that check lets through
		end := se.server.cfg.Medium.end(endOf(se.local.Addr()))
		return se.answer(answer{Node: &se.server.cfg.Node, End: &end, Peer: se.peer.Addr()})
	}
}

func (se *session) answer(a answer) error {
	_ = se.conn.SetWriteDeadline(time.Now().Add(requestTime))
	return writeMessage(se.conn, a)
}

// reachBack connects to the client's own server, at the address that the client comes from and no other.
func (se *session) reachBack(ctx context.Context, r *request) *Tries {
	ctx, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	d := dialer{domain: se.server.cfg.domain(), patience: r.Patience}
	to := netip.AddrPortFrom(se.peer.Addr(), r.Port).String()
	var t Tries
	for {
		conn, err := d.dial(ctx, to, r.From)
		if err != nil && ctx.Err() != nil && t.Done > 0 {
			return &t // cut short by the limit: no try
		}
		t.count(err)
		if conn != nil {
			_ = conn.Close()
		}
		if t.Done >= r.Tries || !pause(ctx, gap(r.Gap, err)) {
			return &t
		}
	}
}

// echo sends frames back until the last one.
func (se *session) echo(most int) error {
	var frame [echoBytes]byte
	for range most {
		_ = se.conn.SetDeadline(time.Now().Add(requestTime))
		if _, err := io.ReadFull(se.conn, frame[:]); err != nil {
			return err
		}
		binary.BigEndian.PutUint64(frame[atCame:], uint64(se.server.now().UnixNano()))
		binary.BigEndian.PutUint64(frame[atWent:], uint64(se.server.now().UnixNano()))
		if _, err := se.conn.Write(frame[:]); err != nil {
			return err
		}
		if frame[0] != frameMore {
			return nil
		}
	}
	return nil
}

// sizes opens a socket for datagrams of this client.
func (se *session) sizes(ctx context.Context, r *request) error {
	d, err := openResponder(ctx, se.local, netip.AddrPortFrom(se.peer.Addr(), r.Port), se.key)
	if err != nil {
		return se.answer(answer{Error: err.Error()})
	}
	se.datagrams = d
	return se.answer(answer{Port: d.port()})
}

// openRun reserves what a run takes.
func (se *session) openRun(ctx context.Context, r *request) error {
	if se.run != nil {
		se.endRun()
	}
	if !se.server.takeRunSlot(ctx) {
		return se.answer(answer{Error: peertls.ErrBusy.Error(), Busy: true})
	}
	_, se.run = newRun(ctx, plan{r.Direction == Back, r.Streams, r.WarmUp, r.Timed, se.server.cfg.MaxBytes})
	se.server.addRun(se.run)
	return se.answer(answer{Run: se.run.id})
}

// join makes this connection a stream; it ends with the run.
func (se *session) join(ctx context.Context, r *request) error {
	run := se.server.run(r.Run)
	if run == nil || !run.enter() {
		return se.answer(answer{Error: "cannot join a run that there is not, or that is complete"})
	}
	defer run.leave()
	if err := run.awaitAll(ctx); err != nil {
		_ = se.answer(answer{Error: err.Error()})
		return err
	}
	if err := se.answer(answer{}); err != nil {
		run.cancel(err)
		return err
	}
	run.stream(plainOf(se.conn))
	return errOver
}

// result waits for the end of the run.
func (se *session) result(ctx context.Context) error {
	if se.run == nil {
		return se.answer(answer{Error: "cannot tell of a run that was not opened"})
	}
	a, err := se.run.outcome(ctx)
	if err != nil {
		a = answer{Error: err.Error()}
	}
	se.endRun()
	return se.answer(a)
}
