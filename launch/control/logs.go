package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// Logs are the log files of several workers.
type Logs []*RankLogs

// Close closes the files.
func (logs Logs) Close() {
	for _, l := range logs {
		l.close()
	}
}

// Show shows what there is, with follow also what comes until the job has ended.
func (logs Logs) Show(ctx context.Context, follow bool) error {
	return logs.Each(ctx, follow, func() bool { return true })
}

// Each is Show that calls shown each time it has looked for something, and ends where that returns false.
func (logs Logs) Each(ctx context.Context, follow bool, shown func() bool) error {
	for _, l := range logs {
		l.copy()
	}
	if follow && shown() {
		if err := logs.follow(ctx, shown); err != nil {
			return err
		}
	}
	for _, l := range logs {
		l.flush()
	}
	return nil
}

// logsLook is how often files are looked at that are followed, logsAsk how often their job is asked for new ones.
const (
	logsLook = 100 * time.Millisecond
	logsAsk  = time.Second
)

// follow shows what comes until the job has ended.
func (logs Logs) follow(ctx context.Context, shown func() bool) error {
	asked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(logsLook):
		}
		ended := false
		if time.Since(asked) >= logsAsk {
			for _, l := range logs {
				err := l.renew(ctx)
				ended = ended || errhint.CodeOf(err) == errhint.Usage && err != nil
			}
			asked = time.Now()
		}
		for _, l := range logs {
			l.copy()
		}
		if ended || !shown() {
			return nil
		}
	}
}

// RankLogs are the log files of one worker as they are shown. Fill the exported fields, then call Open once.
type RankLogs struct {
	// Ask asks the muster that runs the worker with Rank where its files are.
	Ask  func(ctx context.Context, rank int) (Rank, error)
	Rank int
	// RunID names the job.
	RunID string
	// Tail is with how many last lines of each file it begins, negative for all.
	Tail int
	// Prefix stands in front of each line; nil: bytes are shown as they come.
	Prefix []byte
	// Stdout and Stderr are where the two streams are shown.
	Stdout, Stderr io.Writer

	began time.Time // of the process whose files they are
	files []*logFile
	// gone says that nobody takes what is shown.
	gone bool
}

// logFile is one of them.
type logFile struct {
	f      *os.File
	stderr bool
	rest   []byte // a line that has not ended
}

// ask asks where the worker's files are.
func (l *RankLogs) ask(ctx context.Context) ([]LogFiles, error) {
	r, err := l.Ask(ctx, l.Rank)
	return r.Logs, err
}

// Open opens the newest files, or those before.
func (l *RankLogs) Open(ctx context.Context, previous bool) error {
	list, err := l.ask(ctx)
	if err != nil {
		return err
	}
	rank := l.Rank
	switch {
	case len(list) == 0:
		return errhint.With(errhint.Usagef("job %s keeps no log files of rank %d: its output goes to muster's own",
			l.RunID, rank),
			"start jobs with --tee 3, so that their output is kept, too")
	case previous && len(list) < 2:
		return errhint.Usagef("rank %d of job %s has not been started again: there are no files of a process before", rank,
			l.RunID)
	case previous:
		return l.use(list[1])
	}
	return l.use(list[0])
}

// use opens the files of one process.
func (l *RankLogs) use(files LogFiles) error {
	l.began, l.files = files.Began, nil
	for i, path := range []string{files.Stdout, files.Stderr} {
		if path == "" || i == 1 && path == files.Stdout {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // the worker may have put a FIFO there
		if err == nil {
			err = fromTail(f, l.Tail)
		}
		if err != nil {
			return errhint.Code(fmt.Errorf("cannot read the output of rank %d: %w", l.Rank, err), errhint.Usage)
		}
		l.files = append(l.files, &logFile{f: f, stderr: i == 1})
	}
	return nil
}

// renew goes on with the files of the process that runs now, where that is another one.
func (l *RankLogs) renew(ctx context.Context) error {
	list, err := l.ask(ctx)
	if err != nil || len(list) == 0 || list[0].Began.Equal(l.began) {
		return err
	}
	l.copy()
	l.flush()
	l.close()
	l.Tail = -1
	return l.use(list[0])
}

func (l *RankLogs) close() {
	for _, f := range l.files {
		_ = f.f.Close() // only read
	}
}

// tailBlock is how much of a file is looked at at once for its last lines.
const tailBlock = 64 << 10

// fromTail has a file read from its last n lines on, from its beginning for a negative n.
func fromTail(f *os.File, n int) error {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New(f.Name() + " is no regular file")
	}
	if err != nil || n < 0 {
		return err
	}
	at, lines := info.Size(), 0
	block := make([]byte, tailBlock)
	for at > 0 && n > 0 {
		size := min(at, tailBlock)
		at -= size
		if _, err := f.ReadAt(block[:size], at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for i := size - 1; i >= 0; i-- {
			if block[i] != '\n' || at+i == info.Size()-1 { // the last line may have its end
				continue
			}
			if lines++; lines == n {
				at += i + 1
				_, err := f.Seek(at, io.SeekStart)
				return err
			}
		}
	}
	_, err = f.Seek(at, io.SeekStart)
	return err
}

// copy shows what has come. Lines with a prefix are shown when they have ended, or are long.
func (l *RankLogs) copy() {
	buf := make([]byte, tailBlock)
	for _, f := range l.files {
		to := l.Stdout
		if f.stderr {
			to = l.Stderr
		}
		for !l.gone {
			n, err := f.f.Read(buf)
			if l.Prefix == nil {
				_, failed := to.Write(buf[:n])
				l.gone = l.gone || failed != nil
			} else {
				f.rest = append(f.rest, buf[:n]...)
				for {
					end := bytes.IndexByte(f.rest, '\n')
					if end < 0 && len(f.rest) < tailBlock {
						break
					}
					end = cmp.Or(end+1, len(f.rest))
					l.line(to, f.rest[:end])
					f.rest = f.rest[end:]
				}
			}
			if n == 0 || err != nil {
				break
			}
		}
	}
}

// flush shows lines that have no end.
func (l *RankLogs) flush() {
	for _, f := range l.files {
		to := l.Stdout
		if f.stderr {
			to = l.Stderr
		}
		if len(f.rest) > 0 {
			l.line(to, f.rest)
			f.rest = nil
		}
	}
}

// line shows a line behind its prefix.
func (l *RankLogs) line(to io.Writer, line []byte) {
	line = append(bytes.Clone(l.Prefix), bytes.TrimSuffix(line, []byte("\n"))...)
	_, err := to.Write(append(line, '\n')) // nobody could be told
	l.gone = l.gone || err != nil
}
