package accel

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"muster/internal/wording"
)

const nvidiaCapabilities = "proc/driver/nvidia/capabilities"

// Instance is a MIG compute instance of an NVIDIA GPU that is divided. A CUDA process uses one of them.
type Instance struct {
	GPUInstance, ComputeInstance int    // as the driver numbers them on their GPU
	Node                         string // "/dev/nvidia-caps/nvidia-cap30"; "" where the driver does not tell
	WhyNot                       string // why this process may not use it; "" where it may
	// Mask is the CUDA_VISIBLE_DEVICES of a process that is to use it, in the spelling that needs no library
	// ("MIG-GPU-<uuid>/<gpu instance>/<compute instance>"); "" where the GPU's UUID is unknown.
	Mask string
}

// findMIG lists the instances of each GPU in /proc/driver/nvidia/capabilities (NVIDIA MIG user guide, "Device nodes and
// capabilities"). A divided GPU counts as one device, as PyTorch counts it: a CUDA process can use one instance unless
// a mask names others. Workers counts instances for "auto".
func (s *nvidiaScan) findMIG() {
	for i := range s.Devices {
		d := &s.Devices[i]
		mig := fmt.Sprintf("%s/gpu%d/mig", nvidiaCapabilities, d.Minor)
		entries, _ := fs.ReadDir(s.root, mig) // no folder: no MIG
		divided := false
		for _, e := range entries {
			gi, ok := number(e.Name(), "gi")
			if !ok {
				continue
			}
			divided = true
			d.Instances = append(d.Instances, s.instances(path.Join(mig, e.Name()), gi, d.UUID)...)
		}
		slices.SortFunc(d.Instances, func(a, b Instance) int {
			return cmp.Or(cmp.Compare(a.GPUInstance, b.GPUInstance), cmp.Compare(a.ComputeInstance, b.ComputeInstance))
		})
		if divided {
			d.Divided = true
			s.note("GPU %d is divided into MIG instances: it counts as one device", d.Index)
			s.note("GPU %d: this process may use %d of %s",
				d.Index, len(d.usableInstances()), wording.Plural(len(d.Instances), "MIG compute instance"))
		}
	}
}

// instances lists the compute instances of the GPU instance in dir. A process needs the nodes of both.
func (s *nvidiaScan) instances(dir string, gi int, uuid string) []Instance {
	entries, _ := fs.ReadDir(s.root, dir)
	_, outer := s.capability(dir)
	var list []Instance
	for _, e := range entries {
		ci, ok := number(e.Name(), "ci")
		if !ok {
			continue
		}
		in := Instance{GPUInstance: gi, ComputeInstance: ci}
		in.Node, in.WhyNot = s.capability(path.Join(dir, e.Name()))
		in.WhyNot = cmp.Or(outer, in.WhyNot)
		if uuid != "" {
			in.Mask = fmt.Sprintf("MIG-%s/%d/%d", uuid, gi, ci)
		}
		list = append(list, in)
	}
	return list
}

// capability returns the device node that the file access in dir names, and why this process may not use it. Such nodes
// are for reading only.
func (s *nvidiaScan) capability(dir string) (node, whyNot string) {
	text, err := readText(s.root, path.Join(dir, "access"))
	if err != nil {
		return "", fmt.Sprintf("/%s/access %s", dir, cause(err))
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 20)
		if strings.TrimSpace(key) != "DeviceFileMinor" || err != nil {
			continue
		}
		name := fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", n)
		if err := s.root.Readable(name); err != nil {
			return "/" + name, fmt.Sprintf("/%s %s", name, strings.Replace(cause(err), "read and written", "read", 1))
		}
		return "/" + name, ""
	}
	return "", fmt.Sprintf("/%s/access names no device", dir)
}

func (d *Device) usableInstances() []Instance {
	return slices.DeleteFunc(slices.Clone(d.Instances), func(in Instance) bool { return in.WhyNot != "" })
}
