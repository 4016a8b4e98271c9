package health

import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/accel"
	"muster/internal/check"
	"muster/internal/lazyregexp"
)

// Access control services of PCI Express: an extended capability of bridges, whose redirect bits send what one device
// below writes to another through the root complex (PCI Express base specification 6.0, 7.7.11).
const (
	extendedStart = 0x100
	configSize    = 4096
	acsCapability = 0x000d
	acsControl    = 6         // offset in the capability
	acsRedirect   = 0x4 | 0x8 // requests, completions
)

// acsOn: on bare metal it only costs; a virtual machine needs it, and sees bridges that are not there.
func acsOn(n *Node) []check.Result {
	const id = "acs-on"
	if n.virtual() {
		return skip(id, "this is a virtual machine")
	}
	unknown := ""
	results := n.eachDevice(id, "turn ACS redirection off for the bridges in the BIOS or with setpci",
		func(d accel.Device, r *check.Result) {
			on, why := n.redirecting(d)
			if why != "" {
				unknown = why
			}
			if len(on) > 0 {
				r.Reason = "traffic between GPUs is redirected by " + strings.Join(on, ", ")
			}
		})
	if len(results) == 1 && results[0].Status == check.Pass && unknown != "" {
		return skip(id, unknown)
	}
	return results
}

// virtual tells a virtual machine by the processor's flag, which every hypervisor sets.
func (n *Node) virtual() bool {
	text, err := fs.ReadFile(n.Root, "proc/cpuinfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "flags") {
			return slices.Contains(strings.Fields(line), "hypervisor")
		}
	}
	_, err = fs.Stat(n.Root, "sys/hypervisor/type") // other processors have no such flag
	return err == nil
}

