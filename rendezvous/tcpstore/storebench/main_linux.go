// Command storebench measures the store server against PyTorch's own on one machine and prints one JSON object per
// figure: ours, the peer's in the same run, their ratio, the budget, and whether it is kept. make bench calls it.
//
// Each server runs in a process of its own; processor time is that of the server's process alone. Servers take turns,
// and the figure is the median of the runs.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

type options struct {
	python  string
	runs    int
	seconds float64
	loops   int
	only    string
	scale   bool
	sizes   []int // of the crowds of -scale
	muster  string
}

func main() {
	var o options
	serving := flag.Bool("serve", false, "be the server that is measured")
	flag.StringVar(&o.python, "python", "", "interpreter with the PyTorch to compare with; empty measures ours only")
	flag.IntVar(&o.runs, "runs", 5, "runs per server, taking turns")
	flag.Float64Var(&o.seconds, "seconds", 2, "length of a run per number of clients")
	flag.IntVar(&o.loops, "loops", 0, "threads of our server; 0 takes its default")
	flag.StringVar(&o.only, "only", "", "mix, big or names: only these figures")
	flag.BoolVar(&o.scale, "scale", false, "measure crowds of clients instead")
	flag.StringVar(&o.muster, "muster", "bin/muster", "binary whose store meets the crowds")
	crowds := flag.String("crowds", "1000,4000,16000,100000", "their sizes")
	flag.Parse()
	var err error
	o.sizes, err = readSizes(*crowds)
	switch {
	case err != nil:
	case *serving:
		err = serve(o.loops, os.Stdin, os.Stdout)
	default:
		err = bench(context.Background(), o, os.Stdout)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "storebench:", err)
		os.Exit(1) //nolint:forbidigo // this is a main
	}
}

// figure is one line of the result. A figure without peer has peer and ratio 0.
type figure struct {
	Figure string  `json:"figure"`
	Ours   float64 `json:"ours"`
	Peer   float64 `json:"peer"`
	Unit   string  `json:"unit"`
	Ratio  float64 `json:"ratio"`
	Budget string  `json:"budget"`
	Pass   bool    `json:"pass"`
	Note   string  `json:"note,omitempty"`
	Skip   string  `json:"skip,omitempty"` // why it was not measured
}

// tolerance is what "at most 1.0 times" allows: the median of the runs within 5 percent.
const tolerance = 0.05

// judge completes a figure whose budget is a ratio to the peer.
func judge(f figure, limit float64, atLeast bool) figure {
	if f.Peer > 0 {
		f.Ratio = f.Ours / f.Peer
		f.Budget = fmt.Sprintf("<= %.3g x", limit)
		f.Pass = f.Ratio <= limit*(1+tolerance)
		if atLeast {
			f.Budget = fmt.Sprintf(">= %.3g x", limit)
			f.Pass = f.Ratio >= limit*(1-tolerance)
		}
	}
	return f
}

var sizes = []int{64, 1024, 8192}

// sample is what one run of one server gives.
type sample struct {
	cpu     map[int]float64 // microseconds per operation, by number of clients
	rate    map[int]float64 // operations per second
	memory  float64         // bytes
	connect float64         // seconds for the last and largest group
}

