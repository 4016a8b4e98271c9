package c10d

// AssignRanks and Unpickle are tested alone.
var (
	AssignRanks = assignRanks
	Unpickle    = unpickle
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
