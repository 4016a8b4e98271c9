package rankmonitor

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"muster/internal/pickle"
	"muster/launch/job"
)

// Names of sections that NVRx knows: what one step takes, and what the first of them take.
const (
	stepSection   = "step"
	warmupSection = "warmup"
)

// mostOpen is how many sections a worker is in at once.
const mostOpen = 1024

// limits are how long a worker may take. They outlive it: a client that calculates some tells them once.
type limits struct {
	first, heartbeat, outside time.Duration
	sections                  map[string]time.Duration
	warmup                    int64
}

func newLimits(rules *job.RankMonitor) limits {
	l := limits{
		first: rules.First, heartbeat: rules.Heartbeat, outside: rules.Outside, sections: map[string]time.Duration{},
		warmup: int64(rules.Warmup),
	}
	for _, s := range rules.Sections {
		l.sections[s.Name] = s.Limit
	}
	return l
}

// update takes over what a client has calculated.
func (l *limits) update(m updateMsg) {
	if m.heartbeats != nil {
		l.first, l.heartbeat = m.heartbeats.first, m.heartbeats.next
	}
	if m.sections != nil {
		l.sections, l.outside = m.sections.of, m.sections.outside
	}
}

// config is what a client is told of them: the attributes of NVRx's FaultToleranceConfig that it reads. The others have
// the defaults of its class.
func (l *limits) config(rules *job.RankMonitor) instance {
	sections := []pickle.Pair{}
	for _, name := range slices.Sorted(maps.Keys(l.sections)) {
		sections = append(sections, pickle.Pair{Key: name, Value: l.sections[name]})
	}
	return instance{configModule, "FaultToleranceConfig", []pickle.Pair{
		{Key: "workload_check_interval", Value: rules.Every.Seconds()},
		{Key: "initial_rank_heartbeat_timeout", Value: l.first},
		{Key: "rank_heartbeat_timeout", Value: l.heartbeat},
		{Key: "rank_section_timeouts", Value: sections},
		{Key: "rank_out_of_section_timeout", Value: l.outside},
		{Key: "safety_factor", Value: rules.Factor},
		{Key: "rank_termination_signal", Value: member{"signal", "Signals", int64(rules.Signal)}},
		{Key: "skip_section_response", Value: !rules.Answers},
		{Key: "install_exception_hook", Value: rules.ExceptionHook},
		{Key: "num_warmup_iterations", Value: int(l.warmup)},
	}}
}

// watch is where a worker is that has said who it is. It knows no clock.
type watch struct {
	rank   int
	limits *limits
	began  time.Time
	heard  time.Time            // the last heartbeat; zero: none
	open   map[string]time.Time // sections, and when they began
	// outside is since when none is open, stepped says that a step has begun. first and now are the numbers of the
	// first and of the last step, of a client that tells them.
	outside    time.Time
	stepped    bool
	first, now *int64
}

func newWatch(m initMsg, l *limits, now time.Time) *watch {
	if m.warmup != nil {
		l.warmup = max(0, min(*m.warmup, 1<<30))
	}
	return &watch{rank: m.rank, limits: l, began: now, open: map[string]time.Time{}, outside: now}
}

// section enters or leaves a section.
func (w *watch) section(m sectionMsg, now time.Time) error {
	if m.name == stepSection && m.iteration != nil {
		if w.first == nil {
			w.first = m.iteration
		}
		w.now = m.iteration
	}
	_, is := w.open[m.name]
	switch {
	case m.action == sectionCloseAll:
		clear(w.open)
		w.outside = now
	case m.action == sectionOpen && is:
		return fmt.Errorf("section %q is already open", m.name)
	case m.action == sectionOpen && len(w.open) == mostOpen:
		return fmt.Errorf("section %q is one too many: %d are open", m.name, mostOpen)
	case m.action == sectionOpen:
		w.open[m.name] = now
		w.stepped = w.stepped || m.name == stepSection
	case !is:
		return fmt.Errorf("section %q is not open", m.name)
	default:
		if delete(w.open, m.name); len(w.open) == 0 {
			w.outside = now
		}
	}
	return nil
}

// limitOf is how long a section may last: NVRx has "warmup" stand for the first steps.
func (w *watch) limitOf(section string) time.Duration {
	if warm, is := w.limits.sections[warmupSection]; is && section == stepSection && w.first != nil &&
		*w.now-*w.first < w.limits.warmup {
		return warm
	}
	return w.limits.sections[section]
}

// due is when the worker will have taken too long with something, and with what; zero: it has no limit.
func (w *watch) due() (at time.Time, o Overdue) {
	consider := func(since time.Time, limit time.Duration, key, what string) {
		if end := since.Add(limit); limit > 0 && (at.IsZero() || end.Before(at)) {
			at, o = end, Overdue{Rank: w.rank, What: what, Since: since, Limit: limit, Key: key}
		}
	}
	if w.heard.IsZero() {
		consider(w.began, w.limits.first, "initial_rank_heartbeat_timeout", "has sent no first heartbeat")
	} else {
		consider(w.heard, w.limits.heartbeat, "rank_heartbeat_timeout", "has sent no heartbeat")
	}
	for _, name := range slices.Sorted(maps.Keys(w.open)) {
		consider(w.open[name], w.limitOf(name), "rank_section_timeouts", fmt.Sprintf("is in section %q", name))
	}
	// As NVRx has it: before the first step nobody is outside of sections, where "warmup" is none of them.
	_, warms := w.limits.sections[warmupSection]
	if len(w.open) == 0 && (len(w.limits.sections) == 0 || warms || w.stepped) {
		consider(w.outside, w.limits.outside, "rank_out_of_section_timeout", "is outside of all sections")
	}
	return at, o
}

// forgive has all that lasts begin anew: nobody could say anything meanwhile.
func (w *watch) forgive(now time.Time) {
	w.began, w.outside = now, now
	if !w.heard.IsZero() {
		w.heard = now
	}
	for name := range w.open {
		w.open[name] = now
	}
}
