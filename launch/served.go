package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
	"muster/rendezvous"
)

// served answers for a node's part of a job.
type served struct{ s *Steering }

var _ control.Served = served{}

// worldTime bounds the waiting for what other nodes have said of themselves, tellTime that for their being told
// something.
const (
	worldTime = time.Second
	tellTime  = 500 * time.Millisecond
	atOnce    = 32 // nodes that are looked for
)

// Status implements control.Served.
func (v served) Status(ctx context.Context, scope control.Scope) (report.Status, error) {
	v.s.lookedAt(ctx, scope == control.World)
	own := v.s.lookedUp()
	if scope == control.Node || own.Nodes <= 1 {
		return own, nil
	}
	return v.s.world(ctx, own), nil
}

// world adds to what is known here what the other nodes have said of themselves.
func (s *Steering) world(ctx context.Context, own report.Status) report.Status {
	heard, asked := s.hearOthers(ctx, own)
	if note := "the other nodes cannot be asked now"; !asked && own.Message == "" {
		own.Message = note
	} else if !asked {
		own.Message += "; " + note
	}
	names := make([]string, own.Nodes)
	for i := range names {
		names[i] = "group rank " + strconv.Itoa(i)
	}
	w := report.NewWorldStatus(names)
	for i, h := range heard {
		if h != nil {
			w.TakeStatus(i, h.Status)
		}
	}
	w.TakeStatus(own.GroupRank, own)
	w.By(own.GroupRank)
	all, _ := w.Status()
	return all
}

// hearAll reads what the other nodes of a round have said of themselves.
func hearAll(ctx context.Context, b roundBoard) []*heardStatus {
	heard := make([]*heardStatus, b.nodes)
	ctx, cancel := context.WithTimeout(ctx, worldTime)
	defer cancel()
	forEach(b.nodes, func(i int) {
		if i != b.groupRank {
			heard[i] = hear(ctx, b.Board, i)
		}
	})
	return heard
}

