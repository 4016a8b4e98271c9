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

// ids are all checks that muster knows, of nodes and of pairs of them; a policy may name these. Thresholds and their sources are where the check is.
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
	// Of netcheck/netprobe: pairs of nodes, and what nodes say of their interfaces and RDMA ports.
	{"net-reach", "edge", Fail, "a node cannot connect to another one, or not always"},
	{"net-rtt", "edge", Warn, "round trips take long, or longer than those of other pairs"},
	{"clock-offset", "edge", Warn, "the clocks of two nodes are apart"},
	{"mtu-blackhole", "edge", Fail, "large packets vanish on the way between two nodes"},
	{"mtu-reduced", "edge", Warn, "large packets do not pass, and the sender is told"},
	{"net-bandwidth", "edge", Fail, "streams between two nodes are slow, or slower than those of other pairs"},
	{"net-retrans", "edge", Warn, "many TCP segments had to be sent again"},
	{"net-mss", "edge", Warn, "TCP segments are smaller than the interfaces allow"},
	{"iface-mismatch", "node", Warn, "NCCL or Gloo takes another network interface than on the other nodes"},
	{"loopback-hostname", "node", Fail, "Gloo takes the loopback interface, which no other node reaches"},
	{"rdma-port-down", "node", Fail, "an RDMA port that is meant to be used is not active"},
	{"rdma-rate", "node", Fail, "an RDMA port is slower than others of its model"},
	{"rdma-heterogeneous", "node", Fail, "the number of RDMA ports or their rates differ between nodes"},
	{"rdma-errors", "node", Warn, "an RDMA port has counted errors during the tests"},
	{"rdma-gid", "node", Warn, "an Ethernet RDMA port has no address for RoCE v2 over IPv4"},
	{"rdma-device", "node", Warn, "RDMA ports are active, and no device lets programs use them"},
	{"rdma-affinity", "node", Warn, "a GPU has no active RDMA port on its NUMA node"},
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
