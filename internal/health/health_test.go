package health

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"muster/internal/accel"
	"muster/internal/check"
)

// tree is a machine's files.
type tree struct{ fstest.MapFS }

func (tree) Access(string) error      { return nil }
func (tree) Readable(string) error    { return nil }
func (tree) Affinity() ([]int, error) { return []int{0}, nil }

// facts are a machine's limits; a negative one cannot be read.
type facts struct {
	shm, temp     Space
	noShm         bool
	files, locked int64
	log           KernelLog
	noLog         error
}

func (f facts) Space(path string) (Space, error) {
	switch {
	case path != "/dev/shm":
		return f.temp, nil
	case f.noShm:
		return Space{}, errors.New("cannot be looked at: no such file or directory")
	}
	return f.shm, nil
}

func limit(n int64) (uint64, error) {
	if n < 0 {
		return 0, errors.New("cannot read a limit")
	}
	return uint64(n), nil
}
func (f facts) KernelLog() (KernelLog, error) { return f.log, f.noLog }
func (f facts) Pause(time.Duration)           {}
func (f facts) OpenFiles() (uint64, error)    { return limit(f.files) }
func (f facts) LockedMemory() (uint64, error) { return limit(f.locked) }

const gpuDir = "sys/bus/pci/devices/0000:1b:00.0/"

// healthy is a node of one GPU, on which everything passes.
func healthy() *Node {
	return &Node{
		Root: tree{fstest.MapFS{
			"proc/driver/nvidia/version":                {Data: []byte("NVRM version: 550")},
			gpuDir + "current_link_width":               {Data: []byte("16\n")},
			gpuDir + "max_link_width":                   {Data: []byte("16\n")},
			"sys/devices/system/node/online":            {Data: []byte("0-1\n")},
			"sys/class/infiniband/mlx5_0/ports/1/state": {Data: []byte("4: ACTIVE\n")},
		}},
		Machine: facts{shm: Space{Total: 2 * gib, Writable: true}, temp: Space{Free: gib}, files: 65536, locked: 1 << 62},
		Lookup:  func(string) (string, bool) { return "", false },
		Workers: 8, CPUs: 8, TempDir: "/tmp",
	}
}

func device() accel.Device {
	return accel.Device{
		Index: 0, VisibleIndex: 0, Vendor: "nvidia", Model: "H100", BusID: "0000:1b:00.0", Node: "/dev/nvidia0",
		Driver: "nvidia",
	}
}

// with puts devices into a node.
func (n *Node) with(usable bool, devices ...accel.Device) *Node {
	f := accel.Family{Vendor: "nvidia", Backend: "cuda"}
	if usable {
		f.Devices, f.Visible, f.VisibleCount = devices, devices, len(devices)
	} else {
		f.Unusable = devices
	}
	n.Inventory = accel.Inventory{Family: f, Families: []accel.Family{f}}
	return n
}

func (n *Node) file(name, text string) *Node {
	files := maps.Clone(n.Root.(tree).MapFS)
	if files[name] = (&fstest.MapFile{Data: []byte(text)}); text == "" {
		delete(files, name)
	}
	n.Root = tree{files}
	return n
}

func (n *Node) limits(change func(*facts)) *Node {
	f := n.Machine.(facts)
	change(&f)
	n.Machine = f
	return n
}

func (n *Node) variable(name, value string) *Node {
	n.Lookup = func(asked string) (string, bool) { return value, asked == name }
	return n
}

// statusOf is the worst status of a check.
func statusOf(t *testing.T, results []check.Result, id string) check.Status {
	t.Helper()
	worst, found := check.Skip, false
	for _, r := range results {
		if r.ID == id {
			worst, found = max(worst, r.Status), true
		}
	}
	if !found {
		t.Errorf("nothing is said of %s", id)
	}
	return worst
}

