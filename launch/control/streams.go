package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/control/relay"
	"muster/launch/job"
)

// What is asked for as a stream.
const (
	pathLogs = "/api/v1/logs"
	pathExec = "/api/v1/exec"
)

// streamProtocol is what the connection of such a request becomes.
const streamProtocol = "muster-stream"

// The bounds of streams.
const (
	mostStreams = 32        // at once
	mostAsked   = 256 << 10 // bytes of a request: a command line may be long
	mostOfNode  = 4096      // ranks of one request
	endTime     = 3 * time.Second
	execGrace   = time.Second // of a command whose job or client is gone
)

// LogsWanted asks for what workers of one node have written.
type LogsWanted struct {
	Ranks    []int `json:"ranks"`
	Follow   bool  `json:"follow,omitempty"`
	Previous bool  `json:"previous,omitempty"`
	// Tail is with how many last lines of each file it begins, negative for all.
	Tail int `json:"tail"`
	// Prefix has the rank in front of each line.
	Prefix bool `json:"prefix,omitempty"`
}

// ExecWanted asks for a command in the place of a rank.
type ExecWanted struct {
	Rank    int         `json:"rank"`
	Command job.Strings `json:"command"`
	// Attempt takes the place of TORCHELASTIC_RESTART_COUNT; nil: as the worker has it.
	Attempt *int `json:"attempt,omitempty"`
	// Here says that who asks becomes the command: it asks for what it needs for that, and there is no stream.
	Here bool `json:"here,omitempty"`
	// Terminal is that of who asks: the command has one, too. Nil: it has pipes.
	Terminal *Terminal `json:"terminal,omitempty"`
}

// Terminal is the terminal of who asks for a command.
type Terminal struct {
	// Type is what TERM calls it, empty where it has no name.
	Type string `json:"type,omitempty"`
	proc.TerminalSize
	// ErrorsApart says that standard error is another file: of the command it is a pipe, too.
	ErrorsApart bool `json:"errorsApart,omitempty"`
}

// mostType is how many bytes the name of a terminal has at the most.
const mostType = 64

// Named reports whether its type can be a terminal's name.
func (t *Terminal) Named() bool {
	return t.Type == printable.Line(t.Type, mostType) && !strings.Contains(t.Type, " ")
}

// Executor is a Served that can run commands in the places of its workers.
type Executor interface {
	// Exec starts a command, which has the files for its first three descriptors. Who calls it ends the command.
	Exec(ctx context.Context, by Peer, w ExecWanted, files [3]*os.File) (Command, error)
	// Entered is told that somebody who was told of a rank becomes a command in its place.
	Entered(by Peer, w ExecWanted)
	// LogsRead is told that somebody on another node reads what workers here write.
	LogsRead(by Peer, ranks []int)
}

// Command is a command in the place of a rank.
type Command interface {
	// Done is closed when it has ended; Exit says how.
	Done() <-chan struct{}
	Exit() proc.Exit
	// SignalGroup sends a signal to its process group.
	SignalGroup(sig syscall.Signal) error
	// End ends it, and what it has left behind, also where it has ended itself.
	End(grace time.Duration) error
}

// streamEnd is the last frame of a stream.
type streamEnd struct {
	failure
	// Exit is the exit status of a command.
	Exit int `json:"exit,omitempty"`
}

// isStream reports whether a request asks for a stream.
func isStream(r *http.Request) bool {
	return r.Method == http.MethodPost && (r.URL.Path == pathLogs || r.URL.Path == pathExec)
}

// handleLocal answers processes of this machine.
func (s *Server) handleLocal(w http.ResponseWriter, r *http.Request) {
	if isStream(r) {
		s.stream(w, r)
		return
	}
	s.handle(w, r)
}

// work is what a stream is to be, once its connection is there.
type work struct {
	run func(ctx context.Context, st *relay.Stream) streamEnd
	// onward leads to the node that does it; with it there is no run.
	onward net.Conn
	read   *bufio.Reader
	close  func()
}

// stream answers a request with a stream, or with an error before it.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		err := fmt.Errorf("muster passes on %d streams of logs and commands at once, and no more", mostStreams)
		s.refuse(w, errhint.Code(errhint.With(err, "end one of them, or ask for fewer ranks"), errhint.TryAgain))
		return
	}
	if s.closing.Err() != nil {
		s.refuse(w, errhint.Code(errors.New("the job has just ended"), errhint.TryAgain))
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context())) // of a connection that is taken over nobody ends that one
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)() //nolint:contextcheck // the end of the server ends the stream, too
	answer, do, err := s.begin(ctx, w, r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	if do == nil {
		say(w, http.StatusOK, answer)
		return
	}
	defer do.close()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.refuse(w, err)
		return
	}
	st := relay.NewStream(conn, buffered.Reader)
	defer func() { _ = st.Close() }()
	defer context.AfterFunc(ctx, func() {
		st.Hush() // what is being said may still be taken
		_ = conn.SetWriteDeadline(time.Now().Add(execGrace))
	})()
	const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + streamProtocol + "\r\n\r\n"
	if _, err := io.WriteString(conn, upgraded); err != nil {
		return
	}
	if do.onward != nil {
		passOn(ctx, conn, buffered.Reader, do)
		return
	}
	st.Live()
	end := do.run(ctx, st)
	text, err := json.Marshal(end)
	if err != nil || st.Send(relay.End, text) != nil {
		return // who does not take it is gone
	}
	// What is on its way here is taken until the other end has closed: a connection that is closed with something unread
	// loses what it has said.
	_ = conn.SetReadDeadline(time.Now().Add(execGrace))
	_, _ = io.Copy(io.Discard, buffered.Reader)
}

