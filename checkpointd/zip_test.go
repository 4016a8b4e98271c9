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

	"muster/internal/testutil"
)

// TestArchive writes files of random parts, of records small and large, and has the standard library read the archives:
// names, contents, CRCs and the alignment of the data.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	n := 0
	sizes := rapid.SampledFrom([]int{0, 1, 63, 64, 100, 4096, smallRecord, smallRecord + 1, pieceSize + 5})
	rapid.Check(t, func(t *rapid.T) {
		n++
		if testutil.RaceDetector && !testutil.Soak() && rapid.IntRange(0, 3).Draw(t, "of four under the race detector") > 0 {
			return
		}
		slot := make([]byte, headerSize)
		add := func(size int) span {
			data := bytes.Repeat([]byte{byte(len(slot)), byte(size), 7}, size/3+1)[:size]
			slot = append(slot, data...)
			return span{int64(len(slot) - size), int64(size)}
		}
		var parts []part
		for range rapid.IntRange(1, 4).Draw(t, "parts") {
			if rapid.Bool().Draw(t, "bytes") {
				at := add(sizes.Draw(t, "size"))
				parts = append(parts, part{Bytes: &at})
				continue
			}
			p := part{}
			for i, size := range rapid.SliceOfN(sizes, 0, 6).Draw(t, "sizes") {
				p.Archive = append(p.Archive, record{"data/" + strconv.Itoa(i), add(size)})
			}
			p.Archive = append(p.Archive, record{pickleName, add(6)})
			parts = append(parts, p)
		}
		w, err := newFileWriter(slot, parts)
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
		size, sum, err := w.write(context.Background(), f)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(whole)) != size || crc32.Checksum(whole, castagnoli()) != sum {
			t.Fatalf("the file has %d bytes and CRC %08x, told were %d and %08x",
				len(whole), crc32.Checksum(whole, castagnoli()), size, sum)
		}
		runs := w.archives
		for _, p := range parts {
			if p.Bytes != nil {
				if want := slot[p.Bytes.Offset : p.Bytes.Offset+p.Bytes.Length]; !bytes.HasPrefix(whole, want) {
					t.Fatalf("%d bytes are others", len(want))
				}
				whole = whole[p.Bytes.Length:]
				continue
			}
			size := runs[0].directory + int64(len(zipDirectory(w.entries[runs[0].first:runs[0].end], runs[0].directory)))
			checkArchiveOf(t, slot, p.Archive, whole[:size])
			whole, runs = whole[size:], runs[1:]
		}
		if len(whole) > 0 {
			t.Fatalf("%d bytes too many", len(whole))
		}
	})
}

// checkArchiveOf makes sure that an archive has the records of a slot.
func checkArchiveOf(t *rapid.T, slot []byte, records []record, archive []byte) {
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	if len(z.File) != len(records)+2 || z.File[0].Name != "archive/data.pkl" {
		t.Fatalf("%d entries, the first %q", len(z.File), z.File[0].Name)
	}
	byName := map[string]record{}
	for _, r := range records {
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
			t.Fatalf("%s has other contents", file.Name)
		}
	}
}

// TestLargeArchive lays out entries and a directory beyond 4 GiB and 65,535 entries, in a file with holes.
func TestLargeArchive(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries := []zipEntry{
		{Name: "archive/data.pkl", Size: 3},
		{Name: "archive/data/0", Size: max32 - 1},
		{Name: "archive/data/1", Size: max32},
		{Name: "archive/data/2", Size: 6 << 30},
	}
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
