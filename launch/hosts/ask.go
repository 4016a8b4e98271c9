package hosts

import (
	"context"
	"errors"
	"fmt"

	"muster/internal/errhint"
	"muster/internal/printable"
)

// ask asks the agent for something, and returns what it says.
func (s *session) ask(ctx context.Context, m Ask) (string, error) {
	var answered <-chan Answer
	m.ID, answered = s.asked.open()
	defer s.asked.close(m.ID)
	silent := errhint.Code(fmt.Errorf("node %s does not answer", s.name), errhint.TryAgain)
	if s.wire.sendJSON(kindAsk, m) != nil {
		return "", silent
	}
	select {
	case a := <-answered:
		if a.Error != "" {
			return "", errhint.Code(errhint.With(errors.New(printable.Output(a.Error)), printable.Output(a.Hint)), a.Status)
		}
		return printable.Output(a.Message), nil
	case <-s.ended:
	case <-ctx.Done():
	}
	return "", silent
}
