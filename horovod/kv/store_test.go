package kv

import "testing"

func TestStoreIsBounded(t *testing.T) {
	s := newStore(1000)
	if !s.put("s", "k", make([]byte, 800)) || s.put("s", "l", make([]byte, 800)) {
		t.Error("the budget does not count")
	}
	if !s.put("s", "k", make([]byte, 700)) {
		t.Error("a value cannot be replaced by a smaller one")
	}
	if !s.reserve(100) || s.reserve(100) {
		t.Error("bodies under way do not count")
	}
	s.release(100)
	s.finish("s", "k")
	if s.used != 0 {
		t.Errorf("%d bytes of an empty store are used", s.used)
	}
	s.put("s", "rank_1", nil)
	s.begin(map[string]int{"s": 1})
	s.put("s", "0", make([]byte, 10))
	s.finish("s", "0")
	if s.used != 0 || len(s.scopes) != 0 {
		t.Errorf("%d bytes, %v", s.used, s.scopes)
	}
}
