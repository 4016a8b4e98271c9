package manifest

import (
	"fmt"
	"strings"

	"al.essio.dev/pkg/shellescape"
)

// ToCommand is what a job file is converted to where the command lines of muster are wanted.
const ToCommand = "command"

// commandLines are the lines by which the job is started without a cluster.
func commandLines(s Spec) string {
	var b strings.Builder
	var words []string
	for _, f := range s.shared() {
		words = append(words, shellescape.Quote(f.text))
	}
	for _, f := range s.further() {
		words = append(words, shellescape.Quote(f.text))
	}
	for _, e := range s.Env {
		words = append(words, shellescape.Quote("--env="+e))
	}
	if s.Deadline > 0 {
		words = append(words, fmt.Sprintf("--active-deadline=%ds", seconds(s.Deadline)))
	}
	rest := strings.Join(words, " ") + " -- " + shellescape.QuoteCommand(s.Command)
	if s.Nodes == 1 {
		fmt.Fprintf(&b, "muster run %s\n", rest)
		return b.String()
	}
	var hosts []string
	for i := range s.Nodes {
		hosts = append(hosts, fmt.Sprintf("HOST%d", i))
	}
	fmt.Fprintf(&b, "# The whole job from one machine, by ssh; put the names of your %d machines in the place of HOST0 and so on.\n",
		s.Nodes)
	fmt.Fprintf(&b, "muster run --run-id=%s --hosts=%s %s\n", s.Name, strings.Join(hosts, ","), rest)
	fmt.Fprintf(&b, "# Or on each machine by itself, with RANK from 0 to %d.\n", s.Nodes-1)
	fmt.Fprintf(&b, "muster run --run-id=%s --nnodes=%d --node-rank=RANK --master-addr=HOST0 %s\n", s.Name, s.Nodes, rest)
	return b.String()
}
