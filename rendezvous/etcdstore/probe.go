package etcdstore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"muster/internal/errhint"
)

const (
	probeLimit   = time.Second     // of each step
	probeAgain   = 2 * time.Second // between two inspections that calls ask for
	maxProbeRead = 64 << 10        // bytes
)

// finding is what one endpoint is, seen from here.
type finding struct {
	endpoint string
	says     string // in words; empty for a member that has a leader
	answers  bool   // it is a member of an etcd cluster that speaks v3
	wrong    bool   // waiting will not make it one that we can talk to
	hint     string
}

type findings []finding

// String says what is wrong, empty for nothing.
func (f findings) String() string {
	answering := 0
	var says []string
	for _, one := range f {
		if one.answers {
			answering++
		}
		if one.says != "" {
			says = append(says, one.endpoint+": "+one.says)
		}
	}
	if len(says) == 0 {
		return ""
	}
	list := strings.Join(says, "; ")
	switch {
	case answering == 0:
		return "no etcd answers: " + list
	case answering <= len(f)/2:
		return fmt.Sprintf("no quorum: %d of %d members answer: %s", answering, len(f), list)
	case strings.Contains(list, noLeader):
		return "no quorum: " + list
	default:
		return list
	}
}

const (
	noLeader = "it has no leader"
	silent   = "it takes connections, but does not answer"
)

// hopeless returns an error if every endpoint is wrong for good.
func (f findings) hopeless() error {
	hint := ""
	var says []string
	for _, one := range f {
		if !one.wrong {
			return nil
		}
		if hint == "" {
			hint = one.hint
		}
		says = append(says, one.endpoint+": "+one.says)
	}
	return errhint.With(errors.New(strings.Join(says, "; ")), hint)
}

// suspect inspects the endpoints behind the caller's back, so that calls which end meanwhile can say what is wrong.
func (s *Store) suspect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.asking || time.Since(s.asked) < probeAgain {
		return
	}
	s.asking = true
	s.wg.Go(func() {
		found := s.inspect(s.life)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asking, s.asked, s.trouble = false, time.Now(), found.String()
	})
}

// inspect asks each endpoint apart from the others.
func (s *Store) inspect(ctx context.Context) findings {
	found := make(findings, len(s.cfg.Endpoints))
	var wg sync.WaitGroup
	for i, endpoint := range s.cfg.Endpoints {
		wg.Go(func() { found[i] = s.probe(ctx, endpoint) })
	}
	wg.Wait()
	return found
}

// probe finds out what endpoint is: by etcd's own question for a member's state, which needs neither a leader nor a
// user, and where that is not answered by what a stranger finds there.
func (s *Store) probe(ctx context.Context, endpoint string) finding {
	f := finding{endpoint: endpoint}
	state, err := s.askState(ctx, endpoint)
	if err == nil || refusal(err) {
		f.answers = true
		if err == nil && state.Leader == 0 {
			f.says = noLeader
		}
		return f
	}
	if ctx.Err() != nil {
		f.says = "no answer yet"
		return f
	}
	if isContext(err) {
		s.cut(endpoint) // whoever waits for an answer from there waits in vain
	}
	if s.tls == nil {
		s.probePlain(ctx, &f)
	} else {
		s.probeTLS(ctx, &f)
	}
	if f.says == "" { // an etcd, then, but one that did not answer
		f.says = "it does not answer"
	}
	return f
}

// refusal says whether err is an etcd's answer, if not the one that was asked for. Other servers, and what stands in
// front of them, answer with the codes left out here.
func refusal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.FailedPrecondition, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}

