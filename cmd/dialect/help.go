package dialect

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// Columns of the help text.
const (
	helpWidth  = 100
	helpIndent = 26
)

const torchrunAbout = `Starts the workers of a PyTorch job on this node, as torchrun does, and watches over them.

Flags come before the training script; everything behind it belongs to the script. Dashes and underscores in names are
the same, and names may be abbreviated as long as they are unique. Most flags can be set by a variable, MUSTER_<FLAG> or
PET_<FLAG>; the command line wins, then MUSTER_. Flags of muster itself stand in front of the launcher's name.
`

const torchLaunchAbout = "Starts the workers of a PyTorch job on this node, as python -m torch.distributed.launch does, and watches " +
	"over them.\n" + `It is torchrun, except that the script gets --local-rank=N in front of its own arguments unless --use-env is given.

Flags come before the training script; everything behind it belongs to the script. Dashes and underscores in names are
the same, and names may be abbreviated as long as they are unique. Most flags can be set by a variable, MUSTER_<FLAG> or
PET_<FLAG>; the command line wins, then MUSTER_. Flags of muster itself stand in front of the launcher's name.
`

const deepSpeedAbout = `Starts the workers of a PyTorch job on this node, or on all hosts of a hostfile, as DeepSpeed's deepspeed does, and
watches over them. Hosts are reached by ssh, whatever --launcher says; nothing of DeepSpeed is needed for it.

Flags come before the training script; everything behind it belongs to the script. Dashes and underscores in names are
the same, and names may be abbreviated as long as they are unique. Flags of muster itself stand in front of the launcher's
name.
`

const colossalAbout = "Starts the workers of a PyTorch job on this node, or on several hosts by ssh, as Colossal-AI's colossalai run " +
	"does, and\n" + `watches over them.

Flags come before the training script. Those of colossalai are taken behind it as well, as colossalai does, and muster
warns of them; behind a -- everything belongs to the script. Dashes and underscores in names are the same. Flags of muster
itself stand in front of the launcher's name.
`

const nativeAbout = `Starts the workers of a training job on this node and watches over them.

The command follows the flags, best behind a --. It is run as it is typed, with two exceptions that Python runs with
unbuffered output: a first word that ends in .py, and a module given with -m.

Each flag can also be set by a variable, MUSTER_<FLAG> or PET_<FLAG>, or by a line in the file of --config. The command
line wins, then MUSTER_, then PET_, then the file; what is left open about nodes comes from the platform's variables.
Dashes and underscores in names are the same. A TIME is a number with the unit ms, s, m or h; without a unit it is seconds.
`

// ExitStatusHelp closes every long help text: the statuses muster ends with.
const ExitStatusHelp = `EXIT STATUS
  0         the job succeeded
  1-255     the root-cause worker's own status, 128+n when signal n killed it
  2         usage or configuration error; nothing was started
  75        the world could not be assembled in time (hosts, ssh, rendezvous): try again
  80        this node was judged faulty
  81        this node was excluded as a straggler
  82        a check failed or could not be run, and nobody can be blamed
  93        do not restart this job: its restarts bring it no further (--crash-loop), or
            an elastic job was reset as often as it may be
  124       deadline reached
  125       internal error of muster, or processes that could not be killed
  126, 127  command not executable, not found
  128+n     muster was stopped by signal n and the workers ended in time
  With --exit-code-compat (or MUSTER_EXIT_CODE_COMPAT=1) every failure of the job gives 1.
`

// entry is an option in a help text.
type entry struct{ group, names, text string }

func writeEntries(b *strings.Builder, entries []entry) {
	var groups []string
	for _, e := range entries {
		if !slices.Contains(groups, e.group) {
			groups = append(groups, e.group)
		}
	}
	for _, group := range groups {
		b.WriteString(headline(group) + ":\n")
		for _, e := range entries {
			if e.group != group {
				continue
			}
			b.WriteString("  " + e.names)
			column := 2 + utf8.RuneCountInString(e.names)
			if column > helpIndent-2 {
				b.WriteByte('\n')
				column = 0
			}
			for i, line := range wrap(e.text, helpWidth-helpIndent) {
				if i > 0 {
					column = 0
				}
				b.WriteString(strings.Repeat(" ", helpIndent-column) + line + "\n")
			}
		}
		b.WriteByte('\n')
	}
}

func headline(group string) string { return strings.ToUpper(group[:1]) + group[1:] }

// wrap breaks text into lines of at most width letters, except for longer words.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// remarks joins what stands in brackets behind an option's help.
func remarks(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	if len(parts) == 0 {
		return ""
	}
	return " [" + strings.Join(parts, "; ") + "]"
}

