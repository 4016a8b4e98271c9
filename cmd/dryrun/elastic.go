package dryrun

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"al.essio.dev/pkg/shellescape"

	"muster/cmd/dialect"
	"muster/launch/hosts"
	"muster/launch/job"
	"muster/launch/plan"
)

// Elastic is what is shown of an elastic job: which hosts it will have nobody knows.
type Elastic struct {
	Dialect   string     `json:"dialect"`
	Hosts     string     `json:"hosts"` // where they come from
	Needed    int        `json:"slots_at_first"`
	MinNP     int        `json:"min_np"`
	MaxNP     int        `json:"max_np"` // 0: any number
	Dir       string     `json:"working_directory"`
	Check     *checks    `json:"check,omitempty"`
	Flags     []setting  `json:"flags"`
	Argv      []string   `json:"argv"`
	Env       []variable `json:"env"`
	Inherited []string   `json:"inherited"`
}

// NewElastic shows the rules of an elastic job, and a worker as it would be with what this machine has.
func NewElastic(ctx context.Context, cfg hosts.ElasticConfig, req dialect.Request, machineOf MachineOf) (*Elastic, error) {
	f, err := hosts.Foresee(ctx, cfg.Launcher)
	if err != nil {
		return nil, err
	}
	asked := f.Job
	asked.Procs, asked.Hosts = "1", job.Hosts{}
	machine, err := machineOf("", asked)
	if err != nil {
		return nil, err
	}
	plan, err := plan.New(asked, machine)
	if err != nil {
		return nil, err
	}
	h := req.Horovod
	d := &Elastic{
		Dialect: asked.Dialect, Hosts: cfg.Source.String(), Needed: h.NP, MinNP: h.MinNP, MaxNP: h.MaxNP, Dir: f.Dir,
		Check: newChecks(req.Job.Check, false), Flags: settings(req),
	}
	w, show := plan.Process(nil), showingOf(req)
	d.Argv = show.args(w.Argv)
	for _, v := range w.Env {
		switch {
		case v.Source.Kind == job.Inherited:
			d.Inherited = append(d.Inherited, v.Name)
		case v.Name != "MUSTER_AGENT":
			d.Env = append(d.Env, variable{v.Name, show.value(v), v.Source.String()})
		}
	}
	return d, nil
}

// Write shows the job for people.
func (d *Elastic) Write(out io.Writer) error {
	most := "as many workers as there are slots"
	if d.MaxNP > 0 {
		most = fmt.Sprintf("%d workers", d.MaxNP)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format, args...) } // Flush tells what failed
	printf("dry run of muster %s: nothing was started\n\n", d.Dialect)
	printf("hosts\t%s\nworlds\t%d slots at first, then %d to %s\nworking directory\t%s\ncommand\t%s\n", d.Hosts, d.Needed, d.MinNP, most,
		d.Dir, shellescape.QuoteCommand(d.Argv))
	for _, line := range d.Check.lines() {
		printf("%s\t%s\n", line[0], line[1])
	}
	printf("\nflags\n")
	for _, f := range d.Flags {
		printf("  %s\t%s\t%s\n", f.Name, f.Value, f.Source)
	}
	printf("\nvariables of every worker, beside those of its place in the world\n")
	for _, v := range d.Env {
		printf("  %s\t%s\t%s\n", v.Name, v.Value, v.Source)
	}
	return t.Flush()
}
