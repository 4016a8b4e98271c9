package output

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch/job"
)

// outputWait is how long after a worker's exit its pipe may stay open, in the hands of something the worker has
// started, before what is there is taken for all.
const outputWait = time.Second

// stallWait is how long a console may take nothing at all, after a worker's exit, before the rest is not shown any
// more.
const stallWait = 10 * time.Second

// Setup is what Open needs.
type Setup struct {
	Rules job.LogRules
	// RunID goes into the name of the run's directory.
	RunID string
	// TempDir is where a directory is made when Rules name none.
	TempDir string
	// Stdout and Stderr are our own output. Files are written to directly; they stay open.
	Stdout, Stderr io.Writer
	Log            zerolog.Logger
}

// Logs is where the output of one agent's workers goes, for all of their attempts. A worker writes to its file itself
// where there is one, and shown is what the agent reads back from it: a terminal that stands still never makes a worker
// wait. Only output that goes nowhere but to the console takes the way through a pipe.
type Logs struct {
	rules       job.LogRules
	dir         logDir
	out, err    *console
	inheritable [2]io.Writer // our stdout and stderr as they were given
	log         zerolog.Logger
	outputWait  time.Duration
	stallWait   time.Duration

	watchOnce sync.Once
	watch     *watcher // nil: not to be had
	pollOnce  sync.Once
	poll      *pipePoller
	pollErr   error
	pumps     sync.WaitGroup
}

// Open makes the run's directory. Its errors carry status 2: nothing was started.
func Open(setup Setup) (*Logs, error) {
	name := setup.RunID
	if setup.Rules.Node != "" {
		name += "_" + setup.Rules.Node
	}
	dir, err := makeLogDir(setup.Rules.Dir, name, setup.TempDir)
	if err != nil {
		return nil, err
	}
	if dir.path == "" && len(setup.Rules.KeepStdout)+len(setup.Rules.KeepStderr) > 0 {
		return nil, errhint.Usagef("cannot keep filtered lines with --log-dir /dev/null: there is no directory for them")
	}
	l := &Logs{
		rules: setup.Rules, dir: dir, log: setup.Log, outputWait: outputWait, stallWait: stallWait,
		inheritable: [2]io.Writer{setup.Stdout, setup.Stderr},
	}
	l.out, l.err = newConsoles(setup.Stdout, setup.Stderr, setup.Log)
	if setup.Rules.Live {
		l.out.live, l.err.live = true, true
	}
	return l, nil
}

// RunDir returns the directory of the run, "" with --log-dir /dev/null. All attempts are below it.
func (l *Logs) RunDir() string { return l.dir.path }

// FilesDir returns the directory in or below which the output of the workers is written to files, "" where it is not.
func (l *Logs) FilesDir() string {
	switch {
	case l.rules.RankDir != "":
		return l.rules.RankDir
	case l.rules.RankFiles != "":
		return l.rules.RankFiles
	case l.rules.Redirect.Any() || l.rules.Tee.Any():
		return l.dir.path
	}
	return ""
}

// Where says for people where the output of the workers is kept, for a job of several nodes on each of them.
func (l *Logs) Where(node string, nodes int) string {
	path := l.FilesDir()
	switch ofRun := path == l.dir.path; {
	case path == "":
		return "on the console only: no files were asked for"
	case nodes > 1 && ofRun && l.dir.temporary == "":
		path = filepath.Dir(path) // the directory of a run has another name on each of them
	case nodes > 1 && ofRun:
		return path + " on node " + node
	}
	if nodes > 1 {
		path += " on each node"
	}
	return path
}

// Message returns the writer for what the agent itself says on standard error: each Write starts on a line of its own,
// and no worker's line is mixed with it. It never fails, and drops what a console that stands still does not take
// within 5 s.
func (l *Logs) Message() io.Writer { return l.err }

// shown reports whether a local rank's output is to be shown. An empty list shows all, as in torchrun.
func (l *Logs) shown(localRank int) bool {
	return len(l.rules.Ranks) == 0 || slices.Contains(l.rules.Ranks, localRank)
}

