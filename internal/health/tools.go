package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
	"muster/internal/check"
	"muster/internal/printable"
)

// What vendors' own tools say of their devices. The forms are known from documentation and from projects that read
// them, and no tool promises its own: whatever is not understood is a SKIP that shows it, neither a failure nor a pass.

// byTool judges the devices of a vendor that the job uses by what the vendor's tool says; nil where there are none.
func (n *Node) byTool(vendor, id, try string, look func(accel.Device, *check.Result) (unknown string)) []check.Result {
	var devices []accel.Device
	for _, f := range n.Inventory.Families {
		if f.Vendor == vendor {
			devices = ofJob(f)
		}
	}
	if len(devices) == 0 {
		return nil
	}
	t := newTally(id, "device", len(devices))
	for _, d := range devices {
		r := bad(id, "", try)
		r.Subject, r.Source = subject(d), "L1"
		t.add(d.Index, r, look(d, &r))
	}
	return t.results()
}

// orNone is a SKIP where there are no devices of a kind.
func orNone(id, devices string, results []check.Result) []check.Result {
	if results == nil {
		return skip(id, "the job uses no "+devices)
	}
	return results
}

// withOthers adds what is known of other vendors' devices to what was found of NVIDIA's, which is nothing where there
// are none.
func (n *Node) withOthers(nvidia []check.Result, others ...[]check.Result) []check.Result {
	all := slices.Concat(others...)
	if len(n.gpus) > 0 || len(all) == 0 {
		return append(nvidia, all...)
	}
	return all
}

// ask asks a vendor's tool.
func (n *Node) ask(question string) probe.Answer {
	words := strings.Fields(question)
	if n.Tool == nil {
		return probe.Answer{Why: words[0] + " was not asked"}
	}
	return n.Tool(words[0], words[1:]...)
}

// puzzling says that a tool's words are not understood, and shows their beginning.
func puzzling(question, text string) string {
	const most = 160 // bytes
	shown := strings.Join(strings.Fields(text[:min(len(text), 4*most)]), " ")
	if shown == "" {
		return question + " says nothing"
	}
	return fmt.Sprintf("what %s says is not understood: %s", question, printable.Line(shown, most))
}

// entry is a line "key : value" of a tool's text.
type entry struct {
	section    string // the line without a value that came last before it
	key, value string // the key and the section in lower case, with single spaces
}

// entries reads a tool's text. Frames around a table do not matter.
func entries(text string) []entry {
	var list []entry
	section := ""
	for line := range strings.Lines(text) {
		line = strings.Join(strings.Fields(strings.Trim(line, "|+-= \t\r\n")), " ")
		key, value, _ := strings.Cut(line, ":")
		key, value = strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(value)
		switch {
		case key == "":
		case value == "":
			section = key
		default:
			list = append(list, entry{section, key, value})
		}
	}
	return list
}

// notTold are values by which tools say that they know none.
var notTold = []string{
	"", "-", "--", "na", "n/a", "none", "null", "unknown", "unknown!", "unsupported", "not support", "not supported",
	"not available",
}

// told reports whether a value is a state: a word or two, and none that says that there is nothing to say.
func told(value string) bool {
	const longest = 32 // bytes; the longest that is known is "General_warning"
	letter := func(r rune) bool { return 'a' <= r && r <= 'z' }
	value = strings.ToLower(value)
	return len(value) <= longest && strings.ContainsFunc(value, letter) && !slices.Contains(notTold, value)
}

// davinci is where npu-smi finds the NPU of a device node: by the number of a card, and of a chip on it. There are
// cards with two chips, and with numbers that follow their slots.
type davinci struct{ card, chip int }

// question asks about an NPU. One chip on a card needs no number, and not all products take it.
func (at davinci) question(by map[int]davinci) string {
	whole := fmt.Sprintf("npu-smi info -t health -i %d", at.card)
	for _, o := range by {
		if o.card == at.card && o.chip != at.chip {
			return fmt.Sprintf("%s -c %d", whole, at.chip)
		}
	}
	return whole
}

// davinciColumns makes a word of each heading that is known.
var davinciColumns = strings.NewReplacer(
	"npu id", "card#", "slot id", "slot#", "chip id", "chip#", "chip logic id", "logic#", "chip phy-id", "physical#", "chip name", "name#",
)

