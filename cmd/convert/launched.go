package convert

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"muster/cmd/dialect"
	"muster/cmd/dialect/jobfile"
	"muster/cmd/manifest"
	"muster/internal/errhint"
	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// torchrunNames are the launchers whose command lines say what a node's workers are.
var torchrunNames = []string{"torchrun", "torch.distributed.run", "torch.distributed.launch"}

// Launched finds what a node of a job file starts. An error names the line of the file that says something which muster
// convert does not take apart.
func Launched(req dialect.Request) (manifest.Launched, error) {
	what, err := launched(req)
	if err == nil {
		err = byPlace(req.Placed[0], commandOf(req), what)
	}
	if err != nil {
		return manifest.Launched{}, err
	}
	what.Idle = idle(req.Placed[0].Pod, slices.Concat(req.File.Words, req.File.Apart, what.Settings))
	text := strings.Join(what.Command, "\n")
	for _, v := range req.Placed[0].Node.Env {
		ours := v.Source.Kind != job.FromMuster || job.TellsWorkers(v.Name) || v.Name == jobfile.ReplicaVariable
		if !ours && names(text, v.Name) {
			what.Told = append(what.Told, v.Name)
		}
	}
	return what, nil
}

// settings are the variables of a node's container that muster run would read, and that the launcher in its command reads,
// too.
func settings(node dialect.PlacedNode, reads func(name string) bool) (list []jobfile.Word) {
	own := map[string]job.Var{}
	var environ []string
	for _, v := range node.Node.Env {
		if v.Source.Kind != job.FromMuster {
			own[v.Name] = v
			environ = append(environ, v.Name+"="+v.Value)
		}
	}
	for _, f := range dialect.RunVariables(environ) {
		if v := own[f.Variable]; reads(f.Variable) {
			list = append(list, jobfile.Word{
				Flag: f.Name, Text: f.Text, Source: v.Source, Own: true, Variable: f.Variable, Secret: v.Secret,
			})
		}
	}
	return list
}

// idle are the variables of a node's container that muster run would read, and that nothing there reads as a setting.
func idle(pod jobfile.Pod, read []jobfile.Word) (list []string) {
	for _, v := range pod.Plain() {
		if dialect.RunReads(v.Name) && !slices.ContainsFunc(read, func(w jobfile.Word) bool { return w.Variable == v.Name }) {
			list = append(list, v.Name)
		}
	}
	return list
}

// commandOf is where the nodes' command stands.
func commandOf(req dialect.Request) string {
	for _, l := range req.File.Lines {
		if strings.HasSuffix(l.Path, ".command") {
			return l.Place() + ": " + l.Path
		}
	}
	return "the command of " + req.Placed[0].Pod.Name
}

// reference is a variable in a word of a command, as Kubernetes replaces it.
var reference = lazyregexp.New(`\$\(([^()]+)\)`)

// byPlace refuses words of a command in which the operator's variables were replaced by what they are here. at is where
// it stands.
func byPlace(first dialect.PlacedNode, at string, what manifest.Launched) error {
	words := first.Pod.Argv[max(0, len(first.Pod.Argv)-len(first.Node.Argv)):]
	for i, word := range words {
		here := first.Node.Argv[len(first.Node.Argv)-len(words)+i]
		if i < len(words)-len(what.Command) || !slices.Contains(what.Command, here) {
			continue // the launcher's, which are not carried over
		}
		for _, ref := range reference().FindAllStringSubmatch(word, -1) {
			own := slices.ContainsFunc(first.Node.Env, func(v job.Var) bool { return v.Name == ref[1] && v.Source.Kind != job.FromMuster })
			if !own && !strings.Contains(here, ref[0]) {
				return errhint.With(fmt.Errorf("%s: it has %s, which is another value in the cluster", at, ref[0]),
					"let a shell of the worker read it: --set '...command=[sh, -c, \"... $"+ref[1]+"\"]'")
			}
		}
	}
	return nil
}

// names reports whether a variable stands in a text, and is not set there.
func names(text, variable string) bool {
	part := func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
	for rest := text; ; {
		before, after, found := strings.Cut(rest, variable)
		if !found {
			return false
		}
		rest = after
		last, _ := utf8.DecodeLastRuneInString(before)
		next, _ := utf8.DecodeRuneInString(after)
		if !part(last) && !part(next) && next != '=' {
			return true
		}
	}
}