// taken counts the bytes that the consoles have taken.
func (l *Logs) taken() int64 {
	return l.out.out.taken() + l.err.out.taken()
}

// watcher returns what tells followers about new output, nil where it cannot be had.
func (l *Logs) watcher() *watcher {
	l.watchOnce.Do(func() {
		w, err := openWatcher()
		if err != nil {
			l.log.Debug().Err(err).Msg("following output by looking at it now and then")
			return
		}
		l.watch = w
	})
	return l.watch
}

// pipePoller returns what tells the readers of pipes that there is something.
func (l *Logs) pipePoller() (*pipePoller, error) {
	l.pollOnce.Do(func() { l.poll, l.pollErr = openPipePoller() })
	return l.poll, l.pollErr
}

// Close waits for what is still being shown, a second at the most: after finish of every worker there is nothing. It
// removes the directory if it was a temporary one in which nothing is of use: succeeded says whether the job was.
func (l *Logs) Close(succeeded bool) error {
	shown := make(chan struct{})
	go func() {
		l.pumps.Wait()
		close(shown)
	}()
	select {
	case <-shown:
	case <-time.After(time.Second):
		// Only a writer that is not a file can hold a pump after it was called off; nothing it uses may be closed.
		return l.dir.tidy(succeeded)
	}
	errs := []error{l.out.close()}
	if l.err != l.out {
		errs = append(errs, l.err.close())
	}
	l.watchOnce.Do(func() {})
	l.pollOnce.Do(func() {})
	if l.poll != nil {
		errs = append(errs, l.poll.close())
	}
	if l.watch != nil {
		errs = append(errs, l.watch.close())
	}
	return errors.Join(append(errs, l.dir.tidy(succeeded))...)
}

// Attempt is where the output of one worker group goes.
type Attempt struct {
	*Logs
	// Path is the attempt's directory, "" with --log-dir /dev/null.
	Path string
	// lone says that one worker at the most is shown.
	lone bool
	// began is when it was made.
	began time.Time
	// keep are the files of filtered lines of stdout and stderr, nil without filters.
	keep [2]*keptLines
}

// Attempt makes the directory of a worker group that has this many workers here. An error may be met only now, after
// Open went well: the disk may be full.
func (l *Logs) Attempt(restartCount, workers int) (a *Attempt, err error) {
	a = &Attempt{Logs: l, began: time.Now()}
	if a.Path, err = l.dir.attempt(restartCount); err != nil {
		return nil, err
	}
	shown := 0
	for localRank := range workers {
		if l.shown(localRank) {
			shown++
		}
	}
	a.lone = shown <= 1
	for i, f := range []struct {
		name    string
		needles []string
	}{{keptStdout, l.rules.KeepStdout}, {keptStderr, l.rules.KeepStderr}} {
		if len(f.needles) == 0 {
			continue
		}
		if a.keep[i], err = openKeptLines(filepath.Join(a.Path, f.name), f.needles, l.log); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

// workerDir is the directory of a local rank, "" with --log-dir /dev/null.
func (a *Attempt) workerDir(localRank int) string {
	if a.Path == "" {
		return ""
	}
	return filepath.Join(a.Path, strconv.Itoa(localRank))
}

// Close is called after finish of every worker of the attempt.
func (a *Attempt) Close() error {
	var errs []error
	for _, k := range a.keep {
		if k != nil {
			errs = append(errs, k.close())
		}
	}
	return errors.Join(errs...)
}

// Keeps returns the temporary directory in which output will be found, "" where there is none.
func (l *Logs) Keeps() string {
	if l.dir.temporary == "" || len(l.Disposable()) > 0 {
		return ""
	}
	return l.dir.path
}

// Disposable returns the directories in which nobody will look for anything after a sudden end: the temporary one,
// where no stream was to be written to a file in it.
func (l *Logs) Disposable() []string {
	files := (l.rules.Redirect.Any() || l.rules.Tee.Any()) && l.rules.RankFiles == "" && l.rules.RankDir == ""
	if l.dir.temporary == "" || files {
		return nil
	}
	return []string{l.dir.temporary}
}
