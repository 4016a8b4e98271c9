package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
)

const token = "0123456789abcdef0123"

// TestAnswers asks everything that can be asked on loopback without a token.
func TestAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(16)
	w.writes(t, 3, "one\nhalf\rwhole\n\x1b[31mred\x1b[0m <b>\n")
	s := serve(t, Config{Served: w, Muster: control.Muster{Role: control.Launcher}})
	w.events.Add(control.Event{Type: control.StopRequested, RunID: "train-7"})
	for _, c := range []struct {
		path   string
		status int
		kind   string
		has    string
	}{
		{"/", 200, "text/html; charset=utf-8", "<canvas id=\"grid\""},
		{"/page.css", 200, "text/css; charset=utf-8", ":root"},
		{"/page.js", 200, "text/javascript; charset=utf-8", "EventSource"},
		{"/grid.js", 200, "text/javascript; charset=utf-8", "class Grid"},
		{"/chart.js", 200, "text/javascript; charset=utf-8", "class Chart"},
		{"/icon.svg", 200, "image/svg+xml; charset=utf-8", "<svg"},
		{"/login", 200, "text/html; charset=utf-8", "token"},
		{"/healthz", 200, "text/plain; charset=utf-8", "ok"},
		{"/readyz", 200, "text/plain; charset=utf-8", "ok"},
		{"/api/v1/status", 200, "application/json", `"runId":"train-7"`},
		{"/api/v1/history", 200, "application/json", `"stepMedian":[`},
		{"/api/v1/ranks/3/logs", 200, "text/event-stream", `"text":"red <b>"`},
		{"/api/v1/ranks/3/logs?previous=1", 200, "text/event-stream", "has not been started again"},
		{"/api/v1/ranks/99/logs", 200, "text/event-stream", "no rank 99"},
		{"/api/v1/ranks/x/logs", 400, "application/json", "no rank"},
		{"/api/v1/rank/3", 404, "application/json", "there is no"}, // it tells the environment, at the socket alone
		{"/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", "muster_"},
		{"/favicon.ico", 404, "application/json", "there is no"},
		{"/api/v1/stream?after=x", 400, "application/json", "number of an event"},
	} {
		if strings.HasSuffix(c.path, "/3/logs") {
			continue // it follows, see TestLogs
		}
		status, header, body := ask(t, s, http.MethodGet, c.path, nil)
		if status != c.status || header.Get("Content-Type") != c.kind || !strings.Contains(body, c.has) {
			t.Errorf("%s: %d %s\n%.200s", c.path, status, header.Get("Content-Type"), body)
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Frame-Options": "DENY",
		} {
			if header.Get(name) != want {
				t.Errorf("%s: %s is %q", c.path, name, header.Get(name))
			}
		}
		if csp := header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %s", c.path, csp)
		}
		if strings.Contains(body, "hidden") && strings.Contains(body, "SECRET") {
			t.Errorf("%s tells the environment of a worker", c.path)
		}
	}
	if status, header, _ := ask(t, s, http.MethodPost, "/", nil); status != http.StatusMethodNotAllowed || header.Get("Allow") == "" {
		t.Errorf("POST /: %d", status)
	}
	w.mu.Lock()
	w.status.Phase = report.PhaseRestarting
	w.mu.Unlock()
	testutil.Eventually(t, 20*time.Second, "it is not ready", func() bool {
		status, _, body := ask(t, s, http.MethodGet, "/readyz", nil)
		return status == http.StatusServiceUnavailable && body == "Restarting\n"
	})
}

// TestPageIsSelfContained: nothing of the page is inline, or comes from elsewhere.
func TestPageIsSelfContained(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"index.html": string(indexHTML), "login.html": loginPage, "page.css": string(pageCSS), "page.js": string(pageJS),
		"grid.js":  string(gridJS),
		"chart.js": string(chartJS),
	} {
		for _, bad := range []string{"//cdn", "https://", "http://", "style=\"", "onclick=", "innerHTML", "eval(", "<script>", "<style"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %s", name, bad)
			}
		}
	}
}

