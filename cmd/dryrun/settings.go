package dryrun

import (
	"strings"

	"muster/cmd/dialect"
	"muster/launch/job"
)

type setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// settings are a request's settings as --dry-run shows them: those that were given or derived, with --all and for
// machines those that have their defaults, too. A flag that a launcher and muster both have stands there once, with its
// stronger source.
func settings(req dialect.Request) []setting {
	flags := []setting{}
	strongest := map[string]job.SourceKind{}
	for _, s := range req.Settings {
		strongest[s.Flag] = max(strongest[s.Flag], s.Source.Kind)
	}
	shown := map[string]bool{}
	for _, s := range req.Settings {
		name := strings.ReplaceAll(s.Flag, "_", "-")
		byDefault := s.Source.Kind == job.FromDefault
		if shown[name] || s.Source.Kind < strongest[s.Flag] || byDefault && !req.All && !req.JSON {
			continue
		}
		shown[name] = true
		value := s.Value
		if req.ShowValues {
			value = s.Full
		}
		flags = append(flags, setting{Name: s.Flag, Value: value, Source: s.Source.String()})
	}
	return flags
}

// showing is whether --dry-run shows all values, or those that everybody may see.
type showing bool

func showingOf(req dialect.Request) showing { return showing(req.ShowValues) }
