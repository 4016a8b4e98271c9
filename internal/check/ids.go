package check

import "fmt"

// ID describes a check.
type ID struct {
	Name  string
	Scope string // gpu, pair, node or edge
	// Default is the status of a result that is not Pass or Skip, as far as the check itself does not say which it is.
	Default Status
	Text    string // what it means when it does not pass
	// Limit is the threshold that a policy may change, in Unit; "" where the check has none.
	Limit int64
	Unit  string
	// Apart says that muster check does not look at it by itself: the network check of a job does, or
	// --switchbox-check.
	Apart bool
}

// ids are all checks that muster knows, of nodes and of pairs of them; a policy may name these. Thresholds and their
// sources are where the check is.
var ids = []ID{
	{Name: "gpu-lost", Scope: "gpu", Default: Fail, Text: "the GPU does not answer on the bus"},
	{Name: "gpu-reset-required", Scope: "gpu", Default: Fail, Text: "the driver wants the GPU reset, or the node rebooted"},
	{Name: "gpu-missing", Scope: "gpu", Default: Fail, Text: "the GPU is on the bus, and NVML does not count it"},
	{Name: "gpu-driver", Scope: "gpu", Default: Fail, Text: "a driver that cannot compute is bound to the GPU"},
	{Name: "gpu-node", Scope: "gpu", Default: Warn, Text: "the GPU has no device node that this process may use"},
	{Name: "driver-not-loaded", Scope: "node", Default: Fail, Text: "there are GPUs on the bus, and no driver"},
	{Name: "driver-mismatch", Scope: "node", Default: Fail, Text: "the driver's module and its library are of different versions"},
	{Name: "gpu-driver-hung", Scope: "node", Default: Fail, Text: "a call into the driver's library did not return"},
	{Name: "nvml-not-injected", Scope: "node", Default: Warn, Text: "GPUs are here, and the driver's library is not"},
	{Name: "device-health", Scope: "gpu", Default: Fail, Text: "the vendor's own tool finds the device unwell"},
	{Name: "device-network", Scope: "gpu", Default: Warn, Text: "the device's own network port has no link"},
	{Name: "device-link", Scope: "gpu", Default: Warn, Text: "fewer of the device's links are up than of other devices'"},
	{Name: "ecc-uncorrectable", Scope: "gpu", Default: Fail, Text: "uncorrected memory errors since the driver was loaded", Unit: "errors"},
	{Name: "ecc-aggregate", Scope: "gpu", Default: Warn, Text: "uncorrected memory errors in the GPU's life", Unit: "errors"},
	{Name: "ecc-off", Scope: "gpu", Default: Warn, Text: "memory errors go unnoticed: ECC is off"},
	{Name: "sram-threshold", Scope: "gpu", Default: Fail, Text: "errors of the caches have passed the maker's threshold"},
	{Name: "remap-failed", Scope: "gpu", Default: Fail, Text: "a bad row of memory could not be replaced"},
	{Name: "remap-pending", Scope: "gpu", Default: Fail, Text: "a bad row of memory is replaced at the next reset"},
	{Name: "remap-many", Scope: "gpu", Default: Fail, Text: "so many rows were replaced that spares run out", Limit: 512, Unit: "rows"},
	{Name: "retired-pending", Scope: "gpu", Default: Fail, Text: "bad pages of memory are retired at the next reboot"},
	{Name: "retired-many", Scope: "gpu", Default: Fail, Text: "so many pages are retired that no more can be", Limit: 60, Unit: "pages"},
	{Name: "nvlink-down", Scope: "gpu", Default: Fail, Text: "an NVLink is inactive that other GPUs have active"},
	{Name: "nvlink-none", Scope: "node", Default: Fail, Text: "no two GPUs reach each other over their NVLinks"},
	{
		Name: "nvlink-errors", Scope: "gpu", Default: Warn, Text: "NVLinks make errors; a failure above the limit", Limit: 100,
		Unit: "CRC errors a second",
	},
	{Name: "fabric-not-ready", Scope: "gpu", Default: Fail, Text: "the GPU has not joined the fabric of the NVSwitches"},
	{Name: "pcie-width", Scope: "gpu", Default: Warn, Text: "the link has fewer lanes than the GPU can have"},
	{Name: "pcie-speed", Scope: "gpu", Default: Warn, Text: "the link of a working GPU is slower than it can be"},
	{Name: "pcie-replay", Scope: "gpu", Default: Warn, Text: "the link repeats more than its error rate explains"},
	{Name: "throttle-hw", Scope: "gpu", Default: Fail, Text: "the hardware slows the GPU down: heat or power"},
	{Name: "throttle-sw", Scope: "gpu", Default: Warn, Text: "the driver slows the GPU down for its heat"},
	{
		Name: "temp-high", Scope: "gpu", Default: Fail, Text: "the GPU or its memory is about to be too hot", Limit: 2,
		Unit: "°C below the slowdown",
	},
	{Name: "persistence-off", Scope: "gpu", Default: Warn, Text: "the driver forgets the GPU between processes: 1 to 3 s at each start"},
	{Name: "compute-mode", Scope: "gpu", Default: Fail, Text: "the GPU refuses the processes that are to run"},
	{Name: "gpu-busy", Scope: "gpu", Default: Fail, Text: "somebody uses the GPU's memory", Limit: 1024, Unit: "MiB"},
	{
		Name: "gpu-heterogeneous", Scope: "node", Default: Warn, Text: "the GPUs are of different models or sizes", Limit: 1,
		Unit: "% of memory",
	},
	{Name: "numa-unknown", Scope: "gpu", Default: Warn, Text: "the machine does not tell to which NUMA node the GPU belongs"},
	{Name: "acs-on", Scope: "gpu", Default: Warn, Text: "a bridge sends what GPUs send each other through the CPU"},
	{
		Name: "xid", Scope: "gpu", Default: Warn, Text: "the kernel log has an error of the GPU; which ones fail: docs/checks.md",
		Limit: 24,
		Unit:  "hours back",
	},
	{Name: "kernel-log", Scope: "node", Default: Warn, Text: "the kernel log complains of a switch, a NIC or their power"},
	{Name: "stuck-process", Scope: "node", Default: Warn, Text: "a process hangs in an accelerator's driver"},
	{Name: "peermem", Scope: "node", Default: Warn, Text: "RDMA is here, and NICs cannot reach the memory of GPUs"},
	{
		Name: "shm-size", Scope: "node", Default: Warn, Text: "/dev/shm is smaller than data loaders and NCCL need", Limit: 256,
		Unit: "MiB a worker",
	},
	{Name: "shm-writable", Scope: "node", Default: Fail, Text: "/dev/shm cannot be written"},
	{Name: "memlock", Scope: "node", Default: Warn, Text: "locked memory is limited, and RDMA needs it"},
	{Name: "open-files", Scope: "node", Default: Warn, Text: "few open files are allowed", Limit: 65536, Unit: "files"},
	{Name: "cpu-starved", Scope: "node", Default: Warn, Text: "there are fewer CPUs than workers"},
	{
		Name: "cpu-tight", Scope: "node", Default: Warn, Text: "there are few CPUs for each worker and its data loaders", Limit: 2,
		Unit: "CPUs a worker",
	},
	{Name: "bad-env", Scope: "node", Default: Warn, Text: "a variable of debugging or of a workaround slows training down"},
	{Name: "disk-space", Scope: "node", Default: Warn, Text: "the temporary directory is nearly full", Limit: 1024, Unit: "MiB"},
	{
		Name: "switchbox", Scope: "node", Default: Fail, Apart: true,
		Text: "the box between the GPUs has fewer healthy channels than are needed", Limit: 2, Unit: "channels",
	},
	{
		Name: "switchbox-link", Scope: "node", Default: Warn, Apart: true,
		Text: "the link between two GPUs is slow, or does not carry what it is given", Limit: 10000, Unit: "MB/s",
	},
	// Of netcheck/netprobe: pairs of nodes, and what nodes say of their interfaces and RDMA ports.
	{Name: "net-reach", Scope: "edge", Default: Fail, Apart: true, Text: "a node cannot connect to another one, or not always"},
	{Name: "net-rtt", Scope: "edge", Default: Warn, Apart: true, Text: "round trips take long, or longer than those of other pairs"},
	{Name: "clock-offset", Scope: "edge", Default: Warn, Apart: true, Text: "the clocks of two nodes are apart"},
	{Name: "mtu-blackhole", Scope: "edge", Default: Fail, Apart: true, Text: "large packets vanish on the way between two nodes"},
	{Name: "mtu-reduced", Scope: "edge", Default: Warn, Apart: true, Text: "large packets do not pass, and the sender is told"},
	{
		Name: "net-bandwidth", Scope: "edge", Default: Fail, Apart: true,
		Text: "streams between two nodes are slow, or slower than those of other pairs",
	},
	{Name: "net-retrans", Scope: "edge", Default: Warn, Apart: true, Text: "many TCP segments had to be sent again"},
	{Name: "net-mss", Scope: "edge", Default: Warn, Apart: true, Text: "TCP segments are smaller than the interfaces allow"},
	{
		Name: "iface-mismatch", Scope: "node", Default: Warn, Apart: true,
		Text: "NCCL or Gloo takes another network interface than on the other nodes",
	},
	{
		Name: "loopback-hostname", Scope: "node", Default: Fail, Apart: true,
		Text: "Gloo takes the loopback interface, which no other node reaches",
	},
	{Name: "rdma-port-down", Scope: "node", Default: Fail, Apart: true, Text: "an RDMA port that is meant to be used is not active"},
	{Name: "rdma-rate", Scope: "node", Default: Fail, Apart: true, Text: "an RDMA port is slower than others of its model"},
	{
		Name: "rdma-heterogeneous", Scope: "node", Default: Fail, Apart: true,
		Text: "the number of RDMA ports or their rates differ between nodes",
	},
	{Name: "rdma-errors", Scope: "node", Default: Warn, Apart: true, Text: "an RDMA port has counted errors during the tests"},
	{Name: "rdma-gid", Scope: "node", Default: Warn, Apart: true, Text: "an Ethernet RDMA port has no address for RoCE v2 over IPv4"},
	{Name: "rdma-device", Scope: "node", Default: Warn, Apart: true, Text: "RDMA ports are active, and no device lets programs use them"},
	{Name: "rdma-affinity", Scope: "node", Default: Warn, Apart: true, Text: "a GPU has no active RDMA port on its NUMA node"},
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
