package meet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// callMaster is a worker that reaches the store at MASTER_ADDR:MASTER_PORT as a client of PyTorch's would, from its own
// host: its first bytes are answered by an echo.
const callMaster = `python3 - <<'EOF'
import os, socket
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 10)
s.sendall(bytes.fromhex("00cef7853c0d7b2f0000"))
assert s.recv(4) == bytes.fromhex("7b2f0000")
open(os.environ["OUT"] + "/reached." + os.environ["NODE"], "w").close()
EOF
`

// onHosts is a job whose nodes are hosts with networks of their own.
type onHosts struct {
	*drive.Meet
	hosts []*testutil.Host
	said  []*testutil.Buffer
	run   []*testutil.HostCommand
}

func newOnHosts(t *testing.T, n int, flags []string, options ...testutil.HostOption) *onHosts {
	t.Helper()
	return &onHosts{Meet: drive.NewMeet(t, callMaster, flags...), hosts: testutil.Hosts(t, n, options...)}
}

func (o *onHosts) start(node int, flags ...string) {
	o.T.Helper()
	c := o.hosts[node].Command("muster", o.Args(flags)...)
	said := &testutil.Buffer{}
	c.Env = append(append(drive.CleanEnviron(), o.hosts[node].Environ()...), o.Environ(node)...)
	c.Stdout, c.Stderr = said, said
	if err := c.Start(); err != nil {
		o.T.Fatal(err)
	}
	o.said, o.run = append(o.said, said), append(o.run, c)
}

// all waits for every node, whose workers must have reached rank 0's store.
func (o *onHosts) all() {
	o.T.Helper()
	for i, c := range o.run {
		select {
		case <-c.Ended():
		case <-time.After(time.Minute):
			o.T.Fatalf("node %d has not ended:\n%s", i, o.said[i])
		}
		if c.Status() != 0 {
			o.T.Errorf("node %d ended with %d:\n%s", i, c.Status(), o.said[i])
		}
	}
	for node := range o.hosts {
		if _, err := os.Stat(filepath.Join(o.Out, fmt.Sprintf("reached.%d", node))); err != nil {
			o.T.Errorf("the worker of node %d has not reached the store: %v", node, err)
		}
	}
}

// masterIn fails the test unless all workers were told an address that begins so.
func (o *onHosts) masterIn(prefix string) {
	o.T.Helper()
	for node := range o.hosts {
		if at := o.Seen(node, 0, 0)["MASTER_ADDR"]; !strings.HasPrefix(at, prefix) {
			o.T.Errorf("node %d has MASTER_ADDR=%s, want %s...", node, at, prefix)
		}
	}
}

// TestMeetAddresses has hosts with several addresses, and names that mean something else on each.
func TestMeetAddresses(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	rewrite := func(h *testutil.Host, change func(string) string) {
		file := filepath.Join(h.Dir, "etc", "hosts")
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(change(string(text))), 0o644) // in place: it is mounted
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, run := range map[string]func(t *testing.T){
		"by route": func(t *testing.T) { // the endpoint is in the second network
			o := newOnHosts(t, 2, []string{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.66.1.1:29400", "--rdzv-id=x"},
				testutil.TwoNetworks)
			o.start(0)
			o.start(1)
			o.all()
			o.masterIn("10.66.1.")
		},
		"by interface": func(t *testing.T) { // where the endpoint is not
			o := newOnHosts(t, 2, []string{"--nnodes=2", "--rdzv=c10d://node0", "--run-id=x", "--iface=eth1", "--export-iface"},
				testutil.TwoNetworks)
			o.Native = true
			o.start(0)
			o.start(1)
			o.all()
			o.masterIn("10.66.1.")
			for node := range o.hosts {
				if env := o.Seen(node, 0, 0); env["NCCL_SOCKET_IFNAME"] != "=eth1" || env["GLOO_SOCKET_IFNAME"] != "eth1" {
					t.Errorf("node %d: %q, %q", node, env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"])
				}
			}
		},
		"by address": func(t *testing.T) {
			o := newOnHosts(t, 2, []string{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400", "--rdzv-id=x"},
				testutil.TwoNetworks)
			for node := range 2 {
				o.start(node, "--local-addr="+o.hosts[node].Addrs[1][0].String())
			}
			o.all()
			o.masterIn("10.66.1.")
		},
		"no such interface": func(t *testing.T) {
			o := newOnHosts(t, 1, []string{"--nnodes=2", "--rdzv=c10d://node0", "--run-id=x", "--iface=ib7"})
			o.Native = true
			o.start(0)
			if status := o.run[0].Status(); status != 2 ||
				!strings.Contains(drive.ForPeople(o.said[0].String()), `cannot find the network interface "ib7": there are`) {
				t.Errorf("status %d\n%s", status, o.said[0])
			}
		},
		"IPv6 only": func(t *testing.T) {
			o := newOnHosts(t, 2, []string{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400", "--rdzv-id=x"})
			for _, h := range o.hosts {
				rewrite(h, func(string) string {
					return "::1 localhost\nfd66:0::1 node0\nfd66:0::2 node1\n"
				})
				if out, err := h.Command("ip", "-4", "addr", "flush", "dev", "eth0").CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				o.start(len(o.run))
			}
			o.all()
			o.masterIn("fd66:")
		},
		"Debian's 127.0.1.1": func(t *testing.T) { // what a machine calls itself there
			for _, flags := range [][]string{
				{"--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400", "--rdzv-id=x"},
				{"--master-addr=node0", "--master-port=29500"},
			} {
				o := newOnHosts(t, 2, append([]string{"--nnodes=2"}, flags...))
				for node, h := range o.hosts {
					own := h.Addrs[0]
					rewrite(h, func(text string) string {
						text = strings.NewReplacer(own[0].String()+" ", "127.0.1.1 ", own[1].String()+" "+h.Name+"\n", "").Replace(text)
						return text
					})
					o.start(node, fmt.Sprintf("--node-rank=%d", node))
				}
				o.all()
				if at := o.Seen(1, 0, 0)["MASTER_ADDR"]; strings.HasPrefix(at, "127.") {
					t.Errorf("MASTER_ADDR=%s is no address for others", at)
				}
			}
		},
		"a name that nobody knows yet": func(t *testing.T) { // such as that of a pod that is being made
			o := newOnHosts(t, 2, []string{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=head:29400", "--rdzv-id=x"})
			o.start(1)
			testutil.Eventually(t, time.Minute, "node 1 says what it waits for",
				func() bool { return strings.Contains(o.said[0].String(), `cannot resolve \"head\"`) })
			for _, h := range o.hosts {
				rewrite(h, func(text string) string { return text + "10.66.0.1 head\n" })
			}
			o.start(0)
			o.all()
			o.masterIn("10.66.0.")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}
