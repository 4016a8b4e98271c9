package preempt

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"muster/internal/printable"
)

// Metadata is where the metadata services of all three clouds listen.
const Metadata = "http://169.254.169.254"

// Cloud returns what tells of the end of a machine in a cloud: aws, gcp or azure, none for other names. base is where
// its metadata service listens, Metadata outside of tests.
func Cloud(name, base string) []*Source {
	switch name {
	case "aws":
		return []*Source{awsSpot(base), awsRebalance(base)}
	case "gcp":
		return []*Source{gcpPreempted(base), gcpMaintenance(base)}
	case "azure":
		return []*Source{azureEvents(base)}
	}
	return nil
}

const (
	quick = 5 * time.Second // for an answer that is there
	// Google's service is asked to answer when something changes, or after hold.
	hold = 60 * time.Second
	// Azure's takes up to two minutes for the first answer, by which it is switched on for the machine.
	slow = 130 * time.Second
)

// maxAnswer is how much of an answer is read, in bytes. What is longer is not understood.
const maxAnswer = 256 << 10

// service is a metadata service. It is asked without net/http's client, which would follow redirects and ask proxies
// unless it is told not to, and which makes muster half a megabyte larger.
type service struct{ base string }

// source makes a Source of a question to the service.
func (s *service) source(name string, every time.Duration, ask func(context.Context) (*Notice, error)) *Source {
	return &Source{name: name, every: every, ask: ask, instead: "let this process reach " + s.base + ", or give --ckpt-notices off"}
}

// answer is what a service said.
type answer struct {
	header http.Header
	body   string
}

// statusError is an answer that is none.
type statusError struct {
	path   string
	status int
}

func (e *statusError) Error() string { return fmt.Sprintf("%s: status %d", e.path, e.status) }

// dialLimit is how long a service may take to accept a connection.
const dialLimit = 2 * time.Second

// fetch asks, and returns an answer of status 200, or a statusError. header is a name and a value.
func (s *service) fetch(ctx context.Context, method, path string, limit time.Duration, header ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, nil)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set(header[0], header[1])
	req.Close = true
	address := req.URL.Host
	if req.URL.Port() == "" {
		address = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	conn, err := (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, "tcp", address)
	if err != nil {
		return answer{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	if err := req.Write(conn); err != nil {
		return answer{}, orCause(ctx, err)
	}
	reply, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 2*maxAnswer)), req)
	if err != nil {
		return answer{}, orCause(ctx, err)
	}
	body, err := io.ReadAll(io.LimitReader(reply.Body, maxAnswer))
	if err != nil {
		return answer{}, orCause(ctx, err)
	}
	path, _, _ = strings.Cut(path, "?")
	if reply.StatusCode != http.StatusOK {
		return answer{}, &statusError{path, reply.StatusCode}
	}
	return answer{reply.Header, strings.TrimSpace(string(body))}, nil
}

// orCause is why a connection failed: a closed one says nothing of the limit that closed it.
func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// puzzling is an error about an answer that is not understood.
func puzzling(path, body string) error {
	return fmt.Errorf("%s: not understood: %q", path, printable.Line(body, 80))
}

// imds is Amazon's service, version 2: questions carry a token.
type imds struct {
	*service
	token string
}

// get returns the body of a document, empty where there is none.
func (i *imds) get(ctx context.Context, path string) (string, error) {
	if i.token == "" {
		a, err := i.fetch(ctx, http.MethodPut, "/latest/api/token", quick, "X-aws-ec2-metadata-token-ttl-seconds", "21600")
		if err != nil {
			return "", err
		}
		i.token = a.body
	}
	a, err := i.fetch(ctx, http.MethodGet, path, quick, "X-aws-ec2-metadata-token", i.token)
	if failed, ok := errors.AsType[*statusError](err); ok && failed.status == http.StatusNotFound {
		return "", nil
	}
	if err != nil {
		i.token = "" // it may be over
	}
	return a.body, err
}

const awsEvery = 5 * time.Second

func awsSpot(base string) *Source {
	const path = "/latest/meta-data/spot/instance-action"
	i := &imds{service: &service{base}}
	return i.source("AWS", awsEvery, func(ctx context.Context) (*Notice, error) {
		body, err := i.get(ctx, path)
		if body == "" || err != nil {
			return nil, err
		}
		var said struct{ Action, Time string }
		if err := json.Unmarshal([]byte(body), &said); err != nil || said.Action == "" {
			return nil, puzzling(path, body)
		}
		at, _ := time.Parse(time.RFC3339, said.Time) // a notice without a time is one
		return &Notice{What: printable.Line(said.Action, 80), Deadline: at, id: body}, nil
	})
}

