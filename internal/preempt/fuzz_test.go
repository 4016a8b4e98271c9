package preempt

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
)

// FuzzAnswer: whatever answers in the place of a metadata service, the answer is a notice that can be shown, or none.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		`{"action":"terminate","time":"2026-01-01T00:00:00Z"}`, "TRUE", "TERMINATE_ON_HOST_MAINTENANCE",
		`{"Events":[{"EventId":"a","EventType":"Preempt","EventStatus":"Scheduled","NotBefore":"x","Resources":["vm"]}]}`, "\x1b[2J",
	} {
		f.Add([]byte("HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nETag: 1f\r\n\r\n" + body))
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	var mu sync.Mutex
	var says []byte
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			answer := says
			mu.Unlock()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = conn.Write(answer)
			}
			_ = conn.Close()
		}
	})
	f.Cleanup(func() { _ = l.Close(); wg.Wait() })
	base := "http://" + l.Addr().String()
	f.Fuzz(func(t *testing.T, answer []byte) {
		mu.Lock()
		says = answer
		mu.Unlock()
		for _, s := range []*Source{awsSpot(base), awsRebalance(base), gcpPreempted(base), gcpMaintenance(base), azureEvents(base)} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			n, err := s.ask(ctx)
			cancel()
			if err == nil && n != nil && (n.What == "" || strings.ContainsFunc(n.What, func(r rune) bool { return !unicode.IsPrint(r) })) {
				t.Errorf("%q is the notice %q of %s", answer, n.What, s)
			}
		}
	})
}
