package rehearsal

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing/fstest" // the standard library's file system in memory; it depends on nothing of testing itself

	"muster/internal/accel"
)

// Where the kernel and the drivers show what detection reads.
const (
	pciDevices         = "sys/bus/pci/devices"
	nodesDir           = "sys/devices/system/node"
	cpusDir            = "sys/devices/system/cpu"
	kfdNodes           = "sys/class/kfd/kfd/topology/nodes"
	nvidiaGPUs         = "proc/driver/nvidia/gpus"
	nvidiaCapabilities = "proc/driver/nvidia/capabilities"
)

// cpulist is the file that lists the CPUs of a NUMA node.
func cpulist(node int) string { return fmt.Sprintf("%s/node%d/cpulist", nodesDir, node) }

// fakeProcess is the folder of a process that hangs; its number is one above those that Linux gives.
const fakeProcess = "proc/4194305/stat"

const fakeCgroup = "sys/fs/cgroup"

// pcieSpeeds are the speeds of the generations of PCI Express, as sysfs spells them.
var pcieSpeeds = []string{"2.5", "5.0", "8.0", "16.0", "32.0", "64.0"}

// render writes the files that the vendor's driver, the PCI bus and the kernel of such a node would show.
func (f *Fake) render() fstest.MapFS {
	s := &f.spec
	t := fakeTree{fstest.MapFS{
		"dev":      {Mode: fs.ModeDir | 0o755},
		pciDevices: {Mode: fs.ModeDir | 0o755},
	}}
	nvidia := s.vendor.Name == "nvidia"
	loaded := !s.has("driver-not-loaded", -1)
	if s.count > 0 && loaded {
		for _, node := range s.vendor.Nodes {
			t.node("dev/"+node, 0o666)
		}
		if nvidia {
			t.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+s.driver+"  (fake)\n")
		}
	}
	for i := range s.count {
		f.renderDevice(t, i, loaded)
	}
	t.put("proc/cpuinfo", "flags\t\t: fpu\n") // no hypervisor: what bridges do matters
	if nvidia && !s.has("peermem-missing", -1) {
		t.put("sys/module/nvidia_peermem/initstate", "live\n")
	}
	for i, p := range s.rdma {
		f.renderPort(t, i, p)
	}
	if s.cpus != nil {
		s.cpus.render(t)
	}
	if stuck := s.is("stuck-process"); stuck != nil {
		state := map[int]string{0: "S", 1: "D"}[stuck.nums["value"]]
		t.put(fakeProcess, "4194305 (python) "+state+" 1 1 1 0 -1\n")
		t.put(path.Join(path.Dir(fakeProcess), "wchan"), stuck.text["wchan"])
	}
	if s.cpuMax != "" {
		t.put("proc/self/cgroup", "0::/\n")
		t.put("proc/self/mountinfo", "30 23 0:26 / /"+fakeCgroup+" rw shared:9 - cgroup2 cgroup2 rw\n")
		t.put(path.Join(fakeCgroup, "cpu.max"), s.cpuMax+"\n")
	}
	return t.MapFS
}

// fakeTree is a tree that is being rendered.
type fakeTree struct{ fstest.MapFS }

func (t fakeTree) put(name, text string) {
	t.MapFS[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o444}
}

