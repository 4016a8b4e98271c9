package netprobe

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The handshake: each side proves that it has the job's token over what both have made up for this connection, so that
// neither the token nor anything that could be sent again is on the wire. The client proves first: who only knocks at the
// port is shown nothing that a token could be guessed from.
//
//	client: hello, a nonce
//	server: a status, a nonce
//	client: HMAC-SHA256(token, "client" and both nonces)
//	server: a status, HMAC-SHA256(token, "server" and both nonces)
//
// What follows is neither signed nor secret: whoever can change packets on their way can change figures.

const (
	hello     = "muster-probe 1\r\n"
	nonceSize = 32
	// handshakeTime bounds the handshake at the server.
	handshakeTime = 5 * time.Second
)

// What a status says. Append only.
const (
	statusOK      = 0
	statusBusy    = 1
	statusRefused = 2
)

var (
	errToken  = errors.New("it does not have this job's token")
	errBusy   = errors.New("it is busy with other probes")
	errNotUs  = errors.New("what listens there offers no probes")
	errSilent = errors.New("it accepts connections and says nothing")
)

type nonce [nonceSize]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

func proof(token []byte, who string, client, server nonce) []byte {
	h := hmac.New(sha256.New, token)
	h.Write([]byte(who + "\x00"))
	h.Write(client[:])
	h.Write(server[:])
	return h.Sum(nil)
}

// greet is the client's part. It returns the key of this connection, by which datagrams are known to belong to it.
func greet(conn net.Conn, token []byte) (key []byte, err error) {
	ours := newNonce()
	if _, err := conn.Write(append([]byte(hello), ours[:]...)); err != nil {
		return nil, err
	}
	var first [1 + nonceSize]byte
	if err := readStatus(conn, first[:]); err != nil {
		return nil, err
	}
	theirs := nonce(first[1:])
	if _, err := conn.Write(proof(token, "client", ours, theirs)); err != nil {
		return nil, err
	}
	var second [1 + sha256.Size]byte
	if err := readStatus(conn, second[:]); err != nil {
		return nil, err
	}
	if !hmac.Equal(second[1:], proof(token, "server", ours, theirs)) {
		return nil, errToken
	}
	return proof(token, "datagrams", ours, theirs), nil
}

// readStatus fills b, unless its first byte says that there is no more.
func readStatus(conn net.Conn, b []byte) error {
	if _, err := io.ReadFull(conn, b[:1]); err != nil {
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			return errSilent
		case errors.Is(err, io.EOF):
			return errNotUs
		}
		return err
	}
	switch b[0] {
	case statusOK:
	case statusBusy:
		return errBusy
	case statusRefused:
		return errToken
	default:
		return errNotUs
	}
	_, err := io.ReadFull(conn, b[1:])
	return err
}

// admit is the server's part.
func admit(conn net.Conn, token []byte) (key []byte, err error) {
	var first [len(hello) + nonceSize]byte
	if _, err := io.ReadFull(conn, first[:len(hello)]); err != nil {
		return nil, err
	}
	if !bytes.Equal(first[:len(hello)], []byte(hello)) {
		return nil, fmt.Errorf("it begins with %q", first[:len(hello)])
	}
	if _, err := io.ReadFull(conn, first[len(hello):]); err != nil {
		return nil, err
	}
	theirs, ours := nonce(first[len(hello):]), newNonce()
	if _, err := conn.Write(append([]byte{statusOK}, ours[:]...)); err != nil {
		return nil, err
	}
	var second [sha256.Size]byte
	if _, err := io.ReadFull(conn, second[:]); err != nil {
		return nil, err
	}
	if !hmac.Equal(second[:], proof(token, "client", theirs, ours)) {
		_, _ = conn.Write([]byte{statusRefused})
		return nil, errToken
	}
	if _, err := conn.Write(append([]byte{statusOK}, proof(token, "server", theirs, ours)...)); err != nil {
		return nil, err
	}
	return proof(token, "datagrams", theirs, ours), nil
}
