package control

import (
	"context"
	"net/http"

	"muster/internal/errhint"
	"muster/launch/evidence"
)

// Looker is a Served that runs workers whose processes can be looked at.
type Looker interface {
	// Look says what they do at this moment.
	Look(ctx context.Context) (evidence.Node, error)
}

// evidence answers with what the workers here do.
func (s *Server) evidence(r *http.Request) (any, error) {
	l, is := s.cfg.Served.(Looker)
	if !is {
		return nil, errhint.With(errhint.Usagef("this muster runs no workers itself"), "ask those that it has started: muster ps --all")
	}
	return l.Look(r.Context())
}
