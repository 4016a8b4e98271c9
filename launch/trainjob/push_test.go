package trainjob

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/launch/report"
)

// server stands for the status server of Trainer, by the schema of KEP-2779.
type server struct {
	*httptest.Server
	t      *testing.T
	status atomic.Int64
	hangs  atomic.Bool // until the client goes

	mu  sync.Mutex
	got []map[string]any
}

const path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ns/trainjobs/job/status"

func newServer(t *testing.T) (*server, Config, *testutil.Buffer) {
	s := &server{t: t}
	s.status.Store(http.StatusOK)
	s.Server = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &testutil.Buffer{}
	c, found := FromEnviron([]string{"A=b", variableURL + "=" + s.URL + path, variableToken + "=" + token, variableCA + "=" + ca},
		zerolog.New(log))
	if !found {
		t.Fatal("not found")
	}
	c.every = 20 * time.Millisecond
	return s, c, log
}

// serve checks a request by the schema.
func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	var body struct {
		TrainerStatus *struct {
			ProgressPercentage        *int32
			EstimatedRemainingSeconds *int32
			Metrics                   []struct{ Name, Value string }
			LastUpdatedTime           *time.Time
		}
	}
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	err := dec.Decode(&body)
	b := body.TrainerStatus
	if err != nil || r.Method != http.MethodPost || r.URL.Path != path || r.Header.Get("Authorization") != "Bearer secret" ||
		r.Header.Get("Content-Type") != "application/json" || b == nil || b.LastUpdatedTime == nil ||
		b.ProgressPercentage != nil && (*b.ProgressPercentage < 0 || *b.ProgressPercentage > 100) ||
		b.EstimatedRemainingSeconds != nil && *b.EstimatedRemainingSeconds < 0 {
		s.t.Errorf("%s %s %v %v %+v", r.Method, r.URL, r.Header, err, b)
	}
	got := map[string]any{"percent": b.ProgressPercentage, "left": b.EstimatedRemainingSeconds}
	for _, m := range b.Metrics {
		if m.Name == "" || m.Value == "" {
			s.t.Errorf("%+v", b.Metrics)
		}
		got[m.Name] = m.Value
	}
	s.mu.Lock()
	s.got = append(s.got, got)
	s.mu.Unlock()
	if s.hangs.Load() {
		<-r.Context().Done()
		return
	}
	if s.status.Load() == http.StatusFound {
		w.Header().Set("Location", "https://elsewhere.invalid/")
	}
	w.WriteHeader(int(s.status.Load()))
}

func (s *server) last() (map[string]any, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) == 0 {
		return nil, 0
	}
	return s.got[len(s.got)-1], len(s.got)
}

// running is a job at step 25 of 100.
func running() report.Status {
	median := 2.0
	return report.Status{
		Phase: report.PhaseRunning, WorldSize: 8, RestartCount: 1, Accounting: &report.Accounting{Goodput: 0.5},
		Ranks: []report.Rank{{}, {Progress: &report.Progress{
			Step: 25, Total: 100, StepSeconds: &median, Values: map[string]float64{"loss": 0.25, "": 1},
		}}},
	}
}

// What is pushed while a job runs, and when it has ended.
func TestPush(t *testing.T) {
	s, c, log := newServer(t)
	var ended atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Push(ctx, c, func() report.Status {
			d := running()
			if ended.Load() {
				d.Phase = report.PhaseSucceeded
			}
			return d
		})
	}()
	testutil.Eventually(t, time.Minute, "two are pushed", func() bool { _, n := s.last(); return n >= 2 })
	got, _ := s.last()
	if *got["percent"].(*int32) != 25 || *got["left"].(*int32) != 150 || got["loss"] != "0.25" || got["step"] != "25" ||
		got["goodput"] != "0.5000" || got["world_size"] != "8" || got["restarts"] != "1" || len(got) != 8 {
		t.Errorf("%v", got)
	}
	ended.Store(true)
	cancel()
	<-done
	if got, _ := s.last(); *got["percent"].(*int32) != 100 || *got["left"].(*int32) != 0 {
		t.Errorf("%v", got)
	}
	if log.String() != "" {
		t.Error(log)
	}
}

