package rehearsal

import (
	"maps"
	"slices"
)

// ReadSpec is readSpec.
var ReadSpec = readSpec

// FaultKinds returns all kinds of faults.
func FaultKinds() []string { return slices.Sorted(maps.Keys(faultKinds())) }
