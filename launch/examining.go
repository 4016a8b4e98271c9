package launch

import (
	"time"

	"muster/internal/printable"
)

// After a hang for which no cause was found the nodes are examined in the next round, once, also those of a job that
// does not check them otherwise. It did not ask for that: where the others cannot do without a node that is found unfit,
// or nothing can be said, the workers start all the same.

// afterHang reports whether the round before has ended by such a hang. What an earlier check found good is examined again
// then, too.
func (a *Agent) afterHang() bool {
	m := a.meeting
	return m.Orders.CheckAt != 0 && m.Number == m.Orders.CheckAt
}

// examines reports whether the nodes of this round are examined for that reason alone.
func (a *Agent) examines() bool {
	if !a.afterHang() || a.Examiner == nil {
		return false
	}
	if a.meeting.GroupRank == 0 {
		a.Log.Warn().Msg("the workers hung, and no cause was found: the nodes are checked before they start again")
	}
	return true
}

// examined is what such an examination means for this node, and tells of it where that is not told as of any check.
func (a *Agent) examined(out CheckOutcome, took time.Duration) CheckOutcome {
	m := a.meeting
	leads := m.GroupRank == 0
	log := a.Log.With().Dur("dur_ms", took.Round(time.Millisecond)).Logger()
	switch n := len(out.Excluded); {
	case out.Everybody:
		if leads {
			log.Warn().Str("reason", printable.Output(out.Message)).
				Msg("the check after the hang could not be done; the workers start all the same")
		}
	case afterCheck(out) == nil:
		switch {
		case !leads:
		case out.Skipped != "":
			log.Warn().Str("reason", printable.Output(out.Skipped)).Msg("the check after the hang was skipped")
		default:
			log.Info().Msg("the check after the hang has found nothing")
		}
		a.Steering.checked(CheckOutcome{Message: "after a hang for which no cause was found"}, nil, nil, took)
		return CheckOutcome{}
	case a.canSpareSome(&m.Round, n):
		return out
	default:
		for _, gone := range out.Excluded {
			if leads {
				log.Warn().Str("node", printable.Output(gone.Node)).Str("reason", printable.Output(gone.Reason)).
					Msg("the check after the hang finds the node unfit, which is not excluded: too few nodes would be left")
			}
		}
	}
	a.Steering.checked(CheckOutcome{}, afterCheck(out), nil, took)
	return CheckOutcome{}
}
