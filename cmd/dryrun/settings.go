package dryrun

import (
	"slices"
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

// showing is how --dry-run shows what may hold secrets.
type showing struct {
	// all has all values shown, not only those that everybody may see.
	all bool
	// command are the words of the job's command, and shown those that stand for them; nil: they are shown as they are.
	command, shown []string
}

func showingOf(req dialect.Request) showing {
	s := showing{all: req.ShowValues}
	if req.Shown != nil {
		s.command, s.shown = append([]string{req.Job.Command.Name}, req.Job.Command.Args...), req.Shown
	}
	return s
}

func (s showing) value(v job.Var) string {
	if s.all {
		return v.Value
	}
	return v.Shown()
}

// args are the words of a command line. The job's own stand at the end of it.
func (s showing) args(args []string) []string {
	if s.all {
		return args
	}
	first := len(args) - len(s.shown)
	if s.shown != nil && len(s.shown) == len(s.command) && first >= 0 && slices.Equal(args[first+1:], s.command[1:]) {
		behind := s.shown[1:]
		if args[first] == s.command[0] { // else another Python runs it
			behind = s.shown
		}
		args = slices.Concat(args[:len(args)-len(behind)], behind)
	}
	return job.ShownArgs(args)
}

// text is a sentence in which a word of the command may stand.
func (s showing) text(text string) string {
	const least = 4 // letters, as a script has: shorter ones stand in many words
	for i, word := range s.command {
		if !s.all && i < len(s.shown) && word != s.shown[i] && len(word) >= least {
			text = strings.ReplaceAll(text, word, s.shown[i])
		}
	}
	return text
}

// path is what a worker executes.
func (s showing) path(path string) string {
	if s.all || s.shown == nil || s.shown[0] == s.command[0] || !strings.HasSuffix(path, s.command[0]) {
		return path
	}
	return s.shown[0]
}
