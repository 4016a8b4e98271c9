package health

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/internal/check"
	"muster/internal/lazyregexp"
)

// The lines that NVIDIA's drivers write, as gpud, DCGM and node-problem detectors read them. The address of an Xid has
// no function digit.
var (
	xidLine  = lazyregexp.New(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\).*?: (\d+)(?:,|$)`)
	lostLine = lazyregexp.New(
		`NVRM: .*GPU (?:at )?(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?.*fallen off the bus`)
	switchLine = lazyregexp.New(`SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:,|$)`)
)

// fellOff is the error of a GPU that does not answer any more; gpu-lost tells of it.
const fellOff = 79

// xid is an error of a GPU, or of an NVSwitch, of which the kernel log tells.
type xid struct {
	code   int
	bus    string // "0000:1b:00", without the function
	ofNV   bool   // an NVSwitch's
	text   string // the latest line
	latest time.Duration
	count  int
}

// of reports whether the error is about a device.
func (x xid) of(d accel.Device) bool {
	at, _, _ := strings.Cut(d.BusID, ".")
	return !x.ofNV && at != "" && at == x.bus
}

func (x xid) String() string {
	kind := "Xid"
	if x.ofNV {
		kind = "SXid"
	}
	times := ""
	if x.count > 1 {
		times = fmt.Sprintf(" %d times, the latest", x.count)
	}
	return fmt.Sprintf("%s %d%s %v ago: %s", kind, x.code, times, x.latest.Round(time.Second), x.text)
}

// longestLine is how much of a line of the kernel log is repeated, in bytes.
const longestLine = 200

// clean makes a line of the log safe to show.
func clean(text string) string {
	if len(text) > longestLine {
		text = text[:longestLine] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// recent are the lines that the limit of the check xid lets count.
func (n *Node) recent() []LogLine {
	back := time.Duration(n.Policy.Limit("xid")) * time.Hour
	return slices.DeleteFunc(slices.Clone(n.log.Lines), func(l LogLine) bool { return l.Age > back })
}

// findXIDs collects the errors of GPUs and switches in the kernel log, one for each place and number.
func (n *Node) findXIDs() []xid {
	var list []xid
	add := func(x xid) {
		i := slices.IndexFunc(list, func(o xid) bool { return o.code == x.code && o.bus == x.bus && o.ofNV == x.ofNV })
		if i < 0 {
			list = append(list, x)
			return
		}
		x.count += list[i].count // the log is oldest first
		list[i] = x
	}
	for _, l := range n.recent() {
		if found := xidLine().FindStringSubmatch(l.Text); found != nil {
			add(xid{code: xidNumber(found[2]), bus: busOf(found[1]), text: clean(l.Text), latest: l.Age, count: 1})
		} else if found := switchLine().FindStringSubmatch(l.Text); found != nil {
			add(xid{code: xidNumber(found[2]), bus: busOf(found[1]), ofNV: true, text: clean(l.Text), latest: l.Age, count: 1})
		} else if found := lostLine().FindStringSubmatch(l.Text); found != nil {
			add(xid{code: fellOff, bus: busOf(found[1]), text: clean(l.Text), latest: l.Age, count: 1})
		}
	}
	slices.SortStableFunc(list, func(a, b xid) int { return cmp.Compare(a.bus, b.bus) })
	return list
}

// xidNumber reads digits; a number that no driver has is an unknown error.
func xidNumber(digits string) int {
	code, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return code
}

// busOf spells an address of the log as sysfs does, without the function.
func busOf(address string) string {
	at, _, _ := strings.Cut(nvline.NormalBDF(address), ".")
	return at
}

// What errors mean: where DCGM, gpud, Azure and NVIDIA's own catalogue agree that a reset or a reboot is due, they
// fail; 109 by NVIDIA's table alone. Those of the application, and those that NVIDIA says to ignore, say nothing of the
// node. A policy's xids replace this.
var (
	xidFatal = []int{46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158}
	xidFine  = []int{8, 11, 13, 31, 32, 37, 38, 39, 43, 44, 45, 66, 67, 68, 69, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
)

// newAction is what error 154 says: the recovery action has changed.
var newAction = lazyregexp.New(`(?i)\bto 0x[0-9a-f]+ \(([^)]*)\)`)

// verdict is what an error means for the node.
func (n *Node) verdict(x xid) check.Status {
	if own, says := n.Policy.XIDs[x.code]; says && !x.ofNV {
		return own
	}
	switch {
	case x.ofNV && strings.Contains(x.text, ", Fatal"):
		return check.Fail
	case x.ofNV:
		return check.Warn
	case x.code == 154:
		action := newAction().FindStringSubmatch(x.text)
		if action == nil {
			return check.Warn
		}
		words := strings.ToLower(action[1])
		switch {
		case strings.Contains(words, "reset"), strings.Contains(words, "reboot"), strings.Contains(words, "drain"):
			return check.Fail
		case words == "none":
			return check.Pass
		}
		return check.Warn
	case x.code >= 144 && x.code <= 150: // of NVLink 5: each line says which it is
		if strings.Contains(x.text, " Fatal ") {
			return check.Fail
		}
		return check.Warn
	case slices.Contains(xidFatal, x.code):
		return check.Fail
	case slices.Contains(xidFine, x.code):
		return check.Pass
	}
	return check.Warn
}

// xidCheck judges the errors in the kernel log.
func xidCheck(n *Node) []check.Result {
	const id = "xid"
	f := n.nvidia()
	if len(f.Devices)+len(f.Unusable) == 0 {
		return skip(id, "no NVIDIA GPU was found")
	}
	if n.noLog != nil {
		return fromLog(skip(id, "kmsg-unreadable: "+n.noLog.Error()))
	}
	var results []check.Result
	for _, x := range n.xids {
		status := n.verdict(x)
		if status == check.Pass || x.code == fellOff && !x.ofNV {
			continue
		}
		r := bad(id, x.String(), "see NVIDIA's catalogue of Xid errors")
		r.Status, r.Value = status, strconv.Itoa(x.code)
		r.Subject = check.Subject{BusID: x.bus}
		if i := slices.IndexFunc(f.Devices, x.of); i >= 0 {
			if r.Subject = subject(f.Devices[i]); !n.ofJob(i) {
				continue
			}
		} else if slices.ContainsFunc(f.Unusable, x.of) {
			continue // another container's, or another driver's
		}
		results = append(results, r)
	}
	if results == nil {
		results = pass(id)
	}
	return fromLog(results)
}

// ofJob reports whether the job uses the NVIDIA GPU of an index.
func (n *Node) ofJob(index int) bool {
	return slices.ContainsFunc(n.gpus, func(g gpu) bool { return g.dev.Index == index })
}

func fromLog(results []check.Result) []check.Result {
	for i := range results {
		results[i].Source = "log"
	}
	return results
}

// complaints are of what lies between the GPUs of a cluster; the words are those of the drivers mlx5 and
// nvidia-peermem.
var complaints = []func() *regexp.Regexp{
	lazyregexp.New(`mlx5.*Detected insufficient power on the PCIe slot`),
	lazyregexp.New(`Port module event.*High Temperature`),
	lazyregexp.New(`nvidia-peermem.*ERROR detected invalid context`),
}

func kernelComplaints(n *Node) []check.Result {
	const id = "kernel-log"
	n.readLog()
	if n.noLog != nil {
		return fromLog(skip(id, "kmsg-unreadable: "+n.noLog.Error()))
	}
	var results []check.Result
	for _, c := range complaints {
		count := 0
		var latest LogLine
		for _, l := range n.recent() {
			if c().MatchString(l.Text) {
				latest = l
				count++
			}
		}
		if count > 0 {
			results = append(results,
				bad(id, fmt.Sprintf("%d times, the latest %v ago: %s", count, latest.Age.Round(time.Second), clean(latest.Text)), ""))
		}
	}
	if results == nil {
		results = pass(id)
	}
	return fromLog(results)
}
