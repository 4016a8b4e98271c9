package netprobe

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

// The client sends datagrams of chosen sizes, the server says of each that it came, in a small one, and sends one of
// the same size back. All carry a code that only the two ends of this connection can make, and the server's socket is
// connected to the client: nobody else is answered, and nobody else can be made to receive anything.

const (
	smallestSize = 576
	largestSize  = 65535 // what the length in the header can hold
	// firstSize passes every IPv6 path and nearly all others.
	firstSize = 1280

	headers4 = 20 + 8 // IPv4 and UDP
	headers6 = 40 + 8

	// maxAsked is how many datagrams a server answers in one exchange.
	maxAsked = 4096
)

// The kinds of datagrams. Append only.
const (
	kindAsk    = 1 // client: so large a one
	kindGot    = 2 // server: came
	kindBack   = 3 // server: one as large
	kindTooBig = 4 // server: one as large cannot be sent, I am told
)

// macBytes is how much of the code is sent: a guess has one chance in 2^128.
const (
	macBytes    = 16
	headerBytes = 12 + macBytes
)

// headersOf returns how much of a packet is not ours.
func headersOf(addr netip.Addr) int {
	if addr.Is4() {
		return headers4
	}
	return headers6
}

// datagram is the beginning of one; the rest is padding.
type datagram struct {
	kind   byte
	number uint32
	size   uint32 // of the packet asked for
}

func (d datagram) code(key []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(d.fields())
	return h.Sum(nil)[:macBytes]
}

func (d datagram) fields() []byte {
	b := []byte{d.kind, 0, 0, 0}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, d.number), d.size)
}

// bytes returns the payload, n bytes or as few as possible.
func (d datagram) bytes(key []byte, n int) []byte {
	b := append(d.fields(), d.code(key)...)
	return append(b, make([]byte, max(0, n-len(b)))...)
}

// readDatagram returns what a payload says, and whether it is one of this connection.
func readDatagram(b, key []byte) (d datagram, ok bool) {
	if len(b) < headerBytes {
		return d, false
	}
	d = datagram{b[0], binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])}
	return d, hmac.Equal(b[12:headerBytes], d.code(key))
}

// responder is the server's end of an exchange.
type responder struct {
	conn    *net.UDPConn
	key     []byte
	headers int
	done    chan struct{}
}

// openResponder opens a socket at local for datagrams from peer. Where the port is somebody else's another one is
// taken.
func openResponder(ctx context.Context, local, peer netip.AddrPort, key []byte) (*responder, error) {
	var conn net.Conn
	var err error
	for _, port := range []uint16{local.Port(), 0} {
		d := net.Dialer{
			LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(local.Addr(), port)),
			Control: func(_, _ string, c syscall.RawConn) error {
				return control(c, func(fd int) error { return errors.Join(share(fd), neverFragment(fd, local.Addr())) })
			},
		}
		if conn, err = d.DialContext(ctx, "udp", peer.String()); err == nil { // it sends nothing, and does not wait
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot exchange datagrams at %s: %w", local, err)
	}
	r := &responder{conn: conn.(*net.UDPConn), key: key, headers: headersOf(local.Addr()), done: make(chan struct{})}
	go func() { // ends when close has closed the socket
		defer close(r.done)
		r.serve()
	}()
	return r, nil
}

func (r *responder) port() uint16 { return addrPort(r.conn.LocalAddr()).Port() }

func (r *responder) close() {
	_ = r.conn.Close()
	<-r.done
}

func (r *responder) serve() {
	buffer := make([]byte, largestSize)
	var last datagram // that was sent back in full
	for range maxAsked {
		n, err := r.conn.Read(buffer)
		switch {
		case err != nil && isTooBig(err): // a router told so of the last one
			r.small(kindTooBig, last)
			continue
		case err != nil && isRefused(err):
			continue
		case err != nil:
			return
		}
		d, ours := readDatagram(buffer[:n], r.key)
		if !ours || d.kind != kindAsk || int(d.size) != n+r.headers {
			continue
		}
		r.small(kindGot, d)
		last = d
		back := datagram{kindBack, d.number, d.size}
		if _, err := r.conn.Write(back.bytes(r.key, n)); err != nil && isTooBig(err) {
			r.small(kindTooBig, d)
		}
	}
}

