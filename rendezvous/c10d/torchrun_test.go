package c10d_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/c10d"
	"muster/rendezvous/tcpstore"
)

// stepper drives Step against a real store: no more of a Handler than the test below needs.
type stepper struct {
	t        *testing.T
	store    *tcpstore.Client
	key      string
	node     c10d.Node
	settings c10d.Settings
	seen     *c10d.Observer
	begin    time.Time
	round    c10d.Round
	writes   int
}

// until takes steps towards want until one of them is among actions, and returns that decision and the state it was
// made about.
func (s *stepper) until(ctx context.Context, want c10d.Want, actions ...c10d.Action) (c10d.Decision, *c10d.State) {
	s.t.Helper()
	deadline := s.settings.Deadline(want, time.Since(s.begin))
	text, err := s.store.Get(ctx, s.key)
	for {
		if err != nil {
			s.t.Fatal(err)
		}
		state, err2 := c10d.Decode(text)
		if err2 != nil {
			s.t.Fatal(err2)
		}
		now := c10d.Instant{Mono: time.Since(s.begin), Wall: time.Now()}
		s.seen.Observe(state, now)
		d := c10d.Step(c10d.Input{
			State: state, Self: s.node, Settings: s.settings, Now: now, Want: want, Deadline: deadline, Round: s.round, Seen: s.seen,
		})
		deadline = d.Deadline
		if slices.Contains(actions, d.Action) {
			return d, state
		}
		switch {
		case d.State != nil:
			desired, err := c10d.Encode(d.State)
			if err != nil {
				s.t.Fatal(err)
			}
			before := text
			if text, err = s.store.CompareAndSet(ctx, s.key, before, desired); err != nil {
				s.t.Fatal(err)
			}
			if bytes.Equal(text, desired) {
				s.writes++
			}
		case d.Action == c10d.ActionSync:
			select {
			case <-time.After(d.Wait):
			case <-ctx.Done():
				s.t.Fatalf("want %d: still waits for %v in %s", want, actions, text)
			}
			text, err = s.store.Get(ctx, s.key)
		default:
			s.t.Fatalf("want %d: decided %q (%s), not one of %v", want, d.Action, d.Reason, actions)
		}
	}
}

// TestWithTorchrun shares one job with a real torchrun: meets it in a round, stays for longer than a silent node would
// live, makes it restart and meets it again with the ranks of before, and hears of its death.
func TestWithTorchrun(t *testing.T) {
	torchrun := testutil.Torchrun(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	server, err := tcpstore.Listen(tcpstore.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	endpoint := fmt.Sprintf("127.0.0.1:%d", server.Port())
	store, err := tcpstore.Dial(ctx, endpoint, tcpstore.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()

	var log bytes.Buffer
	pid := filepath.Join(t.TempDir(), "pid") // of the worker, which survives torchrun's SIGKILL
	cmd := exec.Command(torchrun, "--nnodes=2:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint="+endpoint, "--rdzv-id=job",
		"--rdzv-conf=is_host=0,keep_alive_interval=1", "--local-addr=127.0.0.1", "--log-dir="+t.TempDir(), "--no-python",
		"sh", "-c", `echo $$$$ > "$0"; exec sleep 150`, pid) // torchrun makes $ of $$
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended, worker := false, 0
	started := func() {
		t.Helper()
		before := worker
		testutil.Eventually(t, time.Minute, "torchrun's worker runs", func() bool {
			text, _ := os.ReadFile(pid)
			worker, _ = strconv.Atoi(strings.TrimSpace(string(text)))
			return worker > 0 && worker != before
		})
	}
	end := func(sig syscall.Signal) {
		if !ended {
			ended = true
			cmd.Process.Signal(sig)
			if worker > 0 { // first: it holds the pipe that Wait reads
				syscall.Kill(worker, syscall.SIGKILL)
			}
			cmd.Wait()
		}
		if t.Failed() {
			t.Logf("torchrun:\n%s", log.String())
		}
	}
	defer func() { end(syscall.SIGTERM) }()

	node := c10d.Node{Addr: "127.0.0.0", PID: 1} // sorts before torchrun's, so rank 0 is ours and the roles are for us to give
	set := c10d.DefaultSettings(2, 2)
	set.KeepAlive = time.Second
	s := &stepper{
		t: t, store: store, key: "/torch.rendezvous.job", node: node, settings: set, seen: c10d.NewObserver(node, set), begin: time.Now(),
	}
	if _, err := store.CompareAndSet(ctx, s.key, nil, []byte(c10d.NoState)); err != nil {
		t.Fatal(err)
	}
	join := func(number int) {
		t.Helper()
		// What torchrun reads before it starts its worker (2.4 and newer).
		prefix := fmt.Sprintf("/torch.rendezvous.job.%d/", number)
		for key, value := range map[string]string{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "torchelastic/assigned_ranks/1": "[1, 2, 1, 2]"} {
			if err := store.Set(ctx, prefix+key, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		s.until(ctx, c10d.WantExit, c10d.ActionFinish)
		d, _ := s.until(ctx, c10d.WantJoin, c10d.ActionFinish)
		s.round = d.Round
		if d.Round.Number != number || d.Round.Rank != 0 || len(d.Round.Ranks) != 2 {
			t.Fatalf("joined %+v, want round %d with rank 0 of 2", d.Round, number)
		}
	}

	join(0)
	started()
	staying, cancelStaying := context.WithTimeout(ctx, 2*set.DeadAfter())
	for staying.Err() == nil {
		d, state := s.until(ctx, c10d.WantStay, c10d.ActionSync) // or a keep-alive before; all else means that somebody was lost
		if state.RanksRound != 0 && s.writes > 1 {
			t.Fatalf("torchrun dropped what it does not know: %s", show(state, time.Now()))
		}
		select {
		case <-time.After(d.Wait):
		case <-staying.Done():
		}
	}
	cancelStaying()

	join(1) // as when a worker fails: torchrun follows by itself
	started()
	end(syscall.SIGKILL)
	d, _ := s.until(ctx, c10d.WantStay, c10d.ActionNewRound)
	if want := "is not heard of for 3s"; !strings.Contains(d.Reason, want) {
		t.Errorf("reason is %q, want it to say %q", d.Reason, want)
	}
	s.until(ctx, c10d.WantClose, c10d.ActionFinish)
}
