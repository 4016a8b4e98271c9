package check

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

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

// LoadPolicy reads a policy file: YAML or JSON with the keys strict, on-skip, status (check: status) and waive (a list).
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

// readPolicy reports everything that is wrong with a policy at once.
func readPolicy(text []byte) (Policy, error) {
	p := Policy{Status: map[string]Status{}}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return p, err
	}
	if len(doc.Content) == 0 {
		return p, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return p, fmt.Errorf("line %d: a policy is a mapping with the keys strict, on-skip, status and waive", top.Line)
	}
	var errs []error
	wrong := func(line int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("line %d: "+format, append([]any{line}, args...)...))
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		switch key.Value {
		case "strict":
			if value.Decode(&p.Strict) != nil {
				wrong(value.Line, "strict: true or false")
			}
		case "on-skip":
			var err error
			if p.OnSkip, err = ParseOnSkip(value.Value); err != nil {
				wrong(value.Line, "on-skip: %w", err)
			}
		case "status":
			if value.Kind != yaml.MappingNode {
				wrong(value.Line, "status: a mapping of checks to PASS, WARN or FAIL")
				continue
			}
			for j := 0; j+1 < len(value.Content); j += 2 {
				name, word := value.Content[j], value.Content[j+1]
				var st Status
				if err := st.UnmarshalText([]byte(strings.ToUpper(word.Value))); err != nil || st == Skip {
					wrong(word.Line, "%s: %q is not PASS, WARN or FAIL", name.Value, word.Value)
				}
				if _, err := Lookup(name.Value); err != nil {
					wrong(name.Line, "%w", err)
				}
				p.Status[name.Value] = st
			}
		case "waive":
			if value.Kind != yaml.SequenceNode {
				wrong(value.Line, "waive: a list of checks")
				continue
			}
			for _, item := range value.Content {
				w, err := ParseWaiver(item.Value)
				if err != nil {
					wrong(item.Line, "%w", err)
				}
				p.Waive = append(p.Waive, w)
			}
		default:
			wrong(key.Line, "unknown key %q (known: strict, on-skip, status, waive)", key.Value)
		}
	}
	return p, errors.Join(errs...)
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
