package dialect

import (
	"fmt"
	"io"
	"text/tabwriter"

	"muster/launch"
)

// Setting is a flag's value and where it came from.
type Setting struct {
	// Flag is the flag's name without its dashes.
	Flag string
	// Value is what was given, as it was written, or the default; empty when there is none.
	Value string
	// Source is where the value came from.
	Source launch.Source
}

// Describe writes the settings as a table: flag, value, where it came from. The order is that of the help text.
func Describe(w io.Writer, settings []Setting) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range settings {
		value := s.Value
		if value == "" {
			value = "-"
		}
		if _, err := fmt.Fprintf(table, "%s\t%s\t%s\n", s.Flag, value, s.Source); err != nil {
			return err
		}
	}
	return table.Flush()
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
}
