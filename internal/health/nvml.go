package health

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/internal/check"
	"muster/internal/lazyregexp"
)

// gpu is an NVIDIA GPU that the job will use, by files and by NVML.
type gpu struct {
	dev accel.Device
	*nvline.GPU
	n *Node
}

// nvidia returns what files say of NVIDIA's GPUs.
func (n *Node) nvidia() accel.Family {
	for _, f := range n.Inventory.Families {
		if f.Vendor == "nvidia" {
			return f
		}
	}
	return accel.Family{}
}

// ofJob are the devices that a worker sees, or all usable ones where that is undecided. What a mask hides belongs to
// another job, whose business it is.
func ofJob(f accel.Family) []accel.Device {
	if len(f.Visible) == 0 && (f.Undecided != nil || f.VisibleCount > 0) {
		return f.Devices
	}
	return f.Visible
}

// gpusOfJob joins files and NVML. Where files show no GPU (WSL), NVML's are taken.
func (n *Node) gpusOfJob() []gpu {
	f := n.nvidia()
	var list []gpu
	for _, d := range ofJob(f) {
		list = append(list, gpu{d, n.find(d), n})
	}
	if len(f.Devices)+len(f.Unusable) == 0 && n.NVML != nil {
		for i := range n.NVML.GPUs {
			g := &n.NVML.GPUs[i]
			list = append(list, gpu{accel.Device{Index: g.Index, BusID: g.BDF, UUID: g.UUID, Vendor: "nvidia", NUMANode: -1}, g, n})
		}
	}
	return list
}

// find returns what NVML says of a device; a sandbox without a PCI bus tells the number of its node alone.
func (n *Node) find(d accel.Device) *nvline.GPU {
	if n.NVML == nil {
		return nil
	}
	if g := n.NVML.Find(d.BusID, d.UUID); g != nil || d.BusID != "" || d.UUID != "" {
		return g
	}
	i := slices.IndexFunc(n.NVML.GPUs, func(g nvline.GPU) bool { return g.Minor != nil && *g.Minor == d.Minor })
	if i < 0 {
		return nil
	}
	return &n.NVML.GPUs[i]
}

// noNVML says why NVML tells nothing at all, "" where it tells something.
func (n *Node) noNVML() string {
	switch {
	case len(n.gpus) == 0 && len(n.nvidia().Devices) > 0:
		return "the job sees no NVIDIA GPU"
	case len(n.gpus) == 0 && n.NVMLErr == nil:
		return "no NVIDIA GPU was found"
	case n.NVMLErr != nil:
		return n.NVMLErr.Error()
	case n.NVML == nil:
		return "NVML was not asked"
	case n.NVML.Fatal != nil:
		return n.NVML.Fatal.String()
	}
	return ""
}

// na says why NVML does not tell a value.
func (g *gpu) na(field string) string {
	if g.RC == nvline.ResetRequired {
		return "it needs a reset first"
	}
	for _, na := range g.n.NVML.NA {
		if na.GPU != g.Index || na.Field != field {
			continue
		}
		switch na.Why {
		case nvline.WhySymbol:
			return "the driver's library is too old to tell"
		case nvline.WhyNotSupported:
			return "the GPU does not support it"
		case nvline.WhyNoPermission:
			return "no permission to ask"
		default:
			return na.Why
		}
	}
	switch {
	case g.n.NVML.SMI:
		return "nvidia-smi does not tell"
	case !g.n.NVML.Complete:
		return "the NVML probe did not come to it"
	default:
		return "the driver does not tell"
	}
}