// begin looks at a request: the answer is there already, or do is to be done.
func (s *Server) begin(ctx context.Context, w http.ResponseWriter, r *http.Request) (answer any, do *work, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostAsked))
	if err != nil {
		return nil, nil, wrong(http.StatusBadRequest, "the request cannot be read: %w", err)
	}
	by, passed, err := passedOn(r)
	if err != nil {
		return nil, nil, err
	}
	if peer, local := r.Context().Value(peerKey{}).(Peer); local && passed {
		by.UID = peer.UID // which the kernel knows
	} else if local {
		by = peer
	}
	var logs LogsWanted
	var exec ExecWanted
	ranks := []int{}
	if r.URL.Path == pathLogs {
		if err = strict(body, &logs); err == nil && (len(logs.Ranks) == 0 || len(logs.Ranks) > mostOfNode) {
			err = wrong(http.StatusBadRequest, "there are to be 1 to %d ranks", mostOfNode)
		}
		ranks = logs.Ranks
	} else {
		if err = strict(body, &exec); err == nil && len(exec.Command) == 0 {
			err = wrong(http.StatusBadRequest, "there is no command")
		}
		if err == nil && exec.Terminal != nil && !exec.Terminal.Named() {
			err = wrong(http.StatusBadRequest, "%.70q is no name of a terminal", exec.Terminal.Type)
		}
		ranks = append(ranks, exec.Rank)
	}
	if err != nil {
		return nil, nil, err
	}
	if reacher, is := s.cfg.Served.(Reacher); is && !passed && !exec.Here {
		far, err := reacher.Reach(ctx, ranks)
		if err != nil {
			return nil, nil, err
		}
		if far != nil {
			do, err := s.onward(ctx, far, r.URL.Path, body, by, ranks)
			return nil, do, err
		}
	}
	executor, is := s.cfg.Served.(Executor)
	if !is {
		return nil, nil, errhint.Usagef("this muster runs no workers itself")
	}
	switch {
	case r.URL.Path == pathLogs:
		do, err := s.beginLogs(ctx, logs)
		if err == nil && passed {
			executor.LogsRead(by, logs.Ranks)
		}
		return nil, do, err
	case exec.Here:
		rank, err := s.cfg.Served.Rank(ctx, exec.Rank)
		if err == nil && rank.Running {
			executor.Entered(by, exec)
		}
		return rank, nil, err
	}
	if _, err := s.cfg.Served.Rank(ctx, exec.Rank); err != nil {
		return nil, nil, err
	}
	return nil, &work{close: func() {}, run: func(ctx context.Context, st *relay.Stream) streamEnd {
		return runCommand(ctx, st, exec.Terminal, func(files [3]*os.File) (Command, error) { return executor.Exec(ctx, by, exec, files) })
	}}, nil
}

// strict reads a request that has no field which is not known.
func strict(body []byte, to any) error {
	if err := decodeStrict(body, to); err != nil {
		return wrong(http.StatusBadRequest, "the request cannot be read: %w", err)
	}
	return nil
}

// onward passes a request on to the node that runs the ranks.
func (s *Server) onward(ctx context.Context, far *Far, path string, body []byte, by Peer, ranks []int) (*work, error) {
	conn, read, err := far.call(ctx, path, body, by)
	if err != nil {
		return nil, far.atNode(ranks, err)
	}
	return &work{onward: conn, read: read, close: func() { _ = conn.Close() }}, nil
}

