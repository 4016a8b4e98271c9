package netprobe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A run is a number of streams in one direction, at the same time. Both ends have one, and do the same: the one that
// sends asks its kernel what it had to send again, the one that receives counts. The receiver's clock rules: its window
// opens when the warm-up has passed since its first byte, and when it closes the receiver closes the streams.

const (
	// joinTime is how long the first stream waits for the last.
	joinTime = 5 * time.Second
	// slack is how much longer the sender goes on than it should take: the streams do not begin at one moment.
	slack = time.Second

	blockBytes  = 1 << 20
	bufferBytes = 256 << 10
)

// plan is what a run is to do at this end.
type plan struct {
	sends         bool
	streams       int
	warmUp, timed time.Duration
	maxBytes      int64
}

type run struct {
	plan
	id string
	// ended is closed when all streams are to end, and why says why; cancel does that.
	ended  <-chan struct{}
	why    func() error
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
	base   time.Time // that the atomics count from

	all, over chan struct{} // closed when every stream has come, or gone

	first, cut        atomic.Int64 // when the first byte came, and when the limit of bytes was reached; 0 for not yet
	total, timedBytes atomic.Int64

	inside sync.WaitGroup

	mu            sync.Mutex
	closed        bool // nobody may enter any more
	entered, left int
	sent          Sent
	err           error
}

// newRun returns a run, and the context in which its streams are. The caller calls end.
func newRun(ctx context.Context, p plan) (context.Context, *run) {
	ctx, stop := context.WithTimeout(ctx, joinTime+p.warmUp+p.timed+2*slack)
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &run{
		plan: p, id: rand.Text(), ended: ctx.Done(), why: func() error { return context.Cause(ctx) }, cancel: cancel, stop: stop,
		base: time.Now(), all: make(chan struct{}), over: make(chan struct{}),
	}
}

// enter takes in one more stream, and says whether there was room. Who entered leaves.
func (r *run) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entered == r.streams || r.closed {
		return false
	}
	r.entered++
	r.inside.Add(1)
	if r.entered == r.streams {
		close(r.all)
	}
	return true
}

func (r *run) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside.Done()
	r.left++
	if r.left == r.streams {
		close(r.over)
	}
}

// fail notes why a stream has not done its work; the first reason counts.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

// awaitAll waits until every stream has come.
func (r *run) awaitAll(ctx context.Context) error {
	late := time.NewTimer(joinTime)
	defer late.Stop()
	select {
	case <-r.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ended:
		return r.why()
	case <-late.C:
		return fmt.Errorf("not all %d streams came within %v", r.streams, joinTime)
	}
}

// end cancels the run and returns when no stream is left.
func (r *run) end() {
	r.cancel(errOver)
	r.stop()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.inside.Wait()
}

// outcome waits for the end of the streams and tells of it.
func (r *run) outcome(ctx context.Context) (answer, error) {
	select {
	case <-r.over:
	case <-ctx.Done():
		return answer{}, fmt.Errorf("cannot finish a run of streams: %w", context.Cause(ctx))
	case <-r.ended:
		return answer{}, fmt.Errorf("cannot finish a run of %d streams: %w", r.streams, r.why())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return answer{}, fmt.Errorf("cannot finish a run of %d streams: %w", r.streams, r.err)
	}
	if r.sends {
		sent := r.sent
		return answer{Sent: &sent}, nil
	}
	return answer{Bytes: r.timedBytes.Load(), Window: r.window()}, nil
}

// window is for how long was measured.
func (r *run) window() time.Duration {
	if cut := r.cut.Load(); cut != 0 {
		return max(0, min(r.timed, time.Duration(cut-r.first.Load())-r.warmUp))
	}
	return r.timed
}

// stream does the work of one connection, until the run ends.
func (r *run) stream(conn net.Conn) {
	through := make(chan struct{})
	var watch sync.WaitGroup
	defer watch.Wait()
	defer close(through)
	watch.Go(func() {
		select {
		case <-r.ended:
			_ = conn.SetDeadline(time.Unix(1, 0))
		case <-through:
		}
	})
	if tcp, ok := conn.(stream); ok {
		_ = tcp.SetLinger(0) // what is on its way when a run ends must not load the network any more
	}
	if r.sends {
		r.send(conn)
	} else {
		r.receive(conn)
	}
}

func (r *run) now() int64 { return max(1, int64(time.Since(r.base))) }

func (r *run) receive(conn net.Conn) {
	buffer := make([]byte, bufferBytes)
	r.setDeadline(conn.SetReadDeadline, r.warmUp+r.timed+slack)
	began := false
	for {
		n, err := conn.Read(buffer)
		now := r.now()
		if n > 0 {
			over := r.took(n, now)
			if !began {
				began = true
				r.setDeadline(conn.SetReadDeadline, time.Duration(r.first.Load()-now)+r.warmUp+r.timed)
			}
			if over {
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF): // the sender has sent all that it may
			r.cut.CompareAndSwap(0, now)
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			return
		default:
			r.fail(err)
			return
		}
	}
}

// setDeadline sets a deadline, unless the run is over and has set one itself.
func (r *run) setDeadline(set func(time.Time) error, d time.Duration) {
	_ = set(time.Now().Add(d))
	select {
	case <-r.ended:
		_ = set(time.Unix(1, 0))
	default:
	}
}

// took counts bytes that were read, and says whether that was enough.
func (r *run) took(n int, now int64) (over bool) {
	r.first.CompareAndSwap(0, now)
	opens := r.first.Load() + int64(r.warmUp)
	closes := opens + int64(r.timed)
	if now >= closes || r.cut.Load() != 0 {
		return true
	}
	if now >= opens {
		r.timedBytes.Add(int64(n))
	}
	if r.total.Add(int64(n)) >= r.maxBytes {
		r.cut.CompareAndSwap(0, now)
		return true
	}
	return false
}

// stream is a connection of a run: one of TCP.
type stream interface {
	SetLinger(sec int) error
	CloseWrite() error
}

// told is what the kernel says of a stream, as the medium has it.
func told(conn net.Conn) Sent {
	if shaped, ok := conn.(*shapedConn); ok {
		return shaped.sent()
	}
	return sentOver(conn)
}

// block is what is sent: made up, so that nothing on the way can make it shorter.
var block = sync.OnceValue(func() []byte {
	b := make([]byte, blockBytes)
	_, _ = rand.Read(b) // never fails
	return b
})

func (r *run) send(conn net.Conn) {
	due := r.warmUp + r.timed
	r.setDeadline(conn.SetWriteDeadline, due+slack)
	began := time.Now()
	var sent Sent
	looked := false
	for {
		n, err := conn.Write(block())
		if !looked && (err != nil || time.Since(began) >= due) {
			looked = true
			sent = told(conn)
		}
		if err != nil {
			break // the receiver has closed, or reads too slowly: it says what came
		}
		if r.total.Add(int64(n)) >= r.maxBytes {
			if !looked {
				sent = told(conn)
			}
			if tcp, ok := conn.(stream); ok {
				_ = tcp.SetLinger(-1)
				_ = tcp.CloseWrite()
			}
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent.add(sent)
}
