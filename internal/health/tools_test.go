package health

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/accel/probe"
	"muster/internal/check"
)

// saying is a healthy node of two devices of a vendor whose tools say this to these questions, and nothing else.
func saying(t *testing.T, vendor, added string, said map[string]probe.Answer) (*Node, *[]string) {
	t.Helper()
	n := fakeNode(t, "version: 1\ndefaults:\n  vendor: "+vendor+"\n  count: 2\n  numa: [0, 1]\n  shm_mib: 2048"+added+"\n")
	asked := &[]string{}
	n.Tool = func(tool string, args ...string) probe.Answer {
		question := strings.Join(append([]string{tool}, args...), " ")
		*asked = append(*asked, question)
		if a, ok := said[question]; ok {
			return a
		}
		return probe.Answer{Why: "nobody knows " + question}
	}
	return n, asked
}

// oneChip and twoChips are maps of npu-smi: of cards with a chip each, as release 22 writes it, and with two as release
// 25 does.
const (
	oneChip = `        NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
        0                              0                              0                              Ascend 910B
        0                              1                              -                              Mcu
        8                              0                              1                              Ascend 910B
        8                              1                              -                              Mcu
`
	twoChips = `	NPU ID                         Chip ID                        Chip Logic ID                  ` +
		`Chip Phy-ID                    Chip Name
	4                              0                              0                              0                              Ascend910
	4                              1                              1                              1                              Ascend910
	4                              2                              -                              -                              Mcu
`
)

