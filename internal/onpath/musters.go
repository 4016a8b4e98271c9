package onpath

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/lazyregexp"
	"muster/internal/printable"
	"muster/internal/proc"
)

// Muster is a file called muster that is another one than this.
type Muster struct {
	Path    string `json:"path"`
	Version string `json:"version,omitempty"` // empty where it does not say
	// InFront says that PATH has it before this one, so that it is the one that runs by its bare name.
	InFront bool `json:"in_front"`
}

// Version is the linker's version, else what the Go tool recorded of the checkout.
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "devel-" + s.Value[:12]
			}
		}
	}
	return "devel"
}

// Musters looks along PATH for files called muster that are not this one, and asks each for its version.
func Musters(ctx context.Context, environ []string) []Muster {
	self, _ := os.Stat("/proc/self/exe")
	path := variable(environ, "PATH")
	others, met := []Muster{}, false
	var seen []os.FileInfo
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // never what happens to lie in the working directory
		}
		file := filepath.Join(dir, "muster")
		st, err := os.Stat(file)
		if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 ||
			slices.ContainsFunc(seen, func(o os.FileInfo) bool { return os.SameFile(st, o) }) {
			continue
		}
		seen = append(seen, st)
		if self != nil && os.SameFile(self, st) {
			met = true
			continue
		}
		others = append(others, Muster{Path: file, Version: versionOf(ctx, file, environ), InFront: !met})
	}
	if !met { // it was called by its path, and none of them hides it
		for i := range others {
			others[i].InFront = i == 0
		}
	}
	return others
}

// versionOf asks another muster for its version. It may be anything that has this name, so it is confined.
func versionOf(ctx context.Context, path string, environ []string) string {
	c, err := proc.Confine(ctx, proc.Confinement{
		Path: path, Args: []string{"muster", "--version"}, Env: environ,
		Deadline: 3 * time.Second, Grace: time.Second, MaxStdout: 4 << 10, MaxStderr: 4 << 10,
	})
	if err != nil || c.Abandoned != nil || !c.Exit.Success() {
		return ""
	}
	line, _, _ := strings.Cut(string(c.Stdout), "\n")
	version, ok := strings.CutPrefix(line, "muster version ")
	if !ok {
		return ""
	}
	return printable.Line(version, 100)
}

// Sentence says what the other one is to a user of this one.
func (o Muster) Sentence(this string) string {
	what := "does not say its version"
	if o.Version != "" {
		what = "is version " + o.Version
		switch compareVersions(o.Version, this) {
		case -1:
			what += ", older than this one"
		case 1:
			what += ", newer than this one"
		}
	}
	if o.InFront {
		return fmt.Sprintf("%s stands in front on PATH and %s; muster runs that one: remove it, or put this one's directory first",
			o.Path, what)
	}
	return fmt.Sprintf("%s is on PATH, too, and %s; muster runs this one", o.Path, what)
}

// compareVersions orders two versions: -1 where a is older. Builds that say no version are 0 to all.
func compareVersions(a, b string) int {
	va, oka := parseVersion(a)
	vb, okb := parseVersion(b)
	if !oka || !okb {
		return 0
	}
	if c := slices.Compare(va.core[:], vb.core[:]); c != 0 {
		return c
	}
	if c := cmp.Compare(len(vb.pre), len(va.pre)); c != 0 && (len(va.pre) == 0 || len(vb.pre) == 0) {
		return c // a release is newer than what came before it
	}
	return cmp.Or(slices.CompareFunc(va.pre, vb.pre, comparePart), cmp.Compare(va.commits, vb.commits))
}

// comparePart orders a part of what stands behind the hyphen: numbers as numbers, and before words.
func comparePart(a, b string) int {
	na, erra := strconv.ParseUint(a, 10, 64)
	nb, errb := strconv.ParseUint(b, 10, 64)
	switch {
	case erra == nil && errb == nil:
		return cmp.Compare(na, nb)
	case erra == nil:
		return -1
	case errb == nil:
		return 1
	}
	return strings.Compare(a, b)
}

// numbered is a version: its three numbers, what stands behind a hyphen, and how many commits came after that tag.
type numbered struct {
	core    [3]uint64
	pre     []string
	commits uint64
}

// versionForm is what scripts/version.sh prints: a tag by semantic versioning, and behind it what git describe adds.
var versionForm = lazyregexp.New(`^v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+?))??(?:-(\d+)-g[0-9a-f]+)?(?:-dirty)?(?:\+\S*)?$`)

func parseVersion(text string) (v numbered, ok bool) {
	m := versionForm().FindStringSubmatch(text)
	if m == nil {
		return numbered{}, false
	}
	for i := range v.core {
		var err error
		if v.core[i], err = strconv.ParseUint(m[i+1], 10, 64); err != nil {
			return numbered{}, false
		}
	}
	if m[4] != "" {
		v.pre = strings.Split(m[4], ".")
	}
	if m[5] != "" {
		var err error
		if v.commits, err = strconv.ParseUint(m[5], 10, 64); err != nil {
			return numbered{}, false
		}
	}
	return v, true
}

// variable is a variable of an environment, empty where it is not set.
func variable(environ []string, name string) string {
	for _, kv := range environ {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}