// TestChecks are nodes that files and limits make, on both sides of each threshold; TestEveryCheckHasAPair has all
// checks.
func TestChecks(t *testing.T) {
	const pass, warn, fail, skip = check.Pass, check.Warn, check.Fail, check.Skip
	change := func(f func(*accel.Device)) accel.Device {
		d := device()
		f(&d)
		return d
	}
	unusable := func(f func(*accel.Device)) *Node {
		return healthy().with(false, change(func(d *accel.Device) { d.Index = -1; f(d) }))
	}
	for _, c := range []struct {
		id   string
		node *Node
		want check.Status
	}{
		{"gpu-lost", healthy().with(true, device()), pass},
		{"gpu-lost", healthy().with(true, change(func(d *accel.Device) { d.Lost = "ff ff" })), fail},
		{"gpu-lost", unusable(func(d *accel.Device) { d.Lost = "ff ff" }), fail},
		{"gpu-lost", healthy(), skip},
		{"gpu-driver", healthy().with(true, device()), pass},
		{"gpu-driver", unusable(func(d *accel.Device) { d.Driver = "nouveau" }), fail},
		{"gpu-driver", unusable(func(d *accel.Device) { d.Driver = "vfio-pci" }), pass},
		{"gpu-node", healthy().with(true, device()), pass},
		{"gpu-node", unusable(func(d *accel.Device) { d.WhyNot = "may not be read" }), warn},
		{"gpu-node", unusable(func(d *accel.Device) { d.WhyNot, d.Node = "another container's", "" }), pass},
		{"pcie-width", healthy().with(true, device()), pass},
		{"pcie-width", healthy().with(true, device()).file(gpuDir+"current_link_width", "15"), warn},
		{"pcie-width", healthy().with(true, device()).file(gpuDir+"current_link_width", "8"), warn},
		{"pcie-width", healthy().with(true, device()).file(gpuDir+"current_link_width", "7"), fail},
		{"pcie-width", healthy().with(true, device()).file(gpuDir+"max_link_width", "255"), pass},
		{"pcie-width", healthy().with(true, device()).file(gpuDir+"max_link_width", "?"), pass},
		{"numa-unknown", healthy().with(true, device()), pass},
		{"numa-unknown", healthy().with(true, change(func(d *accel.Device) { d.NUMANode = -1 })), warn},
		{
			"numa-unknown",
			healthy().with(true, change(func(d *accel.Device) { d.NUMANode = -1 })).file("sys/devices/system/node/online", "0"), skip,
		},
		{"gpu-heterogeneous", healthy().with(true, device(), device()), pass},
		{"gpu-heterogeneous", healthy().with(true, device(), change(func(d *accel.Device) { d.Model = "A100" })), warn},
		{"gpu-heterogeneous", healthy(), skip},
		{"driver-not-loaded", healthy().with(true, device()), pass},
		{"driver-not-loaded", unusable(func(*accel.Device) {}).file("proc/driver/nvidia/version", ""), fail},
		{"driver-not-loaded", healthy().with(true, device()).file("proc/driver/nvidia/version", ""), pass},
		{"driver-not-loaded", healthy(), skip},
		{"shm-size", healthy(), pass},
		{"shm-size", healthy().limits(func(f *facts) { f.shm.Total = 2*gib - 1 }), warn},
		{"shm-size", healthy().limits(func(f *facts) { f.noShm = true }), skip},
		{"shm-writable", healthy(), pass},
		{"shm-writable", healthy().limits(func(f *facts) { f.shm.Writable = false }), fail},
		{"shm-writable", healthy().limits(func(f *facts) { f.noShm = true }), fail},
		{"memlock", healthy().limits(func(f *facts) { f.locked = 64 << 10 }), warn},
		{"memlock", healthy().limits(func(f *facts) { f.locked = -1 }), skip},
		{"memlock", healthy().file("sys/class/infiniband/mlx5_0/ports/1/state", ""), skip},
		{
			"memlock", healthy().limits(func(f *facts) { f.locked = 64 << 10 }).file("sys/class/infiniband/mlx5_0/ports/1/state",
				"1: DOWN"),
			skip,
		},
		{"open-files", healthy(), pass},
		{"open-files", healthy().limits(func(f *facts) { f.files = 65535 }), warn},
		{"open-files", healthy().limits(func(f *facts) { f.files = -1 }), skip},
		{"cpu-starved", healthy(), pass},
		{"cpu-starved", &Node{Root: healthy().Root, Machine: healthy().Machine, Lookup: healthy().Lookup, Workers: 3, CPUs: 2}, warn},
		{"disk-space", healthy(), pass},
		{"disk-space", healthy().limits(func(f *facts) { f.temp.Free = gib - 1 }), warn},
		{"bad-env", healthy(), pass},
		{"bad-env", healthy().variable("CUDA_LAUNCH_BLOCKING", "1"), warn},
		{"bad-env", healthy().variable("CUDA_LAUNCH_BLOCKING", "0"), pass},
		{"bad-env", healthy().variable("NCCL_DEBUG", "trace"), warn},
		{"bad-env", healthy().variable("NCCL_DEBUG", "INFO"), pass},
		{"bad-env", healthy().variable("CUDA_COREDUMP_FILE", ""), pass},
	} {
		results := c.node.Check()
		if got := statusOf(t, results, c.id); got != c.want {
			t.Errorf("%s: %v, want %v: %+v", c.id, got, c.want, results)
		}
		for _, r := range results {
			if (r.Status == skip || r.Status > pass) && r.Reason == "" || r.Source == "" {
				t.Errorf("%s is %v and does not say why: %+v", r.ID, r.Status, r)
			}
		}
	}
	// No lock limit at all.
	n := healthy()
	n.Machine = unlimited{n.Machine.(facts)}
	if got := statusOf(t, n.Check(), "memlock"); got != pass {
		t.Errorf("memlock without a limit: %v", got)
	}
}

type unlimited struct{ facts }

func (unlimited) LockedMemory() (uint64, error) { return noLimit, nil }

// TestReal runs all checks here: whatever they say, none may miss its answer.
func TestReal(t *testing.T) {
	root := accel.Real()
	n := &Node{
		Root: root, Machine: Real(), Inventory: accel.Detect(root, func(string) (string, bool) { return "", false }),
		Lookup: func(string) (string, bool) { return "", false }, Workers: 1, CPUs: 1, TempDir: t.TempDir(),
	}
	said := map[string]bool{}
	for _, r := range n.Check() {
		t.Logf("%v %s %s", r.Status, r.ID, r.Reason)
		said[r.ID] = true
	}
	var missing []string
	for _, id := range check.IDs() {
		if !said[id.Name] && !id.Apart {
			missing = append(missing, id.Name)
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("nothing is said of %v", missing)
	}
	if _, err := Real().Space("/no/such/place"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