// TestToolTexts: what each text of a tool becomes. GPU 1 alone says it; where a text is about both, GPU 0 is well.
func TestToolTexts(t *testing.T) {
	const pass, warn, fail, skip = check.Pass, check.Warn, check.Fail, check.Skip
	health := func(text string) map[string]string {
		return map[string]string{
			"npu-smi info -m": oneChip, "npu-smi info -t health -i 0": "Health : OK",
			"npu-smi info -t health -i 8": text,
		}
	}
	network := func(text string) map[string]string {
		return map[string]string{"hccn_tool -i 0 -link -g": "link status: UP", "hccn_tool -i 1 -link -g": text}
	}
	rows := func(text string) map[string]string {
		return map[string]string{
			"hl-smi -i 0000:10:00.0 -q -d ROW_REPLACEMENT": "Row Replacement\n  Pending : No\n",
			"hl-smi -i 0000:11:00.0 -q -d ROW_REPLACEMENT": text,
		}
	}
	const ecc0 = "Attached GPUs : 2\nGPU#0  MXC500  0000:10:00.0\n    ECC Errors\n        SRAM Uncorrectable : 0\n    Retired Pages\n" +
		"        Double Bit ECC : 0\n"
	ecc := func(text string) map[string]string { return map[string]string{"mx-smi --count-ecc": ecc0 + text} }
	const links0 = "GPU#0  MXC500  0000:10:00.0\n  port 0 : up\n  port 1 : UP\n"
	links := func(text string) map[string]string {
		return map[string]string{"mx-smi mxlk --show-state": links0 + text}
	}
	const gpu1 = "GPU#1  MXC500  0000:11:00.0\n"
	for name, c := range map[string]struct {
		vendor, id string
		said       map[string]string
		want       check.Status
		reason     string // is in the reason
	}{
		"health": {
			"ascend", "device-health",
			health("\tHealth Status                  : OK\n\tError Code                     : NA\n\tError Information              : NA\n"),
			pass, "",
		},
		"health in a frame": {"ascend", "device-health", health("+-----+\n| Health   :   ok |\n+=====+\n"), pass, ""},
		"health of two": {
			"ascend", "device-health", health("Health Status : OK\nHealth Status : Alarm"), fail,
			"npu-smi calls its health Alarm",
		},
		"sick, one not known": {"ascend", "device-health", health("Health : Critical\nHealth : NA"), fail, "Critical"},
		"alarm": {
			"ascend", "device-health",
			health("HEALTH STATUS : Alarm\nError Code : 80E01801\nError Information : HBM\x1b[2J fails\n"), fail,
			"npu-smi calls its health Alarm, error code 80E01801, error information HBM [2J fails",
		},
		"health not told": {
			"ascend", "device-health", health("Health : NA"), skip,
			"what npu-smi info -t health -i 8 says is not understood: Health : NA",
		},
		"health half told": {"ascend", "device-health", health("Health : OK\nHealth : Unknown"), skip, "not understood"},
		"a sentence for health": {
			"ascend", "device-health", health("Health : this product has another command for it"), skip,
			"not understood: Health : this product",
		},
		"health as a number": {"ascend", "device-health", health("Health : 3"), skip, "not understood"},
		"garbage": {
			"ascend", "device-health", health("\x00\xff\x1b[31mfoo\nbar\n" + strings.Repeat("z", 1<<17)), skip,
			`not understood: \x00\xff\x1b[31mfoo bar zzz`,
		},
		"nothing":             {"ascend", "device-health", health(" \n"), skip, "npu-smi info -t health -i 8 says nothing"},
		"another word":        {"ascend", "device-health", health("Healthiness : OK"), skip, "not understood"},
		"the map is not told": {"ascend", "device-health", nil, skip, "nobody knows npu-smi info -m"},
		"the map is another": {
			"ascend", "device-health",
			map[string]string{"npu-smi info -m": "NPU ID  Chip ID  Device ID  Chip Logic ID  Chip Name\n0 0 7 1 x\n"},
			skip,
			"npu-smi info -m does not name the NPU of /dev/davinci1",
		},
		"the map repeats itself": {
			"ascend", "device-health",
			map[string]string{"npu-smi info -m": oneChip + oneChip},
			skip,
			"does not name the NPU",
		},
		"two chips": {"ascend", "device-health", map[string]string{
			"npu-smi info -m": twoChips, "npu-smi info -t health -i 4 -c 0": "Health : OK",
			"npu-smi info -t health -i 4 -c 1": "Health : Alarm",
		}, fail, "Alarm"},

		"network": {"ascend", "device-network", network("link status: UP\n"), pass, ""},
		"network down": {
			"ascend", "device-network", network("[device 1]link status: DOWN\n"), warn,
			"the link of its network port is DOWN",
		},
		"network not told": {
			"ascend", "device-network", network("link status: Unknown!\n"), skip,
			"what hccn_tool -i 1 -link -g says is not understood: link status: Unknown!",
		},
		"no network": {"ascend", "device-network", network("Cmd os execute failed!"), skip, "not understood"},

		"rows": {
			"gaudi", "remap-pending",
			rows("[AIP] (accel1) 0000:11:00.0\n    Row Replacement\n        Pending                 : no\n"), pass, "",
		},
		"a row": {
			"gaudi", "remap-pending", rows("Row Replacement:\n  Pending : Yes"), fail,
			"a row is replaced at the next reset",
		},
		"a row in a key": {"gaudi", "remap-pending", rows("Rows pending state : 1"), fail, "a row is replaced"},
		"another thing pending": {
			"gaudi", "remap-pending", rows("ECC Mode\n  Current : Enabled\n  Pending : Yes"), skip,
			"not understood: ECC Mode",
		},
		"a count": {"gaudi", "remap-pending", rows("Rows pending with double bit ECC errors : 1"), skip, "not understood"},
		"rows in another word": {
			"gaudi", "remap-pending", rows("Rows pending : perhaps"), skip,
			"not understood: Rows pending : perhaps",
		},
		"rows are not known": {"gaudi", "remap-pending", nil, skip, "nobody knows hl-smi"},
		"errors": {
			"metax", "ecc-uncorrectable",
			ecc(gpu1 + "    ECC Errors\n        SRAM Uncorrectable : 0\n        DRAM Uncorrectable : 2\n        SRAM Correctable : 9"),
			fail, "2 uncorrected errors",
		},
		"no errors": {
			"metax", "ecc-uncorrectable",
			ecc(gpu1 + "    ECC Errors\n        SRAM Uncorrectable : 0\n        SRAM Correctable : 9"), pass, "",
		},
		"pages are not errors": {
			"metax", "ecc-uncorrectable",
			ecc(gpu1 + "    ECC Errors\n        SRAM Uncorrectable : 0\n    Retired Pages\n        Uncorrectable ECC : 3"), pass, "",
		},
		"not these errors": {
			"metax", "ecc-uncorrectable", ecc(gpu1 + "    ECC Errors\n        SRAM Correctable : 9"), skip,
			"not understood",
		},
		"errors in words": {
			"metax", "ecc-uncorrectable", ecc(gpu1 + "    ECC Errors\n        SRAM Uncorrectable : many"), skip,
			"not understood",
		},
		"errors of none": {
			"metax", "ecc-uncorrectable", ecc(""), skip,
			"device 1: what mx-smi --count-ecc says is not understood: Attached GPUs : 2 GPU#0",
		},
		"errors of another": {
			"metax", "ecc-uncorrectable",
			ecc("GPU#1  MXC500  0000:12:00.0\n    ECC Errors\n        SRAM Uncorrectable : 4"), skip, "device 1: ",
		},
		"pages": {
			"metax", "retired-many",
			ecc(gpu1 + "    Retired Pages\n        Single Bit ECC : 20\n        Double Bit ECC : 40"), fail, "60 pages are retired",
		},
		"some pages": {"metax", "retired-many", ecc(gpu1 + "    Retired Pages\n        Double Bit ECC : 59"), pass, ""},
		"pages are not told": {
			"metax", "retired-many", ecc(gpu1 + "    ECC Errors\n        SRAM Uncorrectable : 0"), skip,
			"device 1: ",
		},
		"a link": {
			"metax", "device-link", links(gpu1 + "  port 0 : up\n  port 1 : down\n"), warn,
			"1 of its links are up, and of another GPU 2",
		},
		"links": {
			"metax", "device-link", links(gpu1 + "  port 3 : Active\n  port 4 : active\n  port 5 : down\n"), pass,
			"",
		},
		"links in numbers": {
			"metax", "device-link", links(gpu1 + "  port 0 : 1\n"), skip,
			"device 1: what mx-smi mxlk --show-state says is not understood",
		},
		"links are not supported": {"metax", "device-link", nil, skip, "nobody knows mx-smi mxlk --show-state"},
	} {
		t.Run(name, func(t *testing.T) {
			said := map[string]probe.Answer{}
			for question, text := range c.said {
				said[question] = probe.Answer{Text: text}
			}
			n, _ := saying(t, c.vendor, "", said)
			results := slices.DeleteFunc(n.CheckDevices(), func(r check.Result) bool { return r.ID != c.id })
			// With a failure of GPU 1, or without knowing it, there may be more to say of GPU 0.
			at := slices.IndexFunc(results, func(r check.Result) bool { return r.Status == c.want && strings.Contains(r.Reason, c.reason) })
			if at < 0 {
				t.Fatalf("no %v with %q: %+v", c.want, c.reason, results)
			}
			if worst := statusOf(t, results, c.id); worst > check.Pass && worst != c.want {
				t.Errorf("%v: %+v", worst, results)
			}
			for _, r := range results {
				if r.Status > check.Pass && (r.Subject.GPU == nil || *r.Subject.GPU != 1 || r.Source != "L1" || r.Try == "") ||
					len(r.Reason) > 400 || strings.ContainsAny(r.Reason, "\x00\x1b\n") {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// TestToolsAreAskedOfTheJobsDevices: of no other, and no tool of another vendor.
func TestToolsAreAskedOfTheJobsDevices(t *testing.T) {
	unique := func(asked []string) []string { return list(asked...) }
	n, asked := saying(t, "ascend", "\n  visible: {ASCEND_RT_VISIBLE_DEVICES: '1'}",
		map[string]probe.Answer{"npu-smi info -m": {Text: oneChip}})
	n.Check()
	if d := cmp.Diff([]string{"hccn_tool -i 1 -link -g", "npu-smi info -m", "npu-smi info -t health -i 8"}, unique(*asked)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	for _, v := range accel.Vendors() {
		n, asked := saying(t, v.Name, "", nil)
		n.Check()
		if tools := map[string]bool{"ascend": true, "gaudi": true, "metax": true}; tools[v.Name] != (len(*asked) > 0) {
			t.Errorf("%s: asked %q", v.Name, *asked)
		}
	}
	// A mask that hides all leaves no job.
	n, asked = saying(t, "ascend", "\n  visible: {ASCEND_RT_VISIBLE_DEVICES: ''}", nil)
	if results := n.Check(); len(*asked) > 0 || statusOf(t, results, "device-health") != check.Skip {
		t.Errorf("asked %q: %+v", *asked, results)
	}
}

// TestToolsOfManyDevices: a text is read once for all devices, as long as a tool may make it.
func TestToolsOfManyDevices(t *testing.T) {
	const devices, lines = 64, 90
	var links, ecc strings.Builder
	for i := range devices {
		fmt.Fprintf(&links, "GPU#%d  MXC500  0000:%02x:00.0\n%s", i, 0x10+i, strings.Repeat("    MetaXLink port 1    : up\n", lines))
		fmt.Fprintf(&ecc, "GPU#%d  MXC500  0000:%02x:00.0\n%s", i, 0x10+i, strings.Repeat("    SRAM Uncorrectable   : 0\n", lines))
	}
	n, _ := saying(t, "metax", "",
		map[string]probe.Answer{"mx-smi mxlk --show-state": {Text: links.String()}, "mx-smi --count-ecc": {Text: ecc.String()}})
	n.Inventory = fakeNode(t, fmt.Sprintf("version: 1\ndefaults: {vendor: metax, count: %d}\n", devices)).Inventory
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	results := n.CheckDevices()
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 20 {
		t.Errorf("%d MiB were allocated for texts of %d KiB and %d KiB", took, links.Len()>>10, ecc.Len()>>10)
	}
	for _, id := range []string{"device-link", "ecc-uncorrectable"} {
		if statusOf(t, results, id) != check.Pass {
			t.Errorf("%s: %+v", id, results)
		}
	}
}

// TestNoToolIsNoHealth: where tools are missing, each of their checks is one SKIP that names the tool.
func TestNoToolIsNoHealth(t *testing.T) {
	for vendor, tools := range map[string]map[string]string{
		"ascend": {"device-health": "npu-smi", "device-network": "hccn_tool"}, "gaudi": {"remap-pending": "hl-smi"},
		"metax": {"ecc-uncorrectable": "mx-smi", "retired-many": "mx-smi", "device-link": "mx-smi"},
	} {
		results := fakeNode(t, vendorSpec(vendor, fault("tools-missing"))).Check()
		for id, tool := range tools {
			of := slices.DeleteFunc(slices.Clone(results), func(r check.Result) bool { return r.ID != id })
			if len(of) != 1 || of[0].Status != check.Skip || of[0].Reason != tool+" cannot be asked: the fake has no "+tool {
				t.Errorf("%s: %+v", id, of)
			}
		}
	}
}

// Whatever a tool prints, it is read or shown.
func FuzzToolTexts(f *testing.F) {
	f.Add(oneChip)
	f.Add(twoChips)
	f.Add("Health : OK\n")
	f.Add("GPU#0  MXC500  0000:10:00.0\n  Retired Pages\n  Double Bit ECC : 0\n port 0 : up\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, e := range entries(text) {
			if e.key == "" || e.value == "" || e.key != strings.ToLower(e.key) {
				t.Errorf("%+v", e)
			}
		}
		davincis(text)
		linksUp(metaxParts(text)["0000:10:00.0"])
		if shown := puzzling("tool", text); len(shown) > 1000 || strings.ContainsAny(shown, "\x00\x1b\n") {
			t.Errorf("%q", shown)
		}
	})
}