func launched(req dialect.Request) (manifest.Launched, error) {
	file := req.File
	first := req.Placed[0]
	at := commandOf(req)
	refuse := func(what, hint string) (manifest.Launched, error) {
		return manifest.Launched{}, errhint.With(fmt.Errorf("%s: %s", at, what), hint)
	}
	for _, p := range req.Placed[1:] {
		if !slices.Equal(p.Node.Argv, first.Node.Argv) {
			return refuse("the nodes have different commands: "+first.Pod.Name+" and "+p.Pod.Name, "give all nodes one command by --set")
		}
	}
	argv := first.Node.Argv
	program := path.Base(argv[0])
	switch {
	case file.Native:
		procs := "1"
		for _, w := range file.Words {
			if w.Own && w.Flag == "nproc-per-node" {
				procs = w.Text
			}
		}
		return manifest.Launched{Procs: counted(procs, first.Pod), Command: argv}, nil
	case slices.Contains(torchrunNames, program):
		return torchrunOf(program, argv[1:], first, refuse)
	case file.Launcher != nil && (program == "mpirun" || program == "mpiexec"):
		what, err := mpirunOf(argv[1:], first.Pod.Argv[max(0, len(first.Pod.Argv)-len(argv))+1:], file, refuse)
		what.Settings = settings(first, func(name string) bool { return strings.HasPrefix(name, "MUSTER_") })
		return what, err
	case dialect.Named(program) || program == "muster":
		return refuse("muster convert does not take the command line of "+program+" apart",
			"give muster run as the command by --set: '...command=[muster, run, -n, \"8\", --, python, train.py]'")
	case slices.ContainsFunc(argv[1:], func(w string) bool {
		return slices.ContainsFunc(strings.FieldsFunc(w, func(r rune) bool { return strings.ContainsRune(" \t\n;&|'\"", r) }),
			func(w string) bool { return dialect.Named(path.Base(w)) && w != "run" })
	}) && !strings.HasPrefix(program, "python"):
		return refuse("the command is a script in which a launcher stands, and muster convert reads no scripts",
			"give the launcher's words as the command by --set")
	}
	return manifest.Launched{Procs: "1", Command: argv}, nil
}

// counted is the number of workers of a pod that counts its accelerators, where the file says how many it has.
func counted(procs string, p jobfile.Pod) string {
	if _, err := strconv.Atoi(procs); err != nil && p.Accelerators > 0 && procs != "cpu" {
		return strconv.Itoa(p.Accelerators)
	}
	return procs
}

// torchrunOf reads the command line of torchrun, with the variables of its node.
func torchrunOf(
	program string, args []string, node dialect.PlacedNode, refuse func(what, hint string) (manifest.Launched, error),
) (manifest.Launched, error) {
	var environ []string
	for _, v := range node.Node.Env {
		environ = append(environ, v.Name+"="+v.Value)
	}
	req, err := dialect.Read(program, dialect.Invocation{Argv0: program, Args: args, Environ: environ})
	if err != nil {
		return refuse(fmt.Sprintf("its %s would be refused: %v", program, err), "")
	}
	what := manifest.Launched{Procs: counted(req.Job.Procs, node.Pod), MaxRestarts: req.Job.Restart.MaxRestarts}
	what.Settings = settings(node, func(name string) bool {
		return slices.ContainsFunc(req.Settings, func(s dialect.Setting) bool { return s.Source.Name == name })
	})
	c := req.Job.Command
	switch c.Kind {
	case job.Module:
		what.Command = []string{"python", "-u", "-m", c.Name}
	case job.Script:
		what.Command = []string{"python", "-u", c.Name}
	default:
		what.Command = []string{c.Name}
	}
	what.Command = append(what.Command, c.Args...)
	return what, nil
}

// mpirunOf reads a short command line of mpirun: how many processes, and variables. raw are the words as they stand in
// the file.
func mpirunOf(
	args, raw []string, file *jobfile.File, refuse func(what, hint string) (manifest.Launched, error),
) (manifest.Launched, error) {
	n := len(file.Pods)
	what := manifest.Launched{MPI: true}
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		switch strings.TrimPrefix(args[0], "-") {
		case "-allow-run-as-root", "allow-run-as-root":
			args, raw = args[1:], raw[1:]
			continue
		case "np", "n", "-np", "-n":
			if count, err := strconv.Atoi(args[1]); err == nil {
				n = count
			}
		case "x":
			what.Variables = append(what.Variables, raw[1]) // and not with a Secret's text in it
		default:
			return refuse("muster convert knows -np and -x of mpirun, and not "+args[0], "leave it out by --set")
		}
		args, raw = args[2:], raw[2:]
	}
	if len(args) == 0 {
		return refuse("its mpirun starts nothing", "")
	}
	if n%len(file.Pods) != 0 {
		return refuse(fmt.Sprintf("%d processes on %d nodes: muster run has the same number on each", n, len(file.Pods)),
			"change it by --set")
	}
	what.Procs, what.Command = strconv.Itoa(n/len(file.Pods)), args
	return what, nil
}
