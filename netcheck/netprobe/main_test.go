package netprobe_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"muster/netcheck/netprobe"
)

// soon bounds a hang.
const soon = time.Minute

var token = []byte("a token of this test")

// TestMain lets the test binary stand for the programs of two nodes, each in its own network.
func TestMain(m *testing.M) {
	if role := os.Getenv("NETPROBE_ROLE"); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	// Most tests wait for what does not come, and need no CPU for it.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// order is what a program is told on its standard input.
type order struct {
	Config netprobe.Config
	Addr   string // the identity of whom to probe
}

// play serves until its standard input ends, or serves and probes.
func play(role string) error {
	in := bufio.NewReader(os.Stdin)
	var o order
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := netprobe.Listen(ctx, o.Config)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if err := s.Serve(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	if role == "serve" {
		fmt.Println(s.Identity())
		_, err := io.Copy(io.Discard, in)
		return err
	}
	o.Config.Serve = s.Identity()
	facts, err := netprobe.Pair(ctx, o.Config, o.Addr)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(facts)
}

// config is for tests: shorter than the default, and long enough for a busy machine.
func config(name string) netprobe.Config {
	return netprobe.Config{
		Token: token, Node: netprobe.Node{Name: name}, Listen: "127.0.0.1:0", Echoes: 300,
		Patience: 5 * time.Second, Gap: 20 * time.Millisecond, SizePatience: 400 * time.Millisecond,
		WarmUp: 100 * time.Millisecond, Timed: 300 * time.Millisecond, Streams: []int{1}, Budget: soon,
	}
}

// serve runs a server until the test ends, and returns its identity.
func serve(t testing.TB, cfg netprobe.Config) string {
	t.Helper()
	s, err := netprobe.Listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(soon):
			t.Error("the server does not end")
		}
	})
	return s.Identity()
}

// pair probes addr and returns what it found.
func pair(t testing.TB, cfg netprobe.Config, addr string) netprobe.Facts {
	t.Helper()
	facts, err := netprobe.Pair(t.Context(), cfg, addr)
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// reporter is what a look at a measurement says.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Failed() bool
}

// attempt is a reporter of one measurement, which may not be the last.
type attempt struct {
	*testing.T
	failed bool
	said   []string
}

func (a *attempt) Errorf(format string, args ...any) {
	a.failed = true
	a.said = append(a.said, fmt.Sprintf(format, args...))
}
func (a *attempt) Failed() bool { return a.failed }

// measured calls look, which measures, three times at most, until it finds nothing wrong: where others use the processors
// a measurement may say how busy the machine is. What is wrong each time is no matter of that.
func measured(t *testing.T, look func(t reporter)) {
	t.Helper()
	for try := 1; ; try++ {
		a := &attempt{T: t}
		look(a)
		switch {
		case !a.failed:
			return
		case try == 3:
			t.Fatalf("in each of %d measurements; in the last: %s", try, strings.Join(a.said, "\n"))
		}
		t.Logf("measured again: %s", strings.Join(a.said, "\n"))
	}
}

// pretty is for messages.
func pretty(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(v); err != nil {
		return err.Error()
	}
	return b.String()
}

// env looks variables up in a list.
func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, p := range pairs {
			if v, ok := strings.CutPrefix(p, name+"="); ok {
				return v, true
			}
		}
		return "", false
	}
}
