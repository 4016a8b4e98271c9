package plan

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"muster/internal/lazyregexp"
	"muster/internal/proc"
	"muster/internal/python"
	"muster/launch/job"
)

// WarmCommand is what is known of a Python command before its template is started.
type WarmCommand struct {
	// probe runs nothing in the interpreter that the command runs in, under the same options: path and argv.
	ProbePath string
	Probe     []string
	// Form and name are how the program is named: script or run_path and a path, module and its name, code and nothing.
	Form, Name string
	// Arguments is how many of the last words of argv are for the program.
	Arguments int
}

// errNotPython is why most commands cannot be started from a template.
var errNotPython = errors.New("the command is not Python")

// planWarm finds out how a template for the command is started, and whether auto can find imports. Errors say why there
// can be none.
func planWarm(c job.Command, e entrypoint, auto bool, dir string, environ []string) (WarmCommand, error) {
	w := WarmCommand{ProbePath: e.path, Arguments: len(e.argv(c, 0)) - len(e.prefix)}
	if form, ours := map[job.CommandKind]string{job.Script: "script", job.Module: "module", job.RunPath: "run_path"}[c.Kind]; ours {
		w.Form, w.Name = form, c.Name
		w.Probe = []string{e.prefix[0], "-u", "-c", ""}
		if err := checkInterpreter(e.path, dir); err != nil {
			return w, err
		}
		if c.Kind == job.RunPath {
			w.Arguments += 2 // the start method and the script
		}
		return w, nil
	}
	if isPython(e.path) {
		if err := checkInterpreter(e.path, dir); err != nil {
			return w, err
		}
		words, err := python.ParseCommand(c.Args)
		if err != nil {
			return w, err
		}
		w.Arguments = len(words.Args)
		w.Probe = append(append([]string{c.Name}, words.Options...), "-c", "")
		switch {
		case words.Script != "":
			w.Form, w.Name = "script", words.Script
		case words.Module != "":
			w.Form, w.Name = "module", words.Module
		default:
			w.Form = "code"
			if auto {
				return w, errors.New("its program is on the command line, and auto reads a script: name modules instead")
			}
		}
		if letter := words.Isolation(); letter != "" {
			return w, fmt.Errorf("option -%s keeps Python from a warm start", letter)
		}
		if n := len(words.Options); n > 0 && words.Options[n-1] == "--" {
			w.Probe = append(append([]string{c.Name}, words.Options[:n-1]...), "-c", "")
		}
		return w, nil
	}
	interpreter, called, err := interpreterLine(e.path, dir)
	if err != nil {
		return w, err
	}
	if w.ProbePath, err = proc.LookPath(interpreter[0], dir, environ); err != nil {
		return w, err
	}
	found, err := proc.LookPath(called, dir, environ)
	if err != nil {
		return w, err
	}
	if err := checkInterpreter(found, dir); err != nil {
		return w, err
	}
	w.Form, w.Name = "script", e.path
	w.Probe = append(interpreter, "-c", "")
	return w, nil
}

// bindingNames are the variables by which OpenMP libraries keep CPUs when they are imported: GNU's, LLVM's and Intel's.
var bindingNames = []string{"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET"}

// warmBound says why workers that are bound to CPUs cannot be forked from one template. It is bound to the CPUs of
// local rank 0, and what is imported there may keep how many these are, for the size of a pool of threads, for example.
func warmBound(cpus [][]int, environ []string) error {
	for _, set := range cpus {
		if len(set) != len(cpus[0]) {
			return errors.New("the workers are bound to different numbers of CPUs")
		}
	}
	if !slices.ContainsFunc(cpus, func(set []int) bool { return !slices.Equal(set, cpus[0]) }) {
		return nil
	}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if value != "" && slices.Contains(bindingNames, name) {
			return fmt.Errorf("the workers are bound to different CPUs, and with %s a library may keep those it finds when it is imported",
				name)
		}
	}
	return nil
}

// Warm is how a template for the command is started. The error says why none can be made, where one was asked for.
func (p *Plan) Warm() (WarmCommand, error) { return p.warm, p.cold }

// WarmStart says in a few words how the workers come to their imports.
func (p *Plan) WarmStart() string {
	switch {
	case !p.Warms(), p.Job.Warm.Restarts && errors.Is(p.cold, errNotPython): // nobody asked for it
		return "off"
	case p.cold != nil:
		return "no: " + p.cold.Error()
	}
	what := slices.Clone(p.Job.Warm.Modules)
	if p.Job.Warm.Auto {
		what = slices.Insert(what, 0, "the imports that "+p.warm.Name+" begins with")
	}
	if p.Job.Warm.Restarts {
		return "of restarts, where they can be shared: " + strings.Join(what, ", ")
	}
	return "where they can be shared: " + strings.Join(what, ", ")
}

// Warms reports whether there will be a start for which modules are to be imported ahead. In a job of several nodes
// others may cause restarts.
func (p *Plan) Warms() bool {
	w, job := p.Job.Warm, &p.Job
	return w.Wanted() && (!w.Restarts || job.Restart.MaxRestarts > 0 || !job.Alone())
}

// pythonName is what interpreters are called. What is behind a name is asked before anything depends on it.
var pythonName = lazyregexp.New(`^python[0-9.]*[a-z]*$`)

func isPython(path string) bool { return pythonName().MatchString(filepath.Base(path)) }

// checkInterpreter refuses what stands in front of an interpreter: a script may choose devices or processors by the
// rank before it starts Python, and a template has none.
func checkInterpreter(path, dir string) error {
	f, err := os.Open(Within(dir, path))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil || string(head) != "\x7fELF" {
		return fmt.Errorf("%s is a script in front of Python: name the interpreter itself, such as $(pyenv which python)",
			Within(dir, path))
	}
	return nil
}

// interpreterLine returns the words that the kernel puts in front of a script with a #! line, if they name Python, and
// that name.
func interpreterLine(path, dir string) (words []string, called string, err error) {
	f, err := os.Open(Within(dir, path))
	if err != nil {
		return nil, "", errNotPython // it can be executed all the same
	}
	defer func() { _ = f.Close() }()
	line, _ := bufio.NewReaderSize(f, 256).ReadString('\n') // the kernel looks no further
	line, found := strings.CutPrefix(line, "#!")
	if !found {
		return nil, "", errNotPython
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	words = []string{name}
	if rest = strings.TrimSpace(rest); rest != "" {
		words = append(words, rest) // one word for the kernel
	}
	called = name
	if filepath.Base(name) == "env" {
		for word := range strings.FieldsSeq(rest) {
			if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
				called = word
				break
			}
		}
	}
	if !isPython(called) {
		return nil, "", fmt.Errorf("%w: its #! line names %s", errNotPython, called)
	}
	return words, called, nil
}

// Common is the environment of a worker without what other workers, attempts or rounds have other values of, and
// the names of that.
func (e Env) Common() (entries, own []string) {
	for _, v := range e {
		if v.Own {
			own = append(own, v.Name)
		} else {
			entries = append(entries, v.Name+"="+v.Value)
		}
	}
	return entries, own
}
