package trace

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"muster/internal/testutil"
)

// OpenTelemetry's own code reads what is sent.
func TestExport(t *testing.T) {
	var mu sync.Mutex
	var got []*collector.ExportTraceServiceRequest
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		req := &collector.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, req)
		}
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" ||
			r.Header.Get("Content-Type") != "application/x-protobuf" ||
			r.Header.Get("X-Key") != "a b" {
			t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
		}
		mu.Lock()
		got = append(got, req)
		mu.Unlock()
	}))
	defer server.Close()
	c, found, err := FromEnviron([]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL + "/", "OTEL_EXPORTER_OTLP_HEADERS=x-key=a%20b,", "OTEL_SERVICE_NAME=train",
		"TRACEPARENT=00-000102030405060708090a0b0c0d0e0f-0102030405060708-01",
	}, "job", zerolog.Nop())
	if err != nil || !found {
		t.Fatal(found, err)
	}
	c.Resource = []Attribute{{Key: "host.name", Text: "n1"}}
	e := Open(c)
	began := time.Unix(1767225600, 5)
	job, child := NewID(), NewID()
	e.Add(Span{
		Name: "check \xff", Begin: began, End: began.Add(time.Second), ID: child, Parent: job,
		Attributes: []Attribute{{Key: "n", Number: -3}},
	})
	e.Add(Span{Name: "job", Begin: began, End: began.Add(time.Minute), ID: job, Failed: true, Message: "why"})
	e.Close()
	if len(got) != 1 || len(got[0].ResourceSpans) != 1 || len(got[0].ResourceSpans[0].ScopeSpans) != 1 {
		t.Fatalf("%v", got)
	}
	of := got[0].ResourceSpans[0]
	if a := of.Resource.Attributes; len(a) != 2 || a[0].Key != "service.name" || a[0].Value.GetStringValue() != "train" ||
		a[1].Value.GetStringValue() != "n1" || of.ScopeSpans[0].Scope.Name != "muster" {
		t.Errorf("%v", of)
	}
	spans := of.ScopeSpans[0].Spans
	if len(spans) != 2 {
		t.Fatalf("%v", spans)
	}
	s, j := spans[0], spans[1]
	if s.Name != "check \uFFFD" || string(s.ParentSpanId) != string(job[:]) || string(s.SpanId) != string(child[:]) ||
		s.StartTimeUnixNano != 1767225600000000005 || s.EndTimeUnixNano-s.StartTimeUnixNano != 1e9 ||
		s.Attributes[0].Value.GetIntValue() != -3 ||
		s.Kind.String() != "SPAN_KIND_INTERNAL" || s.Status != nil {
		t.Errorf("%v", s)
	}
	if string(j.ParentSpanId) != "\x01\x02\x03\x04\x05\x06\x07\x08" ||
		string(j.TraceId) != "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f" ||
		j.Status.Code.String() != "STATUS_CODE_ERROR" || j.Status.Message != "why" {
		t.Errorf("%v", j)
	}
}

// What names no collector that could be told, and what is the same trace.
func TestFromEnviron(t *testing.T) {
	for _, none := range [][]string{
		nil,
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_SDK_DISABLED=true"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_TRACES_EXPORTER=none"},
	} {
		if _, found, err := FromEnviron(none, "", zerolog.Nop()); found || err != nil {
			t.Errorf("%v: %v %v", none, found, err)
		}
	}
	for _, wrong := range [][]string{
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=a:4317"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://"},
	} {
		if _, found, err := FromEnviron(wrong, "", zerolog.Nop()); found || err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
	of := func(run string) Config {
		c, _, _ := FromEnviron([]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://a/b", "TRACEPARENT=garbage"}, run, zerolog.Nop())
		return c
	}
	if a, b := of("x"), of("x"); a.Trace != b.Trace || a.URL != "http://a/b" || a.Parent != (ID{}) {
		t.Errorf("%+v %+v", a, b)
	}
	if a, b := of(""), of(""); a.Trace == b.Trace {
		t.Error("two jobs share a trace")
	}
}

// A collector that is not there, or does not take spans, is told of once, and nobody waits for it.
func TestNoCollector(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	for _, url := range []string{"http://127.0.0.1:1", server.URL} {
		log := &testutil.Buffer{}
		c, _, err := FromEnviron([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url}, "", zerolog.New(log))
		if err != nil {
			t.Fatal(err)
		}
		e := Open(c)
		for range 2 * mostSpans {
			e.Add(Span{Name: "a"})
		}
		e.Close()
		if strings.Count(log.String(), "warn") != 1 {
			t.Errorf("%s", log)
		}
	}
	var none *Exporter
	none.Add(Span{})
	none.Close()
}

// The end cuts a request that goes on, and tells its spans once more: nobody waits longer than for the last word.
func TestCloseCutsARequest(t *testing.T) {
	asked, release := make(chan []string, 9), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		req := &collector.ExportTraceServiceRequest{}
		if err := proto.Unmarshal(body, req); err != nil {
			t.Error(err)
		}
		var names []string
		for _, s := range req.ResourceSpans[0].ScopeSpans[0].Spans {
			names = append(names, s.Name)
		}
		asked <- names
		<-release
	}))
	defer server.Close()
	defer close(release)
	c, _, err := FromEnviron([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL}, "", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	e := Open(c)
	e.Add(Span{Name: "a"})
	<-asked // within every
	e.Add(Span{Name: "b"})
	began := time.Now()
	e.Close()
	if took := time.Since(began); took >= lastWord+patience/2 {
		t.Errorf("the end took %v", took)
	}
	if last := <-asked; !slices.Equal(last, []string{"a", "b"}) {
		t.Errorf("the last word is of %q", last)
	}
}
