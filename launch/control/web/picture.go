package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/report"
)

// freshFor is how old an answer may be that is given again. Who asks more often learns nothing new, and costs the job
// nothing.
const freshFor = 500 * time.Millisecond

// lookTime bounds one look at the job.
const lookTime = 5 * time.Second

// picture is how the job stood at the last look, as all clients are shown it: whole, and by what has changed since the
// look before.
type picture struct {
	cfg     Config
	history history
	// watch wakes the look when somebody begins to watch.
	watch chan struct{}
	// looking is held by who looks.
	looking sync.Mutex

	mu       sync.Mutex
	watchers int
	told     control.Answer
	err      error
	at       time.Time // of told
	seq      uint64    // of the look
	whole    []byte    // the frame of all; nil while nobody watches
	change   []byte    // what differs from the frame before; nil: more than whole would say
	rows     [][]byte
	nodes    []string
	failure  *lastFailure
	cpu      map[int]usedCPU
	news     chan struct{} // closed with the next look
}

// lastFailure is the last worker that was to blame for something, also after the restart.
type lastFailure struct {
	*report.Cause
	Seen time.Time `json:"seen"`
}

// usedCPU is how much of a processor a worker has used, and the rate since the look before.
type usedCPU struct {
	pid     int
	seconds float64
	at      time.Time
	rate    float64
	known   bool
}

func newPicture(cfg Config) *picture {
	return &picture{cfg: cfg, watch: make(chan struct{}, 1), cpu: map[int]usedCPU{}, news: make(chan struct{})}
}

// look looks at the job until ctx ends.
func (p *picture) look(ctx context.Context) {
	last := time.Now()
	for {
		p.take(ctx)
		for {
			p.mu.Lock()
			every := idleEvery
			if p.watchers > 0 {
				every = p.cfg.Every
			}
			p.mu.Unlock()
			rest := time.Until(last.Add(every))
			if rest <= 0 {
				break
			}
			timer := time.NewTimer(rest)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-p.watch:
				timer.Stop()
			case <-timer.C:
			}
		}
		if ctx.Err() != nil {
			return
		}
		last = time.Now()
	}
}

// take looks at the job once.
func (p *picture) take(ctx context.Context) {
	p.looking.Lock()
	defer p.looking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	d, err := p.cfg.Served.Status(ctx, control.World)
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; err != nil {
		p.at = now
		return
	}
	d.Ranks = slices.Clone(d.Ranks)
	slices.SortStableFunc(d.Ranks, func(x, y report.Rank) int { return cmp.Compare(x.Rank, y.Rank) })
	p.told, p.at = control.Answer{Status: d, Muster: p.cfg.Muster}, now
	p.useLocked(now)
	if d.RootCause != nil && (p.failure == nil || !p.failure.Time.Equal(d.RootCause.Time) || p.failure.PID != d.RootCause.PID) {
		p.failure = &lastFailure{d.RootCause, now.UTC().Round(time.Millisecond)}
	}
	p.history.add(now, p.sampleLocked())
	p.drawLocked(now)
	close(p.news)
	p.news = make(chan struct{})
}

// useLocked takes in how much of a processor each worker has used.
func (p *picture) useLocked(now time.Time) {
	for i := range p.told.Ranks {
		r := &p.told.Ranks[i]
		before, known := p.cpu[r.Rank]
		if r.CPUSeconds == nil {
			delete(p.cpu, r.Rank)
			continue
		}
		u := usedCPU{pid: r.PID, seconds: *r.CPUSeconds, at: now}
		if r.UsageTime != nil {
			u.at = *r.UsageTime
		}
		if known && before.pid == r.PID && u.at.Equal(before.at) {
			continue // another node reads it every few seconds
		}
		if past := u.at.Sub(before.at); known && before.pid == r.PID && past > 0 {
			u.known, u.rate = true, max(0, (u.seconds-before.seconds)/past.Seconds())
			if past < freshFor { // the clock of processors has steps of 10 ms
				u.rate = (before.rate*3 + u.rate) / 4
			}
		}
		p.cpu[r.Rank] = u
	}
	if len(p.cpu) > len(p.told.Ranks) {
		there := make(map[int]bool, len(p.told.Ranks))
		for i := range p.told.Ranks {
			there[p.told.Ranks[i].Rank] = true
		}
		for rank := range p.cpu {
			if !there[rank] {
				delete(p.cpu, rank)
			}
		}
	}
}

