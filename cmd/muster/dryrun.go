package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"al.essio.dev/pkg/shellescape"

	"muster/launch"
)

// dryRun is what --dry-run prints: the job with every value's source, and each rank as it would be started. Inherited
// variables appear by name only, because any of them may hold a secret.
type dryRun struct {
	Dialect string       `json:"dialect"`
	RunID   string       `json:"run_id"`
	Host    string       `json:"host"`
	Store   string       `json:"store"`
	Dir     string       `json:"working_directory"`
	Warm    string       `json:"warm_start"`
	Flags   []dryFlag    `json:"flags"`
	Workers []dryWorker  `json:"workers"`
	common  []dryVar     // variables that are the same in every rank
	inherit []string     // names of the inherited ones
	argvs   map[int]bool // ranks whose argv differs from rank 0's
}

type dryFlag struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

type dryWorker struct {
	Rank      int      `json:"rank"`
	LocalRank int      `json:"local_rank"`
	Path      string   `json:"path"`
	Argv      []string `json:"argv"`
	Env       []dryVar `json:"env"`
	Inherited []string `json:"inherited"`
}

type dryVar struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

func newDryRun(p *launch.Plan, flags []dryFlag) (*dryRun, error) {
	round := p.DryRound()
	store := fmt.Sprintf("%s:%d", round.MasterAddr, round.MasterPort)
	if round.MasterPort == 0 {
		store = round.MasterAddr + ":<a free port>"
	}
	d := &dryRun{
		Dialect: p.Job.Dialect, RunID: p.RunID, Host: p.Hostname, Store: store, Dir: p.Dir, Warm: p.WarmStart(), Flags: flags,
		argvs: map[int]bool{},
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
	for local := range p.Procs {
		w, err := p.Worker(round, local, 0, errorFile)
		if err != nil {
			return nil, err
		}
		dw := dryWorker{Rank: w.Rank, LocalRank: local, Path: w.Path, Argv: w.Argv}
		for _, v := range w.Env {
			switch {
			case v.Source.Kind == launch.Inherited:
				dw.Inherited = append(dw.Inherited, v.Name)
			case v.Name == "MUSTER_AGENT":
				dw.Env = append(dw.Env, dryVar{v.Name, "<random>", v.Source.String()})
			case v.Name == "MASTER_PORT" && round.MasterPort == 0:
				dw.Env = append(dw.Env, dryVar{v.Name, "<a free port>", v.Source.String()})
			default:
				dw.Env = append(dw.Env, dryVar{v.Name, settled(v.Value), v.Source.String()})
			}
		}
		d.Workers = append(d.Workers, dw)
	}
	first := d.Workers[0]
	d.inherit = first.Inherited
	d.common = slices.DeleteFunc(slices.Clone(first.Env), func(v dryVar) bool {
		return slices.ContainsFunc(d.Workers, func(w dryWorker) bool { return !slices.Contains(w.Env, v) })
	})
	for _, w := range d.Workers {
		d.argvs[w.Rank] = !slices.Equal(w.Argv, first.Argv)
	}
	return d, nil
}

func (d *dryRun) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(d)
}

// writeText prints what all ranks share once, and of each rank only what sets it apart.
func (d *dryRun) writeText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) } // Flush tells what failed
	printf("dry run of muster %s: nothing was started\n\n", d.Dialect)
	printf("host\t%s\nstore\t%s\nrun id\t%s\nworking directory\t%s\n", d.Host, d.Store, d.RunID, d.Dir)
	printf("command\t%s\nworkers\t%d\n", shellescape.QuoteCommand(d.Workers[0].Argv), len(d.Workers))
	if d.Warm != "off" {
		printf("warm start\t%s\n", d.Warm)
	}
	printf("\nflags\n")
	for _, f := range d.Flags {
		printf("  %s\t%s\t%s\n", f.Name, f.Value, f.Source)
	}
	printf("\nvariables of every rank\n")
	for _, v := range d.common {
		printf("  %s\t%s\t%s\n", v.Name, v.Value, v.Source)
	}
	for _, k := range d.Workers {
		printf("\nrank %d (local rank %d)\n", k.Rank, k.LocalRank)
		if d.argvs[k.Rank] {
			printf("  command\t%s\n", shellescape.QuoteCommand(k.Argv))
		}
		for _, v := range k.Env {
			if !slices.Contains(d.common, v) {
				printf("  %s\t%s\t%s\n", v.Name, v.Value, v.Source)
			}
		}
	}
	printf("\ninherited by every rank (values not shown): %s\n", strings.Join(d.inherit, " "))
	return w.Flush()
}
