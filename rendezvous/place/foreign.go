package place

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"muster/launch/job"
	"muster/rendezvous/membership"
)

// explain adds to why the store is not reached what listens at an endpoint instead, where that can be told.
func (m *meeting) explain(why error) error {
	if what, e := m.otherListener(); what != "" {
		return fmt.Errorf("%w: %s answers at %s", why, what, e)
	}
	return why
}

// otherListener is what else than a store listens at one of the endpoints, "" where nothing does that is known.
func (m *meeting) otherListener() (what string, at job.Endpoint) {
	for _, e := range m.Endpoints {
		conn, err := net.DialTimeout("tcp", e.String(), time.Second) //nolint:noctx // the context of the meeting may have ended
		if err != nil {
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		answer := make([]byte, 5)
		if _, err = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err == nil {
			_, err = io.ReadFull(conn, answer)
		}
		_ = conn.Close()
		if what := serverKind(answer); err == nil && what != "" {
			return what, e
		}
	}
	return "", at
}

// What serverKind knows.
const (
	webServer  = "a web server"
	grpcServer = "a gRPC server"
)

// serverKind tells a server by the first 5 bytes it says to a client of HTTP/1.0. One of gRPC begins with the frame of
// its settings (RFC 9113, 6.5: 24 bits of length, type 4, no flags, 6 bytes for each setting) whatever the client says.
func serverKind(answer []byte) string {
	switch {
	case string(answer) == "HTTP/":
		return webServer
	case len(answer) == 5 && answer[0] == 0 && answer[3] == 4 && answer[4] == 0 && (int(answer[1])<<8|int(answer[2]))%6 == 0:
		return grpcServer
	}
	return ""
}

// sayOpen says what is open to whom in a job of several nodes without a token, and how to close it: as a warning on the
// node that serves the store, so that it is said once. Of simulated nodes, which are on this machine for a while,
// hardly anybody wants to know.
func (m *meeting) sayOpen(cfg *membership.Config, simulated bool) {
	level, at := zerolog.InfoLevel, cfg.Place
	first := m.Endpoints[0]
	if m.Backend != "etcd" {
		at = first.String()
	}
	addr, err := netip.ParseAddr(first.Host)
	if local := first.Host == "localhost" || err == nil && addr.IsLoopback(); !local && (cfg.Hosts || m.Backend == "etcd") {
		level = zerolog.WarnLevel
	} else if local && simulated {
		level = zerolog.DebugLevel
	}
	m.log.WithLevel(level).Msg("no job token: whoever reaches " + at +
		" can change what this job does, and services between nodes stay off; " +
		"muster token job.token makes one, and --token-file job.token (MUSTER_TOKEN_FILE) on every node closes this")
}
