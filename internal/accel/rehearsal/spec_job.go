package rehearsal

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"muster/internal/wording"
)

// What a fault of a job's processes is about: the check program, the workers, or both.
const (
	inCheck   = "check"
	inWorkers = "workers"
	inBoth    = "both"
)

// inWords are what keys of such faults may say; at is the test of the check program.
var inWords = map[string][]string{"in": {inCheck, inWorkers, inBoth}, "at": {"local", "pair"}}

// inJob checks what belongs together in a fault of a job's processes.
func (r *specReader) inJob(n *yaml.Node, where string, f *fault, given map[string]bool) {
	in, about := f.text["in"]
	if !about {
		return
	}
	timed := given[onSeconds] || given[onStep]
	switch {
	case timed && !given["in"]:
		f.text["in"] = inWorkers // from a step on: the check has none
	case timed && in != inWorkers:
		r.add(n.Line, "%s: after_s and after_step are for workers, and this is in: %s: leave them out, or say in: workers", where, in)
	}
	if given["at"] && in == inWorkers {
		r.add(n.Line, "%s: at names a test of the check program: add in: check", where)
	}
}

// JobFault is what goes wrong in the processes of a job: those of the check program, and the workers. They get a list
// of them as JSON in the variable faultVariable, and obey it themselves.
type JobFault struct {
	Kind string `json:"kind"` // slow-node, crash or hang
	In   string `json:"in"`   // check, workers or both
	// At is the test of the check program in which it happens: local or pair.
	At string `json:"at,omitempty"`
	// LocalRank is the process that it happens to, -1 for all of the node.
	LocalRank int `json:"local_rank"`
	// AfterStep and AfterS are how many steps a worker has done, and for how many seconds it has run, before.
	AfterStep int `json:"after_step,omitempty"`
	AfterS    int `json:"after_s,omitempty"`
	// Once has it happen to one process of the node, one time: to the one that creates this file in MUSTER_RUN_DIR.
	Once string `json:"once,omitempty"`
	// Factor is the speed of a slow node, as a part of its usual one.
	Factor float64 `json:"factor,omitempty"`
	// Status is the exit status of a crash; above 128 it is the signal that ends the process, and 128, where one that
	// ends processes has this number.
	Status int `json:"status,omitempty"`
}

// faultVariable is the environment variable with the faults of a job's processes.
const faultVariable = "MUSTER_FAKE_FAULT"

// JobFaults returns what goes wrong in the processes of a job.
func (f *Fake) JobFaults() []JobFault {
	var list []JobFault
	for _, x := range f.spec.faults {
		in, about := x.text["in"]
		if !about {
			continue
		}
		j := JobFault{
			Kind: x.kind, In: in, LocalRank: x.nums["local_rank"], AfterStep: x.when.step, AfterS: x.when.seconds,
			Factor: x.reals["factor"], Status: x.nums["status"],
		}
		if in != inWorkers {
			j.At = x.text["at"]
		}
		if x.when.once {
			j.Once = fmt.Sprintf("fake-fault-%d", x.number)
		}
		list = append(list, j)
	}
	return list
}

// RoundEnv returns the variables of a round, beside those of Env: nil where nothing goes wrong in it.
func (f *Fake) RoundEnv(round int) map[string]string {
	faults := f.At(round).JobFaults()
	if len(faults) == 0 {
		return nil
	}
	text, err := json.Marshal(faults)
	if err != nil {
		panic("internal error: cannot encode faults: " + err.Error()) // there are neither NaNs nor cycles
	}
	return map[string]string{faultVariable: string(text)}
}

// Untaken says for people which faults of a round no worker has obeyed, of those that end a worker or have it stand still.
// well reports whether the process of a local rank, -1 for all, has ended well, and after so many seconds; runDir is
// where one that has a fault of which there is one leaves a file.
func (f *Fake) Untaken(round int, runDir string, well func(localRank, seconds int) bool) (said []string) {
	for _, x := range f.At(round).JobFaults() {
		if x.Kind == "slow-node" || x.In == inCheck || !well(x.LocalRank, x.AfterS) {
			continue
		}
		if x.Once != "" {
			if _, err := os.Stat(filepath.Join(runDir, x.Once)); err == nil {
				continue
			}
		}
		text := fmt.Sprintf("%s of local rank %d", x.Kind, x.LocalRank)
		if x.LocalRank < 0 {
			text = x.Kind + " of all local ranks"
		}
		if x.AfterS > 0 {
			text += fmt.Sprintf(" after %d s", x.AfterS)
		}
		if x.AfterStep > 0 {
			text += fmt.Sprintf(" after step %d", x.AfterStep)
		}
		said = append(said, text)
	}
	return said
}

// NoTorch reports whether the check program is to find no torch.
func (f *Fake) NoTorch() bool { return f.spec.has("no-torch", -1) }

// reference is a name of another node, somewhere in a spec.
type reference struct {
	line        int
	where, name string
	node        string // whose section has it; "": the defaults, where any name means other nodes
}

// peers reads a list of other nodes.
func (r *specReader) peers(n *yaml.Node, where string) []string {
	list := []string{}
	for i, v := range r.sequence(n, where, maxPeers) {
		at := fmt.Sprintf("%s[%d]", where, i)
		if name, ok := r.text(v, at, maxModelLen); ok {
			list = append(list, name)
			r.named = append(r.named, reference{v.Line, at, name, r.within})
		}
	}
	if len(list) == 0 {
		r.add(n.Line, "%s names no node: leave it out to mean all of them", where)
	}
	return list
}

// maxPeers bounds lists of other nodes.
const maxPeers = 10000

// resolve reports names of nodes that there are not, and nodes that name themselves: they would be ignored.
func (r *specReader) resolve(nodes map[string]nodeSpec) {
	for _, ref := range r.named {
		if ref.name == ref.node {
			r.add(ref.line, "%s: %s names itself, and a node is no peer of its own", ref.where, wording.Clip(ref.name))
		}
		if _, ok := nodes[ref.name]; !ok {
			r.add(ref.line, "%s: no node of nodes is called %s (one that has the defaults can be added as %s: {})",
				ref.where, quote(ref.name), wording.Clip(ref.name))
		}
	}
}

// concerns reports whether a fault is about another node.
func (f *fault) concerns(peer string) bool { return f.peers == nil || slices.Contains(f.peers, peer) }
