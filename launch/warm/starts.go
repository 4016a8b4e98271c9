package warm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"muster/internal/proc"
	"muster/launch/plan"
)

// Starts forks the processes that a driver starts one by one from a template, by the same rules as the workers of every
// other job. Nil starts each by itself. It is safe for concurrent use.
type Starts struct {
	warm  *Warmer
	stdin *os.File
	begin sync.Once
}

// Open returns the warm starts of a plan that has a Room; nil where its processes start by themselves. The template is
// made when the first of them is to start. The caller closes it when they have ended.
func Open(p *plan.Plan, tree *proc.Tree, log zerolog.Logger) (*Starts, error) {
	if !p.Job.Warm.Wanted() {
		return nil, nil
	}
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("cannot give the workers an empty standard input: %w", err)
	}
	w, err := New(p, tree, stdin, log)
	if w == nil || err != nil {
		return nil, errors.Join(err, stdin.Close())
	}
	return &Starts{warm: w, stdin: stdin}, nil
}

// Start starts a process. ctx ends the waiting for the template, and nothing is started then.
func (s *Starts) Start(ctx context.Context, tree *proc.Tree, w plan.Worker, spec proc.Spec) (*proc.Process, error) {
	if s == nil {
		return tree.Start(spec)
	}
	s.begin.Do(func() {
		w.Env = slices.Clone(w.Env)
		for i := range w.Env { // what Python reads when it starts is the template's, and so everybody's
			w.Env[i].Own = w.Env[i].Own && !strings.HasPrefix(w.Env[i].Name, "PYTHON")
		}
		s.warm.Worker = w
		s.warm.Begin(ctx)
	})
	t := s.warm.Take(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	spec.Files = append([]*os.File{s.stdin}, spec.Files[1:]...)
	if s.warm.Rules.Restarts {
		defer s.warm.Prepare(1, true, nil) //nolint:contextcheck // what it starts outlives this start: it ends with the job
	}
	if t != nil {
		procs, err := t.Start([]proc.Spec{spec})
		if err != nil {
			s.warm.FailedFork(t, err)
		}
		if procs[0] != nil {
			s.warm.Log.Debug().Int("rank", w.Rank).Int("pid", procs[0].PID()).Msg("worker forked from the template")
			return procs[0], nil
		}
	}
	return tree.Start(spec)
}

// Close ends the template.
func (s *Starts) Close() error {
	if s == nil {
		return nil
	}
	return errors.Join(s.warm.Close(), s.stdin.Close())
}
