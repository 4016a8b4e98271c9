package health

import (
	"fmt"
	"slices"
	"strings"

	"muster/internal/check"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// sharedMemory: Docker's default of 64 MiB is too little for any data loader with worker processes; PyTorch's passes
// each batch through /dev/shm, and so does NCCL between GPUs that cannot reach each other.
func sharedMemory(n *Node) []check.Result {
	const size, writable = "shm-size", "shm-writable"
	s, err := n.Machine.Space("/dev/shm")
	if err != nil {
		r := bad(writable, "/dev/shm: "+err.Error(), "mount a tmpfs there")
		return append([]check.Result{r}, skip(size, "there is no /dev/shm")...)
	}
	results := pass(writable)
	if !s.Writable {
		results = []check.Result{bad(writable, "/dev/shm is read-only", "mount it writable")}
	}
	want := max(gib, uint64(n.Policy.Limit(size))*mib*uint64(max(n.Workers, 1)))
	if s.Total >= want {
		return append(results, pass(size)...)
	}
	r := bad(size, fmt.Sprintf("/dev/shm has %d MiB, and %d workers want %d", s.Total/mib, n.Workers, want/mib),
		"docker --shm-size or --ipc=host; in Kubernetes an emptyDir with medium: Memory")
	r.Value, r.Limit = fmt.Sprint(s.Total), fmt.Sprint(want)
	return append(results, r)
}

// lockedMemory: whoever registers memory for RDMA locks it.
func lockedMemory(n *Node) []check.Result {
	const id = "memlock"
	if n.activePort() == "" {
		return skip(id, "there is no active RDMA port")
	}
	limit, err := n.Machine.LockedMemory()
	switch {
	case err != nil:
		return skip(id, err.Error())
	case limit == noLimit:
		return pass(id)
	}
	return []check.Result{bad(id, fmt.Sprintf("%d KiB may be locked, and RDMA registers more", limit>>10),
		"ulimit -l unlimited; docker --ulimit memlock=-1")}
}

// openFiles: data loaders, NCCL's sockets and checkpoints of many shards need thousands.
func openFiles(n *Node) []check.Result {
	const id = "open-files"
	want := uint64(n.Policy.Limit(id))
	limit, err := n.Machine.OpenFiles()
	switch {
	case err != nil:
		return skip(id, err.Error())
	case limit >= want:
		return pass(id)
	}
	r := bad(id, fmt.Sprintf("%d files may be open", limit), fmt.Sprintf("ulimit -n %d; docker --ulimit nofile=%d", want, want))
	r.Value, r.Limit = fmt.Sprint(limit), fmt.Sprint(want)
	return []check.Result{r}
}

func cpus(n *Node) []check.Result {
	const id = "cpu-starved"
	if n.CPUs >= n.Workers {
		return pass(id)
	}
	return []check.Result{bad(id, fmt.Sprintf("%d CPUs for %d workers", n.CPUs, n.Workers),
		"give the container more CPUs, or start fewer workers")}
}

// cpuTight: PyTorch's data loaders are processes of their own, and so is the thread that feeds a GPU.
func cpuTight(n *Node) []check.Result {
	const id = "cpu-tight"
	want := int(n.Policy.Limit(id)) * n.Workers
	switch {
	case n.CPUs < n.Workers:
		return skip(id, "cpu-starved says more")
	case n.CPUs >= want:
		return pass(id)
	}
	r := bad(id, fmt.Sprintf("%d CPUs for %d workers", n.CPUs, n.Workers), "give the container more CPUs")
	r.Value, r.Limit = fmt.Sprint(n.CPUs), fmt.Sprint(want)
	return []check.Result{r}
}

// tempSpace: logs, sockets and compiled kernels go there.
func tempSpace(n *Node) []check.Result {
	const id = "disk-space"
	want := uint64(n.Policy.Limit(id)) * mib
	s, err := n.Machine.Space(n.TempDir)
	switch {
	case err != nil:
		return skip(id, n.TempDir+": "+err.Error())
	case s.Free >= want:
		return pass(id)
	}
	return []check.Result{bad(id, fmt.Sprintf("%s has %d MiB free", n.TempDir, s.Free/mib), "clean up, or name another place in TMPDIR")}
}

// slow are variables of debuggers and of workarounds that nobody wants in a long run: DCGM's list, and those of PyTorch
// and NCCL. The value is what counts as set, "" for any.
var slow = map[string]string{
	"NSIGHT_CUDA_DEBUGGER": "", "CUDA_INJECTION32_PATH": "", "CUDA_INJECTION64_PATH": "", "CUDA_AUTO_BOOST": "",
	"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "", "CUDA_COREDUMP_FILE": "", "CUDA_DEVICE_WAITS_ON_EXCEPTION": "", "CUDA_PROFILE": "",
	"COMPUTE_PROFILE": "", "OPENCL_PROFILE": "",
	"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "TRACE",
}

func environment(n *Node) []check.Result {
	const id = "bad-env"
	var found []string
	for name, value := range slow {
		if text, set := n.Lookup(name); set && text != "" && (value == "" || strings.EqualFold(text, value)) {
			found = append(found, name+"="+text)
		}
	}
	if found == nil {
		return pass(id)
	}
	slices.Sort(found)
	return []check.Result{bad(id, strings.Join(found, ", "), "unset what this job does not need")}
}
