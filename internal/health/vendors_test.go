package health

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/check"
)

// vendorSpec is a healthy node with devices of a vendor.
func vendorSpec(vendor, added string) string {
	return "version: 1\ndefaults:\n  vendor: " + vendor + "\n  count: 4\n  numa: [0, 0, 1, 1]\n  shm_mib: 2048" + added + "\n"
}

// TestFaultsOfVendors: what the bus shows is judged for all vendors, what AMD's driver counts for AMD, and what the
// vendors' tools say for those that have such.
func TestFaultsOfVendors(t *testing.T) {
	for _, v := range accel.Vendors() {
		if v.Name == "nvidia" {
			continue // its faults are in pairs
		}
		faults := map[string]string{
			"": "", "gpu-lost, gpu: 1": "gpu-lost", "node-denied, gpu: 1": "gpu-node",
			"pcie-width, gpu: 1": "pcie-width", "acs-on, gpu: 1": "acs-on",
		}
		if v.Name == "amd" {
			faults["ecc-uncorrectable, gpu: 1, value: 0"] = ""
			faults["ecc-uncorrectable, gpu: 1, value: 3"] = "ecc-uncorrectable"
			faults["busy, gpu: 1, mib: 1631"] = "" // 2 % of 81559
			faults["busy, gpu: 1, mib: 1632"] = "gpu-busy"
			faults["heterogeneous, gpu: 1, model: AMD Instinct MI210"] = "gpu-heterogeneous"
		}
		passed := map[string][]string{
			"amd": {"ecc-uncorrectable", "gpu-busy", "gpu-heterogeneous"}, "ascend": {"device-health", "device-network"},
			"gaudi": {"remap-pending"}, "metax": {"ecc-uncorrectable", "retired-many", "device-link"},
		}
		maps.Copy(faults, map[string]map[string]string{
			"ascend": {
				"unhealthy, gpu: 1, value: ok": "", "unhealthy, gpu: 1": "device-health",
				"unhealthy, gpu: 3, value: General_warning": "device-health",
				"unhealthy, gpu: 1, value: NA":              "", "unhealthy, gpu: 1, value: 'see the manual of this product, page 3'": "",
				"net-down, gpu: 3": "device-network", "tools-missing": "",
			},
			"gaudi": {"remap-pending, gpu: 2": "remap-pending", "remap-pending, gpu: 2, value: 0": "", "tools-missing": ""},
			"metax": {
				"ecc-uncorrectable, gpu: 1, value: 0": "", "ecc-uncorrectable, gpu: 1, value: 1": "ecc-uncorrectable",
				"retired-many, gpu: 1, value: 59": "", "retired-many, gpu: 1, value: 60": "retired-many",
				"link-down, gpu: 2": "device-link", "link-down, gpu: 2, value: 7": "device-link", "tools-missing": "",
			},
		}[v.Name])
		for kind, want := range faults {
			added := ""
			if kind != "" {
				added = fault(kind)
			}
			results := fakeNode(t, vendorSpec(v.Name, added)).Check()
			var expected []string
			if want != "" {
				expected = []string{want}
			}
			if d := cmp.Diff(expected, spoken(results)); d != "" {
				t.Errorf("%s with %q: who speaks up (-want +got)\n%s%+v", v.Name, kind, d, results)
			}
			if kind == "" {
				for _, id := range passed[v.Name] {
					if got := statusOf(t, results, id); got != check.Pass {
						t.Errorf("%s: %v", id, got)
					}
				}
			}
		}
	}
}
