package web

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control"
)

// Of a rank's output a page is shown the last lines of each file first.
const (
	logTail     = 200
	mostLogTail = 10000
	mostLine    = 8 << 10
)

// logs shows what a rank has written, and with follow (as a stream does) what it writes, as Server-Sent Events: "line"
// with stream and text; "end" with the reason where there is no more.
func (s *Server) logs(w http.ResponseWriter, r *http.Request, c *client, number string) {
	rank, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		fail(w, http.StatusBadRequest, strconv.Quote(number)+" is no rank", "")
		return
	}
	query := r.URL.Query()
	previous, tail := query.Get("previous") == "1", logTail
	if n, err := strconv.Atoi(query.Get("tail")); err == nil && n >= 0 {
		tail = min(n, mostLogTail)
	}
	out := newSSE(w)
	l := &control.RankLogs{
		Ask: s.cfg.Served.Rank, RunID: s.picture.runID(), Rank: int(rank), Tail: tail, Prefix: []byte{},
		Stdout: &logLines{out: out, name: "stdout"},
		Stderr: &logLines{out: out, name: "stderr"},
	}
	logs := control.Logs{l}
	defer logs.Close()
	far, err := s.reach(r.Context(), int(rank))
	if err == nil && far == nil {
		err = l.Open(r.Context(), previous)
	}
	if far != nil {
		lines := &lineWriter{to: l.Stdout, flush: out.flush}
		errLines := &lineWriter{to: l.Stderr, flush: out.flush}
		wanted := control.LogsWanted{Ranks: []int{int(rank)}, Follow: !previous, Previous: previous, Tail: tail}
		err = far.Logs(r.Context(), wanted, control.Peer{UID: c.uid, Address: c.RemoteAddr().String()}, lines, errLines)
		lines.end()
		errLines.end()
	} else if memory, has := s.cfg.Served.(control.Rememberer); err != nil && has && !previous {
		if kept, askErr := s.cfg.Served.Rank(r.Context(), int(rank)); askErr == nil && len(kept.Logs) == 0 {
			follow := lastLines{memory: memory, rank: int(rank), out: out, stdout: l.Stdout, stderr: l.Stderr}
			err = follow.show(r.Context())
		}
	} else if err == nil {
		err = logs.Each(r.Context(), !previous, func() bool {
			out.flush()
			return !out.gone
		})
	}
	end := problem{Error: "that is all"}
	if err != nil {
		end = problem{Error: err.Error(), Hint: errhint.Of(err)}
	}
	if r.Context().Err() == nil {
		out.put("end", "", encoded(end))
		out.flush()
	}
}

// reach is the muster of the node that runs a rank; nil: it runs here, or nobody can be asked for it.
func (s *Server) reach(ctx context.Context, rank int) (*control.Far, error) {
	reacher, is := s.cfg.Served.(control.Reacher)
	if !is {
		return nil, nil
	}
	return reacher.Reach(ctx, []int{rank})
}

// lineWriter hands on what another node says line by line: there it comes in pieces of any length.
type lineWriter struct {
	to    io.Writer
	flush func()
	kept  []byte
}

// Write takes a piece.
func (l *lineWriter) Write(piece []byte) (int, error) {
	n := len(piece)
	for {
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			break
		}
		if _, err := l.to.Write(append(l.kept, piece[:end+1]...)); err != nil {
			return 0, err
		}
		l.kept, piece = l.kept[:0], piece[end+1:]
	}
	l.kept = append(l.kept, piece[:min(len(piece), max(0, mostLine-len(l.kept)))]...) // no more of a line is shown
	l.flush()
	return n, nil
}

// end hands on a line without an end.
func (l *lineWriter) end() {
	if len(l.kept) > 0 {
		_, _ = l.to.Write(l.kept)
	}
	l.flush()
}

// logLines makes an event of each line.
type logLines struct {
	out  *sse
	name string
}

// logLine is one of them.
type logLine struct {
	Stream string `json:"stream"`
	Text   string `json:"text"`
	Time   int64  `json:"time"` // when it was read, in milliseconds
}

// Write takes one line.
func (l *logLines) Write(line []byte) (int, error) {
	n := len(line)
	line = bytes.TrimRight(line, "\r\n")
	shown := line[bytes.LastIndexByte(line, '\r')+1:] // a progress bar writes over itself
	text := printable.Output(string(shown[:min(len(shown), mostLine)]))
	if data, err := json.Marshal(logLine{l.name, text, time.Now().UnixMilli()}); err == nil {
		l.out.put("line", "", data)
	}
	return n, nil
}

// linesEvery is how often it is looked for new lines of a worker that has no files.
const linesEvery = 500 * time.Millisecond

// lastLines follows a worker that has no files by its last lines: where many come at once some are left out.
type lastLines struct {
	memory         control.Rememberer
	rank, pid      int
	out            *sse
	stdout, stderr io.Writer
	seen           [2][]string
}

// show shows them until the client has gone or the job has no such worker any more.
func (l *lastLines) show(ctx context.Context) error {
	tick := time.NewTicker(linesEvery)
	defer tick.Stop()
	for quiet := 0; ; quiet++ {
		r, err := l.memory.Recent(l.rank)
		if err != nil {
			return err
		}
		if r.PID != l.pid {
			l.pid, l.seen = r.PID, [2][]string{}
		}
		for i, lines := range [][]string{r.Stdout, r.Stderr} {
			to := []io.Writer{l.stdout, l.stderr}[i]
			for _, line := range lines[overlap(l.seen[i], lines):] {
				_, _ = to.Write([]byte(line))
				quiet = 0
			}
			l.seen[i] = lines
		}
		if quiet > int(heartbeat/linesEvery) {
			l.out.write([]byte(": here\n\n")) // who is gone is noticed then
			quiet = 0
		}
		l.out.flush()
		if l.out.gone {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// overlap is how many lines at the beginning of now are the end of before.
func overlap(before, now []string) int {
	for n := min(len(before), len(now)); n > 0; n-- {
		if slices.Equal(before[len(before)-n:], now[:n]) {
			return n
		}
	}
	return 0
}
