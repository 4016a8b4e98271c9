package dialect

import (
	"fmt"
	"slices"
	"strings"

	"muster/launch/job"
)

// clickParsed is a command line as click reads one whose unknown options are left to the script.
type clickParsed struct {
	*parsed
	warnings []string
}

// parseClick reads a command line as Python's click does for a program with options, a script and its arguments, where
// unknown options belong to the script. click looks for its options behind the script too, up to a --: those are taken
// here only as they are spelled in full, and are told, as they may have been meant for the script. In front of the
// script an unknown option is a mistake, unless a module was named by -m.
func parseClick(p *parser, w *colossalWords, argv []string) (*clickParsed, error) {
	var wrong problems
	var rest []string
	out := &clickParsed{parsed: &parsed{}}
	p.defaults(environ{}, &wrong)
	given := map[*option]value{}
	for i := range p.options {
		for _, spelling := range p.options[i].spellings() {
			p.names = append(p.names, name{spelling, &p.options[i]})
		}
		if p.options[i].word == &w.host {
			p.names = append(p.names, name{"-host", &p.options[i]})
		}
	}
	for i := 0; i < len(argv); i++ {
		word := argv[i]
		if word == "--" {
			rest = append(rest, argv[i+1:]...)
			break
		}
		o, text, joined := p.clickOption(word, len(rest) > 0)
		_, module := given[w.module.option]
		switch {
		case o == nil && len(word) > 1 && word[0] == '-' && len(rest) == 0 && !module:
			wrong.add(p.unknown(word))
			continue
		case o == nil:
			rest = append(rest, word)
			continue
		case o.kind == kindHelp:
			return nil, printed(p.help())
		}
		spelling, _, _ := strings.Cut(word, "=")
		if !joined {
			if i++; i == len(argv) {
				wrong.add(fmt.Errorf("cannot use %s without a value", spelling))
				break
			}
			text = argv[i]
		}
		if len(rest) > 0 {
			out.warnings = append(out.warnings,
				fmt.Sprintf("%s behind the script is taken for colossalai's own, as colossalai does: put -- in front of the script to "+
					"leave it to that", spelling))
		}
		v, err := o.convert(text, job.Source{Kind: job.FromFlag, Name: "--" + o.name})
		if err != nil {
			wrong.add(fmt.Errorf("cannot use %s %s: %w", spelling, text, err))
			continue
		}
		given[o] = v
	}
	p.settle(given, environ{}, &wrong)
	if err := wrong.err(); err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		out.script, out.args = rest[0], rest[1:]
	}
	return out, nil
}

// clickOption finds the option that a word is, nil for none, and the value that is joined to it. Behind the script only
// click's own spellings count.
func (p *parser) clickOption(word string, behind bool) (o *option, text string, joined bool) {
	if len(word) < 2 || word[0] != '-' {
		return nil, "", false
	}
	spelling, text, joined := strings.Cut(word, "=")
	if o := p.spelled(spelling); o != nil && (!behind || slices.Contains(clickSpellings, spelling)) {
		return o, text, joined
	}
	if o := p.spelled(word[:2]); o != nil && word[1] != '-' && !behind {
		return o, word[2:], true
	}
	return nil, "", false
}

// clickSpellings are the names of options as colossalai has them.
var clickSpellings = []string{
	"-H", "-host", "--host", "--hostfile", "--include", "--exclude", "--num_nodes", "--nproc_per_node", "--master_port", "--master_addr",
	"--extra_launch_args", "--ssh-port", "-m", "--help",
}
