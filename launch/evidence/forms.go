package evidence

import (
	"io"
	"strings"
	"time"
)

// Form writes merged stacks. Some forms have a title and the time of the look in them.
type Form func(w io.Writer, title string, at time.Time, groups []Group) error

// forms are the forms, by the end of the name of a file in which they are.
var forms = map[string]Form{
	".txt":    func(w io.Writer, _ string, _ time.Time, g []Group) error { return WriteText(w, g) },
	".folded": func(w io.Writer, _ string, _ time.Time, g []Group) error { return WriteFolded(w, g) },
	".svg":    func(w io.Writer, title string, _ time.Time, g []Group) error { return WriteSVG(w, title, g) },
	".pb.gz":  func(w io.Writer, _ string, at time.Time, g []Group) error { return writePprof(w, at, g) },
}

// FormOf is the form that the end of a file's name says, nil for none.
func FormOf(file string) Form {
	for end, form := range forms {
		if strings.HasSuffix(file, end) {
			return form
		}
	}
	return nil
}
