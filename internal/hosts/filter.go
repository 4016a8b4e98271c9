package hosts

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/lazyregexp"
)

// Include returns the hosts of list that a filter names, in the order of list. The filter is as DeepSpeed documents it:
//
//	NAME[:SLOT,...][@NAME[:SLOT,...]]...
//
// A name alone takes the whole host, a name with slots only these of its accelerators, which become its Devices. A name
// that comes again adds to what it takes. Names and, where a host has slots, their numbers must exist.
func Include(list []Host, filter string) ([]Host, error) {
	specs, err := parseFilter(list, filter)
	if err != nil {
		return nil, err
	}
	var out []Host
	for i, h := range list {
		s, ok := specs[i]
		if !ok {
			continue
		}
		if !s.whole {
			h.Devices = s.slots
			h.Slots = len(s.slots)
		}
		out = append(out, h)
	}
	return out, nil
}

// Exclude returns the hosts of list less what a filter names, in the order of list. The filter is as Include's; a host
// of which no slot is left is gone.
func Exclude(list []Host, filter string) ([]Host, error) {
	specs, err := parseFilter(list, filter)
	if err != nil {
		return nil, err
	}
	var out []Host
	for i, h := range list {
		s, ok := specs[i]
		switch {
		case !ok:
			out = append(out, h)
			continue
		case s.whole:
			continue
		case h.Slots == 0:
			return nil, fmt.Errorf("nothing says how many slots the host %s has, so that it cannot be told which are left", h.Name)
		}
		h.Devices = nil
		for slot := range h.Slots {
			if !slices.Contains(s.slots, slot) {
				h.Devices = append(h.Devices, slot)
			}
		}
		if h.Slots = len(h.Devices); h.Slots > 0 {
			out = append(out, h)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no host is left")
	}
	return out, nil
}

// filterSpec is what a filter says of a host.
type filterSpec struct {
	whole bool
	slots []int // ascending
}

// filterSlot is the number of a slot in a filter.
var filterSlot = lazyregexp.New(`^[0-9]{1,4}$`)

// parseFilter returns what a filter says, by the hosts' places in list.
func parseFilter(list []Host, filter string) (map[int]filterSpec, error) {
	if len(filter) > maxListBytes {
		return nil, fmt.Errorf("a filter of %d bytes exceeds the limit of %d", len(filter), maxListBytes)
	}
	places := placesOf(list)
	specs := map[int]filterSpec{}
	for item := range strings.SplitSeq(filter, "@") {
		item = strings.TrimSpace(item)
		name, text, some := item, "", false
		if _, whole := places[strings.ToLower(unbracketed(item))]; !whole { // an IPv6 address has colons, too
			if i := strings.LastIndexByte(item, ':'); i >= 0 {
				name, text, some = item[:i], item[i+1:], true
			}
		}
		name = unbracketed(name)
		found := places[strings.ToLower(name)]
		if len(found) == 0 {
			return nil, unknownHost(list, name)
		}
		var slots []int
		if some {
			var err error
			if slots, err = parseFilterSlots(name, text); err != nil {
				return nil, err
			}
		}
		for _, i := range found {
			s := specs[i]
			if last := len(slots) - 1; some && list[i].Slots > 0 && slots[last] >= list[i].Slots {
				return nil, fmt.Errorf("the host %s has no slot %d: it has %d, from 0", list[i].Name, slots[last], list[i].Slots)
			}
			s.whole = s.whole || !some
			s.slots = slices.Concat(s.slots, slots)
			slices.Sort(s.slots)
			s.slots = slices.Compact(s.slots)
			specs[i] = s
		}
	}
	return specs, nil
}

func parseFilterSlots(name, text string) ([]int, error) {
	var slots []int
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if !filterSlot().MatchString(item) {
			return nil, fmt.Errorf("%.80q is no number of a slot: write %s:0,2 for two slots, and @ between hosts", item, name)
		}
		n, err := strconv.Atoi(item)
		if err != nil {
			return nil, err
		}
		slots = append(slots, n)
	}
	slices.Sort(slots)
	return slices.Compact(slots), nil
}

func unbracketed(name string) string {
	if inner, ok := bracketed(name); ok {
		return inner
	}
	return name
}

// placesOf says where hosts stand by their names in lower case: one name may be that of several, with different ports.
func placesOf(list []Host) map[string][]int {
	places := make(map[string][]int, len(list))
	for i, h := range list {
		name := strings.ToLower(h.Name)
		places[name] = append(places[name], i)
	}
	return places
}

// shownHosts is how many hosts an error lists.
const shownHosts = 8

func unknownHost(list []Host, name string) error {
	if name == "" {
		return errors.New("a host has no name")
	}
	var names []string
	for _, h := range list[:min(len(list), shownHosts)] {
		names = append(names, h.Name)
	}
	if more := len(list) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("there is no host %.80q: there are %s", name, strings.Join(names, ", "))
}

// IncludeNames returns the hosts that a list of names with commas between has, in the order of that list, as
// Colossal-AI has it: it says which host is first.
func IncludeNames(list []Host, names string) ([]Host, error) {
	chosen, err := parseNames(list, names)
	if err != nil {
		return nil, err
	}
	out := make([]Host, len(chosen))
	for i, at := range chosen {
		out[i] = list[at]
	}
	return out, nil
}

// ExcludeNames returns the hosts that a list of names with commas between has not, in their own order.
func ExcludeNames(list []Host, names string) ([]Host, error) {
	chosen, err := parseNames(list, names)
	if err != nil {
		return nil, err
	}
	gone := make(map[int]bool, len(chosen))
	for _, i := range chosen {
		gone[i] = true
	}
	var out []Host
	for i, h := range list {
		if !gone[i] {
			out = append(out, h)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no host is left")
	}
	return out, nil
}

// parseNames returns the places in list of the hosts that are named, in the order of the names.
func parseNames(list []Host, names string) ([]int, error) {
	if len(names) > maxListBytes {
		return nil, fmt.Errorf("a list of %d bytes exceeds the limit of %d", len(names), maxListBytes)
	}
	places := placesOf(list)
	var chosen []int
	seen := map[int]bool{}
	for name := range strings.SplitSeq(names, ",") {
		name = unbracketed(strings.TrimSpace(name))
		found := places[strings.ToLower(name)]
		if len(found) == 0 {
			return nil, unknownHost(list, name)
		}
		for _, i := range found {
			if seen[i] {
				return nil, fmt.Errorf("the host %s is named twice", list[i].Name)
			}
			seen[i] = true
			chosen = append(chosen, i)
		}
	}
	return chosen, nil
}
