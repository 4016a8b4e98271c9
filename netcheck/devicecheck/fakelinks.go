package devicecheck

// fakeLinksEnv is how the program is told of links that are not there.
const fakeLinksEnv = "MUSTER_FAKE_LINKS"

// FakeLinks describes devices that are not there and the links between them, as input of Switchbox: what is timed are
// copies in the host's memory that take as long as the description says. How they are timed, verified and judged is
// what is done with devices.
type FakeLinks struct {
	// Count is how many devices there are.
	Count int `json:"count"`
	// Links say what is so of copies between devices; where several speak of the same ones, the last that does counts.
	// Of what none speaks the defaults hold.
	Links []FakeLink `json:"links,omitempty"`
}

// FakeLink is what is so of copies between two devices. What is zero is not said.
type FakeLink struct {
	// Ends are the devices. Nil: all pairs.
	Ends *Pair `json:"ends,omitempty"`
	// OneWay says that copies in the other direction, from the second to the first, are not meant.
	OneWay bool `json:"one_way,omitempty"`
	// MBps is how fast copies are, in MB/s (50000); HostMBps, those between a device and the host (20000).
	MBps     float64 `json:"mbps,omitempty"`
	HostMBps float64 `json:"host_mbps,omitempty"`
	// Peer is whether a device can read the other's memory directly. Nil: not known.
	Peer *bool `json:"peer,omitempty"`
	// Error is the text of the exception that the first copy raises; Corrupt has it change a number, Hang last for
	// ever.
	Error   string `json:"error,omitempty"`
	Corrupt bool   `json:"corrupt,omitempty"`
	Hang    bool   `json:"hang,omitempty"`
}
