package kv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"muster/horovod"
	"muster/horovod/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve returns the address of a server.
func serve(t *testing.T, s *kv.Server) string {
	t.Helper()
	l, err := kv.Listen(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port)
}

// exchange sends bytes as the C++ client does, one connection for each request, and returns the answer as it came.
func exchange(t *testing.T, addr, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	var text strings.Builder
	length := 0
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%q: %v after %q", request, err, text.String())
		}
		if _, err := fmt.Sscanf(line, "Content-Length: %d", &length); err != nil &&
			strings.HasPrefix(strings.ToLower(line), "content-length") {
			t.Errorf("%q: the header is spelt %q", request, line)
		}
		if strings.HasPrefix(line, "HTTP/") || strings.HasPrefix(line, "Content-Length") {
			text.WriteString(strings.TrimSpace(line) + "|")
		}
		if line == "\r\n" {
			break
		}
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		t.Fatal(err)
	}
	return text.String() + string(body)
}

func ask(method, path, body string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
}

const (
	found   = "HTTP/1.1 200 OK|Content-Length: %d|"
	missing = "HTTP/1.1 404 Not Found|Content-Length: 0|"
)

func want(t *testing.T, addr, request, answer string) {
	t.Helper()
	if got := exchange(t, addr, request); got != answer {
		t.Errorf("%.60q: %q, want %q", request, got, answer)
	}
}

func TestExactAnswers(t *testing.T) {
	addr := serve(t, kv.New(nil))
	done := fmt.Sprintf(found, 0)
	for _, c := range [][2]string{
		{ask("GET", "/global/0", ""), missing},
		{ask("PUT", "/global/0", "a\x00b\nc"), done},
		{ask("GET", "/global/0", ""), fmt.Sprintf(found, 5) + "a\x00b\nc"},
		{ask("PUT", "/global/0", ""), done},
		{ask("GET", "/global/0", ""), fmt.Sprintf(found, 0)},
		{"PUT /global/1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", done},
		{ask("GET", "/global/1", ""), fmt.Sprintf(found, 5) + "abcde"},
		{ask("GET", "/local_n%20-1.x/0", ""), missing},
		{ask("GET", "/a", ""), "HTTP/1.1 400 Bad Request|Content-Length: 0|"},
		{ask("GET", "/a/b/c", ""), "HTTP/1.1 400 Bad Request|Content-Length: 0|"},
		{ask("GET", "/a/", ""), "HTTP/1.1 400 Bad Request|Content-Length: 0|"},
		{ask("POST", "/a/b", "x"), "HTTP/1.1 405 Method Not Allowed|Content-Length: 0|"},
		{ask("GET", "/rank_and_size/n:0", ""), missing}, // no driver, no places
		{"PUT /a/b HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n", "HTTP/1.1 413 Request Entity Too Large|Content-Length: 0|"},
		{"PUT /a/b HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nshort", "HTTP/1.1 408 Request Timeout|Content-Length: 0|"},
	} {
		want(t, addr, c[0], c[1])
	}
	if err := v6(addr); err != nil && !errors.Is(err, errNoV6) {
		t.Error(err)
	}
}

var errNoV6 = errors.New("this machine has no IPv6")

func v6(addr string) error {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return errNoV6
	}
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	resp, err := http.Get("http://[::1]:" + port + "/a/b")
	if err != nil {
		return err
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	return nil
}

