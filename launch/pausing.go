package launch

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/rendezvous"
)

// A pause is a round without workers: the nodes meet in it as they do for any other, keep together by its board and
// their heartbeats, and wait. rendezvous.Orders says of each round whether it is one, so that a node which comes later,
// or follows a coordinator that died, knows it, too.

// pauseWish is a pause that somebody has asked for and that has not begun.
type pauseWish struct {
	// version is the rendezvous.Orders.Version that it leads to, 0 where no round has been met yet: then the next one
	// pauses.
	version int
	text    string
}

// pauseKey is where a node says on the board of a round that the job is to pause: not in all its phases can a round be
// ended.
const pauseKey = "control/pause"

// pauseNote is what stands there.
type pauseNote struct {
	Version int    `json:"version"`
	Text    string `json:"text"`
}

// wantPause takes in that the job is to pause.
func (s *Steering) wantPause(w pauseWish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wish != nil || w.version != 0 && w.version <= s.orders.Version {
		return
	}
	s.wish = &w
	s.pokePause()
}

// pokePause has whoever waits look for a wish.
func (s *Steering) pokePause() {
	select {
	case s.pausing <- struct{}{}:
	default:
	}
}

// wished is the pause that is wanted in a round that does not pause, nil for none.
func (s *Steering) wished() *pauseWish {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wish
}

// met takes in the pause of a round that the node has met the others in. A wish for what has come is none any more.
func (s *Steering) met(p rendezvous.Orders, nodes int, board rendezvous.Board) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rounds, s.orders, s.strangers = true, p, nodes > 1 && board == nil
	if w := s.wish; w != nil && (p.Paused || w.version != 0 && w.version <= p.Version) {
		s.wish = nil
	}
	if s.wish != nil {
		s.pokePause()
	}
}

// listenPause waits for word of another node that the job is to pause.
func (s *Steering) listenPause(ctx context.Context, b roundBoard) {
	for {
		var said pauseNote
		text, err := b.Get(ctx, pauseKey)
		if err == nil && json.Unmarshal(text, &said) == nil && said.Version > 0 {
			s.wantPause(pauseWish{said.Version, cmp.Or(printable.Output(said.Text), "another node was asked to pause the job")})
			return
		}
		select { // the store may be out of reach for a moment
		case <-ctx.Done():
			return
		case <-time.After(publishEvery):
		}
	}
}

// pauseNow is the decision that somebody wants who has asked for a pause; nothing where nobody has, or where it cannot
// be had.
func (a *Agent) pauseNow(decided bool) policy.Decision {
	none := policy.Decision{Rank: -1}
	w := a.Steering.wished()
	if w == nil {
		return none
	}
	if why := a.unpausable(decided || a.meeting.decided()); why != "" {
		a.Log.Warn().Str("reason", why).Msg("the job is not paused")
		a.Steering.mu.Lock()
		a.Steering.wish = nil
		a.Steering.mu.Unlock()
		return none
	}
	next := a.meeting.Orders
	next.Version++
	next.Paused = true
	return policy.Decision{Verdict: policy.Reassemble, Reason: job.ReasonPaused, Rank: -1, Text: w.text, Orders: next}
}

func (a *Agent) unpausable(decided bool) string {
	switch {
	case decided:
		return "it is decided, and about to end"
	case !a.meeting.alone() && a.meeting.Board() == nil:
		return errStrangers.Error()
	}
	return ""
}

// errStrangers is why a job cannot be paused that agents of torchrun take part in.
var errStrangers = errors.New("agents of torchrun take part, which know of no pause")

// pauseFirst ends a round before its workers are started where somebody has asked for a pause.
func (a *Agent) pauseFirst(ctx context.Context) (policy.Decision, error) {
	d := a.pauseNow(false)
	if d.Verdict == policy.CarryOn {
		return d, nil
	}
	return a.settle(ctx, d)
}

// untilPause is untilVerdict that also ends when somebody has asked for a pause.
func (a *Agent) untilPause(ctx context.Context, f func(context.Context)) {
	a.untilVerdict(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-a.Steering.pausing:
					if a.Steering.wished() != nil {
						a.Steering.pokePause() // whoever looks next does it
						cancel()
						return
					}
				case <-ctx.Done():
					return
				}
			}
		})
		f(ctx)
		cancel()
		wg.Wait()
	})
}

