package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/report"
)

// worldStatus keeps the launcher's status file: that of the whole world. The nodes of a large world say much at once,
// so that what came while the file was being written is written together.
type worldStatus struct {
	path string // empty: no file
	log  zerolog.Logger

	mu     sync.Mutex
	status *report.WorldStatus
	events control.Events
	rounds report.Rounds
	closed bool

	steady  map[int][]byte // what each node has said, without what changes all the time
	news    chan struct{}  // something is to be written; has room for one
	written chan struct{}  // closed when nobody writes any more
}

// checkStatusFile refuses a status file that could not be written; empty is none.
func checkStatusFile(path string) error {
	if path == "" {
		return nil
	}
	target, err := durable.Target(path)
	if err == nil {
		if info, statErr := os.Lstat(target); statErr == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is no regular file", path)
		} else {
			err = unix.Access(filepath.Dir(target), unix.W_OK)
		}
	}
	if err == nil {
		return nil
	}
	return errhint.With(errhint.Usagef("cannot write the status file %q: %w", path, err),
		"give a regular file in a directory that exists and is writable")
}

// keepStatus begins to keep the status of a job on the named nodes.
func keepStatus(names []string, path string, log zerolog.Logger) *worldStatus {
	w := &worldStatus{
		path: path, log: log, status: report.NewWorldStatus(names), news: make(chan struct{}, 1),
		written: make(chan struct{}), steady: map[int][]byte{},
	}
	go func() {
		defer close(w.written)
		for range w.news {
			w.write()
		}
	}()
	return w
}

// now is how the world stands; false while no node has said anything.
func (w *worldStatus) now(context.Context) (report.Status, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.Status()
}

// take takes what a node has said of itself, as a status file has it. After close nothing is taken any more.
func (w *worldStatus) take(node int, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if err := w.status.Take(node, data); err != nil {
		w.log.Warn().Err(err).Msg("the status file may lack something")
		return
	}
	if d, ok := w.status.Status(); ok {
		w.events.Moved("", d)
		w.rounds.Take(&d, time.Now())
	}
	w.changedLocked(node)
}

// lost takes in that the muster of a node has gone without a word.
func (w *worldStatus) lost(node int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.status.Lose(node)
		w.changedLocked(node)
	}
}

// changedLocked has the file written, unless what is new of a node is what changes all the time.
func (w *worldStatus) changedLocked(node int) {
	steady := w.status.Steady(node)
	if bytes.Equal(steady, w.steady[node]) {
		return // no file is written with each step
	}
	w.steady[node] = steady
	select {
	case w.news <- struct{}{}:
	default: // it will be written with what came before
	}
}

// write writes the file as things stand.
func (w *worldStatus) write() {
	if w.path == "" {
		return
	}
	w.mu.Lock()
	data := w.status.Encode()
	w.mu.Unlock()
	if data == nil {
		return
	}
	if err := durable.Replace(w.path, data, 0o644); err != nil {
		w.log.Warn().Err(err).Msg("the status file could not be written")
	}
}

// summarize writes the summary of a job that has ended.
func (w *worldStatus) summarize(path string) {
	w.mu.Lock()
	d, said := w.status.Status()
	sum := report.NewSummary(d, w.rounds)
	w.mu.Unlock()
	err := errors.New("no node has said how it stands")
	if said {
		err = sum.WriteTo(path)
	}
	if err != nil {
		w.log.Warn().Err(err).Msg("there is no summary of the job")
	}
}

// close waits until all that was taken is written.
func (w *worldStatus) close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.news)
	}
	w.mu.Unlock()
	<-w.written
}

// tellEnd writes how the job ended into the status file and, for Kubernetes, into the termination log. o.Status is that
// with which the launcher ends.
func (l *launcher) tellEnd(o Outcome) {
	l.told.close()
	var lost []int
	for i, name := range l.nodeNames() {
		if slices.Contains(o.Unclean, name) {
			lost = append(lost, i)
		}
	}
	message := ""
	if o.Errors != nil {
		message = o.Errors.Error()
	}
	status := o.Status
	if status != errhint.OK && l.job.CompatExit {
		status = 1
	}
	l.told.status.End(status, o.Decided, lost, message)
	l.told.write()
	if l.summary != "" {
		l.told.summarize(l.summary)
	}
	path := l.config.TerminationLog
	if data := l.told.status.Encode(); path != "" && data != nil {
		if err := report.TellTermination(path, data); err != nil {
			l.config.Log.Warn().Err(err).Str("path", path).Msg("the reason could not be written")
		}
	}
}
