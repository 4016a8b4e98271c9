package hardware

import (
	"context"
	"errors"
	"fmt"

	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
	"muster/internal/check"
	"muster/internal/health"
)

// quick is a machine of which no kernel log is read, for which it may take a program of its own.
type quick struct{ health.Machine }

// KernelLog is left to muster check.
func (quick) KernelLog() (health.KernelLog, error) {
	return health.KernelLog{}, errors.New("muster check reads it")
}

// Report tells of the devices, and what checks find wrong with them.
func (n *Hardware) Report(ctx context.Context) (*Report, error) {
	cpus, cpusWhy := accel.CPUs(n.Root)
	workers, why, err := accel.Workers("auto", n.Inventory, cpus)
	d := &Report{
		Sick: []check.Result{}, Node: n.Host, Fake: n.Inventory.Fake, CPUs: cpus, Auto: workers, Why: why, cpusWhy: cpusWhy,
		NVML: n.nvmlReport(),
	}
	if err != nil {
		d.Why = err.Error()
	}
	for _, f := range n.Inventory.Families {
		d.Vendors = append(d.Vendors, familyReport(f, n.NVML))
	}
	node := n.Health(ctx)
	node.Machine = quick{node.Machine}
	node.CPUs, node.Workers = cpus, max(workers, 1)
	results := node.CheckDevices()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	for _, r := range results {
		if r.Status > check.Pass {
			d.Sick = append(d.Sick, r)
		}
	}
	for _, v := range accel.Vendors() {
		d.Verified = append(d.Verified, vendorReport{v.Name, v.Backend, v.Verified})
	}
	return d, nil
}

// Report is what muster devices --json writes.
type Report struct {
	Node string `json:"node"`
	Fake string `json:"fake,omitempty"` // path of the spec
	CPUs int    `json:"cpus"`
	// Auto is how many workers --nproc-per-node auto starts, 0 where that cannot be told; Why says how it was decided.
	Auto     int               `json:"auto"`
	Why      string            `json:"why"`
	Vendors  []familyOfDevices `json:"vendors"`
	NVML     *nvmlReport       `json:"nvml,omitempty"` // null where there is no NVIDIA GPU
	Sick     []check.Result    `json:"sick"`           // what checks find wrong
	Verified []vendorReport    `json:"detection"`

	cpusWhy string // how CPUs were counted
}

// nvmlReport tells who has told of NVIDIA's GPUs, and what is missing.
type nvmlReport struct {
	Via      string `json:"via,omitempty"` // how the probe was run, or the path of nvidia-smi
	Driver   string `json:"driver,omitempty"`
	Library  string `json:"library,omitempty"`
	CUDA     string `json:"cuda,omitempty"`
	TookMS   int64  `json:"took_ms"`
	Degraded string `json:"degraded,omitempty"` // why not all is known
}

// nvmlReport is nil where nobody was to be asked.
func (n *Hardware) nvmlReport() *nvmlReport {
	if n.NVML == nil && n.NVMLErr == nil {
		return nil
	}
	r := &nvmlReport{Degraded: n.Degraded()}
	if n.NVML != nil {
		r.Via, r.Driver, r.Library, r.TookMS = n.NVML.Via, n.NVML.Sys.Driver, n.NVML.Sys.NVML, n.NVML.Took.Milliseconds()
		if cuda := n.NVML.Sys.CUDA; cuda > 0 {
			r.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
		}
	}
	return r
}

type vendorReport struct {
	Vendor   string `json:"vendor"`
	Backend  string `json:"backend"`
	Verified string `json:"verified"` // how detection was checked
}

type familyOfDevices struct {
	Vendor    string         `json:"vendor"`
	Backend   string         `json:"backend"`
	Visible   int            `json:"visible"`
	Undecided string         `json:"undecided,omitempty"`
	Why       []string       `json:"why,omitempty"`
	Devices   []deviceOfNode `json:"devices"`
}

type deviceOfNode struct {
	Index     *int     `json:"index"`   // null where it may not be used
	Visible   *int     `json:"visible"` // by which number a worker knows it; null where it does not
	Model     string   `json:"model,omitempty"`
	UUID      string   `json:"uuid,omitempty"`
	BusID     string   `json:"bdf,omitempty"`
	Node      string   `json:"node,omitempty"`
	Driver    string   `json:"driver,omitempty"`
	NUMANode  *int     `json:"numa,omitempty"`
	Link      string   `json:"link,omitempty"`
	LocalCPUs string   `json:"cpus,omitempty"`
	Instances int      `json:"mig_instances,omitempty"`
	WhyNot    string   `json:"why_not,omitempty"`
	Notes     []string `json:"notes,omitempty"`
	// NVML is what NVIDIA's library tells of it, in the words of the probe.
	NVML *nvline.GPU `json:"nvml,omitempty"`
}

func familyReport(f accel.Family, nvml *probe.Report) familyOfDevices {
	r := familyOfDevices{Vendor: f.Vendor, Backend: f.Backend, Visible: f.VisibleCount, Why: f.Why, Devices: []deviceOfNode{}}
	if f.Undecided != nil {
		r.Undecided = f.Undecided.Error()
	}
	for _, list := range [][]accel.Device{f.Devices, f.Unusable} {
		for _, d := range list {
			own := deviceOfNode{
				Index: known(d.Index), Visible: known(d.VisibleIndex), Model: d.Model, UUID: d.UUID, BusID: d.BusID, Node: d.Node,
				Driver: d.Driver, NUMANode: known(d.NUMANode), Link: d.Link, LocalCPUs: d.LocalCPUs, Instances: len(d.Instances),
				WhyNot: d.WhyNot, Notes: d.Notes,
			}
			if f.Vendor == "nvidia" && nvml != nil {
				own.NVML = nvml.Find(d.BusID, d.UUID)
			}
			r.Devices = append(r.Devices, own)
		}
	}
	return r
}

// known is a number, nil for -1.
func known(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}
