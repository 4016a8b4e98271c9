// Package horovod knows how Horovod lays out a world: which process of which host has which rank, and by which
// variables a worker learns it. Its sub-packages are what a launcher of Horovod serves and does: the key-value store by
// which gloo finds its peers (kv), the messages that tell workers of new hosts (notify), finding hosts (discovery) and
// the driver of elastic jobs (elastic). Workers are unmodified Horovod; what is said of it here was read in release
// 0.28.1.
//
// This package is pure. None of them knows launch or cmd.
package horovod

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Host is a host and how many workers it takes.
type Host struct {
	Name  string
	Slots int
}

// Total returns the number of slots of all hosts.
func Total(hosts []Host) int {
	n := 0
	for _, h := range hosts {
		n += h.Slots
	}
	return n
}

// Slot is the place of one worker in a world.
type Slot struct {
	// Host is the host's name exactly as it was given.
	Host string
	// Rank counts all workers, LocalRank those of the host, CrossRank the hosts that have a worker of this local rank.
	Rank, LocalRank, CrossRank int
	// Size, LocalSize and CrossSize are how many of each there are.
	Size, LocalSize, CrossSize int
}

// ErrTooFewSlots is returned by Allocate where the hosts have fewer slots than the world needs.
var ErrTooFewSlots = errors.New("the hosts have too few slots")

// Allocate gives ranks to the slots of hosts in their order, at least least and at most most of them; most 0 takes all.
// Hosts behind the last rank get none.
func Allocate(hosts []Host, least, most int) ([]Slot, error) {
	var slots []Slot
	var crossSize []int // by local rank
	for _, h := range hosts {
		first := len(slots)
		for local := range h.Slots {
			if most > 0 && len(slots) == most {
				break
			}
			if local == len(crossSize) {
				crossSize = append(crossSize, 0)
			}
			slots = append(slots, Slot{Host: h.Name, Rank: len(slots), LocalRank: local, CrossRank: crossSize[local]})
			crossSize[local]++
		}
		for i := first; i < len(slots); i++ {
			slots[i].LocalSize = len(slots) - first
		}
	}
	if len(slots) < least {
		return nil, fmt.Errorf("cannot place %d workers: %w, %d", least, ErrTooFewSlots, len(slots))
	}
	for i := range slots {
		slots[i].Size, slots[i].CrossSize = len(slots), crossSize[slots[i].LocalRank]
	}
	return slots, nil
}

// Key names the slot towards the launcher: host:local_rank.
func (s Slot) Key() string { return Key(s.Host, s.LocalRank) }

// Key names a slot as a worker does.
func Key(host string, localRank int) string { return host + ":" + strconv.Itoa(localRank) }

// Place is the slot as an elastic worker asks for it: rank, size, local rank and size, cross rank and size.
func (s Slot) Place() string {
	var b strings.Builder
	for i, n := range []int{s.Rank, s.Size, s.LocalRank, s.LocalSize, s.CrossRank, s.CrossSize} {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}

// NoPlace is the answer to a worker that has no place in the world: its initialization fails, and it ends.
const NoPlace = "-1,-1,-1,-1,-1,-1"

// Env are the variables by which a worker learns its place when it starts, as "NAME=VALUE".
func (s Slot) Env() []string {
	number := func(name string, n int) string { return name + "=" + strconv.Itoa(n) }
	return []string{
		"HOROVOD_HOSTNAME=" + s.Host,
		number("HOROVOD_RANK", s.Rank), number("HOROVOD_SIZE", s.Size),
		number("HOROVOD_LOCAL_RANK", s.LocalRank), number("HOROVOD_LOCAL_SIZE", s.LocalSize),
		number("HOROVOD_CROSS_RANK", s.CrossRank), number("HOROVOD_CROSS_SIZE", s.CrossSize),
	}
}

// Scopes are the scopes in which the workers of a world look for each other, each with the number of its members.
func Scopes(slots []Slot) map[string]int {
	scopes := map[string]int{}
	for _, s := range slots {
		scopes[globalScope] = s.Size
		scopes["local_"+s.Host] = s.LocalSize
		scopes["cross_"+strconv.Itoa(s.LocalRank)] = s.CrossSize
	}
	return scopes
}

// globalScope is the scope of all workers.
const globalScope = "global"