// passOn carries the bytes of a stream in both directions until one of the ends is gone.
func passOn(ctx context.Context, conn net.Conn, from *bufio.Reader, do *work) {
	stop := context.AfterFunc(ctx, func() { // where the job ends the other node says so, too, at the same time
		time.AfterFunc(execGrace, func() { _ = do.onward.Close() })
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() {
		if _, _ = io.Copy(do.onward, from); ctx.Err() == nil {
			_ = do.onward.Close() // who has asked is gone
		}
	})
	_, _ = io.Copy(conn, do.read)
	_ = do.onward.Close()
	_ = conn.SetReadDeadline(time.Now())
	both.Wait()
}

// beginLogs opens the log files of workers that run here.
func (s *Server) beginLogs(ctx context.Context, w LogsWanted) (*work, error) {
	var logs Logs
	for _, rank := range w.Ranks {
		r, err := s.cfg.Served.Rank(ctx, rank)
		if err != nil {
			logs.Close()
			return nil, err
		}
		l := &RankLogs{Ask: s.cfg.Served.Rank, RunID: r.RunID, Rank: rank, Tail: w.Tail}
		if w.Prefix {
			l.Prefix = fmt.Appendf(nil, "[rank %d] ", rank)
		}
		if err := l.Open(ctx, w.Previous); err != nil {
			logs.Close()
			return nil, err
		}
		logs = append(logs, l)
	}
	return &work{close: logs.Close, run: func(ctx context.Context, st *relay.Stream) streamEnd {
		for _, l := range logs {
			l.Stdout, l.Stderr = st.Writer(relay.Stdout), st.Writer(relay.Stderr)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var hearing sync.WaitGroup
		defer hearing.Wait()
		defer st.Hush()
		hearing.Go(func() {
			for {
				if _, _, err := st.Receive(); err != nil {
					cancel()
					return
				}
			}
		})
		err := logs.Show(ctx, w.Follow)
		if s.closing.Err() != nil { // the job has ended, and with it what is followed
			err = logs.Show(context.WithoutCancel(ctx), false)
		}
		return endOf(err, 0)
	}}, nil
}

// endOf is how a stream ends.
func endOf(err error, exit int) streamEnd {
	if err == nil {
		return streamEnd{Exit: exit}
	}
	return streamEnd{failure: failure{Error: err.Error(), Hint: errhint.Of(err), Status: errhint.CodeOf(err)}}
}

// errNoEnd is why a stream has ended without a word.
var errNoEnd = errors.New("its muster has ended, or the connection to it was lost")

// open asks for a stream.
func (c *Client) open(ctx context.Context, path string, wanted any) (*relay.Stream, error) {
	if c.page != nil {
		return nil, errhint.Usagef("a page does not answer %s", path)
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	if len(body) > mostAsked {
		return nil, errhint.Usagef("the command line is too long: %d bytes of at most %d", len(body), mostAsked)
	}
	dialing, cancel := context.WithTimeoutCause(ctx, patience, errSilent)
	defer cancel()
	conn, err := c.dial(dialing, "", "")
	if err != nil {
		return nil, c.explain(dialing, err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience + farDial + farAnswer))
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r, err := upgrade(conn, path, body, nil)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{}) // who reads finds out where it has ended
	return relay.NewStream(conn, r), nil
}

// Logs shows what workers of another node have written, as RankLogs does.
func (c *Client) Logs(ctx context.Context, node string, w LogsWanted, stdout, stderr io.Writer) error {
	st, err := c.open(ctx, pathLogs, w)
	if err != nil {
		return err
	}
	err = hearLogs(ctx, st, node, w, stdout, stderr)
	if w.Follow && errors.Is(err, errBroken) {
		if _, gone := c.Status(ctx, Node); Unreachable(gone) {
			return nil // the job has ended
		}
	}
	return err
}

// Logs shows what workers of that node have written, for a muster that somebody has asked for it.
func (f *Far) Logs(ctx context.Context, w LogsWanted, by Peer, stdout, stderr io.Writer) error {
	body, err := json.Marshal(w)
	if err != nil {
		return err
	}
	conn, read, err := f.call(ctx, pathLogs, body, by)
	if err != nil {
		return f.atNode(w.Ranks, err)
	}
	return hearLogs(ctx, relay.NewStream(conn, read), f.Node, w, stdout, stderr)
}

// hearLogs shows what a stream of logs says, and closes it.
func hearLogs(ctx context.Context, st *relay.Stream, node string, w LogsWanted, stdout, stderr io.Writer) error {
	defer func() { _ = st.Close() }()
	defer context.AfterFunc(ctx, func() { _ = st.Close() })()
	st.Live()
	end, err := hear(st, stdout, stderr, nil)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return broken(node, w.Ranks, err)
	case end.Error != "":
		return fmt.Errorf("cannot show more of %s on node %s: %w", rankWords(w.Ranks), node, end.err())
	}
	return nil
}

// errBroken is in the errors of broken.
var errBroken = errors.New("does not answer any more")

// broken says whose stream has ended without a word.
func broken(node string, ranks []int, err error) error {
	return fmt.Errorf("node %s, asked for %s, %w: %w", node, rankWords(ranks), errBroken, err)
}

// hear shows what a stream says until it ends. taken is told how many bytes of standard input were taken.
func hear(st *relay.Stream, stdout, stderr io.Writer, taken func(int)) (e streamEnd, err error) {
	for {
		k, payload, err := st.Receive()
		if err != nil {
			if !errors.Is(err, relay.ErrSilent) {
				err = errNoEnd
			}
			return e, errhint.Code(err, errhint.TryAgain)
		}
		switch k { //nolint:exhaustive // the others are not for this end
		case relay.Stdout:
			_, err = stdout.Write(payload)
		case relay.Stderr:
			_, err = stderr.Write(payload)
		case relay.Taken:
			if taken != nil && len(payload) == 4 {
				taken(int(wireOrder.Uint32(payload)))
			}
		case relay.End:
			if err := json.Unmarshal(payload, &e); err != nil {
				return e, fmt.Errorf("cannot read how the stream has ended: %w", err)
			}
			return e, nil
		}
		if err != nil {
			return e, err
		}
	}
}
