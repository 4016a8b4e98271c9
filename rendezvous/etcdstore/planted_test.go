package etcdstore_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/etcdstore"
)

// TestPlantedValues puts under a key what has the form of our longer values, and stands for nothing. It is a value like
// any other: whoever reads it can tell that nobody of the job has written it, and writes there what belongs there. It
// keeps nobody waiting.
func TestPlantedValues(t *testing.T) {
	c := testutil.Etcd(t, 1)
	s := open(t, job(c))
	for name, text := range map[string]string{
		"pieces that are not there": "\xfemuster:600000:0123456789abcdef/1",
		"of no length":              "\xfemuster:x:0123456789abcdef/1",
		"of no kind":                "\xfemuster?",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			want := []byte(text)
			must(t, s.Plant(ctx, name, text))
			if got, err := s.Get(ctx, name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("GET: %q, %v", got, err)
			}
			got, err := s.CompareAndSet(ctx, name, nil, []byte("ours"))
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("COMPARE_SET that expects nothing: %q, %v", got, err)
			}
			if got, err = s.CompareAndSet(ctx, name, got, []byte("ours")); err != nil || string(got) != "ours" {
				t.Errorf("COMPARE_SET that expects it: %q, %v", got, err)
			}
			must(t, s.Plant(ctx, name, text))
			if _, err := s.Add(ctx, name, 1); err == nil || ctx.Err() != nil {
				t.Errorf("ADD: %v", err)
			}
			must(t, s.Set(ctx, name, bytes.Repeat([]byte("1"), etcdstore.MaxPlain+1)))
			if got, err := s.Get(ctx, name); err != nil || len(got) != etcdstore.MaxPlain+1 {
				t.Errorf("a long value in its place: %d bytes, %v", len(got), err)
			}
		})
	}
}
