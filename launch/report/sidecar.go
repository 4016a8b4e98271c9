package report

import "time"

// Sidecar is a process that runs beside the workers, on the node with group rank 0.
type Sidecar struct {
	Node    string `json:"node"`
	Index   int    `json:"index"`
	Command string `json:"command"`
	// State is Creating, Running, Restarting while it waits for its next start, Terminating, or in the end Stopped.
	State Phase `json:"state"`
	// PID is that of the process that runs, 0 for none.
	PID int `json:"pid"`
	// Restarts is how often its node has started it again.
	Restarts  int        `json:"restarts"`
	StartTime *time.Time `json:"startTime,omitempty"`
	// Port is a TCP port at which it takes connections, 0 for none; Healthy says whether it takes them, and is nil
	// where it has no port.
	Port    int   `json:"port,omitempty"`
	Healthy *bool `json:"healthy,omitempty"`
	// LastExit is how its last process ended, nil where none has; Problem why it could not be started.
	LastExit *RankExit `json:"lastExit,omitempty"`
	Problem  string    `json:"problem,omitempty"`
}

// sidecars are those of the node that has had group rank 0 last: another one may not have said yet that it has lost it.
func (w *WorldStatus) sidecars() []Sidecar {
	var last *Status
	for i, doc := range w.docs {
		if doc == nil || doc.Nodes == 0 || doc.GroupRank != 0 || w.lost[i] {
			continue
		}
		if last == nil || doc.Generation > last.Generation {
			last = doc
		}
	}
	if last == nil {
		return nil
	}
	return last.Sidecars
}
