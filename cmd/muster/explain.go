package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"al.essio.dev/pkg/shellescape"

	"muster/cmd/dialect"
	"muster/cmd/dialect/jobfile"
	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/job"
)

// makeUp writes the spec of the accelerators that a job file asks for, and has all nodes see them. forget removes it.
func makeUp(req *dialect.Request) (forget func(), err error) {
	f, err := os.CreateTemp("", "muster-accelerators-*.yaml")
	if err != nil {
		return nil, fmt.Errorf("cannot write the accelerators of the job file: %w", err)
	}
	forget = func() { _ = os.Remove(f.Name()) }
	_, err = f.WriteString(req.MadeUp)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		forget()
		return nil, fmt.Errorf("cannot write the accelerators of the job file: %w", err)
	}
	req.Job.Fake = f.Name()
	tell := func(env []job.Var, host string) []job.Var {
		from := job.Source{Kind: job.FromMuster, Name: "accelerators made up for a rehearsal"}
		env = append(slices.Clone(env), job.Var{Name: "MUSTER_FAKE", Value: f.Name(), Source: from})
		if req.File.Launcher == nil { // a launcher's hosts have names of their own
			env = append(env, job.Var{Name: fakeNodeName, Value: host, Source: from})
		}
		return env
	}
	for i := range req.Job.Hosts.Nodes {
		n := &req.Job.Hosts.Nodes[i]
		n.Env = tell(n.Env, n.Name)
	}
	if len(req.Job.Hosts.Nodes) == 0 {
		req.Job.NodeEnv = tell(req.Job.NodeEnv, "127.0.0.1")
	}
	return forget, nil
}

func newExplainCmd(a *app) *cobra.Command {
	var output, kind, name, secrets, list, file string
	var set []string
	var lenient bool
	cmd := &cobra.Command{
		Use:   "explain FILE",
		Short: "Tell what muster makes of a job file: what would run where, and what becomes of each line",
		Long: `Tell what muster run -f FILE makes of a job file, without starting anything.

First which replica would run where, and what; then each line of the file: applied
(muster does as it says), mapped (muster does so in its own way), cluster (left to
the cluster, with the reason), missing (a start needs it), unknown (with --lenient).`,
		Args: cobra.ExactArgs(1),
		Annotations: map[string]string{
			exitAnnotation: "  0  told\n  2  usage error, or a file that muster run would refuse\n",
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return errhint.Usagef("-o %q: choose one of text, json", output)
			}
			words := []string{"--job-file", args[0]}
			for _, w := range [][2]string{{"kind", kind}, {"name", name}, {"secrets", secrets}, {"hosts", list}, {"hostfile", file}} {
				if w[1] != "" {
					words = append(words, "--"+w[0]+"="+w[1])
				}
			}
			for _, s := range set {
				words = append(words, "--set="+s)
			}
			if lenient {
				words = append(words, "--lenient")
			}
			req, err := dialect.Read("run", dialect.Invocation{
				Argv0: a.argv[0], Args: words, Environ: a.environ, ReadFile: a.readFile, ReadDir: readDir, Machine: a.surroundings(),
				Dir: workingDir(), Explain: true,
			})
			if err != nil {
				return err
			}
			return a.show(newExplained(args[0], req), output == "json")
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&output, "output", "o", "text", "text or json")
	flags.StringVar(&kind, "kind", "", "kind of the job that is meant, where the file has several")
	flags.StringVar(&name, "name", "", "name of the job that is meant, where the file has several")
	flags.StringVar(&secrets, "secrets", "", "directory with a directory for each Secret and ConfigMap")
	flags.StringVar(&list, "hosts", "", "hosts on which the job would run, as muster run takes them")
	flags.StringVar(&file, "hostfile", "", "file that names them")
	flags.StringArrayVar(&set, "set", nil, "read the file as if VALUE stood at PATH; may be given again")
	flags.BoolVar(&lenient, "lenient", false, "list fields that nobody knows, where they would be refused")
	return cmd
}

