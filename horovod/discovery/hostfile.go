package discovery

import (
	"errors"
	"fmt"
	"strings"

	"muster/horovod"
	"muster/internal/hosts"
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

// ParseHostfile reads a hostfile: lines HOST slots=N, HOST:N, or HOST, which has one slot; # begins a comment. What
// Open MPI has beside slots is passed over with a warning. Errors name the file and its lines.
func ParseHostfile(name string, content []byte) (list []horovod.Host, warnings []string, err error) {
	file, err := hosts.Horovod(name, content)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range file.Hosts {
		if h.User != "" || h.Port != 0 {
			return nil, nil,
				fmt.Errorf("%s: %s has a user or a port, and Horovod knows names only: ssh's configuration may say them", name, h.Name)
		}
		if err := add(&list, horovod.Host{Name: h.Name, Slots: max(h.Slots, 1)}); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return list, file.Warnings, nil
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
