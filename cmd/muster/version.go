package main

import (
	"context"
	"encoding/json"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"muster/internal/accel/probe"
	"muster/internal/onpath"
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
	Others []onpath.Muster `json:"others"`
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
				say(a.stderr, "muster: warning: %s\n", other.Sentence(a.version))
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
	about.Others = onpath.Musters(ctx, a.here.Environ)
	return about
}
