package testutil_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"muster/internal/testutil"
)

// tcp returns the two ends of a connection from one host to another; family is 0 for IPv4, 1 for IPv6.
func tcp(t *testing.T, from, to *testutil.Host, family int) (client, server net.Conn) {
	t.Helper()
	var l net.Listener
	if err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(to.Addrs[0][family], 0).String())
		return
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	if err := from.Do(func() (err error) { client, err = net.DialTimeout("tcp", l.Addr().String(), soon); return }); err != nil {
		t.Fatal(err)
	}
	server = <-accepted
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// track is a one-way flow of numbered datagrams from one host to another.
type track struct {
	name    string
	t       *testing.T
	out, in net.Conn
	sent    uint32
	got     map[uint32]bool
}

func newTrack(t *testing.T, from, to *testutil.Host, family int) *track {
	t.Helper()
	f := &track{name: fmt.Sprintf("from %s to %s, family %d", from.Name, to.Name, family), t: t, got: map[uint32]bool{}}
	var in *net.UDPConn
	err := to.Do(func() (err error) {
		in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Addrs[0][family], 0)))
		return
	})
	if err != nil {
		t.Fatal(err)
	}
	in.SetReadBuffer(1 << 20)
	f.in = in
	if err := from.Do(func() (err error) { f.out, err = net.Dial("udp", in.LocalAddr().String()); return }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.in.Close(); f.out.Close() })
	return f
}

func (f *track) send() uint32 {
	f.sent++
	f.out.Write(binary.BigEndian.AppendUint32(nil, f.sent)) // what a network answers to a datagram is of no interest
	return f.sent
}

// arrives sends datagrams until one of them arrives.
func (f *track) arrives() {
	f.t.Helper()
	first := f.sent + 1
	testutil.Eventually(f.t, soon, "a datagram arrives "+f.name, func() bool {
		f.send()
		f.in.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		b := make([]byte, 8)
		for {
			if _, err := f.in.Read(b); err != nil {
				return false
			}
			n := binary.BigEndian.Uint32(b)
			f.got[n] = true
			if n >= first {
				return true
			}
		}
	})
}

func TestCut(t *testing.T) {
	testutil.Long(t)
	hosts := testutil.Hosts(t, 3)
	type way struct{ from, to, family int }
	tracks := map[way]*track{}
	for from := range hosts {
		for to := range hosts {
			for family := range 2 {
				if from != to {
					tracks[way{from, to, family}] = newTrack(t, hosts[from], hosts[to], family)
				}
			}
		}
	}
	check := func(name string, cut ...[2]int) {
		t.Helper()
		lost := map[*track][]uint32{}
		for w, tr := range tracks {
			for _, c := range cut {
				if c == [2]int{w.from, w.to} {
					for range 20 {
						lost[tr] = append(lost[tr], tr.send())
					}
				}
			}
		}
		for _, tr := range tracks {
			if lost[tr] == nil {
				tr.arrives()
			}
		}
		for _, h := range hosts {
			h.Heal()
		}
		for _, tr := range tracks {
			tr.arrives()
			for _, n := range lost[tr] { // frames keep their order: what was sent before would have come before
				if tr.got[n] {
					t.Fatalf("%s: a datagram passed %s", name, tr.name)
				}
			}
		}
	}
	check("nothing cut")
	hosts[0].Cut(hosts[1])
	check("cut", [2]int{0, 1}, [2]int{1, 0})
	hosts[0].CutTo(hosts[1])
	check("one way", [2]int{0, 1})
	hosts[0].CutFrom(hosts[1])
	check("the other way", [2]int{1, 0})
	hosts[2].Cut()
	check("cut from all", [2]int{0, 2}, [2]int{2, 0}, [2]int{1, 2}, [2]int{2, 1})
	hosts[1].Delay(time.Millisecond)
	hosts[0].CutTo(hosts[1])
	hosts[1].CutTo(hosts[2])
	check("cut where frames are late", [2]int{0, 1}, [2]int{1, 2})
}

// TestCutKeepsConnections shows that an established connection is silent while it is cut, and goes on afterwards.
func TestCutKeepsConnections(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	hosts := testutil.Hosts(t, 2)
	for family := range 2 {
		client, server := tcp(t, hosts[0], hosts[1], family)
		hosts[1].Cut()
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		server.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := server.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("family %d: read through a cut: %v", family, err)
		}
		hosts[1].Heal()
		server.SetReadDeadline(time.Now().Add(soon))
		if _, err := server.Read(b); err != nil {
			t.Errorf("family %d: %v", family, err)
		}
	}
}

