package hosts

import "errors"

// errNotThere is what comes of asking a machine that is not reached just now.
var errNotThere = errors.New("its agent is gone")

// StartProcess asks a machine's agent, which was ordered to run Processes, for a process. What becomes of it is told to
// Config.Process.
func (f *Fleet) StartProcess(machine int, p StartProcess) error {
	return f.tell(machine, kindStart, p)
}

// StopProcess asks for the end of one.
func (f *Fleet) StopProcess(machine int, p StopProcess) error {
	return f.tell(machine, kindStop, p)
}

// RankProcess says which rank one has from now on.
func (f *Fleet) RankProcess(machine int, p RankProcess) error {
	return f.tell(machine, kindRank, p)
}

func (f *Fleet) tell(machine int, k kind, v any) error {
	f.mu.Lock()
	s := f.nodes[machine].session
	f.mu.Unlock()
	if s == nil {
		return errNotThere
	}
	return s.wire.sendJSON(k, v)
}
