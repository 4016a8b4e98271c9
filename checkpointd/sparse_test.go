package checkpointd

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"muster/internal/testutil"
)

// TestHoles: a file of 8 TiB that has a few bytes on the disk is compared in no time, whatever its manifest says.
func TestHoles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "huge"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 8 << 40
	if err := f.Truncate(size); err != nil {
		testutil.Missing(t, fmt.Sprintf("a file system for %d bytes: %v", int64(size), err))
	}
	if _, err := f.WriteAt([]byte("here"), size/2); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := fileSum(ctx, f, size); err != nil {
		t.Error(err)
	}
}

// TestSumOfHoles compares the checksums of files with holes with those of their bytes, and those of files that end too
// soon.
func TestSumOfHoles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		size := rnd.Int64N(3 << 20)
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		for range rnd.IntN(5) {
			at := rnd.Int64N(size + 1)
			if _, err := f.WriteAt(make([]byte, min(100, size-at)), at); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("muster")[:min(6, size-at)], at); err != nil {
				t.Fatal(err)
			}
		}
		all, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int64{0, size / 2, size, size + 5} {
			want := fmt.Sprintf("%08x", crc32.Checksum(all[:min(n, size)], castagnoli()))
			if got, err := fileSum(t.Context(), f, n); err != nil || got != want {
				t.Errorf("file %d, %d of %d bytes: %s, %v; want %s", i, n, size, got, err, want)
			}
		}
		_ = f.Close()
	}
}

// TestSumOfMostHoles: no length is too large.
func TestSumOfMostHoles(t *testing.T) {
	half := ^castagnoliCombiner().join(^uint32(0), 0, 1<<62)
	if got, want := ^castagnoliCombiner().join(^uint32(0), 0, 1<<62+1<<61), ^castagnoliCombiner().join(^half, 0, 1<<61); got != want {
		t.Errorf("%08x, and in two parts %08x", got, want)
	}
}
