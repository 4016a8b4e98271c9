package launch

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/launch/warm"
	"muster/rendezvous"
)

// Checker examines this node before workers start, together with those of the others. It is called from one goroutine.
type Checker interface {
	// Check says whether the nodes of a round may start their workers. An error means that this could not be found out,
	// because ctx ended or the board did.
	Check(ctx context.Context, in CheckInput) (CheckOutcome, error)
}

// CheckInput is what a check needs of the agent.
type CheckInput struct {
	Round rendezvous.Round
	// Board is where the agents of the round meet; nil for a node that is alone.
	Board rendezvous.Board
	// Suspect says that workers of this node failed in the last round.
	Suspect bool
	// Door says that the nodes are in no round yet: they wait, while others train. Round has their places among each
	// other.
	Door bool
	// Standard is what the nodes that train have said of themselves, for those at the door; nil for nothing.
	Standard []byte
	// Tree has the check's processes. Fork makes one of them from the template of warm starts, if it runs a Program in
	// the interpreter of the workers; nil: it is to be started in Tree. It waits for the template for a part of the
	// time that ctx leaves. Several goroutines may call it.
	Tree *proc.Tree
	Fork func(ctx context.Context, spec proc.Spec) *proc.Process
	// Dir is where they run. Python is the path of the interpreter that the workers run in, empty where that is not
	// known. Env is the environment of a local rank's worker; for -1 that of a process which sees all devices.
	Dir    string
	Python string
	Env    func(localRank int) ([]string, error)
}

// CheckOutcome is what a check means for this node. The zero value lets it start its workers.
type CheckOutcome struct {
	// Status is not 0 where this node has to leave the job: the exit status it leaves with. With Everybody the job ends
	// so.
	Status    int
	Everybody bool
	// Again says that other nodes leave, and that the rest is to meet again.
	Again bool
	// Message says why, in a sentence for people. Skipped says why nothing was tested, empty where something was.
	Message, Skipped string
	// Faults are the nodes that leave, on the one agent that is to tell others of them; else none. Excluded are the
	// same on every agent, as they are remembered.
	Faults   []NodeFault
	Excluded []rendezvous.Exclusion
}

// NodeFault is a node that has to leave.
type NodeFault struct {
	Node, Reason string
	Status       int
}

// The reasons of a check, in the words of the status file.
const (
	reasonFaulty    job.Reason = "NodeFaulty"
	reasonStraggler job.Reason = "NodeIsStraggler"
	reasonUndecided job.Reason = "CheckUndecided"
	reasonUnfit     job.Reason = "NodesUnfit" // other nodes have to leave
)