// eachGPU judges the GPUs of the job by what NVML says. look gives what is wrong a Reason, and returns why a GPU cannot
// be judged, "" where it can.
func (n *Node) eachGPU(id, try string, look func(*gpu, *check.Result) (unknown string)) []check.Result {
	if why := n.noNVML(); why != "" {
		return skip(id, why)
	}
	t := newTally(id, "GPU", len(n.gpus))
	for i := range n.gpus {
		g := &n.gpus[i]
		r := bad(id, "", try)
		r.Subject, r.Source = subject(g.dev), "L1"
		var why string
		switch {
		case g.GPU == nil:
			why = "NVML did not tell of it"
		case g.RC != 0 && g.RC != nvline.ResetRequired:
			why = "NVML cannot ask it"
		default:
			why = look(g, &r)
		}
		t.add(g.dev.Index, r, why)
	}
	return t.results()
}

// driverLoaded: there are NVIDIA GPUs on the bus, none can be used, and the driver's folder is missing; or NVML says
// so.
func driverLoaded(n *Node) []check.Result {
	const id, try = "driver-not-loaded", "load the nvidia module; in a container, run it with the NVIDIA runtime"
	f := n.nvidia()
	if len(f.Devices)+len(f.Unusable) == 0 {
		return skip(id, "no NVIDIA GPU was found")
	}
	if n.NVML != nil && n.NVML.Fatal != nil && n.NVML.Fatal.RC == nvline.DriverNotLoaded {
		r := bad(id, n.NVML.Fatal.String(), try)
		r.Source = "L1"
		return []check.Result{r}
	}
	if _, err := fs.Stat(n.Root, "proc/driver/nvidia/version"); err != nil && len(f.Devices) == 0 {
		return []check.Result{bad(id, "there are NVIDIA GPUs on the bus, and no /proc/driver/nvidia/version", try)}
	}
	return pass(id)
}

var driverVersion = lazyregexp.New(`\s(\d{3,}\.\d+(?:\.\d+)?)\s`)

// moduleVersion is the version of NVIDIA's kernel module, "" where it does not tell.
func (n *Node) moduleVersion() string {
	text, err := fs.ReadFile(n.Root, "proc/driver/nvidia/version")
	first, _, _ := strings.Cut(string(text), "\n")
	if found := driverVersion().FindStringSubmatch(first + " "); err == nil && found != nil {
		return found[1]
	}
	return ""
}

// driverMismatch: the driver was updated under a running module, or a container has brought another library. NVML
// refuses to start then (return code 18); its own version, less CUDA's in front, says the same where it does start.
func driverMismatch(n *Node) []check.Result {
	const id, try = "driver-mismatch", "reboot the node, or restart the container toolkit"
	result := func(reason string) []check.Result {
		r := bad(id, reason, try)
		r.Source = "L1"
		return []check.Result{r}
	}
	if n.NVML != nil && n.NVML.Fatal != nil && n.NVML.Fatal.RC == nvline.VersionMismatch {
		reason := "driver and library differ"
		if module := n.moduleVersion(); module != "" {
			reason += ": the module is " + module
		}
		return result(reason)
	}
	if why := n.noNVML(); why != "" {
		return skip(id, why)
	}
	_, library, _ := strings.Cut(n.NVML.Sys.NVML, ".")
	module := n.moduleVersion()
	switch {
	case module == "" || library == "":
		return skip(id, "the version of the module or of the library is not known")
	case module != library:
		return result(fmt.Sprintf("the module is %s, and the library %s", module, library))
	}
	return pass(id)
}

// driverHung: whatever blocks NVML blocks training, too.
func driverHung(n *Node) []check.Result {
	const id = "gpu-driver-hung"
	switch {
	case n.NVML == nil:
		return skip(id, n.noNVML())
	case n.NVML.Hung:
		r := bad(id, n.NVML.Err().Error(), "reset the GPU that the call was about, or reboot the node")
		r.Source = "L1"
		return []check.Result{r}
	case !n.NVML.Complete:
		return skip(id, n.NVML.Err().Error())
	}
	return pass(id)
}

