package tcpstore_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

// serveWithDescriptors is the child of the tests below. Each line of its input is something to do, and answered by one.
func serveWithDescriptors(limit string) error {
	n, err := strconv.ParseUint(limit, 10, 32)
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
		return err
	}
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Hosts: []string{"127.0.0.1"}})
	if err != nil {
		return err
	}
	fmt.Println(s.Addrs()[0])
	var filled []int
	for in := bufio.NewScanner(os.Stdin); in.Scan(); fmt.Println("done") {
		switch in.Text() {
		case "fill":
			for {
				fd, err := unix.Dup(0)
				if err != nil {
					break
				}
				filled = append(filled, fd)
			}
		case "free":
			for _, fd := range filled {
				unix.Close(fd)
			}
		case "reset":
			s.Reset()
		}
	}
	return s.Close()
}

// child is a server in a process with few descriptors.
type child struct {
	t    *testing.T
	pid  int
	addr string
	in   io.Writer
	out  *bufio.Reader
}

func startChild(t *testing.T, descriptors int) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprint("TCPSTORE_TEST_DESCRIPTORS=", descriptors))
	in, out := testutil.StartPiped(t, cmd)
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	c := &child{t, cmd.Process.Pid, "", in, bufio.NewReader(out)}
	c.addr = c.line()
	return c
}

func (c *child) line() string {
	c.t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(s)
}

func (c *child) do(what string) {
	c.t.Helper()
	fmt.Fprintln(c.in, what)
	if got := c.line(); got != "done" {
		c.t.Fatalf("%s: %q", what, got)
	}
}

func (c *child) dial() raw {
	c.t.Helper()
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return raw{c.t, conn}
}

// TestResetOutOfDescriptors wants nobody of the old round in the new one, although accepting fails.
func TestResetOutOfDescriptors(t *testing.T) {
	for _, tc := range []struct {
		name string
		fill bool // no connection at all can be accepted
	}{{"held by clients", false}, {"held by others", true}} {
		t.Run(tc.name, func(t *testing.T) {
			s := startChild(t, 40)
			if tc.fill {
				s.do("fill")
			}
			var old []raw
			for range 80 {
				c := s.dial()
				c.send(hello + opSet + str("old") + str("v"))
				old = append(old, c)
			}
			if !tc.fill {
				old[0].alive()
			}
			s.do("reset")
			for _, c := range old {
				c.expectClosed()
			}
			if tc.fill {
				s.do("free")
			}
			c := s.dial()
			c.ask(hello+opNumKeys, u64(0))
		})
	}
}

func TestOutOfDescriptors(t *testing.T) {
	s := startChild(t, 40)
	var conns []raw
	for range 80 {
		conns = append(conns, s.dial())
	}
	first, last := conns[0], conns[len(conns)-1]
	first.ask(hello+opPing+"ping", "ping")
	last.send(hello + opPing + "ping")
	before := cpuTicks(t, s.pid)
	time.Sleep(time.Second) // the time over which it could spin
	if used := cpuTicks(t, s.pid) - before; used > 50 {
		t.Errorf("the server used %d ms of processor time in a second of waiting for descriptors", used*10)
	}
	first.alive()
	for _, c := range conns[1 : len(conns)-1] {
		c.Close()
	}
	last.expect("ping")
}

// cpuTicks returns the processor time of a process in units of 10 ms.
func cpuTicks(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	sum := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
