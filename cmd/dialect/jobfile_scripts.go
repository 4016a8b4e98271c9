package dialect

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"muster/cmd/dialect/jobfile"
	"muster/internal/lazyregexp"
	"muster/internal/python"
	"muster/launch/job"
)

// lookup looks for the files that a node's command names, on this machine.
type lookup struct {
	inv     Invocation
	mounted map[string]string
	env     environ
	// python is set where muster chooses the interpreter.
	python bool
	// lacks is told which word of the command names what is not here, and shown is a word as it may be shown.
	lacks func(word, problem string)
	shown func(word string) string
}

// mustBeHere refuses a rehearsal whose nodes' commands name files that this machine lacks. Where a script decides what
// runs, nothing is known of that. The variables and the Python of the job are settled before.
func (f *jobFile) mustBeHere(r *Request, inv Invocation, wrong *problems) {
	if !f.here || inv.Machine.Stat == nil {
		return
	}
	for i := range r.Placed {
		n := &r.Placed[i]
		python := r.Job.Python
		l := lookup{
			inv: inv, mounted: f.file.Mounted(f.at), env: newEnviron(inv.Environ), python: python != job.PythonRules{}, shown: n.shown(),
		}
		for _, v := range slices.Concat(n.Node.Env, r.Job.Env.Set) {
			l.env[v.Name] = v.Value
			if v.Expand && strings.Contains(v.Value, "$") {
				delete(l.env, v.Name) // known when the job is planned
			}
		}
		if python.Venv+python.Conda != "" {
			delete(l.env, "PATH") // so is that of the environment
		}
		l.lacks = func(word, problem string) {
			if raw := len(n.Pod.Argv) - len(n.Node.Argv) + slices.Index(n.Node.Argv, word); slices.Contains(n.Node.Argv, word) && raw >= 0 {
				word = n.Pod.Argv[raw] // before names in it were replaced
			}
			wrong.add(f.file.Lacks(&n.Pod, word, problem, "a rehearsal runs what is on this machine, in "+strconv.Quote(inv.Dir)+
				": put it there, give another command by --set, or name machines that have it by --hosts"))
		}
		if f.file.Native {
			l.job(r.Job.Command, "", 0)
			continue
		}
		l.command(n.Node.Argv, "", 0)
	}
}

// shown has $(NAME) for the value of each Secret that the node's command names.
func (n *PlacedNode) shown() func(word string) string {
	command := strings.Join(n.Pod.Argv, " ")
	secrets := slices.DeleteFunc(slices.Clone(n.Node.Env), func(v job.Var) bool {
		return !v.Secret || v.Value == "" || !strings.Contains(command, "$("+v.Name) && !strings.Contains(command, "$"+v.Name) &&
			!strings.Contains(command, "${"+v.Name)
	})
	slices.SortStableFunc(secrets, func(a, b job.Var) int { return len(b.Value) - len(a.Value) }) // one may be a part of another
	var pairs []string
	for _, v := range secrets {
		pairs = append(pairs, v.Value, "$("+v.Name+")")
	}
	return strings.NewReplacer(pairs...).Replace
}

// file tells of a file that is not here. in is the word of the node's command in which name stands.
func (l *lookup) file(what, name, in string) {
	if _, ok := l.mounted[name]; ok {
		return
	}
	full := name
	if !filepath.IsAbs(name) {
		full = filepath.Join(l.inv.Dir, name)
	}
	_, err := l.inv.Machine.Stat(full)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if err == nil || strings.Contains(name, "$") { // else it is not known so far
		return
	}
	if in == "" {
		in = name
	}
	l.lacks(in, fmt.Sprintf("cannot find the %s %q: %v", what, l.shown(name), err))
}

// deepest is how many launchers and shells may stand in each other.
const deepest = 5

