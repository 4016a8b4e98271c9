package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
)

// fakeNode is a node of a job whose rank 3 writes to a file.
type fakeNode struct {
	fakeJob
	file string
	far  func(ranks []int) (*Far, error) // nil: all ranks are here
}

func (n *fakeNode) Rank(ctx context.Context, rank int) (Rank, error) {
	r, err := n.fakeJob.Rank(ctx, rank)
	r.RunID, r.Running = "it", true
	if n.file != "" {
		r.Logs = []LogFiles{{Began: time.Unix(1, 0), Stdout: n.file}}
	}
	return r, err
}

func (n *fakeNode) Reach(_ context.Context, ranks []int) (*Far, error) {
	if n.far == nil {
		return nil, nil
	}
	return n.far(ranks)
}

func (n *fakeNode) Exec(context.Context, Peer, ExecWanted, [3]*os.File) (Command, error) {
	return nil, errhint.Code(errors.New("cannot execute it"), errhint.NotFound)
}

func (n *fakeNode) Entered(by Peer, w ExecWanted) {
	n.events.Add(Event{Type: ExecStarted, By: &by, Rank: &w.Rank})
}

func (n *fakeNode) LogsRead(by Peer, ranks []int) {
	n.events.Add(Event{Type: LogsRead, By: &by, Rank: &ranks[0]})
}

// twoNodes are the run directories of a node that asks another one, and of that one.
func twoNodes(t *testing.T) (near, far string, there *fakeNode) {
	t.Helper()
	there = &fakeNode{fakeJob: fakeJob{id: "it"}, file: filepath.Join(t.TempDir(), "out")}
	if err := os.WriteFile(there.file, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	far = serve(t, Config{Served: there})
	here := &fakeNode{fakeJob: fakeJob{id: "it"}, far: func([]int) (*Far, error) {
		return &Far{Node: "node-1", From: "node-0", Dial: func(ctx context.Context) (net.Conn, error) { return DialSocket(ctx, far) }}, nil
	}}
	return serve(t, Config{Served: here}), far, there
}

// TestLogsOfAnotherNode asks for a rank by the muster of another node.
func TestLogsOfAnotherNode(t *testing.T) {
	t.Parallel()
	near, _, there := twoNodes(t)
	c := Dial(near)
	var out testutil.Buffer
	err := c.Logs(t.Context(), "node-1", LogsWanted{Ranks: []int{3}, Tail: 2}, &out, io.Discard)
	if err != nil || out.String() != "two\nthree\n" {
		t.Errorf("%v: %q", err, out.String())
	}
	if e := there.events.Behind(0); len(e) != 1 || e[0].Type != LogsRead || e[0].By == nil || e[0].By.Node != "node-0" ||
		e[0].By.UID != os.Geteuid() {
		t.Errorf("%+v", e)
	}
	err = c.Logs(t.Context(), "node-1", LogsWanted{Ranks: []int{4}}, &out, io.Discard)
	if err == nil || errhint.CodeOf(err) != errhint.Usage || errhint.Of(err) != "there is rank 3" ||
		!strings.Contains(err.Error(), "cannot ask node node-1 for rank 4: there is no rank 4") {
		t.Errorf("%v (%d, %s)", err, errhint.CodeOf(err), errhint.Of(err))
	}
	with := Console{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
	_, err = c.Exec(t.Context(), "node-1", ExecWanted{Rank: 3, Command: []string{"x"}}, with)
	if errhint.CodeOf(err) != errhint.NotFound || err.Error() != "cannot execute it" {
		t.Errorf("%v", err)
	}

	var followed testutil.Buffer
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		ended <- c.Logs(ctx, "node-1", LogsWanted{Ranks: []int{3}, Follow: true, Prefix: true, Tail: -1}, &followed, io.Discard)
	}()
	says := func(text string) {
		t.Helper()
		testutil.Eventually(t, time.Minute, text, func() bool { return strings.HasSuffix(followed.String(), text) })
	}
	says("[rank 3] three\n")
	f, err := os.OpenFile(there.file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(f, "four\n")
	_ = f.Close()
	says("[rank 3] four\n")
	enough := errors.New("enough")
	cancel(enough)
	if err := <-ended; !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
}

// TestStreamsOfDeadNodes: the other node's muster cannot be reached, says nothing, says nonsense, or ends in the middle.
func TestStreamsOfDeadNodes(t *testing.T) {
	t.Parallel()
	said := func(text string) func(context.Context) (net.Conn, error) {
		return func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				r := bufio.NewReader(theirs)
				for line, err := "", error(nil); err == nil && line != "\r\n"; {
					line, err = r.ReadString('\n')
				}
				_, _ = r.Peek(1)
				_, _ = io.WriteString(theirs, text)
				if text != "" {
					_ = theirs.Close()
				}
			}()
			t.Cleanup(func() { _ = theirs.Close() })
			return ours, nil
		}
	}
	const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: muster-stream\r\n\r\n"
	for name, c := range map[string]struct {
		dial func(context.Context) (net.Conn, error)
		want string
	}{
		"not there": {func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") }, "connection refused"},
		"silent":    {said(""), "its muster does not answer"},
		"nonsense":  {said("SSH-2.0-x\r\n\r\n"), "its muster has ended while it was asked"},
		"ends":      {said(upgraded), "node node-1, asked for rank 3, does not answer any more"},
		"no frames": {said(upgraded + "what is this?"), "node node-1, asked for rank 3, does not answer any more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := serve(t, Config{Served: &fakeNode{far: func([]int) (*Far, error) {
				return &Far{Node: "node-1", From: "node-0", Dial: c.dial}, nil
			}}})
			err := Dial(dir).Logs(t.Context(), "node-1", LogsWanted{Ranks: []int{3}, Follow: true}, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "node-1") ||
				!strings.Contains(err.Error(), "rank 3") || errhint.CodeOf(err) != errhint.TryAgain {
				t.Errorf("%v (%d)", err, errhint.CodeOf(err))
			}
		})
	}
}

