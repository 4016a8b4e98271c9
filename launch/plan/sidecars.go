package plan

import (
	"fmt"
	"strconv"
	"strings"

	"muster/internal/proc"
	"muster/launch/job"
)

// sidecarVariable tells each process beside the workers its number, from 0.
const sidecarVariable = "MUSTER_SIDECAR_INDEX"

// Sidecar is a process beside the workers as it will be started.
type Sidecar struct {
	Path string
	Argv []string
	Env  []string
	Dir  string
	// Shown is its command as it may be shown.
	Shown string
}

// findSidecars looks up the programs that run beside the workers. Every node may have to run them.
func (p *Plan) findSidecars(environ []string) error {
	for _, words := range p.Job.Sidecars {
		path, err := proc.LookPath(words[0], p.Dir, environ)
		if err != nil {
			return fmt.Errorf("cannot run the sidecar %q: %w", p.shown(words), err)
		}
		p.sidecars = append(p.sidecars, path)
	}
	return nil
}

// Sidecars are the processes beside the workers. They have the environment that all workers of the node have alike,
// without what tells a worker its place.
func (p *Plan) Sidecars() []Sidecar {
	list := make([]Sidecar, 0, len(p.sidecars))
	for i, path := range p.sidecars {
		words := p.Job.Sidecars[i]
		env := p.Process([]string{sidecarVariable + "=" + strconv.Itoa(i), "MUSTER_RUN_DIR=" + p.RunDir}).Env
		list = append(list, Sidecar{Path: path, Argv: words, Env: env.Strings(), Dir: p.Dir, Shown: p.shown(words)})
	}
	return list
}

// shown is a command as it may be shown.
func (p *Plan) shown(words []string) string {
	return strings.Join(job.ShownArgsBut(words, p.Job.Vars()), " ")
}
