package netprobe

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Facts are what probing one pair of nodes has shown. They travel as JSON; Judge takes those of all pairs.
type Facts struct {
	// From has asked, To has answered. What could not be asked is empty, To.Name then the address.
	From, To Node
	// Path is the network between the two, as each of them sees its end.
	Local, Remote End
	Reach         Reach
	RTT           RTT
	Clock         Clock
	MTU           PathMTU
	// Bulk are the runs of streams, in the order in which they were done.
	Bulk []Bulk
	// NoBulk says why runs are missing, "" where none is.
	NoBulk string `json:",omitempty"`
	// Error is why the pair could not be probed any further, "" for nothing. Hint is what to try then.
	Error string        `json:",omitempty"`
	Hint  string        `json:",omitempty"`
	Took  time.Duration // the whole probe
}

// Name names the pair.
func (f *Facts) Name() string { return f.From.Name + "->" + f.To.Name }

// End is the end of a path.
type End struct {
	Addr  netip.Addr
	Iface string // that has the address, "" where none has (behind a translation of addresses)
	MTU   int    // of the interface, in bytes; 0 for unknown
	Speed int    // of the interface, in Mb/s; 0 for unknown
}

// Reach says how often one node could connect to the other and prove that both have the job's token.
type Reach struct {
	Out, Back Tries
}

// Tries are attempts to connect.
type Tries struct {
	Done, Failed int
	// Last is what the last failed one ended with.
	Last string `json:",omitempty"`
	// Skip says why there were none.
	Skip string `json:",omitempty"`
}

// RTT are round trips of 64 bytes on one connection, after the first tenth of them, at least one, that does not count.
type RTT struct {
	Count              int
	Min, P50, P99, Max time.Duration
	Skip               string `json:",omitempty"`
}

// Clock is how far the other node's clock is ahead, and by how much that may be wrong: half of the fastest round trip.
type Clock struct {
	Offset, Error time.Duration
	Skip          string `json:",omitempty"`
}

// Passage is what became of datagrams of one size in one direction.
type Passage string

// The passages.
const (
	Passed  Passage = "passed"
	TooBig  Passage = "too big" // the sender was told (EMSGSIZE): messages about it work
	Lost    Passage = "lost"    // and nobody said why
	Untried Passage = "untried" // its datagram did not get as far
)

// Size is what became of datagrams of one size, headers of IP and UDP included, in bytes.
type Size struct {
	Bytes     int
	Out, Back Passage
}

// PathMTU are the sizes tried, ascending up to the first one that did not pass, with the bit set that forbids to
// fragment.
type PathMTU struct {
	Sizes []Size
	Skip  string `json:",omitempty"`
}

// Passes returns the largest size that passed in both directions, 0 for none.
func (m *PathMTU) Passes() int {
	largest := 0
	for _, s := range m.Sizes {
		if s.Out == Passed && s.Back == Passed {
			largest = max(largest, s.Bytes)
		}
	}
	return largest
}

// Direction is which way the bytes of a run went.
type Direction string

// The directions.
const (
	Out  Direction = "out"  // from Facts.From to Facts.To
	Back Direction = "back" // the other way
)

// Bulk is one run of streams in one direction.
type Bulk struct {
	Direction Direction
	Streams   int
	// Bytes arrived within Window, which began when the warm-up had ended.
	Bytes  int64
	Window time.Duration
	// Sent is what the sender's kernel said of all streams at the end; nil where it does not say.
	Sent *Sent `json:",omitempty"`
}

// Rate is in bytes a second.
func (b *Bulk) Rate() float64 {
	if b.Window <= 0 {
		return 0
	}
	return float64(b.Bytes) / b.Window.Seconds()
}

// Sent is TCP_INFO of the sender, over the streams of a run.
type Sent struct {
	Segments, Retransmitted uint64
	// MSS is the smallest of the streams' segment sizes, without headers and options, in bytes.
	MSS int
	// RTT is the largest smoothed round trip of a stream, under load.
	RTT time.Duration
}

// sane reports whether a kernel could say so.
func (s *Sent) sane() bool {
	return s.Retransmitted <= s.Segments && s.MSS >= 0 && s.MSS <= 1<<16 && s.RTT >= 0 && s.RTT <= time.Hour
}

// add takes in the sums of another stream.
func (s *Sent) add(o Sent) {
	s.Segments += o.Segments
	s.Retransmitted += o.Retransmitted
	s.RTT = max(s.RTT, o.RTT)
	if s.MSS == 0 || o.MSS > 0 && o.MSS < s.MSS {
		s.MSS = o.MSS
	}
}

// Rated writes bytes a second for people.
func rated(perSecond float64) string {
	switch {
	case perSecond >= 1e9:
		return fmt.Sprintf("%.2f GB/s", perSecond/1e9)
	case perSecond >= 1e6:
		return fmt.Sprintf("%.1f MB/s", perSecond/1e6)
	}
	return fmt.Sprintf("%.0f kB/s", perSecond/1e3)
}

// clean makes text of another node fit for a line of ours.
func clean(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\ufffd' {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
