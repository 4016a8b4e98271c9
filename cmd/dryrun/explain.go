package dryrun

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"al.essio.dev/pkg/shellescape"

	"muster/cmd/dialect"
	"muster/cmd/dialect/jobfile"
	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/job"
)

// Explained is what muster makes of a job file.
type Explained struct {
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

// explainedFlag is a setting that follows from the file, or stands in the place of one that does.
type explainedFlag struct {
	Flag   string `json:"flag"`
	Value  string `json:"value"`
	Source string `json:"source"`
	// Instead is where the file says it, of a setting that is stronger.
	Instead string `json:"instead,omitempty"`
}

// NewExplained is what becomes of the lines of a job file by the request that was made of it.
func NewExplained(file string, req dialect.Request) *Explained {
	e := &Explained{
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
	said := map[string]string{} // where the file says a setting
	for _, w := range req.File.Words {
		said[w.Flag] = w.Source.Name
	}
	for _, s := range req.Settings {
		switch place := said[s.Flag]; {
		case s.Source.Kind == job.FromConfig, s.Source.Name == place && place != "": // of --set
			e.Settings = append(e.Settings, explainedFlag{Flag: "--" + s.Flag, Value: s.Value, Source: s.Source.Name})
		case place != "":
			e.Settings = append(e.Settings, explainedFlag{Flag: "--" + s.Flag, Value: s.Value, Source: s.Source.String(), Instead: place})
		}
	}
	for _, l := range e.Lines {
		e.counts[l.State]++
	}
	return e
}

// Write writes the explanation for people.
func (e *Explained) Write(w io.Writer) error {
	where := "on these hosts"
	if e.Rehearse {
		where = "on this machine, as a rehearsal"
	}
	tell(w, "%s %s: %s %s\n\n", e.Kind, printable.Text(e.Name), wording.Plural(len(e.Nodes), "node"), where)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	tell(table, "REPLICA\tHOST\tACCELERATORS\tCOMMAND\n")
	for _, n := range e.Nodes {
		count, command := "-", "(started by the launcher)"
		if n.Accelerators > 0 {
			count = strconv.Itoa(n.Accelerators)
		}
		if n.Command != nil {
			command = shellescape.QuoteCommand(n.Command)
		}
		tell(table, "%s\t%s\t%s\t%s\n", printable.Text(n.Replica), n.Host, count, shortened(printable.Text(command), 100))
	}
	tell(table, "\n")
	tell(table, "SETTING\tVALUE\tFROM\n")
	for _, s := range e.Settings {
		from := e.place(s.Source)
		if s.Instead != "" {
			from += ", in place of " + e.place(s.Instead)
		}
		tell(table, "%s\t%s\t%s\n", s.Flag, shortened(printable.Text(s.Value), 60), from)
	}
	tell(table, "\n")
	tell(table, "PLACE\tFIELD\tVALUE\tSTATE\tWHAT BECOMES OF IT\n")
	for _, l := range e.Lines {
		tell(table, "%s\t%s\t%s\t%s\t%s\n", e.place(l.Source), printable.Text(l.Path), shortened(printable.Text(l.Value), 40), l.State,
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
	tell(w, "\n%s: %s\n", wording.Plural(len(e.Lines), "line"), strings.Join(parts, ", "))
	return nil
}

// place is where something stands, in a table about one file.
func (e *Explained) place(source string) string {
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

// tell writes to a table, whose Flush tells what has failed.
func tell(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