// withoutWorkers does what was decided in a round none of whose workers is left here. It returns nothing where another
// round follows.
func (a *Agent) withoutWorkers(ctx context.Context, d policy.Decision) *Result {
	if d.StartsAgain() {
		a.tellNext(d)
		return nil
	}
	o := report.Outcome{Reason: d.Reason}
	if a.group != nil {
		o.Exits = a.group.exits()
	}
	res := a.finish(ctx, o, d)
	return &res
}

// tellNext says in the status why the round is over, where another one follows.
func (a *Agent) tellNext(d policy.Decision) {
	switch {
	case d.Reason == job.ReasonPaused:
		a.pausedAt = time.Now()
		a.pauseText = d.Message()
		a.status.Pausing(why(d))
	case d.Reason == job.ReasonResumed:
		a.status.Resuming(why(d))
	case a.meeting.Orders.Paused: // the nodes have changed: they pause again
		a.Log.Warn().Str("reason", d.Message()).Msg("meeting the other nodes again; the job stays paused")
	default:
		a.status.Restarting(d.Restarts, why(d))
	}
}

// entered takes in the pause of a round that was met.
func (a *Agent) entered(ctx context.Context) error {
	p := a.meeting.Orders
	a.Steering.met(p, a.meeting.GroupWorldSize, a.meeting.Board())
	switch {
	case p.Paused && a.pausedAt.IsZero():
		a.pausedAt = time.Now()
	case !p.Paused && !a.pausedAt.IsZero():
		if !a.begun.IsZero() {
			a.begun = a.begun.Add(time.Since(a.pausedAt)) // the deadline has waited
		}
		a.pausedAt = time.Time{}
	}
	if p.Command == a.command {
		return nil
	}
	var words []string
	err := json.Unmarshal([]byte(p.Command), &words)
	var r *plan.Replacement
	if err == nil {
		r, err = a.Plan.Replacement(words)
	}
	if err != nil {
		return fmt.Errorf("cannot run the command that the job was resumed with: %w", err)
	}
	return a.replace(ctx, r, p.Command)
}

// replace has workers that are started from now on run another command.
func (a *Agent) replace(ctx context.Context, r *plan.Replacement, command string) error {
	err := a.warm.Close()
	a.warm = nil
	a.Plan.Use(r)
	a.command = command
	a.status.Renamed(a.Plan.Title())
	a.Log.Info().Strs("command", job.ShownArgs(a.Plan.CommandOf(0))).Msg("workers run another command from now on")
	if err != nil {
		return err
	}
	return a.openWarm(ctx)
}

// resumption asks for the end of a pause.
type resumption struct {
	// words are the new command, none for the one that ran last; text says who asks.
	words []string
	text  string
	// answer takes what becomes of it: nil, or why the job stays paused.
	answer chan<- error
}

// paused waits in a round without workers until somebody ends the pause, or something ends the round. It returns
// nothing where another round follows.
func (a *Agent) paused(ctx context.Context) (*Result, error) {
	defer a.Steering.take(ctx, a.meeting.Round)()
	m := a.meeting
	told := report.Why{Reason: job.ReasonPaused, Message: cmp.Or(a.pauseText, "the job is paused") + "; muster resume goes on"}
	a.Log.Warn().Str("reason", told.Message).Msg("paused: no worker runs")
	a.status.Paused(m.Round, told)
	// What is being written to disk is written to its end, and in a round of several nodes they do that together.
	a.untilVerdict(ctx, func(ctx context.Context) { a.beginCheckpoints(ctx, false) })
	commands := a.answerCommands(ctx)
	defer commands.end()
	for {
		d := policy.Decision{Rank: -1}
		var err error
		select {
		case v, ok := <-m.verdicts:
			d = a.hear(v, ok)
		case <-ctx.Done():
			d, err = a.settle(ctx, a.policy.Step(stopEvent(ctx, policy.StopRequested)))
		case r := <-a.Steering.resumes:
			d, err = a.resume(ctx, commands, r)
		case r := <-a.Steering.scales:
			d, err = a.settle(ctx, a.answerScale(r, false))
		case <-a.Forward: // there is nobody to receive it
		}
		if err != nil {
			return nil, err
		}
		if d.Verdict != policy.CarryOn {
			a.roundOver(d)
			return a.withoutWorkers(ctx, d), nil
		}
	}
}

