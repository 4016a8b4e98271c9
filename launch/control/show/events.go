package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/control"
)

const (
	// oneMoment is how long after the first node others may tell a phase that is shown as one.
	oneMoment = 2 * time.Second
	// mostNamed is how many nodes a line names.
	mostNamed = 4
)

// Events are events in the order of their times as lines for people. Where there are several nodes, a phase that more of
// them tell within a moment is one line, at the time of the first, unless a node has told something else meanwhile.
func Events(found []control.Event, nodes bool) []string {
	type line struct {
		event *control.Event
		of    []string
	}
	var lines []line
	for i := range found {
		e, merged := &found[i], false
		for k := len(lines) - 1; nodes && e.Type == control.PhaseChanged && !merged && k >= 0; k-- {
			l := &lines[k]
			if e.Time.Sub(l.event.Time) >= oneMoment || slices.Contains(l.of, e.Node) { // what a node tells stays in its order
				break
			}
			if merged = samePhase(l.event, e); merged {
				l.of = append(l.of, e.Node)
			}
		}
		if !merged {
			lines = append(lines, line{e, []string{e.Node}})
		}
	}
	text := make([]string, len(lines))
	for i, l := range lines {
		e := *l.event
		if e.Node = strings.Join(slices.Sorted(slices.Values(l.of)), ", "); len(l.of) > mostNamed {
			e.Node = wording.Plural(len(l.of), "node")
		}
		text[i] = Event(&e, nodes)
	}
	return text
}

// samePhase reports whether two nodes tell the same phase of their job.
func samePhase(x, y *control.Event) bool {
	status := func(e *control.Event) int {
		if e.ExitCode == nil {
			return -1
		}
		return *e.ExitCode
	}
	return x.Type == control.PhaseChanged && y.Type == x.Type && x.Node != "" && y.Node != "" && x.Phase == y.Phase &&
		x.Generation == y.Generation && x.RestartCount == y.RestartCount && x.Reason == y.Reason && x.Message == y.Message &&
		status(x) == status(y)
}

// Event is an event as a line for people, with the name of its node in front where there are several.
func Event(e *control.Event, nodes bool) string {
	node := ""
	if nodes && e.Node != "" {
		node = e.Node + ": "
	}
	return e.Time.Local().Format(time.TimeOnly) + " " + printable.Output(node+eventSentence(e))
}

// eventSentence is an event in a sentence.
func eventSentence(e *control.Event) string {
	switch e.Type { //nolint:exhaustive // the others have the same form
	case control.PhaseChanged:
		text := fmt.Sprintf("%s, round %d", e.Phase, e.Generation)
		if e.RestartCount > 0 {
			text += ", " + wording.Plural(e.RestartCount, "restart")
		}
		if e.ExitCode != nil {
			text += fmt.Sprintf(", exit status %d", *e.ExitCode)
		}
		if why := strings.Join(slices.DeleteFunc([]string{string(e.Reason), e.Message}, func(s string) bool { return s == "" }),
			", "); why != "" {
			text += ": " + why
		}
		return text
	case control.WorkerStarted, control.WorkerExited:
		if e.Rank == nil || e.Type == control.WorkerExited && e.ExitCode == nil {
			break // of a file that somebody has changed
		}
		text := fmt.Sprintf("rank %d, process %d, ", *e.Rank, e.PID)
		switch {
		case e.Type == control.WorkerStarted:
			text += "started"
		case e.Signal != "":
			text += "was killed by " + e.Signal
		default:
			text += fmt.Sprintf("ended with status %d", *e.ExitCode)
		}
		if e.Stopped {
			text += ", while muster was stopping it"
		}
		return text
	case control.SidecarStarted, control.SidecarExited:
		text := "sidecar " + e.Message
		switch {
		case e.PID == 0: // it could not be started, and the message says why
		case e.Type == control.SidecarStarted:
			text += fmt.Sprintf(": process %d started", e.PID)
		case e.Signal != "":
			text += fmt.Sprintf(": process %d was killed by %s", e.PID, e.Signal)
		case e.ExitCode != nil:
			text += fmt.Sprintf(": process %d ended with status %d", e.PID, *e.ExitCode)
		}
		if e.Stopped {
			text += ", while muster was stopping it"
		}
		return text
	case control.ExecStarted, control.ExecEnded, control.LogsRead:
		return execText(e)
	case control.WorkersHang:
		return "the workers hang: " + e.Message
	case control.RankSlow:
		return e.Message
	case control.StopRequested, control.RestartRequested, control.PauseRequested, control.ResumeRequested, control.ScaleRequested,
		control.KillRequested:
		what := strings.ToLower(strings.TrimSuffix(string(e.Type), "Requested"))
		switch {
		case e.Type == control.KillRequested && e.Subject != "":
			what = "the loss of " + wording.Node(e.Subject)
		case e.Type == control.KillRequested:
			what = "the loss of a node"
		case e.Type == control.ScaleRequested && e.Message != "":
			what += " to " + e.Message
		}
		return what + " was asked for" + by(e)
	case control.RequestRefused:
		return "what was asked for" + by(e) + " is refused: " + e.Message
	}
	return otherText(e)
}

// by says who has asked for something.
func by(e *control.Event) string {
	switch {
	case e.By == nil:
		return ""
	case e.By.Address != "":
		return " by " + e.By.String()
	}
	return fmt.Sprintf(" by user %d, process %d", e.By.UID, e.By.PID)
}

// execText is what somebody does in the place of a rank, or reads of it.
func execText(e *control.Event) string {
	if e.Rank == nil || e.By == nil {
		return otherText(e) // of a file that somebody has changed
	}
	text := fmt.Sprintf("in the place of rank %d process %d", *e.Rank, e.PID)
	switch e.Type { //nolint:exhaustive // the others are no matter of this
	case control.LogsRead:
		text = fmt.Sprintf("the log of rank %d is read by %s", *e.Rank, e.By)
		if e.Message != "" {
			text = fmt.Sprintf("logs %s from rank %d on are read by %s", e.Message, *e.Rank, e.By)
		}
		return text
	case control.ExecStarted:
		text += fmt.Sprintf(", started by %s", e.By)
	case control.ExecEnded:
		switch {
		case e.Signal != "":
			text += " was killed by " + e.Signal
		case e.ExitCode != nil:
			text += fmt.Sprintf(" ended with status %d", *e.ExitCode)
		default:
			text += " ended, its status is not known,"
		}
		text += " after " + secondsText(e.Seconds)
	}
	return text + ": " + e.Message
}

// otherText is an event in the words of its type and fields, also of a type that only a newer version knows.
func otherText(e *control.Event) string {
	var words []byte
	for i, c := range []byte(e.Type) {
		if c >= 'A' && c <= 'Z' {
			if c += 'a' - 'A'; i > 0 {
				words = append(words, ' ')
			}
		}
		words = append(words, c)
	}
	text := string(words)
	if e.Subject != "" {
		text += " " + e.Subject
	}
	if e.Step != nil {
		text += fmt.Sprintf(", step %d", *e.Step)
	}
	if e.Seconds > 0 {
		text += ", after " + secondsText(e.Seconds)
	}
	if why := cmp.Or(e.Message, string(e.Reason)); why != "" {
		text += ": " + why
	}
	return text
}
