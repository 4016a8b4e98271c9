package meet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestMeetEtcd has nodes meet at etcd.
func TestMeetEtcd(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	etcd := testutil.Etcd(t, 1).Endpoints[0]
	for name, run := range map[string]func(t *testing.T){
		// Three agents that were told where to meet in three ways.
		"a worker fails": func(t *testing.T) {
			m := drive.NewMeet(t, drive.RankOneFails, "--nnodes=3", "--max-restarts=1")
			flags := func(backend string) []string {
				return []string{"--rdzv-backend=" + backend, "--rdzv-endpoint=" + etcd, "--rdzv-id=fails"}
			}
			agents := []*drive.Job{m.Start(0, flags("etcd")...)}
			m.Native = true
			agents = append(agents, m.Start(1, "--rdzv=etcd://"+etcd, "--run-id=fails"))
			m.Native, m.Flags = false, nil
			m.Env = []string{
				"PET_NNODES=3", "PET_MAX_RESTARTS=1", "PET_RDZV_BACKEND=etcd-v2", "PET_RDZV_ENDPOINT=" + etcd,
				"PET_RDZV_ID=fails",
			}
			agents = append(agents, m.Start(2))
			for node, j := range agents {
				m.Ends(j, 0)
				m.Expect(node, 1, 0, "WORLD_SIZE=3", "GROUP_WORLD_SIZE=3", "TORCHELASTIC_RUN_ID=fails")
			}
		},
		"an agent is killed": func(t *testing.T) {
			m := drive.NewMeet(t, drive.UntilGate, "--nnodes=2:3", "--rdzv-backend=etcd-v3", "--rdzv-endpoint="+etcd, "--rdzv-id=killed")
			m.Env = []string{"MUSTER_KEEP_ALIVE=1s"}
			agents := []*drive.Job{m.Start(0), m.Start(1), m.Start(2)}
			for node := range agents {
				m.Seen(node, 0, 0)
			}
			m.Kill(agents[0]) // who may be the coordinator
			m.Expect(1, 1, 0, "WORLD_SIZE=2")
			m.Expect(2, 1, 0, "WORLD_SIZE=2")
			m.Open()
			m.Ends(agents[1], 0)
			m.Ends(agents[2], 0)
		},
		"the same run id again": func(t *testing.T) {
			flags := []string{"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=" + etcd, "--rdzv-id=again"}
			for round := range 2 {
				m := drive.NewMeet(t, "sleep 0.3; echo done", flags...)
				agents := []*drive.Job{m.Start(0), m.Start(1)}
				for node, j := range agents {
					m.Ends(j, 0)
					if m.Expect(node, round, 0, "WORLD_SIZE=2"); !strings.Contains(j.Out.String(), "done") {
						t.Errorf("the worker of node %d was not let finish in run %d", node, round)
					}
				}
			}
		},
		"a store of PyTorch is there": func(t *testing.T) {
			port := drive.FreePort(t)
			serveStore(t, "127.0.0.1:"+port)
			m := drive.NewMeet(t, "", "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:"+port, "--rdzv-id=x")
			m.Env = []string{"MUSTER_JOIN_TIMEOUT=6s"}
			m.Ends(m.Start(0), 75, "etcd at 127.0.0.1:"+port, "it is not an etcd")
		},
		"nobody is there": func(t *testing.T) {
			port := drive.FreePort(t)
			m := drive.NewMeet(t, "", "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:"+port, "--rdzv-id=x")
			m.Env = []string{"MUSTER_JOIN_TIMEOUT=2s"}
			m.Ends(m.Start(0), 75, "etcd at 127.0.0.1:"+port, "refused")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}

// serveStore runs a muster store until the test ends.
func serveStore(t *testing.T, bind string) {
	t.Helper()
	store := drive.Start(t, nil, "store", "--bind", bind)
	testutil.Eventually(t, time.Minute, "the store listens", func() bool { return strings.Contains(store.Out.String(), "\n") })
	t.Cleanup(func() {
		_ = store.Process.Kill()
		store.End()
	})
}

// TestMeetEtcdName has an etcd whose name nobody knows yet: the agent waits for it until the join timeout.
func TestMeetEtcdName(t *testing.T) {
	t.Parallel()
	m := drive.NewMeet(t, "", "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=no-such-host.invalid:2379", "--rdzv-id=x",
		"--rdzv-conf=join_timeout=6")
	m.Ends(m.Start(0), 75, "waiting for etcd", `cannot resolve "no-such-host.invalid"`, "within 6s")
}

// TestMeetEtcdLeader kills etcd's leader while workers run: nothing is lost, they go on. Then there is no quorum.
func TestMeetEtcdLeader(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	etcd := testutil.Etcd(t, 3)
	place := "--rdzv=etcd://" + strings.Join(etcd.Endpoints, ",")
	// Elections take long on a busy machine.
	m := drive.NewMeet(t, drive.UntilGate, "--nnodes=3", place, "--run-id=leader", "--keep-alive=5s")
	m.Native = true
	agents := []*drive.Job{m.Start(0), m.Start(1), m.Start(2)}
	for node := range agents {
		m.Seen(node, 0, 0)
	}
	dead := etcd.KillLeader()
	if leader := etcd.Leader(); leader == dead {
		t.Fatalf("member %d leads and is dead", leader)
	}
	m.Open()
	for _, j := range agents {
		m.Ends(j, 0)
	}
	if again, _ := filepath.Glob(filepath.Join(m.Out, "*.1.0")); len(again) > 0 {
		t.Errorf("workers were started anew: %v", again)
	}
	// Workers that nobody can call off end, and begin anew when etcd is back.
	cut := drive.NewMeet(t, drive.UntilGate, "--nnodes=2", place, "--run-id=cut", "--keep-alive=1s")
	cut.Native = true
	agents = []*drive.Job{cut.Start(0), cut.Start(1)}
	for node := range agents {
		cut.Seen(node, 0, 0)
	}
	etcd.KillLeader()
	for _, j := range agents {
		cut.Says(j, "does not answer for")
	}
	etcd.Start(dead)
	for node := range agents {
		cut.Expect(node, 1, 0, "WORLD_SIZE=2")
	}
	cut.Open()
	for _, j := range agents {
		cut.Ends(j, 0)
	}
	etcd.KillLeader()
	alone := drive.NewMeet(t, "", "--nnodes=2", place, "--run-id=alone", "--join-timeout=6s")
	alone.Native = true
	alone.Ends(alone.Start(0), 75, "waiting for etcd", "quorum")
}

// TestMeetEtcdCredentials needs a user and a password.
func TestMeetEtcdCredentials(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	etcd := testutil.Etcd(t, 1)
	etcd.Ctl("user", "add", "root:secret")
	etcd.Ctl("user", "grant-role", "root", "root")
	etcd.Ctl("auth", "enable")
	dir := t.TempDir()
	password := func(text string) string {
		file := filepath.Join(dir, text)
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--etcd-password-file=" + file
	}
	m := drive.NewMeet(t, "", "--nnodes=2", "--rdzv=etcd://"+etcd.Endpoints[0], "--run-id=users", "--join-timeout=20s")
	m.Native = true
	m.Ends(m.Start(0, "--etcd-user=root", password("guess")), 75, "etcd at")
	m.Ends(m.Start(0), 75, "etcd at", "user")
	m.Ends(m.Start(0, "--etcd-user=root", "--etcd-password-file="+filepath.Join(dir, "none")), 2, "cannot read etcd's password")
	a, b := m.Start(0, "--etcd-user=root", password("secret")), m.Start(1, "--etcd-user=root", password("secret"))
	m.Ends(a, 0)
	m.Ends(b, 0)
}

// TestMeetEtcdTLS meets at an etcd that shows a certificate, by the scheme and by the flag, and refuses one of nobody
// known.
func TestMeetEtcdTLS(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	cert, key := selfSigned(t)
	etcd := testutil.EtcdWith(t, testutil.EtcdOptions{TLS: &testutil.EtcdTLS{Cert: cert, Key: key, ServerCA: cert}})
	m := drive.NewMeet(t, "", "--nnodes=2", "--run-id=tls")
	m.Native = true
	a := m.Start(0, "--rdzv=etcds://"+etcd.Endpoints[0], "--etcd-cacert="+cert)
	b := m.Start(1, "--rdzv=etcd://"+etcd.Endpoints[0], "--etcd-cacert="+cert)
	m.Ends(a, 0)
	m.Ends(b, 0)
	m.Ends(m.Start(2, "--rdzv=etcds://"+etcd.Endpoints[0], "--join-timeout=10s"), 75, "certificate")
	m.Ends(m.Start(3, "--rdzv=etcd://"+etcd.Endpoints[0], "--join-timeout=10s"), 75, "TLS")
}

// selfSigned returns the files of a certificate for 127.0.0.1 that is its own authority.
func selfSigned(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert},
		keyFile:  {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}
