package plan

import (
	"strings"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/job"
)

// Replacement is another command for a job that was planned: what is looked up of it on this machine.
type Replacement struct {
	command job.Command
	entry   entrypoint
	warm    WarmCommand
	cold    error
}

// Replacement looks up what stands for the job's program and its arguments: words as they would follow the flags on the
// command line. Where the job runs a script these are a script, or "-m" and a module, and what follows it. It refuses
// what could not run.
func (p *Plan) Replacement(words []string) (*Replacement, error) {
	if p.debug != nil {
		return nil, errhint.With(errhint.Usagef("cannot run another command: --debug-mode runs something in the place of all of them"),
			"muster exec runs a command in the place of a rank")
	}
	r := Replacement{command: p.Job.Command}
	c := &r.command
	switch {
	case len(words) == 0 || words[0] == "":
		return nil, errhint.Usagef("cannot run another command: it is empty")
	case c.Kind == job.Program || isPython(words[0]):
		c.Kind = job.Program
	case words[0] == "-m" && len(words) > 1:
		c.Kind, words = job.Module, words[1:]
	case c.Kind == job.Module && strings.HasSuffix(words[0], ".py"):
		c.Kind = job.Script
	}
	c.Name, c.Args, c.Title = words[0], words[1:], ""
	environ := p.environ()
	var err error
	if path := p.Job.Python.Path; path != "" && c.Kind == job.Program && isPython(c.Name) {
		if c.Name, err = proc.LookPath(path, p.Dir, environ); err != nil {
			return nil, err
		}
	}
	if r.entry, err = resolveCommand(*c, p.Job.Vars(), p.Dir, environ); err != nil {
		return nil, err
	}
	if p.Warms() {
		if r.warm, r.cold = planWarm(*c, r.entry, p.Job.Warm.Auto, p.Dir, environ); r.cold == nil {
			r.cold = warmBound(p.cpus, environ)
		}
	}
	return &r, nil
}

// Use has workers that are started from now on run another command.
func (p *Plan) Use(r *Replacement) {
	p.Job.Command, p.entry, p.warm, p.cold = r.command, r.entry, r.warm, r.cold
}
