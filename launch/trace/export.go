// Package trace tells a collector of OpenTelemetry what the life of a job was: spans, in OTLP over HTTP, as protobuf.
package trace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// The bounds of what is told.
const (
	mostSpans  = 1024 // that wait
	every      = 5 * time.Second
	patience   = 5 * time.Second
	lastWord   = 2 * time.Second // at the end of the job
	mostAnswer = 4 << 10
)

// Span is something that took its time.
type Span struct {
	Name       string
	Begin, End time.Time
	// ID and Parent are of spans of this Exporter; a zero Parent is who has started the job, if somebody has said.
	ID, Parent ID
	Attributes []Attribute
	// Failed says that it ended in a failure, Message why.
	Failed  bool
	Message string
}

// ID names a span.
type ID [8]byte

// NewID returns a name that no other span has.
func NewID() (id ID) {
	_, _ = rand.Read(id[:]) // it does not fail
	return id
}

// Attribute says something of a span, as text, or as a number where the text is empty.
type Attribute struct {
	Key, Text string
	Number    int64
}

// Config says where spans go, and of what they are.
type Config struct {
	URL string
	// Headers go with each request.
	Headers http.Header
	Service string
	// Trace is what all spans belong to, Parent the span above those without one.
	Trace  [16]byte
	Parent ID
	// Resource says of what all spans are.
	Resource []Attribute
	Log      zerolog.Logger
}

// FromEnviron reads OpenTelemetry's variables; false where no collector is named. run is the job's id by which the
// nodes of a job find the same trace, empty where others could have the same.
func FromEnviron(environ []string, run string, log zerolog.Logger) (Config, bool, error) {
	vars := map[string]string{}
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") || name == "TRACEPARENT" {
			vars[name] = value
		}
	}
	c := Config{Log: log, Service: cmp.Or(vars["OTEL_SERVICE_NAME"], "muster"), Headers: http.Header{}}
	base := vars["OTEL_EXPORTER_OTLP_ENDPOINT"]
	if c.URL = vars["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]; c.URL == "" && base != "" {
		c.URL = strings.TrimRight(base, "/") + "/v1/traces"
	}
	if c.URL == "" || strings.EqualFold(vars["OTEL_SDK_DISABLED"], "true") || vars["OTEL_TRACES_EXPORTER"] == "none" {
		return c, false, nil
	}
	if p := cmp.Or(vars["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"], vars["OTEL_EXPORTER_OTLP_PROTOCOL"], "http/protobuf"); p != "http/protobuf" {
		return c, false, fmt.Errorf("the OpenTelemetry protocol %q is not there for muster's spans, only http/protobuf", p)
	}
	if at, err := url.Parse(c.URL); err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
		return c, false, fmt.Errorf("%q is no address of a collector of OpenTelemetry", c.URL)
	}
	for pair := range strings.SplitSeq(cmp.Or(vars["OTEL_EXPORTER_OTLP_TRACES_HEADERS"], vars["OTEL_EXPORTER_OTLP_HEADERS"]), ",") {
		name, value, _ := strings.Cut(pair, "=")
		if value, err := url.PathUnescape(strings.TrimSpace(value)); err == nil && strings.TrimSpace(name) != "" {
			c.Headers.Set(strings.TrimSpace(name), value)
		}
	}
	if run != "" {
		sum := sha256.Sum256([]byte("muster trace " + run))
		copy(c.Trace[:], sum[:])
	} else {
		_, _ = rand.Read(c.Trace[:]) // it does not fail
	}
	if p := strings.Split(vars["TRACEPARENT"], "-"); len(p) == 4 && len(p[1]) == 32 && len(p[2]) == 16 {
		trace, err := hex.DecodeString(p[1])
		parent, err2 := hex.DecodeString(p[2])
		if err == nil && err2 == nil {
			c.Trace, c.Parent = [16]byte(trace), ID(parent)
		}
	}
	return c, true, nil
}

// Exporter tells spans to a collector. A nil Exporter tells nothing.
type Exporter struct {
	cfg    Config
	client *http.Client
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	spans   []Span
	dropped int
}

// Open begins to tell spans.
func Open(c Config) *Exporter {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Exporter{cfg: c, cancel: cancel, client: &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	e.wg.Go(func() { e.run(ctx) })
	return e
}

// Add takes a span that has ended. It does not wait; where too many do, it is dropped.
func (e *Exporter) Add(s Span) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.spans) == mostSpans {
		e.dropped++
		return
	}
	e.spans = append(e.spans, s)
}

// Close tells what is left, no longer than lastWord.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	e.cancel()
	e.wg.Wait()
	e.client.CloseIdleConnections()
}

func (e *Exporter) run(ctx context.Context) {
	warned := false
	for running := true; running; {
		within, limit := ctx, patience
		select {
		case <-ctx.Done():
			running, within, limit = false, context.WithoutCancel(ctx), lastWord
		case <-time.After(every):
		}
		e.mu.Lock()
		spans, dropped := e.spans, e.dropped
		e.spans, e.dropped = nil, 0
		e.mu.Unlock()
		if len(spans) == 0 {
			continue
		}
		bounded, cancel := context.WithTimeout(within, limit)
		err := e.send(bounded, spans)
		cancel()
		if err != nil && running && ctx.Err() != nil { // it gives way to the last word
			e.mu.Lock()
			e.spans, e.dropped = append(spans, e.spans...), e.dropped+dropped
			e.mu.Unlock()
			continue
		}
		if err == nil && dropped > 0 {
			err = fmt.Errorf("%d spans were too many", dropped)
		}
		if err != nil && !warned {
			warned = true
			e.cfg.Log.Warn().Err(err).Msg("the OpenTelemetry collector does not hear of the job")
		}
	}
}

func (e *Exporter) send(ctx context.Context, spans []Span) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.cfg.URL, bytes.NewReader(e.cfg.encode(spans)))
	if err != nil {
		return err
	}
	req.Header = e.cfg.Headers.Clone()
	req.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, mostAnswer)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	return nil
}
