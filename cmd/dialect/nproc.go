package dialect

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"muster/internal/accel"
	"muster/launch/job"
)

// maxProcs bounds the workers on a node: more is a typing error, and would hurt the machine before it failed.
const maxProcs = 4096

// maxNodes bounds the nodes of a job, for the same reason.
const maxNodes = 1 << 20

// parseNodes reads N or MIN:MAX.
func parseNodes(text string) (job.Range, error) {
	low, high, isRange := strings.Cut(text, ":")
	if !isRange {
		high = low
	}
	var r job.Range
	var err error
	if r.Min, err = pyInt(low); err != nil {
		return r, fmt.Errorf("%w: give a number of nodes, or MIN:MAX", err)
	}
	if r.Max, err = pyInt(high); err != nil {
		return r, fmt.Errorf("%w: give a number of nodes, or MIN:MAX", err)
	}
	if r.Min < 1 || r.Min > r.Max {
		r.Min = max(r.Min, 1)
		r.Max = max(r.Min, r.Max) // nothing else is wrong because of this
		return r, errors.New("give at least 1 node, and MIN:MAX with MIN not above MAX")
	}
	if r.Max > maxNodes {
		return r, fmt.Errorf("more than %d nodes", maxNodes)
	}
	return r, nil
}

// CheckProcs is an error where a text is no number of workers on a node, and no word for it.
func CheckProcs(text string) error {
	_, err := parseProcs(text)
	return err
}

// parseProcs reads the number of workers on a node: a number, or what to count (torchrun's words and vendors of
// accelerators).
func parseProcs(text string) (string, error) {
	if accel.IsWord(text) && text != "cuda" { // PyTorch's own word is gpu
		return text, nil
	}
	n, err := pyInt(text)
	switch {
	case errors.Is(err, errRange):
	case err != nil:
		return "", errors.New("give a number, auto, cpu or gpu")
	case n < 1:
		return "", errors.New("a node needs at least 1 worker")
	case n <= maxProcs:
		return strconv.Itoa(n), nil
	}
	return "", fmt.Errorf("more than %d workers on a node", maxProcs)
}
