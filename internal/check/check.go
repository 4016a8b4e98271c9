// Package check is what every check of a machine or a link says: a Result. A Policy judges results, and a Report holds
// them for one node, as a table for people and as JSON.
//
// What could not be looked at is Skip with a reason, never Pass: a value that a driver does not offer is no health.
package check

import "fmt"

// Status is how a check ended. A greater one is worse, but for Skip, which says nothing.
type Status int

// The statuses.
const (
	Skip Status = iota // it could not be judged: Result.Reason says why
	Pass
	Warn
	Fail
)

var statusNames = [...]string{Skip: "SKIP", Pass: "PASS", Warn: "WARN", Fail: "FAIL"}

func (s Status) String() string { return statusNames[s] }

// MarshalText implements encoding.TextMarshaler.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Status) UnmarshalText(text []byte) error {
	for i, name := range statusNames {
		if name == string(text) {
			*s = Status(i)
			return nil
		}
	}
	return fmt.Errorf("%q is no status: PASS, WARN, FAIL or SKIP", text)
}

// Subject is what was checked: a node, or a part of one.
type Subject struct {
	Node  string `json:"node,omitempty"`
	GPU   *int   `json:"gpu,omitempty"` // Device.Index
	UUID  string `json:"uuid,omitempty"`
	BusID string `json:"bdf,omitempty"`
	Pair  string `json:"pair,omitempty"` // of nodes, "a->b"
	Iface string `json:"iface,omitempty"`
}

// String names the subject within its node, "" for the node itself.
func (s Subject) String() string {
	switch {
	case s.GPU != nil && s.BusID != "":
		return fmt.Sprintf("gpu %d (%s)", *s.GPU, s.BusID)
	case s.GPU != nil:
		return fmt.Sprintf("gpu %d", *s.GPU)
	case s.Pair != "":
		return s.Pair
	case s.BusID == "":
		return s.Iface
	}
	return s.BusID
}

// Result is what one check says of one subject.
type Result struct {
	ID      string  `json:"id"`
	Subject Subject `json:"subject"`
	Status  Status  `json:"status"`
	// Reason is what was seen, or for Skip why nothing was; Try is what may help.
	Reason string `json:"reason,omitempty"`
	Try    string `json:"try,omitempty"`
	// Value was held against Limit; both are empty where there is nothing to measure.
	Value string `json:"value,omitempty"`
	Limit string `json:"limit,omitempty"`
	// Source is where it was seen: L0 (files), L1 (the driver's library, or a vendor's tool), L2 (the user's Python),
	// log or net.
	Source string `json:"source"`
	// Waived says that the policy has taken a Fail or Warn for a Pass.
	Waived bool `json:"waived,omitempty"`
}
