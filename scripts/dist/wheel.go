package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// wheelTags are the platforms of each architecture. The binary is static and starts on every C library: installers of
// glibc's world look for the first two, of musl's for the last ones.
var wheelTags = map[string][]string{
	"amd64": {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64", "musllinux_1_2_x86_64"},
	"arm64": {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64", "musllinux_1_2_aarch64"},
}

// wheel is a zip file of the form in the Python Packaging User Guide ("Binary distribution format").
func wheel(r *release) (name string, content []byte, err error) {
	files, stem, err := wheelFiles(r)
	if err != nil {
		return "", nil, err
	}
	record := stem + ".dist-info/RECORD"
	var lines strings.Builder
	for _, f := range files {
		sum := sha256.Sum256(f.content)
		fmt.Fprintf(&lines, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.content))
	}
	files = append(files, file{record, []byte(lines.String() + record + ",,\n"), 0o644})

	var out bytes.Buffer
	w := zip.NewWriter(&out)
	w.RegisterCompressor(zip.Deflate, func(to io.Writer) (io.WriteCloser, error) { return r.deflate(to) })
	made := r.made
	if oldest := time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC); made.Before(oldest) { // zip files know no earlier time
		made = oldest
	}
	for _, f := range files {
		head := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: made}
		head.SetMode(os.FileMode(f.mode))
		to, err := w.CreateHeader(head)
		if err != nil {
			return "", nil, err
		}
		if _, err := to.Write(f.content); err != nil {
			return "", nil, err
		}
	}
	err = w.Close() // it writes the directory
	return stem + "-py3-none-" + strings.Join(wheelTags[r.arch], ".") + ".whl", out.Bytes(), err
}

// wheelFiles are the files of a wheel but for the list of them, metadata last as the form wants it. Our package dlrover
// stays out: it would hide the real one, and muster puts it on the path of its workers where none is installed.
func wheelFiles(r *release) (files []file, stem string, err error) {
	number, err := r.version.python()
	if err != nil {
		return nil, "", err
	}
	stem = strings.ReplaceAll(distribution, "-", "_") + "-" + number
	info := stem + ".dist-info/"
	ours := func(name string) bool { return slices.Contains([]string{".py", ".pyi", ".typed"}, filepath.Ext(name)) }
	for _, dir := range []string{"internal/python/checkpoint/muster", "scripts/dist/python/muster"} {
		found, err := tree(filepath.Join(r.source, dir), "muster/", ours)
		if err != nil {
			return nil, "", err
		}
		files = append(files, found...)
	}
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return nil, "", err
	}
	about, err := wheelMetadata(r.source, number)
	if err != nil {
		return nil, "", err
	}
	form := "Wheel-Version: 1.0\nGenerator: muster scripts/dist\nRoot-Is-Purelib: false\n"
	form += "Tag: py3-none-" + strings.Join(wheelTags[r.arch], "\nTag: py3-none-") + "\n"
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return append(files,
		file{stem + ".data/scripts/muster", r.binary, 0o755},
		file{info + "licenses/LICENSE", license, 0o644},
		file{info + "licenses/THIRD-PARTY-NOTICES.txt", r.notices, 0o644},
		file{info + "sboms/" + r.sbomName, r.sbom, 0o644},
		file{info + "METADATA", about, 0o644},
		file{info + "WHEEL", []byte(form), 0o644},
	), stem, nil
}

var (
	pictureOnPage = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)\n?`)
	linkOnPage    = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)
)

func wheelMetadata(source, number string) ([]byte, error) {
	page, err := os.ReadFile(filepath.Join(source, "README.md"))
	if err != nil {
		return nil, err
	}
	// On an index the page has no files beside it: links into the repository lead nowhere, so their text stays.
	page = pictureOnPage.ReplaceAll(page, nil)
	page = linkOnPage.ReplaceAllFunc(page, func(link []byte) []byte {
		if m := linkOnPage.FindSubmatch(link); !bytes.HasPrefix(m[2], []byte("http")) {
			return m[1]
		}
		return link
	})
	return fmt.Appendf(nil, `Metadata-Version: 2.4
Name: %s
Version: %s
Summary: %s
Keywords: pytorch,distributed,training,launcher,torchrun,horovod,deepspeed
License-Expression: Apache-2.0
License-File: LICENSE
License-File: THIRD-PARTY-NOTICES.txt
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Typing :: Typed
Requires-Python: >=3.8
Description-Content-Type: text/markdown

%s`, distribution, number, summary, page), nil
}
