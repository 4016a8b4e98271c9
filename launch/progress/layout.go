package progress

import "time"

// The layout of the file, all numbers in the machine's byte order. muster.progress has the same.
const (
	size  = 4096
	magic = "mstrprg1"

	// Words of eight bytes, by their number.
	wordHighest       = 2  // written here: the greatest step that was done before the program began
	wordSequence      = 3  // odd while the program writes
	wordStep          = 4  // the last step that was finished
	wordTotal         = 5  // how many there will be, 0 where that is not known
	wordTold          = 6  // how many times are in the buckets
	wordTime          = 7  // of the last word; times are CLOCK_MONOTONIC in nanoseconds
	wordFirst         = 8  // of the first step; 0: there was none
	wordPassed        = 9  // of the first step that was not done before; 0: there was none
	wordMost          = 10 // the greatest step
	wordBack          = 11 // not 0: a step had a lower number than the one before
	wordStalls        = 12 // how often checkpoints have kept the program waiting
	wordStalled       = 13 // and how long in all, in nanoseconds
	wordStalledFirst  = 14 // of that until the first step
	wordStalledPassed = 15 // and until the first one that was not done before
	wordSection       = 16 // when the section began that the program is in; 0: it is in none
	wordTimeout       = 17 // how long it may take, in seconds, as a float; 0: any time
	wordSum           = 18 // seconds in the buckets, as a float
	wordValues        = 19 // how many values there are
	wordValue         = 20 // the first of the values, floats
	wordBucket        = 36 // the first of the buckets: how many steps took so long
	wordSeconds       = 60 // the first of the times of the last steps, in seconds, floats
	// How long the program has been in sections of these names, in nanoseconds.
	wordCollective = 124
	wordLoading    = 125
	wordEnds       = 126 // not 0: Python is about to exit

	mostValues  = 16
	mostSeconds = 64

	// Names lie behind the words; the last one is that of the section.
	namesAt  = 1024
	nameSize = 48
)

// noStep is wordHighest where no step was done before.
const noStep = -1 << 63

// bounds are the upper bounds of the buckets.
var bounds = [...]float64{
	0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500,
}

// Bounds are the upper bounds of the buckets of Reading.Buckets, in seconds; the last bucket has none.
func Bounds() []float64 { return bounds[:] }

// Reading is what a program has told.
type Reading struct {
	// Words is another number when something more was told.
	Words uint64
	// Steps says that there was a step: the next fields are about steps.
	Steps bool
	Step  int64
	Total int64 // 0: it is not known
	// Most is the greatest step. Back says that steps have not only gone up: what was done before cannot be told by
	// them.
	Most int64
	Back bool
	// Median is the median time of the last steps, Spread the median of how far their times are from it; 0 before there
	// are two of them.
	Median, Spread time.Duration
	// Buckets count the steps by their time, Sum is the time of all of them in seconds.
	Buckets [len(bounds) + 1]uint64
	Sum     float64
	// Collective and Loading are how long the program was in sections called "collective" and "data" until they ended
	// last. They are not in Sum.
	Collective, Loading time.Duration
	Values              []Value
	// Told is when the program has told something last; First and Passed when it had finished its first step, and the
	// first one that was not done before it began. They are zero where it has not.
	Told, First, Passed time.Time
	// Stalls is how often checkpoints have kept the program waiting, Stalled for how long, StalledFirst and
	// StalledPassed for how long until First and Passed.
	Stalls                               int64
	Stalled, StalledFirst, StalledPassed time.Duration
	// Section is what it does, other than steps; empty for steps. SectionBegan is when that began, SectionTimeout how
	// long it may take, 0 for any time.
	Section        string
	SectionBegan   time.Time
	SectionTimeout time.Duration
	// Ends says that the script has ended, and Python is about to exit: no step follows.
	Ends bool
}

// Value is a number that was told with the last step.
type Value struct {
	Name   string
	Number float64 // NaN for what was none
}
