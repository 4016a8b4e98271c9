package dialect

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
	"muster/internal/typos"
)

// problems gathers what is wrong with a command line, so that the user learns all of it at once.
type problems struct {
	list *multierror.Error
}

// maxProblems bounds what is reported: a command line with more is something else, such as a file's content.
const maxProblems = 20

func (p *problems) add(err error) {
	if err != nil && !p.full() {
		p.list = multierror.Append(p.list, err)
	}
}

func (p *problems) full() bool { return p.list != nil && len(p.list.Errors) >= maxProblems }

func (p *problems) merge(other problems) {
	if other.list == nil {
		return
	}
	for _, err := range other.list.Errors {
		p.add(err)
	}
}

// err returns nil, the one problem, or all of them, with exit status 2.
func (p *problems) err() error {
	if p.list == nil {
		return nil
	}
	if len(p.list.Errors) == 1 {
		return errhint.Code(p.list.Errors[0], errhint.Usage)
	}
	p.list.ErrorFormat = func(all []error) string {
		var b strings.Builder
		fmt.Fprintf(&b, "%d problems with the command line:", len(all))
		for _, err := range all {
			fmt.Fprintf(&b, "\n  * %v", err)
		}
		return b.String()
	}
	return errhint.Code(p.list, errhint.Usage)
}

func printed(text string) error {
	return errhint.Code(&HelpError{Text: text}, errhint.OK)
}

// unknownFlag is the error for a flag that does not exist, with the nearest one that does. known are spellings with
// their dashes, and help is the flag that lists all flags.
func unknownFlag(name string, known []string, help string) error {
	err := fmt.Errorf("unknown flag %s", name)
	near := ""
	if len(name) > len("-n") { // flags of one letter have nothing in common
		near = nearest(name, known)
	}
	if flag := "--" + strings.TrimLeft(plain(name), "-"); near == "" && onlyOfRun(flag) {
		return errhint.With(err, fmt.Sprintf("%s is a flag of muster run: muster run %[1]s ... -- python train.py", flag))
	}
	if near == "" {
		return errhint.With(err, help+" lists the flags; a flag of the training script belongs behind the script's name")
	}
	return fmt.Errorf("%w: did you mean %s?", err, near)
}

// onlyOfRun reports whether a flag is muster run's, and neither torchrun's nor one that stands in front of other names.
func onlyOfRun(flag string) bool {
	return slices.ContainsFunc(settings(), func(s *option) bool {
		return "--"+s.name == flag && !s.anywhere && !s.lent &&
			optionNamed(torchrunRows(), s.name) == nil
	})
}

// StartOf is a command line that starts the job of a script or a job file, whose name stands where a command is expected; ""
// for what looks like neither.
func StartOf(word string) string {
	switch strings.ToLower(path.Ext(word)) {
	case ".yaml", ".yml":
		return "muster " + nativeRun + " -f " + shellescape.Quote(word)
	case ".py", ".sh":
		return "muster " + nativeRun + " " + shellescape.Quote(word)
	}
	return ""
}

// nearest returns the known word that was probably meant, "" for none.
func nearest(word string, known []string) string { return typos.Nearest(word, known) }

// plain writes a name with dashes only: dashes and underscores are the same letter in names.
func plain(name string) string { return typos.Plain(name) }
