package job

import (
	"syscall"
	"time"
)

// RankMonitor says how long workers may take that tell of themselves as the RankMonitorClient of NVIDIA's resiliency
// extension (NVRx) does, and what that client is told of it. A time of 0 is no limit.
type RankMonitor struct {
	// First is the time from a client's first word to its first heartbeat, Heartbeat that between two of them.
	First, Heartbeat time.Duration
	// Sections are those that clients tell of, Outside is how long a worker may be in none of them.
	Sections []SectionLimit
	Outside  time.Duration
	// Warmup is for how many steps the section "warmup" says how long the section "step" may take.
	Warmup int
	// Factor is by how much a client multiplies the longest time that it has seen, when it calculates limits.
	Factor float64
	// Signal is what a worker gets that takes longer, and gets again after Every while it lives.
	Signal syscall.Signal
	Every  time.Duration
	// Answers has each word of a client answered, ExceptionHook has clients end their process at an exception.
	Answers, ExceptionHook bool
}

// SectionLimit is how long a section may last.
type SectionLimit struct {
	Name  string
	Limit time.Duration
}
