package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/internal/hardware"
	"muster/internal/hostaddr"
	"muster/internal/platform"
)

// surroundings are what a platform may be recognised by on this machine.
func (a *app) surroundings() dialect.Machine {
	count := func(fake string) (backend string, n int) {
		return hardware.Count(fake, a.fakeNode(hostname()), a.lookupEnv)
	}
	return dialect.Machine{Files: os.DirFS("/"), Hostname: hostname(), OwnAddr: hostaddr.Outward, Accelerators: count}
}

// workingDir is the working directory, empty where it cannot be told; plans are refused then.
func workingDir() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	return dir
}

// dryPlatform is what --dry-run tells of the platform.
type dryPlatform struct {
	Name    string   `json:"name"`
	FoundBy []string `json:"found_by"`
	Also    []string `json:"also_found,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

func newDryPlatform(f *platform.Facts) *dryPlatform {
	if f == nil {
		return nil
	}
	return &dryPlatform{f.Name, f.Why, f.Also, platformNotes(f)}
}

// String is all of it in a line.
func (d *dryPlatform) String() string {
	text := fmt.Sprintf("%s, found by %s", d.Name, strings.Join(d.FoundBy, ", "))
	if len(d.Also) > 0 {
		text += "; also found: " + strings.Join(d.Also, "; ")
	}
	if len(d.Notes) > 0 {
		text += "; " + strings.Join(d.Notes, "; ")
	}
	return text
}

// platformNotes are what else there is to know of it. A problem that did not keep the job from starting is one of them.
func platformNotes(f *platform.Facts) []string {
	if f.Problem == nil {
		return f.Notes
	}
	return append([]string{"its nodes are not taken into account: " + f.Problem.Why}, f.Notes...)
}

// tellPlatform logs what was found and what came of it.
func tellPlatform(req dialect.Request, log zerolog.Logger) {
	f, job := req.Platform, &req.Job
	if f == nil {
		return
	}
	e := log.Info().Str("platform", f.Name).Strs("found_by", f.Why)
	if len(f.Also) > 0 {
		e = e.Strs("also_found", f.Also)
	}
	if notes := platformNotes(f); len(notes) > 0 {
		e = e.Strs("notes", notes)
	}
	if !job.Alone() {
		e = e.Int("max_nodes", job.Nodes.Max)
		if rank := job.Meeting.NodeRank; rank >= 0 {
			e = e.Int("node_rank", rank)
		}
		if at := job.Meeting.Endpoints; len(at) > 0 {
			e = e.Stringer("meet_at", at[0])
		}
	}
	e.Msg("platform found")
}
