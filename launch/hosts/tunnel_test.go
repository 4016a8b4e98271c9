package hosts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// linked are the tunnels of a launcher and of an agent, whose frames go through channels.
func linked(t *testing.T, accept func(net.Conn)) (launcher, agent *tunnels) {
	t.Helper()
	launcher, agent = &tunnels{}, &tunnels{accept: accept}
	done := make(chan struct{})
	var all sync.WaitGroup
	for from, to := range map[*tunnels]*tunnels{launcher: agent, agent: launcher} {
		frames := make(chan []byte)
		from.send = func(payload []byte) error {
			select {
			case frames <- bytes.Clone(payload):
				return nil
			case <-done:
				return errors.New("the link has ended")
			}
		}
		all.Go(func() {
			for {
				select {
				case f := <-frames:
					if err := to.take(f); err != nil {
						t.Error(err)
					}
				case <-done:
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		launcher.close()
		agent.close()
		close(done)
		all.Wait()
	})
	return launcher, agent
}

func echoBack(c net.Conn) {
	go func() {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	}()
}

// TestTunnelCarries sends much through several tunnels at once, one of which nobody reads.
func TestTunnelCarries(t *testing.T) {
	t.Parallel()
	launcher, _ := linked(t, echoBack)
	stuck, err := launcher.dial()
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = stuck.Write(make([]byte, 4*tunnelWindow)) }()
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			c, err := launcher.dial()
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			sent := bytes.Repeat([]byte{byte(i), 1, 2}, tunnelWindow)
			go func() { _, _ = c.Write(sent) }()
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("tunnel %d: %v", i, err)
			}
			_ = c.Close()
		})
	}
	all.Wait()
	_ = stuck.Close()
}

// TestTunnelEnds has each side close first, and then the link.
func TestTunnelEnds(t *testing.T) {
	t.Parallel()
	accepted := make(chan net.Conn, 1)
	launcher, agent := linked(t, func(c net.Conn) { accepted <- c })
	ends := func(what string, c net.Conn) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if text, err := io.ReadAll(c); err != nil || string(text) != "last words" {
			t.Errorf("%s: %q, %v", what, text, err)
		}
	}
	for i := range 2 {
		c, err := launcher.dial()
		if err != nil {
			t.Fatal(err)
		}
		one, other, what := c, <-accepted, "the launcher closes"
		if i == 1 {
			one, other, what = other, one, "the agent closes"
		}
		go func() {
			_, _ = io.WriteString(one, "last words")
			_ = one.Close()
		}()
		ends(what, other)
		_ = other.Close()
	}
	c, err := launcher.dial()
	if err != nil {
		t.Fatal(err)
	}
	other := <-accepted
	launcher.close()
	agent.close()
	for _, end := range []net.Conn{c, other} {
		if _, err := end.Read(make([]byte, 1)); err == nil {
			t.Error("a tunnel goes on without a link")
		}
	}
	if _, err := launcher.dial(); !errors.Is(err, errNotThere) {
		t.Errorf("%v", err)
	}
}

// TestTunnelBounds has too many tunnels, an agent that takes none, and one that sends more than it may.
func TestTunnelBounds(t *testing.T) {
	t.Parallel()
	launcher, agent := linked(t, func(net.Conn) {})
	for range mostTunnels {
		if _, err := launcher.dial(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := launcher.dial(); !errors.Is(err, errTunnels) {
		t.Errorf("%v", err)
	}
	part := append(binary.BigEndian.AppendUint32(nil, 1), tunnelData)
	part = append(part, make([]byte, tunnelPart)...)
	for range 3 * tunnelWindow / tunnelPart {
		if err := agent.take(part); err != nil {
			t.Fatal(err)
		}
	}
	agent.mu.Lock()
	n := agent.open[1]
	agent.mu.Unlock()
	if n != nil {
		n.mu.Lock()
		if len(n.queue) > 0 || !n.ended {
			t.Errorf("%d parts wait in a tunnel whose other end does not keep to its bounds", len(n.queue))
		}
		n.mu.Unlock()
	}
	for name, wrong := range map[string][]byte{
		"too short": {1, 2}, "too long": make([]byte, tunnelHeader+tunnelPart+1), "unknown": {0, 0, 0, 2, 99},
	} {
		if err := agent.take(wrong); !errors.Is(err, errNoise) {
			t.Errorf("%s: %v", name, err)
		}
	}
	nobody, _ := linked(t, nil)
	c, err := nobody.dial()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("nobody takes it: %v", err)
	}
}
