// Package discovery finds the hosts of an elastic job again and again: by a script as Horovod does (horovod 0.28.1,
// horovod/runner/elastic/discovery.py), from a file that somebody rewrites, or from a name in DNS. A Table remembers
// what was found, in which order, and which hosts are not to be used for a while.
package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"muster/horovod"
	"muster/internal/errhint"
	"muster/internal/printable"
)

// Source finds hosts. Find returns what there is now, in the order that it wants them; none is no error. Warnings are
// about what it passed over.
type Source interface {
	Find(ctx context.Context) (hosts []horovod.Host, warnings []string, err error)
	String() string
}

// Fixed are hosts that do not change.
type Fixed []horovod.Host

// Find implements Source.
func (f Fixed) Find(context.Context) ([]horovod.Host, []string, error) { return f, nil, nil }

func (f Fixed) String() string { return "the given hosts" }

// Runner runs a command of the user by a shell and returns what it wrote to its standard output. A status but 0 is an
// error, as is the end of ctx.
type Runner interface {
	Run(ctx context.Context, command string) ([]byte, error)
}

// defaultTimeout bounds one run of a discovery script. Horovod has no bound: a script that hangs stops its driver.
const defaultTimeout = 30 * time.Second

// Script is a command that prints the hosts, one a line: NAME:SLOTS, or NAME.
type Script struct {
	Command string
	// Shown is the command as it may be shown, without secrets; empty: all of it.
	Shown  string
	Runner Runner
	// Slots is what a host without a number has.
	Slots int
	// Timeout bounds a run; 0 is defaultTimeout.
	Timeout time.Duration
}

// Find runs the script.
func (s Script) Find(ctx context.Context) ([]horovod.Host, []string, error) {
	timeout := s.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	late := fmt.Errorf("it ran longer than %v", timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, late)
	defer cancel()
	out, err := s.Runner.Run(ctx, s.Command)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded): // by the runner's own clock, a moment before ours
		err = late
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot find hosts by %s: %w", s, err)
	}
	hosts, warnings, err := ParseHosts(string(out), s.Slots)
	if err != nil {
		return nil, nil,
			errhint.With(fmt.Errorf("cannot use what %s prints: %w", s, err), "it is to print one host a line, NAME:SLOTS or NAME")
	}
	return hosts, warnings, nil
}

func (s Script) String() string {
	return fmt.Sprintf("the host discovery script %q", cmp.Or(s.Shown, s.Command))
}

// File is a hostfile that is read again each time.
type File struct {
	Name string
	Read func(name string) ([]byte, error)
	// Parse reads the text.
	Parse func(text string) ([]horovod.Host, error)
}

// Find reads the file. While somebody replaces it there may be none: that is an error, and what was found before stays.
func (f File) Find(context.Context) ([]horovod.Host, []string, error) {
	text, err := f.Read(f.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot find hosts: %w", err)
	}
	hosts, err := f.Parse(string(text))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot find hosts in %s: %w", f.Name, err)
	}
	return hosts, nil, nil
}

func (f File) String() string { return f.Name }

// Resolver looks names up; a net.Resolver does.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// DNS is a name that stands for all hosts, such as that of a headless service: every address it has is a host.
type DNS struct {
	Name     string
	Resolver Resolver
	Slots    int
}

// dnsTimeout bounds one look-up.
const dnsTimeout = 10 * time.Second

// Find looks the name up. A name that does not exist has no hosts: it appears with the first pod. IPv6 addresses are
// left out, as Horovod writes a host and a number with a colon between.
func (d DNS) Find(ctx context.Context) ([]horovod.Host, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	addrs, err := d.Resolver.LookupHost(ctx, d.Name)
	if missing, ok := errors.AsType[*net.DNSError](err); ok && missing.IsNotFound {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot find hosts by the name %s: %w", d.Name, err)
	}
	slices.Sort(addrs)
	var hosts []horovod.Host
	var warnings []string
	for _, addr := range slices.Compact(addrs) {
		if strings.Contains(addr, ":") {
			warnings = append(warnings, fmt.Sprintf("the address %s of %s is not used: Horovod knows IPv4 only", addr, d.Name))
			continue
		}
		hosts = append(hosts, horovod.Host{Name: addr, Slots: max(1, d.Slots)})
	}
	return hosts, warnings, nil
}

func (d DNS) String() string { return "the name " + d.Name }

// Limits of what a script prints.
const (
	maxHosts = 1 << 16
	maxSlots = 4096
	maxName  = 253
)

// ParseHosts reads a script's output. slots is what a host without a number has; 0 means that every host needs one. Of
// a host that stands there twice the last line counts, at the place of the first, with a warning.
func ParseHosts(text string, slots int) ([]horovod.Host, []string, error) {
	var hosts []horovod.Host
	var warnings []string
	at := map[string]int{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		host, err := parseHost(line, slots)
		if err != nil {
			return nil, nil, fmt.Errorf("line %d, %s: %w", number, printable.Line(line, maxShown), err)
		}
		if i, again := at[host.Name]; again {
			warnings = append(warnings, fmt.Sprintf("line %d names %s again: this line counts", number, host.Name))
			hosts[i] = host
			continue
		}
		if len(hosts) == maxHosts {
			return nil, nil, fmt.Errorf("more than %d hosts", maxHosts)
		}
		at[host.Name] = len(hosts)
		hosts = append(hosts, host)
	}
	return hosts, warnings, nil
}

// maxShown is how much of a line is shown in an error, in bytes.
const maxShown = 80

func parseHost(line string, slots int) (horovod.Host, error) {
	name, number, numbered := strings.Cut(line, ":")
	if numbered {
		n, err := parseSlots(number)
		if err != nil {
			return horovod.Host{}, err
		}
		slots = n
	} else if slots == 0 {
		return horovod.Host{}, errors.New("it says no number of slots, and --slots-per-host does not either")
	}
	if name == "" || len(name) > maxName {
		return horovod.Host{}, errors.New("this is no host's name")
	}
	for _, c := range name {
		if c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return horovod.Host{}, errors.New("this is no host's name: it has letters, digits, dots, dashes and underscores")
		}
	}
	return horovod.Host{Name: name, Slots: slots}, nil
}

func parseSlots(text string) (int, error) {
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' || n > maxSlots {
			n = -1
			break
		}
		n = 10*n + int(c-'0')
	}
	if text == "" || n < 0 || n > maxSlots {
		return 0, fmt.Errorf("slots are a number up to %d", maxSlots)
	}
	return n, nil
}
