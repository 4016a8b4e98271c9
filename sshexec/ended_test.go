package sshexec

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// deafConn is a connection of the library that ended at the moment when a channel was asked for: OpenChannel never
// returns.
type deafConn struct {
	ssh.Conn
	asked chan struct{}
	over  chan struct{}
}

func (c *deafConn) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	c.asked <- struct{}{}
	<-c.over
	return nil, nil, errors.New("over")
}

// TestEndedWhileAsked ends a connection while a channel is being opened: whoever waits for it is told at once, and does
// not wait for the time-out, or for ever.
func TestEndedWhileAsked(t *testing.T) {
	for name, ask := range map[string]func(c *connection) error{
		"session": func(c *connection) error { _, err := (&sshLink{c}).run(t.Context(), "true"); return err },
		"through": func(c *connection) error {
			d := &Dialer{hops: map[string]*hop{"jump": {ready: make(chan struct{}), conn: c}}}
			close(d.hops["jump"].ready)
			_, err := d.dialThrough(t.Context(),
				&settings{name: "inner", hostname: "192.0.2.1", port: 22, jumps: []string{"jump"}, timeout: time.Hour}, false)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := net.Pipe()
			defer func() { _ = theirs.Close() }()
			deaf := &deafConn{asked: make(chan struct{}), over: make(chan struct{})}
			defer close(deaf.over)
			c := &connection{Client: &ssh.Client{Conn: deaf}, s: &settings{name: "jump"}, net: mine, done: make(chan struct{})}
			said := make(chan error, 1)
			go func() { said <- ask(c) }()
			<-deaf.asked
			c.end(errors.New("the other side ended it"))
			select {
			case err := <-said:
				if err == nil || !strings.Contains(err.Error(), "jump") {
					t.Errorf("it says %v", err)
				}
			case <-time.After(long):
				t.Fatal("it goes on waiting")
			}
		})
	}
}

// long bounds what must happen at all.
const long = 30 * time.Second
