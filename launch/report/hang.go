package report

import "time"

// Hang is that no worker has shown a sign of life for the time of --hang-timeout.
type Hang struct {
	Time          time.Time `json:"time"`
	SilentSeconds float64   `json:"silentSeconds"`
	// Kind is the cause in a word, Sentence the whole verdict. Culprits are the ranks that hold up others, Victims
	// those that wait for them.
	Kind     string `json:"kind"`
	Sentence string `json:"sentence"`
	Culprits []int  `json:"culprits,omitempty"`
	Victims  []int  `json:"victims,omitempty"`
	// Evidence is the path of the files with what was seen, without their ends .txt, .svg and .json; empty where they
	// could not be written.
	Evidence string `json:"evidence,omitempty"`
}
