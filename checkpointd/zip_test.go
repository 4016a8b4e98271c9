package checkpointd

import (
	"archive/zip"
	"bytes"
	"context"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// TestArchive writes random records, small and large, and has the standard library read them: names, contents, CRCs and the
// alignment of the data.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 63, 64, 100, 4096, smallRecord, smallRecord + 1, pieceSize + 5}), 0, 12).Draw(t, "sizes")
		slot := make([]byte, headerSize)
		l := layout{}
		add := func(name string, data []byte) {
			l.Records = append(l.Records, record{name, int64(len(slot)), int64(len(data))})
			slot = append(slot, data...)
		}
		for i, size := range sizes {
			add("data/"+strconv.Itoa(i), bytes.Repeat([]byte{byte(i + 1), byte(size), 7}, size/3+1)[:size])
		}
		add("data.pkl", []byte("pickle"))
		w, at, err := newArchiveWriter(slot, l)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, strconv.Itoa(n))
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		defer f.Close()
		size, sum, err := w.archive(context.Background(), f, at)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(whole)) != size || crc32.Checksum(whole, castagnoli) != sum {
			t.Fatalf("the file has %d bytes and CRC %08x, told were %d and %08x", len(whole), crc32.Checksum(whole, castagnoli), size, sum)
		}
		z, err := zip.NewReader(bytes.NewReader(whole), size)
		if err != nil {
			t.Fatal(err)
		}
		if len(z.File) != len(l.Records)+2 || z.File[0].Name != "archive/data.pkl" {
			t.Fatalf("%d entries, the first %q", len(z.File), z.File[0].Name)
		}
		byName := map[string]record{}
		for _, r := range l.Records {
			byName[archiveName+r.Name] = r
		}
		for _, file := range z.File {
			if off, err := file.DataOffset(); err != nil || off%archiveAlign != 0 {
				t.Errorf("%s lies at %d: %v", file.Name, off, err)
			}
			r, err := file.Open()
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r) // compares the CRC
			if err != nil {
				t.Fatalf("%s: %v", file.Name, err)
			}
			if want, ok := byName[file.Name]; ok && !bytes.Equal(got, slot[want.Offset:want.Offset+want.Length]) {
				t.Errorf("%s has other contents", file.Name)
			}
		}
	})
}

// TestLargeArchive lays out entries and a directory beyond 4 GiB and 65,535 entries, in a file with holes.
func TestLargeArchive(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries := []zipEntry{{Name: "archive/data.pkl", Size: 3}, {Name: "archive/data/0", Size: max32 - 1}, {Name: "archive/data/1", Size: max32}, {Name: "archive/data/2", Size: 6 << 30}}
	for i := range 70_000 {
		entries = append(entries, zipEntry{Name: "archive/data/small" + strconv.Itoa(i), Size: 1})
	}
	at, err := layoutZip(entries)
	if err != nil {
		t.Fatal(err)
	}
	for i := range entries {
		h := entries[i].local()
		if int64(len(h)) != entries[i].Header {
			t.Fatalf("header of %s has %d bytes instead of %d", entries[i].Name, len(h), entries[i].Header)
		}
		if i < 5 || i > 69_990 {
			if _, err := f.WriteAt(h, entries[i].Offset); err != nil {
				t.Fatal(err)
			}
		}
	}
	d := zipDirectory(entries, at)
	if _, err := f.WriteAt(d, at); err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(f, at+int64(len(d)))
	if err != nil {
		t.Fatal(err)
	}
	if len(z.File) != len(entries) {
		t.Fatalf("%d entries of %d", len(z.File), len(entries))
	}
	for i, file := range z.File {
		if file.UncompressedSize64 != uint64(entries[i].Size) || file.Name != entries[i].Name {
			t.Fatalf("entry %d is %s of %d bytes, want %s of %d", i, file.Name, file.UncompressedSize64, entries[i].Name, entries[i].Size)
		}
		if i < 5 || i > 69_990 {
			if off, err := file.DataOffset(); err != nil || off != entries[i].data() {
				t.Errorf("%s lies at %d, want %d: %v", file.Name, off, entries[i].data(), err)
			}
		}
	}
}
