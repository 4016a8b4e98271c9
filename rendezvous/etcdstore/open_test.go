package etcdstore_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/rendezvous/etcdstore"
	"muster/rendezvous/tcpstore"
)

func TestValidate(t *testing.T) {
	good := etcdstore.Config{Endpoints: []string{"etcd0:2379", "[::1]:2379"}, Lease: "job7"}
	must(t, good.Validate())
	for _, tc := range []struct {
		name   string
		change func(c *etcdstore.Config)
		want   []string
	}{
		{"nothing", func(c *etcdstore.Config) { *c = etcdstore.Config{} }, []string{"no etcd endpoint", "name of its job"}},
		{
			"endpoints", func(c *etcdstore.Config) {
				c.Endpoints = []string{"a", "http://b:2379", ":2379", "c:0", "c:http", "d:1", "d:1"}
			},
			[]string{
				`"a"`, `"http://b:2379" as an etcd endpoint: it has a scheme`, `":2379" as an etcd endpoint: no host`,
				`"0" is no port`, `"http" is no port`, "d:1 is given twice",
			},
		},
		{"certificates without TLS", func(c *etcdstore.Config) { c.CACert = "ca.pem" }, []string{"but TLS is off"}},
		{
			"half a pair", func(c *etcdstore.Config) { c.TLS, c.Cert, c.User = true, "cert.pem", "joe" },
			[]string{"the certificate is given alone", "the user is given alone"},
		},
		{
			"the other half", func(c *etcdstore.Config) { c.TLS, c.CertKey, c.Password = true, "key.pem", "secret" },
			[]string{"the key is given alone", "the password is given alone"},
		},
		{
			"lengths", func(c *etcdstore.Config) { c.Prefix, c.Lease = strings.Repeat("p", 1025), strings.Repeat("l", 1025) },
			[]string{"prefix of 1025 bytes", "job of 1025 bytes"},
		},
		{"times", func(c *etcdstore.Config) { c.LeaseTTL = -time.Second }, []string{"keys that stay for -1s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad := good
			tc.change(&bad)
			_, err := etcdstore.Open(within(t), bad)
			if errhint.CodeOf(err) != errhint.Usage {
				t.Errorf("status %d", errhint.CodeOf(err))
			}
			for _, want := range tc.want {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("%q is missing in: %v", want, err)
				}
			}
			if strings.Contains(fmt.Sprint(err), "secret") {
				t.Errorf("the password is told: %v", err)
			}
		})
	}
}

// wantRefused opens cfg, which must fail as described, before ctx ends unless that is what is expected.
func wantRefused(t *testing.T, cfg etcdstore.Config, status int, hint string, want ...string) {
	t.Helper()
	limit := patience
	ends := slices.Contains(want, context.DeadlineExceeded.Error())
	if ends {
		limit = 3 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s, err := etcdstore.Open(ctx, cfg)
	if err == nil {
		_ = s.Close()
		t.Fatal("opened")
	}
	t.Logf("%v\n\thint: %s", err, errhint.Of(err))
	if !ends && ctx.Err() != nil {
		t.Error("it took until the context ended")
	}
	if errhint.CodeOf(err) != status {
		t.Errorf("status %d, want %d", errhint.CodeOf(err), status)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is missing in: %v", w, err)
		}
	}
	if !strings.Contains(errhint.Of(err), hint) {
		t.Errorf("%q is missing in the hint: %s", hint, errhint.Of(err))
	}
}

