package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"muster/internal/errhint"
	"muster/launch/evidence"
)

// Looker is a Served that runs workers whose processes can be looked at.
type Looker interface {
	// Look says what they do at this moment: those of the asked node, or of all nodes, with native by py-spy, too. It may
	// take 4 seconds. An error says why nothing at all could be looked at.
	Look(ctx context.Context, scope Scope, native bool) (Looked, error)
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
	return l.Look(r.Context(), scope, r.URL.Query().Get("native") != "")
}

func evidencePath(scope Scope, native bool) string {
	path := pathEvidence + "?scope=" + string(scope)
	if native {
		path += "&native=1"
	}
	return path
}

// Evidence asks another muster what its workers do.
func (f *Far) Evidence(ctx context.Context, native bool, by Peer) (l Looked, err error) {
	ctx, cancel := context.WithTimeout(ctx, farDial)
	defer cancel()
	by.Node = f.From
	said, err := json.Marshal(by)
	if err != nil {
		return l, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://muster"+evidencePath(Node, native), nil)
	if err != nil {
		return l, err
	}
	req.Header.Set(byHeader, string(said))
	t := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: mostHeader,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return f.Dial(ctx) },
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return l, errhint.Code(fmt.Errorf("cannot ask node %s what its ranks do: %w", f.Node, err), errhint.TryAgain)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	switch {
	case err != nil:
	case resp.StatusCode != http.StatusOK:
		err = told(text, resp.Status)
	default:
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return l, fmt.Errorf("cannot ask node %s what its ranks do: %w", f.Node, err)
	}
	return l, nil
}
