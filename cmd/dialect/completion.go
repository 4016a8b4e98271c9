package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Choices are the fixed words that a flag of Flags or OwnFlags takes, nil where it takes others or none.
func Choices(f *pflag.Flag) []string {
	if w, ok := f.Value.(*flagWord); ok && w.choices != nil && !w.isSwitch {
		return w.choices()
	}
	return nil
}

// flagNamed is the flag of Flags or OwnFlags that a word on a command line names, in any of its spellings; nil for
// none.
func flagNamed(flags *pflag.FlagSet, spelling string) *pflag.Flag {
	spelling, _, _ = strings.Cut(spelling, "=")
	name := strings.ReplaceAll(strings.TrimLeft(spelling, "-"), "_", "-")
	if len(name) == 1 {
		return flags.ShorthandLookup(name)
	}
	found := flags.Lookup(name)
	flags.VisitAll(func(f *pflag.Flag) {
		if w, ok := f.Value.(*flagWord); ok && found == nil && slices.Contains(w.spellings, spelling) {
			found = f
		}
	})
	return found
}

// fixed are the words that the setting takes: those that it names when it refuses another one, else those of its help
// text.
func (o *option) fixed() []string {
	if refused, ok := errors.AsType[*choiceError](o.set(&Request{}, "\x00")); ok {
		return refused.choices
	}
	return wordsOf(o.arg)
}

// words are those that completion offers: the option's choices, else those that are suggested or stand in its help
// text.
func (o *option) words() []string {
	switch {
	case len(o.choices) > 0:
		return o.choices
	case len(o.suggested) > 0:
		return o.suggested
	}
	return wordsOf(o.arg)
}

// wordsOf are the fixed words in a help text's name for a word, such as auto and gpu in N|auto|gpu.
func wordsOf(arg string) []string {
	all := strings.Split(arg, "|")
	if len(all) < 2 {
		return nil
	}
	return slices.DeleteFunc(all, func(w string) bool { return strings.Trim(w, "abcdefghijklmnopqrstuvwxyz0123456789") != "" })
}

func completionShells() []string { return []string{"bash", "zsh", "tcsh"} }

// completion returns a script that completes the program's flags and the words they choose from, and files for all
// else. shell is one of completionShells.
func (p *parser) completion(shell string) string {
	switch shell {
	case "zsh":
		return p.zsh()
	case "tcsh":
		return p.tcsh()
	}
	return p.bash()
}

// words are the flags in the spelling with dashes, and the choices by flag.
func (p *parser) words() (flags, withWord []string, choices map[string][]string) {
	choices = map[string][]string{}
	for i := range p.options {
		o := &p.options[i]
		names := []string{"--" + o.name}
		if o.short != "" {
			names = append(names, "-"+o.short)
		}
		flags = append(flags, names...)
		if !o.kind.takesWord() {
			continue
		}
		withWord = append(withWord, names...)
		for _, name := range names {
			if fixed := o.words(); len(fixed) > 0 {
				choices[name] = fixed
			}
		}
	}
	slices.Sort(flags)
	return flags, withWord, choices
}

func (p *parser) bash() string {
	flags, withWord, choices := p.words()
	var b strings.Builder
	name := "_muster_" + strings.NewReplacer(".", "_", "-", "_").Replace(p.prog)
	fmt.Fprintf(&b, "# bash completion for %s, made by muster\n%s() {\n", p.prog, name)
	b.WriteString("  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n  COMPREPLY=()\n  case $prev in\n")
	for _, flag := range withWord {
		if words, ok := choices[flag]; ok {
			fmt.Fprintf(&b, "    %s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return ;;\n", flag, strings.Join(words, " "))
		}
	}
	b.WriteString("  esac\n  if [[ $cur == -* ]]; then\n")
	fmt.Fprintf(&b, "    COMPREPLY=($(compgen -W '%s' -- \"$cur\"))\n", strings.Join(flags, " "))
	b.WriteString("  else\n    COMPREPLY=($(compgen -f -- \"$cur\"))\n  fi\n}\n")
	fmt.Fprintf(&b, "complete -o filenames -F %s %s\n", name, p.prog)
	return b.String()
}