// resume ends the pause, if the new command can be run on all nodes.
func (a *Agent) resume(ctx context.Context, c *commandRound, r resumption) (policy.Decision, error) {
	next := a.meeting.Orders
	next.Version++
	next.Paused = false
	if len(r.words) > 0 {
		text, refused := a.tryCommand(ctx, c, r.words)
		if refused != nil {
			r.answer <- refused
			return policy.Decision{Rank: -1}, nil //nolint:nilerr // whoever has asked is told; the pause goes on
		}
		next.Command = text
	}
	d, err := a.settle(ctx, policy.Decision{
		Verdict: policy.Reassemble, Reason: job.ReasonResumed, Rank: -1, Text: r.text, Orders: next,
	})
	switch {
	case err != nil:
		r.answer <- err
	case d.Reason != job.ReasonResumed:
		r.answer <- errhint.Code(fmt.Errorf("the job is not resumed now: %s", d.Message()), errhint.TryAgain)
	default:
		r.answer <- nil
	}
	return d, err
}

// commandKey is where a new command stands on the board of a round, answerKey where a node says whether it can run it.
// Commands are tried one after the other.
func commandKey(n int) string { return "control/command/" + strconv.Itoa(n) }

func answerKey(n, groupRank int) string { return commandKey(n) + "/" + strconv.Itoa(groupRank) }

// commandNote is a command that is tried, commandAnswer what a node says of it.
type (
	commandNote struct {
		ID    string   `json:"id"`
		Words []string `json:"words"`
	}
	commandAnswer struct {
		ID    string `json:"id"`
		Node  string `json:"node"`
		Error string `json:"error,omitempty"`
		Hint  string `json:"hint,omitempty"`
	}
)

