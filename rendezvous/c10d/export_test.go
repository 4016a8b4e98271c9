package c10d

import "muster/internal/pickle"

// AssignRanks and Unpickle are tested alone.
var (
	AssignRanks = assignRanks
	Unpickle    = func(p []byte) (any, error) { return pickle.Read(p, classes...) }
)

// Unknown returns the names of the attributes that are kept without being understood.
func (s *State) Unknown() []string {
	var names []string
	for _, a := range s.unknown {
		names = append(names, a.name)
	}
	return names
}

// MaxPickle is the limit of the size of a pickle, in bytes.
const MaxPickle = maxPickle
