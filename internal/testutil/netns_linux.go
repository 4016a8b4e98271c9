package testutil

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Host stands for a machine: a set of processes with network interfaces, addresses, a name, process ids, shared memory
// and temporary folders of their own, which share nothing with the other hosts but files and the clock. Its root is the
// file system of the test.
//
// Nothing of it has a name outside: the namespaces end with the process that holds them, which ends when a pipe from
// the test does. So nothing is left however the test ends, and the network of the machine is never touched.
type Host struct {
	// Name is what gethostname says inside, and what every host of the group resolves, to both addresses.
	Name string
	// Addrs are the IPv4 and the IPv6 address of each network: eth0's first.
	Addrs [][2]netip.Addr
	// Dir holds this host's own files: tmp, run, and etc/hosts, which may be rewritten in place.
	Dir string

	t     testing.TB
	index int
	wire  *wire

	mu   sync.Mutex
	init *exec.Cmd // nil while the host is off
	stay *os.File  // init lives as long as this pipe is open
	net  *os.File  // keeps the network alive when all processes are gone: a kernel that answers for them

	cgroup *os.File // nil where the host has none of its own
}

// wire is what joins the hosts of a group: a network namespace with one bridge per network. A host's interface ends in
// a port of it, so what passes there can be cut, lost and delayed.
type wire struct {
	ns       *os.File
	networks int
	hosts    []*Host
	faults
}

// HostOption changes the group that Hosts makes.
type HostOption func(*wire)

// TwoNetworks gives each host a second interface, eth1, in a network of its own. Host names resolve to the first.
func TwoNetworks(w *wire) { w.networks = 2 }

// Hosts makes n hosts, node0 and so on, that reach each other and nothing else. It skips the test where that takes what
// is not there: root, ip, nft or tc.
func Hosts(t testing.TB, n int, options ...HostOption) []*Host {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root, to make network namespaces,")
	}
	for _, tool := range []string{"ip", "nft", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			Missing(t, tool)
		}
	}
	w := &wire{networks: 1}
	for _, o := range options {
		o(w)
	}
	base := t.TempDir() // before the next line: it is removed when nobody uses it any more
	t.Cleanup(func() {
		for _, h := range w.hosts {
			h.Kill()
			h.mu.Lock()
			h.forgetNetLocked()
			h.mu.Unlock()
		}
		if w.ns != nil {
			_ = w.ns.Close()
		}
	})
	if err := w.open(); err != nil {
		t.Fatalf("cannot make a network: %v", err)
	}
	for i := range n {
		h := &Host{Name: "node" + strconv.Itoa(i), Dir: filepath.Join(base, "node"+strconv.Itoa(i)), t: t, index: i, wire: w}
		for k := range w.networks {
			h.Addrs = append(h.Addrs, [2]netip.Addr{
				netip.AddrFrom4([4]byte{10, 66, byte(k), byte(i + 1)}),
				netip.MustParseAddr(fmt.Sprintf("fd66:%x::%x", k, i+1)),
			})
		}
		w.hosts = append(w.hosts, h)
	}
	for _, h := range w.hosts {
		if err := h.files(); err != nil {
			t.Fatalf("cannot make the files of %s: %v", h.Name, err)
		}
		h.Boot()
	}
	return w.hosts
}

// open makes the namespace and its bridges. They have no addresses: they forward, and never take part.
func (w *wire) open() error {
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		w.ns = ns
		return err
	})
	if err != nil {
		return err
	}
	var script strings.Builder
	script.WriteString("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6\n")
	for k := range w.networks {
		fmt.Fprintf(&script, "ip link add name br%d type bridge mcast_snooping 0 && ip link set br%d up\n", k, k)
	}
	return w.run("", "sh", "-ec", script.String())
}

// run runs a program in the namespace of the bridges.
func (w *wire) run(stdin, name string, args ...string) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(w.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return runTool(stdin, name, args...)
	})
}

func runTool(stdin, name string, args ...string) error {
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stdin, out)
	}
	return nil
}

// onOwnThread runs f on a thread that ends with it, so that f may move the thread into other namespaces.
func onOwnThread(f func() error) error {
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		errs <- f()
	}()
	return <-errs
}