// TestStreamsAreBounded has as many clients as there may be follow a rank, and one more.
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	_, far, _ := twoNodes(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var outs [mostStreams]testutil.Buffer
	for i := range outs {
		go func() {
			_ = Dial(far).Logs(ctx, "here", LogsWanted{Ranks: []int{3}, Follow: true, Tail: -1}, &outs[i], io.Discard)
		}()
	}
	testutil.Eventually(t, time.Minute, "all follow", func() bool {
		for i := range outs {
			if !strings.HasSuffix(outs[i].String(), "three\n") {
				return false
			}
		}
		return true
	})
	err := Dial(far).Logs(t.Context(), "here", LogsWanted{Ranks: []int{3}}, io.Discard, io.Discard)
	if errhint.CodeOf(err) != errhint.TryAgain || !strings.Contains(err.Error(), fmt.Sprint(mostStreams)) {
		t.Errorf("%v", err)
	}
	if _, err := Dial(far).Status(t.Context(), World); err != nil {
		t.Errorf("others are not answered meanwhile: %v", err)
	}
	cancel()
	testutil.Eventually(t, time.Minute, "there is room again", func() bool {
		return Dial(far).Logs(t.Context(), "here", LogsWanted{Ranks: []int{3}}, io.Discard, io.Discard) == nil
	})
}

// TestStreamsRefused sends what cannot be, and asks the page's handler, which runs nothing.
func TestStreamsRefused(t *testing.T) {
	t.Parallel()
	_, far, there := twoNodes(t)
	for name, c := range map[string]struct {
		path string
		body any
		want string
	}{
		"no rank":    {pathLogs, LogsWanted{}, "there are to be 1 to 4096 ranks"},
		"no command": {pathExec, ExecWanted{Rank: 3}, "there is no command"},
		"no such":    {pathExec, map[string]any{"rank": 3, "sudo": true}, "unknown field"},
		"terminal": {
			path: pathExec, body: ExecWanted{Rank: 3, Command: []string{"x"}, Terminal: &Terminal{Type: "x\x1b[0m"}},
			want: "is no name of a terminal",
		},
		"long": {pathExec, ExecWanted{Rank: 3, Command: []string{strings.Repeat("x", mostAsked)}}, "too long"},
	} {
		if _, err := Dial(far).open(t.Context(), c.path, c.body); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, path := range []string{pathLogs, pathExec} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(AsPeer(t.Context(), Peer{}), "POST", path, strings.NewReader(`{"rank":3,"command":["id"]}`))
		if Handler(Config{Served: there}).ServeHTTP(w, r); w.Code != 404 {
			t.Errorf("the page is answered %s with %d", path, w.Code)
		}
	}
}
