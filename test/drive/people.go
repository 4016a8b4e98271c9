package drive

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"muster/launch/report"
)

// ForPeople writes the errors and reports among muster's lines of JSON as text, which is what most tests look for.
// Lines of the log stay as they are.
func ForPeople(stderr string) string {
	var b strings.Builder
	for line := range strings.Lines(stderr) {
		var said struct {
			Level, Message, Hint, Command, Restarts, Logs string
			Status                                        *int
			RootCause                                     *report.Cause
			Failures                                      []report.Cause
		}
		if json.Unmarshal([]byte(line), &said) != nil || said.Level != "error" || said.Status == nil {
			b.WriteString(line)
			continue
		}
		fmt.Fprintf(&b, "muster: error: %s\n", said.Message)
		if said.Hint != "" {
			fmt.Fprintf(&b, "muster: hint: %s\n", said.Hint)
		}
		if said.RootCause == nil {
			continue
		}
		fmt.Fprintf(&b, "%s FAILED\nRoot Cause\nrestarts  : %s\nlogs      : %s\n", said.Command, said.Restarts, said.Logs)
		for _, c := range append([]report.Cause{*said.RootCause}, said.Failures...) {
			fmt.Fprintf(&b, "  host      : %s\n  rank      : %d (local_rank: %d)\n  exitcode  : %d (pid: %d) %s\n", c.Host, c.Rank,
				c.LocalRank,
				c.ExitCode, c.PID, c.Signal)
			fmt.Fprintf(&b, "  error_file: %s\n%s\n%s\n", c.ErrorFile, c.Traceback, c.Error)
			for _, text := range slices.Concat(c.Evidence, c.LastLines) {
				fmt.Fprintf(&b, "    %s\n", text)
			}
		}
	}
	return b.String()
}

// WorkersSaid are the lines of workers, without what stands in front, sorted.
func WorkersSaid(out string) []string {
	var list []string
	for line := range strings.Lines(out) {
		if _, said, ok := strings.Cut(line, "worker "); ok {
			list = append(list, strings.TrimSpace(said))
		}
	}
	slices.Sort(list)
	return list
}