func TestLoss(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	hosts := testutil.Hosts(t, 2)
	const total, percent = 3000, 20
	for family := range 2 {
		for direction := range 2 {
			tr := newTrack(t, hosts[direction], hosts[1-direction], family)
			tr.arrives()
			hosts[0].Loss(percent)
			first := tr.sent + 1
			for range total {
				tr.send()
				if tr.sent%100 == 0 {
					tr.arrives() // empties the queue
				}
			}
			hosts[0].Heal()
			tr.arrives()
			passed := 0
			for n := range tr.got {
				if n >= first {
					passed++
				}
			}
			// The deviation of 3,000 datagrams is 0.7 %: six of them are never seen.
			sent := int(tr.sent-first) + 1
			if lost := 100 - 100*float64(passed)/float64(sent); lost < percent-4.4 || lost > percent+4.4 {
				t.Errorf("%s: lost %.1f %%, want %d", tr.name, lost, percent)
			}
		}
	}
}

func TestDelay(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	hosts := testutil.Hosts(t, 3)
	const late = 120 * time.Millisecond
	trip := func(from, to *testutil.Host, family int) time.Duration {
		t.Helper()
		began := time.Now()
		client, server := tcp(t, from, to, family)
		if _, err := server.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	for family := range 2 {
		trip(hosts[0], hosts[1], family) // they know each other's hardware address now
		hosts[1].Delay(late)
		for i, h := range []*testutil.Host{hosts[0], hosts[2]} {
			if took := trip(h, hosts[1], family); took < 3*late || took > soon/2 {
				t.Errorf("family %d, host %d: three ways took %v, want %v and a little", family, i, took, 3*late)
			}
		}
		if took := trip(hosts[0], hosts[2], family); took >= 3*late {
			t.Errorf("family %d: %v between hosts that are not delayed", family, took)
		}
		hosts[1].Delay(2 * late)
		if took := trip(hosts[1], hosts[0], family); took < 6*late {
			t.Errorf("family %d: three longer ways took %v", family, took)
		}
		hosts[1].Delay(0)
		if took := trip(hosts[0], hosts[1], family); took >= 3*late {
			t.Errorf("family %d: %v after the delay had ended", family, took)
		}
	}
}

// TestDelayKeepsBytes sends a lot through a delay that comes and goes: nothing may be lost or changed.
func TestDelayKeepsBytes(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	hosts := testutil.Hosts(t, 2)
	client, server := tcp(t, hosts[0], hosts[1], 0)
	want := make([]byte, 8<<20)
	for i := range want {
		want[i] = byte(i * i >> 3)
	}
	go func() {
		for i, part := range [][]byte{want[:2<<20], want[2<<20 : 5<<20], want[5<<20:]} {
			hosts[i%2].Delay(time.Duration(i) * 5 * time.Millisecond)
			client.Write(part)
		}
		client.Close()
	}()
	server.SetReadDeadline(time.Now().Add(2 * soon))
	got, err := io.ReadAll(server)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
		t.Errorf("read %d of %d bytes, equal: %v, %v", len(got), len(want), bytes.Equal(got, want), err)
	}
}

func TestRate(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	hosts := testutil.Hosts(t, 2)
	send := func(direction int) time.Duration {
		t.Helper()
		client, server := tcp(t, hosts[direction], hosts[1-direction], 0)
		began := time.Now()
		go func() {
			client.Write(make([]byte, 400<<10))
			client.Close()
		}()
		if n, err := io.Copy(io.Discard, server); err != nil || n != 400<<10 {
			t.Fatalf("%d bytes, %v", n, err)
		}
		return time.Since(began)
	}
	hosts[0].Rate(1600) // 200 kB/s; the first 70 kB pass at once
	for direction := range 2 {
		if took := send(direction); took < time.Second || took > soon/2 {
			t.Errorf("direction %d: 400 KiB took %v, want about 1.7 s", direction, took)
		}
	}
	hosts[0].Rate(0)
	if took := send(0); took > time.Second {
		t.Errorf("without a limit: %v", took)
	}
}
