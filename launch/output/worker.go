package output

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"muster/internal/durable"
	"muster/launch/job"
)

// Worker is the output of one worker: made before it starts, finished after it has ended.
type Worker struct {
	attempt *Attempt
	id      Identity
	prefix  [2][]byte // of stdout and stderr
	dir     string

	// child are the worker's stdout and stderr; owned are those that are ours to close.
	child [2]*os.File
	owned []*os.File
	// paths are the files of stdout and stderr, empty where there are none; heard is when something came by a pipe.
	paths [2]string
	heard atomic.Int64
	read  atomic.Int64 // bytes, by pipes
	// last finds the last lines of stdout and stderr; nil where nobody can know them.
	last [2]func(n int) []string

	runs      []func()
	sources   []source      // that end with the worker
	pipes     []*pipeSource // that end when nobody can write any more
	startOnce sync.Once
	pumped    chan struct{} // closed when everything was read and shown
	calledOff chan struct{}
	offOnce   sync.Once
}

// Worker opens a worker's files and pipes. With an error nothing stays open.
func (a *Attempt) Worker(id Identity) (*Worker, error) {
	w := &Worker{
		attempt: a, id: id, dir: a.workerDir(id.LocalRank),
		pumped: make(chan struct{}), calledOff: make(chan struct{}),
	}
	for i, stream := range []string{"stdout", "stderr"} {
		id.Stream = stream
		w.prefix[i] = []byte(prefixOf(&a.rules, id))
	}
	if err := w.open(); err != nil {
		w.closeChild()
		for _, s := range w.sources {
			s.close()
		}
		for _, s := range w.pipes {
			s.close()
		}
		err = fmt.Errorf("cannot make a place for the output of local rank %d: %w", id.LocalRank, err)
		if a.FilesDir() != a.dir.path { // --output-filename and its like have named another place
			return nil, err
		}
		return nil, a.dir.unplaced(err)
	}
	return w, nil
}