// TestListenRefused: what cannot be listened at is refused with status 2 and a hint, and other machines are not let in
// without a token.
func TestListenRefused(t *testing.T) {
	t.Parallel()
	taken, err := Listen(t.Context(), "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for address, says := range map[string]string{
		taken.Addr().String(): "address already in use", "127.0.0.1": "missing port", "127.0.0.1:http": "is no port",
		"127.0.0.1:70000": "is no port",
		"203.0.113.7:80":  "cannot assign requested address", "0.0.0.0:0": "the job has no token", ":0": "the job has no token",
		"a b:1": "",
	} {
		l, err := Listen(t.Context(), address, false)
		if err == nil {
			_ = l.Close()
			t.Errorf("%s: accepted", address)
			continue
		}
		if errhint.CodeOf(err) != errhint.Usage || errhint.Of(err) == "" || !strings.Contains(err.Error(), says) ||
			!strings.HasPrefix(err.Error(), "cannot serve a page at ") {
			t.Errorf("%s: status %d: %v (%s)", address, errhint.CodeOf(err), err, errhint.Of(err))
		}
	}
	l, err := Listen(t.Context(), "0", false)
	if err != nil || !isLoopback(l.Addr()) {
		t.Errorf("a port alone: %v, %v", l, err)
	}
	if err == nil {
		_ = l.Close()
	}
}

