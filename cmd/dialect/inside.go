package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"muster/cmd/dialect/jobfile"
	"muster/launch/job"
)

// What becomes of flags of muster run in a pod: reasons why they are left to the cluster, or that they are refused.
const (
	insideRefused = "refused"
	insideMeeting = "how nodes meet in the cluster; here muster starts them, and says it"
	insidePod     = "it is about the pod: give the flag to muster run -f where it is wanted here"
)

// insideRun reads the arguments of muster run that is the command of a job file's pod, and the pod's variables, as muster
// run reads them there.
func insideRun(args, environ []string) (list []jobfile.RunFlag, command []string, err error) {
	known := settings()
	flags := nativeFlags(known)
	if command, err = parseFlags(flags, args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, nil, errors.New("it asks for help")
		}
		return nil, nil, flagProblem(err, known)
	}
	typed := newOwnWords()
	flags.Visit(func(f *pflag.Flag) {
		if w, ok := f.Value.(*flagWord); ok {
			w.option.of(typed).say(strings.TrimSpace(w.text), job.Source{Kind: job.FromFlag, Name: "--" + w.option.name})
		}
	})
	env := newEnviron(environ)
	noFile := func(string) (*ownWords, problems) { return newOwnWords(), problems{} } // --config is refused below
	words := resolve(known, typed, env, []string{ownPrefix, petPrefix}, noFile, new(problems))
	for _, o := range known {
		if o.separator != several { // else each counts
			list = append(list, beaten(o, *o.of(words), env)...)
		}
		for _, word := range o.of(words).all() {
			f := jobfile.RunFlag{Name: o.name, Text: word.text, Left: o.inside}
			if word.source.Kind == job.FromVariable {
				f.Variable = word.source.Name
			}
			switch {
			case o.inside == insideRefused && f.Variable == "":
				return nil, nil, fmt.Errorf("--%s cannot stand in a pod of a job file", o.name)
			case o.inside == insideRefused:
				f.Left, f.Refused = "", true
			case o.word == &ownRows().blank.Env:
				f.Text = valued(word.text, env)
			}
			if f.Text != "" || f.Variable != "" {
				list = append(list, f)
			}
		}
	}
	return list, command, nil
}

// beaten are the variables of a setting that say it weaker than what counts.
func beaten(o *option, word value, env environ) (list []jobfile.RunFlag) {
	for _, prefix := range []string{ownPrefix, petPrefix} {
		for _, name := range o.names() {
			if name = variable(prefix, name); env[name] != "" && name != word.source.Name {
				list = append(list, jobfile.RunFlag{Name: o.name, Variable: name, Instead: word.source.Name})
			}
		}
	}
	return list
}

// valued are the words of --env without those that name a variable of the pod: workers have these anyway.
func valued(text string, env environ) string {
	words := slices.DeleteFunc(strings.Split(text, several), func(word string) bool {
		_, known := env[word]
		return known
	})
	return strings.Join(words, several)
}

// RunVariables are the settings that muster run reads in an environment.
func RunVariables(environ []string) (list []jobfile.RunFlag) {
	all, _, err := insideRun([]string{"--", "true"}, environ)
	if err != nil {
		panic("internal error: " + err.Error()) // there are no flags that could be wrong
	}
	return slices.DeleteFunc(all, func(f jobfile.RunFlag) bool { return f.Instead != "" })
}

// RunReads reports whether muster run reads a variable of that name as a setting.
func RunReads(name string) bool { return len(RunVariables([]string{name + "=1"})) > 0 }
