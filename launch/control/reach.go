package control

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
)

// Reacher is a Served of one of several nodes, which can ask the muster that runs a rank.
type Reacher interface {
	// Reach says how the muster is asked that runs ranks, all on one node; nil: they run here.
	Reach(ctx context.Context, ranks []int) (*Far, error)
}

// Far is a muster of the same job that runs what this one does not.
type Far struct {
	// Node is what people call the node that it runs, From what they call the asking one.
	Node, From string
	// Dial connects to it; what is written there reaches its Server.Take or its socket.
	Dial func(ctx context.Context) (net.Conn, error)
}

// What asking another muster may cost.
const (
	farDial   = 4 * time.Second // until it is reached
	farAnswer = 4 * time.Second // until it has said whether it does what is asked
	mostFar   = 64              // connections of other musters at once
)

// byHeader says for whom a muster asks another one: a Peer as JSON.
const byHeader = "Muster-By"

// passedOn is for whom another muster of the job asks, false where nobody passes the request on.
func passedOn(r *http.Request) (by Peer, passed bool, err error) {
	text := r.Header.Get(byHeader)
	if text == "" {
		return by, false, nil
	}
	if err := json.Unmarshal([]byte(text), &by); err != nil || by.Node == "" {
		return by, false, wrong(http.StatusBadRequest, "%s does not say who asks", byHeader)
	}
	by.Node, by.Address = printable.Output(by.Node), printable.Output(by.Address)
	return by, true, nil
}

// atNode says of which node an error comes that another muster has met.
func (f *Far) atNode(ranks []int, err error) error {
	return fmt.Errorf("cannot ask node %s for %s: %w", f.Node, rankWords(ranks), err)
}

// rankWords are ranks as they are told.
func rankWords(ranks []int) string {
	words := make([]string, len(ranks))
	for i, r := range ranks {
		words[i] = strconv.Itoa(r)
	}
	if len(words) == 1 {
		return "rank " + words[0]
	}
	return "ranks " + strings.Join(words, ", ")
}

// call asks the muster of another node. With a nil error there is a connection over which a stream follows.
func (f *Far) call(ctx context.Context, path string, body []byte, by Peer) (net.Conn, *bufio.Reader, error) {
	dialing, cancel := context.WithTimeout(ctx, farDial)
	conn, err := f.Dial(dialing)
	cancel()
	if err != nil {
		return nil, nil, errhint.Code(err, errhint.TryAgain)
	}
	by.Node = f.From
	said, err := json.Marshal(by)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(farAnswer))
	r, err := upgrade(conn, path, body, http.Header{byHeader: {string(said)}})
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Time{}) // who reads finds out where it has ended
	return conn, r, nil
}

// upgrade asks for a stream over a connection, and returns what is to be read of it. An error that the other side has
// told carries its hint and status, and any other says to try again.
func upgrade(conn net.Conn, path string, body []byte, header http.Header) (*bufio.Reader, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: muster\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: %d\r\n", path,
		streamProtocol, len(body))
	if err := header.Write(&b); err != nil {
		return nil, err
	}
	b.WriteString("\r\n")
	b.Write(body)
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return nil, errhint.Code(fmt.Errorf("%w: %w", errEnded, err), errhint.TryAgain)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			err = errors.New("its muster does not answer")
		} else {
			err = fmt.Errorf("%w: %w", errEnded, err)
		}
		return nil, errhint.Code(err, errhint.TryAgain)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return r, nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, mostBody))
	return nil, told(text, resp.Status)
}

// told is the error that an answer tells.
func told(text []byte, status string) error {
	f := failure{Status: errhint.Internal}
	if err := json.Unmarshal(text, &f); err != nil || f.Error == "" {
		f.Error = "the answer is " + status
	}
	f.Status = cmp.Or(f.Status, errhint.Internal)
	return f.err()
}

// err is the failure as who has asked is told it.
func (f failure) err() error {
	return errhint.Code(errhint.With(errors.New(printable.Output(f.Error)), printable.Output(f.Hint)), f.Status)
}

// DialSocket connects to the socket of a run directory of this user, such as that of another node of the job on this
// machine.
func DialSocket(ctx context.Context, dir string) (net.Conn, error) {
	return Dial(dir).dial(ctx, "", "")
}

// Take serves a connection of another muster of the job, which has proven that it is one. Of what a socket answers it
// is answered what concerns single ranks.
func (s *Server) Take(conn net.Conn) {
	if s == nil {
		_ = conn.Close()
		return
	}
	select {
	case s.far <- conn:
	case <-s.closing.Done():
		_ = conn.Close()
	default: // there are too many
		_ = conn.Close()
	}
}

// farDoor is the listener of connections that Take was given.
type farDoor struct{ s *Server }

func (d farDoor) Accept() (net.Conn, error) {
	select {
	case c := <-d.s.far:
		return c, nil
	case <-d.s.closing.Done():
		return nil, net.ErrClosed
	}
}

func (d farDoor) Close() error   { return nil }
func (d farDoor) Addr() net.Addr { return &net.UnixAddr{Name: "relay", Net: "unix"} }

// handleFar answers other musters.
func (s *Server) handleFar(w http.ResponseWriter, r *http.Request) {
	look := r.URL.Path == pathEvidence && r.Method == http.MethodGet
	if !isStream(r) && !look {
		s.refuse(w, wrong(http.StatusNotFound, "another muster is not answered %s %q", r.Method, r.URL.Path))
		return
	}
	if _, passed, err := passedOn(r); err != nil || !passed {
		s.refuse(w, wrong(http.StatusBadRequest, "%s does not say who asks", byHeader))
		return
	}
	if look {
		s.handle(w, r)
		return
	}
	s.stream(w, r)
}