// check has the nodes of the round examined. It returns nothing where the workers may start, or where something else
// has ended the round: whoever watches it next meets that. Else it says what is to be done instead.
func (a *Agent) check(ctx context.Context) (*policy.Decision, error) {
	if d := a.expel(ctx); d != nil {
		return d, nil
	}
	var unfit *policy.Decision
	a.untilVerdict(ctx, func(ctx context.Context) { unfit = a.siteHealth(ctx, a.meeting.Number) })
	if unfit != nil {
		a.unfit = unfit
		return unfit, nil
	}
	m := a.meeting
	fit := func() {
		if m.rest == nil { // else the round was over before anybody could say that
			a.unfit = nil
		}
	}
	checker, examines := a.Checker, a.examines()
	if examines {
		checker = a.Examiner(ctx)
	}
	if checker == nil {
		fit()
		return nil, nil //nolint:nilnil // see above
	}
	board := a.meeting.Board()
	if board == nil && !m.alone() {
		if !a.paired() {
			a.Log.Warn().Msg("nodes are not checked: agents of torchrun or DLRover take part, which know of no check")
		}
		fit()
		return nil, nil //nolint:nilnil // see above
	}
	if keeper, is := a.Handler.(rendezvous.Doorkeeper); is && board == nil {
		board = keeper.RoundBoard()
	}
	a.status.Checking(m.Round)
	in := CheckInput{
		Round: m.Round, Board: board, Suspect: a.suspect || a.afterHang(), Tree: a.tree, Dir: a.Plan.Dir, Python: a.Plan.Python(),
		Env:  func(localRank int) ([]string, error) { return a.Plan.CheckEnv(m.Round, localRank) },
		Fork: a.checkForker(),
	}
	bounded, done := a.untilDeadline(ctx)
	defer done()
	var out CheckOutcome
	var err error
	began := time.Now()
	a.untilPause(bounded, func(ctx context.Context) { out, err = checker.Check(ctx, in) })
	took := time.Since(began)
	if err == nil && examines && bounded.Err() == nil && m.rest == nil {
		out = a.examined(out, took)
	}
	if err != nil && a.Steering.wished() != nil {
		return nil, nil //nolint:nilnil // the round ends, which whoever starts the workers meets
	}
	if err == nil { // also where those who leave have said so already
		a.suspect, m.checked = false, true
		a.unfit = nil
		if d := afterCheck(out); d != nil && d.Verdict == policy.Leave {
			a.unfit = d // another one may leave before it, and end the round
		}
		a.exclude(ctx, out.Excluded, m.GroupRank == 0)
		for _, f := range out.Faults {
			if bounded.Err() == nil { // who is told half is told wrong
				a.tellFault(bounded, f)
			}
		}
	}
	switch {
	case bounded.Err() != nil || m.rest != nil:
		return nil, nil //nolint:nilnil // the round has ended meanwhile
	case errors.Is(err, rendezvous.ErrStoreClosed):
		a.Log.Debug().Err(err).Msg("check given up")
		return &policy.Decision{Verdict: policy.WaitForVerdict}, nil // the store is lost, which will be said
	case err != nil && examines: // nobody has asked for it
		a.Log.Warn().Err(err).Msg("the check after the hang could not be done; the workers start all the same")
		a.Steering.checked(out, nil, err, took)
		return nil, nil //nolint:nilnil // see above
	case err != nil:
		a.Steering.checked(out, nil, err, took)
		return &policy.Decision{
			Verdict: policy.Leave, Reason: reasonUndecided, Rank: -1, Status: errhint.Undecided,
			Text: "node " + a.Plan.Hostname + " (group rank " + strconv.Itoa(m.GroupRank) + ") leaves: " + err.Error(),
		}, nil
	}
	d := afterCheck(out)
	if !examines || d != nil {
		a.Steering.checked(out, d, nil, took)
	}
	return d, nil
}

// afterCheck is what a check decides, nil where the workers may start.
func afterCheck(out CheckOutcome) *policy.Decision {
	d := policy.Decision{Verdict: policy.Leave, Reason: reasonFaulty, Rank: -1, Status: out.Status, Text: printable.Output(out.Message)}
	switch {
	case out.Everybody:
		d.Verdict, d.Reason = policy.Fail, reasonUndecided
	case out.Again && out.Status == errhint.OK:
		d.Verdict, d.Reason = policy.WaitForVerdict, reasonUnfit
	case out.Status == errhint.OK:
		return nil
	case out.Status == errhint.Straggler:
		d.Reason = reasonStraggler
	case out.Status == errhint.Undecided:
		d.Reason = reasonUndecided
	}
	return &d
}

// templatePart is which part of the time that a process of a check has it may wait for the template: one that starts as
// usual behind that has the rest, and imports in it what the template did.
const templatePart = 4

// checkForker returns what forks the processes of a check. The first of them waits for the template, as the workers do
// that will come from it: both would import the same at the same time otherwise.
func (a *Agent) checkForker() func(context.Context, proc.Spec) *proc.Process {
	var mu sync.Mutex
	var t *warm.Template
	waited := a.warm == nil || a.Plan.IsBound() // those of a worker are not the check's
	return func(ctx context.Context, spec proc.Spec) *proc.Process {
		mu.Lock()
		defer mu.Unlock()
		if len(spec.Program) == 0 || spec.Path != a.Plan.Executable() {
			return nil
		}
		if !waited {
			waiting, done := ctx, func() {}
			if end, limited := ctx.Deadline(); limited {
				waiting, done = context.WithTimeout(ctx, time.Until(end)/templatePart)
			}
			t, waited = a.warm.Choose(waiting), true
			done()
		}
		if t == nil || ctx.Err() != nil {
			return nil
		}
		p, err := t.Run(spec)
		if err != nil {
			t = nil
			a.Log.Warn().Err(err).Msg("the check's processes start as usual")
			return nil
		}
		a.Log.Debug().Str("what", spec.Label).Int("pid", p.PID()).Msg("forked from the template")
		return p
	}
}

