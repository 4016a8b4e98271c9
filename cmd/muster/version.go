package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"muster/internal/accel/probe"
	"muster/internal/lazyregexp"
	"muster/internal/printable"
	"muster/internal/proc"
)

// aboutVersion is what muster version --json prints. Programs read it: fields are added, never renamed.
type aboutVersion struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	Path    string `json:"path"` // of the executable, links followed
	// NVMLProbe says whether this build carries the probe, GoNVML with which version of NVIDIA's binding.
	NVMLProbe bool   `json:"nvml_probe"`
	GoNVML    string `json:"go_nvml,omitempty"`
	// Others are the other files on PATH that are called muster.
	Others []otherMuster `json:"others"`
}

// otherMuster is a file called muster that is another one than this.
type otherMuster struct {
	Path    string `json:"path"`
	Version string `json:"version,omitempty"` // empty where it does not say
	// InFront says that PATH has it before this one, so that it is the one that runs by its bare name.
	InFront bool `json:"in_front"`
}

// newVersionCmd is "muster version".
func newVersionCmd(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version [--json]",
		Short: "Show which muster this is, and which others are on PATH",
		Long: `Show this muster's version, what it was built with and where it lies. Versions follow
semantic versioning; v1.2.3-4-gabcdef012 was built 4 commits after the release v1.2.3.

Where PATH leads to another file called muster, a warning names it with its version, and
says which of the two runs when somebody types muster: after an upgrade the older one may
still stand in front.`,
		Example:     "  muster version\n  muster version --json",
		Annotations: map[string]string{exitAnnotation: "  0    shown\n  2    usage error\n  125  internal error of muster\n"},
		Args:        cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			about := a.aboutVersion(cmd.Context())
			if asJSON {
				return json.NewEncoder(a.stdout).Encode(about)
			}
			say(a.stdout, "muster version %s%s\n%s %s/%s, %s\n", a.version, probeText, about.Go, about.OS, about.Arch, about.Path)
			for _, other := range about.Others {
				say(a.stderr, "muster: warning: %s\n", other.sentence(a.version))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

func (a *app) aboutVersion(ctx context.Context) aboutVersion {
	p := probe.Describe()
	about := aboutVersion{
		Version: a.version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, NVMLProbe: p.Embedded,
		GoNVML: p.GoNVML,
	}
	about.Path, _ = os.Executable() // empty where /proc is not mounted
	about.Others = a.otherMusters(ctx)
	return about
}

// otherMusters looks along PATH for files called muster that are not this one, and asks each for its version.
func (a *app) otherMusters(ctx context.Context) []otherMuster {
	self, _ := os.Stat("/proc/self/exe")
	others, met := []otherMuster{}, false
	var seen []os.FileInfo
	for _, dir := range filepath.SplitList(a.getenv("PATH")) {
		if !filepath.IsAbs(dir) {
			continue // never what happens to lie in the working directory
		}
		path := filepath.Join(dir, "muster")
		st, err := os.Stat(path)
		if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 ||
			slices.ContainsFunc(seen, func(o os.FileInfo) bool { return os.SameFile(st, o) }) {
			continue
		}
		seen = append(seen, st)
		if self != nil && os.SameFile(self, st) {
			met = true
			continue
		}
		others = append(others, otherMuster{Path: path, Version: a.versionOf(ctx, path), InFront: !met})
	}
	if !met { // it was called by its path, and none of them hides it
		for i := range others {
			others[i].InFront = i == 0
		}
	}
	return others
}

// versionOf asks another muster for its version. It may be anything that has this name, so it is confined.
func (a *app) versionOf(ctx context.Context, path string) string {
	c, err := proc.Confine(ctx, proc.Confinement{
		Path: path, Args: []string{"muster", "--version"}, Env: a.environ,
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

// sentence says what the other one is to a user of this one.
func (o otherMuster) sentence(this string) string {
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
