package membership_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// TestReportsWithoutTheLost: after the loss of a node that ends the job nobody waits for its report. Where other nodes
// are silent, too, it is said who they are.
func TestReportsWithoutTheLost(t *testing.T) {
	for _, c := range []struct {
		name, die string
		awaited   bool
	}{
		{"the last", "c", false},
		{"the coordinator, who has rank 0", "a", false},
		{"one of the middle", "b", false},
		{"two at once", "b c", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 3, 3)
				var log testutil.Buffer
				j.cfg.ReplaceLimit, j.cfg.Log = 0, zerolog.New(&log)
				agents := map[string]*agent{"a": j.start("a")}
				first := agents["a"].begin(t.Context())
				synctest.Wait() // a is the coordinator
				agents["b"], agents["c"] = j.start("b"), j.start("c")
				meet(t.Context(), agents["b"], agents["c"])
				<-first
				for name := range strings.FieldsSeq(c.die) {
					agents[name].die()
					delete(agents, name)
				}
				for _, x := range agents {
					if v := x.verdict(); v.Kind != rendezvous.Fail {
						t.Fatalf("%s: %+v", x.name, v)
					}
				}
				for _, x := range agents {
					if err := x.Report(t.Context(), []byte(x.name)); err != nil {
						t.Fatal(err)
					}
				}
				for _, x := range agents {
					began := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second)
					reports, err := x.Reports(ctx)
					cancel()
					if err != nil || len(reports) != len(agents) {
						t.Errorf("%s: %q, %v", x.name, reports, err)
					}
					if took := time.Since(began); !c.awaited && took > time.Second {
						t.Errorf("%s has waited %v", x.name, took)
					}
				}
				says := strings.Contains(log.String(), `"nodes":["c"],"message":"waiting until the workers of other nodes have ended"`) ||
					strings.Contains(log.String(), `"nodes":["b"],"message":"waiting until the workers of other nodes have ended"`)
				if says != c.awaited {
					t.Errorf("the log:\n%s", log.String())
				}
			})
		})
	}
}

// slowToOpen is the store of a node that does not hear that the store for workers is open.
type slowToOpen struct{ *memstore.Client }

func (s slowToOpen) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.HasSuffix(key, "/open") {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return s.Client.Get(ctx, key)
}

// TestReportsWithoutTheLate: nobody waits for the report of a node for which the round was over before it began. Its
// workers have never started.
func TestReportsWithoutTheLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 3, 3)
		a, first := j.coordinator("a")
		b, late := j.start("b"), j.start("late", func(c *membership.Config) { c.Store = slowToOpen{j.space.Client()} })
		lates := late.begin(t.Context())
		meet(t.Context(), b)
		<-first
		if _, err := b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Fail, Reason: "WorkerFailed", Rank: 1}); err != nil {
			t.Fatal(err)
		}
		for _, x := range []*agent{a, b} {
			if err := x.Report(t.Context(), []byte(x.name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, x := range []*agent{a, b} {
			began := time.Now()
			reports, err := x.Reports(t.Context())
			if took := time.Since(began); err != nil || len(reports) != 2 || took > time.Second {
				t.Errorf("%s has %q after %v, %v", x.name, reports, took, err)
			}
		}
		if _, over := errors.AsType[*rendezvous.OverError]((<-lates).err); !over {
			t.Error("the late node does not hear that the job is over")
		}
	})
}