// small sends a few bytes about d. The first write may return what a router said of an earlier datagram.
func (r *responder) small(kind byte, d datagram) {
	b := datagram{kind, d.number, d.size}.bytes(r.key, 0)
	if _, err := r.conn.Write(b); err != nil {
		_, _ = r.conn.Write(b)
	}
}

// sizer is the client's end of an exchange.
type sizer struct {
	conn     *net.UDPConn
	key      []byte
	headers  int
	number   uint32
	tries    int
	patience time.Duration
	way      *way // nil for the real one
}

// write sends a datagram over the way.
func (s *sizer) write(b []byte) error {
	if passes, err := s.way.carries(len(b) + s.headers); !passes || err != nil {
		return err
	}
	_, err := s.conn.Write(b)
	return err
}

// read takes the next one that comes over the way.
func (s *sizer) read(b []byte) (int, error) {
	for {
		n, err := s.conn.Read(b)
		if err != nil {
			return n, err
		}
		if passes, _ := s.way.carries(n + s.headers); passes {
			return n, nil
		}
	}
}

var errUDPRefused = errors.New("datagrams to its port are refused")

// openSizer opens a socket at local; it is connected once the port of the server is known.
func openSizer(ctx context.Context, local netip.Addr, key []byte) (*sizer, uint16, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error { return neverFragment(fd, local) })
	}}
	network := "udp6"
	if local.Is4() {
		network = "udp4"
	}
	conn, err := lc.ListenPacket(ctx, network, netip.AddrPortFrom(local, 0).String())
	if err != nil {
		return nil, 0, fmt.Errorf("cannot open a socket for datagrams: %w", err)
	}
	return &sizer{conn: conn.(*net.UDPConn), key: key, headers: headersOf(local)}, addrPort(conn.LocalAddr()).Port(), nil
}

// try finds out what becomes of datagrams of one size.
func (s *sizer) try(ctx context.Context, size int) (Size, error) {
	out := Size{Bytes: size, Out: Lost, Back: Untried}
	for range s.tries {
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		s.number++
		ask := datagram{kindAsk, s.number, uint32(size)}
		if err := s.write(ask.bytes(s.key, size-s.headers)); err != nil {
			switch {
			case isTooBig(err):
				out.Out = TooBig
				return out, nil
			case isRefused(err):
				return out, errUDPRefused
			}
			continue // no buffer, or what an earlier one met
		}
		over, err := s.await(ctx, &out)
		if over || err != nil {
			return out, err
		}
	}
	return out, nil
}

// await reads what comes until all is known, or patience ends.
func (s *sizer) await(ctx context.Context, out *Size) (over bool, err error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(s.patience))
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, largestSize)
	for {
		n, err := s.read(buffer)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case isTooBig(err):
			out.Out = TooBig
			return true, nil
		case isRefused(err):
			return true, errUDPRefused
		default:
			return true, err
		}
		d, ours := readDatagram(buffer[:n], s.key)
		if !ours || int(d.size) != out.Bytes {
			continue
		}
		switch d.kind {
		case kindGot:
			out.Out = Passed
			if out.Back == Untried {
				out.Back = Lost // until it comes
			}
		case kindBack:
			if n+s.headers == out.Bytes {
				out.Out, out.Back = Passed, Passed
				return true, nil
			}
		case kindTooBig:
			out.Out, out.Back = Passed, TooBig
			return true, nil
		}
	}
}

// sizesFor returns what to try, ascending. An interface that takes less than firstSize decides what is tried first.
func sizesFor(also []int, mtu int) []int {
	sizes := append([]int{firstSize}, also...)
	if mtu > 0 {
		mtu = min(mtu, largestSize)
		sizes = slices.DeleteFunc(append(sizes, mtu), func(n int) bool { return n > mtu })
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}
