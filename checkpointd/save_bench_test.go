package checkpointd

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rs/zerolog"
)

// BenchmarkSave is a step that the workers of a node save to memory, without its bytes: what the agent takes for it.
func BenchmarkSave(b *testing.B) {
	for _, shards := range []int{1, 8} {
		b.Run(strconv.Itoa(shards), func(b *testing.B) {
			s, err := Open(b.Context(), Config{
				Socket: filepath.Join(b.TempDir(), "socket"), RunID: "bench", Workers: shards,
				Memory: shm(b), Log: zerolog.Nop(),
			})
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					b.Error(err)
				}
			}()
			dir := b.TempDir()
			var workers []*client
			for shard := range shards {
				workers = append(workers, dial(b, s).hello(dir, shard, shards))
			}
			step := int64(0)
			for b.Loop() {
				step++
				for shard, w := range workers {
					w.save(step, shard, 4096, false)
				}
			}
		})
	}
}
