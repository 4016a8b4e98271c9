// Package show writes for people what a job tells of itself: how it stands (muster status), its ranks as they change
// (muster top), the jobs of a machine (muster ps) and what has happened (muster events).
// Everything is a function from data to text: who has asked for the data, and where the text goes, is known to
// cmd. Words of other people, such as names and messages, come out fit for a terminal.
package show

import (
	"fmt"
	"io"
)

// say writes to w. Who has given w hears of an error by the last write of a table, or not at all.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
