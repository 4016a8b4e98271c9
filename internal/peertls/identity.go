package peertls

import (
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Identity names one server of one process, as that announces it to the other nodes of its job: where it is reached,
// and a number that no process before it had. Connections are made to an identity, not to an address: whatever else
// answers there, such as another node behind a relay, or the agent of an earlier start, is not let pass for it.
//
// Its text is "host:port/nonce".
type Identity string

// NewIdentity names a server that begins to listen at an address, "host:port".
func NewIdentity(addr string) Identity { return Identity(addr + "/" + strings.ToLower(rand.Text())) }

// maxIdentity bounds the text of an identity, in bytes: the longest host name, a port and the nonce have room.
const maxIdentity = 320

// Check returns an error where the text is no identity: it may have come from anywhere.
func (id Identity) Check() error {
	if len(id) > maxIdentity {
		return fmt.Errorf("an identity of %d bytes exceeds the limit of %d", len(id), maxIdentity)
	}
	addr, nonce, found := strings.Cut(string(id), "/")
	host, port, err := net.SplitHostPort(addr)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if !found || err != nil || portErr != nil || n == 0 || host == "" ||
		strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' }) ||
		len(nonce) < 16 || len(nonce) > 64 || strings.Trim(nonce, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("%q does not name an agent's server: want host:port/nonce", id)
	}
	return nil
}

// Addr is where the server is reached, "host:port".
func (id Identity) Addr() string {
	addr, _, _ := strings.Cut(string(id), "/")
	return addr
}
