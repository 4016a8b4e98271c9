package check

import "fmt"

// ID describes a check.
type ID struct {
	Name  string
	Scope string // gpu, pair, node or edge
	// Default is the status of a result that is not Pass or Skip, as far as the check itself does not say which it is.
	Default Status
	Text    string // what it means when it does not pass
}

// ids are all checks of a node that muster knows; a policy may name these. Thresholds and their sources are where the check is.
var ids = []ID{
	{"gpu-lost", "gpu", Fail, "the GPU does not answer on the bus"},
	{"gpu-driver", "gpu", Fail, "a driver that cannot compute is bound to the GPU"},
	{"gpu-node", "gpu", Warn, "the GPU has no device node that this process may use"},
	{"pcie-width", "gpu", Warn, "the link has fewer lanes than the GPU and its slot can have"},
	{"numa-unknown", "gpu", Warn, "the machine does not tell to which NUMA node the GPU belongs"},
	{"gpu-heterogeneous", "node", Warn, "the GPUs are of different models"},
	{"driver-not-loaded", "node", Fail, "there are GPUs on the bus, and no driver"},
	{"shm-size", "node", Warn, "/dev/shm is smaller than data loaders and NCCL need"},
	{"shm-writable", "node", Fail, "/dev/shm cannot be written"},
	{"memlock", "node", Warn, "locked memory is limited, and RDMA needs it"},
	{"open-files", "node", Warn, "few open files are allowed"},
	{"cpu-starved", "node", Warn, "there are fewer CPUs than workers"},
	{"bad-env", "node", Warn, "a variable of debugging or of a workaround slows training down"},
	{"disk-space", "node", Warn, "the temporary directory is nearly full"},
}

// Lookup returns the check of a name.
func Lookup(name string) (ID, error) {
	for _, id := range ids {
		if id.Name == name {
			return id, nil
		}
	}
	return ID{}, fmt.Errorf("there is no check %q", name)
}

// IDs returns all checks.
func IDs() []ID { return append([]ID(nil), ids...) }
