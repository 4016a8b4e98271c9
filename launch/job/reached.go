package job

import (
	"fmt"
	"strings"
)

// ReachedHosts are the hosts that a launcher in the job's command reaches, and that come and go while it runs. The
// launcher finds them in a hostfile.
type ReachedHosts struct {
	// Hosts are those that there are at first; Spare are machines that can take their places, in their order.
	Hosts []ReachedHost
	Spare []string
	// Rehearsed says that addresses of this machine's loopback network stand for as many machines as are wanted.
	Rehearsed bool
	// Min and Max bound their number.
	Min, Max int
	// Prefix begins the names of hosts that come later: a number follows. Slots is how many workers each has.
	Prefix string
	Slots  int
	// Replace says that another host takes a lost one's place, Limit how often at most; negative: any number.
	Replace bool
	Limit   int
}

// ReachedHost is one of them: Host is its address, Name that of the replica for which it stands.
type ReachedHost struct {
	Host, Name string
	Slots      int
}

// ReachedFile is the name of the hostfile in PodDir.
const ReachedFile = "hostfile"

// LostFile is the name of the file in PodDir to which the launcher adds a line for each host that it has lost.
const LostFile = "lost-hosts"

// ReachedVariable tells the launcher's own muster which name it has towards other commands.
const ReachedVariable = "MUSTER_REACHED_ID"

// ReachedID is that name for a job with that run id.
func ReachedID(runID string) string { return runID + "-hosts" }

// ReachedText is the content of a hostfile.
func ReachedText(hosts []ReachedHost) string {
	var b strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s slots=%d\n", h.Host, h.Slots)
	}
	return b.String()
}
