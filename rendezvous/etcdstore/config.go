// Package etcdstore is a rendezvous.Store on an etcd cluster that speaks the v3 API (etcd 3.4 or later).
//
// It keeps two promises beyond the contract of rendezvous.Store. A write is applied once, also when its answer was lost
// in a change of leader and it had to be sent again (write.go). And the keys of a job vanish when its last agent has
// been gone for a while: they hang on one lease that all stores of the job share and keep alive (lease.go).
//
// Calls outlive the death of members: they try again until their context ends, and say then which members do not
// answer. This is the only package that imports etcd's client.
package etcdstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"

	"muster/internal/errhint"
)

// Defaults of Config.
const (
	DefaultPrefix   = "/muster/"
	DefaultLeaseTTL = time.Minute
)

const (
	minLeaseTTL = time.Second
	maxLeaseTTL = 30 * 24 * time.Hour
	maxPrefix   = 1 << 10
	maxLease    = 1 << 10
)

// Config says where the cluster is and what the store's keys belong to.
type Config struct {
	// Endpoints are the client addresses of members, "host:port". One that answers is enough to begin; those that are
	// named here are all that are ever used.
	Endpoints []string
	// TLS is whether the members speak TLS. CACert is the file of the authority that signed their certificates, empty
	// for those that this machine trusts. Cert and CertKey are ours, both or none. All are PEM.
	TLS                   bool
	CACert, Cert, CertKey string
	// User and Password are for a cluster with authentication, both or none.
	User, Password string
	// Prefix stands in front of every key; empty means DefaultPrefix.
	Prefix string
	// Lease is the name of the job. Stores with the same Prefix and Lease share what keeps their keys.
	Lease string
	// LeaseTTL is how long the keys stay when no store of the job is left, in whole seconds, rounded up; 0 means
	// DefaultLeaseTTL. The store that is opened first decides; etcd itself has a minimum of about two seconds.
	LeaseTTL time.Duration
	// Log gets a warning when the keys of the job were lost, and debug lines of what had to be tried again.
	Log zerolog.Logger

	dial []grpc.DialOption // of tests
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.LeaseTTL == 0 {
		c.LeaseTTL = DefaultLeaseTTL
	}
	if rest := c.LeaseTTL % time.Second; rest > 0 {
		c.LeaseTTL += time.Second - rest
	}
	return c
}

// Validate returns everything that is wrong with c as one error with the status of wrong usage. It looks at no file.
func (c Config) Validate() error {
	var bad *multierror.Error
	add := func(format string, args ...any) { bad = multierror.Append(bad, errhint.Usagef(format, args...)) }
	c = c.withDefaults()
	if len(c.Endpoints) == 0 {
		add("no etcd endpoint is given")
	}
	seen := make(map[string]bool)
	for _, e := range c.Endpoints {
		if err := checkEndpoint(e); err != nil {
			bad = multierror.Append(bad, err)
		} else if seen[e] {
			add("etcd endpoint %s is given twice", e)
		}
		seen[e] = true
	}
	if !c.TLS && (c.CACert != "" || c.Cert != "" || c.CertKey != "") {
		add("certificates for etcd are given, but TLS is off")
	}
	if (c.Cert == "") != (c.CertKey == "") {
		add("a certificate for etcd and its key belong together: %s is given alone", oneOf(c.Cert != "", "the certificate", "the key"))
	}
	if (c.User == "") != (c.Password == "") {
		add("a user of etcd and a password belong together: %s is given alone", oneOf(c.User != "", "the user", "the password"))
	}
	if len(c.Prefix) > maxPrefix {
		add("prefix of %d bytes for etcd's keys exceeds the limit of %d", len(c.Prefix), maxPrefix)
	}
	if c.Lease == "" {
		add("an etcd store needs the name of its job")
	}
	if len(c.Lease) > maxLease {
		add("name of the job of %d bytes exceeds the limit of %d", len(c.Lease), maxLease)
	}
	if c.LeaseTTL < minLeaseTTL || c.LeaseTTL > maxLeaseTTL {
		add("keys that stay for %v: between %v and %v is possible", c.LeaseTTL, minLeaseTTL, maxLeaseTTL)
	}
	return errhint.Code(bad.ErrorOrNil(), errhint.Usage)
}

func oneOf(first bool, a, b string) string {
	if first {
		return a
	}
	return b
}

func checkEndpoint(endpoint string) error {
	if strings.Contains(endpoint, "://") {
		return errhint.With(errhint.Usagef("cannot use %q as an etcd endpoint: it has a scheme", endpoint),
			"give host:port; TLS has a setting of its own")
	}
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return errhint.With(errhint.Usagef("cannot use %q as an etcd endpoint: %w", endpoint, err),
			"give host:port; etcd's usual port is 2379")
	}
	if host == "" {
		return errhint.Usagef("cannot use %q as an etcd endpoint: no host", endpoint)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errhint.Usagef("cannot use %q as an etcd endpoint: %q is no port", endpoint, port)
	}
	return nil
}

// tls returns what the files say, nil without TLS.
func (c Config) tls() (*tls.Config, error) {
	if !c.TLS {
		return nil, nil //nolint:nilnil // no TLS is what a nil configuration means to everybody who takes one
	}
	var bad *multierror.Error
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CACert != "" {
		pem, err := os.ReadFile(c.CACert)
		if err == nil {
			if out.RootCAs = x509.NewCertPool(); !out.RootCAs.AppendCertsFromPEM(pem) {
				err = errors.New("it holds no PEM certificate")
			}
		}
		if err != nil {
			bad = multierror.Append(bad, errhint.Usagef("cannot use %q as the certificate of etcd's authority: %w", c.CACert, err))
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.CertKey)
		if err != nil {
			bad = multierror.Append(bad,
				errhint.Usagef("cannot use %q with the key %q as our certificate for etcd: %w", c.Cert, c.CertKey, err))
		}
		out.Certificates = []tls.Certificate{pair}
	}
	if err := bad.ErrorOrNil(); err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	return out, nil
}

// String names the cluster in errors.
func (c Config) String() string { return fmt.Sprintf("etcd at %s", strings.Join(c.Endpoints, ",")) }