// davincis reads the map of npu-smi, "npu-smi info -m": a heading, and a line for each chip with numbers, or "-" for
// one that is no NPU. By is the number of a device node: the physical number of a chip; older tools have its logical
// one alone.
func davincis(text string) (by map[int]davinci) {
	columns := map[string]int{}
	by = map[int]davinci{}
	var twice []int
	for line := range strings.Lines(text) {
		line = strings.ToLower(strings.ReplaceAll(line, "|", " "))
		if strings.Contains(line, "npu id") {
			clear(columns)
			for i, c := range strings.Fields(davinciColumns.Replace(line)) {
				if _, twice := columns[c]; twice || !strings.HasSuffix(c, "#") {
					return nil // a column that is not known would shift the others
				}
				columns[c] = i
			}
			continue
		}
		cells := strings.Fields(line)
		number := func(column string) (int, error) {
			i, has := columns[column]
			if !has || i >= len(cells) {
				return 0, strconv.ErrSyntax
			}
			return strconv.Atoi(cells[i])
		}
		name := "logic#"
		if _, has := columns["physical#"]; has {
			name = "physical#"
		}
		card, err1 := number("card#")
		chip, err2 := number("chip#")
		n, err3 := number(name)
		if err1 != nil || err2 != nil || err3 != nil {
			continue
		}
		if _, known := by[n]; known {
			twice = append(twice, n)
		}
		by[n] = davinci{card, chip}
	}
	for _, n := range twice {
		delete(by, n) // which of the two it is nobody knows
	}
	return by
}

// deviceHealth: Huawei's tool sums up in a word what the NPU's own monitoring has found; any but OK is a failure. The
// error code beside it stands in Huawei's list of faults.
func deviceHealth(n *Node) []check.Result {
	const id, try = "device-health", "look the error code up in Huawei's list, reset the NPU, and replace it if that does not help"
	const whole = "npu-smi info -m"
	says := sync.OnceValues(func() (probe.Answer, map[int]davinci) {
		a := n.ask(whole)
		return a, davincis(a.Text)
	})
	return orNone(id, "Ascend NPU", n.byTool("ascend", id, try, func(d accel.Device, r *check.Result) string {
		a, by := says()
		if a.Why != "" {
			return a.Why
		}
		at, known := by[d.Minor]
		if !known {
			return fmt.Sprintf("%s does not name the NPU of %s: %s", whole, d.Node, puzzling(whole, a.Text))
		}
		question := at.question(by)
		if a = n.ask(question); a.Why != "" {
			return a.Why
		}
		var states, details []string
		for _, e := range entries(a.Text) {
			switch key := e.key; {
			case key == "health" || key == "healthy" || key == "health status":
				states = append(states, e.value)
			case (key == "error code" || key == "error information") && !slices.Contains(notTold, strings.ToLower(e.value)):
				details = append(details, key+" "+clean(e.value))
			}
		}
		well := func(state string) bool { return strings.EqualFold(state, "OK") }
		sick := slices.DeleteFunc(slices.Clone(states), func(state string) bool { return well(state) || !told(state) })
		switch {
		case len(sick) > 0:
			r.Reason = strings.Join(append([]string{"npu-smi calls its health " + clean(sick[0])}, details...), ", ")
			r.Value, r.Limit = clean(sick[0]), "OK"
		case len(states) == 0 || slices.ContainsFunc(states, func(state string) bool { return !well(state) }):
			return puzzling(question, a.Text)
		}
		return ""
	}))
}

// deviceNetwork: the NPU's own Ethernet port, over which it talks to those of other nodes. hccn_tool takes the number
// of the device node, not that of npu-smi.
func deviceNetwork(n *Node) []check.Result {
	const id, try = "device-network", "check the cable and the switch; on a node that trains alone it does not matter"
	return orNone(id, "Ascend NPU", n.byTool("ascend", id, try, func(d accel.Device, r *check.Result) string {
		question := fmt.Sprintf("hccn_tool -i %d -link -g", d.Minor)
		a := n.ask(question)
		if a.Why != "" {
			return a.Why
		}
		for _, e := range entries(a.Text) {
			if !strings.HasSuffix(e.key, "link status") || !told(e.value) {
				continue
			}
			if !strings.EqualFold(e.value, "UP") {
				r.Reason = "the link of its network port is " + clean(e.value)
			}
			return ""
		}
		return puzzling(question, a.Text)
	}))
}

// gaudiRows: hl-smi has the counts of replaced rows, and says whether more of them wait for a reset. A heading or the
// key itself speaks of rows; a count of pending errors is not a state.
func (n *Node) gaudiRows(id, try string) []check.Result {
	return n.byTool("gaudi", id, try, func(d accel.Device, r *check.Result) string {
		if d.BusID == "" {
			return "its address is not known"
		}
		question := fmt.Sprintf("hl-smi -i %s -q -d ROW_REPLACEMENT", d.BusID)
		a := n.ask(question)
		if a.Why != "" {
			return a.Why
		}
		for _, e := range entries(a.Text) {
			if !strings.Contains(e.key, "pending") || strings.Contains(e.key, "ecc") || !strings.Contains(e.section+e.key, "row") {
				continue
			}
			switch strings.ToLower(e.value) {
			case "yes", "true", "1", "pending":
				r.Reason = "a row is replaced at the next reset"
				return ""
			case "no", "false", "0":
				return ""
			}
		}
		return puzzling(question, a.Text)
	})
}

