package netprobe

import (
	"fmt"
	"io"
	"net/netip"
	"time"

	"muster/internal/peertls"
	"muster/internal/wire"
)

// A connection is one of peertls, over which the client sends requests and the server answers each: messages of
// internal/wire. Two requests change what follows: opEcho is followed by frames of echoBytes in both directions, opJoin
// by a stream of bytes in one, which is not encrypted, and of which nothing is believed but how many came.

// op is what is asked for. Append only, and never change a meaning: a node may run another version.
type op string

const (
	opAbout  op = "about"  // what the node says of itself, and its end of the path
	opReach  op = "reach"  // connect back to a port of the client's address
	opEcho   op = "echo"   // frames are sent back with two stamps
	opSizes  op = "sizes"  // exchange datagrams until the next request
	opRun    op = "run"    // take part in a run of streams
	opJoin   op = "join"   // this connection is a stream of a run
	opResult op = "result" // what the server measured in its run
)

// maxMessage bounds a request or an answer, in bytes. The largest is a node with hundreds of interfaces and RDMA ports.
const maxMessage = 256 << 10

// request is what the client sends; which fields are used depends on Op.
type request struct {
	Op op `json:"op"`
	// Port is the client's server for opReach, its datagram socket for opSizes.
	Port uint16 `json:"port,omitempty"`
	// From is the identity of the client's server, for opReach.
	From  peertls.Identity `json:"from,omitempty"`
	Tries int              `json:"tries,omitempty"`
	// Patience is for one try, Gap between two, Limit for all.
	Patience time.Duration `json:"patience_ns,omitempty"`
	Gap      time.Duration `json:"gap_ns,omitempty"`
	Limit    time.Duration `json:"limit_ns,omitempty"`
	// Echoes is how many frames will come at most.
	Echoes int `json:"echoes,omitempty"`
	// Direction, Streams, WarmUp and Timed describe a run, Run names it.
	Direction Direction     `json:"direction,omitempty"`
	Streams   int           `json:"streams,omitempty"`
	WarmUp    time.Duration `json:"warm_up_ns,omitempty"`
	Timed     time.Duration `json:"timed_ns,omitempty"`
	Run       string        `json:"run,omitempty"`
}

// check refuses what no client of ours asks for.
func (r *request) check() error {
	switch r.Op {
	case opAbout, opResult:
		return nil
	case opReach:
		if r.Port == 0 || r.Tries < 1 || r.Tries > maxTries || r.Patience <= 0 || r.Patience > time.Minute || r.Gap < 0 ||
			r.Gap > time.Minute ||
			r.Limit <= 0 || r.Limit > maxBudget {
			return fmt.Errorf("cannot connect back: port %d, %d tries of %v within %v", r.Port, r.Tries, r.Patience, r.Limit)
		}
		if err := r.From.Check(); err != nil {
			return fmt.Errorf("cannot connect back: %w", err)
		}
	case opEcho:
		if r.Echoes < 1 || r.Echoes > maxEchoes {
			return fmt.Errorf("cannot echo %d frames, at most %d", r.Echoes, maxEchoes)
		}
	case opSizes:
		if r.Port == 0 {
			return fmt.Errorf("cannot exchange datagrams with port 0")
		}
	case opRun:
		if r.Direction != Out && r.Direction != Back || r.Streams < 1 || r.Streams > maxStreams || r.WarmUp < 0 || r.Timed <= 0 ||
			r.WarmUp > maxRun || r.Timed > maxRun-r.WarmUp {
			return fmt.Errorf("cannot take part in a run of %d streams %q for %v and %v", r.Streams, clean(string(r.Direction), 16),
				r.WarmUp, r.Timed)
		}
	case opJoin:
		if r.Run == "" || len(r.Run) > 64 {
			return fmt.Errorf("cannot join a run named by %d bytes", len(r.Run))
		}
	default:
		return fmt.Errorf("cannot do %q: does the other node run another version of muster?", clean(string(r.Op), 16))
	}
	return nil
}

// answer is what the server says; which fields are used depends on the request.
type answer struct {
	// Error is why not, "" where it was done. Busy says that it may be done later.
	Error string `json:"error,omitempty"`
	Busy  bool   `json:"busy,omitempty"`
	Node  *Node  `json:"node,omitempty"`
	End   *End   `json:"end,omitempty"`
	// Peer is the client's address as the server sees it.
	Peer  netip.Addr `json:"peer,omitzero"`
	Tries *Tries     `json:"tries,omitempty"`
	Port  uint16     `json:"port,omitempty"`
	Run   string     `json:"run,omitempty"`
	// Bytes and Window are what arrived, Sent what was sent.
	Bytes  int64         `json:"bytes,omitempty"`
	Window time.Duration `json:"window_ns,omitempty"`
	Sent   *Sent         `json:"sent,omitempty"`
}

// writeMessage sends a request or an answer.
func writeMessage(w io.Writer, v any) error {
	frame, err := wire.Frame(v)
	if err != nil {
		return err
	}
	if len(frame) > maxMessage {
		return fmt.Errorf("cannot send %d bytes, the limit is %d", len(frame), maxMessage)
	}
	_, err = w.Write(frame)
	return err
}

// readMessage takes in a request or an answer. It returns io.EOF where the other side has ended between two of them.
func readMessage(r io.Reader, v any) error { return wire.Read(r, maxMessage, v) }

// echoBytes is the size of the frames of opEcho. The client's begins with a byte, frameMore or frameLast, and the
// number of the frame; the server sends it back with the times when it came and went, its wall clock in nanoseconds of
// Unix time.
const (
	echoBytes = 64
	frameMore = 0
	frameLast = 1

	atNumber, atCame, atWent = 8, 16, 24
)
