package control

import (
	"context"
	"net/http"

	"muster/internal/errhint"
	"muster/launch/evidence"
)

// Looker is a Served that runs workers whose processes can be looked at.
type Looker interface {
	// Look says what they do at this moment: those of the asked node, or of all nodes. It may take 4 seconds. An error
	// says why nothing at all could be looked at.
	Look(ctx context.Context, scope Scope) (Looked, error)
}

// Looked is what was seen at one moment.
type Looked struct {
	Nodes []evidence.Node `json:"nodes"`
	// Missing names the nodes that have not said what their workers do.
	Missing []string `json:"missing,omitempty"`
}

// evidence answers with what the workers do.
func (s *Server) evidence(r *http.Request) (any, error) {
	l, is := s.cfg.Served.(Looker)
	if !is {
		return nil, errhint.With(errhint.Usagef("this muster runs no workers itself"), "ask those that it has started: muster ps --all")
	}
	scope, err := scopeOf(r, Node)
	if err != nil {
		return nil, err
	}
	return l.Look(r.Context(), scope)
}