func (w *Worker) open() error {
	if w.dir != "" {
		if err := os.Mkdir(w.dir, 0o777); err != nil {
			return err
		}
	}
	a, rank := w.attempt, w.id.LocalRank
	if a.rules.RankDir != "" {
		return w.openRankFile()
	}
	tee, redirect := a.rules.Tee.For(rank), a.rules.Redirect.For(rank)
	toFile := job.NoStream
	if w.dir != "" {
		toFile = tee | redirect
	}
	// One pipe for both streams keeps their order, where they end at the same place anyway.
	if toFile == job.NoStream && a.out == a.err && !w.inherit(0) && (!a.rules.PrefixAll || bytes.Equal(w.prefix[0], w.prefix[1])) {
		return w.openPipe(0, 1)
	}
	for i, stream := range []job.Streams{job.Stdout, job.Stderr} {
		var err error
		switch {
		case toFile&stream != 0:
			err = w.openFile(i, tee&stream != 0 && a.shown(rank))
		case w.inherit(i):
			w.child[i] = a.inheritable[i].(*os.File)
		default:
			err = w.openPipe(i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inherit reports whether stream i (0 stdout, 1 stderr) is our own. A lone worker gets the terminal itself, so that
// debuggers, colours and progress bars work; its last lines are then known to the user alone. torchrun lets every
// worker inherit everything, and their lines are torn.
func (w *Worker) inherit(i int) bool {
	_, ok := w.attempt.inheritable[i].(*os.File)
	return ok && w.attempt.lone && w.attempt.shown(w.id.LocalRank) && w.attempt.console(i).terminal
}

func (l *Logs) console(i int) *console {
	return []*console{l.out, l.err}[i]
}

// openFile makes the worker's own file for stream i, and what follows it.
func (w *Worker) openFile(i int, follow bool) error {
	path, create := filepath.Join(w.dir, []string{stdoutFile, stderrFile}[i]), func(path string) (*os.File, error) {
		return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o666)
	}
	if rules := &w.attempt.rules; rules.RankFiles != "" {
		dir := rules.RankFilesOf(w.id.Rank)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		path, create = filepath.Join(dir, []string{"stdout", "stderr"}[i]), func(path string) (*os.File, error) {
			return durable.Create(path, os.O_TRUNC|os.O_APPEND, 0o666)
		}
	}
	// Appending, because what the worker starts may write there too, and rotators may empty it.
	f, err := create(path)
	if err != nil {
		return err
	}
	w.child[i], w.paths[i] = f, path
	w.owned = append(w.owned, f)
	w.last[i] = func(n int) []string { return fileLines(path, n) }
	if !follow {
		return nil
	}
	src, err := followFile(path, w.attempt.watcher())
	if err != nil {
		return err
	}
	w.sources = append(w.sources, src)
	p := &pump{
		src: src, out: w.attempt.console(i), localRank: w.id.LocalRank, alone: w.attempt.lone,
		prefixed: true, prefix: w.prefix[i], stamp: w.attempt.rules.Stamp, calledOff: w.calledOff,
	}
	w.runs = append(w.runs, p.run)
	to := w.attempt.keep[i]
	if to == nil {
		return nil
	}
	if src, err = followFile(path, w.attempt.watcher()); err != nil {
		return err
	}
	w.sources = append(w.sources, src)
	keeper := &lineKeeper{src: src, to: to, prefix: w.prefix[i]}
	w.runs = append(w.runs, keeper.run)
	return nil
}

// openRankFile makes the worker's file in LogRules.RankDir. A restart within the same second goes on with it.
func (w *Worker) openRankFile() error {
	dir, err := filepath.Abs(w.attempt.rules.RankDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	path := filepath.Join(dir, fmt.Sprintf("%s_rank%d.log", w.attempt.began.Format("20060102150405"), w.id.Rank))
	f, err := durable.Create(path, os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	w.owned = append(w.owned, f)
	for i := range w.child {
		w.child[i], w.paths[i] = f, path
		w.last[i] = func(n int) []string { return fileLines(path, n) }
	}
	return nil
}

// openPipe makes a pipe for the streams. Output that is not shown is read all the same: if the worker fails, its last
// lines are wanted.
func (w *Worker) openPipe(streams ...int) error {
	poll, err := w.attempt.pipePoller()
	if err != nil {
		return err
	}
	src, end, err := openPipe(poll)
	if err != nil {
		return err
	}
	w.owned = append(w.owned, end)
	w.pipes = append(w.pipes, src)
	p := &pump{
		src: src, tail: &tail{}, heard: &w.heard, read: &w.read, localRank: w.id.LocalRank, alone: w.attempt.lone,
		calledOff: w.calledOff,
	}
	if w.attempt.shown(w.id.LocalRank) {
		p.out = w.attempt.console(streams[0])
		p.prefixed, p.prefix, p.stamp = w.attempt.rules.PrefixAll, w.prefix[streams[0]], w.attempt.rules.Stamp
	}
	for _, i := range streams {
		w.child[i] = end
		w.last[i] = p.tail.lines
	}
	w.runs = append(w.runs, p.run)
	return nil
}

// Files returns what the worker gets as standard output and error. They are valid until started or finish.
func (w *Worker) Files() (stdout, stderr *os.File) { return w.child[0], w.child[1] }

// Paths are the files that the worker writes to, empty for a stream that goes elsewhere.
func (w *Worker) Paths() (stdout, stderr string) { return w.paths[0], w.paths[1] }

// LastOutput is when the worker wrote last, zero where nobody knows, or it has not yet.
func (w *Worker) LastOutput() time.Time {
	var last time.Time
	if heard := w.heard.Load(); heard > 0 {
		last = time.Unix(0, heard)
	}
	for _, path := range w.paths {
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Size() > 0 && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

// Bytes is how much the worker has written: what came by pipes, and what lies in its files.
func (w *Worker) Bytes() int64 {
	n := w.read.Load()
	for i, path := range w.paths {
		if path == "" || i == 1 && path == w.paths[0] {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
	}
	return n
}

// ErrorFile is the worker's TORCHELASTIC_ERROR_FILE, "" with --log-dir /dev/null.
func (w *Worker) ErrorFile() string {
	if w.dir == "" {
		return ""
	}
	return filepath.Join(w.dir, errorFileName)
}

func (w *Worker) closeChild() {
	for _, f := range w.owned {
		_ = f.Close() // the worker has its own; nothing was written here
	}
	w.owned = nil
}

// Started is called once the worker runs: our copies of its files are closed, and its output is read.
func (w *Worker) Started() {
	w.startOnce.Do(func() {
		w.closeChild()
		var all sync.WaitGroup
		for _, run := range w.runs {
			all.Go(run)
		}
		w.attempt.pumps.Go(func() {
			all.Wait()
			close(w.pumped)
		})
	})
}

// Finish is called after the worker has exited, or could not be started, and best after what it left behind is gone. It
// returns when all output was shown. Something that still holds the worker's pipe delays it by outputWait at the most;
// a console that takes nothing by stallWait, or until ctx ends. What is in no file is lost then.
func (w *Worker) Finish(ctx context.Context) {
	w.Started()
	for _, s := range w.sources {
		s.stop()
	}
	held := time.NewTimer(w.attempt.outputWait)
	defer held.Stop()
	select {
	case <-w.pumped:
		return
	case <-held.C:
	case <-ctx.Done():
	}
	for _, s := range w.pipes {
		s.stop()
	}
	if w.waitShown(ctx) {
		return
	}
	w.offOnce.Do(func() { close(w.calledOff) })
	select {
	case <-w.pumped:
	case <-time.After(time.Second): // see Close
	}
}

// CatchUp waits until LastLines are those of all that the worker, which has exited, had written; what it has started
// may go on writing. Until ctx ends: a pipe is not read while a console takes nothing.
func (w *Worker) CatchUp(ctx context.Context) {
	for _, s := range w.pipes { // files are read back from where the worker wrote
		s.caughtUp(ctx.Done())
	}
}

// waitShown waits until all was shown, and returns false when that is not going to be.
func (w *Worker) waitShown(ctx context.Context) bool {
	stall := time.NewTicker(w.attempt.stallWait)
	defer stall.Stop()
	for taken := w.attempt.taken(); ; {
		select {
		case <-w.pumped:
			return true
		case <-ctx.Done():
			return false
		case <-stall.C:
		}
		now := w.attempt.taken()
		if now == taken {
			w.attempt.log.Warn().Int("local_rank", w.id.LocalRank).Msg("the console takes no output, the rest is not shown")
			return false
		}
		taken = now
	}
}

// LastLines returns the last n lines of the worker's standard error, or of its standard output when nothing can be seen
// on the other; nil where they are not known. Call it after finish or CatchUp.
func (w *Worker) LastLines(n int) []string {
	for _, i := range []int{1, 0} {
		if w.last[i] == nil {
			continue
		}
		if lines := w.last[i](n); !blank(lines) {
			return lines
		}
	}
	return nil
}

// Recent are the last lines of both streams, no more than n of each; none of one of which nothing is kept.
func (w *Worker) Recent(n int) (stdout, stderr []string) {
	var lines [2][]string
	for i, of := range w.last {
		if of != nil {
			lines[i] = of(n)
		}
	}
	return lines[0], lines[1]
}
