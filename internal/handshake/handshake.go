// Package handshake has two ends of a connection prove to each other that they have the job's token.
//
// Each side proves it over what both have made up for this connection, so that neither the token nor anything that could be
// sent again is on the wire. The client proves first: who only knocks at the port is shown nothing that a token could be
// guessed from.
//
//	client: a banner, a nonce
//	server: a status, a nonce
//	client: HMAC-SHA256(token, "client" and both nonces)
//	server: a status, HMAC-SHA256(token, "server" and both nonces)
//
// What follows is neither signed nor secret.
package handshake

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

const nonceSize = 32

// Time bounds the handshake at the server; the caller sets the deadline.
const Time = 5 * time.Second

// MinToken is the length of the shortest token that is taken, in bytes.
const MinToken = 16

// What a status says. Append only.
const (
	statusOK      = 0
	statusBusy    = 1
	statusRefused = 2
)

// What is wrong with the other end.
var (
	ErrToken  = errors.New("it does not have this job's token")
	ErrBusy   = errors.New("it is busy with others")
	ErrNotUs  = errors.New("what listens there is something else")
	ErrSilent = errors.New("it accepts connections and says nothing")
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

// Greet is the client's part. It returns the key of this connection, by which datagrams are known to belong to it.
func Greet(conn net.Conn, banner string, token []byte) (key []byte, err error) {
	ours := newNonce()
	if _, err := conn.Write(append([]byte(banner), ours[:]...)); err != nil {
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
		return nil, ErrToken
	}
	return proof(token, "datagrams", ours, theirs), nil
}

// readStatus fills b, unless its first byte says that there is no more.
func readStatus(conn net.Conn, b []byte) error {
	if _, err := io.ReadFull(conn, b[:1]); err != nil {
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			return ErrSilent
		case errors.Is(err, io.EOF):
			return ErrNotUs
		}
		return err
	}
	switch b[0] {
	case statusOK:
	case statusBusy:
		return ErrBusy
	case statusRefused:
		return ErrToken
	default:
		return ErrNotUs
	}
	_, err := io.ReadFull(conn, b[1:])
	return err
}

// Admit is the server's part.
func Admit(conn net.Conn, banner string, token []byte) (key []byte, err error) {
	first := make([]byte, len(banner)+nonceSize)
	if _, err := io.ReadFull(conn, first[:len(banner)]); err != nil {
		return nil, err
	}
	if !bytes.Equal(first[:len(banner)], []byte(banner)) {
		return nil, fmt.Errorf("it begins with %q", first[:len(banner)])
	}
	if _, err := io.ReadFull(conn, first[len(banner):]); err != nil {
		return nil, err
	}
	theirs, ours := nonce(first[len(banner):]), newNonce()
	if _, err := conn.Write(append([]byte{statusOK}, ours[:]...)); err != nil {
		return nil, err
	}
	var second [sha256.Size]byte
	if _, err := io.ReadFull(conn, second[:]); err != nil {
		return nil, err
	}
	if !hmac.Equal(second[:], proof(token, "client", theirs, ours)) {
		_, _ = conn.Write([]byte{statusRefused})
		return nil, ErrToken
	}
	if _, err := conn.Write(append([]byte{statusOK}, proof(token, "server", theirs, ours)...)); err != nil {
		return nil, err
	}
	return proof(token, "datagrams", theirs, ours), nil
}

// Refuse tells a client that there is no room for it.
func Refuse(conn net.Conn) {
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte{statusBusy})
}
