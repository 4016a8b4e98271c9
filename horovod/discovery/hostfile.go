package discovery

import (
	"errors"
	"fmt"
	"strings"

	"muster/horovod"
)

// ParseList reads hosts as -H has them: HOST:SLOTS, with commas between.
func ParseList(text string) ([]horovod.Host, error) {
	var list []horovod.Host
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if !strings.Contains(item, ":") {
			return nil, fmt.Errorf("%q says no number of slots: write HOST:SLOTS, with commas between", item)
		}
		host, err := parseHost(item, 0)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		if err := add(&list, host); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ParseHostfile reads a hostfile: lines HOST slots=N, HOST:N, or HOST, which has one slot; # begins a comment. What OpenMPI
// has beside slots is passed over with a warning.
func ParseHostfile(text string) (list []horovod.Host, warnings []string, err error) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		host, err := parseHost(words[0], 1)
		for _, word := range words[1:] {
			name, value, ok := strings.Cut(word, "=")
			switch {
			case err != nil:
			case !ok:
				err = fmt.Errorf("%q is not understood: write HOST slots=N", word)
			case name == "slots":
				host.Slots, err = parseSlots(value)
			case name == "max_slots", name == "max-slots":
				warnings = append(warnings, fmt.Sprintf("line %d: %s has no effect", number, name))
			default:
				err = fmt.Errorf("%q is not understood: write HOST slots=N", word)
			}
		}
		if err == nil {
			err = add(&list, host)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return list, warnings, nil
}

func add(list *[]horovod.Host, host horovod.Host) error {
	for _, h := range *list {
		if h.Name == host.Name {
			return fmt.Errorf("%s stands there twice", host.Name)
		}
	}
	if len(*list) == maxHosts {
		return fmt.Errorf("more than %d hosts", maxHosts)
	}
	if host.Slots == 0 {
		return errors.New(host.Name + " has 0 slots")
	}
	*list = append(*list, host)
	return nil
}
