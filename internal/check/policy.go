package check

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"muster/internal/errhint"
)

// Policy says what results mean for a node. The zero value takes them as they are, and Skip for a Pass.
type Policy struct {
	// Strict makes every Warn a Fail.
	Strict bool
	// OnSkip is what a Skip weighs: Pass, Warn or Fail; Skip is Pass.
	OnSkip Status
	// Status replaces the status of results that did not pass, by check.
	Status map[string]Status
	// Waive takes results for passed.
	Waive []Waiver
	// Limits replaces the thresholds of checks, in the check's unit.
	Limits map[string]int64
	// XIDs is what errors of NVIDIA GPUs in the kernel log mean, by number, where it is not what health thinks.
	XIDs map[int]Status
	// RemapModels and ECCModels are parts of the names of products that replace rows of memory, and of those whose ECC
	// is to be on; nil for what health knows.
	RemapModels, ECCModels []string
}

// Limit returns the threshold of a check that has one.
func (p *Policy) Limit(id string) int64 {
	if v, set := p.Limits[id]; set {
		return v
	}
	def, err := Lookup(id)
	if err != nil || def.Unit == "" {
		panic("internal error: " + id + " has no limit")
	}
	return def.Limit
}

// ParseLimit reads "check=number" into p.
func (p *Policy) ParseLimit(text string) error {
	name, number, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("%q is not CHECK=NUMBER", text)
	}
	return p.setLimit(name, number)
}

// setLimit takes over a threshold.
func (p *Policy) setLimit(name, number string) error {
	id, err := Lookup(name)
	switch {
	case err != nil:
		return err
	case id.Unit == "":
		return fmt.Errorf("the check %q has no limit", name)
	}
	v, err := strconv.ParseInt(number, 10, 64)
	if err != nil || v < 0 {
		return fmt.Errorf("%s: %q is no whole number of %s", name, number, id.Unit)
	}
	if p.Limits == nil {
		p.Limits = map[string]int64{}
	}
	p.Limits[name] = v
	return nil
}

// Waiver takes the results of one check for passed: everywhere, on one node, or on one GPU of it.
type Waiver struct {
	ID   string
	Node string // "" for every node
	GPU  int    // -1 for every GPU and the node itself
}

// ParseWaiver reads "id", "id@node" or "id@node:gpu".
func ParseWaiver(text string) (Waiver, error) {
	id, place, placed := strings.Cut(text, "@")
	if _, err := Lookup(id); err != nil {
		return Waiver{}, fmt.Errorf("cannot waive %q: %w", text, err)
	}
	w := Waiver{ID: id, GPU: -1}
	if !placed {
		return w, nil
	}
	node, gpu, one := strings.Cut(place, ":")
	w.Node = node
	if one {
		n, err := strconv.Atoi(gpu)
		if err != nil || n < 0 {
			return Waiver{}, fmt.Errorf("cannot waive %q: %q is no index of a GPU", text, gpu)
		}
		w.GPU = n
	}
	if node == "" {
		return Waiver{}, fmt.Errorf("cannot waive %q: the name of the node is missing behind @", text)
	}
	return w, nil
}

func (w Waiver) covers(r *Result) bool {
	return w.ID == r.ID && (w.Node == "" || w.Node == r.Subject.Node) && (w.GPU < 0 || r.Subject.GPU != nil && *r.Subject.GPU == w.GPU)
}

// apply gives a result the status that it has under the policy.
func (p *Policy) apply(r *Result) {
	if r.Status <= Pass {
		return
	}
	if s, says := p.Status[r.ID]; says {
		r.Status = s
	}
	if p.Strict && r.Status == Warn {
		r.Status = Fail
	}
	for _, w := range p.Waive {
		if w.covers(r) {
			r.Status, r.Waived = Pass, true
		}
	}
}

// weight is what a result does to its node.
func (p *Policy) weight(r Result) Status {
	if r.Status != Skip {
		return r.Status
	}
	if p.Strict && p.OnSkip == Warn {
		return Fail
	}
	return max(p.OnSkip, Pass)
}

// maxPolicyBytes bounds a policy file.
const maxPolicyBytes = 1 << 20

// LoadPolicy reads a policy file: YAML or JSON with the keys of policyKeys.
func LoadPolicy(path string) (Policy, error) {
	fail := func(err error) (Policy, error) {
		return Policy{}, errhint.Code(fmt.Errorf("cannot use the check policy %s: %w", path, err), errhint.Usage)
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxPolicyBytes+1))
	if err != nil {
		return fail(err)
	}
	if len(text) > maxPolicyBytes {
		return fail(fmt.Errorf("it is longer than the limit of %d bytes", maxPolicyBytes))
	}
	p, err := readPolicy(text)
	if err != nil {
		return fail(err)
	}
	return p, nil
}

// ParseOnSkip reads what a check that could not be judged counts as.
func ParseOnSkip(word string) (Status, error) {
	switch word {
	case "ignore":
		return Skip, nil
	case "warn":
		return Warn, nil
	case "fail":
		return Fail, nil
	}
	return Skip, fmt.Errorf("%q is not ignore, warn or fail", word)
}
