package report

import (
	"slices"
	"time"

	"muster/launch/job"
)

// Accounting says what the time of a job went to, as one node has seen it.
type Accounting struct {
	// WallSeconds is how long the job has lasted, Seconds by what that time went to: together they are WallSeconds. The
	// causes are those of launch/accounting.
	WallSeconds float64            `json:"wallSeconds"`
	Seconds     map[string]float64 `json:"seconds"`
	// Goodput is the share of the seconds that are "good".
	Goodput float64 `json:"goodput"`
	// Restarts counts the restarts of the workers here by their reasons, requested ones, too.
	Restarts map[job.Reason]int `json:"restarts,omitempty"`
	// Checkpoints are the parts of checkpoints that this node has written to disk, nil for none.
	Checkpoints *WrittenParts `json:"checkpoints,omitempty"`
}

// WrittenParts are parts of checkpoints that were written.
type WrittenParts struct {
	Parts   int64   `json:"parts"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// Steady is a status without what changes all the time while the job stands as it stood.
func (d *Status) Steady() Status {
	s := *d
	s.Accounting = nil
	s.Ranks, s.Tasks = slices.Clone(d.Ranks), slices.Clone(d.Tasks)
	for i := range s.Tasks {
		s.Tasks[i].Traffic = nil
	}
	for i := range s.Ranks {
		r := &s.Ranks[i]
		r.Progress, r.CPUSeconds, r.ResidentBytes, r.UsageTime, r.LastOutput = nil, nil, nil, nil, nil
		r.Devices, r.DevicesTime = nil, nil
	}
	return s
}

// Measured are numbers that a node has gathered of its part of a job, beside its status.
type Measured struct {
	Ranks []MeasuredRank
	// Rendezvous are the meetings of nodes, Checks the examinations of them.
	Rendezvous, Checks Durations
	// Written are the parts of checkpoints that were brought to disk here, WrittenBytes their bytes.
	Written      Durations
	WrittenBytes int64
	// StoreOperations counts what the store that this node serves was asked for; nil: it serves none.
	StoreOperations *uint64
	// LogBytes counts what workers here have written, where it goes through muster or to its files.
	LogBytes *int64
	// LostNodes counts the nodes that this one, as coordinator, has taken for lost since their heartbeats stood still.
	LostNodes *int64
}

// Durations are how often something was done, and how long it took in all.
type Durations struct {
	Count   int64
	Seconds float64
}

// Add takes in that it was done once more.
func (d *Durations) Add(took time.Duration) {
	d.Count++
	d.Seconds += max(0, took.Seconds())
}

// MeasuredRank are numbers of one worker's program.
type MeasuredRank struct {
	Rank int
	// Buckets count the steps of its program by their seconds: one for each of StepBounds, and one for what takes
	// longer.
	Buckets     []uint64
	StepBounds  []float64
	StepSeconds float64
	// Stalls is how often checkpoints have kept it waiting, StallSeconds how long.
	Stalls       int64
	StallSeconds float64
}
