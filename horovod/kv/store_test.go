package kv

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"muster/internal/testutil"
)

func TestStoreIsBounded(t *testing.T) {
	s := newStore(1000 + scopeOverhead)
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

// What the store holds is what its budget counts, whatever is put into it: names of scopes, keys and values, few or
// many, and what the memory of a request would be held for.
func TestBudgetIsMemory(t *testing.T) {
	testutil.Long(t)
	const budget = 16 << 20
	line := func(scope, key string) (string, string) { // as they come: parts of one text
		text := strings.Clone("/" + scope + "/" + key)
		return text[1 : 1+len(scope)], text[2+len(scope):]
	}
	for name, next := range map[string]func(i int) (scope, key string, value []byte){
		"long names of scopes": func(i int) (string, string, []byte) {
			scope, key := line(fmt.Sprintf("%04000d", i), "k")
			return scope, key, nil
		},
		"short names of scopes": func(i int) (string, string, []byte) {
			scope, key := line(strconv.Itoa(i), "k")
			return scope, key, nil
		},
		"keys": func(i int) (string, string, []byte) {
			scope, key := line("scope", strconv.Itoa(i))
			return scope, key, nil
		},
		"keys of large requests": func(i int) (string, string, []byte) {
			scope, key := line(strings.Repeat("s", 4000), strconv.Itoa(i))
			return scope, key, []byte{1}
		},
		"values": func(i int) (string, string, []byte) {
			scope, key := line("scope", strconv.Itoa(i))
			return scope, key, make([]byte, 5000)
		},
	} {
		s := newStore(budget)
		held := heap()
		n := 0
		for ; ; n++ {
			if !s.put(next(n)) {
				break
			}
		}
		if grown := heap() - held; grown > 5*budget/4 || grown < budget/4 {
			t.Errorf("%s: %d entries hold %d KiB, and the budget is %d KiB", name, n, grown>>10, budget>>10)
		}
		s.begin(nil)
		if s.used != 0 {
			t.Errorf("%s: %d bytes of an empty store are used", name, s.used)
		}
	}
}

// heap is how much memory is in use.
func heap() int64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}
