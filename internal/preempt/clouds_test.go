package preempt

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

type counter = atomic.Int64

// fake is a metadata service.
type fake struct {
	*httptest.Server
	mu    sync.Mutex
	pages map[string]string // by path; those that are missing are not found
	asked map[string]int
	wrong []string // questions that a real one would refuse
	wake  chan struct{}
}

// serve starts a fake: check says what is wrong with a question, respond answers it.
func serve(t *testing.T, check func(*http.Request) string,
	respond func(f *fake, w http.ResponseWriter, r *http.Request, page string),
) *fake {
	f := &fake{pages: map[string]string{}, asked: map[string]int{}, wake: make(chan struct{})}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.asked[r.URL.Path]++
		page, there := f.pages[r.URL.Path]
		if why := check(r); why != "" {
			f.wrong = append(f.wrong, r.URL.String()+": "+why)
		}
		f.mu.Unlock()
		if !there {
			http.NotFound(w, r)
			return
		}
		respond(f, w, r, page)
	}))
	t.Cleanup(func() {
		f.Close()
		for _, why := range f.wrong {
			t.Error(why)
		}
	})
	return f
}

// set changes a page, empty to remove it.
func (f *fake) set(path, page string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pages[path] = page; page == "" {
		delete(f.pages, path)
	}
	close(f.wake)
	f.wake = make(chan struct{})
}

func (f *fake) count(path string) func() int64 {
	return func() int64 {
		f.mu.Lock()
		defer f.mu.Unlock()
		return int64(f.asked[path])
	}
}

func has(name, want string) func(*http.Request) string {
	return func(r *http.Request) string {
		if got := r.Header.Get(name); got != want {
			return fmt.Sprintf("%s is %q", name, got)
		}
		return ""
	}
}

func plain(_ *fake, w http.ResponseWriter, _ *http.Request, page string) { _, _ = fmt.Fprint(w, page) }

// amazon is a fake that wants a token, and changes it when it is told to.
func amazon(t *testing.T) (f *fake, change func()) {
	const tokenPath = "/latest/api/token"
	token := atomic.Int64{}
	f = serve(t, func(r *http.Request) string {
		if r.URL.Path == tokenPath && (r.Method != http.MethodPut || r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "") {
			return "no right way to ask for a token"
		}
		return ""
	}, func(_ *fake, w http.ResponseWriter, r *http.Request, page string) {
		now := fmt.Sprint("token-", token.Load())
		switch {
		case r.URL.Path == tokenPath:
			_, _ = fmt.Fprint(w, now)
		case r.Header.Get("X-aws-ec2-metadata-token") != now:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = fmt.Fprint(w, page)
		}
	})
	f.set(tokenPath, "there")
	return f, func() { token.Add(1) }
}

const spotPath = "/latest/meta-data/spot/instance-action"

func TestAWS(t *testing.T) {
	f, change := amazon(t)
	sources := Cloud("aws", f.URL)
	if len(sources) != 2 {
		t.Fatal(sources)
	}
	w, _ := start(t, sources[0])
	again(t, f.count(spotPath))
	w.silent()
	change() // the token is over
	f.set(spotPath, `{"action": "terminate", "time": "2026-11-22T18:22:00Z"}`)
	n := w.hear()
	if n.Source != "AWS" || n.What != "terminate" || !n.Deadline.Equal(time.Date(2026, 11, 22, 18, 22, 0, 0, time.UTC)) {
		t.Errorf("%+v", n)
	}
	again(t, f.count(spotPath))
	w.silent()

	advised, _ := start(t, sources[1])
	f.set("/latest/meta-data/events/recommendations/rebalance", `{"noticeTime": "2026-11-22T18:00:00Z"}`)
	advised.logged("rebalance recommendation")
	again(t, f.count("/latest/meta-data/events/recommendations/rebalance"))
	advised.silent()
	if n := strings.Count(advised.log.String(), "may be taken away"); n != 1 {
		t.Errorf("told %d times\n%s", n, advised.log)
	}
}

