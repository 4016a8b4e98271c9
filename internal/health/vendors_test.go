package health

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/check"
)

// vendorSpec is a healthy node with devices of a vendor.
func vendorSpec(vendor, added string) string {
	return "version: 1\ndefaults:\n  vendor: " + vendor + "\n  count: 4\n  numa: [0, 0, 1, 1]\n  shm_mib: 2048" + added + "\n"
}

// TestFaultsOfVendors: what the bus shows is judged for all vendors, and what AMD's driver counts for AMD.
func TestFaultsOfVendors(t *testing.T) {
	for _, v := range accel.Vendors() {
		if v.Name == "nvidia" {
			continue // its faults are in pairs
		}
		faults := map[string]string{"": "", "gpu-lost, gpu: 1": "gpu-lost", "node-denied, gpu: 1": "gpu-node", "pcie-width, gpu: 1": "pcie-width", "acs-on, gpu: 1": "acs-on"}
		if v.Name == "amd" {
			faults["ecc-uncorrectable, gpu: 1, value: 0"] = ""
			faults["ecc-uncorrectable, gpu: 1, value: 3"] = "ecc-uncorrectable"
			faults["busy, gpu: 1, mib: 1631"] = "" // 2 % of 81559
			faults["busy, gpu: 1, mib: 1632"] = "gpu-busy"
			faults["heterogeneous, gpu: 1, model: AMD Instinct MI210"] = "gpu-heterogeneous"
		}
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
			if kind == "" && v.Name == "amd" {
				for _, id := range []string{"ecc-uncorrectable", "gpu-busy", "gpu-heterogeneous"} {
					if got := statusOf(t, results, id); got != check.Pass {
						t.Errorf("%s: %v", id, got)
					}
				}
			}
		}
	}
}
