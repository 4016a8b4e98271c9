package etcdtest_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"muster/rendezvous"
	"muster/rendezvous/etcdstore"
	"muster/rendezvous/storetest"
)

const patience = time.Minute // bounds a hang

func TestMain(m *testing.M) {
	// The embedded server leaves these behind when it has been closed.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"),
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// serve starts an etcd server of one member and returns its endpoint.
func serve(t *testing.T) string {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = local, local
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = local, local
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatalf("not ready within %v", patience)
	}
	return server.Clients[0].Addr().String()
}

func TestStore(t *testing.T) {
	endpoint := serve(t)
	jobs := make(map[*testing.T]string)
	storetest.Run(t, func(t *testing.T) rendezvous.Store {
		t.Helper()
		if jobs[t] == "" {
			jobs[t] = fmt.Sprintf("job%d", len(jobs))
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		s, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}, Lease: jobs[t], Prefix: "/" + jobs[t] + "/"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	})
}
