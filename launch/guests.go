package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/control"
	"muster/launch/job"
)

const (
	// mostGuests is how many commands run in the places of workers of one node at once.
	mostGuests = 16
	// mostEntered is how many commands that somebody has become are watched at once.
	mostEntered = 256
	// mostTold is how much of a command line an event has, in bytes.
	mostTold = 256
)

// Guests are the commands that people run in the places of a node's workers, and what events tell of them.
type Guests struct {
	Node string    // as people call it
	Vars []job.Var // of the job: events show no value of a Secret
	Log  zerolog.Logger
	// Tell records an event, which fill completes.
	Tell func(kind control.EventType, fill func(*control.Event))

	mu      sync.Mutex
	running int // that were started here
	entered int // that somebody has become
	closed  bool
	closing context.CancelFunc // ends the watching; nil: nobody is watched
	ctx     context.Context
	watched sync.WaitGroup
}

// guest is a command in the place of a worker.
type guest struct {
	*proc.Process
	tree *proc.Tree
	end  syscall.Signal // what it is asked to end with
}

// End implements control.Command.
func (g guest) End(grace time.Duration) error {
	return g.tree.StopBeside(context.Background(), proc.Ladder{Signal: g.end, Grace: grace}, g.Process)
}

// Exec starts a command in the place of a worker. Who calls it ends the command.
func (g *Guests) Exec(tree *proc.Tree, rank control.Rank, cpus []int, by control.Peer, w control.ExecWanted,
	files [3]*os.File,
) (control.Command, error) {
	if !rank.Running {
		return nil, errhint.Usagef("rank %d on node %s has ended: there is nothing to enter", w.Rank, g.Node)
	}
	if !g.enter(&g.running, mostGuests) {
		return nil, errhint.Code(errhint.With(fmt.Errorf("node %s runs %d commands in places of its ranks already", g.Node, mostGuests),
			"end one of them"), errhint.TryAgain)
	}
	p, err := enterRank(tree, rank, cpus, w, files)
	if err != nil {
		g.leave(&g.running)
		return nil, err
	}
	g.tell(control.ExecStarted, by, w, p.PID(), nil)
	g.Log.Warn().Int("uid", by.UID).Str("from", by.Node).Int("rank", w.Rank).Int("pid", p.PID()).
		Msg("somebody runs a command in the place of a rank")
	go func() { // who has started it ends it
		<-p.Done()
		g.leave(&g.running)
		g.tell(control.ExecEnded, by, w, p.PID(), endedAs(p.Exit(), true))
	}()
	return p, nil
}

// enter counts one more, false: there are as many as may be.
func (g *Guests) enter(n *int, most int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if *n >= most {
		return false
	}
	*n++
	return true
}

func (g *Guests) leave(n *int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*n--
}

func enterRank(tree *proc.Tree, rank control.Rank, cpus []int, w control.ExecWanted, files [3]*os.File) (guest, error) {
	terminal, end := "", unix.SIGTERM
	if w.Terminal != nil {
		terminal, end = w.Terminal.Type, unix.SIGHUP // shells that somebody types into ignore SIGTERM
	}
	env := control.EnterEnv(rank.Env, w.Attempt, terminal)
	path, err := proc.LookPath(w.Command[0], rank.Dir, env)
	if err != nil {
		return guest{}, err
	}
	p, err := tree.StartBeside(proc.Spec{
		Path: path, Args: w.Command, Env: env, Dir: rank.Dir, CPUs: cpus, Files: files[:], Terminal: w.Terminal != nil,
		Label: "the command in the place of rank " + strconv.Itoa(w.Rank),
	})
	return guest{p, tree, end}, err
}

// Entered is told that somebody becomes a command in the place of a worker. Who becomes it waits for the answer still: its
// process id is its own.
func (g *Guests) Entered(by control.Peer, w control.ExecWanted) {
	g.tell(control.ExecStarted, by, w, by.PID, nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.entered >= mostEntered || by.PID <= 0 || g.closed {
		return
	}
	p, err := proc.Watch(by.PID)
	if err != nil {
		g.Log.Debug().Err(err).Msg("how a command in the place of a rank ends is not seen")
		return
	}
	if g.closing == nil {
		g.ctx, g.closing = context.WithCancel(context.Background())
	}
	ctx := g.ctx
	g.entered++
	g.watched.Go(func() {
		defer func() { _ = p.Close() }()
		end, err := p.Wait(ctx)
		if err == nil || errors.Is(err, proc.ErrStatusUnknown) {
			g.tell(control.ExecEnded, by, w, by.PID, endedAs(end, err == nil))
		}
		g.leave(&g.entered)
	})
}

// Close ends the watching of commands that somebody has become.
func (g *Guests) Close() {
	g.mu.Lock()
	if g.closed = true; g.closing != nil {
		g.closing()
	}
	g.mu.Unlock()
	g.watched.Wait()
}

// tell records that somebody runs a command in a rank's place, with what of its command line may be shown.
func (g *Guests) tell(kind control.EventType, by control.Peer, w control.ExecWanted, pid int, fill func(*control.Event)) {
	g.Tell(kind, func(e *control.Event) {
		rank := w.Rank
		e.Rank, e.PID, e.By = &rank, pid, &by
		e.Message = printable.Output(shellescape.QuoteCommand(job.ShownArgsBut(w.Command, g.Vars)))
		if len(e.Message) > mostTold {
			e.Message = strings.ToValidUTF8(e.Message[:mostTold], "") + "..."
		}
		if fill != nil {
			fill(e)
		}
	})
}

// endedAs tells in an event how a command has ended, without its status where that is not known.
func endedAs(end proc.Exit, known bool) func(*control.Event) {
	return func(e *control.Event) {
		e.Time, e.Seconds = end.Ended, end.Ended.Sub(end.Started).Round(time.Millisecond).Seconds()
		if !known {
			return
		}
		code := end.Status()
		if e.ExitCode = &code; end.Signal != 0 {
			e.Signal = proc.SignalName(end.Signal)
		}
	}
}

// LogsRead is told that somebody on another node reads what workers here write.
func (g *Guests) LogsRead(by control.Peer, ranks []int) {
	g.Tell(control.LogsRead, func(e *control.Event) {
		first := ranks[0]
		e.Rank, e.By = &first, &by
		if len(ranks) > 1 {
			e.Message = fmt.Sprintf("of %d ranks", len(ranks))
		}
	})
}