func awsRebalance(base string) *Source {
	i := &imds{service: &service{base}}
	return i.source("AWS", awsEvery, func(ctx context.Context) (*Notice, error) {
		body, err := i.get(ctx, "/latest/meta-data/events/recommendations/rebalance")
		if body == "" || err != nil {
			return nil, err
		}
		return &Notice{What: "rebalance recommendation", id: body, advice: true}, nil
	})
}

const gcpEvery = time.Second

// gcp asks for a value, and from the second time on for another one. means maps the values that are known to what they
// say, empty for nothing.
func gcp(base, key string, means map[string]string) *Source {
	path := "/computeMetadata/v1/instance/" + key
	s, etag := &service{base}, ""
	return s.source("GCP", gcpEvery, func(ctx context.Context) (*Notice, error) {
		question, limit := path, quick
		if etag != "" {
			question += fmt.Sprintf("?wait_for_change=true&timeout_sec=%d&last_etag=%s", int(hold.Seconds()), etag)
			limit += hold
		}
		a, err := s.fetch(ctx, http.MethodGet, question, limit, "Metadata-Flavor", "Google")
		if err != nil {
			etag = ""
			return nil, err
		}
		what, known := means[a.body]
		if !known || a.header.Get("Metadata-Flavor") != "Google" { // it signs all its answers
			etag = ""
			return nil, puzzling(path, a.body)
		}
		etag = a.header.Get("ETag")
		if strings.Trim(etag, "0123456789abcdefABCDEF") != "" {
			etag = "" // it stands in a URL
		}
		if what == "" {
			return nil, nil
		}
		return &Notice{What: what, id: what}, nil
	})
}

func gcpPreempted(base string) *Source {
	return gcp(base, "preempted", map[string]string{"TRUE": "preemption", "FALSE": ""})
}

// gcpMaintenance hears of maintenance that ends the machine, which it does with all that have accelerators. The others
// are moved while they run.
func gcpMaintenance(base string) *Source {
	return gcp(base, "maintenance-event", map[string]string{
		"NONE": "", "MIGRATE_ON_HOST_MAINTENANCE": "", "TERMINATE_ON_HOST_MAINTENANCE": "termination for maintenance",
	})
}

const azureEvery = 2 * time.Second

// azureEvents hears of scheduled events, of which the machines of a set hear together.
func azureEvents(base string) *Source {
	const (
		namePath   = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
		eventsPath = "/metadata/scheduledevents?api-version=2020-07-01"
	)
	s, own := &service{base}, ""
	return s.source("Azure", azureEvery, func(ctx context.Context) (*Notice, error) {
		if own == "" {
			a, err := s.fetch(ctx, http.MethodGet, namePath, quick, "Metadata", "true")
			if err != nil {
				return nil, err
			}
			own = a.body
		}
		a, err := s.fetch(ctx, http.MethodGet, eventsPath, slow, "Metadata", "true")
		if err != nil {
			return nil, err
		}
		var said struct{ Events *[]azureEvent }
		if json.Unmarshal([]byte(a.body), &said) != nil || said.Events == nil {
			return nil, puzzling("/metadata/scheduledevents", a.body)
		}
		events := slices.DeleteFunc(*said.Events, func(e azureEvent) bool { return !e.ends(own) })
		if len(events) == 0 {
			return nil, nil
		}
		e := slices.MinFunc(events, func(a, b azureEvent) int { return cmp.Or(a.at().Compare(b.at()), cmp.Compare(a.EventID, b.EventID)) })
		return &Notice{What: e.EventType, Deadline: e.at(), id: e.EventID}, nil
	})
}

// azureEvent is something that will happen to machines.
type azureEvent struct {
	EventID                           string `json:"EventId"`
	EventType, EventStatus, NotBefore string
	Resources                         []string
}

// ends reports whether the event takes the machine of a name away. A freeze takes seconds, and loses nothing.
func (e azureEvent) ends(name string) bool {
	return slices.Contains([]string{"Preempt", "Terminate", "Reboot", "Redeploy"}, e.EventType) &&
		slices.Contains([]string{"Scheduled", "Started"}, e.EventStatus) &&
		slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, name) })
}

// at is when it happens at the earliest, zero where it has begun.
func (e azureEvent) at() time.Time {
	at, _ := time.Parse(http.TimeFormat, e.NotBefore)
	return at
}
