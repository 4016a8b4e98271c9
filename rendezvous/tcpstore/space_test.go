//go:build linux

package tcpstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What queues take counts against the limit: their names, and the places of elements that were popped.
func TestQueuesAreBounded(t *testing.T) {
	const total = 4 << 20
	s := newSpace(Limits{Total: total}.withDefaults(), "", &blobPool{})
	c := conn{loop: &loop{}}
	c.conn = &c
	do := func(o op, r []byte) error {
		var out reply
		err := s.roomForLocked(o, request(r), len(r)+1, &c.waiter)
		if err == nil {
			err = s.do(o, request(r), &c.waiter, &out)
		}
		return err
	}
	names := 0
	for i := 0; ; i++ {
		name := fmt.Sprint(i) + strings.Repeat("x", 8000)
		if err := do(opQueuePush, appendBytes(appendBytes(nil, name), "")); errors.Is(err, errFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if names += len(name); names > total {
			t.Fatalf("%d queues have names of %d bytes together, and the limit is %d", i+1, names, total)
		}
	}
	s.workers.clearLocked()
	if s.stored != 0 {
		t.Errorf("%d bytes count when everything is gone", s.stored)
	}
	places := 0
	for i := range 50 {
		queue := appendBytes(nil, fmt.Sprint(i))
		for range 10_000 {
			if err := do(opQueuePush, appendBytes(slices.Clip(queue), "")); err != nil {
				t.Fatal(err)
			}
		}
		for range 9_999 {
			if err := do(opQueuePop, queue); err != nil {
				t.Fatal(err)
			}
		}
		places += cap(s.workers.queues[fmt.Sprint(i)].items)
	}
	if places > 50*2*fewPopped {
		t.Errorf("50 queues with one element each keep %d places", places)
	}
	for i := range 50 {
		if err := do(opQueuePop, appendBytes(nil, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if s.stored != 0 || len(s.workers.queues) != 0 {
		t.Errorf("%d bytes count when all was popped", s.stored)
	}
}

// BenchmarkRequests measures what a request costs under the lock of the space, beside its system calls.
func BenchmarkRequests(b *testing.B) {
	for _, bc := range []struct {
		name    string
		op      op
		request []byte
	}{
		{"set", opSet, appendBytes(appendBytes(nil, "/key/number/1"), "a value of 32 bytes for the test")},
		{"get", opGet, appendBytes(nil, "/key/number/1")},
		{"add", opAdd, appendU64(appendBytes(nil, "/counter"), 1)},
		{"wait, there", opWait, appendBytes(appendU64(nil, 1), "/key/number/1")},
	} {
		b.Run(bc.name, func(b *testing.B) {
			s := newSpace(Limits{}.withDefaults(), "", &blobPool{})
			s.workers.storeLocked([]byte("/key/number/1"), []byte("x"), nil)
			var c conn
			c.conn = &c
			var out reply
			b.ReportAllocs()
			for b.Loop() {
				s.mu.Lock()
				if err := s.do(bc.op, request(bc.request), &c.waiter, &out); err != nil {
					b.Fatal(err)
				}
				s.woken, c.due = s.woken[:0], 0
				s.mu.Unlock()
				out.reset()
			}
		})
	}
}
