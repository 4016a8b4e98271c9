package launch

import (
	"context"
	"net"
	"os"
	"sync"

	"github.com/rs/zerolog"

	"muster/launch/control"
	"muster/launch/control/history"
	"muster/launch/control/web"
	"muster/launch/job"
	"muster/launch/report"
)

// View is where a job can be seen beside the socket of its run directory: its page, the file of its events, and what is
// kept beyond its end.
type View struct {
	rules    job.SeeRules
	token    []byte
	log      zerolog.Logger
	listener net.Listener
	file     *os.File
	page     *web.Server
	// pass takes the events for the file of whoever has started this muster; nil: nobody does.
	pass func(line []byte)

	mu     sync.Mutex // of keeper, which others than Show and Close read
	keeper *history.Keeper
}

// OpenView takes what the rules of a job name, before anything is started. token is the job's, nil where it has none
// that its user knows.
func OpenView(ctx context.Context, rules job.SeeRules, token []byte, log zerolog.Logger) (*View, error) {
	var err error
	v := &View{rules: rules, token: token, log: log}
	if rules.EventsFile != "" {
		if v.file, err = history.OpenFile(rules.EventsFile); err != nil {
			return nil, err
		}
	}
	if rules.HTTP != "" {
		if v.listener, err = web.Listen(ctx, rules.HTTP, len(token) > 0); err != nil {
			v.Close() //nolint:contextcheck // it bounds itself
			return nil, err
		}
	}
	return v, nil
}

// Show begins to show a job. status is how it stands, without what has to be looked up.
func (v *View) Show(served control.Served, muster control.Muster, status func() report.Status) {
	keeper := history.Open(history.Config{
		Muster: muster, Keep: v.rules.Keep, File: v.file, Pass: v.pass, Events: served.Events(), Status: status, Log: v.log,
	})
	v.file = nil
	v.mu.Lock()
	v.keeper = keeper
	v.mu.Unlock()
	if v.listener == nil {
		return
	}
	v.page = web.Serve(v.listener, web.Config{Served: served, Muster: muster, Token: v.token, Log: v.log})
	v.listener = nil
	v.log.Info().Str("url", v.page.URL()).Msg("the page of the job is served")
}

// Tell appends an event of a node to the file of the job's events. A nil View has none.
func (v *View) Tell(event control.Event) {
	if v == nil {
		return
	}
	v.mu.Lock()
	keeper := v.keeper
	v.mu.Unlock()
	keeper.Tell(event)
}

// Close ends it, and waits for nobody who looks. A nil View is none.
func (v *View) Close() {
	if v == nil {
		return
	}
	if v.listener != nil {
		_ = v.listener.Close()
	}
	if v.file != nil {
		_ = v.file.Close()
	}
	if err := v.page.Close(); err != nil {
		v.log.Debug().Err(err).Msg("the page of the job did not end well")
	}
	v.page = nil
	v.mu.Lock()
	keeper := v.keeper
	v.keeper = nil
	v.mu.Unlock()
	if err := keeper.Close(); err != nil {
		v.log.Warn().Err(err).Msg("what has happened to the job is not kept whole")
	}
}
