package hosts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
	"muster/launch/rundir"
)

// front is where a job that a launcher runs is seen and steered from outside: a run directory of the launcher's own,
// and who answers there. A nil front is none: the job runs all the same.
type front struct {
	config frontConfig
	dir    rundir.Dir
	server *control.Server
	view   *launch.View

	mu     sync.Mutex
	closed bool
	// stopped says that the end of the job was asked for.
	stopped bool
	// looked is when the nodes were told last that somebody looks.
	looked time.Time
}

// frontConfig is what a front tells, and what it has done.
type frontConfig struct {
	RunID, Name string
	Role        control.Role
	// Environ is that of the launcher.
	Environ []string
	Grace   time.Duration
	// Interrupts hear of a request to stop the job.
	Interrupts *launch.Interrupts
	// Status is how the job stands; false where nobody has said anything yet.
	Status func(ctx context.Context) (report.Status, bool)
	// Events are what has happened to the job as a whole.
	Events *control.Events
	// Ask has the nodes do something that somebody wants, and says what follows.
	Ask func(ctx context.Context, r control.Request) (string, error)
	// Look, where not nil, tells the nodes that somebody looks at the job.
	Look func(ctx context.Context)
	// Reach says how the muster is asked that runs ranks; nil: no other muster can be asked.
	Reach func(ranks []int) (*control.Far, error)
	// Evidence has all nodes look at their workers, with native by py-spy, too; nil: no node can be asked.
	Evidence func(ctx context.Context, native bool) (control.Looked, error)
	// View is where the job can be seen beside the socket.
	View *launch.View
	// Guard has a directory removed where the launcher is killed.
	Guard func(paths ...string) error
	Log   zerolog.Logger
}

// openFront makes a launcher's run directory, and answers there.
func openFront(c frontConfig) *front {
	f := &front{config: c}
	temp, err := filepath.Abs(os.TempDir())
	if err == nil {
		places := rundir.FindPlaces(variable(c.Environ, "XDG_RUNTIME_DIR"), temp)
		// An agent of the job may run here, too, whose directory has the job's name.
		f.dir, err = rundir.Make(filepath.Join(places.Parent, rundir.Name(c.RunID)+rundir.Launcher), c.Log, places.Safe...)
	}
	if err == nil {
		err = c.Guard(f.dir.Path)
	}
	muster := control.Muster{Role: c.Role, PID: os.Getpid(), RunDir: f.dir.Path, Within: job.RunDirIn(c.Environ)}
	if err == nil {
		f.server, err = control.Serve(control.Config{Dir: f.dir.Path, Served: f, Log: c.Log, Muster: muster})
	}
	if err != nil {
		c.Log.Warn().Err(err).Msg("the job runs, but muster status, stop and the like cannot reach its launcher")
	}
	f.view = c.View
	f.view.Show(f, muster, func() report.Status {
		d, _ := f.Status(context.Background(), control.World) // it bounds itself
		return d
	})
	return f
}

// close ends the answers. Nothing is delivered to the Interrupts any more then.
func (f *front) close() {
	if f == nil {
		return
	}
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.view.Close()
	if err := errors.Join(f.server.Close(), f.dir.Remove()); err != nil {
		f.config.Log.Warn().Err(err).Msg("the run directory of the launcher could not be removed")
	}
}

// drivenStatus is how the job of a driver stands.
type drivenStatus struct {
	mu     sync.Mutex
	status report.Status
	told   bool
	events control.Events
}

// take takes a state of the status file.
func (s *drivenStatus) take(d report.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.told = d, true
	s.events.Moved("", d)
}

func (s *drivenStatus) now(context.Context) (report.Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.told
}

var (
	_ control.Served  = (*front)(nil)
	_ control.Reacher = (*front)(nil)
	_ control.Looker  = (*front)(nil)
)

// Status implements control.Served.
func (f *front) Status(ctx context.Context, _ control.Scope) (report.Status, error) {
	f.tellLook(ctx)
	if d, ok := f.config.Status(ctx); ok {
		return d, nil
	}
	return report.Status{
		Version: 1, RunID: f.config.RunID, Name: f.config.Name, Phase: report.PhasePending,
		Tasks: []report.Task{}, Conditions: []report.Condition{},
	}, nil
}

// lookEvery is how often nodes are told that somebody looks.
const lookEvery = 10 * time.Second

// tellLook tells the nodes that somebody looks at the job. Nobody waits for that.
func (f *front) tellLook(ctx context.Context) {
	if f.config.Look == nil {
		return
	}
	f.mu.Lock()
	due := time.Since(f.looked) > lookEvery && !f.closed
	if due {
		f.looked = time.Now()
	}
	f.mu.Unlock()
	if due {
		go f.config.Look(context.WithoutCancel(ctx)) // it bounds itself
	}
}

// Rank implements control.Served.
func (f *front) Rank(_ context.Context, rank int) (control.Rank, error) {
	return control.Rank{},
		errhint.With(errhint.Usagef("rank %d runs on one of the job's nodes, whose muster knows it, and not in its launcher", rank),
			"call muster there")
}

// Reach implements control.Reacher.
func (f *front) Reach(ctx context.Context, ranks []int) (*control.Far, error) {
	if f.config.Reach == nil {
		_, err := f.Rank(ctx, ranks[0])
		return nil, err
	}
	return f.config.Reach(ranks)
}

// Look implements control.Looker. The launcher has no workers of its own: whatever is asked for, all nodes are asked.
func (f *front) Look(ctx context.Context, _ control.Scope, native bool) (control.Looked, error) {
	if f.config.Evidence == nil {
		return control.Looked{},
			errhint.With(errhint.Usagef("this muster runs no workers itself"), "ask those that it has started: muster ps --all")
	}
	return f.config.Evidence(ctx, native)
}

// Events implements control.Served.
func (f *front) Events() *control.Events { return f.config.Events }

// Asked implements control.Served.
func (f *front) Asked(r control.Request) {
	f.add(r.Event())
	r.Log(&f.config.Log)
}

// Refused implements control.Served.
func (f *front) Refused(r control.Request, err error) {
	f.add(r.Refusal(err))
	r.LogRefusal(&f.config.Log, err)
}

// add takes in an event of the job.
func (f *front) add(e control.Event) {
	e.RunID = f.config.RunID
	f.config.Events.Add(e)
}

// Do implements control.Served: a launcher stops its job itself, and has its nodes do all else.
func (f *front) Do(ctx context.Context, r control.Request) (string, error) {
	if r.What == control.StopRequested {
		return f.stop(r)
	}
	return f.config.Ask(ctx, r)
}

// stop has the job end.
func (f *front) stop(r control.Request) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return "", errhint.Code(errors.New("the job has just ended"), errhint.TryAgain)
	}
	if !f.config.Interrupts.Ask(r.By.String()+" has stopped the job", r.Now) {
		return "", errhint.Code(errhint.With(errors.New("cannot stop the job now: its muster has signals to deal with"), "try again"),
			errhint.TryAgain)
	}
	again := f.stopped
	f.stopped = true
	return control.Stopping(r.Now, again, f.config.Grace), nil
}