// command looks at the words of a command. in is the word of the node's command in which they stand, empty where they
// are words of it themselves.
func (l *lookup) command(argv []string, in string, depth int) {
	if argv = jobfile.AsLauncher(argv); len(argv) == 0 || depth > deepest {
		return
	}
	base := path.Base(argv[0])
	switch {
	case isLauncher(argv[0]) && base != "muster" && base != "srun":
		l.launcher(base, argv[1:], in, depth)
	case slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh"}, base):
		l.program(argv[0], in)
		l.shell(argv[1:], in, depth)
	case strings.HasPrefix(base, "python"):
		if !l.python {
			l.program(argv[0], in)
		}
		if c, err := python.ParseCommand(argv[1:]); err == nil && c.Script != "" {
			l.file("script", c.Script, in)
		}
	default:
		l.program(argv[0], in)
	}
}

// program tells of a program that is not here. One without a slash in a shell's text may be the shell's own.
func (l *lookup) program(name, in string) {
	if strings.Contains(name, "/") {
		l.file("program", name, in)
		return
	}
	if in != "" || l.env["PATH"] == "" {
		return
	}
	for _, dir := range filepath.SplitList(l.env["PATH"]) {
		if info, err := l.inv.Machine.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() {
			return
		}
	}
	l.lacks(name, fmt.Sprintf("cannot find the program %q: it is in no directory of PATH", l.shown(name)))
}

// launcher looks at what a launcher starts. Of one that would be refused nothing is known; it says that itself.
func (l *lookup) launcher(name string, args []string, in string, depth int) {
	var environ []string
	for _, k := range slices.Sorted(maps.Keys(l.env)) {
		environ = append(environ, k+"="+l.env[k])
	}
	read := func(name string) ([]byte, error) {
		if text, ok := l.mounted[name]; ok {
			return []byte(text), nil
		}
		return l.inv.ReadFile(name)
	}
	req, err := Read(name, Invocation{
		Argv0: name, Args: args, Environ: environ, ReadFile: read, ReadDir: l.inv.ReadDir, Dir: l.inv.Dir,
	})
	if err == nil && req.Job.Python == (job.PythonRules{}) {
		l.job(req.Job.Command, in, depth)
	}
}

// job looks at the command of a job.
func (l *lookup) job(c job.Command, in string, depth int) {
	switch c.Kind {
	case job.Module:
	case job.Program:
		l.command(slices.Concat([]string{c.Name}, c.Args), in, depth+1)
	default:
		l.file("script", c.Name, in)
	}
}

// shell looks at the arguments of a shell: a script, or the text of one command.
func (l *lookup) shell(args []string, in string, depth int) {
	text := false
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case strings.HasPrefix(a, "--"), strings.HasPrefix(a, "-s"):
			return
		case len(a) > 1 && (a[0] == '-' || a[0] == '+'):
			text = text || a[0] == '-' && strings.Contains(a, "c")
			if strings.ContainsAny(a, "oO") { // which have a word behind them
				i++
			}
			continue
		case text:
			if in == "" {
				in = a
			}
			if words := l.simple(a); len(words) > 0 {
				l.command(words, in, depth+1)
			}
		case a != "-":
			l.file("script", a, in)
		}
		return
	}
}

var (
	shellName  = lazyregexp.New(`\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})`)
	assignment = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// simple are the words of a shell's text that is one command, nil where it is more than that.
func (l *lookup) simple(text string) []string {
	text = strings.TrimSpace(strings.ReplaceAll(text, "\\\n", " "))
	known := true
	expanded := shellName().ReplaceAllStringFunc(text, func(ref string) string {
		value, ok := l.env[strings.Trim(ref, "${}")]
		known = known && ok && !strings.ContainsAny(value, `'"\`)
		return value
	})
	if !known || strings.ContainsAny(expanded, "\n;&|<>()`$*?[]{}~#!") || strings.Contains(text, "'") && text != expanded {
		return nil
	}
	words, err := shellWords(expanded)
	if err != nil {
		return nil
	}
	for len(words) > 0 && (words[0] == "exec" || assignment().MatchString(words[0])) {
		words = words[1:]
	}
	return words
}