func listen(t *testing.T, serve func(conn net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func TestOpenElsewhere(t *testing.T) {
	testutil.Long(t)
	at := func(endpoints ...string) etcdstore.Config {
		return etcdstore.Config{Endpoints: endpoints, Lease: "job"}
	}
	secure := func(endpoints ...string) etcdstore.Config {
		cfg := at(endpoints...)
		cfg.TLS = true
		return cfg
	}
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	webAddr := web.Listener.Addr().String()
	store, err := tcpstore.Listen(tcpstore.ServerConfig{})
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	storeAddr := fmt.Sprintf("127.0.0.1:%d", store.Port())
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}`)
	}))
	t.Cleanup(old.Close)

	gone := listen(t, func(conn net.Conn) { _ = conn.Close() })
	var held []net.Conn
	t.Cleanup(func() { // after listen's own
		for _, conn := range held {
			_ = conn.Close()
		}
	})
	mute := listen(t, func(conn net.Conn) { held = append(held, conn) })
	const refused = "127.0.0.1:1" // a port that nobody may choose
	ended := context.DeadlineExceeded.Error()

	t.Run("nobody", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, at(refused), errhint.TryAgain, "does etcd run there", refused+": nobody listens there", ended)
	})
	t.Run("no such name", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, at("no-such-host.invalid:2379"), errhint.TryAgain, "does etcd run there", "no-such-host.invalid", ended)
	})
	t.Run("mute", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, at(mute), errhint.TryAgain, "does etcd run there", mute+": it takes connections, but does not answer", ended)
	})
	t.Run("web server", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, at(webAddr), errhint.TryAgain, "client port", webAddr+": a web server that is not an etcd")
	})
	t.Run("web server and TLS", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, secure(webAddr), errhint.TryAgain, "client port", webAddr+": a web server that is not an etcd")
	})
	t.Run("web server beside nobody", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, at(webAddr, refused), errhint.TryAgain, "does etcd run there", webAddr+": a web server", refused+": nobody", ended)
	})
	t.Run("TCPStore", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, at(storeAddr), errhint.TryAgain, "client port", storeAddr+": it is not an etcd")
	})
	t.Run("TCPStore and TLS", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, secure(storeAddr), errhint.TryAgain, "client port", storeAddr+": it is not an etcd")
	})
	t.Run("hangs up", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, at(gone), errhint.TryAgain, "client port", gone+": it is not an etcd")
	})
	t.Run("v2 only", func(t *testing.T) {
		t.Parallel()
		wantRefused(t, at(old.Listener.Addr().String()), errhint.TryAgain, "3.4 or later", "it is an etcd 2.3.8, which speaks v2 only")
	})
}

func TestCredentials(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	const ttl = 1 // seconds that etcd remembers who logged in and did nothing since
	c := testutil.EtcdWith(t, testutil.EtcdOptions{Args: []string{"--auth-token-ttl", strconv.Itoa(ttl)}})
	cfg := job(c)
	for _, args := range [][]string{
		{"user", "add", "root:rootpw"},
		{"role", "add", "trainer"},
		{"role", "grant-permission", "trainer", "--prefix=true", "readwrite", cfg.Prefix},
		{"user", "add", "joe:secret"},
		{"user", "grant-role", "joe", "trainer"},
		{"user", "add", "jane:other"},
		{"auth", "enable"},
	} {
		c.Ctl(args...)
	}
	var log bytes.Buffer
	good := cfg
	good.User, good.Password, good.Log = "joe", "secret", zerolog.New(zerolog.SyncWriter(&log))
	s := open(t, good)
	ctx := within(t)
	waiting := make(chan error, 1)
	go func() { waiting <- s.Wait(ctx, "n") }()
	if n, err := s.Add(ctx, "n", 1); err != nil || n != 1 {
		t.Error(n, err)
	}
	must(t, <-waiting)
	must(t, s.Set(ctx, "big", make([]byte, 2*etcdstore.MaxPlain)))
	if v, err := s.Get(ctx, "big"); err != nil || len(v) != 2*etcdstore.MaxPlain {
		t.Errorf("%d bytes, %v", len(v), err)
	}

	bad := good
	bad.Password = "wrong secret"
	wantRefused(t, bad, errhint.TryAgain, "check the user and the password", c.Endpoints[0], `etcd refuses the password of user "joe"`)
	bad = cfg
	wantRefused(t, bad, errhint.TryAgain, "give a user", c.Endpoints[0], "etcd wants a user")
	bad.User, bad.Password = "jane", "other"
	wantRefused(t, bad, errhint.TryAgain, "grant-permission", c.Endpoints[0], `user "jane" may not read and write under "`+cfg.Prefix)
	bad = good
	bad.Prefix = "/elsewhere/"
	wantRefused(t, bad, errhint.TryAgain, "grant-permission", `user "joe" may not read and write under "/elsewhere/"`)

	// etcd forgets who we are, after a while and when it restarts; the store logs in again.
	time.Sleep(3 * ttl * time.Second)
	waiting = make(chan error, 1)
	go func() { waiting <- s.Wait(ctx, "later") }()
	if n, err := s.Add(ctx, "n", 1); err != nil || n != 2 {
		t.Errorf("after a while: %d, %v", n, err)
	}
	c.Kill(0)
	c.Start(0)
	if n, err := s.Add(ctx, "n", 1); err != nil || n != 3 {
		t.Errorf("after a restart: %d, %v", n, err)
	}
	must(t, s.Set(ctx, "later", nil))
	must(t, <-waiting)
	must(t, s.Close())
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the password is in the log: %s", log.String())
	}

	// A user and a password do no harm where nobody asks for them.
	open2 := testutil.Etcd(t, 1)
	plain := job(open2)
	plain.User, plain.Password = "joe", "secret"
	must(t, open(t, plain).Set(ctx, "k", nil))
}

// authority makes certificates.
type authority struct {
	dir  string
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	must(t, err)
	a.cert, err = x509.ParseCertificate(der)
	must(t, err)
	a.file = writePEM(t, a.dir, "ca.pem", "CERTIFICATE", der)
	return a
}

