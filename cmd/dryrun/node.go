// Package dryrun is what --dry-run shows of a job before it runs: a node, the nodes on hosts, or an elastic job, each for
// programs as JSON and for people as text.
package dryrun

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"al.essio.dev/pkg/shellescape"

	"muster/cmd/dialect"
	"muster/internal/accel"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous"
)

// Node is what is shown of a node: the job with every value's source, and each rank as it would be started. Inherited
// variables appear by name only, because any of them may hold a secret, and so do others that are not known to be
// harmless.
type Node struct {
	Dialect  string         `json:"dialect"`
	RunID    string         `json:"run_id"`
	Host     string         `json:"host"`
	Platform *platformFacts `json:"platform,omitempty"` // where one was found
	Store    string         `json:"store"`
	Meeting  *meeting       `json:"meeting,omitempty"` // of a job that meets others
	Dir      string         `json:"working_directory"`
	Warm     string         `json:"warm_start"`
	Binding  string         `json:"numa_binding"`
	Debug    string         `json:"debug_mode,omitempty"` // the command in whose place the workers' is
	Check    *checks        `json:"check,omitempty"`      // of a job that tests something before it starts
	Flags    []setting      `json:"flags"`
	Workers  []worker       `json:"workers"`
	common   []variable     // variables that are the same in every rank
	inherit  []string       // names of the inherited ones
	boundBy  string         // source of Binding
	counted  string         // the word by which another host counts its workers, of which one is shown; empty: they are all shown
	argvs    map[int]bool   // local ranks whose argv differs from that of local rank 0
}

// meeting is how a job's nodes meet.
type meeting struct {
	Backend   string   `json:"backend"`
	Endpoints []string `json:"endpoints"`
	MinNodes  int      `json:"min_nodes"`
	MaxNodes  int      `json:"max_nodes"`
	Spares    int      `json:"spares"`
	NodeUnit  int      `json:"node_unit"`
	NodeRank  *int     `json:"node_rank"`  // null: decided when the nodes meet
	ReachedBy string   `json:"reached_by"` // empty: the address from which the meeting place is reached
}

type worker struct {
	Rank      *int       `json:"rank"` // null: decided when the nodes meet
	LocalRank int        `json:"local_rank"`
	Path      string     `json:"path"`
	Argv      []string   `json:"argv"`
	CPUs      string     `json:"cpus,omitempty"` // that it is bound to
	Env       []variable `json:"env"`
	Inherited []string   `json:"inherited"`
}

type variable struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// knownRound is the round of a node, as far as that is known beforehand: of the variables in unsettled what stands there
// is shown.
type knownRound struct {
	rendezvous.Round
	unsettled map[string]string
}

// NewNode shows the plan of a job that was asked for.
func NewNode(p *plan.Plan, req dialect.Request) (*Node, error) {
	d, err := newNode(p, settings(req), nil, showingOf(req))
	if err != nil {
		return nil, err
	}
	d.Platform = newPlatform(req.Platform)
	return d, nil
}