func (t fakeTree) link(name, target string) {
	t.MapFS[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
}

func (t fakeTree) node(name string, perm fs.FileMode) {
	t.MapFS[name] = &fstest.MapFile{Mode: fs.ModeDevice | fs.ModeCharDevice | perm}
}

// renderDevice writes one device and the bridge above it.
func (f *Fake) renderDevice(t fakeTree, i int, loaded bool) {
	s := &f.spec
	address, bridge := fakeAddress(i), fakeBridge(i)
	dir := path.Join(bridge, address)
	numa := -1
	if s.numa != nil {
		numa = s.numa[i]
	}
	kind := fakeVendors()[s.vendor.Name]
	t.put(dir+"/vendor", s.vendor.PCIID+"\n")
	t.put(dir+"/class", kind.class+"\n")
	t.put(dir+"/numa_node", fmt.Sprintf("%d\n", numa))
	config := binary.LittleEndian.AppendUint16(nil, f.pciVendor())
	if s.has("gpu-lost", i) {
		config = []byte{0xff, 0xff}
	}
	t.put(dir+"/config", string(config)+"\x00\x00")
	t.put(dir+"/current_link_width", fmt.Sprintf("%d\n", s.fault("pcie-width", i, "value", s.width)))
	t.put(dir+"/max_link_width", fmt.Sprintf("%d\n", s.width))
	t.put(dir+"/current_link_speed", pcieSpeeds[s.fault("pcie-speed", i, "value", s.gen)-1]+" GT/s PCIe\n")
	t.put(dir+"/max_link_speed", pcieSpeeds[s.gen-1]+" GT/s PCIe\n")
	t.put(bridge+"/config", acsConfig(s.has("acs-on", i)))
	t.link(path.Join(pciDevices, address), "../../../"+strings.TrimPrefix(dir, "sys/"))
	switch {
	case !loaded:
	case s.has("nouveau", i):
		t.link(dir+"/driver", "../../../../bus/pci/drivers/nouveau")
	default:
		t.link(dir+"/driver", "../../../../bus/pci/drivers/"+kind.driver)
		kind.files(f, t, i, dir)
	}
}

// pciVendor is the number of the vendor on the PCI bus.
func (f *Fake) pciVendor() uint16 {
	id, err := strconv.ParseUint(f.spec.vendor.PCIID, 0, 16)
	if err != nil {
		panic("internal error: " + err.Error()) // the table of vendors has another form
	}
	return uint16(id)
}

// acsConfig is the configuration of a bridge whose first extended capability is access control, with redirection on or
// off.
func acsConfig(on bool) string {
	config := make([]byte, 4096)
	binary.LittleEndian.PutUint32(config[0x100:], 0x0001_000d)
	if on {
		binary.LittleEndian.PutUint16(config[0x106:], 0x0c)
	}
	return string(config)
}

// fakeRoot shows the fake's accelerator files and the machine's other files.
type fakeRoot struct {
	tree    fstest.MapFS
	machine accel.Root
	nodes   bool      // the NUMA nodes are the fake's
	cgroup  bool      // the control groups are the fake's
	cpus    *cpusSpec // the fake's CPUs, and NUMA nodes; nil: the machine's

	grown func(name string) (text string, grows bool) // files whose content grows
}

// files returns who answers for name.
func (r fakeRoot) files(name string) fs.ReadLinkFS {
	if r.owns(name) {
		return r.tree
	}
	return r.machine
}

func (r fakeRoot) owns(name string) bool {
	for _, dir := range []string{
		"dev", "proc/driver", "proc/cpuinfo", path.Dir(fakeProcess), "sys/bus/pci", "sys/class/kfd", "sys/class/accel",
		"sys/class/habanalabs",
		"sys/class/infiniband", "sys/module/nvidia_peermem", "sys/hypervisor",
	} {
		if within(name, dir) {
			return true
		}
	}
	return strings.HasPrefix(name, "sys/devices/pci") || (r.nodes || r.cpus != nil) && within(name, nodesDir) ||
		r.cpus != nil && within(name, cpusDir) ||
		r.cgroup && (name == "proc/self/cgroup" || name == "proc/self/mountinfo" || within(name, fakeCgroup))
}

// within reports whether name is dir or below it.
func within(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// Open opens the file name.
func (r fakeRoot) Open(name string) (fs.File, error) {
	if text, grows := r.grown(name); grows {
		return fstest.MapFS{name: &fstest.MapFile{Data: []byte(text), Mode: 0o444}}.Open(name)
	}
	return r.files(name).Open(name)
}

// ReadDir lists a folder. The machine's processes are all there, and the fake's with them.
func (r fakeRoot) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(r.files(name), name)
	if name != "proc" || err != nil {
		return entries, err
	}
	own, err := fs.ReadDir(r.tree, name)
	for _, e := range own {
		if !slices.ContainsFunc(entries, func(o fs.DirEntry) bool { return o.Name() == e.Name() }) {
			entries = append(entries, e)
		}
	}
	return entries, err
}

// ReadLink returns the target of the symbolic link name.
func (r fakeRoot) ReadLink(name string) (string, error) { return r.files(name).ReadLink(name) }

// Lstat describes the file name without following a last link.
func (r fakeRoot) Lstat(name string) (fs.FileInfo, error) { return r.files(name).Lstat(name) }

// Access finds every file of the fake accessible, but those without permissions.
func (r fakeRoot) Access(name string) error {
	if !r.owns(name) {
		return r.machine.Access(name)
	}
	fi, err := fs.Stat(r.tree, name)
	if err == nil && fi.Mode().Perm()&0o444 == 0 {
		return &fs.PathError{Op: "access", Path: "/" + name, Err: fs.ErrPermission}
	}
	return err
}

// Readable finds every file of the fake readable.
func (r fakeRoot) Readable(name string) error {
	if !r.owns(name) {
		return r.machine.Readable(name)
	}
	return r.Access(name)
}

// Affinity returns all of the fake's CPUs, or the machine's where it has none of its own.
func (r fakeRoot) Affinity() ([]int, error) {
	if r.cpus != nil {
		return r.cpus.affinity(), nil
	}
	return r.machine.Affinity()
}
