// Package hosts knows the machines of a job by what people write of them: lists on a command line, hostfiles of the
// launchers that muster replaces, and filters over both. Everything here is pure.
package hosts

// Host is a machine as it was named, with what was said of it.
type Host struct {
	// Name is its name or address as it was written, without user and port. ssh's configuration may know it by that.
	Name string
	// User and Port are how it is reached; empty and 0 leave that to ssh's configuration.
	User string
	Port int
	// Slots is how many processes it is to take; 0 where nothing says so.
	Slots int
	// Devices are the indices of the accelerators that its processes may use, ascending; nil: all of them.
	Devices []int
}