func writePEM(t *testing.T, dir, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// issue returns the files of a certificate for the address 127.0.0.1, or other, and of its key.
func (a *authority) issue(t *testing.T, name string, other ...string) (cert, key string) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if len(other) > 0 {
		template.IPAddresses, template.DNSNames = nil, other
	}
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &pair.PublicKey, a.key)
	must(t, err)
	secret, err := x509.MarshalECPrivateKey(pair)
	must(t, err)
	return writePEM(t, a.dir, name+".pem", "CERTIFICATE", der), writePEM(t, a.dir, name+"-key.pem", "EC PRIVATE KEY", secret)
}

func TestTLS(t *testing.T) {
	testutil.Long(t)
	ours, strange := newAuthority(t, "ours"), newAuthority(t, "strange")
	cert, key := ours.issue(t, "server")
	clientCert, clientKey := ours.issue(t, "client")
	strangeCert, strangeKey := strange.issue(t, "stranger")
	c := testutil.EtcdWith(t, testutil.EtcdOptions{TLS: &testutil.EtcdTLS{Cert: cert, Key: key, ServerCA: ours.file}})
	cfg := job(c)
	ep := c.Endpoints[0]
	wantRefused(t, cfg, errhint.TryAgain, "turn TLS on", ep+": it speaks TLS, and we do not")
	cfg.TLS = true
	wantRefused(t, cfg, errhint.TryAgain, "authority", ep+": its certificate is not to be trusted", "unknown authority")
	cfg.CACert = strange.file
	wantRefused(t, cfg, errhint.TryAgain, "authority", ep+": its certificate is not to be trusted")
	cfg.CACert = ours.file
	s := open(t, cfg)
	must(t, s.Set(within(t), "k", []byte("v")))
	if got := c.Ctl("get", "--print-value-only", cfg.Prefix+"k"); strings.TrimSpace(got) != "v" {
		t.Errorf("etcdctl reads %q", got)
	}

	mutual := testutil.EtcdWith(t, testutil.EtcdOptions{TLS: &testutil.EtcdTLS{
		Cert: cert, Key: key, ServerCA: ours.file, ClientCA: ours.file, ClientCert: clientCert, ClientKey: clientKey,
	}})
	cfg = job(mutual)
	ep = mutual.Endpoints[0]
	cfg.TLS, cfg.CACert = true, ours.file
	wantRefused(t, cfg, errhint.TryAgain, "client certificate", ep+": it refuses our certificate")
	cfg.Cert, cfg.CertKey = strangeCert, strangeKey
	wantRefused(t, cfg, errhint.TryAgain, "client certificate", ep+": it refuses our certificate")
	cfg.Cert, cfg.CertKey = clientCert, clientKey
	must(t, open(t, cfg).Set(within(t), "k", []byte("v")))
	cfg.Cert, cfg.CertKey, cfg.CACert, cfg.TLS = "", "", "", false
	wantRefused(t, cfg, errhint.TryAgain, "turn TLS on", ep+": it speaks TLS, and we do not")

	plain := job(testutil.Etcd(t, 1))
	plain.TLS, plain.CACert = true, ours.file
	wantRefused(t, plain, errhint.TryAgain, "turn TLS off", plain.Endpoints[0]+": it is an etcd 3.", "that speaks no TLS")

	named, namedKey := ours.issue(t, "named", "etcd0.example")
	pair, err := tls.LoadX509KeyPair(named, namedKey)
	must(t, err)
	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	web.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	web.StartTLS()
	t.Cleanup(web.Close)
	cfg = etcdstore.Config{Endpoints: []string{web.Listener.Addr().String()}, Lease: "job", TLS: true, CACert: ours.file}
	wantRefused(t, cfg, errhint.TryAgain, "by a name that the certificate holds", "127.0.0.1")

	// Wrong files are wrong usage, all at once.
	cfg.CACert, cfg.Cert, cfg.CertKey = clientKey, clientCert, strangeKey
	wantRefused(t, cfg, errhint.Usage, "", "client-key.pem", "no PEM certificate", "client.pem", "private key does not match")
	cfg.CACert, cfg.Cert, cfg.CertKey = "/nowhere/ca.pem", "/nowhere/cert.pem", clientKey
	wantRefused(t, cfg, errhint.Usage, "", "/nowhere/ca.pem", "/nowhere/cert.pem")
}

func TestOpenEnds(t *testing.T) {
	cause := errors.New("the user has had enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if _, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{"127.0.0.1:1"}, Lease: "job"}); !errors.Is(err, cause) ||
		errhint.CodeOf(err) != errhint.TryAgain {
		t.Errorf("error %v", err)
	}
}
