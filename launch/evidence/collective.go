package evidence

import (
	"fmt"
	"strings"
)

// Collective is a call of PyTorch's collectives, as its Flight Recorder has it.
type Collective struct {
	// Group is the name of the process group, GroupIs what it is for. Ranks are its members where that is known.
	Group   string `json:"group"`
	GroupIs string `json:"groupIs,omitempty"`
	// Number counts the calls of the group, from 1.
	Number int64 `json:"number"`
	// Op is the call, such as all_reduce; P2P says that it is between two ranks.
	Op  string `json:"op"`
	P2P bool   `json:"p2p,omitempty"`
	// Inputs and Outputs are the shapes of its tensors, Type the type of the first one's elements.
	Inputs  [][]int64 `json:"inputs,omitempty"`
	Outputs [][]int64 `json:"outputs,omitempty"`
	Type    string    `json:"type,omitempty"`
	// Pending says that it has not come to its end.
	Pending bool `json:"pending,omitempty"`
}

// Sizes is how many elements go in, such as "4 floats"; empty where the call has no tensors.
func (c *Collective) Sizes() string {
	if len(c.Inputs) == 0 {
		return ""
	}
	var n int64
	for _, shape := range c.Inputs {
		of := int64(1)
		for _, d := range shape {
			of *= d
		}
		n += of
	}
	word := strings.ToLower(c.Type)
	switch {
	case word == "":
		word = "elements"
	case n != 1:
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}

// Same reports whether two ranks that make these calls as the same call of a group can come to its end.
func (c *Collective) Same(as *Collective) bool {
	if c.Op != as.Op {
		return false
	}
	switch c.Op { // of the others ranks may give sizes that differ
	case "all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "all_gather_into_tensor", "_reduce_scatter_base":
		return c.Sizes() == as.Sizes()
	}
	return true
}

func (c *Collective) String() string {
	text := c.Op
	if sizes := c.Sizes(); sizes != "" {
		text += " of " + sizes
	}
	group := "group " + c.Group
	switch {
	case c.GroupIs == "default_pg":
		group = "the default group"
	case c.GroupIs != "" && c.GroupIs != "undefined":
		group += " (" + c.GroupIs + ")"
	}
	return fmt.Sprintf("%s (call %d of %s)", text, c.Number, group)
}