// hearOthers is what the other nodes have said of themselves last, by group rank; nil: nothing. Of a node that does not
// say it now it is what the node has said before, and its tasks say when. asked is false where no node could be asked.
func (s *Steering) hearOthers(ctx context.Context, own report.Status) (heard []*heardStatus, asked bool) {
	s.mu.Lock()
	b, others := s.board, s.others
	s.mu.Unlock()
	heard = make([]*heardStatus, own.Nodes)
	if asked = b.Board != nil && b.nodes == own.Nodes; asked {
		heard = hearAll(ctx, b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range heard {
		if h != nil {
			others[i] = *h
		} else if last, known := others[i]; known && i != own.GroupRank {
			last.Status.Tasks = slices.Clone(last.Status.Tasks) // others may be reading those
			for t := range last.Status.Tasks {
				last.Status.Tasks[t].LastKnown = &last.At
			}
			heard[i] = &last
		}
	}
	return heard, asked
}

// mostRanks bounds what is believed of one node.
const mostRanks = 4096

// hear reads what a node has said of itself, nil where it has said nothing that can be used.
func hear(ctx context.Context, b rendezvous.Board, groupRank int) *heardStatus {
	text, err := b.Get(ctx, statusKey+strconv.Itoa(groupRank))
	var h heardStatus
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	d := &h.Status
	if err != nil || len(d.Tasks) == 0 {
		return nil
	}
	d.Tasks, d.Ranks = d.Tasks[:1], d.Ranks[:min(len(d.Ranks), mostRanks)]
	d.Tasks[0].Traffic = d.Tasks[0].Traffic[:min(len(d.Tasks[0].Traffic), mostInterfaces)]
	d.Sidecars = d.Sidecars[:min(len(d.Sidecars), job.MaxSidecars)]
	return &h
}

// Rank implements control.Served.
func (v served) Rank(_ context.Context, rank int) (control.Rank, error) {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	var here []string
	for i := range s.places {
		p := &s.places[i]
		if p.worker == nil {
			continue
		}
		if here = append(here, strconv.Itoa(p.worker.Rank)); p.worker.Rank != rank {
			continue
		}
		w := p.worker
		r := control.Rank{
			RunID: s.plan.RunID, Node: s.plan.Hostname, Rank: rank, LocalRank: w.LocalRank, PID: w.proc.PID(), Running: w.runs(),
			Dir: w.Dir, Env: w.Env.Strings(), Logs: slices.Clone(p.logs),
		}
		if last := p.last; !r.Running && last != nil {
			r.Dir, r.Env = "", nil
		}
		return r, nil
	}
	switch {
	case len(here) == 0:
		return control.Rank{}, errhint.Usagef("no worker has been started on node %s yet", s.plan.Hostname)
	case rank < s.status.WorldSize:
		return control.Rank{},
			errhint.With(errhint.Usagef("rank %d is on another node: %s has only %s", rank, s.plan.Hostname, listed(here)),
				"muster status shows on which node each rank is")
	}
	return control.Rank{}, errhint.Usagef("the job has no rank %d: its ranks are 0 to %d", rank, s.status.WorldSize-1)
}

// RecentLines is how many of the last lines of each stream are told.
const RecentLines = 200

// Recent implements control.Rememberer.
func (v served) Recent(rank int) (control.Recent, error) {
	s := v.s
	s.mu.Lock()
	i := slices.IndexFunc(s.places, func(p workerPlace) bool { return p.worker != nil && p.worker.Rank == rank })
	if i < 0 {
		s.mu.Unlock()
		return control.Recent{}, errhint.Usagef("rank %d does not run on node %s", rank, s.plan.Hostname)
	}
	w := s.places[i].worker
	s.mu.Unlock()
	r := control.Recent{PID: w.proc.PID(), Running: w.runs()}
	r.Stdout, r.Stderr = w.logs.Recent(RecentLines)
	return r, nil
}

// listed are ranks as they are told.
func listed(ranks []string) string {
	if len(ranks) > 1 {
		return "ranks " + ranks[0] + " to " + ranks[len(ranks)-1]
	}
	return "rank " + ranks[0]
}

// Asked implements control.Served.
func (v served) Asked(r control.Request) { v.s.asked(r) }

// Refused implements control.Served.
func (v served) Refused(r control.Request, err error) { v.s.refused(r, err) }

// Do implements control.Served.
func (v served) Do(ctx context.Context, r control.Request) (string, error) { return v.s.Do(ctx, r) }

// Do makes a change of the job that somebody wants, and says what follows.
func (s *Steering) Do(ctx context.Context, r control.Request) (string, error) {
	switch r.What { //nolint:exhaustive // all others are no request
	case control.StopRequested:
		return s.stopAll(ctx, r.By, r.Now)
	case control.RestartRequested:
		return s.restartAll(ctx)
	case control.PauseRequested:
		return s.pause(ctx, r.By)
	case control.ResumeRequested:
		return s.resume(ctx, r.By, r.Command)
	case control.ScaleRequested:
		if s.reached != nil {
			return s.reached.scale(r.Nodes)
		}
		return s.scale(ctx, r.By, r.Nodes, r.Starts)
	case control.KillRequested:
		if s.reached != nil {
			return s.reached.kill(ctx, r)
		}
		return s.killNode(ctx, r.By, r.Node)
	}
	return "", fmt.Errorf("internal error: nobody knows what %s means", r.What)
}

// stopAll has the whole job end, with now without grace.
func (s *Steering) stopAll(ctx context.Context, by control.Peer, now bool) (string, error) {
	text := fmt.Sprintf("%s has stopped the job on node %s", by, s.plan.Hostname)
	s.mu.Lock()
	b, nodes, started, phase := s.board, s.status.Nodes, len(s.places) > 0, s.status.Phase
	s.mu.Unlock()
	alone := ""
	if nodes > 1 || !s.plan.Job.Alone() { // before the first round nobody knows how many there are
		if err := s.tellOthers(ctx, b, text, now); err != nil {
			s.log.Debug().Err(err).Msg("the other nodes were not told on the board of the round that the job is stopped")
			if phase != report.PhaseRunning { // while workers run the others hear how the round ends
				alone = "; the other nodes could not be told: stop them, too"
			}
		}
	}
	if now {
		s.hurry() // first: what is said of the stop then says so
	}
	first := s.stop(text)
	if !now && first && !started {
		return "the job is being stopped: no worker was started here" + alone, nil
	}
	return control.Stopping(now, !first, s.plan.Job.Stop.Grace) + alone, nil
}

// tellOthers tells the other nodes of the round that the job is to end.
func (s *Steering) tellOthers(ctx context.Context, b roundBoard, text string, now bool) error {
	if b.Board == nil {
		return errors.New("there is no round in which they could be told")
	}
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	said, err := json.Marshal(stopNote{text})
	if err == nil {
		err = ask(ctx, b.Board, stopKey, said)
	}
	if err == nil && now {
		err = note(ctx, b.Board, nowKey, said)
	}
	return err
}

// restartTime is how long a request for a restart waits for the loop that watches the workers.
const restartTime = time.Second

// restartAll has all workers of the job start again, and says what follows.
func (s *Steering) restartAll(ctx context.Context) (string, error) {
	if err := s.restart(ctx); err != nil {
		return "", err
	}
	return "all workers are being stopped, and start again", nil
}

func (s *Steering) restart(ctx context.Context) error {
	asked := make(chan error, 1)
	err := hand(ctx, s, s.restarts, asked, "restart the workers", "they do not run", "muster status shows when they do")
	if err != nil {
		return err
	}
	return <-asked // the loop has taken it, and answers at once
}

// hand gives a request to the loop that waits in a round. Where no loop takes it within restartTime the error says that
// muster cannot do what is asked for now, and why, and lets who asks try again. While workers run the loop takes nothing
// where the nodes have yet to agree on how the round ends.
func hand[T any](ctx context.Context, s *Steering, to chan<- T, request T, what, why, hint string) error {
	timer := time.NewTimer(restartTime)
	defer timer.Stop()
	select {
	case to <- request:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		phase := s.Status().Phase
		if phase == report.PhaseRunning {
			why, hint = "the nodes have not agreed yet on how this round ends", "try again"
		}
		return errhint.Code(errhint.With(fmt.Errorf("cannot %s now: %s (%s)", what, why, phase), hint), errhint.TryAgain)
	}
}

// agreed waits for what the nodes answer to a request that was handed over; what names that in the error of one that
// they do not answer within resumeTime.
func agreed(ctx context.Context, answer <-chan error, what string) error {
	timer := time.NewTimer(resumeTime)
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return errhint.Code(errhint.With(errors.New("the other nodes do not say yet whether the job is "+what), "look at muster status"),
			errhint.TryAgain)
	}
}

// Events implements control.Served.
func (v served) Events() *control.Events { return &v.s.events }