func (p *parser) zsh() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %s\n# zsh completion for %s, made by muster\n_arguments -s \\\n", p.prog, p.prog)
	clean := strings.NewReplacer("'", `'\''`, "[", "(", "]", ")", ":", "\\:", "\\", "", "$", "", "`", "")
	for i := range p.options {
		o := &p.options[i]
		first, _, _ := strings.Cut(o.help, ". ")
		action := ""
		switch {
		case len(o.words()) > 0:
			action = fmt.Sprintf(":%s:(%s)", o.dest(), strings.Join(o.words(), " "))
		case o.arg == "DIR":
			action = ":directory:_files -/"
		case o.kind.takesWord():
			action = ":" + o.dest() + ":"
		}
		names := []string{"--" + o.name}
		if o.short != "" {
			names = append(names, "-"+o.short)
		}
		for _, name := range names {
			fmt.Fprintf(&b, "  '%s[%s]%s' \\\n", name, clean.Replace(strings.TrimSuffix(first, ".")), action)
		}
	}
	fmt.Fprintf(&b, "  '1:%s:_files' \\\n  '*::argument:_files'\n", p.script)
	return b.String()
}

func (p *parser) tcsh() string {
	flags, withWord, choices := p.words()
	var b strings.Builder
	var long, short []string
	for _, flag := range flags {
		if name, ok := strings.CutPrefix(flag, "--"); ok {
			long = append(long, name)
		} else {
			short = append(short, flag[1:])
		}
	}
	fmt.Fprintf(&b, "# tcsh completion for %s, made by muster\ncomplete %s \\\n", p.prog, p.prog)
	for _, flag := range withWord {
		if words, ok := choices[flag]; ok {
			fmt.Fprintf(&b, "  'n/%s/(%s)/' \\\n", flag, strings.Join(words, " "))
		}
	}
	fmt.Fprintf(&b, "  'c/--/(%s)/' \\\n  'c/-/(%s)/' \\\n  'p/*/f/'\n", strings.Join(long, " "), strings.Join(short, " "))
	return b.String()
}

// secondWords are what must follow the names of launchers that have several commands.
var secondWords = map[string]string{"accelerate": "launch", "colossalai": "run"}

// Complete completes a word behind a launcher's name: the names of its flags and the fixed words that a flag takes.
// files says that the shell is to complete names of files instead.
func Complete(name string, flags *pflag.FlagSet, args []string, toComplete string) (words []string, files bool) {
	if second := secondWords[name]; second != "" {
		if len(args) == 0 {
			return Starting([]string{second}, toComplete)
		}
		args = args[1:]
	}
	if FlagWords(flags, args) < len(args) && name != "colossalai" &&
		name != "colossalairun" { // which takes its flags behind the script, too
		return nil, true // the command's own words
	}
	if spelling, part, joined := strings.Cut(toComplete, "="); joined {
		if f := flagNamed(flags, spelling); f != nil {
			return Starting(Choices(f), part)
		}
	}
	if f := WordOf(flags, args); f != nil {
		return Starting(Choices(f), toComplete)
	}
	if !strings.HasPrefix(toComplete, "-") {
		return nil, true
	}
	var found []string
	flags.VisitAll(func(f *pflag.Flag) {
		if long := "--" + f.Name; strings.HasPrefix(long, toComplete) {
			found = append(found, long+"\t"+f.Usage)
		}
	})
	return found, false
}

// FlagWords is how many of args are flags and their words, up to the command.
func FlagWords(flags *pflag.FlagSet, args []string) int {
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") || args[i] == "--" {
			return i
		}
		if f := flagNamed(flags, args[i]); f != nil && takesNext(f, args[i]) {
			i++
		}
	}
	return len(args)
}

// WordOf is the flag whose word is to follow args, nil for none.
func WordOf(flags *pflag.FlagSet, args []string) *pflag.Flag {
	if len(args) == 0 || len(args) > 1 && FlagWords(flags, args[:len(args)-1]) >= len(args) { // the last one is a flag's word
		return nil
	}
	if last := args[len(args)-1]; strings.HasPrefix(last, "-") {
		if f := flagNamed(flags, last); f != nil && takesNext(f, last) {
			return f
		}
	}
	return nil
}

func takesNext(f *pflag.Flag, spelling string) bool {
	return f.NoOptDefVal == "" && !strings.Contains(spelling, "=")
}

// Starting are the words that begin like part; files where there are no words to choose from.
func Starting(words []string, part string) (found []string, files bool) {
	if len(words) == 0 {
		return nil, true
	}
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !strings.HasPrefix(w, part) }), false
}