func bench(ctx context.Context, o options, out io.Writer) error {
	dir, err := os.MkdirTemp("", "storebench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	type part struct {
		name string
		run  func(ctx context.Context, o options, dir string) ([]figure, error)
	}
	parts := []part{{"mix", benchMix}, {"big", benchBig}, {"names", benchNames}}
	if o.scale {
		parts = []part{{"crowds", benchCrowds}}
	}
	for _, part := range parts {
		if o.only != "" && o.only != part.name {
			continue
		}
		figures, err := part.run(ctx, o, dir)
		if err != nil {
			return err
		}
		for _, f := range figures {
			if err := enc.Encode(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// quiet is what makes the peer's name look-ups end at once.
const quiet = "hosts: files\n"

// The backends of PyTorch's server; libuv is its default.
const (
	libuv  = "libuv"
	legacy = "legacy"
)

// each runs f on a fresh server of ours, for which backend is "", and of the peer with each of the backends, in turns.
func (o options) each(ctx context.Context, dir string, backends []string, f func(s *server, backend string) error) error {
	ours := func() (*server, error) { return startOurs(ctx, o.loops) }
	return o.inTurns(ctx, o.runs, ours, dir, backends, f)
}

// inTurns is each with a number of runs and a way to start our server.
func (o options) inTurns(ctx context.Context, runs int, ours func() (*server, error), dir string, backends []string,
	f func(s *server, backend string) error,
) error {
	for range runs {
		s, err := ours()
		if err != nil {
			return err
		}
		err = f(s, "")
		s.stop()
		if err != nil {
			return fmt.Errorf("our server: %w", err)
		}
		if o.python == "" {
			continue
		}
		for _, backend := range backends {
			if s, err = startPeer(ctx, o.python, backend, dir, quiet, ""); err != nil {
				return err
			}
			err = f(s, backend)
			s.stop()
			if err != nil {
				return fmt.Errorf("PyTorch's server: %w", err)
			}
		}
	}
	return nil
}

func benchMix(ctx context.Context, o options, dir string) ([]figure, error) {
	var ours, peer []sample
	err := o.each(ctx, dir, []string{libuv}, func(s *server, backend string) error {
		got, err := runMix(s, time.Duration(o.seconds*float64(time.Second)))
		if backend == "" {
			ours = append(ours, got)
		} else {
			peer = append(peer, got)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var figures []figure
	both := func(name, unit string, get func(sample) float64, limit float64, atLeast bool) {
		f := figure{Figure: name, Unit: unit, Ours: medianOf(ours, get), Peer: medianOf(peer, get)}
		figures = append(figures, judge(f, limit, atLeast))
	}
	for _, n := range sizes {
		both(fmt.Sprintf("store: server CPU per operation, %d clients", n), "us", func(s sample) float64 { return s.cpu[n] }, 1, false)
	}
	for _, n := range sizes {
		both(fmt.Sprintf("store: operations per second, %d clients", n), "1/s", func(s sample) float64 { return s.rate[n] }, 1, true)
	}
	both("store: resident memory, 8192 clients", "MB", func(s sample) float64 { return s.memory / 1e6 }, 0.1, false)
	both("store: connect, handshake and init/ of 8192 clients", "s", func(s sample) float64 { return s.connect }, 1, false)
	return figures, nil
}

func medianOf(list []sample, get func(sample) float64) float64 {
	values := make([]float64, len(list))
	for i, s := range list {
		values[i] = get(s)
	}
	return median(values)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.SortedFunc(slices.Values(values), cmp.Compare)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func runMix(s *server, d time.Duration) (sample, error) {
	got := sample{cpu: make(map[int]float64), rate: make(map[int]float64)}
	for _, n := range sizes {
		l, err := newLoad(s.addr, nil)
		if err != nil {
			return got, err
		}
		defer l.close()
		took, err := l.open(n, time.Now().Add(time.Minute))
		if err != nil {
			return got, err
		}
		got.connect = took.Seconds()
		if _, err := l.mix(d / 10); err != nil { // warm
			return got, err
		}
		before, err := s.cpu()
		if err != nil {
			return got, err
		}
		start := time.Now()
		ops, err := l.mix(d)
		if err != nil {
			return got, err
		}
		wall := time.Since(start)
		after, err := s.cpu()
		if err != nil {
			return got, err
		}
		got.cpu[n] = (after - before).Seconds() * 1e6 / float64(ops)
		got.rate[n] = float64(ops) / wall.Seconds()
		memory, err := s.memory()
		if err != nil {
			return got, err
		}
		got.memory = float64(memory)
	}
	return got, nil
}

// bigSets is enough sets of 1 MiB to be long against the 10 ms that processor time is counted in.
const bigSets = 2000

func benchBig(ctx context.Context, o options, dir string) ([]figure, error) {
	runs := make(map[string][]float64)
	err := o.each(ctx, dir, []string{libuv, legacy}, func(s *server, backend string) error {
		got, err := runBig(ctx, s)
		runs[backend] = append(runs[backend], got)
		return err
	})
	const name = "store: server CPU per set of 1 MiB"
	ours := median(runs[""])
	// The budget in milliseconds is what the legacy backend, the cheaper one here, takes on a quiet machine; the second
	// line says the same of this run.
	f := figure{Figure: name, Unit: "ms", Ours: ours, Peer: median(runs[libuv]), Budget: "<= 0.15 ms", Pass: ours <= 0.15}
	if f.Peer > 0 {
		f.Ratio = f.Ours / f.Peer
	}
	return []figure{f, judge(figure{Figure: name + ", legacy backend", Unit: "ms", Ours: ours, Peer: median(runs[legacy])}, 1, false)}, err
}

func runBig(ctx context.Context, s *server) (float64, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.addr.String())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return 0, err
	}
	hello, answer := []byte("\x00\xce\xf7\x85\x3c\x0dping"), make([]byte, 4)
	sync := func(b []byte) error {
		if _, err := conn.Write(b); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, answer)
		return err
	}
	if err := sync(hello); err != nil {
		return 0, err
	}
	value := string(make([]byte, 1<<20))
	var sets [8][]byte
	for i := range sets {
		sets[i] = str(str([]byte{1}, "/big"+strconv.Itoa(i)), value)
	}
	run := func(n int) error {
		for i := range n {
			// One set at a time, as a client does that has something else to say in between.
			if err := sync(append(sets[i%len(sets)], hello[5:]...)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := run(2 * len(sets)); err != nil { // warm
		return 0, err
	}
	before, err := s.cpu()
	if err != nil {
		return 0, err
	}
	if err := run(bigSets); err != nil {
		return 0, err
	}
	after, err := s.cpu()
	if err != nil {
		return 0, err
	}
	return (after - before).Seconds() * 1e3 / bigSets, nil
}

const (
	nameless  = 64
	nameDelay = 80 * time.Millisecond // a resolver that throttles; on one that does not answer at all, PyTorch 2.15.0 gives up
	nameLimit = 30 * time.Second
)

// benchNames connects clients from addresses that have no name, while the name server is slow.
func benchNames(ctx context.Context, o options, dir string) ([]figure, error) {
	f := figure{Figure: "store: connect and init/ of 64 clients without names, name server needs 80 ms", Unit: "s"}
	source := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 77, byte(i / 250), byte(i%250 + 1)}) }
	ours, err := startOurs(ctx, o.loops)
	if err != nil {
		return nil, err
	}
	defer ours.stop()
	took, err := openFrom(ours, source)
	if err != nil {
		return nil, err
	}
	f.Ours = took.Seconds()
	if o.python == "" {
		return []figure{f}, nil
	}
	var lc net.ListenConfig
	names, err := lc.ListenPacket(ctx, "udp", "127.0.0.153:53")
	if err != nil {
		f.Note = "no peer: " + err.Error()
		return []figure{f}, nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = names.Close() }()
	wg.Go(func() { knowNothing(names) })
	peer, err := startPeer(ctx, o.python, libuv, dir, "hosts: dns\n", "nameserver 127.0.0.153\n")
	if err != nil {
		return nil, err
	}
	defer peer.stop()
	took, err = openFrom(peer, source)
	if err != nil {
		f.Note = fmt.Sprintf("peer watched for %v only: %v", nameLimit, err)
	}
	f.Peer = took.Seconds()
	return []figure{judge(f, 1.0/50, false)}, nil
}

// knowNothing is a name server that answers every question, one after the other, with "no such name".
func knowNothing(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if n < 12 {
			continue
		}
		time.Sleep(nameDelay) // its slowness is what is measured
		buf[2] |= 0x80        // a response
		buf[3] = 0x83         // recursion available, no such name
		if _, err := conn.WriteTo(buf[:n], from); err != nil {
			return
		}
	}
}

func openFrom(s *server, source func(int) netip.Addr) (time.Duration, error) {
	l, err := newLoad(s.addr, source)
	if err != nil {
		return 0, err
	}
	defer l.close()
	return l.open(nameless, time.Now().Add(nameLimit))
}
