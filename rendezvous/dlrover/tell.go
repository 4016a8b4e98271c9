package dlrover

import (
	"bufio"
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// heartbeats are as far apart as those of DLRover's agents. What is told with one takes no longer than that.
const heartbeats = 15 * time.Second

// progress is how far the job has come.
type progress struct {
	step int64
	at   time.Time
}

// Progress takes in how far the job has come, for the master.
func (h *Handler) Progress(step int64, at time.Time) {
	select {
	case h.steps <- progress{step, at}:
	default: // the last one is on its way
	}
}

// keepTelling sends heartbeats, what this node uses and how far the job has come, and does what the master wants. A
// master that does not answer is told again with the next heartbeat: the workers go on meanwhile.
func (h *Handler) keepTelling() {
	each := h.cfg.Each
	if each <= 0 {
		each = heartbeats
	}
	tick := time.NewTicker(each)
	defer tick.Stop()
	used, lost := newUsage(), false
	beat := func() {
		ctx, cancel := context.WithTimeout(h.done, heartbeats)
		defer cancel()
		a, err := h.c.heartbeat(ctx)
		switch {
		case h.done.Err() != nil:
			return
		case err != nil && !lost:
			lost = true
			h.cfg.Log.Warn().Err(err).Msg("the master does not hear this node; workers go on without it")
		case err == nil && lost:
			lost = false
			h.cfg.Log.Info().Msg("the master hears this node again")
		}
		if err != nil {
			return
		}
		h.carryOut(ctx, a)
		memory, cpus := used.look()
		if err := h.c.resources(ctx, memory, cpus); err != nil && h.done.Err() == nil {
			h.cfg.Log.Debug().Err(err).Msg("the master was not told what this node uses")
		}
	}
	beat()
	for {
		select {
		case <-tick.C:
			beat()
		case p := <-h.steps:
			ctx, cancel := context.WithTimeout(h.done, heartbeats)
			if err := h.c.step(ctx, p.step, p.at); err != nil && h.done.Err() == nil {
				h.cfg.Log.Debug().Err(err).Msg("the master was not told how far the job has come")
			}
			cancel()
		case <-h.done.Done():
			return
		}
	}
}

// carryOut does what the master wants of this node.
func (h *Handler) carryOut(ctx context.Context, a action) {
	if a.class == "" || a.class == "NoAction" {
		return
	}
	h.mu.Lock()
	r := h.round
	h.mu.Unlock()
	switch {
	case a.class == "EventAction":
		if err := h.c.sayEvent(ctx, a); err != nil && h.done.Err() == nil {
			h.cfg.Log.Warn().Err(err).Msg("an event was not reported to the master")
		}
	case a.class == "NodeAction" && a.Type == "restart_worker":
		h.cfg.Log.Warn().Str("reason", a.Reason).Msg("the master wants the workers restarted")
		if r != nil { // heartbeats go on while others are told
			h.beside.Go(func() {
				r.demand(rendezvous.Verdict{
					Kind: rendezvous.Reassemble, Reason: "MasterRestart", Rank: -1, Message: "DLRover's master wants the workers restarted",
				})
			})
		}
	case a.class == "NodeAction" && a.Type == "relaunch_worker":
		h.cfg.Log.Warn().Str("reason", a.Reason).Msg("the master wants this node replaced")
		v := rendezvous.Verdict{
			Kind: rendezvous.Fail, Reason: "MasterRelaunch", Rank: -1, Status: errhint.TryAgain, Node: h.cfg.Node,
			Message: "DLRover's master wants this node replaced",
		}
		h.mu.Lock()
		h.leaving, r = &v, h.round
		h.mu.Unlock()
		if r == nil || r.ctx.Err() != nil {
			h.stop(&rendezvous.OverError{Verdict: v})
			return
		}
		h.beside.Go(func() { r.leaveOn(v) })
	default:
		h.cfg.Log.Warn().Str("action", a.class+" "+a.Type).Msg(
			"the master wants something that muster does not know; nothing is done about it")
	}
}

// usage measures what this machine uses.
type usage struct {
	at   time.Time
	busy float64 // seconds of CPUs
}

func newUsage() *usage { return &usage{time.Now(), busyCPU()} }

// look returns memory in MiB and CPUs that are used, 0 for what cannot be measured.
func (u *usage) look() (memory int, cpus float64) {
	now, busy := time.Now(), busyCPU()
	if d := now.Sub(u.at).Seconds(); d > 0 {
		cpus = min(max((busy-u.busy)/d, 0), float64(runtime.NumCPU()))
	}
	u.at, u.busy = now, busy
	sizes := map[string]int{}
	eachLine("/proc/meminfo", func(line string) {
		name, rest, _ := strings.Cut(line, ":")
		if f := strings.Fields(rest); len(f) > 0 {
			sizes[name], _ = strconv.Atoi(f[0]) // in KiB; what is no number counts as nothing
		}
	})
	return max(sizes["MemTotal"]-sizes["MemAvailable"], 0) / 1024, cpus
}

// busyCPU returns how many seconds the CPUs of this machine have worked.
func busyCPU() (seconds float64) {
	eachLine("/proc/stat", func(line string) {
		f := strings.Fields(line)
		if len(f) < 5 || f[0] != "cpu" {
			return
		}
		for i, ticks := range f[1:] {
			if n, err := strconv.ParseFloat(ticks, 64); err == nil && i != 3 && i != 4 && i < 8 { // idle, iowait; guests count as users
				seconds += n / 100
			}
		}
	})
	return seconds
}

func eachLine(path string, f func(line string)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	for s := bufio.NewScanner(file); s.Scan(); {
		f(s.Text())
	}
}
