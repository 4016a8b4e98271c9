package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
	"muster/internal/lazyregexp"
)

// MaxSlots bounds the slots of a host: more is a typing error, or a port.
const MaxSlots = 4096

// ParseList reads hosts with commas between, in their order:
//
//	node1:8,user@node2:8   with slots behind a colon, and a user in front
//	node[01-16]:8          a hostlist of Slurm, each of its hosts with 8 slots
//	[2001:db8::1]:8,fe80::1%eth0   IPv6: slots need the brackets
//
// A host may stand there once. What is wrong is reported together, as a *multierror.Error.
func ParseList(text string) ([]Host, error) { return parseList(text, false) }

// ParseMPIList reads the list of mpirun's --host: as ParseList, but a host that stands there again has more slots, and
// each one without a number counts as one slot.
func ParseMPIList(text string) ([]Host, error) { return parseList(text, true) }

func parseList(text string, adds bool) ([]Host, error) {
	if len(text) > maxListBytes {
		return nil, fmt.Errorf("a list of %d bytes exceeds the limit of %d", len(text), maxListBytes)
	}
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("it names no host")
	}
	items, err := splitList(text)
	if err != nil {
		return nil, err
	}
	t := table{adds: adds, place: func(n int) string { return "item " + strconv.Itoa(n) }}
	for i, item := range items {
		found, err := parseItem(strings.TrimSpace(item))
		if err != nil {
			t.bad(i+1, err)
		}
		for _, h := range found {
			t.add(i+1, h)
		}
		if t.full() {
			break
		}
	}
	return t.hosts, t.wrong.ErrorOrNil()
}

// splitList is splitHosts for lists that may have a blank item at the end, as those have that a script puts together.
func splitList(text string) ([]string, error) {
	items, err := splitHosts(strings.TrimSpace(text))
	if n := len(items); err == nil && n > 1 && strings.TrimSpace(items[n-1]) == "" {
		items = items[:n-1]
	}
	return items, err
}

// parseItem reads [USER@]HOSTS[:SLOTS]: one host, or those of a hostlist.
func parseItem(item string) ([]Host, error) {
	user, name, err := cutUser(item)
	if err != nil {
		return nil, err
	}
	if addr, err := netip.ParseAddr(name); err == nil && addr.Is6() {
		return oneHost(user, name, 0)
	}
	slots := 0
	if i := strings.LastIndexByte(name, ':'); i >= 0 && !strings.Contains(name[i:], "]") {
		if slots, err = parseSlots(name[i+1:]); err != nil {
			return nil, err
		}
		name = name[:i]
	}
	if inner, ok := bracketed(name); ok {
		return oneHost(user, inner, slots)
	}
	if strings.ContainsRune(name, ':') {
		return nil, fmt.Errorf("%.80q is neither a host nor an IPv6 address: write HOST:SLOTS, or [ADDRESS]:SLOTS", item)
	}
	if items, err := splitHosts(name); err == nil && len(items) > 1 {
		return nil, fmt.Errorf("%.80q has a comma: write each host on a line of its own", item)
	}
	names, err := Expand(name)
	if err != nil {
		return nil, err
	}
	list := make([]Host, 0, len(names))
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
		list = append(list, Host{Name: name, User: user, Slots: slots})
	}
	return list, nil
}

func oneHost(user, name string, slots int) ([]Host, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return []Host{{Name: name, User: user, Slots: slots}}, nil
}

// bracketed is the IPv6 address in a pair of brackets, which otherwise hold numbers.
func bracketed(name string) (inner string, ok bool) {
	if len(name) < 2 || name[0] != '[' || name[len(name)-1] != ']' || !strings.Contains(name, ":") {
		return "", false
	}
	return name[1 : len(name)-1], true
}

// IsUser reports whether name may be that of a user on a host, in front of its @. It cannot begin with a dash, which a
// program could take for an option. (As a regular expression this took every process of muster 10 ms to compile.)
func IsUser(name string) bool {
	for i, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '_' && r != '.' && (i == 0 || !strings.ContainsRune(`@+$\-`, r)) {
			return false
		}
	}
	return name != "" && utf8.RuneCountInString(name) <= 128
}