// files writes what the host has for itself.
func (h *Host) files() error {
	for _, dir := range []string{"tmp", "run", "etc", "cgroup"} {
		if err := os.MkdirAll(filepath.Join(h.Dir, dir), 0o700); err != nil {
			return err
		}
	}
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, peer := range h.wire.hosts {
		for _, addr := range peer.Addrs[0] {
			fmt.Fprintf(&hosts, "%s %s\n", addr, peer.Name)
		}
	}
	for name, text := range map[string]string{
		"hosts": hosts.String(), "hostname": h.Name + "\n", "resolv.conf": "# no name server\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	} {
		if err := os.WriteFile(filepath.Join(h.Dir, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// setup prepares the namespaces of a host and stays as their first process. It ignores SIGCHLD, so that the kernel
// reaps the orphans which it inherits: from when it repeats what stands in its standard input. It ends when that does.
const setup = `
mount --make-rprivate /
mount -t proc proc /proc
mount --rbind /sys/fs/cgroup "$1/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$1/cgroup" /sys/fs/cgroup
if [ -n "$3" ]; then
	for dir in $(sed -n 's,^[^ ]* \(/sys/[^ ]*\) cgroup2 .*,\1,p' /proc/self/mounts | sort -u); do
		umount "$dir"
		mount -t cgroup2 cgroup2 "$dir"
	done
fi
mount -t tmpfs tmpfs /dev/shm
for dir in /tmp /var/tmp; do # jobs of this machine are not this host's
	mkdir -p -m 700 "$dir/muster-$(id -u)"
	mount -t tmpfs -o mode=700 tmpfs "$dir/muster-$(id -u)"
done
for file in "$1"/etc/*; do
	[ ! -e "/etc/${file##*/}" ] || mount --bind "$file" "/etc/${file##*/}"
done
hostname "$2"
ip link set lo up
exec env --ignore-signal=CHLD cat
`

// Boot switches a host on that Kill or PowerOff stopped: with a new network and no process.
func (h *Host) Boot() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.init != nil {
		h.t.Fatalf("%s is on", h.Name)
	}
	h.forgetNetLocked()
	if err := h.bootLocked(); err != nil {
		h.t.Fatalf("cannot boot %s: %v", h.Name, err)
	}
}

func (h *Host) bootLocked() error {
	r, stay, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	args := []string{"sh", "-ec", setup, "setup", h.Dir, h.Name, ""}
	attributes := &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setsid:     true, // an interrupt from the terminal is for the test
	}
	if h.cgroup = h.openCgroup(); h.cgroup != nil {
		attributes.UseCgroupFD, attributes.CgroupFD = true, int(h.cgroup.Fd())
		args[len(args)-1] = h.cgroup.Name()
		args = append([]string{"unshare", "--cgroup"}, args...) // from inside: a namespace begins where its maker is
	}
	init := exec.CommandContext(context.Background(), args[0], args[1:]...)
	init.SysProcAttr = attributes
	var said strings.Builder
	init.Stdin, init.Stderr = r, &said
	out, err := init.StdoutPipe()
	if err != nil {
		return err
	}
	if err := init.Start(); err != nil {
		h.dropCgroup()
		return errors.Join(err, stay.Close())
	}
	h.init, h.stay = init, stay
	if _, err := io.WriteString(stay, "ready\n"); err != nil {
		h.endLocked()
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		h.endLocked()
		return fmt.Errorf("%w: %s%s", err, line, said.String())
	}
	if h.net, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", init.Process.Pid)); err != nil {
		return err
	}
	var ports, inside strings.Builder
	for k, addrs := range h.Addrs {
		fmt.Fprintf(&ports, "link add name %s type veth peer name eth%d netns %d\n", h.port(k), k, init.Process.Pid)
		fmt.Fprintf(&ports, "link set %s master br%d up\n", h.port(k), k)
		// A machine that boots again has the address of before: the others need not find it anew.
		fmt.Fprintf(&inside, "link set eth%d address 02:00:00:00:%02x:%02x\n", k, k, h.index+1)
		fmt.Fprintf(&inside, "addr add %s/24 dev eth%d\naddr add %s/64 dev eth%d nodad\nlink set eth%d up\n", addrs[0], k, addrs[1], k, k)
	}
	if err := h.wire.run(ports.String(), "ip", "-batch", "-"); err != nil {
		return err
	}
	return h.enter(unix.CLONE_NEWNET, func() error { return runTool(inside.String(), "ip", "-batch", "-") })
}

// port is the name of the host's end in the bridge of network k.
func (h *Host) port(k int) string { return fmt.Sprintf("p%d.%d", k, h.index) }

// Off reports whether Kill or PowerOff stopped the host.
func (h *Host) Off() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.init == nil
}

// Kill ends every process of the host at once. Its kernel goes on: peers see their connections closed or reset.
func (h *Host) Kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endLocked()
}

// PowerOff ends the host at once, as if its plug were pulled: no peer hears of it.
func (h *Host) PowerOff() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.unplugLocked(); err != nil {
		h.t.Fatalf("cannot unplug %s: %v", h.Name, err)
	}
	h.endLocked()
	h.forgetNetLocked()
}

// endLocked kills the first process of the host, with which the kernel kills all others before it lets it end.
func (h *Host) endLocked() {
	if h.init == nil {
		return
	}
	if err := h.init.Process.Kill(); err != nil {
		h.t.Errorf("cannot kill %s: %v", h.Name, err)
	}
	_ = h.init.Wait() // it was killed
	_ = h.stay.Close()
	h.init, h.stay = nil, nil
	h.dropCgroup()
}

// unplugLocked removes the ports of the host, and with them its interfaces.
func (h *Host) unplugLocked() error {
	delayed := h.dropPump()
	var ports strings.Builder
	for k := range h.Addrs {
		fmt.Fprintf(&ports, "link del %s\n", h.port(k))
		if delayed {
			fmt.Fprintf(&ports, "link del %s\n", h.delayPort(k))
		}
	}
	return h.wire.run(ports.String(), "ip", "-batch", "-")
}

// forgetNetLocked removes the network of a host that has no process any more.
func (h *Host) forgetNetLocked() {
	if h.net == nil {
		return
	}
	_ = h.unplugLocked() // PowerOff did it before
	_ = h.net.Close()
	h.net = nil
}
