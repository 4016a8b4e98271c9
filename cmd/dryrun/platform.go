package dryrun

import (
	"fmt"
	"strings"

	"muster/internal/platform"
)

// platformFacts is what --dry-run tells of the platform.
type platformFacts struct {
	Name    string   `json:"name"`
	FoundBy []string `json:"found_by"`
	Also    []string `json:"also_found,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

func newPlatform(f *platform.Facts) *platformFacts {
	if f == nil {
		return nil
	}
	return &platformFacts{f.Name, f.Why, f.Also, f.Remarks()}
}

// String is all of it in a line.
func (d *platformFacts) String() string {
	text := fmt.Sprintf("%s, found by %s", d.Name, strings.Join(d.FoundBy, ", "))
	if len(d.Also) > 0 {
		text += "; also found: " + strings.Join(d.Also, "; ")
	}
	if len(d.Notes) > 0 {
		text += "; " + strings.Join(d.Notes, "; ")
	}
	return text
}
