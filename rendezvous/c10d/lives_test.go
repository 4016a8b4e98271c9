package c10d_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/c10d"
)

// TestLives replays testdata/lives/*.txt: what agents decide while nothing but the lines at the left margin happens to
// them. Below each line stand the decisions until the next one, but for waits and keep-alives, and the state that each
// of them wrote. Times are seconds since the start, by the clock of the whole; agents may have others.
//
//	job min=2 max=3          begins an empty store and new settings: also lastcall, join, keepalive (durations), legacy
//	start a [skew=60s] [stop=1s] [min=..] [max=..]
//	                         starts an agent; it joins. stop is how long its workers take to stop
//	run 5s                   lets time pass
//	fail a                   a's workers fail: it begins a new round
//	kill a / pause a 30s     a ends without a word, or does nothing for a while
//	leave a / close a        a wants to be out, or the rendezvous to be closed
//	drop a 20s               t, a spare of upstream whose clock is 20s ahead, takes a out of the state
//	excuse a 1               a hears that so many members of its round are in the exit barrier
//	lose                     the store forgets everything
//	show                     shows the state
func TestLives(t *testing.T) {
	testutil.Transcripts(t, "testdata/lives/*.txt", *update, func(t *testing.T, text string) string {
		t.Helper()
		return (&life{t: t}).replay(text)
	})
}

type life struct {
	t        *testing.T
	w        *world
	out      strings.Builder
	settings c10d.Settings
	agents   map[string]*agent
	brains   map[string]*ours
	quiet    map[string]string // the last action told of each agent
}

func (l *life) replay(text string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, " ") {
			continue
		}
		l.out.WriteString(line)
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(line, "#") {
			l.command(fields[0], fields[1:])
		}
	}
	return l.out.String()
}

func (l *life) duration(s string) time.Duration {
	l.t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		l.t.Fatal(err)
	}
	return d
}

// set reads key=value words into settings, and returns the others it knows.
func (l *life) set(s c10d.Settings, words []string) (c10d.Settings, map[string]time.Duration) {
	l.t.Helper()
	other := map[string]time.Duration{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "min", "max":
			n, err := strconv.Atoi(value)
			if err != nil {
				l.t.Fatal(err)
			}
			if key == "min" {
				s.MinNodes = n
			} else {
				s.MaxNodes = n
			}
		case "lastcall":
			s.LastCall = l.duration(value)
		case "join":
			s.JoinTimeout = l.duration(value)
		case "keepalive":
			s.KeepAlive = l.duration(value)
		case "legacy":
			s.Legacy = true
		default:
			other[key] = l.duration(value)
		}
	}
	return s, other
}

func (l *life) show(s *c10d.State) {
	fmt.Fprintf(&l.out, "            %s\n", strings.ReplaceAll(show(s, someTime), "_1_0", ""))
}

func (l *life) command(name string, args []string) {
	l.t.Helper()
	switch name {
	case "job":
		l.settings, _ = l.set(c10d.DefaultSettings(1, 1), args)
		l.w = newWorld(l.t, 100)
		l.agents, l.brains, l.quiet = map[string]*agent{}, map[string]*ours{}, map[string]string{}
		l.w.tell = l.heard
		return
	case "run":
		l.w.run(l.duration(args[0]))
		return
	case "show":
		l.show(l.w.decode(l.w.text))
		return
	case "lose":
		l.w.text, l.w.rounds = c10d.NoState, map[int]map[c10d.Node]int{}
		return
	case "start":
		s, other := l.set(l.settings, args[1:])
		a, b := l.w.newOurs(s, other["skew"], c10d.Node{Addr: args[0], PID: 1})
		b.stopping = other["stop"]
		l.agents[args[0]], l.brains[args[0]] = a, b
		l.w.start(a)
		l.w.run(0)
		return
	}
	a, b := l.agents[args[0]], l.brains[args[0]]
	switch name {
	case "fail":
		b.fail(l.w.now)
		l.w.poke(a)
	case "kill":
		a.dead = true
	case "pause":
		a.paused = l.w.now + l.duration(args[1])
	case "leave":
		b.leaving = true
		b.begin(c10d.WantExit, l.w.now)
		l.w.poke(a)
	case "close":
		b.begin(c10d.WantClose, l.w.now)
		l.w.poke(a)
	case "excuse":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			l.t.Fatal(err)
		}
		b.excused = n
	case "drop":
		s := l.w.decode(l.w.text).Clone()
		delete(s.Participants, b.nodes[0])
		delete(s.LastHeartbeats, b.nodes[0])
		spare := c10d.Node{Addr: "t", PID: 1}
		s.RedundancyList[spare] = struct{}{}
		s.LastHeartbeats[spare] = someTime.Add(l.w.now + l.duration(args[1]))
		text, err := c10d.Encode(s)
		if err != nil {
			l.t.Fatal(err)
		}
		l.w.text = string(text)
	default:
		l.t.Fatalf("unknown command %q", name)
	}
	l.w.run(0)
}

// heard writes down what is worth reading.
func (l *life) heard(a *agent, m move) {
	last := l.quiet[a.name]
	l.quiet[a.name] = m.action
	switch m.action {
	case "sync", "keep alive":
		l.quiet[a.name] = last
		return
	case "finish":
		if m.done == "" && !m.joined {
			return // an exit of what was not there
		}
	}
	reason := ""
	if m.reason != "" {
		reason = ": " + strings.ReplaceAll(m.reason, "_1_0", "")
	}
	if m.joined {
		r, _ := a.brain.held()
		reason = fmt.Sprintf(": round %d, rank %d of %d", r.Number, r.Rank, len(r.Ranks))
	}
	fmt.Fprintf(&l.out, "  %6.2f %s %s%s\n", l.w.now.Seconds(), a.name, m.action, reason)
	if m.desired != "" {
		l.show(l.w.decode(m.desired))
	}
}