func (s *Store) askState(ctx context.Context, endpoint string) (*pb.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	creds := insecure.NewCredentials()
	if s.tls != nil {
		creds = credentials.NewTLS(s.tls)
	}
	conn, err := grpc.NewClient("passthrough:///"+endpoint, append(connectOptions(dial), grpc.WithTransportCredentials(creds))...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
}

// probePlain looks at an endpoint that should speak plain HTTP/2 and did not.
func (s *Store) probePlain(ctx context.Context, f *finding) {
	conn, err := dialProbe(ctx, f.endpoint)
	if err != nil {
		f.says = unreachable(err)
		return
	}
	said, err := ask(conn, f.endpoint)
	if len(said) == 0 {
		if isTimeout(err) {
			f.says = silent
			return
		}
		if speaksTLS(ctx, f.endpoint) {
			said = []byte{recordAlert, 3}
		}
	}
	const tlsHint = "turn TLS on for this cluster, and give its authority's certificate"
	switch {
	case len(said) >= 2 && said[0] == recordAlert && said[1] == 3, bytes.Contains(said, []byte("HTTP request to an HTTPS server")):
		f.says, f.wrong, f.hint = "it speaks TLS, and we do not", true, tlsHint
	default:
		f.judge(said)
	}
}

// recordAlert is the first byte of a TLS alert; the second is the protocol's major version 3.
const recordAlert = 0x15

// probeTLS looks at an endpoint that should speak TLS and did not, or not with us.
func (s *Store) probeTLS(ctx context.Context, f *finding) {
	conn, err := dialProbe(ctx, f.endpoint)
	if err != nil {
		f.says = unreachable(err)
		return
	}
	cfg := s.tls.Clone()
	cfg.ServerName, _, _ = net.SplitHostPort(f.endpoint)
	secured := tls.Client(conn, cfg)
	err = secured.HandshakeContext(ctx)
	if err != nil {
		_ = conn.Close()
		if isTimeout(err) {
			f.says = silent
			return
		}
		f.wrong = true
		if refused := new(tls.CertificateVerificationError); errors.As(err, &refused) {
			f.says = fmt.Sprintf("its certificate is not to be trusted: %v", refused.Err)
			f.hint = "give the certificate of the authority that signed it, and the endpoint by a name that the certificate holds"
			return
		}
		if alert := new(tls.AlertError); errors.As(err, alert) {
			f.says = fmt.Sprintf("it refuses our TLS: %v", err)
			f.hint = "does it want a client certificate of its own authority?"
			return
		}
		s.notTLS(ctx, f, err)
		return
	}
	said, err := ask(secured, f.endpoint)
	if len(said) == 0 && err != nil && strings.Contains(err.Error(), "remote error: tls") {
		f.says, f.wrong = fmt.Sprintf("it refuses our certificate: %v", err), true
		f.hint = "etcd wants a client certificate of its own authority: give a certificate and its key"
		return
	}
	if len(said) == 0 && isTimeout(err) {
		f.says = silent
		return
	}
	f.judge(said)
}

// notTLS looks at an endpoint that answered a TLS handshake with err.
func (s *Store) notTLS(ctx context.Context, f *finding, err error) {
	if conn, dialed := dialProbe(ctx, f.endpoint); dialed == nil {
		said, _ := ask(conn, f.endpoint)
		if version, isEtcd := etcdVersion(said); isEtcd {
			f.says, f.hint = fmt.Sprintf("it is an etcd %s that speaks no TLS", version), "turn TLS off for this cluster"
			return
		}
		if len(said) > 0 {
			f.judge(said)
			return
		}
	}
	f.says, f.hint = fmt.Sprintf("it is not an etcd: it answers a TLS handshake with: %v", err), endpointHint
}

const endpointHint = "is this the client port of an etcd member, 2379 by default?"

// judge says what an endpoint is that does not answer as etcd v3, by its answer to a question for its version.
func (f *finding) judge(said []byte) {
	version, isEtcd := etcdVersion(said)
	switch {
	case isEtcd && strings.HasPrefix(version, "2."):
		f.says, f.wrong, f.hint = fmt.Sprintf("it is an etcd %s, which speaks v2 only", version), true, "muster needs etcd 3.4 or later"
	case isEtcd:
		f.answers = false // it may yet come to itself
	case bytes.HasPrefix(said, []byte("HTTP/")):
		line, _, _ := bytes.Cut(said, []byte("\r\n"))
		f.says, f.wrong, f.hint = fmt.Sprintf("a web server that is not an etcd answers there (%.40q)", line), true, endpointHint
	case len(said) > 0:
		f.says, f.wrong, f.hint = fmt.Sprintf("it is not an etcd: it says %.40q", said), true, endpointHint
	default:
		f.says, f.wrong, f.hint = "it is not an etcd: it closes the connection without a word", true, endpointHint
	}
}

func etcdVersion(said []byte) (version string, isEtcd bool) {
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(said)), nil)
	if err != nil {
		return "", false
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Server string `json:"etcdserver"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxProbeRead)).Decode(&answer); err != nil || answer.Server == "" ||
		len(answer.Server) > 40 {
		return "", false
	}
	return answer.Server, true
}

func dialProbe(ctx context.Context, endpoint string) (net.Conn, error) {
	end := time.Now().Add(probeLimit)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	d := net.Dialer{Deadline: end}
	conn, err := d.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(end)
	return conn, nil
}

// ask asks for etcd's version and returns what comes, which is nothing or whole if it is etcd's. It closes conn.
func ask(conn net.Conn, host string) (said []byte, err error) {
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(conn, maxProbeRead))
}

// speaksTLS says whether endpoint answers a TLS handshake as a server does. Nothing is told to it, so it need not be
// one that can be trusted.
func speaksTLS(ctx context.Context, endpoint string) bool {
	conn, err := dialProbe(ctx, endpoint)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	err = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	alert := new(tls.AlertError)
	return err == nil || errors.As(err, alert)
}

// unreachable words why nothing could be connected to.
func unreachable(err error) string {
	if dns := new(net.DNSError); errors.As(err, &dns) {
		return dns.Error()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "nobody listens there (connection refused)"
	}
	if isTimeout(err) {
		return "it cannot be reached (no answer)"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return fmt.Sprintf("it cannot be reached (%v)", errno)
	}
	return fmt.Sprintf("it cannot be reached (%v)", err)
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