// A world forgets a scope when all its members are done, so that it can meet again under the same names.
func TestScopesAreFinished(t *testing.T) {
	s := kv.New(nil)
	slots, err := horovod.Allocate([]horovod.Host{{Name: "a", Slots: 2}}, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	s.Begin(horovod.Scopes(slots))
	do := func(method, path string) int {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, &http.Request{Method: method, RequestURI: path, Body: http.NoBody, URL: &url.URL{}})
		return w.Code
	}
	expect := func(path string, status int) {
		t.Helper()
		if got := do("GET", path); got != status {
			t.Errorf("GET %s: %d, want %d", path, got, status)
		}
	}
	for round := range 3 {
		for _, key := range []string{"rank_0", "rank_1", "0", "1"} {
			do("PUT", "/global/"+key)
		}
		do("PUT", "/cross_0/0")
		do("DELETE", "/global/0")
		do("DELETE", "/global/0") // a client that lost the answer says it again
		expect("/global/1", 200)
		do("DELETE", "/cross_0/0")
		expect("/cross_0/0", 404)
		expect("/global/0", 200)
		do("DELETE", "/global/1")
		expect("/global/0", 404)
		expect("/global/rank_1", 404)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	// A process set: each member takes its own value away, what they said of themselves goes with the last.
	for _, key := range []string{"rank_0", "rank_1", "0", "1"} {
		do("PUT", "/global_process_set_hash_1/"+key)
	}
	do("DELETE", "/global_process_set_hash_1/1")
	expect("/global_process_set_hash_1/1", 404)
	expect("/global_process_set_hash_1/0", 200)
	do("DELETE", "/global_process_set_hash_1/0")
	expect("/global_process_set_hash_1/rank_0", 404)

	do("PUT", "/global/0")
	s.Begin(nil)
	expect("/global/0", 404)
}

// driver answers for a driver of an elastic job.
type driver struct {
	place chan string
	gone  chan string
	seen  chan int
	body  string
}

func (d *driver) Register(slot string, body []byte) error {
	if len(body) == 0 {
		return errors.New("empty")
	}
	d.body = slot + "=" + string(body)
	return nil
}

func (d *driver) Place(ctx context.Context, slot string) (string, error) {
	select {
	case p := <-d.place:
		return p, nil
	case <-ctx.Done():
		d.gone <- slot
		return "", ctx.Err()
	}
}

func (d *driver) Seen(rank int) { d.seen <- rank }

func TestQuestionsToTheDriver(t *testing.T) {
	d := &driver{place: make(chan string, 1), gone: make(chan string, 1), seen: make(chan int, 1)}
	addr := serve(t, kv.New(d))
	want(t, addr, ask("PUT", "/worker_addresses/n1:0", "text"), fmt.Sprintf(found, 0))
	if d.body != "n1:0=text" {
		t.Errorf("registered %q", d.body)
	}
	want(t, addr, ask("PUT", "/worker_addresses/n1:0", ""), "HTTP/1.1 400 Bad Request|Content-Length: 0|")
	want(t, addr, ask("PUT", "/worker_addresses/n1:0", strings.Repeat("x", 64<<10+1)),
		"HTTP/1.1 413 Request Entity Too Large|Content-Length: 0|")
	want(t, addr, ask("PUT", "/global/rank_7", "host"), fmt.Sprintf(found, 0))
	if got := <-d.seen; got != 7 {
		t.Errorf("seen %d", got)
	}
	d.place <- "0,2,0,1,0,2"
	want(t, addr, ask("GET", "/rank_and_size/n1:0", ""), fmt.Sprintf(found, 11)+"0,2,0,1,0,2")

	// A worker that hangs up is let go.
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, ask("GET", "/rank_and_size/n1:1", ""))
	conn.Close()
	if slot := <-d.gone; slot != "n1:1" {
		t.Errorf("let go of %q", slot)
	}
}

func FuzzServer(f *testing.F) {
	for _, c := range [][3]string{
		{"GET", "/global/0", ""},
		{"PUT", "/global/0", "x"},
		{"DELETE", "/global/0", ""},
		{"PUT", "/local_a/rank_0", "host"},
		{"PUT", "/worker_addresses/a:0", "gAWV"},
		{"GET", "/rank_and_size/a:0", ""},
		{"POST", "//", ""},
		{"GET", "", ""},
		{"PUT", "/global/rank_-1", ""},
	} {
		f.Add(c[0], c[1], []byte(c[2]))
	}
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		d := &driver{place: make(chan string, 1), seen: make(chan int, 1)}
		s := kv.New(d)
		s.Begin(map[string]int{"global": 2, "local_a": 1})
		d.place <- "place"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, &http.Request{
			Method: method, RequestURI: path, Body: io.NopCloser(strings.NewReader(string(body))), ContentLength: int64(len(body)),
			URL: &url.URL{},
		})
		if !slices.Contains([]int{200, 400, 404, 405, 413}, w.Code) || w.Header().Get("Content-Length") == "" {
			t.Fatalf("%s %q: %d %v", method, path, w.Code, w.Header())
		}
		if method == "PUT" && w.Code == 200 && !strings.HasPrefix(path, "/worker_addresses/") &&
			!strings.HasPrefix(path, "/rank_and_size/") {
			w = httptest.NewRecorder()
			s.ServeHTTP(w, &http.Request{Method: "GET", RequestURI: path, Body: http.NoBody, URL: &url.URL{}})
			if w.Code != 200 || w.Body.String() != string(body) {
				t.Fatalf("GET %q: %d %q, want %q", path, w.Code, w.Body, body)
			}
		}
	})
}
