package checkpointd

import (
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"
)

func TestCombinedChecksums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first, second := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "first"), rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "second")
		second = append(second, make([]byte, rapid.SampledFrom([]int{0, 1, 7, 4096, 1 << 20}).Draw(t, "zeros"))...)
		for _, c := range []*combiner{ieeeCombiner(), castagnoliCombiner()} {
			table := crc32.MakeTable(c.poly)
			want := crc32.Update(crc32.Checksum(first, table), table, second)
			if got := c.join(crc32.Checksum(first, table), crc32.Checksum(second, table), int64(len(second))); got != want {
				t.Fatalf("polynomial %08x: %08x, want %08x", c.poly, got, want)
			}
		}
	})
}