// metaxParts splits what mx-smi says by GPU: what follows a heading such as "GPU#0  MXC500  0000:08:00.0", up to the
// next, is of the GPU with that address.
func metaxParts(text string) map[string][]entry {
	parts := map[string][]entry{}
	address := ""
	begin, end := 0, 0
	take := func() {
		if address != "" {
			parts[address] = append(parts[address], entries(text[begin:end])...)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "GPU#") {
			take()
			address, begin = "", end+len(line)
			words := strings.Fields(line)
			if i := slices.IndexFunc(words, func(word string) bool { return strings.Count(word, ":") == 2 }); i >= 0 {
				address = nvline.NormalBDF(words[i])
			}
		}
		end += len(line)
	}
	take()
	return parts
}

// metaxSays asks mx-smi when it is first called, and reads its answer once for all GPUs.
func (n *Node) metaxSays(question string) func() (probe.Answer, map[string][]entry) {
	return sync.OnceValues(func() (probe.Answer, map[string][]entry) {
		a := n.ask(question)
		return a, metaxParts(a.Text)
	})
}

// metaxCounts judges each MetaX GPU by the sum of the numbers of those lines of "mx-smi --count-ecc" that want takes.
func (n *Node) metaxCounts(id, try string, want func(entry) bool, judge func(r *check.Result, sum uint64)) []check.Result {
	const question = "mx-smi --count-ecc"
	says := n.metaxSays(question)
	return n.byTool("metax", id, try, func(d accel.Device, r *check.Result) string {
		a, parts := says()
		if a.Why != "" {
			return a.Why
		}
		some, sum := false, uint64(0)
		for _, e := range parts[d.BusID] {
			if !want(e) {
				continue
			}
			count, err := strconv.ParseUint(e.value, 10, 40)
			if err != nil {
				return puzzling(question, a.Text)
			}
			some = true
			sum += count
		}
		if !some {
			return puzzling(question, a.Text)
		}
		judge(r, sum)
		return ""
	})
}

// retired is in the heading of what is counted in pages.
const retired = "retired page"

// metaxErrors: the counters begin anew when the machine starts.
func (n *Node) metaxErrors(id, what string) []check.Result {
	uncorrected := func(e entry) bool {
		return strings.Contains(e.key, "uncorrect") && !strings.Contains(e.section, retired)
	}
	return n.metaxCounts(id, "reset the GPU, and replace it if they come back", uncorrected,
		func(r *check.Result, sum uint64) { n.counted(r, sum, what) })
}

// metaxPages: retired pages are kept for the GPU's life. How many a GPU has room for is not told; huatuo's watch gives
// up at 64, which is NVIDIA's number, too.
func (n *Node) metaxPages(id, try string, limit int) []check.Result {
	pages := func(e entry) bool { return strings.Contains(e.section, retired) }
	return n.metaxCounts(id, try, pages, func(r *check.Result, sum uint64) {
		if sum >= uint64(max(limit, 0)) {
			r.Reason = fmt.Sprintf("%d pages are retired", sum)
			r.Value, r.Limit = fmt.Sprint(sum), fmt.Sprint(limit)
		}
	})
}

// linkStates are the words for a link that is up, and for one that is not.
var linkStates = map[string]bool{
	"up": true, "active": true, "connected": true, "down": false, "inactive": false, "disconnected": false, "disabled": false,
}

// linksUp counts the links of a MetaX GPU that are up; ok is false where its part of the text has none.
func linksUp(part []entry) (up int, ok bool) {
	for _, e := range part {
		if on, is := linkStates[strings.ToLower(e.value)]; is {
			ok = true
			if on {
				up++
			}
		}
	}
	return up, ok
}

// deviceLink: boards use different numbers of a GPU's links, so that one that is down says something only where another
// GPU has more of them up. ("mx-smi mxlk --show" shows what links can do, "--show-state" what they are.)
func deviceLink(n *Node) []check.Result {
	const id, question = "device-link", "mx-smi mxlk --show-state"
	says := n.metaxSays(question)
	most := sync.OnceValue(func() (most int) {
		_, parts := says()
		for _, f := range n.Inventory.Families {
			for _, d := range f.Devices { // those of other jobs tell as much
				up, _ := linksUp(parts[d.BusID])
				most = max(most, up)
			}
		}
		return most
	})
	return orNone(id, "MetaX GPU",
		n.byTool("metax", id, "reset the GPU; reseat it or its bridge", func(d accel.Device, r *check.Result) string {
			a, parts := says()
			if a.Why != "" {
				return a.Why
			}
			up, ok := linksUp(parts[d.BusID])
			if !ok {
				return puzzling(question, a.Text)
			}
			switch most := most(); {
			case most == 0:
				return "no GPU has a link that is up"
			case up < most:
				r.Reason = fmt.Sprintf("%d of its links are up, and of another GPU %d", up, most)
				r.Value, r.Limit = strconv.Itoa(up), strconv.Itoa(most)
			}
			return ""
		}))
}