// notInjected: a container that was started without the driver's utilities counts GPUs, and cannot tell how they are.
func notInjected(n *Node) []check.Result {
	const id = "nvml-not-injected"
	switch {
	case n.NVML == nil:
		return skip(id, n.noNVML())
	case len(n.nvidia().Devices) == 0:
		return skip(id, "no NVIDIA GPU can be used")
	case n.NVML.Fatal != nil && n.NVML.Fatal.RC == nvline.LibraryNotFound && n.NVML.NoSMI:
		r := bad(id, "there are GPUs, and neither libnvidia-ml.so.1 nor nvidia-smi", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
		r.Source = "L1"
		return []check.Result{r}
	}
	return pass(id)
}

// lost: by NVML, by what the bus shows, or by an error 79 in the kernel log. A GPU that nobody may use any more counts
// too.
func lost(n *Node) []check.Result {
	const id, try = "gpu-lost", "reset the GPU or reboot the node"
	results := n.eachDevice(id, try, func(d accel.Device, r *check.Result) {
		r.Reason = d.Lost
		if d.Vendor != "nvidia" {
			return
		}
		if g := n.find(d); g != nil && g.RC == nvline.GPULost {
			r.Source, r.Reason = "L1", fmt.Sprintf("NVML has lost it in %s", g.Call)
		}
		for _, x := range n.xids {
			if x.code == fellOff && x.of(d) && r.Reason == "" {
				r.Source, r.Reason = "log", x.String()
			}
		}
	})
	if len(results) == 1 && results[0].Status == check.Pass && n.NVML != nil {
		for _, g := range n.NVML.GPUs { // a handle that was refused has no address: nobody can tell whose it is
			if g.RC == nvline.GPULost && g.BDF == "" && g.UUID == "" {
				r := bad(id, fmt.Sprintf("NVML has lost its GPU %d in %s", g.Index, g.Call), try)
				r.Source = "L1"
				return []check.Result{r}
			}
		}
	}
	return results
}

// resetRequired: NVML refuses a GPU with code 16, or names what helps (field 230, drivers of r570 and later).
func resetRequired(n *Node) []check.Result {
	actions := map[int]string{
		1: "reset it", 2: "reboot the node", 3: "drain its P2P traffic", 4: "drain and reset it",
		5: "recover its IMEX domain",
	}
	return n.eachGPU("gpu-reset-required", "", func(g *gpu, r *check.Result) string {
		switch {
		case g.RC == nvline.ResetRequired:
			r.Reason, r.Try = "NVML asks for a reset in "+g.Call, actions[1]
		case g.Recovery == nil:
			return g.na("recovery_action")
		case *g.Recovery != 0:
			action, known := actions[*g.Recovery]
			if !known {
				action = fmt.Sprintf("see the driver's recovery action %d", *g.Recovery)
			}
			r.Reason, r.Try = "the driver wants something done", action
			if a := *g.Recovery; a != 1 && a != 2 && a != 4 {
				r.Status = check.Warn
			}
		}
		return ""
	})
}

// missing: on the bus, with the driver and a usable node, and not among NVML's.
func missing(n *Node) []check.Result {
	const id = "gpu-missing"
	if why := n.noNVML(); why != "" {
		return skip(id, why)
	}
	if !n.NVML.Complete {
		return skip(id, n.NVML.Err().Error())
	}
	var results []check.Result
	refused := slices.ContainsFunc(n.NVML.GPUs, func(g nvline.GPU) bool { return g.BDF == "" && g.UUID == "" })
	for _, d := range n.nvidia().Devices {
		if n.find(d) != nil || refused && d.Lost != "" {
			continue
		}
		r := bad(id, fmt.Sprintf("NVML counts %d GPUs, and this one is not among them", n.NVML.Count),
			"does the kernel log say why? reset it or reboot the node")
		r.Subject, r.Source = subject(d), "L1"
		results = append(results, r)
	}
	switch {
	case refused && results != nil:
		return skip(id, "NVML refuses a GPU without naming it: gpu-lost and gpu-reset-required tell")
	case results == nil:
		return pass(id)
	}
	return results
}
