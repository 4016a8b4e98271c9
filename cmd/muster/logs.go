package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/launch/control"
)

// logsOptions are those of muster logs.
type logsOptions struct {
	follow, previous bool
	ranks            string
	tail             int
}

// newLogsCmd is "muster logs".
func newLogsCmd(a *app) *cobra.Command {
	o := logsOptions{tail: -1}
	cmd := &cobra.Command{
		Use:   "logs [-f] [--rank LIST] [--previous] [--tail N] [JOB]",
		Short: "Show what the workers of a job have written",
		Long: `Show what the workers of a job on this machine have written to their log files: standard
output goes to standard output and standard error to standard error, with the rank in front
of each line where there are several. A job has such files where --redirects or --tee (or
--output-filename, --output-dir) were given.

` + jobHelp,
		Example:     "  muster logs -f --rank 3,7\n  muster logs --rank 0 --previous --tail 50",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tail") && o.tail < 0 {
				return errhint.Usagef("--tail %d: give a number from 0", o.tail)
			}
			if o.follow && o.previous {
				return errhint.Usagef("cannot use -f and --previous together: what has ended writes nothing more")
			}
			return a.showLogs(cmd.Context(), args, o)
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on, until the job ends")
	cmd.Flags().BoolVar(&o.previous, "previous", false, "of the process before the one that runs, or ran last")
	cmd.Flags().StringVar(&o.ranks, "rank", "", "of these ranks, such as 3 or 0,4-7; all that are here unless given")
	cmd.Flags().IntVar(&o.tail, "tail", -1, "begin with the last N lines of each file; all unless given")
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// showLogs is muster logs.
func (a *app) showLogs(ctx context.Context, args []string, o logsOptions) error {
	job, parts, err := a.pickJob(ctx, args)
	if err != nil {
		return err
	}
	here := ranksOf(parts)
	wanted := here
	if o.ranks != "" {
		numbers, err := parseRanks(o.ranks)
		if err != nil {
			return err
		}
		wanted = nil
		for _, n := range numbers {
			i := slices.IndexFunc(here, func(r hereRank) bool { return r.Rank.Rank == n })
			if i < 0 {
				return a.noRank(ctx, job, n, here)
			}
			wanted = append(wanted, here[i])
		}
	}
	if len(wanted) == 0 {
		return a.noRank(ctx, job, 0, nil)
	}
	var logs []*rankLogs
	for _, r := range wanted {
		l := &rankLogs{rank: r, follow: o.follow, tail: o.tail}
		if len(wanted) > 1 {
			l.prefix = fmt.Appendf(nil, "[rank %d] ", r.Rank.Rank)
		}
		if err := l.open(ctx, o.previous); err != nil {
			return err
		}
		defer l.close()
		logs = append(logs, l)
	}
	for _, l := range logs {
		l.copy(a)
	}
	if !o.follow {
		for _, l := range logs {
			l.flush(a)
		}
		return nil
	}
	return a.followLogs(ctx, logs)
}

// logsLook is how often files are looked at that are followed, logsAsk how often their job is asked for new ones.
const (
	logsLook = 100 * time.Millisecond
	logsAsk  = time.Second
)

// followLogs shows what comes until the job has ended.
func (a *app) followLogs(ctx context.Context, logs []*rankLogs) error {
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
				err := l.renew(ctx, a)
				ended = ended || errhint.CodeOf(err) == errhint.Usage && err != nil
			}
			asked = time.Now()
		}
		for _, l := range logs {
			l.copy(a)
		}
		if ended {
			for _, l := range logs {
				l.flush(a)
			}
			return nil
		}
	}
}

// rankLogs are the files of one worker as they are shown.
type rankLogs struct {
	rank   hereRank
	prefix []byte
	follow bool
	tail   int
	began  time.Time // of the process whose files they are
	files  []*logFile
}

// logFile is one of them.
type logFile struct {
	f      *os.File
	stderr bool
	rest   []byte // a line that has not ended
}

// ask asks where the worker's files are.
func (l *rankLogs) ask(ctx context.Context) ([]control.LogFiles, error) {
	r, err := l.rank.by.Client().Rank(ctx, l.rank.Rank.Rank)
	return r.Logs, err
}

// open opens the newest files, or those before.
func (l *rankLogs) open(ctx context.Context, previous bool) error {
	list, err := l.ask(ctx)
	if err != nil {
		return err
	}
	rank := l.rank.Rank.Rank
	switch {
	case len(list) == 0:
		return errhint.With(errhint.Usagef("job %s keeps no log files of rank %d: its output goes to muster's own",
			l.rank.by.RunID(), rank),
			"start jobs with --tee 3, so that their output is kept, too")
	case previous && len(list) < 2:
		return errhint.Usagef("rank %d of job %s has not been started again: there are no files of a process before", rank,
			l.rank.by.RunID())
	case previous:
		return l.use(list[1])
	}
	return l.use(list[0])
}

// use opens the files of one process.
func (l *rankLogs) use(files control.LogFiles) error {
	l.began, l.files = files.Began, nil
	for i, path := range []string{files.Stdout, files.Stderr} {
		if path == "" || i == 1 && path == files.Stdout {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // the worker may have put a FIFO there
		if err == nil {
			err = fromTail(f, l.tail)
		}
		if err != nil {
			return errhint.Code(fmt.Errorf("cannot read the output of rank %d: %w", l.rank.Rank.Rank, err), errhint.Usage)
		}
		l.files = append(l.files, &logFile{f: f, stderr: i == 1})
	}
	return nil
}

// renew goes on with the files of the process that runs now, where that is another one.
func (l *rankLogs) renew(ctx context.Context, a *app) error {
	list, err := l.ask(ctx)
	if err != nil || len(list) == 0 || list[0].Began.Equal(l.began) {
		return err
	}
	l.copy(a)
	l.flush(a)
	l.close()
	l.tail = -1
	return l.use(list[0])
}

func (l *rankLogs) close() {
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
func (l *rankLogs) copy(a *app) {
	buf := make([]byte, tailBlock)
	for _, f := range l.files {
		to := io.Writer(a.stdout)
		if f.stderr {
			to = a.stderr
		}
		for {
			n, err := f.f.Read(buf)
			if l.prefix == nil {
				_, _ = to.Write(buf[:n])
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
func (l *rankLogs) flush(a *app) {
	for _, f := range l.files {
		to := io.Writer(a.stdout)
		if f.stderr {
			to = a.stderr
		}
		if len(f.rest) > 0 {
			l.line(to, f.rest)
			f.rest = nil
		}
	}
}

// line shows a line behind its prefix.
func (l *rankLogs) line(to io.Writer, line []byte) {
	line = append(bytes.Clone(l.prefix), bytes.TrimSuffix(line, []byte("\n"))...)
	_, _ = to.Write(append(line, '\n')) // nobody could be told
}