var pciFunction = lazyregexp.New(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// redirecting returns the bridges above a device that redirect, or why that is not known.
func (n *Node) redirecting(d accel.Device) (bridges []string, unknown string) {
	if d.BusID == "" {
		return nil, "its address is not known"
	}
	link, err := n.Root.ReadLink(path.Join("sys/bus/pci/devices", d.BusID))
	if err != nil {
		return nil, "sysfs does not tell which bridges are above a GPU"
	}
	at := path.Dir(path.Join("sys/bus/pci/devices", link))
	for ; pciFunction().MatchString(path.Base(at)); at = path.Dir(at) {
		on, err := n.redirects(at)
		if err != nil {
			return nil, err.Error()
		}
		if on {
			bridges = append(bridges, path.Base(at))
		}
	}
	return bridges, ""
}

// redirects reads the configuration of a bridge. All but the first 64 bytes are for root alone.
func (n *Node) redirects(dir string) (bool, error) {
	f, err := n.Root.Open(path.Join(dir, "config"))
	if err != nil {
		return false, fmt.Errorf("the configuration of the bridge %s cannot be read", path.Base(dir))
	}
	defer func() { _ = f.Close() }()
	config, err := io.ReadAll(io.LimitReader(f, configSize))
	if err != nil {
		return false, fmt.Errorf("the configuration of the bridge %s cannot be read", path.Base(dir))
	}
	if len(config) <= 64 {
		return false, fmt.Errorf("only root may read the configuration of bridges")
	}
	// Each capability names the next; a chain that is broken or a circle ends after as many as there is room for.
	next := extendedStart
	for range (configSize - extendedStart) / 4 {
		if next < extendedStart || next+8 > len(config) {
			return false, nil
		}
		head := binary.LittleEndian.Uint32(config[next:])
		if head == 0 || head == ^uint32(0) {
			return false, nil
		}
		if head&0xffff == acsCapability {
			return binary.LittleEndian.Uint16(config[next+acsControl:])&acsRedirect != 0, nil
		}
		next = int(head >> 20)
	}
	return false, nil
}

// peerMemory: NICs reach the memory of NVIDIA's GPUs through the module nvidia_peermem, or through DMA-BUF, which takes
// the open kernel module and Linux 5.12.
func peerMemory(n *Node) []check.Result {
	const id = "peermem"
	if len(n.nvidia().Devices) == 0 {
		return skip(id, "no NVIDIA GPU was found")
	}
	_, asked := n.Lookup("NCCL_NET_GDR_LEVEL")
	port := n.activePort()
	if !asked && port == "" {
		return skip(id, "there is no active RDMA port")
	}
	if _, err := fs.Stat(n.Root, "sys/module/nvidia_peermem"); err == nil {
		return pass(id)
	}
	version, _ := fs.ReadFile(n.Root, "proc/driver/nvidia/version")
	if strings.Contains(string(version), "Open Kernel Module") && n.kernelFrom(5, 12) {
		return pass(id)
	}
	why := "RDMA port " + port + " is active"
	if port == "" {
		why = "NCCL_NET_GDR_LEVEL is set"
	}
	return []check.Result{bad(id, why+", and neither nvidia_peermem nor DMA-BUF is there",
		"modprobe nvidia_peermem, or the driver's open kernel module")}
}

// activePort returns a port of InfiniBand or RoCE that is up, "" where there is none.
func (n *Node) activePort() string {
	const class = "sys/class/infiniband"
	devices, _ := fs.ReadDir(n.Root, class) // no folder: no device
	for _, d := range devices {
		ports, _ := fs.ReadDir(n.Root, path.Join(class, d.Name(), "ports"))
		for _, p := range ports {
			if text, err := fs.ReadFile(n.Root, path.Join(class, d.Name(), "ports", p.Name(), "state")); err == nil &&
				strings.HasPrefix(string(text), "4:") {
				return d.Name() + "/" + p.Name()
			}
		}
	}
	return ""
}

// kernelFrom reports whether this is Linux of a version or later.
func (n *Node) kernelFrom(major, minor int) bool {
	text, _ := fs.ReadFile(n.Root, "proc/sys/kernel/osrelease") // unknown is too old
	var a, b int
	if _, err := fmt.Sscanf(string(text), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

// stuckIn are names of accelerators' drivers, in the functions that their kernel modules have and the nodes that they
// make.
var stuckIn = lazyregexp.New(`nvidia|davinci|kfd|mxcd`)

// stuckAfter is how long a process must hang to count.
const stuckAfter = 5 * time.Second

// stuckProcess: a process in uninterruptible sleep in an accelerator's driver, at two looks: such a one keeps its
// memory on the device and cannot be killed. Only processes of our own namespace are seen.
func stuckProcess(n *Node) []check.Result {
	const id = "stuck-process"
	first := n.stuck()
	if len(first) == 0 {
		return pass(id)
	}
	n.Machine.Pause(stuckAfter)
	var still []string
	second := n.stuck()
	for _, p := range first {
		if slices.Contains(second, p) {
			still = append(still, p)
		}
	}
	if len(still) == 0 {
		return pass(id)
	}
	return []check.Result{bad(id, "in uninterruptible sleep for "+stuckAfter.String()+": "+strings.Join(still, ", "), "reboot the node")}
}

// stuck returns the processes that hang in a driver now, as "name (pid) in function".
func (n *Node) stuck() []string {
	entries, _ := fs.ReadDir(n.Root, "proc")
	var list []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := path.Join("proc", e.Name())
		stat, err := fs.ReadFile(n.Root, path.Join(dir, "stat"))
		end := strings.LastIndex(string(stat), ")")
		if err != nil || end < 0 || !strings.HasPrefix(string(stat[end+1:]), " D ") {
			continue
		}
		_, name, _ := strings.Cut(string(stat[:end]), "(")
		wchan, _ := fs.ReadFile(n.Root, path.Join(dir, "wchan")) // for root alone, as are the files
		if where := string(wchan); stuckIn().MatchString(where) {
			list = append(list, fmt.Sprintf("%s (%s) in %s", clean(name), e.Name(), clean(where)))
			continue
		}
		files, _ := fs.ReadDir(n.Root, path.Join(dir, "fd"))
		for _, f := range files {
			if to, err := n.Root.ReadLink(path.Join(dir, "fd", f.Name())); err == nil && strings.HasPrefix(to, "/dev/") &&
				stuckIn().MatchString(to) {
				list = append(list, fmt.Sprintf("%s (%s) with %s open", clean(name), e.Name(), clean(to)))
				break
			}
		}
	}
	return list
}
