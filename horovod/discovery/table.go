package discovery

import (
	"math/rand/v2"
	"slices"
	"time"

	"muster/horovod"
	"muster/horovod/notify"
)

// Cooldown is how long a host is not used after a worker failed there: Min at first, doubled each time, with up to Min
// at random, and at most Max. The zero value never lets it back.
type Cooldown struct{ Min, Max time.Duration }

// DefaultCooldown lets pods that take the name of a dead one back in. Horovod's default is never.
var DefaultCooldown = Cooldown{10 * time.Second, 300 * time.Second}

func (c Cooldown) delay(times int) time.Duration {
	d := c.Min
	for range times - 1 {
		if d >= c.Max {
			break
		}
		d *= 2
	}
	if c.Min > 0 {
		d += rand.N(c.Min)
	}
	return min(max(d, c.Min), c.Max)
}

// blacklisted is a host that is not to be used.
type blacklisted struct {
	times int
	until time.Time // zero: for ever
}

// Table is what is known of hosts. It knows no clock, and is used by one goroutine at a time.
type Table struct {
	cooldown Cooldown
	found    []horovod.Host
	bad      map[string]blacklisted
	// usable are those of the last look, oldest first: a host with workers that have been there from the beginning
	// comes first and gets rank 0, from which the others take their state.
	usable []horovod.Host
}

// NewTable returns a table without hosts.
func NewTable(c Cooldown) *Table { return &Table{cooldown: c, bad: map[string]blacklisted{}} }

// Found takes the result of a discovery.
func (t *Table) Found(hosts []horovod.Host) { t.found = slices.Clone(hosts) }

// Look returns the hosts that can be used, oldest first, and what became different since the last look. The end of a
// cool-down counts as an added host.
func (t *Table) Look(now time.Time) ([]horovod.Host, notify.Change) {
	slots := map[string]int{}
	for _, h := range t.found {
		if h.Slots > 0 && !t.Bad(h.Name, now) {
			slots[h.Name] = h.Slots
		}
	}
	change := notify.NoChange
	var usable []horovod.Host
	for _, h := range t.usable {
		n, still := slots[h.Name]
		if n < h.Slots {
			change |= notify.Removed
		}
		if n > h.Slots {
			change |= notify.Added
		}
		if still {
			usable = append(usable, horovod.Host{Name: h.Name, Slots: n})
			delete(slots, h.Name)
		}
	}
	for _, h := range t.found {
		if n, fresh := slots[h.Name]; fresh {
			change |= notify.Added
			usable = append(usable, horovod.Host{Name: h.Name, Slots: n})
			delete(slots, h.Name)
		}
	}
	t.usable = usable
	return slices.Clone(usable), change
}

// First moves the hosts that have what the others need in front of them, and returns all.
func (t *Table) First(has func(host string) bool) []horovod.Host {
	var first, rest []horovod.Host
	for _, h := range t.usable {
		if has(h.Name) {
			first = append(first, h)
		} else {
			rest = append(rest, h)
		}
	}
	t.usable = append(first, rest...)
	return slices.Clone(t.usable)
}

// Bad reports whether a host is not to be used.
func (t *Table) Bad(host string, now time.Time) bool {
	b, ok := t.bad[host]
	return ok && (b.until.IsZero() || now.Before(b.until))
}

// Blacklist takes a host out of use and returns until when; zero is for ever. One that is out of use already stays so
// for the time it had.
func (t *Table) Blacklist(host string, now time.Time) time.Time {
	b := t.bad[host]
	if t.Bad(host, now) {
		return b.until
	}
	b.times++
	b.until = time.Time{}
	if t.cooldown.Max > 0 {
		b.until = now.Add(t.cooldown.delay(b.times))
	}
	t.bad[host] = b
	t.usable = slices.DeleteFunc(t.usable, func(h horovod.Host) bool { return h.Name == host })
	return b.until
}
