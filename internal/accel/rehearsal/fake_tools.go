package rehearsal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// fakeMetaXLinks is how many links each GPU of a fake MetaX node has, all of them up.
const fakeMetaXLinks = 7

// fakeTools are the tools of vendors by name. Each writes what it says to its arguments; ok is false for those that it
// does not know. The forms are those of documentation, and of what projects that read these tools quote of them.
var fakeTools = map[string]struct {
	vendor string
	say    func(f *Fake, args string) (text string, ok bool)
}{
	"npu-smi":   {"ascend", (*Fake).npuSMI},
	"hccn_tool": {"ascend", (*Fake).hccnTool},
	"hl-smi":    {"gaudi", (*Fake).hlSMI},
	"mx-smi":    {"metax", (*Fake).mxSMI},
}

// Tool is what a vendor's tool says of the fake's devices, and its exit status; ok is false where the node has no such
// tool.
func (f *Fake) Tool(args []string) (text string, status int, ok bool) {
	tool, known := fakeTools[args[0]]
	if !known || tool.vendor != f.spec.vendor.Name || f.spec.has("tools-missing", -1) {
		return "", 0, false
	}
	if text, known = tool.say(f, strings.Join(args[1:], " ")); !known {
		return args[0] + ": invalid arguments\n", 1, true
	}
	return text, 0, true
}

// npuSMI is of NPUs with a chip each, and a controller, which is no device.
func (f *Fake) npuSMI(args string) (string, bool) {
	if args == "info -m" {
		var b strings.Builder
		row := func(cells ...any) { fmt.Fprintf(&b, "\t"+strings.Repeat("%-31v", len(cells))+"\n", cells...) }
		row("NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name")
		for i := range f.spec.count {
			row(i, 0, i, i, "Ascend910")
			row(i, 1, "-", "-", "Mcu")
		}
		return b.String(), true
	}
	i, ok := f.numbered(args, "info -t health -i ", "")
	health, code := f.said("unhealthy", i, "OK"), "NA"
	if health != "OK" {
		code = "80E01801"
	}
	return fmt.Sprintf(
		"\tHealth Status                  : %s\n\tError Code                     : %s\n\tError Information              : NA\n", health,
		code), ok
}

func (f *Fake) hccnTool(args string) (string, bool) {
	i, ok := f.numbered(args, "-i ", " -link -g")
	state := "UP"
	if f.spec.has("net-down", i) {
		state = "DOWN"
	}
	return "link status: " + state + "\n", ok
}

func (f *Fake) hlSMI(args string) (string, bool) {
	address, ok := strings.CutSuffix(args, " -q -d ROW_REPLACEMENT")
	address, named := strings.CutPrefix(address, "-i ")
	i := slices.IndexFunc(f.numbers(), func(i int) bool { return fakeAddress(i) == address })
	pending := "No"
	if f.spec.has("remap-pending", i) {
		pending = "Yes"
	}
	return fmt.Sprintf("[AIP] (accel%d) %s\n\tRow Replacement\n\t\tSingle Bit ECC                 : 0\n"+
		"\t\tDouble Bit ECC                 : 0\n\t\tPending                        : %s\n", i, address, pending), ok && named && i >= 0
}

func (f *Fake) mxSMI(args string) (string, bool) {
	var b strings.Builder
	fmt.Fprintf(&b,
		"mx-smi  version: 2.2.9\n\n=================== MetaX System Management Interface Log ===================\n\n"+
			"Attached GPUs                                     : %d\n", f.spec.count)
	line := func(indent int, key string, value any) {
		fmt.Fprintf(&b, "%*s%-*s: %v\n", indent, "", 50-indent, key, value)
	}
	for i := range f.spec.count {
		fmt.Fprintf(&b, "GPU#%d  MXC500  %s\n", i, fakeAddress(i))
		switch args {
		case "--count-ecc":
			b.WriteString("    ECC Errors\n")
			line(8, "SRAM Correctable", 0)
			line(8, "SRAM Uncorrectable", 0)
			line(8, "DRAM Correctable", 0)
			line(8, "DRAM Uncorrectable", f.spec.fault("ecc-uncorrectable", i, "value", 0))
			b.WriteString("    Retired Pages\n")
			line(8, "Double Bit ECC", f.spec.fault("retired-many", i, "value", 0))
		case "mxlk --show-state":
			down := f.spec.fault("link-down", i, "value", 0)
			for port := range fakeMetaXLinks {
				line(4, fmt.Sprintf("MetaXLink port %d", port+1), map[bool]string{false: "up", true: "down"}[port < down])
			}
		default:
			return "", false
		}
	}
	return b.String() + "\nEnd of Log\n", true
}

// numbered reads the number of a device between two texts; it is -1 where there is none.
func (f *Fake) numbered(args, before, after string) (int, bool) {
	text, begins := strings.CutPrefix(args, before)
	text, ends := strings.CutSuffix(text, after)
	i, err := strconv.Atoi(text)
	if !begins || !ends || err != nil || i < 0 || i >= f.spec.count {
		return -1, false
	}
	return i, true
}

// said is the text that the last fault of a kind gives a device, and otherwise where it has no such fault.
func (f *Fake) said(kind string, gpu int, otherwise string) string {
	for _, x := range slices.Backward(f.spec.faults) {
		if x.kind == kind && x.gpu == gpu {
			return x.text["value"]
		}
	}
	return otherwise
}
