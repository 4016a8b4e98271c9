package dialect

import (
	"strings"

	"muster/launch/job"
)

// Setting is a flag's value and where it came from, for --dry-run.
type Setting struct {
	// Flag is the flag's name without its dashes.
	Flag string
	// Value is what was given, as it may be shown to everybody, or the default; empty when there is none. Full is what
	// was given as it was written, secrets too.
	Value, Full string
	// Source is where the value came from.
	Source job.Source

	secret bool // the text of a Secret of a job file is in it
}

// finish is what waits until the job's nodes are known: it settles the checks, refuses what was given and is not read,
// unless something else is wrong already, and notes where everything came from. words are muster's own settings that were
// given.
func (r *Request) finish(words *ownWords, wrong *problems) error {
	settleCheck(r, words, wrong)
	if wrong.list == nil {
		r.unread(words, wrong)
	}
	if err := wrong.err(); err != nil {
		return err
	}
	r.sources()
	if len(r.Job.Hosts.Nodes) > 0 {
		r.finishHosts(words)
	}
	return nil
}

// sources notes the sources of all settings in the job.
func (r *Request) sources() {
	if r.Job.Sources == nil {
		r.Job.Sources = job.Sources{}
	}
	for i := range r.Settings {
		s := &r.Settings[i]
		s.hide()
		if s.Source.Kind != job.FromDefault {
			r.Job.Sources[s.Flag] = s.Source
		}
	}
}

// givesVariables are the flags whose words are NAME=VALUE for the workers: our own, and mpirun's.
var givesVariables = map[string]bool{"env": true, "x": true}

// hide leaves out of Value what is not known to be harmless.
func (s *Setting) hide() {
	if s.Full != "" {
		return // it is hidden already: a dialect that is made of another one comes here twice
	}
	words := strings.Split(s.Value, several)
	if s.Full = strings.Join(words, " "); s.secret {
		s.Value = job.Var{Value: s.Full, Secret: true}.Shown()
		return
	}
	for i, word := range words {
		name, value, given := strings.Cut(word, "=")
		switch {
		case !givesVariables[s.Flag]:
			words[i] = job.ShownText(word)
		case given:
			words[i] = name + "=" + job.Var{Name: name, Value: value}.Shown()
		}
	}
	s.Value = strings.Join(words, " ")
}