// A server that does not take it, or leads elsewhere, is told of once, and harms nobody.
func TestPushFails(t *testing.T) {
	for _, code := range []int{http.StatusForbidden, http.StatusFound, http.StatusInternalServerError} {
		s, c, log := newServer(t)
		s.status.Store(int64(code))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Push(ctx, c, running)
		}()
		testutil.Eventually(t, time.Minute, "three are pushed", func() bool { _, n := s.last(); return n >= 3 })
		cancel()
		<-done
		if strings.Count(log.String(), `"level":"warn"`) != 1 || strings.Contains(log.String(), "secret") {
			t.Errorf("%d: %s", code, log)
		}
	}
	for name, spoil := range map[string]func(*Config){
		"no TLS": func(c *Config) { c.URL = "http://127.0.0.1/" }, "no address": func(c *Config) { c.URL = "::" },
		"no certificate":   func(c *Config) { c.CAFile = c.TokenFile },
		"no file":          func(c *Config) { c.CAFile = "/nowhere" },
		"no token":         func(c *Config) { c.TokenFile = "/nowhere" },
		"another's":        func(c *Config) { c.CAFile = "" },
		"nobody listens":   func(c *Config) { c.URL = "https://127.0.0.1:1" + path },
		"an endless token": func(c *Config) { c.TokenFile = "/dev/zero" },
	} {
		s, c, log := newServer(t)
		spoil(&c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Push(ctx, c, running)
		}()
		testutil.Eventually(t, time.Minute, name, func() bool { return strings.Contains(log.String(), "warn") })
		cancel()
		<-done
		if _, n := s.last(); n != 0 {
			t.Errorf("%s: something was pushed", name)
		}
	}
}

// pushing pushes the status of a job until end, which lets the job succeed and returns how long Push took then.
func pushing(t *testing.T, c Config) (end func() time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	var ended atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		Push(ctx, c, func() report.Status {
			d := running()
			if ended.Load() {
				d.Phase = report.PhaseSucceeded
			}
			return d
		})
	}()
	return func() time.Duration {
		began := time.Now()
		ended.Store(true)
		cancel()
		<-done
		return time.Since(began)
	}
}

// The end cuts a request that goes on, and a push that failed does not keep the last word from being told.
func TestPushEnds(t *testing.T) {
	t.Parallel()
	s, c, _ := newServer(t)
	s.hangs.Store(true)
	end := pushing(t, c)
	testutil.Eventually(t, time.Minute, "one goes on", func() bool { _, n := s.last(); return n >= 1 })
	if took := end(); took >= lastWord+patience/2 {
		t.Errorf("the end took %v", took)
	}
	if got, n := s.last(); n < 2 || *got["percent"].(*int32) != 100 {
		t.Errorf("%d were pushed, the last of them %v", n, got)
	}

	s, c, _ = newServer(t)
	s.status.Store(http.StatusInternalServerError)
	c.every = time.Second // the second one is 2 s later
	end = pushing(t, c)
	testutil.Eventually(t, time.Minute, "one fails", func() bool { _, n := s.last(); return n >= 1 })
	s.status.Store(http.StatusOK)
	end()
	if got, _ := s.last(); *got["percent"].(*int32) != 100 {
		t.Errorf("the last one is %v", got)
	}
}

// Pauses grow while a server does not take what is pushed.
func TestPushPauses(t *testing.T) {
	s, c, _ := newServer(t)
	s.status.Store(http.StatusInternalServerError)
	end := pushing(t, c)
	began := time.Now()
	testutil.Eventually(t, time.Minute, "six are pushed", func() bool { _, n := s.last(); return n >= 6 })
	if took, least := time.Since(began), 40*c.every/2; took < least { // 1+2+4+8+16+32 pauses, and 11 without growth
		t.Errorf("six pushes came within %v, want %v at least", took, least)
	}
	end()
}

// Any numbers become a status that the schema has.
func TestStatusOf(t *testing.T) {
	huge := 1e300
	for _, p := range []report.Progress{
		{Step: 1 << 62, Total: 1, StepSeconds: &huge},
		{Step: -1 << 62, Total: 1 << 62, StepSeconds: &huge},
		{Step: 3},
	} {
		s := statusOf(&report.Status{Ranks: []report.Rank{{Progress: &p}}}, time.Now())
		if s.ProgressPercentage != nil && (*s.ProgressPercentage < 0 || *s.ProgressPercentage > 100) ||
			s.EstimatedRemainingSeconds != nil && *s.EstimatedRemainingSeconds < 0 {
			t.Errorf("%+v: %+v", p, s)
		}
	}
}
