package checkpointd

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"muster/checkpointd/planner"
)

// word is what nodes tell each other on a round's board. Who has the job's token is believed, and may yet be wrong.
type word interface {
	// check returns an error for what no node of a job could say.
	check() error
}

const (
	headsMost = 1 << 12 // directories of checkpoints that a node knows something of
	roundLast = 1<<(64-roundShift) - 2
)

// readWord decodes a word, and makes sure that it can be one.
func readWord(text []byte, v word) error {
	if len(text) > peerLimit {
		return fmt.Errorf("a word of %d bytes exceeds the limit of %d", len(text), peerLimit)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return err
	}
	return v.check()
}

func (n *nodeState) check() error {
	switch {
	case n.Lineage < 0 || slices.ContainsFunc(n.Left, func(of int64) bool { return of < 0 }):
		return fmt.Errorf("no lineage is named by a time before 1970: %d, %d", n.Lineage, n.Left)
	case len(n.Left) > headsMost:
		return fmt.Errorf("it says that agents have left checkpoints of %d lineages, the limit is %d", len(n.Left), headsMost)
	case n.Round > roundLast:
		return fmt.Errorf("it says that round %d was, the limit is %d", n.Round, roundLast)
	case len(n.Node) > textMost || len(n.Dir) > textMost:
		return fmt.Errorf("its name and directory have %d and %d bytes, the limit is %d", len(n.Node), len(n.Dir), textMost)
	}
	return checkHeads(n.Heads)
}

// textMost bounds names, addresses and sentences, in bytes.
const textMost = 16 << 10

func (s *roundCall) check() error {
	switch {
	case s.Lineage < 1:
		return fmt.Errorf("lineage %d cannot be", s.Lineage)
	case len(s.Addr) > textMost || len(s.Apart) > textMost:
		return fmt.Errorf("its address and its sentence have %d and %d bytes, the limit is %d", len(s.Addr), len(s.Apart), textMost)
	}
	return checkHeads(s.Heads)
}

func checkHeads(heads map[string]moment) error {
	if len(heads) > headsMost {
		return fmt.Errorf("it says what is newest in %d directories, the limit is %d", len(heads), headsMost)
	}
	for head, at := range heads {
		step, foreign := strings.CutPrefix(head, "step ")
		numbered := foreign && step != "" && len(step) <= 19 && strings.Trim(step, "0123456789") == ""
		if !planner.IsAttempt(head) && !numbered {
			return fmt.Errorf("no tracker names %q", planner.Clean(head, 80))
		}
		if err := at.Check(); err != nil {
			return err
		}
	}
	return nil
}
