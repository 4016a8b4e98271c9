package kv

import (
	"errors"
	"sync"
)

// overhead is about what an entry costs beside its key and value, in bytes.
const overhead = 128

var errFull = errors.New("the store is full")

// store holds values by scope and key, within a budget of bytes.
type store struct {
	budget int64

	mu       sync.Mutex
	used     int64
	scopes   map[string]map[string][]byte
	sizes    map[string]int             // members of the scopes that the world has
	finished map[string]map[string]bool // members of those that need the scope no more
}

func newStore(budget int64) *store {
	s := &store{budget: budget}
	s.begin(nil)
	return s
}

func (s *store) begin(sizes map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for scope := range s.scopes {
		s.dropLocked(scope)
	}
	s.scopes, s.finished = map[string]map[string][]byte{}, map[string]map[string]bool{}
	s.sizes = sizes
}

func (s *store) get(scope, key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.scopes[scope][key]
	return value, ok
}

// put keeps value, which nobody changes any more, and reports whether there was room.
func (s *store) put(scope, key string, value []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, had := s.scopes[scope][key]
	more := cost(key, value)
	if had {
		more -= cost(key, before)
	}
	if s.used+more > s.budget {
		return false
	}
	s.used += more
	if s.scopes[scope] == nil {
		s.scopes[scope] = map[string][]byte{}
	}
	s.scopes[scope][key] = value
	return true
}

func cost(key string, value []byte) int64 { return int64(len(key)+cap(value)) + overhead }

// finish notes that a member has found its peers. When all members of a scope have, its values are dropped, so that the
// same world can meet again under the same names. Scopes that are not of the world are those of process sets, whose
// number of members nobody told us: each member takes its own value away. A member may say it twice, where its first
// answer was lost.
func (s *store) finish(scope, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, ours := s.sizes[scope]
	if !ours {
		if value, ok := s.scopes[scope][key]; ok {
			s.used -= cost(key, value)
			delete(s.scopes[scope], key)
		}
		// What members say of themselves under rank_N goes with the last address.
		for left := range s.scopes[scope] {
			if _, ok := addressOf(left); ok {
				return
			}
		}
		s.dropLocked(scope)
		return
	}
	if _, ok := s.scopes[scope][key]; !ok {
		return // nobody who met here, or said already when the others had too
	}
	if s.finished[scope] == nil {
		s.finished[scope] = map[string]bool{}
	}
	s.finished[scope][key] = true
	if len(s.finished[scope]) >= size {
		s.dropLocked(scope)
	}
}

// addressOf reports whether a key is that of a member's addresses, which is its number.
func addressOf(key string) (string, bool) {
	for _, c := range key {
		if c < '0' || c > '9' {
			return "", false
		}
	}
	return key, key != ""
}

func (s *store) dropLocked(scope string) {
	for key, value := range s.scopes[scope] {
		s.used -= cost(key, value)
	}
	delete(s.scopes, scope)
	delete(s.finished, scope)
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
