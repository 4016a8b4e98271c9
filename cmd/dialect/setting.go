package dialect

import "muster/launch"

// Setting is a flag's value and where it came from, for --dry-run.
type Setting struct {
	// Flag is the flag's name without its dashes.
	Flag string
	// Value is what was given, as it was written, or the default; empty when there is none.
	Value string
	// Source is where the value came from.
	Source launch.Source
}

// finish notes the sources of all settings in the job.
func (r *Request) finish() {
	if r.Job.Sources == nil {
		r.Job.Sources = launch.Sources{}
	}
	for _, s := range r.Settings {
		if s.Source.Kind != launch.FromDefault {
			r.Job.Sources[s.Flag] = s.Source
		}
	}
	if len(r.Job.Hosts.Nodes) > 0 {
		r.finishHosts()
	}
}
