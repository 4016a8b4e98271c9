package hosts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"muster/internal/lazyregexp"
)

// Bounds of what lists of hosts may grow to. Together they keep what a few bytes of a variable can ask for below 17 MB.
const (
	// MaxHosts is the largest number of hosts in a list; Slurm itself has up to 65,533 nodes.
	MaxHosts = 1 << 16
	// maxListBytes is the longest text of a list, in bytes: the kernel takes 128 KiB for one variable.
	maxListBytes = 128 << 10
	// maxHost is the longest name of a host, in bytes, as in DNS.
	maxHost = 255
)

// Expand returns the hosts of a list as Slurm writes it, such as "n[008-011,13],login1", in its order and with its
// repetitions: as scontrol show hostnames of Slurm 22.05. Several brackets in a name are combined, the leftmost
// slowest; a number has at least as many digits as the left end of its range. Text behind the last bracket is taken,
// which scontrol refuses; steps (0-10:5) are not.
func Expand(list string) ([]string, error) {
	if len(list) > maxListBytes {
		return nil, fmt.Errorf("a list of %d bytes exceeds the limit of %d", len(list), maxListBytes)
	}
	items, err := splitHosts(list)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, item := range items {
		parts, err := parseHost(item)
		if err != nil {
			return nil, err
		}
		count, longest := 1, 0
		for _, p := range parts {
			if count *= p.count(); len(hosts)+count > MaxHosts { // a part has at most MaxHosts: this cannot overflow
				return nil, fmt.Errorf("there are more than %d hosts", MaxHosts)
			}
			longest += p.longest()
		}
		if longest > maxHost {
			return nil, fmt.Errorf("the name of a host has more than %d letters", maxHost)
		}
		hosts = appendHosts(hosts, "", parts)
	}
	return hosts, nil
}

// splitHosts cuts a list at the commas outside of brackets.
func splitHosts(list string) ([]string, error) {
	var items []string
	inside, start := false, 0
	for i := range len(list) {
		switch c := list[i]; {
		case c == '[' && inside, c == ']' && !inside:
			return nil, fmt.Errorf("the bracket at letter %d has no partner", i+1)
		case c == '[':
			inside = true
		case c == ']':
			inside = false
		case c == ',' && !inside:
			items = append(items, list[start:i])
			start = i + 1
		}
	}
	if inside {
		return nil, errors.New("a bracket is not closed")
	}
	return append(items, list[start:]), nil
}

// hostPart is a piece of a host's name: a text, or the numbers in a pair of brackets.
type hostPart struct {
	text   string
	ranges []hostRange
}

// hostRange are the numbers from first to last, of at least width digits.
type hostRange struct {
	first, last uint64
	width       int
}

func (p hostPart) count() int {
	if p.ranges == nil {
		return 1
	}
	n := 0
	for _, r := range p.ranges {
		n += int(r.last-r.first) + 1
	}
	return n
}

func (p hostPart) longest() int {
	most := len(p.text)
	for _, r := range p.ranges {
		most = max(most, r.width, len(strconv.FormatUint(r.last, 10)))
	}
	return most
}

// hostText is what the names of hosts are made of.
var hostText = lazyregexp.New(`^[A-Za-z0-9._-]*$`)

// IsName reports whether name may be that of a host, or its IPv4 address.
func IsName(name string) bool {
	return name != "" && len(name) <= maxHost && hostText().MatchString(name)
}

func parseHost(item string) ([]hostPart, error) {
	if item == "" {
		return nil, errors.New("a host between two commas has no name")
	}
	var parts []hostPart
	for rest := item; rest != ""; {
		text, behind, bracket := strings.Cut(rest, "[")
		if !hostText().MatchString(text) {
			return nil, noName(text)
		}
		if parts = append(parts, hostPart{text: text}); !bracket {
			break
		}
		inside, after, _ := strings.Cut(behind, "]") // splitHosts has seen it
		ranges, err := parseRanges(inside)
		if err != nil {
			return nil, err
		}
		parts, rest = append(parts, hostPart{ranges: ranges}), after
	}
	return parts, nil
}

// hostNumber is a number in brackets. No host has one of more digits, and the sums of such numbers fit into 64 bits.
var hostNumber = lazyregexp.New(`^[0-9]{1,18}$`)

func parseRanges(text string) ([]hostRange, error) {
	var ranges []hostRange
	total := uint64(0)
	for item := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		if !hostNumber().MatchString(low) || !hostNumber().MatchString(high) {
			return nil, fmt.Errorf("%.80q is neither a number nor a range such as 008-011", item)
		}
		r := hostRange{width: len(low)}
		r.first, _ = strconv.ParseUint(low, 10, 64)
		r.last, _ = strconv.ParseUint(high, 10, 64)
		if r.last < r.first {
			return nil, fmt.Errorf("the range %s ends before it begins", item)
		}
		if total += r.last - r.first + 1; total > MaxHosts {
			return nil, fmt.Errorf("there are more than %d hosts", MaxHosts)
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// appendHosts appends prefix with all that parts stand for.
func appendHosts(hosts []string, prefix string, parts []hostPart) []string {
	if len(parts) == 0 {
		return append(hosts, prefix)
	}
	first, rest := parts[0], parts[1:]
	if first.ranges == nil {
		return appendHosts(hosts, prefix+first.text, rest)
	}
	for _, r := range first.ranges {
		for n := r.first; n <= r.last; n++ {
			hosts = appendHosts(hosts, fmt.Sprintf("%s%0*d", prefix, r.width, n), rest)
		}
	}
	return hosts
}

// repeated is an item of a list per node: 4(x2) is 4, 4.
var repeated = lazyregexp.New(`^([0-9]{1,9})(?:\(x([0-9]{1,9})\))?$`)

// ExpandCounts returns the numbers of a list per node as Slurm writes it: "4(x2),3" is 4, 4, 3.
func ExpandCounts(list string) ([]int, error) {
	if len(list) > maxListBytes {
		return nil, fmt.Errorf("a list of %d bytes exceeds the limit of %d", len(list), maxListBytes)
	}
	var counts []int
	for item := range strings.SplitSeq(list, ",") {
		m := repeated().FindStringSubmatch(item)
		if m == nil {
			return nil, fmt.Errorf("%.80q is no number of a list such as 4(x2),3", item)
		}
		n, _ := strconv.Atoi(m[1])
		times := 1
		if m[2] != "" {
			times, _ = strconv.Atoi(m[2])
		}
		if len(counts)+times > MaxHosts {
			return nil, fmt.Errorf("there are more than %d nodes", MaxHosts)
		}
		for range times {
			counts = append(counts, n)
		}
	}
	return counts, nil
}
