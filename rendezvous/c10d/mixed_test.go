package c10d_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/c10d"
)

// TestMixedJob is the life of a job of two nodes of ours and one of a real torchrun: start, a worker that fails on
// their side, one that fails on ours, and the end; in each round the workers of all sum their ranks.
func TestMixedJob(t *testing.T) {
	for _, c := range []struct {
		name   string
		theirs bool     // whether torchrun hosts the store
		names  []string // of ours: torchrun's is 127.0.0.1, and the lowest becomes rank 0
	}{
		{"our store, rank 0 is theirs", false, []string{"127.0.0.2", "127.0.0.3"}},
		{"their store, rank 0 is ours", true, []string{"127.0.0.0", "127.0.0.2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var agent *script
			start := func(m *mixed) {
				host := "0"
				if c.theirs {
					host = "1"
				}
				agent = m.torchrun("3", "--rdzv_conf=is_host="+host, "--local-addr=127.0.0.1")
			}
			m := newMixed(t, mixedConfig{theirs: c.theirs, names: c.names, min: 3, max: 3, beforeDial: start})
			j := m.join(3)
			m.work(j)
			rank := map[bool]int{true: 0, false: 1}[c.names[0] > "127.0.0.1"]
			m.touch(fmt.Sprintf("fail.%d", rank))
			m.stay("has left")
			j = m.join(3)
			if j.Round != 1 {
				t.Errorf("joined round %d, want 1", j.Round)
			}
			if !c.theirs {
				m.work(j)
				m.stopWorkers() // as a worker of ours has failed
				j = m.join(3)
			}
			m.work(j)
			m.succeed(agent)
		})
	}
}

// TestMixedScaleUp adds a second torchrun to a running job. By itself torchrun cannot: with its default settings the
// agent that is rank 0 does not say again where the workers meet, and all agents fall silent until they give up (§9 row
// 3).
func TestMixedScaleUp(t *testing.T) {
	for _, c := range []struct {
		name       string
		names      []string // of ours
		late       string   // of the torchrun that comes later; the first is 127.0.0.5
		ours, priv bool     // whether rank 0 is ours; whether their agents have stores of their own
	}{
		{"rank 0 is theirs", []string{"127.0.0.6", "127.0.0.7"}, "127.0.0.8", false, false},
		{"the newcomer would be rank 0", []string{"127.0.0.6", "127.0.0.7"}, "127.0.0.1", false, false},
		{"rank 0 is ours", []string{"127.0.0.1", "127.0.0.7"}, "127.0.0.2", true, false},
		{"without shared stores", []string{"127.0.0.6", "127.0.0.7"}, "127.0.0.1", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, mixedConfig{names: c.names, min: 2, max: 4, noTorch: true})
			if c.priv {
				m.env = append(m.env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
			}
			first := m.torchrun("2:4", "--rdzv_conf=is_host=0,last_call_timeout=2", "--local-addr=127.0.0.5")
			if err := m.Appeared(m.ctx); err != nil {
				t.Fatal(err)
			}
			j := m.join(3)
			m.work(j)
			m.noted(j)
			second := m.torchrun("2:4", "--rdzv_conf=is_host=0,last_call_timeout=2", "--local-addr="+c.late)
			m.stay("") // "1 node waits to join", or an agent that saw it sooner has left
			again := m.join(4)
			m.work(again)
			if again.Others != 2 {
				t.Errorf("%d others in round %d, want 2", again.Others, again.Round)
			}
			for rank, name := range j.Names {
				if again.Names[rank] != name {
					t.Errorf("ranks changed from %v to %v", j.Names, again.Names)
				}
			}
			if _, ours := map[string]bool{c.names[0]: true, c.names[1]: true}[again.Names[0]]; ours != c.ours {
				t.Errorf("rank 0 is %s", again.Names[0])
			}
			m.succeed(first, second)
		})
	}
}

// TestMixedDeath kills a torchrun with SIGKILL in the middle of a round, which goes on without it.
func TestMixedDeath(t *testing.T) {
	t.Parallel()
	m := newMixed(t, mixedConfig{
		names: []string{
			"127.0.0.6",
			"127.0.0.7",
		}, min: 3, max: 4, noTorch: true, settings: func(s *c10d.Settings) { s.KeepAlive = time.Second },
	})
	var agents []*script
	for _, addr := range []string{"127.0.0.5", "127.0.0.8"} {
		agents = append(agents, m.torchrun("3:4", "--rdzv_conf=is_host=0,last_call_timeout=2,keep_alive_interval=1", "--local-addr="+addr))
	}
	testutil.Eventually(t, time.Minute, "both are there", func() bool { // the state may name one of them twice
		s := m.state()
		return strings.Contains(s, "127.0.0.5_") && strings.Contains(s, "127.0.0.8_")
	})
	m.work(m.join(4))
	// Longer than a node may be silent.
	hold, cancel := context.WithTimeout(m.ctx, 5*time.Second)
	if err := m.Hold(hold, m.peers); err != nil {
		t.Fatal(err)
	}
	cancel()
	if s := m.state(); !strings.HasPrefix(s, "round 0 complete") || strings.Count(s, "@") != 4 {
		t.Errorf("state after a while: %s", s)
	}
	node := regexp.MustCompile(`127\.0\.0\.5_\d+_0`).FindString(m.state())
	agents[0].kill()
	m.stay("node " + node + " (group rank 0) is not heard of for 3s")
	j := m.join(3)
	m.work(j)
	if j.Names[0] != "127.0.0.8" {
		t.Errorf("ranks are %v: rank 0 must be torchrun's, which asks nobody where its workers meet", j.Names)
	}
	m.succeed(agents[1])
}

// TestMixedLegacy is the life of a job with an agent of PyTorch 1.13.
func TestMixedLegacy(t *testing.T) {
	for _, c := range []struct {
		name  string
		names []string // of ours
	}{
		{"rank 0 is ours", []string{"!", "~"}}, // the agent's is its host name
		{"rank 0 is theirs", []string{"~", "~~"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMixed(t, mixedConfig{
				names: c.names, min: 3, max: 3, torch: testutil.DebianTorch(t), cold: c.names[0] == "!",
			})
			agent := m.torchrun("3", "--rdzv_conf=is_host=0", "--redirects=1", "--tee=1")
			if err := m.Appeared(m.ctx); err != nil {
				t.Fatal(err)
			}
			m.work(m.join(3))
			if c.names[0] == "!" {
				m.stopWorkers()
				m.work(m.join(3))
			}
			m.succeed(agent)
		})
	}
}
