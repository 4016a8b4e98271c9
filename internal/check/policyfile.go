package check

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// policyKeys are what a policy file may hold, in the order in which they are told.
const policyKeys = "strict, on-skip, status, waive, limits, xids, remap-models, ecc-models"

// policyReader collects everything that is wrong with a policy.
type policyReader struct {
	Policy
	errs []error
}

func (r *policyReader) wrong(line int, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("line %d: "+format, append([]any{line}, args...)...))
}

// readPolicy reports everything that is wrong with a policy at once.
func readPolicy(text []byte) (Policy, error) {
	r := &policyReader{Policy: Policy{Status: map[string]Status{}}}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return r.Policy, err
	}
	if len(doc.Content) == 0 {
		return r.Policy, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return r.Policy, fmt.Errorf("line %d: a policy is a mapping with the keys %s", top.Line, policyKeys)
	}
	given := map[string]int{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if line, twice := given[key.Value]; twice {
			r.wrong(key.Line, "the key %q is given twice (first on line %d)", key.Value, line)
			continue
		}
		given[key.Value] = key.Line
		r.read(key, value)
	}
	return r.Policy, errors.Join(r.errs...)
}

func (r *policyReader) read(key, value *yaml.Node) {
	switch key.Value {
	case "strict":
		if value.Decode(&r.Strict) != nil {
			r.wrong(value.Line, "strict: true or false")
		}
	case "on-skip":
		var err error
		if r.OnSkip, err = ParseOnSkip(value.Value); err != nil {
			r.wrong(value.Line, "on-skip: %w", err)
		}
	case "status":
		r.pairs(value, "status: a mapping of checks to PASS, WARN or FAIL", func(name, word *yaml.Node) {
			if _, err := Lookup(name.Value); err != nil {
				r.wrong(name.Line, "%w", err)
			}
			r.Status[name.Value] = r.status(name, word)
		})
	case "waive":
		for _, item := range r.list(value, "waive: a list of checks") {
			w, err := ParseWaiver(item.Value)
			if err != nil {
				r.wrong(item.Line, "%w", err)
			}
			r.Waive = append(r.Waive, w)
		}
	case "limits":
		r.pairs(value, "limits: a mapping of checks to numbers", func(name, number *yaml.Node) {
			if err := r.setLimit(name.Value, number.Value); err != nil {
				r.wrong(number.Line, "%w", err)
			}
		})
	case "xids":
		r.XIDs = map[int]Status{}
		r.pairs(value, "xids: a mapping of error numbers to PASS, WARN or FAIL", func(name, word *yaml.Node) {
			code, err := strconv.Atoi(name.Value)
			if err != nil || code < 0 {
				r.wrong(name.Line, "xids: %q is no error number", name.Value)
			}
			r.XIDs[code] = r.status(name, word)
		})
	case "remap-models":
		r.RemapModels = r.models(value, key.Value)
	case "ecc-models":
		r.ECCModels = r.models(value, key.Value)
	default:
		r.wrong(key.Line, "unknown key %q (known: %s)", key.Value, policyKeys)
	}
}

func (r *policyReader) pairs(n *yaml.Node, what string, each func(name, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.wrong(n.Line, "%s", what)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		each(n.Content[i], n.Content[i+1])
	}
}

func (r *policyReader) list(n *yaml.Node, what string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		r.wrong(n.Line, "%s", what)
		return nil
	}
	return n.Content
}

func (r *policyReader) models(n *yaml.Node, key string) []string {
	names := []string{} // an empty list means no product, and not those that are known
	for _, item := range r.list(n, key+": a list of parts of products' names") {
		if item.Kind != yaml.ScalarNode || item.Value == "" {
			r.wrong(item.Line, "%s: a part of a product's name", key)
			continue
		}
		names = append(names, item.Value)
	}
	return names
}

func (r *policyReader) status(name, word *yaml.Node) Status {
	var st Status
	if err := st.UnmarshalText([]byte(strings.ToUpper(word.Value))); err != nil || st == Skip {
		r.wrong(word.Line, "%s: %q is not PASS, WARN or FAIL", name.Value, word.Value)
	}
	return st
}