// TestForeignName: a name of another site that leads to this address is not answered, whatever it asks.
func TestForeignName(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{Served: newWorld(2)})
	_, port, _ := net.SplitHostPort(s.Addr().String())
	for host, want := range map[string]int{
		"evil.example:" + port: 421, "127.0.0.1.evil.example": 421, "10.0.0.1:" + port: 421, "": 421, "localhost": 200,
		"LOCALHOST.:" + port: 200,
		"127.0.0.1:1":        200, "[::1]:" + port: 200, "job.localhost:80": 200,
	} {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(c, "GET /api/v1/status HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != want {
			t.Errorf("Host %q: %v, %v", host, resp, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
		_ = c.Close()
	}
}

// TestToken: on an address that other machines reach nothing but probes is answered without the token; with it, by a
// header, in the address or by the form, everything.
func TestToken(t *testing.T) {
	t.Parallel()
	w := newWorld(2)
	s := serveAt(t, "0.0.0.0:0", Config{Served: w, Token: []byte(token)})
	for _, path := range []string{
		"/", "/metrics", "/page.js", "/api/v1/status", "/api/v1/stream",
		"/api/v1/ranks/0/logs", "/x",
	} {
		for _, headers := range [][]string{
			nil,
			{"Authorization", "Bearer wrong"},
			{"Authorization", "Bearer "},
			{"Cookie", s.access.name + "=x"},
		} {
			status, header, body := ask(t, s, http.MethodGet, path, nil, headers...)
			if status != http.StatusUnauthorized || header.Get("WWW-Authenticate") == "" || strings.Contains(body, "train-7") {
				t.Errorf("%s %v: %d %.100s", path, headers, status, body)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} { // a kubelet has no token
		if status, _, body := ask(t, s, http.MethodGet, path, nil); status != http.StatusOK || body != "ok\n" {
			t.Errorf("%s without the token: %d %q", path, status, body)
		}
		if status, _, _ := ask(t, s, http.MethodPost, path, nil); status != http.StatusUnauthorized {
			t.Errorf("POST %s without the token: %d", path, status)
		}
	}
	if status, _, body := ask(t, s, http.MethodGet, "/api/v1/status", nil, "Authorization", "Bearer "+token); status != 200 ||
		!strings.Contains(body, "train-7") {
		t.Errorf("with the token: %d %s", status, body)
	}
	if status, _, _ := ask(t, s, http.MethodGet, "/?token=wrong", nil); status != http.StatusUnauthorized {
		t.Errorf("a wrong token in the address: %d", status)
	}
	status, header, _ := ask(t, s, http.MethodGet, "/?token="+token+"&x=1", nil)
	cookie := header.Get("Set-Cookie")
	if status != http.StatusSeeOther || header.Get("Location") != "/?x=1" || !strings.Contains(cookie, "HttpOnly") ||
		!strings.Contains(cookie, "SameSite=Lax") || strings.Contains(cookie, token) {
		t.Errorf("in the address: %d %v", status, header)
	}
	form := url.Values{"token": {" " + token + "\n"}}.Encode()
	kind := []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", "null"}
	status, header, _ = ask(t, s, http.MethodPost, "/login", strings.NewReader(form), kind...)
	if status != http.StatusSeeOther || header.Get("Location") != "/" {
		t.Errorf("by the form: %d %v", status, header)
	}
	name, _, _ := strings.Cut(header.Get("Set-Cookie"), ";")
	if status, _, body := ask(t, s, http.MethodGet, "/", nil, "Cookie", name); status != 200 || !strings.Contains(body, "canvas") {
		t.Errorf("with the cookie: %d %s", status, body)
	}
	kind[3] = "http://evil.example"
	if status, _, _ := ask(t, s, http.MethodPost, "/login", strings.NewReader(form), kind...); status != http.StatusForbidden {
		t.Errorf("the form of another site: %d", status)
	}
}

// TestSteer: to change something takes the token, and for a browser the page's own origin.
func TestSteer(t *testing.T) {
	t.Parallel()
	w := newWorld(2)
	s := serve(t, Config{Served: w, Token: []byte(token)})
	bearer, host := []string{"Authorization", "Bearer " + token}, s.Addr().String()
	_, header, _ := ask(t, s, http.MethodGet, "/?token="+token, nil)
	name, _, _ := strings.Cut(header.Get("Set-Cookie"), ";")
	cookie := []string{"Cookie", name}
	for _, c := range []struct {
		what    string
		headers []string
		want    int
	}{
		{"nothing", nil, 403},
		{"nothing, from the page", []string{"Origin", "http://" + host}, 403},
		{"a cookie alone", cookie, 403},
		{"a cookie, from another site", append([]string{"Origin", "http://evil.example"}, cookie...), 403},
		{"a cookie, from another port", append([]string{"Origin", "http://127.0.0.1:1"}, cookie...), 403},
		{
			"a cookie, from a site of the same machine",
			append([]string{"Origin", "http://" + host, "Sec-Fetch-Site", "same-site"}, cookie...), 403,
		},
		{"a cookie, from the page", append([]string{"Origin", "http://" + host, "Sec-Fetch-Site", "same-origin"}, cookie...), 200},
		{"the token", bearer, 200},
	} {
		status, _, body := ask(t, s, http.MethodPost, "/api/v1/stop", strings.NewReader("{}"), c.headers...)
		if status != c.want {
			t.Errorf("with %s: %d %s", c.what, status, body)
		}
	}
	if len(w.peers) != 2 || w.peers[0].UID != os.Geteuid() || w.peers[0].Address == "" {
		t.Errorf("asked by %+v", w.peers)
	}
	if status, _, body := ask(t, s, http.MethodPost, "/api/v1/restart", strings.NewReader("{}"), bearer...); status != 409 ||
		!strings.Contains(body, "do not run") {
		t.Errorf("restart: %d %s", status, body)
	}
	for body, want := range map[string]string{`{}`: "it goes on with []", `{"command":["rm"]}`: "cannot take a new command from the page"} {
		if _, _, text := ask(t, s, http.MethodPost, "/api/v1/resume", strings.NewReader(body), bearer...); !strings.Contains(text, want) {
			t.Errorf("resume %s: %s", body, text)
		}
	}
	if status, _, _ := ask(t, s, http.MethodGet, "/api/v1/stop", nil, bearer...); status != 405 {
		t.Errorf("GET stop: %d", status)
	}
	if status, _, _ := ask(t, s, http.MethodPost, "/api/v1/stop", strings.NewReader("{"+strings.Repeat(" ", mostBody)+"}"),
		bearer...); status != 400 {
		t.Errorf("a body without end: %d", status)
	}
}

// TestStream: the frames of a stream, put together, are how the job stands; events come with their numbers, and who
// comes back has those only that he has not seen.
func TestStream(t *testing.T) {
	t.Parallel()
	w := newWorld(16)
	s := serve(t, Config{Served: w, Every: 20 * time.Millisecond})
	for range 3 {
		w.events.Add(control.Event{Type: control.CheckPassed, RunID: "train-7"})
	}
	get := func(path, last string) *bufio.Scanner {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if last != "" {
			req.Header.Set("Last-Event-ID", last)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		return lines
	}
	lines := get("api/v1/stream?after=1", "")
	kind, ids := "", []string{}
	var rows []json.RawMessage
	for changes := 0; changes < 3 && lines.Scan(); {
		if k, is := strings.CutPrefix(lines.Text(), "event: "); is {
			kind = k
		}
		if id, is := strings.CutPrefix(lines.Text(), "id: "); is {
			ids = append(ids, id)
		}
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is || kind != "whole" && kind != "change" {
			continue
		}
		var f struct {
			Job   report.Status     `json:"job"`
			Ranks []json.RawMessage `json:"ranks"`
		}
		if err := json.Unmarshal([]byte(data), &f); err != nil || f.Job.RunID != "train-7" || len(f.Job.Ranks) > 0 {
			t.Fatalf("%v: %s", err, data)
		}
		if kind == "whole" {
			rows = f.Ranks
			continue
		}
		changes++
		for _, r := range f.Ranks {
			var cells []json.RawMessage
			var at int
			if json.Unmarshal(r, &cells) != nil || json.Unmarshal(cells[0], &at) != nil {
				t.Fatalf("%s", r)
			}
			if len(rows) != 16 {
				t.Fatalf("%d rows", len(rows))
			}
			rows[at], _ = json.Marshal(cells[1:])
		}
	}
	if len(ids) != 2 || ids[0] != "2" || ids[1] != "3" {
		t.Errorf("events %v", ids)
	}
	var last []any
	if len(rows) != 16 || json.Unmarshal(rows[15], &last) != nil || len(last) != 20 || last[0] != 15.0 || last[4] != "Running" ||
		last[10].(float64) < 12002 {
		t.Errorf("%d rows, the last %v", len(rows), last)
	}
	lines = get("api/v1/events", "2")
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "id: ") {
		continue
	}
	if lines.Text() != "id: 3" {
		t.Errorf("after a break: %s", lines.Text())
	}
}

// TestLogs follows what a rank writes, over a restart, and shows what the process before has written.
func TestLogs(t *testing.T) {
	t.Parallel()
	w := newWorld(4)
	old := w.writes(t, 3, "one\nhalf\rwhole\n\x1b[31mred\x1b[0m <b>\n")
	s := serve(t, Config{Served: w})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"api/v1/ranks/3/logs?tail=2", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	next := func() string {
		for lines.Scan() {
			if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
				var l logLine
				if err := json.Unmarshal([]byte(data), &l); err != nil || l.Stream != "stdout" {
					t.Fatalf("%v: %s", err, data)
				}
				return l.Text
			}
		}
		t.Fatalf("the stream has ended: %v", lines.Err())
		return ""
	}
	if a, b := next(), next(); a != "whole" || b != "red <b>" {
		t.Errorf("%q %q", a, b)
	}
	f, err := os.OpenFile(old, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString("more\n")
	_ = f.Close()
	if got := next(); got != "more" {
		t.Errorf("%q", got)
	}
	w.writes(t, 3, "again\n")
	if got := next(); got != "again" {
		t.Errorf("%q", got)
	}
	if _, _, body := ask(t, s, http.MethodGet, "/api/v1/ranks/3/logs?previous=1", nil); !strings.Contains(body, `"text":"more"`) ||
		!strings.Contains(body, "event: end") {
		t.Errorf("%s", body)
	}
}

// TestManyClients has a thousand pages open at once, some of which read nothing, and others that say nothing: the job
// is looked at no more often than for one of them.
func TestManyClients(t *testing.T) {
	testutil.Long(t)
	w := newWorld(64)
	s := serve(t, Config{Served: w, Every: 200 * time.Millisecond})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	var got sync.WaitGroup
	for i := range 1000 {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if i%100 == 50 { // it says half of something
			_, _ = fmt.Fprint(c, "GET / HT")
			continue
		}
		_, _ = fmt.Fprint(c, "GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if i%100 == 0 {
			continue // it reads nothing
		}
		got.Go(func() {
			lines := bufio.NewReader(c)
			for frames := 0; frames < 3; {
				line, err := lines.ReadString('\n')
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				if strings.HasPrefix(line, "event: whole") || strings.HasPrefix(line, "event: change") {
					frames++
				}
			}
		})
	}
	began, asked := time.Now(), w.asked.Load()
	got.Wait()
	if looks, most := w.asked.Load()-asked, int64(time.Since(began)/(200*time.Millisecond))+2; looks > most {
		t.Errorf("the job was looked at %d times, at most %d are due", looks, most)
	}
	runtime.ReadMemStats(&after)
	t.Logf("1,000 clients: %.1f MiB of heap, %.1f MiB of stacks more",
		float64(after.HeapInuse-before.HeapInuse)/(1<<20), float64(after.StackInuse-before.StackInuse)/(1<<20))
	for range 200 { // these are too many
		c, err := net.Dial("tcp", s.Addr().String())
		if err == nil {
			conns = append(conns, c)
		}
	}
	closed := 0
	for _, c := range conns[1000:] {
		_ = c.SetReadDeadline(time.Now().Add(2 * headerTime))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			closed++
		}
	}
	if closed == 0 {
		t.Error("nobody was one too many")
	}
	testutil.Eventually(t, 30*time.Second, "others are answered again", func() bool {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		_, _ = fmt.Fprint(c, "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
		text, _ := io.ReadAll(c)
		return bytes.HasSuffix(text, []byte("ok\n"))
	})
}

// TestHistory keeps a day, and no more, in a megabyte; an answer has no more points than asked for.
func TestHistory(t *testing.T) {
	t.Parallel()
	var h history
	at := time.Unix(1_800_000_000, 0)
	for i := range 3 * historySize {
		worst := float32(math.NaN())
		if i%2 == 0 {
			worst = float32(i)
		}
		h.add(at.Add(time.Duration(i)*idleEvery), sample{cpu: float32(math.NaN()), memory: float32(i), stepWorst: worst})
		h.add(at.Add(time.Duration(i)*idleEvery+time.Second), sample{}) // too early
	}
	if most := historySize + historySize/8; len(h.at) > most || cap(h.samples)*28 > 1<<20 {
		t.Errorf("%d samples, room for %d", len(h.at), cap(h.samples))
	}
	a := h.read("100")
	if n := len(a.Time); n < 90 || n > 100 || len(a.StepWorst) != n || a.Time[0] < at.Unix()+int64(2*historySize-1)*10 {
		t.Errorf("%d points from %d", n, a.Time[0])
	}
	if !math.IsNaN(float64(a.CPU[0])) || a.StepWorst[0] <= a.Memory[0] {
		t.Errorf("%v %v %v", a.CPU[0], a.StepWorst[0], a.Memory[0])
	}
	if text, err := json.Marshal(a); err != nil || !strings.Contains(string(text), `"cpu":[null,`) {
		t.Errorf("%v %.100s", err, text)
	}
}

// impatient is a job that says nothing to who has gone.
type impatient struct{ *world }

func (i impatient) Status(ctx context.Context, scope control.Scope) (report.Status, error) {
	if ctx.Err() != nil {
		return report.Status{}, ctx.Err()
	}
	return i.world.Status(ctx, scope)
}

// TestClientGoes: what the next one is told is not spoilt by a client that has gone.
func TestClientGoes(t *testing.T) {
	t.Parallel()
	p := newPicture(Config{Served: impatient{newWorld(2)}})
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, _ = p.answer(gone)
	if a, err := p.answer(t.Context()); err != nil || a.RunID != "train-7" {
		t.Errorf("%+v, %v", a.Status, err)
	}
}

// farAway is a job whose rank 1 runs on another node.
type farAway struct {
	*world
	dir string // of that node's muster
}

func (f farAway) Reach(_ context.Context, ranks []int) (*control.Far, error) {
	switch ranks[0] {
	case 0:
		return nil, nil
	case 1:
		return &control.Far{Node: "node-1", From: "node-0", Dial: func(ctx context.Context) (net.Conn, error) {
			return control.DialSocket(ctx, f.dir)
		}}, nil
	}
	return nil, errhint.Usagef("nobody can ask node-2")
}

// executor is the job as the muster of the other node answers for it.
type executor struct{ *world }

func (executor) Exec(context.Context, control.Peer, control.ExecWanted, [3]*os.File) (control.Command, error) {
	return nil, errors.New("not this")
}

func (executor) Entered(control.Peer, control.ExecWanted) {}

func (e executor) LogsRead(by control.Peer, ranks []int) {
	e.events.Add(control.Event{Type: control.LogsRead, By: &by, Rank: &ranks[0]})
}

// TestLogsOfAnotherNode: the page shows what a rank on another node writes, by the muster there.
func TestLogsOfAnotherNode(t *testing.T) {
	t.Parallel()
	there := newWorld(2)
	there.writes(t, 1, "one\ntwo\nlast\n")
	dir := testutil.ReachedDir(t, 0o755)
	server, err := control.Serve(control.Config{Dir: dir, Served: executor{there}, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	here := newWorld(2)
	s := serve(t, Config{Served: farAway{here, dir}})
	_, _, body := ask(t, s, http.MethodGet, "/api/v1/ranks/2/logs", nil)
	if !strings.Contains(body, "nobody can ask node-2") {
		t.Errorf("a node that cannot be asked: %s", body)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"api/v1/ranks/1/logs?tail=2", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got []string
	lines := bufio.NewScanner(resp.Body)
	for len(got) < 2 && lines.Scan() {
		if _, text, found := strings.Cut(lines.Text(), `"text":"`); found {
			got = append(got, strings.SplitN(text, `"`, 2)[0])
		}
	}
	if strings.Join(got, ",") != "two,last" {
		t.Errorf("%q", got)
	}
	if e := there.events.Behind(0); len(e) != 1 || e[0].Type != control.LogsRead || e[0].By.Node != "node-0" {
		t.Errorf("%+v", e)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		got = append(got, lines.Text())
	}
	if !strings.Contains(strings.Join(got, ""), "event: end") {
		t.Errorf("the other muster has ended, and the page says %q", got)
	}
}

// remembered is a job whose ranks have no files.
type remembered struct {
	*world
	lines chan []string
}

func (r remembered) Recent(int) (control.Recent, error) {
	select {
	case lines := <-r.lines:
		if lines == nil {
			return control.Recent{}, errhint.Usagef("it has gone")
		}
		return control.Recent{PID: 1, Running: true, Stdout: lines}, nil
	case <-time.After(time.Minute):
		return control.Recent{}, errhint.Usagef("nobody asks for so long")
	}
}

// TestLastLines follows a rank that has no files by its last lines: none comes twice.
func TestLastLines(t *testing.T) {
	t.Parallel()
	j := remembered{newWorld(2), make(chan []string, 9)}
	for _, lines := range [][]string{{"a"}, {"a", "b", "b"}, {"b", "b", "b"}, {"x", "y"}, nil} {
		j.lines <- lines
	}
	s := serve(t, Config{Served: j})
	_, _, body := ask(t, s, http.MethodGet, "/api/v1/ranks/1/logs", nil)
	var got []string
	for line := range strings.Lines(body) {
		if _, text, found := strings.Cut(line, `"text":"`); found {
			got = append(got, text[:1])
		}
	}
	if strings.Join(got, "") != "abbbxy" || !strings.Contains(body, "it has gone") {
		t.Errorf("%v\n%s", got, body)
	}
}