func (p *parser) entries() []entry {
	entries := make([]entry, len(p.options))
	for i := range p.options {
		o := &p.options[i]
		names := strings.Repeat(" ", 4) + "--" + o.name
		if o.short != "" {
			names = "-" + o.short + ", --" + o.name
		}
		for _, alias := range o.aliases {
			names += ", " + alias
		}
		if o.arg != "" {
			names += " " + o.arg
		}
		var def, env, choices, since string
		if o.def != "" && !o.hideDefault {
			def = "default: " + o.def
		}
		if len(o.choices) > 0 {
			choices = "one of " + strings.Join(o.choices, ", ")
		}
		if o.variables {
			env = variable(p.prefixes[len(p.prefixes)-1], o.name)
		} else if o.ownVariable {
			env = variable(ownPrefix, o.name)
		}
		if o.since != "" {
			since = "came with PyTorch " + o.since
		}
		entries[i] = entry{o.group, names, o.help + remarks(choices, def, env, since)}
	}
	return entries
}

func (p *parser) helpText(about string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: muster [muster's flags] %s [flags] %s [script's arguments]\n\n", p.prog, p.script)
	b.WriteString(about + "\n")
	writeEntries(&b, p.entries())
	fmt.Fprintf(&b, "Flags of muster itself, in front of the word %s, or as variables MUSTER_<FLAG>:\n", p.prog)
	b.WriteString(p.ownHelp())
	b.WriteString("\n" + ExitStatusHelp)
	return b.String()
}

// ownHelp names muster's own flags in short; muster run --help-all explains them.
func (p *parser) ownHelp() string {
	var b strings.Builder
	var flags []string
	var refused []*value
	if !slices.Contains(hostDialects, p.prog) {
		refused = namesHosts(newOwnWords())
	}
	for _, s := range p.inFront() {
		if !slices.ContainsFunc(refused, func(v *value) bool { return v.option.name == s.name }) {
			flags = append(flags, "--"+s.name)
		}
	}
	for _, line := range wrap(strings.Join(flags, " "), helpWidth-2) {
		b.WriteString("  " + line + "\n")
	}
	b.WriteString("  What they mean stands in: muster run --help-all\n")
	return b.String()
}

// usage is the setting's help with its default and its variable.
func (o *option) usage() string {
	def := ""
	if o.def != "" && o.kind != kindFlag {
		def = "default: " + o.def
	}
	return o.help + remarks(def, variable(ownPrefix, o.name))
}

// nativeHelp is the help text of muster run, with the flags that people use or with all.
func nativeHelp(all bool) string {
	var b strings.Builder
	b.WriteString("Usage: muster run [flags] [--] command [arguments]\n       muster run [flags] script.py [arguments]\n       muster " +
		"run [flags] -m module [arguments]\n\n")
	b.WriteString(nativeAbout + "\n")
	list := settings()
	total := len(list)
	if !all {
		list = slices.DeleteFunc(slices.Clone(list), func(s *option) bool { return !s.frequent })
	}
	writeEntries(&b, nativeEntries(list, all))
	if !all {
		fmt.Fprintf(&b, "These are %d of %d flags: muster run --%s shows all of them.\n\n", len(list), total, helpAllFlag)
	}
	b.WriteString(ExitStatusHelp)
	return b.String()
}

// nativeEntries are the options of a help text with these settings; all says whether those are all there are.
func nativeEntries(list []*option, all bool) []entry {
	entries := make([]entry, len(list), len(list)+2)
	for i := range list {
		s := list[i]
		names := strings.Repeat(" ", 4) + "--" + s.name
		if s.short != "" {
			names = "-" + s.short + ", --" + s.name
		}
		for _, alias := range s.aliases {
			names += ", " + alias
		}
		if s.arg != "" && s.kind != kindOptional {
			names += " "
		}
		names += s.arg
		entries[i] = entry{s.group, names, s.usage()}
	}
	help, helpAll := "Print this text and exit.", "Print the same with all flags and exit."
	if all {
		help, helpAll = "Print the flags that people use most and exit.", "Print this text and exit."
	}
	return append(entries, entry{groupMuster, "-h, --help", help}, entry{groupMuster, "    --" + helpAllFlag, helpAll})
}

// OwnFlags returns the flags of muster that may stand in front of a dialect's name, for man pages and completion.
func OwnFlags() *pflag.FlagSet {
	return flagSet("muster", slices.DeleteFunc(slices.Clone(settings()), func(s *option) bool { return !s.anywhere && !s.lent }))
}

func (p *parser) flagSet() *pflag.FlagSet {
	flags := pflag.NewFlagSet(p.prog, pflag.ContinueOnError)
	flags.SortFlags = false
	for i, e := range p.entries() {
		o := &p.options[i]
		if o.kind == kindHelp {
			continue // cobra adds its own
		}
		f := &pflag.Flag{
			Name: o.name, Shorthand: o.short, Usage: e.text,
			Value: &flagWord{arg: o.arg, isSwitch: !o.kind.takesWord(), choices: o.words, spellings: o.spellings()},
		}
		if !o.kind.takesWord() {
			f.NoOptDefVal = "true"
		}
		flags.AddFlag(f)
	}
	return flags
}
