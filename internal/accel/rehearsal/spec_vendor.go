package rehearsal

import (
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"muster/internal/accel"
)

// defaultDriver is the version of NVIDIA's driver that a spec does not give.
const defaultDriver = "550.54.15"

// nvidiaKeys are those of a node's section that say what NVIDIA's devices alone have.
var nvidiaKeys = []string{"driver", "nvlinks", "mig"}

// vendor reads whose devices a node has. A node of another vendor than that of the defaults takes from these nothing
// that belongs to a vendor: an H100's faults and variables are not those of an MI300X.
func (r *specReader) vendor(keys map[string]*yaml.Node, where string, s *nodeSpec) {
	if v, ok := keys["vendor"]; ok {
		was := s.vendor
		if word, ok := r.text(v, where+".vendor", maxModelLen); !ok {
			s.vendor = nil
		} else if s.vendor = vendorNamed(word); s.vendor == nil {
			r.add(v.Line, "%s.vendor: unknown vendor %s (known: %s)", where, quote(word), strings.Join(vendorNames(), ", "))
		}
		if s.vendor != was {
			s.model, s.driver, s.nvlinks, s.mig, s.visible, s.faults = "", defaultDriver, 0, nil, nil, nil
		}
	}
	for _, key := range nvidiaKeys {
		if v, ok := keys[key]; ok && !s.madeBy(nvidia...) {
			r.add(v.Line, "%s.%s is for vendor nvidia, and this is %s", where, key, s.vendor.Name)
		}
	}
}

// madeBy reports whether the node's vendor is one of names. One that is unknown has been told, and is no reason for
// more complaints.
func (s *nodeSpec) madeBy(names ...string) bool {
	return s.vendor == nil || slices.Contains(names, s.vendor.Name)
}

// modelName is what the node's devices are called.
func (s *nodeSpec) modelName() string {
	if s.model != "" {
		return s.model
	}
	device := strings.LastIndexByte(s.vendor.Title, ' ') + 1
	return s.vendor.Title[:device] + "Fake " + s.vendor.Title[device:]
}

// visible reads the visibility variables of a vendor; of any where it is unknown.
func (r *specReader) visible(n *yaml.Node, where string, v *accel.VendorInfo) map[string]string {
	where += ".visible"
	vars := map[string]string{}
	for _, e := range r.entries(n, where) {
		switch {
		case v != nil && !slices.Contains(v.Variables, e.key):
			r.add(e.line, "%s: %s is no visibility variable of %s (known: %s)", where, quote(e.key), v.Name,
				strings.Join(v.Variables, ", "))
		default:
			vars[e.key], _ = r.text(e.value, where+"."+e.key, maxMaskLen) // the problem is noted
		}
	}
	return vars
}

// isMask reports whether a variable is a visibility variable of any vendor.
func isMask(name string) bool {
	return slices.ContainsFunc(vendors(), func(v accel.VendorInfo) bool { return slices.Contains(v.Variables, name) })
}

// vendors are all that a node's devices can be of, the first one by default.
var vendors = sync.OnceValue(accel.Vendors)

// vendorNamed returns the vendor of that name, nil where there is none.
func vendorNamed(name string) *accel.VendorInfo {
	if i := slices.IndexFunc(vendors(), func(v accel.VendorInfo) bool { return v.Name == name }); i >= 0 {
		return &vendors()[i]
	}
	return nil
}

func vendorNames() []string {
	names := make([]string, len(vendors()))
	for i, v := range vendors() {
		names[i] = v.Name
	}
	return names
}
