package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// watchdog is torchelastic's file timer (PyTorch 2.15.0, torch/distributed/elastic/timer/file_based_local_timer.py):
// workers write into a FIFO until when they will be done with something, and are sent a signal when they are not.
// torchrun signals itself too, which ends the node's agent; here the worker's end is a failure like any other.
type watchdog struct {
	path string
	fifo *os.File
	log  zerolog.Logger
	// signal sends s to a worker whose timer scope has run out; an error where pid is no worker's.
	signal func(pid int, s syscall.Signal, scope string) error
	done   sync.WaitGroup

	mu     sync.Mutex
	timers map[watchdogScope]*time.Timer
}

// watchdogScope is what one worker set a timer for.
type watchdogScope struct {
	pid   int
	scope string
}

// watchdogRequest is one line in the FIFO. ExpirationTime is seconds since the epoch; negative releases the timer.
type watchdogRequest struct {
	Version        int     `json:"version"`
	PID            int     `json:"pid"`
	Scope          string  `json:"scope_id"`
	ExpirationTime float64 `json:"expiration_time"`
	Signal         int     `json:"signal"`
}

// maxWatchdogTimers bounds what workers can make us remember.
const maxWatchdogTimers = 65536

// openWatchdog makes the FIFO at path and starts to read it.
func openWatchdog(path string, log zerolog.Logger, signal func(int, syscall.Signal, string) error) (*watchdog, error) {
	// One that a killed agent left is in the way; PyTorch's server removes it too.
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeNamedPipe {
		_ = os.Remove(path) // making the new one tells if it is still there
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("cannot make the watchdog's FIFO %q (TORCHELASTIC_TIMER_FILE): %w", path, err)
	}
	// Open for writing as well: there is never an end of file between two clients.
	fifo, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the watchdog's FIFO: %w", err), os.Remove(path))
	}
	w := &watchdog{path: path, fifo: fifo, log: log, signal: signal, timers: map[watchdogScope]*time.Timer{}}
	w.done.Go(w.read)
	return w, nil
}

// read takes requests until the FIFO is closed.
func (w *watchdog) read() {
	lines := bufio.NewReaderSize(w.fifo, 4096) // PIPE_BUF of Linux: the longest line that is written in one piece
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			w.log.Warn().Msg("watchdog request is too long and is ignored")
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			continue
		}
		if err != nil {
			if !errors.Is(err, os.ErrClosed) && !errors.Is(err, io.EOF) {
				w.log.Warn().Err(err).Msg("watchdog cannot read its requests any more")
			}
			return
		}
		var r watchdogRequest
		if err := json.Unmarshal(line, &r); err != nil || math.IsNaN(r.ExpirationTime) {
			w.log.Warn().Err(err).Msg("watchdog request is malformed and is ignored")
			continue
		}
		w.set(r)
	}
}

func (w *watchdog) set(r watchdogRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := watchdogScope{r.PID, r.Scope}
	if t, ok := w.timers[key]; ok {
		t.Stop()
		delete(w.timers, key)
	}
	if r.ExpirationTime < 0 {
		return
	}
	if len(w.timers) >= maxWatchdogTimers {
		w.log.Warn().Msg("watchdog has too many timers and ignores one")
		return
	}
	const century = 100 * 365 * 24 * 3600.0 // seconds; beyond it a Duration would overflow
	left := min(r.ExpirationTime-float64(time.Now().UnixMicro())/1e6, century)
	var timer *time.Timer // read by the function below only under the lock that is held here
	timer = time.AfterFunc(time.Duration(left*float64(time.Second)), func() { w.expire(key, &timer, syscall.Signal(r.Signal)) })
	w.timers[key] = timer
}

// expire ends what timer watched over, unless it was released or set anew meanwhile.
func (w *watchdog) expire(key watchdogScope, timer **time.Timer, s syscall.Signal) {
	w.mu.Lock()
	current := w.timers[key] == *timer
	if current {
		delete(w.timers, key)
	}
	w.mu.Unlock()
	if !current || s <= 0 {
		return // a signal of 0 or less asks for no end, as upstream has it
	}
	log := w.log.Warn().Int("pid", key.pid).Str("scope", key.scope).Str("signal", unix.SignalName(s))
	if err := w.signal(key.pid, s, key.scope); err != nil {
		log.Err(err).Msg("watchdog timer expired, but its process could not be signalled")
		return
	}
	log.Msg("watchdog timer expired, worker was signalled")
}

// Close stops all timers and removes the FIFO.
func (w *watchdog) Close() error {
	err := w.fifo.Close()
	w.done.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, t := range w.timers {
		t.Stop()
		delete(w.timers, key)
	}
	return errors.Join(err, os.Remove(w.path))
}