// commandRound is what the nodes of a paused round tell each other of new commands.
type commandRound struct {
	tried  atomic.Int32 // that this node has seen
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (c *commandRound) end() {
	c.cancel()
	c.wg.Wait()
}

// commandTime bounds the waiting for what the nodes say of a new command.
const commandTime = 2 * time.Second

// answerCommands begins to say of each command that another node tries whether it can be run here.
func (a *Agent) answerCommands(ctx context.Context) *commandRound {
	c := &commandRound{}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	b, rank := a.meeting.Board(), a.meeting.GroupRank
	if b == nil {
		return c
	}
	c.wg.Go(func() {
		for ctx.Err() == nil {
			n := int(c.tried.Load())
			var asked commandNote
			text, err := b.Get(ctx, commandKey(n))
			if err == nil {
				err = json.Unmarshal(text, &asked)
			}
			if err == nil {
				answer := commandAnswer{ID: asked.ID, Node: a.Plan.Hostname}
				if _, refused := a.Plan.Replacement(asked.Words); refused != nil {
					answer.Error, answer.Hint = refused.Error(), errhint.Of(refused)
				}
				if text, err = json.Marshal(answer); err == nil {
					err = note(ctx, b, answerKey(n, rank), text)
				}
				c.tried.Add(1)
			}
			if err != nil {
				select { // the store may be out of reach for a moment
				case <-ctx.Done():
				case <-time.After(publishEvery):
				}
			}
		}
	})
	return c
}

// tryCommand asks all nodes whether they can run a command, and returns it as a rendezvous.Orders has it.
func (a *Agent) tryCommand(ctx context.Context, c *commandRound, words []string) (string, error) {
	text, err := json.Marshal(words)
	if err != nil {
		return "", err
	}
	if len(text) > rendezvous.MaxCommand {
		return "", errhint.Usagef("cannot resume with this command: it has %d bytes as JSON, and %d are the most", len(text),
			rendezvous.MaxCommand)
	}
	refused := func(node, why, hint string) error {
		return errhint.Code(errhint.With(fmt.Errorf("the job stays paused: node %s cannot run the new command: %s", node, why), hint),
			errhint.Usage)
	}
	if _, err := a.Plan.Replacement(words); err != nil {
		return "", refused(a.Plan.Hostname, err.Error(), errhint.Of(err))
	}
	b, n, id := a.meeting.Board(), int(c.tried.Load()), rand.Text()
	if b == nil {
		return string(text), nil
	}
	asked, err := json.Marshal(commandNote{id, words})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	answers := make([]commandAnswer, a.meeting.GroupWorldSize)
	err = note(ctx, b, commandKey(n), asked)
	if err == nil {
		forEach(len(answers), func(i int) {
			if text, err := b.Get(ctx, answerKey(n, i)); err == nil {
				_ = json.Unmarshal(text, &answers[i]) // then it has no id
			}
		})
	}
	for _, said := range answers {
		if said.ID == id && said.Error != "" {
			return "", refused(printable.Output(said.Node), printable.Output(said.Error), printable.Output(said.Hint))
		}
	}
	if i := slices.IndexFunc(answers, func(said commandAnswer) bool { return said.ID != id }); i >= 0 {
		return "", errhint.Code(fmt.Errorf("the job stays paused: the node with group rank %d does not say whether it can run the new command",
			i),
			errhint.TryAgain)
	}
	return string(text), nil
}

// forEach calls f for the numbers below n, some at a time.
func forEach(n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(atOnce, n) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// Pause has the job pause, and says what follows.
func (s *Steering) Pause(ctx context.Context, by control.Peer) (string, error) {
	text := fmt.Sprintf("user %d has paused the job on node %s", by.UID, s.plan.Hostname)
	s.mu.Lock()
	b, phase, p, strangers, wished, nodes := s.board, s.status.Phase, s.orders, s.strangers, s.wish != nil, s.status.Nodes
	w := pauseWish{text: text}
	if s.rounds {
		w.version = p.Version + 1
	}
	s.mu.Unlock()
	switch {
	case phase == report.PhaseResuming:
		return "", errhint.Code(errors.New("cannot pause the job now: it is being resumed"), errhint.TryAgain)
	case p.Paused || phase == report.PhasePausing || wished:
		return "", errhint.With(errhint.Usagef("the job is paused already, or about to be (%s)", phase), "muster resume goes on")
	case strangers:
		return "", errhint.Usagef("cannot pause the job: %w", errStrangers)
	case slices.Contains(endPhases, phase):
		return "", errhint.Code(fmt.Errorf("cannot pause the job: it is decided, and about to end (%s)", phase), errhint.TryAgain)
	}
	s.wantPause(w)
	if b.Board != nil && nodes > 1 {
		if err := s.tellPause(ctx, b, w); err != nil {
			s.log.Debug().Err(err).Msg("the other nodes were not told on the board of the round that the job is to pause")
		}
	}
	switch {
	case phase == report.PhaseRunning:
		return fmt.Sprintf("the job is being paused: its workers have %v to end, and muster resume starts them again",
			s.plan.Job.Stop.Grace), nil
	case w.version == 0:
		return "the job will pause when its nodes have met, before workers start", nil
	}
	return fmt.Sprintf("the job will pause before its workers run again (%s now)", phase), nil
}

// endPhases are those of a job that is decided.
var endPhases = []report.Phase{report.PhaseTerminating, report.PhaseSucceeded, report.PhaseFailed, report.PhaseTimeout}

// tellPause tells the other nodes of a round that the job is to pause.
func (s *Steering) tellPause(ctx context.Context, b roundBoard, w pauseWish) error {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	said, err := json.Marshal(pauseNote{w.version, w.text})
	if err == nil {
		err = note(ctx, b.Board, pauseKey, said)
	}
	return err
}

// resumeTime bounds the waiting for a job that is to be resumed, after it was told.
const resumeTime = 3 * time.Second

// Resume ends the pause of the job, and says what follows. Words take the place of its command.
func (s *Steering) Resume(ctx context.Context, by control.Peer, words []string) (string, error) {
	s.mu.Lock()
	phase, on, wished := s.status.Phase, s.orders.Paused, s.wish != nil
	s.mu.Unlock()
	if !on {
		err := errhint.Usagef("cannot resume the job: it is not paused (%s)", phase)
		if wished || phase == report.PhasePausing {
			err = errhint.Code(errors.New("cannot resume the job now: it is about to be paused"), errhint.TryAgain)
		}
		return "", err
	}
	answer := make(chan error, 1)
	text := fmt.Sprintf("user %d has resumed the job on node %s", by.UID, s.plan.Hostname)
	if len(words) > 0 {
		text += fmt.Sprintf(" with the command %q", job.ShownArgs(words))
	}
	late := time.NewTimer(restartTime)
	defer late.Stop()
	select {
	case s.resumes <- resumption{words, text, answer}:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-late.C:
		return "",
			errhint.Code(errhint.With(fmt.Errorf("cannot resume the job now: its nodes meet (%s)", phase), "try again"), errhint.TryAgain)
	}
	late.Reset(resumeTime)
	select {
	case err := <-answer:
		if err != nil {
			return "", err
		}
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-late.C:
		return "", errhint.Code(errhint.With(errors.New("the other nodes do not say yet whether the job is resumed"),
			"look at muster status"), errhint.TryAgain)
	}
	if len(words) > 0 {
		return "the job is resumed: all workers start, with the new command", nil
	}
	return "the job is resumed: all workers start again", nil
}
