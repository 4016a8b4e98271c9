package dialect

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"muster/internal/errhint"
	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// Default ports: of the c10d rendezvous and ours, of the static one, and of etcd.
const (
	c10dPort   = 29400
	staticPort = 29500
	etcdPort   = 2379
)

var (
	endpointPort = lazyregexp.New(`^[0-9]{1,5}$`)
	// Compiled for whoever asks: the tables of letters take longer than the rest of what this package does at its
	// start, in each of muster's processes.
	endpointHost = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[\p{L}\p{N}_.:-]+$`) })
)

// parseEndpoint reads HOST[:PORT] as torchrun does (PyTorch 2.15.0, elastic/rendezvous/utils.py): IPv6 addresses in
// brackets, the part behind the last colon is the port. port is -1 when there is none. Unlike torchrun it takes an IPv6
// address with a zone, such as [fe80::1%eth0].
func parseEndpoint(text string) (host string, port int, err error) {
	text = strings.TrimSpace(text)
	host, port = text, -1
	bracketed := strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]")
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !bracketed {
		host = text[:i]
		digits := text[i+1:]
		port, err = strconv.Atoi(digits)
		if err != nil || !endpointPort().MatchString(digits) || port > 65535 {
			return "", 0, fmt.Errorf("the port %q must be a number from 0 to 65535", digits)
		}
	}
	if len(host) > 1 && strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if err := checkHost(host); err != nil {
		return "", 0, err
	}
	return host, port, nil
}

// checkHost refuses what is neither a name nor an address.
func checkHost(host string) error {
	addr, err := netip.ParseAddr(host)
	switch {
	case err == nil && addr.Zone() != "":
	case !endpointHost().MatchString(host):
		return fmt.Errorf("%q is neither a host name nor an IP address", host)
	case err != nil && strings.Contains(host, ":"): // torchrun would look for a host of this name
		return fmt.Errorf("%q is not an IPv6 address: write one in brackets, [ADDRESS]:PORT", host)
	}
	return nil
}

// parseEndpoints reads HOST[:PORT],... where nodes meet: others must be able to use what is written.
func parseEndpoints(text string, defaultPort int) ([]job.Endpoint, error) {
	var list []job.Endpoint
	for item := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(item) == "" {
			return nil, errors.New("an endpoint is empty: write HOST[:PORT], several with commas between")
		}
		host, port, err := parseEndpoint(item)
		if err != nil {
			return nil, err
		}
		if port < 0 {
			port = defaultPort
		}
		e := job.Endpoint{Host: host, Port: port}
		switch addr, _ := netip.ParseAddr(host); { // of a name it is the zero address
		case port == 0:
			return nil, fmt.Errorf("%s: the other nodes cannot know a free port: give one from 1 to 65535", e)
		case addr.IsUnspecified() || addr.Unmap().IsUnspecified():
			return nil, fmt.Errorf("%s: the other nodes cannot reach it: give this machine's name or address", e)
		case addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
			return nil, fmt.Errorf("%s: a link-local address needs its interface: [%s%%eth0], for example", e, host)
		case slices.Contains(list, e):
			return nil, fmt.Errorf("the endpoint %s is there twice", e)
		}
		list = append(list, e)
	}
	return list, nil
}

// isLoopback reports whether host always means the machine that asks.
func isLoopback(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	addr, err := netip.ParseAddr(host)
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || err == nil && addr.Unmap().IsLoopback()
}

// rdzvSchemes are what --rdzv may begin with, and the backends and default ports that they stand for.
var rdzvSchemes = []struct {
	scheme, backend string
	port            int
	tls             bool
}{
	{"c10d", backendC10d, c10dPort, false},
	{"muster", backendMuster, c10dPort, false},
	{"static", backendStatic, staticPort, false},
	{"etcd", backendEtcd, etcdPort, false},
	{"etcds", backendEtcd, etcdPort, true},
}

// parseRdzv reads the value of --rdzv, SCHEME://HOST[:PORT],..., into m.
func parseRdzv(m *job.Meeting, text string) error {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(text), "://")
	if !ok {
		return errors.New("write it as c10d://HOST:PORT, muster://HOST:PORT, etcd://HOST:PORT,HOST:PORT or static://HOST:PORT")
	}
	for _, s := range rdzvSchemes {
		if s.scheme != strings.ToLower(scheme) {
			continue
		}
		rest = strings.TrimSuffix(rest, "/")
		if strings.ContainsRune(rest, '@') {
			return errhint.With(errors.New("names and passwords do not belong on a command line, which everybody on the machine can read"),
				"give --etcd-user NAME and --etcd-password-file FILE")
		}
		if path := strings.IndexAny(rest, "/?#"); path >= 0 {
			return fmt.Errorf("nothing may stand behind the endpoints, but %q does", rest[path:])
		}
		endpoints, err := parseEndpoints(rest, s.port)
		if err != nil {
			return err
		}
		m.Backend, m.Endpoints, m.Etcd.TLS = s.backend, endpoints, s.tls || m.Etcd.TLS
		return nil
	}
	return fmt.Errorf("the scheme %q is unknown: choose one of c10d, muster, static, etcd, etcds", scheme)
}