// answer is how the job stands, no older than freshFor.
func (p *picture) answer(ctx context.Context) (control.Answer, error) {
	p.mu.Lock()
	stale := time.Since(p.at) > freshFor
	p.mu.Unlock()
	if stale && p.looking.TryLock() { // who comes while somebody looks is given what was seen last
		p.looking.Unlock()
		p.take(context.WithoutCancel(ctx)) // what it sees is for all: a client that goes away does not spoil it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return control.Answer{}, p.err
	}
	if p.seq == 0 && p.told.RunID == "" {
		return control.Answer{}, errhint.Code(errors.New("the job has not been looked at yet"), errhint.TryAgain)
	}
	return p.told, nil
}

// enter begins to watch, until the returned function is called.
func (p *picture) enter() (leave func()) {
	p.mu.Lock()
	p.watchers++
	p.mu.Unlock()
	select {
	case p.watch <- struct{}{}:
	default:
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.watchers--; p.watchers == 0 {
			p.whole, p.change, p.rows = nil, nil, nil
		}
	})
}

// frame is what a client is shown who has seen a frame with a number, 0 for none: nil where there is nothing new. news
// is closed with the next look.
func (p *picture) frame(seen uint64) (kind string, data []byte, seq uint64, news <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.whole == nil || seen == p.seq:
		return "", nil, seen, p.news
	case seen > 0 && seen+1 == p.seq && p.change != nil:
		return "change", p.change, p.seq, p.news
	}
	return "whole", p.whole, p.seq, p.news
}

// frameJob is what a frame says of the job as a whole.
type frameJob struct {
	Now    int64         `json:"now"` // by the server's clock, in milliseconds
	Every  float64       `json:"every"`
	Muster control.Role  `json:"role"`
	Status report.Status `json:"job"`
	// Failure is the last worker that was to blame.
	Failure *lastFailure `json:"failure,omitempty"`
	// Nodes are the names that rows tell by their numbers; absent in a change.
	Nodes []string `json:"nodes,omitempty"`
	// Ranks are the rows of all ranks, in a change those that differ, each behind its place.
	Ranks json.RawMessage `json:"ranks"`
}

// drawLocked makes the frames, where somebody watches.
func (p *picture) drawLocked(now time.Time) {
	if p.watchers == 0 {
		return
	}
	p.seq++
	d := p.told.Status
	ranks := d.Ranks
	d.Ranks, d.RootCause = nil, nil
	number := map[string]int{}
	var nodes []string
	for i := range ranks {
		if _, known := number[ranks[i].Node]; !known {
			number[ranks[i].Node] = len(nodes)
			nodes = append(nodes, ranks[i].Node)
		}
	}
	rows := make([][]byte, len(ranks))
	whole, change := []byte{'['}, []byte{'['}
	for i := range ranks {
		row := appendRow(nil, &ranks[i], number[ranks[i].Node], p.cpu[ranks[i].Rank])
		if rows[i] = row; i > 0 {
			whole = append(whole, ',')
		}
		whole = append(append(append(whole, '['), row...), ']')
		if i < len(p.rows) && slices.Equal(p.rows[i], row) {
			continue
		}
		if len(change) > 1 {
			change = append(change, ',')
		}
		change = append(append(append(appendInt(append(change, '['), int64(i)), ','), row...), ']')
	}
	job := frameJob{
		Now: now.UnixMilli(), Every: p.cfg.Every.Seconds(), Muster: p.cfg.Muster.Role, Status: d, Failure: p.failure, Nodes: nodes,
		Ranks: append(whole, ']'),
	}
	same := len(rows) == len(p.rows) && slices.Equal(nodes, p.nodes)
	p.rows, p.nodes, p.whole, p.change = rows, nodes, encoded(job), nil
	if same {
		job.Nodes, job.Ranks = nil, append(change, ']')
		p.change = encoded(job)
	}
}

func encoded(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil { // a number that JSON does not have, which no worker's word may be
		return []byte("{}")
	}
	return text
}

// runID is the job's.
func (p *picture) runID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told.RunID
}
