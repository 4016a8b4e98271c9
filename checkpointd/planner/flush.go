package planner

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// flush is a step on its way to disk.
type flush struct {
	at         Moment
	why        string
	attempt    string
	results    []json.RawMessage // by shard; nil where it is not written yet
	writers    []string          // by shard: the address of the node that writes it in this attempt, over all rounds
	committing bool
	lostCopy   bool // a writer is gone, or has lost its copy
	retries    int  // how often it was begun again in this round since another node had a whole copy
}

// collect takes what a node has written.
func (s *set) collect(sr *SetReport) {
	f := s.running
	if f == nil || f.committing || sr.Attempt != f.attempt {
		return
	}
	for _, w := range sr.Written {
		if w.Shard < 0 || w.Shard >= s.Shards {
			continue
		}
		if w.Err != "" {
			if s.failed == "" {
				s.failed = Clean(strings.ReplaceAll(w.Err, "\n", "; "), maxText)
			}
			f.lostCopy = f.lostCopy || !slices.ContainsFunc(sr.Copies, func(c Copy) bool { return c.Shard == w.Shard && c.At == f.at })
		}
		f.results[w.Shard] = w.Result
	}
}

// writing reports whether a step is on its way to a directory.
func (l *Leader) writing(dir string) bool {
	for _, s := range l.sets {
		if s.Dir == dir && (s.running != nil || s.pending != nil) {
			return true
		}
	}
	return false
}

// flush has steps written, one after the other. A step that waits is given up for a newer one.
func (l *Leader) flush(s *set) {
	if len(s.complete) > 0 && s.trigger != "" && (l.all() || l.ended) {
		m := s.complete[0]
		if here := l.restorable(s); here != Never && !l.ended {
			m = here // what workers go on from
		}
		if !l.same(s, m) {
			s.want(m, s.trigger)
		}
	}
	if l.all() || l.ended {
		s.trigger = ""
	}
	for _, m := range s.whole {
		if l.persists(s, m) {
			if m.Compare(s.tried) > 0 {
				s.want(m, "")
			}
			break
		}
	}
	if s.running == nil && s.pending != nil {
		s.running, s.pending = s.pending, nil
		f := s.running
		f.attempt, f.results, f.writers = l.NewAttempt(), make([]json.RawMessage, s.Shards), make([]string, s.Shards)
		s.next, s.nextAt = f.attempt, f.at
		s.failed = ""
		if f.at.Compare(s.tried) > 0 {
			s.tried = f.at
		}
	}
	f := s.running
	if f == nil || f.committing {
		return
	}
	missing := 0
	for shard, result := range f.results {
		if result != nil {
			continue
		}
		missing++
		if !l.all() && !l.ended {
			continue
		}
		holders, writer := l.holders(s, shard, f.at), f.writers[shard]
		switch {
		case slices.ContainsFunc(holders, func(n int) bool { return l.nodes[n].Addr == writer }):
		case !l.all() && l.More && (len(holders) == 0 || writer != ""): // a node that is away may bring it to the next round
		case s.failed != "":
		case len(holders) == 0:
			s.failed = fmt.Sprintf("shard %d of step %d is not in memory any more", shard, f.at.Step)
		case writer != "": // it may write on: another node must not write the same file
			s.failed = fmt.Sprintf("the node that was to write shard %d of step %d is gone, or has lost its copy", shard, f.at.Step)
			f.lostCopy = true
		default:
			f.writers[shard] = l.nodes[holders[0]].Addr
		}
	}
	switch {
	case s.failed != "" && (l.all() || l.ended): // before nobody knows what is complete
		s.failedAt, s.lost = f.at, !slices.Contains(s.whole, f.at)
		again := !s.lost && f.lostCopy && f.retries < l.size && s.pending == nil && f.at.Compare(s.committed) > 0 // others have it whole
		l.act(Abort, s, func(a *Action) { a.Attempt, a.At, a.Why, a.Again = f.attempt, f.at, s.failed, again })
		s.running = nil
		switch {
		case s.lost:
			s.trigger = f.why // an older one will do
		case again:
			s.pending = &flush{at: f.at, why: f.why, retries: f.retries + 1}
		}
		l.flush(s)
	case s.failed == "" && missing == 0:
		f.committing = true
		l.act(Commit, s, func(a *Action) { a.Attempt, a.At, a.Results, a.Why = f.attempt, f.at, f.results, f.why })
	}
}

// same reports whether a moment says what is on disk.
func (l *Leader) same(s *set, m Moment) bool {
	for n := range l.nodes {
		if sr := l.report(n, s.Key); sr != nil && slices.Contains(sr.Same, m) {
			return true
		}
	}
	return false
}

// want has a complete step written next.
func (s *set) want(m Moment, why string) {
	switch {
	case m.Compare(s.committed) <= 0, s.running != nil && s.running.at == m, s.pending != nil && s.pending.at.Compare(m) >= 0:
	default:
		s.pending = &flush{at: m, why: why}
	}
}

// persists reports whether a worker wants a moment on disk.
func (l *Leader) persists(s *set, m Moment) bool {
	for n := range l.nodes {
		if sr := l.report(n, s.Key); sr != nil && slices.ContainsFunc(sr.Copies, func(c Copy) bool { return c.At == m && c.Persist }) {
			return true
		}
	}
	return false
}