// google answers as Google's service: at once, or when the page differs from what the question knows.
func google(f *fake, w http.ResponseWriter, r *http.Request, page string) {
	etag := func(page string) string { return fmt.Sprintf("%x", page) }
	for q := r.URL.Query(); q.Get("wait_for_change") == "true" && q.Get("last_etag") == etag(page); {
		f.mu.Lock()
		wake := f.wake
		page = f.pages[r.URL.Path]
		f.mu.Unlock()
		if q.Get("last_etag") != etag(page) {
			break
		}
		select {
		case <-wake:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Metadata-Flavor", "Google")
	w.Header().Set("ETag", etag(page))
	_, _ = fmt.Fprint(w, page)
}

func TestGCP(t *testing.T) {
	const preempted, maintenance = "/computeMetadata/v1/instance/preempted", "/computeMetadata/v1/instance/maintenance-event"
	f := serve(t, has("Metadata-Flavor", "Google"), google)
	f.set(preempted, "FALSE")
	f.set(maintenance, "NONE")
	sources := Cloud("gcp", f.URL)
	if len(sources) != 2 {
		t.Fatal(sources)
	}
	spot, _ := start(t, sources[0])
	again(t, f.count(preempted)) // the second question is answered when something changes
	spot.silent()
	f.set(preempted, "TRUE")
	if n := spot.hear(); n.Source != "GCP" || n.What != "preemption" {
		t.Errorf("%+v", n)
	}

	host, _ := start(t, sources[1])
	f.set(maintenance, "MIGRATE_ON_HOST_MAINTENANCE")
	again(t, f.count(maintenance))
	host.silent()
	f.set(maintenance, "TERMINATE_ON_HOST_MAINTENANCE")
	if n := host.hear(); !strings.Contains(n.What, "maintenance") {
		t.Errorf("%+v", n)
	}
	f.set(maintenance, "NONE") // it was called off, and comes again
	again(t, func() int64 { return f.count(maintenance)() * 2 })
	f.set(maintenance, "TERMINATE_ON_HOST_MAINTENANCE")
	host.hear()
	spot.silent()
}

// TestGCPSomebodyElse is answered by a service that is not Google's, such as a proxy.
func TestGCPSomebodyElse(t *testing.T) {
	f := serve(t, has("Metadata-Flavor", "Google"), plain)
	f.set("/computeMetadata/v1/instance/preempted", "TRUE")
	w, _ := start(t, Cloud("gcp", f.URL)[0])
	w.logged(`"level":"warn"`)
	w.silent()
}

func TestAzure(t *testing.T) {
	const name, events = "/metadata/instance/compute/name", "/metadata/scheduledevents"
	f := serve(t, func(r *http.Request) string {
		if r.URL.Query().Get("api-version") == "" {
			return "no version"
		}
		return has("Metadata", "true")(r)
	}, plain)
	f.set(name, "trainers_3")
	f.set(events, `{"DocumentIncarnation": 1, "Events": []}`)
	w, _ := start(t, Cloud("azure", f.URL)[0])
	again(t, f.count(events))
	w.silent()
	event := func(id, kind, status, machine, at string) string {
		return fmt.Sprintf(`{"EventId": %q, "EventStatus": %q, "EventType": %q, "ResourceType": "VirtualMachine", `+
			`"Resources": [%q], "NotBefore": %q, "DurationInSeconds": -1}`,
			id, status, kind, machine, at)
	}
	const at = "Sun, 22 Nov 2026 18:30:17 GMT"
	others := event("a", "Preempt", "Scheduled", "trainers_4", at) + "," + event("b", "Freeze", "Scheduled", "trainers_3", at) + "," +
		event("c", "Preempt", "Completed", "trainers_3", at)
	f.set(events, `{"DocumentIncarnation": 2, "Events": [`+others+`]}`)
	again(t, f.count(events))
	w.silent()
	f.set(events, `{"DocumentIncarnation": 3, "Events": [`+others+`,`+event("d", "Preempt", "Scheduled", "Trainers_3", at)+`]}`)
	n := w.hear()
	if n.Source != "Azure" || n.What != "Preempt" || !n.Deadline.Equal(time.Date(2026, 11, 22, 18, 30, 17, 0, time.UTC)) {
		t.Errorf("%+v", n)
	}
	f.set(events, `{"DocumentIncarnation": 4, "Events": [`+event("d", "Preempt", "Started", "trainers_3", "")+`]}`)
	again(t, f.count(events))
	w.silent() // the same one, begun
	f.set(events, `{"DocumentIncarnation": 5, "Events": [`+event("e", "Redeploy", "Scheduled", "trainers_3", at)+`]}`)
	if n := w.hear(); n.What != "Redeploy" {
		t.Errorf("%+v", n)
	}
	if f.count(name)() != 1 {
		t.Error("the name was asked for again")
	}
}

// TestMalformed answers with what no service says. It is told once, no notice comes of it, and asking goes on.
func TestMalformed(t *testing.T) {
	for _, body := range []string{
		"<html>sign in</html>", "{", "[]", `{"action": 3}`, `{"Events": null}`, `{"Events": {}}`,
		`{"Events": [{"EventId": 7}]}`, "\xff\x1b[2J", strings.Repeat("x", 2*maxAnswer),
	} {
		for _, cloud := range []string{"aws", "gcp", "azure"} {
			t.Run(fmt.Sprintf("%s %.20q", cloud, body), func(t *testing.T) {
				f := serve(t, func(*http.Request) string { return "" }, func(f *fake, w http.ResponseWriter, r *http.Request, page string) {
					w.Header().Set("Metadata-Flavor", "Google")
					plain(f, w, r, page)
				})
				for path, page := range map[string]string{
					"/latest/api/token": "token", spotPath: body, "/metadata/instance/compute/name": "vm",
					"/metadata/scheduledevents":              body,
					"/computeMetadata/v1/instance/preempted": body,
				} {
					f.set(path, page)
				}
				s, asked := counted(Cloud(cloud, f.URL)[0])
				w, _ := start(t, s)
				w.logged("not understood")
				w.logged(`"level":"warn"`)
				again(t, asked)
				w.silent()
				if n := strings.Count(w.log.String(), `"level":"warn"`); n != 1 {
					t.Errorf("%d warnings", n)
				}
			})
		}
	}
}

// TestRedirect leads elsewhere, where a notice is: nobody goes there.
func TestRedirect(t *testing.T) {
	elsewhere := serve(t, func(*http.Request) string { return "somebody went there" }, plain)
	for _, cloud := range []string{"aws", "gcp", "azure"} {
		f := serve(t, func(*http.Request) string { return "" }, func(_ *fake, w http.ResponseWriter, r *http.Request, _ string) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		})
		for _, path := range []string{"/latest/api/token", "/metadata/instance/compute/name", "/computeMetadata/v1/instance/preempted"} {
			f.set(path, "there")
		}
		w, _ := start(t, Cloud(cloud, f.URL)[0])
		w.logged("status 307")
		w.silent()
	}
}

// TestProxy has a proxy in the environment, which is not asked.
func TestProxy(t *testing.T) {
	proxy := serve(t, func(*http.Request) string { return "somebody asked the proxy" }, plain)
	t.Setenv("http_proxy", proxy.URL)
	t.Setenv("HTTP_PROXY", proxy.URL)
	f, _ := amazon(t)
	f.set(spotPath, `{"action": "terminate"}`)
	w, _ := start(t, Cloud("aws", f.URL)[0])
	w.hear()
}

// TestNobodyAnswers has a service that is not there, and comes later.
func TestNobodyAnswers(t *testing.T) {
	f, _ := amazon(t)
	f.set("/latest/api/token", "")
	w, _ := start(t, Cloud("aws", f.URL)[0])
	w.logged(`"level":"warn"`)
	w.logged("--ckpt-notices off")
	f.set(spotPath, `{"action": "stop"}`)
	f.set("/latest/api/token", "there")
	if n := w.hear(); n.What != "stop" || !n.Deadline.IsZero() {
		t.Errorf("%+v", n)
	}
}

// TestSilentService never answers: the watch ends all the same.
func TestSilentService(t *testing.T) {
	f := serve(t, func(*http.Request) string { return "" },
		func(_ *fake, _ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() })
	f.set("/metadata/instance/compute/name", "there")
	_, stop := start(t, Cloud("azure", f.URL)[0])
	for f.count("/metadata/instance/compute/name")() == 0 {
		time.Sleep(time.Millisecond)
	}
	stop()
}

func TestNoCloud(t *testing.T) {
	if s := Cloud("", Metadata); s != nil {
		t.Error(s)
	}
}
