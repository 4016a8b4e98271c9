package history

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/report"
)

// dirName is the directory of all histories, beside the run directories; in a run directory it is a link to that of its
// job, or the directory itself where nothing is to be kept.
const dirName = "history"

// The files of a history.
const (
	eventsName = "events.jsonl"
	olderName  = "events.older.jsonl" // what was eventsName before it had mostEvents bytes
	recordName = "run.json"
)

// mostEvents is how many bytes of events a file has: the newest of two files are kept.
const mostEvents = 4 << 20

const (
	openAfter   = 150 * time.Millisecond // by when the first workers of most jobs have started
	openBy      = time.Second            // also where none has: nodes may wait for each other
	closeTime   = 2 * time.Second        // for what is left to be written when the job has ended
	tellTime    = time.Second            // for a FIFO of --events to have room for another event
	recordEvery = time.Second            // how often it is written how the job stands
	aliveEvery  = 3 * time.Second        // how often the time of the record says that the muster lives
	sweepAfter  = 2 * time.Second        // after a job has begun, what is kept of others is looked at
	mostRanks   = 512                    // of which that is written while the job runs
	lockTime    = 200 * time.Millisecond // for somebody's look at a history that begins
	lockPause   = 5 * time.Millisecond
)

// Config is what is kept of a job, and where.
type Config struct {
	// Muster is who tells it: it is kept beside its run directory.
	Muster control.Muster
	// Keep is for how long after the end; 0: not beyond it.
	Keep time.Duration
	// File takes the events, too; nil: none does. The Keeper closes it.
	File *os.File
	// Pass takes them as lines of JSON for the file of whoever has started this muster; nil: nobody does.
	Pass func(line []byte)
	// Events are what happens, Status how the job stands.
	Events *control.Events
	Status func() report.Status
	Log    zerolog.Logger
}

// Record is what is kept beside the events.
type Record struct {
	Version int            `json:"version"`
	Muster  control.Muster `json:"muster"`
	// Began is when the muster began; Ended is nil where it lives, or has died without a word.
	Began time.Time  `json:"began"`
	Ended *time.Time `json:"ended"`
	// KeepSeconds is how long after that this is kept.
	KeepSeconds float64       `json:"keepSeconds"`
	Status      report.Status `json:"status"`
}

// Keeper writes a history.
type Keeper struct {
	cfg   Config
	began time.Time
	leave context.CancelFunc
	done  chan struct{}
	kept  chan struct{} // closed when all is written

	// Of the goroutine that writes.
	root   *os.Root
	lock   *os.File
	events *os.File
	size   int64
	// written is how much went to all files of events.
	written int64
	seq     uint64
	// others is where the histories of earlier jobs are, until it has been looked which of them are forgotten.
	others string

	mu   sync.Mutex // held while something is written to File
	full bool       // File takes no more
}

// OpenFile opens the file of --events. Errors carry status 2.
func OpenFile(path string) (*os.File, error) {
	// A FIFO that nobody reads is refused, and a full one ends what is told there.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, errhint.With(errhint.Usagef("cannot append events to %q: %w", path, err),
			"give a file in a directory that exists and is writable")
	}
	return f, nil
}

// Open begins to keep the history of a job. Its files are made when openAfter has passed and workers have started, by
// openBy in any case, or when the job has ended: to make them takes longer than to start a worker. What has happened by
// then is in Events.
func Open(cfg Config) *Keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &Keeper{cfg: cfg, began: time.Now(), leave: cancel, done: make(chan struct{}), kept: make(chan struct{})}
	go func() {
		defer close(k.done)
		k.run(ctx)
	}()
	return k
}

// Close writes what is left, and how the job has ended. It waits for no disk longer than closeTime.
func (k *Keeper) Close() error {
	if k == nil {
		return nil
	}
	k.leave()
	select {
	case <-k.done:
		return nil
	case <-time.After(closeTime):
		select {
		case <-k.kept: // it forgets others, which a later job may do
			return nil
		default:
		}
		return fmt.Errorf("the events of the job could not be written within %v", closeTime)
	}
}

