package web

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"muster/internal/testutil"
)

// browser is Debian's Chromium without a screen, driven over a pipe by the DevTools protocol.
type browser struct {
	t       *testing.T
	to      *os.File
	mu      sync.Mutex
	next    int
	answers map[int]chan json.RawMessage
	session string
	// problems are what the console of the page has said of errors.
	problems []string
}

// openBrowser starts one with a window of a size.
func openBrowser(t *testing.T, width, height int, more ...string) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		testutil.Missing(t, "chromium")
	}
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "muster-browser-") //nolint:usetesting // its processes write there until after the end
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
		"--hide-scrollbars", "--user-data-dir=" + dir, fmt.Sprintf("--window-size=%d,%d", width, height),
	}, more...)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.ExtraFiles = []*os.File{theirs, theirOut}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	_ = theirOut.Close()
	b := &browser{t: t, to: to, answers: map[int]chan json.RawMessage{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(bufio.NewReader(from))
	}()
	t.Cleanup(func() {
		_ = b.send("Browser.close", nil, "")
		_ = to.Close()
		_ = cmd.Wait()
		_ = from.Close()
		<-read
		testutil.Eventually(t, 20*time.Second, "the browser's files are gone", func() bool { // its processes end by themselves
			return os.RemoveAll(dir) == nil
		})
	})
	return b
}

type message struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
}

func (b *browser) read(from *bufio.Reader) {
	for {
		text, err := from.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID > 0 && b.answers[m.ID] != nil:
			answer := m.Result
			if m.Error != nil {
				answer = m.Error
			}
			b.answers[m.ID] <- answer
			delete(b.answers, m.ID)
		case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded", m.Method == "Runtime.consoleAPICalled":
			b.problems = append(b.problems, string(m.Params))
		}
		b.mu.Unlock()
	}
}

func (b *browser) send(method string, params any, session string) chan json.RawMessage {
	text, err := json.Marshal(params)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	answer := make(chan json.RawMessage, 1)
	b.answers[b.next] = answer
	m := message{ID: b.next, Method: method, SessionID: session}
	if params != nil {
		m.Params = text
	}
	line, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	_, _ = b.to.Write(append(line, 0))
	return answer
}

// call asks the browser for something.
func (b *browser) call(method string, params any, to any) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	select {
	case answer := <-b.send(method, params, b.session):
		if to == nil {
			return
		}
		if err := json.Unmarshal(answer, to); err != nil {
			b.t.Fatalf("%s: %v: %.300s", method, err, answer)
		}
	case <-ctx.Done():
		b.t.Fatalf("%s: %v", method, errors.New("the browser does not answer"))
	}
}

// open opens a page.
func (b *browser) open(url string) {
	b.t.Helper()
	if b.session == "" {
		var made struct {
			TargetID  string `json:"targetId"`
			SessionID string `json:"sessionId"`
		}
		b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
		b.call("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
		b.session = made.SessionID
		b.call("Runtime.enable", struct{}{}, nil)
		b.call("Log.enable", struct{}{}, nil)
		b.call("Page.enable", struct{}{}, nil)
	}
	b.call("Page.navigate", map[string]any{"url": url}, nil)
}

// eval returns what an expression is on the page.
func (b *browser) eval(expression string, to any) {
	b.t.Helper()
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &got)
	if got.Exception != nil {
		b.t.Fatalf("%s: %s", expression, got.Exception)
	}
	if err := json.Unmarshal(got.Result.Value, to); err != nil {
		b.t.Fatalf("%s: %v: %s", expression, err, got.Result.Value)
	}
}

// until waits until an expression is true on the page.
func (b *browser) until(expression string) {
	b.t.Helper()
	testutil.Eventually(b.t, time.Minute, expression, func() bool {
		var is bool
		b.eval("!!("+expression+")", &is)
		return is
	})
}

// picture writes what is shown to a file below build/.
func (b *browser) picture(name string) {
	b.t.Helper()
	var got struct {
		Data string `json:"data"`
	}
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": false}, &got)
	data, err := base64.StdEncoding.DecodeString(got.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	dir := filepath.Join("..", "..", "..", "build", "page")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// clean fails the test where the page has complained.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Errorf("the page says: %s", p)
	}
}