func cutUser(text string) (user, host string, err error) {
	i := strings.LastIndexByte(text, '@')
	if i < 0 {
		return "", text, nil
	}
	if user = text[:i]; !IsUser(user) {
		return "", "", fmt.Errorf("%.80q is no user's name in front of @", user)
	}
	return user, text[i+1:], nil
}

// parseName reads [USER@]HOST, with an IPv6 address with or without brackets.
func parseName(text string) (Host, error) {
	user, name, err := cutUser(text)
	if err != nil {
		return Host{}, err
	}
	if inner, ok := bracketed(name); ok {
		name = inner
	}
	return Host{Name: name, User: user}, checkName(name)
}

// checkName refuses what is neither a host's name nor an address. A name with a dash in front could be an option to
// ssh.
func checkName(name string) error {
	if addr, err := netip.ParseAddr(name); err == nil && addr.Is6() {
		if zone := addr.Zone(); zone == "" || IsName(zone) {
			return nil
		}
	}
	switch {
	case name == "":
		return errors.New("a host has no name")
	case strings.ContainsRune(name, ':'):
		return fmt.Errorf("%.80q is no IPv6 address", name)
	case !IsName(name) || name[0] == '-':
		return noName(name)
	}
	return nil
}

// noName refuses what is no name, and says what stands between names where somebody has written something else.
func noName(text string) error {
	err := fmt.Errorf("%.80q is no name of a host", text)
	if strings.ContainsAny(text, " \t;") && text[0] != '-' {
		return errhint.With(err, "write commas between hosts in a list, and in a file a line for each")
	}
	return err
}

// slotCount is a number of slots.
var slotCount = lazyregexp.New(`^[0-9]{1,9}$`)

func parseSlots(text string) (int, error) {
	if !slotCount().MatchString(text) {
		return 0, fmt.Errorf("%.80q is no number of slots", text)
	}
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, errors.New("a host with 0 slots takes no worker: leave it out")
	case n > MaxSlots:
		return 0, errhint.With(fmt.Errorf("%d slots exceed the limit of %d", n, MaxSlots),
			"the number behind a host is that of its workers, not a port")
	}
	return n, nil
}

// maxWrong bounds what is reported of one list: one with more is something else, such as a program.
const maxWrong = 20

// table gathers the hosts of a list or a file.
type table struct {
	adds     bool // a host that comes again has more slots
	place    func(n int) string
	hosts    []Host
	at       map[string]int // by key: where the host stands in hosts
	from     []int          // of each host: the number of the line or item
	wrong    *multierror.Error
	warnings []string
}

func (t *table) full() bool { return t.wrong != nil && len(t.wrong.Errors) >= maxWrong }

// bad reports what is wrong with a line or an item.
func (t *table) bad(n int, err error) {
	if !t.full() {
		t.wrong = multierror.Append(t.wrong, fmt.Errorf("%s: %w", t.place(n), err))
	}
}

// key is what tells a machine from others. Somebody may reach several by one name and different ports.
func (h Host) key() string { return strings.ToLower(h.Name) + " " + strconv.Itoa(h.Port) }

func (t *table) add(n int, h Host) {
	if t.adds && h.Slots == 0 {
		h.Slots = 1
	}
	if i, again := t.at[h.key()]; again {
		switch old := &t.hosts[i]; {
		case !t.adds:
			t.bad(n, errhint.With(fmt.Errorf("the host %s was there before, at %s", h.Name, t.place(t.from[i])),
				"name each host once, and say how many workers it takes by its slots"))
		case old.User != h.User:
			t.bad(n, fmt.Errorf("the host %s was there before with another user, at %s", h.Name, t.place(t.from[i])))
		case old.Slots+h.Slots > MaxSlots:
			t.bad(n, fmt.Errorf("the host %s has more than %d slots", h.Name, MaxSlots))
		default:
			old.Slots += h.Slots
		}
		return
	}
	if len(t.hosts) == MaxHosts {
		if t.wrong == nil {
			t.bad(n, fmt.Errorf("there are more than %d hosts", MaxHosts))
		}
		return
	}
	if t.at == nil {
		t.at = map[string]int{}
	}
	t.at[h.key()] = len(t.hosts)
	t.hosts, t.from = append(t.hosts, h), append(t.from, n)
}