func (k *Keeper) run(ctx context.Context) {
	if k.cfg.File == nil && k.cfg.Pass == nil { // else somebody may wait for what goes there
		k.letStart(ctx)
	}
	if err := k.open(); err != nil {
		k.cfg.Log.Debug().Err(err).Msg("what happens to the job is not kept")
	}
	defer k.closeFiles()
	k.writeRest() // before how the job stands now: whoever reads that it runs finds who has started
	if ctx.Err() == nil {
		k.record(false)
	}
	recorded, due := time.Now(), false
	alive := recorded
	for ctx.Err() == nil {
		until := alive.Add(aliveEvery)
		switch {
		case due:
			until = recorded.Add(recordEvery)
		case k.others != "":
			until = k.began.Add(sweepAfter)
		}
		wait, cancel := context.WithDeadline(ctx, until)
		found := k.cfg.Events.After(wait, k.seq)
		cancel()
		k.write(found)
		if time.Since(k.began) >= sweepAfter {
			k.sweep()
		}
		if due = due || len(found) > 0; due && time.Since(recorded) >= recordEvery {
			k.record(false)
			recorded, due = time.Now(), false
			alive = recorded
		}
		if time.Since(alive) >= aliveEvery {
			k.lives()
			alive = time.Now()
		}
	}
	k.writeRest()
	k.record(true)
	close(k.kept)
	k.sweep()
}

// letStart waits until workers have had the time to start.
func (k *Keeper) letStart(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, k.began.Add(openBy))
	defer cancel()
	timer := time.NewTimer(openAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	started := func(e control.Event) bool { // of the nodes' workers a launcher hears only that they run
		return e.Type == control.WorkerStarted || e.Phase == report.PhaseRunning
	}
	for seq := uint64(0); ctx.Err() == nil; {
		found := k.cfg.Events.After(ctx, seq)
		if slices.ContainsFunc(found, started) {
			return
		}
		if len(found) > 0 {
			seq = found[len(found)-1].Seq
		}
	}
}

// sweep forgets histories of earlier jobs, once: all of them are read for that, which would keep a start from the processors.
func (k *Keeper) sweep() {
	if k.others != "" {
		sweep(k.others, k.written >= muchWritten)
		k.others = ""
	}
}