// newNode shows a node's plan. place is its round where that is known beforehand, nil where it is not.
func newNode(p *plan.Plan, flags []setting, place *knownRound, show showing) (*Node, error) {
	round, meeting, unsettled := roundToShow(p, place)
	unsettled = maps.Clone(unsettled)
	for name, like := range p.ProfileLike() {
		if text, open := unsettled[like]; open {
			unsettled[name] = text
		}
	}
	store := job.Endpoint{Host: round.MasterAddr, Port: round.MasterPort}.String()
	switch {
	case meeting != nil && meeting.NodeRank == nil:
		store = decidedLater
	case round.MasterPort == 0:
		store = strings.TrimSuffix(store, "0") + "<a free port>"
	}
	d := &Node{
		Dialect: p.Job.Dialect, RunID: p.RunID, Host: p.Hostname, Store: store, Meeting: meeting, Dir: p.Dir,
		Warm: show.text(p.WarmStart()), Binding: p.Binding(), Check: newChecks(p.Job.Check, p.Job.Alone()), Flags: flags,
		argvs: map[int]bool{}, boundBy: p.Job.Sources["numa-binding"].String(),
	}
	errorFile := "<a file of this attempt>"
	if p.Job.Logs.Dir == os.DevNull {
		errorFile = ""
	}
	// What another run will have another of is not shown as if it were settled.
	settled := func(value string) string { return value }
	if p.RandomRunID() {
		settled = func(value string) string { return strings.ReplaceAll(value, p.RunID, "<random>") }
		d.RunID = "<random>"
	}
	if p.Job.Debug.On {
		d.Debug = shellescape.QuoteCommand(show.args(append([]string{p.Job.Command.Name}, p.Job.Command.Args...)))
	}
	for local := range p.Procs {
		w, err := p.At(plan.FuturePlaces()).Worker(round, local, 0, errorFile)
		if err != nil {
			return nil, err
		}
		dw := worker{Rank: &w.Rank, LocalRank: local, Path: show.path(w.Path), Argv: show.args(w.Argv), CPUs: accel.FormatList(w.CPUs)}
		if isOpen(unsettled["RANK"]) {
			dw.Rank = nil
		}
		for _, v := range w.Env {
			switch {
			case v.Source.Kind == job.Inherited:
				dw.Inherited = append(dw.Inherited, v.Name)
			case v.Name == "MUSTER_AGENT":
				dw.Env = append(dw.Env, variable{v.Name, "<random>", v.Source.String()})
			case isOpen(unsettled[v.Name]):
				dw.Env = append(dw.Env, variable{v.Name, unsettled[v.Name], v.Source.String()})
			case unsettled[v.Name] != "":
				dw.Env = append(dw.Env, variable{v.Name, show.value(v), v.Source.String() + ", " + unsettled[v.Name]})
			case v.Name == "MASTER_PORT" && round.MasterPort == 0:
				dw.Env = append(dw.Env, variable{v.Name, "<a free port>", v.Source.String()})
			default:
				dw.Env = append(dw.Env, variable{v.Name, settled(show.value(v)), v.Source.String()})
			}
		}
		d.Workers = append(d.Workers, dw)
	}
	first := d.Workers[0]
	d.inherit = first.Inherited
	d.common = slices.DeleteFunc(slices.Clone(first.Env), func(v variable) bool {
		return slices.ContainsFunc(d.Workers, func(w worker) bool { return !slices.Contains(w.Env, v) })
	})
	for _, w := range d.Workers {
		d.argvs[w.LocalRank] = !slices.Equal(w.Argv, first.Argv)
	}
	return d, nil
}

// decidedLater stands for what no node knows by itself.
const decidedLater = "<decided when nodes meet>"

// isOpen reports whether a text stands for a value that is not known.
func isOpen(value string) bool { return strings.HasPrefix(value, "<") }

// roundToShow is the round to show. For a job that meets others it also returns how they meet, and the variables whose
// values are not settled, each with decidedLater or what its value depends on.
func roundToShow(p *plan.Plan, place *knownRound) (rendezvous.Round, *meeting, map[string]string) {
	r, job, m := p.DryRound(), &p.Job, &p.Job.Meeting
	if place != nil {
		return place.Round, nil, place.unsettled
	}
	if job.Alone() {
		return r, nil, nil
	}
	d := &meeting{
		Backend: m.Backend, MinNodes: job.Nodes.Min, MaxNodes: job.Nodes.Max, Spares: m.Spares, NodeUnit: max(m.NodeUnit, 1),
		ReachedBy: m.LocalAddr,
	}
	for _, e := range m.Endpoints {
		at := e.String()
		if e.Port == 0 {
			at = strings.TrimSuffix(at, "0") + "<a free port>"
		}
		d.Endpoints = append(d.Endpoints, at)
	}
	if m.Iface != "" {
		d.ReachedBy = "address of " + m.Iface
	}
	unsettled := map[string]string{}
	if m.ExportIface {
		p.Iface = cmp.Or(m.Iface, decidedLater)
	}
	r.GroupWorldSize = job.Nodes.Max
	if m.Backend == "static" {
		d.NodeRank = &m.NodeRank
		r.GroupRank, r.BaseRank, r.WorldSize = m.NodeRank, m.NodeRank*p.Procs, job.Nodes.Max*p.Procs
		r.BaseRoleRank, r.RoleWorldSize = r.BaseRank, r.WorldSize
		r.MasterAddr, r.MasterPort = m.Endpoints[0].Host, m.Endpoints[0].Port
		for _, name := range []string{"RANK", "ROLE_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE"} {
			unsettled[name] = "if all nodes are alike"
		}
		return r, d, unsettled
	}
	for _, name := range []string{
		"RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
		"TORCHELASTIC_RESTART_COUNT", "MUSTER_ROUND", // a node may come to a job that runs
	} {
		unsettled[name] = decidedLater
	}
	if job.Nodes.Min != job.Nodes.Max {
		unsettled["GROUP_WORLD_SIZE"] = decidedLater
	}
	return r, d, unsettled
}

