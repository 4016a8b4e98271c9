//go:build linux

package tcpstore

import "testing"

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