// open makes the directory.
func (k *Keeper) open() error {
	if k.cfg.Muster.RunDir == "" {
		return errors.New("there is no run directory")
	}
	path := filepath.Join(k.cfg.Muster.RunDir, dirName)
	if k.cfg.Keep > 0 {
		all := filepath.Join(filepath.Dir(k.cfg.Muster.RunDir), dirName)
		if err := os.Mkdir(all, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		k.others = all
		link := path
		path = filepath.Join(all, filepath.Base(k.cfg.Muster.RunDir)+"."+strings.ToLower(rand.Text()[:8]))
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		if err := os.Symlink(path, link); err != nil {
			return err
		}
	} else if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	k.lock = locked(path, lockTime)
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	k.root = root
	k.events, err = root.OpenFile(eventsName, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	return err
}

// locked locks a directory for as long as the returned file is open; nil where it cannot be. Who looks at it at this
// moment holds the lock, too, for as long as it takes to read a record: that is waited for.
func locked(path string, patience time.Duration) *os.File {
	f, err := durable.OpenOwn(path)
	if err != nil {
		return nil
	}
	for until := time.Now().Add(patience); ; time.Sleep(lockPause) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(until) {
			_ = f.Close()
			return nil
		}
	}
}

// writeRest writes what has happened so far.
func (k *Keeper) writeRest() {
	for found := k.cfg.Events.Behind(k.seq); len(found) > 0; found = k.cfg.Events.Behind(k.seq) {
		k.write(found)
	}
}

// write appends events to both files.
func (k *Keeper) write(found []control.Event) {
	var text []byte // that is not in the history yet
	for i := range found {
		line, err := json.Marshal(&found[i])
		if err != nil { // texts and numbers
			continue
		}
		k.seq = found[i].Seq
		line = append(line, '\n')
		if k.cfg.Pass != nil {
			k.cfg.Pass(line)
		}
		k.tell(line)
		if k.size+int64(len(text)+len(line)) > mostEvents {
			k.keep(text)
			k.turn()
			text = nil
		}
		text = append(text, line...)
	}
	k.keep(text)
}

// Tell appends an event of another muster of the job to File. It has a number there, and is not kept here.
func (k *Keeper) Tell(event control.Event) {
	if k == nil {
		return
	}
	if line, err := json.Marshal(&event); err == nil { // texts and numbers
		k.tell(append(line, '\n'))
	}
}

// tell appends an event to the file that a user has named.
func (k *Keeper) tell(line []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cfg.File == nil || k.full {
		return
	}
	// Go waits for room in a FIFO, though it is not blocking; a regular file knows no deadline, and needs none.
	_ = k.cfg.File.SetWriteDeadline(time.Now().Add(tellTime))
	if _, err := k.cfg.File.Write(line); err != nil {
		k.full = true
		k.cfg.Log.Warn().Err(err).Str("path", k.cfg.File.Name()).Msg("no more events are appended to the file")
	}
}

// keep appends events to the history.
func (k *Keeper) keep(text []byte) {
	if k.events == nil || len(text) == 0 {
		return
	}
	n, err := k.events.Write(text)
	k.written += int64(n)
	if k.size += int64(n); err != nil {
		k.giveUp(err)
	}
}

// turn makes the file of events the older one, and begins another.
func (k *Keeper) turn() {
	if k.events == nil {
		return
	}
	_ = k.events.Close() // what was written is what counts
	k.size = 0
	err := k.root.Rename(eventsName, olderName)
	if err == nil {
		k.events, err = k.root.OpenFile(eventsName, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	}
	if err != nil {
		k.giveUp(err)
	}
}

// giveUp ends the history where it cannot be written.
func (k *Keeper) giveUp(err error) {
	_ = k.events.Close() // it may be closed already
	k.events = nil
	k.cfg.Log.Debug().Err(err).Msg("what happens to the job is not kept any more")
}

// record writes how the job stands.
func (k *Keeper) record(ended bool) {
	if k.root == nil {
		return
	}
	r := Record{Version: 1, Muster: k.cfg.Muster, Began: k.began.UTC(), KeepSeconds: k.cfg.Keep.Seconds(), Status: k.cfg.Status()}
	if ended {
		now := time.Now().UTC()
		r.Ended = &now
	} else if len(r.Status.Ranks) > mostRanks {
		r.Status.Ranks = r.Status.Ranks[:mostRanks]
	}
	text, err := json.Marshal(&r)
	if err == nil { // the events are not on the disk at once either
		err = durable.SwapIn(k.root, recordName, text, 0o600)
	}
	if err != nil {
		k.cfg.Log.Debug().Err(err).Msg("how the job stands is not kept")
	}
}

// lives gives the record the present time, without writing it: a muster that is killed was heard of until then.
func (k *Keeper) lives() {
	if k.root == nil {
		return
	}
	now := time.Now()
	if err := k.root.Chtimes(recordName, now, now); err != nil {
		k.cfg.Log.Debug().Err(err).Msg("it is not kept that the muster lives")
	}
}

func (k *Keeper) closeFiles() {
	k.mu.Lock()
	k.full = true
	k.mu.Unlock()
	for _, f := range []*os.File{k.events, k.cfg.File, k.lock} {
		if f != nil {
			_ = f.Close() // what was written is what counts
		}
	}
	if k.root != nil {
		_ = k.root.Close()
	}
}