// lines says for people how the nodes meet, as rows of two columns.
func (m *meeting) lines(procs int) [][2]string {
	nodes := strconv.Itoa(m.MinNodes)
	if m.MaxNodes > m.MinNodes {
		nodes = fmt.Sprintf("%d to %d", m.MinNodes, m.MaxNodes)
	}
	if m.NodeUnit > 1 {
		nodes += fmt.Sprintf(", a multiple of %d", m.NodeUnit)
	}
	if m.Spares > 0 {
		nodes += fmt.Sprintf(", and %d to spare", m.Spares)
	}
	this := "its rank is decided when nodes meet"
	if m.NodeRank != nil {
		first := *m.NodeRank * procs
		this = fmt.Sprintf("node rank %d: ranks %d to %d, if all nodes are alike", *m.NodeRank, first, first+procs-1)
	}
	if m.ReachedBy != "" {
		this += "; others reach it by " + m.ReachedBy
	}
	at := " at " + strings.Join(m.Endpoints, ", ")
	if len(m.Endpoints) == 0 { // nodes that are simulated
		at = " on this machine"
	}
	return [][2]string{{"nodes", nodes}, {"they meet by", m.Backend + at}, {"this node", this}}
}

// Write prints what all ranks share once, and of each rank only what sets it apart.
func (d *Node) Write(out io.Writer) error {
	buffered := bufio.NewWriterSize(out, 32<<10) // a tabwriter writes each cell by itself
	w := tabwriter.NewWriter(buffered, 0, 8, 2, ' ', 0)
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) } // Flush tells what failed
	printf("dry run of muster %s: nothing was started\n\n", d.Dialect)
	printf("host\t%s\n", d.Host)
	if d.Platform != nil {
		printf("platform\t%s\n", d.Platform)
	}
	if d.Meeting != nil {
		for _, line := range d.Meeting.lines(len(d.Workers)) {
			printf("%s\t%s\n", line[0], line[1])
		}
	}
	printf("store\t%s\nrun id\t%s\nworking directory\t%s\n", d.Store, d.RunID, d.Dir)
	printf("command\t%s\nworkers\t", shellescape.QuoteCommand(d.Workers[0].Argv))
	switch {
	case d.counted != "":
		printf("%s, by %s\n", countedThere, d.counted)
	case d.Meeting != nil:
		printf("%d on this node\n", len(d.Workers))
	default:
		printf("%d\n", len(d.Workers))
	}
	if d.Debug != "" {
		printf("debug mode\tin the place of %s\n", d.Debug)
	}
	if d.Warm != "off" {
		printf("warm start\t%s\n", d.Warm)
	}
	if d.Binding != "off" {
		printf("NUMA binding\t%s\n", d.Binding)
	}
	for _, line := range d.Check.lines() {
		printf("%s\t%s\n", line[0], line[1])
	}
	title := "flags that were given or derived (--all shows those with their defaults, too)"
	if slices.ContainsFunc(d.Flags, func(f setting) bool { return f.Source == job.Source{}.String() }) {
		title = "all flags"
	}
	printf("\n%s\n", title)
	for _, f := range d.Flags {
		printf("  %s\t%s\t%s\n", f.Name, oneLine(f.Value), f.Source)
	}
	whose := "every rank"
	if len(d.Workers) == 1 {
		whose = d.Workers[0].title()
	}
	printf("\nvariables of %s\n", whose)
	for _, v := range d.common {
		printf("  %s\t%s\t%s\n", v.Name, oneLine(v.Value), v.Source)
	}
	for _, k := range d.Workers {
		var lines strings.Builder
		if d.argvs[k.LocalRank] {
			fmt.Fprintf(&lines, "  command\t%s\n", shellescape.QuoteCommand(k.Argv))
		}
		if k.CPUs != "" {
			fmt.Fprintf(&lines, "  CPUs\t%s\t%s\n", k.CPUs, d.boundBy)
		}
		for _, v := range k.Env {
			if !slices.Contains(d.common, v) {
				fmt.Fprintf(&lines, "  %s\t%s\t%s\n", v.Name, oneLine(v.Value), v.Source)
			}
		}
		if lines.Len() > 0 {
			printf("\n%s\n%s", k.title(), &lines)
		}
	}
	printf("\ninherited by every rank (values not shown): %s\n", strings.Join(d.inherit, " "))
	if err := w.Flush(); err != nil {
		return err
	}
	return buffered.Flush()
}

// title is which worker it is.
func (k *worker) title() string {
	if k.Rank == nil {
		return fmt.Sprintf("local rank %d (its rank is decided when nodes meet)", k.LocalRank)
	}
	return fmt.Sprintf("rank %d (local rank %d)", *k.Rank, k.LocalRank)
}

// oneLine is a value as it fits into a table: quoted where it has lines, tabs or bytes that a terminal might obey.
func oneLine(value string) string {
	if strings.ContainsFunc(value, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return strconv.Quote(value)
	}
	return value
}
