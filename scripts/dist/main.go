// Command dist makes the packages of one architecture from a binary: a wheel for pip, a Debian package, a container
// image, a list of what is inside (SPDX), and the licences of it. scripts/dist.sh builds what it needs, and calls it.
// The same input gives the same bytes: nothing depends on the clock, on the user, or on the order in which a directory
// is read.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"time"
)

// distribution is the name of the packages. The name muster alone is another project's on the Python package index.
const distribution = "muster-launch"

// budget is what a wheel, a Debian package or an image may have at most.
const budget = 15_000_000

const summary = "Launches distributed training in place of torchrun and its relatives"

// release is what is packed, and where it comes from.
type release struct {
	version    version
	arch       string    // as Go names it
	made       time.Time // of every file inside
	maintainer string    // who answers for the Debian package, "": the authors
	source     string    // the root of the repository
	shared     string    // man pages and completions
	goroot     string
	out        string
	binary     []byte
	deflated   []byte // the binary, compressed by the first who needs it
	notices    []byte
	sbom       []byte
	sbomName   string
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("dist: ")
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("dist", flag.ContinueOnError)
	var r release
	var text, modules string
	var epoch int64
	var more []string
	flags.StringVar(&text, "version", "", "as scripts/version.sh prints it")
	flags.StringVar(&r.arch, "arch", "", "amd64 or arm64")
	flags.Int64Var(&epoch, "epoch", -1, "the time of every file, in seconds since 1970")
	flags.StringVar(&r.maintainer, "maintainer", "", "who answers for the Debian package: NAME <ADDRESS>")
	flags.StringVar(&r.source, "source", ".", "the root of the repository")
	flags.StringVar(&r.shared, "shared", "", "directory with man/ and completion/")
	flags.StringVar(&r.goroot, "goroot", "", "where Go's licence lies")
	flags.StringVar(&modules, "modules", "", "file with the output of go list -m -json all")
	flags.Func("module", "module that is inside as data, not as Go code", func(m string) error { more = append(more, m); return nil })
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || epoch < 0 || r.shared == "" || modules == "" || r.goroot == "" {
		return fmt.Errorf(
			"usage: dist -version V -arch A -epoch N -shared DIR -goroot DIR -modules FILE OUTDIR, with muster-linux-ARCH in OUTDIR")
	}
	r.out, r.made = flags.Arg(0), time.Unix(epoch, 0).UTC()
	if _, known := wheelTags[r.arch]; !known {
		return fmt.Errorf("architecture %q is not known: choose amd64 or arm64", r.arch)
	}
	var err error
	if r.version, err = parseVersion(text); err != nil {
		return err
	}
	name := "muster-linux-" + r.arch
	if r.binary, err = os.ReadFile(filepath.Join(r.out, name)); err != nil {
		return err
	}
	parts, err := readParts(filepath.Join(r.out, name), modules, r.goroot, more)
	if err != nil {
		return err
	}
	r.notices, r.sbomName = notices(text, parts), name+".spdx.json"
	if r.sbom, err = sbom(&r, name, parts); err != nil {
		return err
	}
	files := map[string][]byte{r.sbomName: r.sbom, name + ".THIRD-PARTY-NOTICES.txt": r.notices}
	for _, pack := range []func(*release) (string, []byte, error){wheel, debian, image} {
		packed, content, err := pack(&r)
		if err != nil {
			return err
		}
		if len(content) > budget {
			return fmt.Errorf("%s has %d bytes, more than its budget of %d", packed, len(content), budget)
		}
		files[packed] = content
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(r.out, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// file is one that goes into an archive.
type file struct {
	name    string // with slashes, relative
	content []byte
	mode    int64
}

// tree returns the files below dir whose name keep takes, under the names that they have there, with a prefix.
func tree(dir, prefix string, keep func(name string) bool) ([]file, error) {
	var files []file
	from := os.DirFS(dir)
	err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !keep(d.Name()) {
			return err
		}
		content, err := fs.ReadFile(from, name)
		files = append(files, file{prefix + name, content, 0o644})
		return err
	})
	return files, err
}