// explained is what muster makes of a job file.
type explained struct {
	Kind     string          `json:"kind"`
	Name     string          `json:"name"`
	Rehearse bool            `json:"rehearsal"`
	Nodes    []explainedNode `json:"nodes"`
	Settings []explainedFlag `json:"settings"`
	Lines    []jobfile.Line  `json:"lines"`
	counts   map[jobfile.State]int
	file     string
}

// explainedNode is what runs on a node.
type explainedNode struct {
	Replica      string            `json:"replica"`
	Role         string            `json:"role"`
	Host         string            `json:"host"`
	Accelerators int               `json:"accelerators"`
	Command      []string          `json:"command,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
}

// explainedFlag is a setting that follows from the file.
type explainedFlag struct {
	Flag   string `json:"flag"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

func newExplained(file string, req dialect.Request) *explained {
	e := &explained{
		Kind: req.File.Kind, Name: req.File.Name, Lines: req.File.Lines, counts: map[jobfile.State]int{}, file: file,
	}
	if e.Lines == nil {
		e.Lines = []jobfile.Line{}
	}
	e.Rehearse = req.Job.Sources["hosts"].Kind != job.FromFlag && req.Job.Sources["hostfile"].Kind != job.FromFlag
	for _, p := range slices.Concat(req.Placed, req.Reached) {
		n := explainedNode{
			Replica: p.Pod.Name, Role: p.Pod.Role, Host: p.Host, Accelerators: p.Pod.Accelerators, Env: map[string]string{},
		}
		if p.Node.Argv != nil {
			n.Command = job.ShownArgs(p.Node.Argv)
		}
		for _, v := range p.Node.Env {
			n.Env[v.Name] = v.Shown()
		}
		e.Nodes = append(e.Nodes, n)
	}
	for _, s := range req.Settings {
		if s.Source.Kind == job.FromConfig {
			e.Settings = append(e.Settings, explainedFlag{"--" + s.Flag, s.Value, s.Source.Name})
		}
	}
	for _, l := range e.Lines {
		e.counts[l.State]++
	}
	return e
}

// Write writes the explanation for people.
func (e *explained) Write(w io.Writer) error {
	where := "on these hosts"
	if e.Rehearse {
		where = "on this machine, as a rehearsal"
	}
	say(w, "%s %s: %s %s\n\n", e.Kind, printable.Text(e.Name), wording.Plural(len(e.Nodes), "node"), where)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	say(table, "REPLICA\tHOST\tACCELERATORS\tCOMMAND\n")
	for _, n := range e.Nodes {
		count, command := "-", "(started by the launcher)"
		if n.Accelerators > 0 {
			count = strconv.Itoa(n.Accelerators)
		}
		if n.Command != nil {
			command = shellescape.QuoteCommand(n.Command)
		}
		say(table, "%s\t%s\t%s\t%s\n", printable.Text(n.Replica), n.Host, count, shortened(printable.Text(command), 100))
	}
	say(table, "\n")
	say(table, "SETTING\tVALUE\tFROM\n")
	for _, s := range e.Settings {
		say(table, "%s\t%s\t%s\n", s.Flag, shortened(printable.Text(s.Value), 60), e.place(s.Source))
	}
	say(table, "\n")
	say(table, "PLACE\tFIELD\tVALUE\tSTATE\tWHAT BECOMES OF IT\n")
	for _, l := range e.Lines {
		say(table, "%s\t%s\t%s\t%s\t%s\n", e.place(l.Source), printable.Text(l.Path), shortened(printable.Text(l.Value), 40), l.State,
			printable.Text(l.As))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var parts []string
	for _, s := range []jobfile.State{jobfile.Applied, jobfile.Mapped, jobfile.Cluster, jobfile.Missing, jobfile.Unknown} {
		if e.counts[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", e.counts[s], s))
		}
	}
	say(w, "\n%s: %s\n", wording.Plural(len(e.Lines), "line"), strings.Join(parts, ", "))
	return nil
}

// place is where something stands, in a table about one file.
func (e *explained) place(source string) string {
	if line, here := strings.CutPrefix(source, e.file+":"); here {
		return "line " + line
	}
	return printable.Text(source)
}

// shortened cuts a text that is longer than most letters.
func shortened(text string, most int) string {
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}
