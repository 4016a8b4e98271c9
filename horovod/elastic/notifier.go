package elastic

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/horovod/notify"
)

// tellAgain is the time between two tellings of a change that was understood. A worker that begins a world throws away
// what it was told before that (State.on_reset of horovod/common/elastic.py), and might train on without new hosts for ever.
const tellAgain = 5 * time.Second

// notifier tells one worker of one change again and again, until it is not true any more or a world ends. Horovod's driver
// tries once.
type notifier struct {
	log    zerolog.Logger
	dialer notify.Dialer
	wake   chan struct{} // room for one: it is a level, not a count

	mu      sync.Mutex
	workers map[string]notify.Registration
	to      string // "" for nothing to tell
	change  notify.Change
	serial  int // of what is to be told, and to whom
	last    int64
	cut     context.CancelFunc // ends what is under way; never nil
}

func newNotifier(log zerolog.Logger, d notify.Dialer) *notifier {
	return &notifier{log: log, dialer: d, wake: make(chan struct{}, 1), workers: map[string]notify.Registration{}, cut: func() {}}
}

// register notes where the worker of a slot listens. A new process in a slot takes the place of an old one.
func (t *notifier) register(key string, reg notify.Registration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workers[key] = reg
	if key == t.to {
		t.nextLocked()
	}
}

// set says what is to be told from now on, "" for nothing. What the same worker has not heard yet is told with it.
func (t *notifier) set(key string, change notify.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if key == t.to {
		change |= t.change
	}
	t.to, t.change = key, change
	t.nextLocked()
}

// nextLocked has something else told. A worker may take hours to answer at none of its addresses.
func (t *notifier) nextLocked() {
	t.serial++
	t.cut()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *notifier) run(ctx context.Context) {
	warned := 0
	var again <-chan time.Time
	for {
		select {
		case <-t.wake:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		t.mu.Lock()
		to, change, serial := t.to, t.change, t.serial
		worker, known := t.workers[to]
		// Workers ignore what is not later than the last message, in whole seconds.
		t.last = max(t.last+1, time.Now().Unix())
		at := time.Unix(t.last, 0)
		telling, cut := context.WithCancel(ctx)
		t.cut = cut
		t.mu.Unlock()
		if to == "" || !known {
			cut()
			continue // until it registers
		}
		err := notify.Tell(telling, t.dialer, worker, at, change)
		cut()
		if err == nil {
			again = time.After(tellAgain)
			continue
		}
		again = time.After(tickTime)
		t.mu.Lock()
		current := serial == t.serial
		t.mu.Unlock()
		if current && warned != serial && ctx.Err() == nil {
			warned = serial
			t.log.Warn().Err(err).Str("worker", to).Msg("a worker was not told that hosts changed: it is tried again")
		}
	}
}