// turnedAway does what a check decided instead of starting workers. It returns nothing where another round follows.
func (a *Agent) turnedAway(ctx context.Context, d policy.Decision) (*Result, error) {
	var err error
	if d.Verdict != policy.WaitForVerdict {
		wanted := d.Proposal(a.Plan.Hostname)
		if d, err = a.settle(ctx, d); err != nil {
			return nil, err
		}
		// One leaves at a time: if it is the host of the store, the others are to know that it moves. This node is at
		// fault in the next round, too.
		if v := a.meeting.verdict; d.Verdict == policy.Leave && v != nil && (v.Node != wanted.Node || v.Message != wanted.Message) {
			d = a.follow(ctx)
		}
	}
	if d.Verdict == policy.WaitForVerdict {
		over := time.NewTimer(leavePatience)
		defer over.Stop()
		if d, err = a.pause(ctx, d, over.C); err == nil && d.Verdict == policy.WaitForVerdict {
			d, err = a.settle(ctx, policy.Decision{
				Verdict: policy.Reassemble, Reason: reasonUnfit, Rank: -1, Text: "a node that has to leave has not done so",
			})
		}
		if err != nil {
			return nil, err
		}
	}
	if d.StartsAgain() {
		a.Log.Warn().Str("reason", d.Message()).Msg("meeting the other nodes again")
		a.tellNext(d)
		return nil, nil //nolint:nilnil // see above
	}
	res := a.finish(ctx, report.Outcome{Reason: d.Reason}, d)
	return &res, nil
}

// unfitLeaves ends the part of a node that is to leave and met no round in which it would be told so again: there may be
// too few nodes left for one, or none that it can reach. It returns nothing for a node that is not to leave.
func (a *Agent) unfitLeaves(ctx context.Context) *Result {
	if a.unfit == nil {
		return nil
	}
	res := a.finish(ctx, report.Outcome{Reason: a.unfit.Reason}, *a.unfit)
	return &res
}

// leavePatience is how long nodes that are fit wait for those that have to leave.
const leavePatience = 30 * time.Second

// faultCommandTime bounds the command that is told of a fault.
const faultCommandTime = time.Minute

// tellFault runs the command that is to hear of nodes that leave. What becomes of it changes nothing here.
func (a *Agent) tellFault(ctx context.Context, f NodeFault) {
	command := a.Plan.Job.Check.OnNodeFault
	if command == "" || slices.Contains(a.told, f) {
		return // nodes leave one after the other, and are found at fault until then
	}
	a.told = append(a.told, f)
	verdict := map[int]string{errhint.Faulty: "faulty", errhint.Straggler: "straggler"}[f.Status]
	if verdict == "" {
		verdict = "undecided"
	}
	log := a.Log.With().Str("node", f.Node).Str("command", job.ShownText(command)).Logger()
	env := append(os.Environ(), "MUSTER_NODE="+f.Node, "MUSTER_VERDICT="+verdict, "MUSTER_STATUS="+strconv.Itoa(f.Status),
		"MUSTER_REASON="+f.Reason, "MUSTER_RUN_ID="+a.Plan.RunID)
	p, err := a.tree.Start(proc.Spec{
		Path: "/bin/sh", Args: []string{"sh", "-c", command}, Env: env, Dir: a.Plan.Dir,
		Files: []*os.File{a.stdin, a.Stderr, a.Stderr}, Label: "--on-node-fault",
	})
	if err != nil {
		log.Warn().Err(err).Msg("cannot tell of a node at fault")
		return
	}
	late := time.NewTimer(faultCommandTime)
	defer late.Stop()
	select {
	case <-p.Done():
	case <-ctx.Done():
	case <-late.C:
		log.Warn().Dur("limit_ms", faultCommandTime).Msg("the command that is told of a node at fault takes too long: ended")
	}
	if err := a.tree.Stop(context.WithoutCancel(ctx), proc.Ladder{Grace: time.Second}, p); err != nil {
		log.Warn().Err(err).Msg("the command that is told of a node at fault could not be ended")
		return
	}
	if exit := p.Exit(); !exit.Success() {
		log.Warn().Int("exit_code", exit.Status()).Msg("the command that is told of a node at fault failed")
	}
}
