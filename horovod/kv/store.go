package kv

import (
	"errors"
	"strings"
	"sync"
)

// What an entry and a scope cost beside their names and values, in bytes, as it was measured: their places in maps that
// have just grown.
const (
	overhead      = 192
	scopeOverhead = 768
)

var errFull = errors.New("the store is full")

// store holds values by scope and key, within a budget of bytes.
type store struct {
	budget int64

	mu     sync.Mutex
	used   int64
	scopes map[string]*scope
	sizes  map[string]int // members of the scopes that the world has
}

// scope is where some workers meet.
type scope struct {
	entries   map[string]entry
	addresses int // entries that are a member's addresses
	finished  int // members that need the scope no more
}

type entry struct {
	value    []byte
	finished bool
}

func newStore(budget int64) *store {
	s := &store{budget: budget}
	s.begin(nil)
	return s
}

func (s *store) begin(sizes map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.scopes {
		s.dropLocked(name)
	}
	s.scopes, s.sizes = map[string]*scope{}, sizes
}

func (s *store) get(name, key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.scopes[name]
	if in == nil {
		return nil, false
	}
	e, ok := in.entries[key]
	return e.value, ok
}

// put keeps value, which nobody changes any more, and reports whether there was room.
func (s *store) put(name, key string, value []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.scopes[name]
	more := cost(key, value)
	var before entry
	had := false
	if in == nil {
		more += scopeCost(name)
	} else if before, had = in.entries[key]; had {
		more -= cost(key, before.value)
	}
	if s.used+more > s.budget {
		return false
	}
	s.used += more
	if in == nil {
		in = &scope{entries: map[string]entry{}}
		s.scopes[strings.Clone(name)] = in // a part of a request would keep all of it
	}
	if !had {
		key = strings.Clone(key)
		if isAddress(key) {
			in.addresses++
		}
	}
	in.entries[key] = entry{value, before.finished}
	return true
}

func cost(key string, value []byte) int64 { return int64(len(key)+cap(value)) + overhead }

func scopeCost(name string) int64 { return int64(len(name)) + scopeOverhead }

// finish notes that a member has found its peers. When all members of a scope have, its values are dropped, so that the
// same world can meet again under the same names. Scopes that are not of the world are those of process sets, whose
// number of members nobody told us: each member takes its own value away. A member may say it twice, where its first
// answer was lost.
func (s *store) finish(name, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.scopes[name]
	if in == nil {
		return
	}
	e, ok := in.entries[key]
	size, ours := s.sizes[name]
	if !ours {
		if ok {
			s.used -= cost(key, e.value)
			delete(in.entries, key)
			if isAddress(key) {
				in.addresses--
			}
		}
		if in.addresses == 0 { // what members say of themselves under rank_N goes with the last address
			s.dropLocked(name)
		}
		return
	}
	if !ok {
		return // nobody who met here, or said already when the others had too
	}
	if !e.finished {
		e.finished = true
		in.entries[key] = e
		in.finished++
	}
	if in.finished >= size {
		s.dropLocked(name)
	}
}

// isAddress reports whether a key is that of a member's addresses, which is its number.
func isAddress(key string) bool { return key != "" && strings.Trim(key, "0123456789") == "" }

func (s *store) dropLocked(name string) {
	in := s.scopes[name]
	if in == nil {
		return
	}
	for key, e := range in.entries {
		s.used -= cost(key, e.value)
	}
	s.used -= scopeCost(name)
	delete(s.scopes, name)
}

// reserve takes n bytes of the budget for a body that arrives, release gives them back.
func (s *store) reserve(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used+n > s.budget {
		return false
	}
	s.used += n
	return true
}

func (s *store) release(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
}
