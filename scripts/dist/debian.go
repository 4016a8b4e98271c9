package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/md5"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// maintainer is who answers for the package where nobody says who has built it: a name, and no address.
	maintainer = "The muster authors <no-address@muster.invalid>"
	copyright  = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: muster

Files: *
Copyright: the muster authors
License: Apache-2.0
Comment: THIRD-PARTY-NOTICES.txt.gz beside this file has the licences of the software inside.

License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
`
)

// debian is a Debian package, as deb(5) describes it: an ar file of three members.
func debian(r *release) (name string, content []byte, err error) {
	files, err := debianFiles(r)
	if err != nil {
		return "", nil, err
	}
	var sums strings.Builder
	size := 0
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.content), f.name)
		size += (len(f.content) + 1023) / 1024
	}
	control := fmt.Sprintf(`Package: %s
Version: %s
Architecture: %s
Maintainer: %s
Installed-Size: %d
Recommends: python3
Suggests: openssh-client
Section: science
Priority: optional
Description: %s
 Put muster in front of torchrun, dlrover-run, horovodrun, deepspeed, colossalai
 run, accelerate launch or a simple mpirun, and the same job runs: restarted at
 once, with the failing worker named, and nothing left behind. It is one static
 binary, and needs no Python of its own.
`, distribution, r.version.debian(), r.arch, cmp.Or(r.maintainer, maintainer), size, strings.ToLower(summary[:1])+summary[1:])
	head, err := r.packed([]file{{"control", []byte(control), 0o644}, {"md5sums", []byte(sums.String()), 0o644}}, "./", r.made)
	if err != nil {
		return "", nil, err
	}
	data, err := r.packed(files, "./", r.made)
	if err != nil {
		return "", nil, err
	}
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, m := range []file{{"debian-binary", []byte("2.0\n"), 0}, {"control.tar.gz", head, 0}, {"data.tar.gz", data, 0}} {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, r.made.Unix(), 0, 0, "100644", len(m.content))
		out.Write(m.content)
		if len(m.content)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return fmt.Sprintf("%s_%s_%s.deb", distribution, r.version.debian(), r.arch), out.Bytes(), nil
}

func debianFiles(r *release) ([]file, error) {
	changes, err := os.ReadFile(filepath.Join(r.source, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	const doc = "usr/share/doc/" + distribution + "/"
	files := []file{{"usr/bin/muster", r.binary, 0o755}, {doc + "copyright", []byte(copyright), 0o644}}
	zipped := []file{{doc + "changelog", changes, 0o644}, {doc + "THIRD-PARTY-NOTICES.txt", r.notices, 0o644}}
	pages, err := tree(filepath.Join(r.shared, "man"), "usr/share/man/man1/",
		func(name string) bool { return strings.HasSuffix(name, ".1") })
	if err != nil {
		return nil, err
	}
	if len(pages) == 0 {
		return nil, fmt.Errorf("there are no man pages in %s", r.shared)
	}
	for _, f := range append(zipped, pages...) {
		content, err := r.gzipped(f.content)
		if err != nil {
			return nil, err
		}
		files = append(files, file{f.name + ".gz", content, f.mode})
	}
	for shell, at := range map[string]string{
		"bash": "usr/share/bash-completion/completions/muster", "zsh": "usr/share/zsh/vendor-completions/_muster",
		"fish": "usr/share/fish/vendor_completions.d/muster.fish",
	} {
		content, err := os.ReadFile(filepath.Join(r.shared, "completion", shell))
		if err != nil {
			return nil, err
		}
		files = append(files, file{at, content, 0o644})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return files, nil
}

// packed is a gzipped tar file in which everything belongs to root, with the directories that the files need.
func (r *release) packed(files []file, prefix string, made time.Time) ([]byte, error) {
	plain, err := tarred(files, prefix, made)
	if err != nil {
		return nil, err
	}
	return r.gzipped(plain)
}

func tarred(files []file, prefix string, made time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	there := map[string]bool{".": true}
	var directories func(name string) error
	directories = func(name string) error {
		if there[name] {
			return nil
		}
		if err := directories(path.Dir(name)); err != nil {
			return err
		}
		there[name] = true
		return w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir, Name: prefix + name + "/", Mode: 0o755, ModTime: made, Uname: "root",
			Gname: "root", Format: tar.FormatGNU,
		})
	}
	if prefix != "" {
		if err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir, Name: prefix, Mode: 0o755, ModTime: made, Uname: "root", Gname: "root",
			Format: tar.FormatGNU,
		}); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		if err := directories(path.Dir(strings.TrimSuffix(f.name, "/"))); err != nil {
			return nil, err
		}
		head := &tar.Header{
			Typeflag: tar.TypeReg, Name: prefix + f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: made,
			Uname: "root", Gname: "root", Format: tar.FormatGNU,
		}
		if strings.HasSuffix(f.name, "/") { // an empty directory
			head.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(head); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
