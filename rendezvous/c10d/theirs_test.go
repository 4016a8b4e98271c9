package c10d_test

import (
	"time"

	"muster/rendezvous/c10d"
)

// theirs is an agent of upstream: the operations are those of the real torch that f.upstream runs, the order between
// them is that of next_rendezvous and of the agent's loop.
type theirs struct {
	f         *fleet
	node      c10d.Node
	want      string // exit, join, stay
	deadline  float64
	round     c10d.Round
	keepAlive time.Duration // when its timer fires next
	keeping   bool          // whether a keep-alive is under way
	alone     time.Duration // since when its workers miss peers, 0 while they do not
}

// collective is how long workers wait for peers that are gone before they fail. Upstream's agents notice nothing by
// themselves: neither that a member is gone, nor that they were dropped and the others go on without them.
const collective = 20 * time.Second

// peersGone reports whether the workers have failed for want of peers.
func (b *theirs) peersGone(s *c10d.State, now time.Duration) bool {
	gone := s.Round != b.round.Number
	for n := range b.round.Ranks {
		_, in := s.Participants[n]
		gone = gone || !in
	}
	if !gone {
		b.alone = 0
	} else if b.alone == 0 {
		b.alone = now
	}
	return gone && now-b.alone > collective
}

func (b *theirs) fail(time.Duration) {
	if b.want == "stay" {
		b.want = ""
	}
}

func (b *theirs) held() (c10d.Round, bool) { return b.round, b.want == "stay" }

func (b *theirs) ask(want, text string, now time.Duration) upstreamAnswer {
	s := upstreamStep{
		Want: want, Node: nodeJSON(b.node), Min: b.f.settings.MinNodes, Max: b.f.settings.MaxNodes,
		Wall: someTime.Add(now).UnixMicro(), Mono: now.Seconds(), Deadline: b.deadline,
	}
	if text != c10d.NoState {
		s.Text = &text
	}
	return b.f.upstream.step(s)
}

// waits reports whether somebody waits by the state, as their code sees it. Where nobody does it is not asked again about
// the same state: as time passes they only drop nodes from it.
func (b *theirs) waits(text string, now time.Duration) bool {
	if text != b.f.nobody && b.ask("waiting", text, now).Waiting == 0 {
		b.f.nobody = text
	}
	return text != b.f.nobody
}

func (b *theirs) decide(text string, now time.Duration) move {
	if b.want == "" {
		b.want, b.deadline, b.keeping = "exit", (now + b.f.settings.JoinTimeout).Seconds(), false
		b.alone = 0
	}
	if b.want == "stay" && !b.keeping {
		if b.waits(text, now) || b.peersGone(b.f.decode(text), now) {
			b.want = ""
			return move{action: "new round", wait: time.Millisecond}
		}
		if now < b.keepAlive {
			return move{action: "sync", wait: time.Second}
		}
		b.keeping, b.keepAlive = true, now+b.f.settings.KeepAlive
	}
	if b.want == "stay" {
		b.deadline = (now + b.f.settings.HeartbeatTimeout).Seconds()
	}
	answer := b.ask(b.want, text, now)
	b.deadline = answer.Deadline
	m := move{action: answer.Action, wait: time.Second}
	if answer.Text != nil {
		m.desired = *answer.Text
	}
	switch answer.Action {
	case "FINISH":
		switch b.want {
		case "stay":
			b.keeping = false
			m.action = "sync"
		case "exit":
			b.want, m.wait = "join", time.Millisecond
		case "join":
			b.want, b.keeping, b.keepAlive = "stay", false, now+b.f.settings.KeepAlive
			s := b.f.decode(text)
			b.round, m.joined = c10d.Round{Number: s.Round, Rank: s.Participants[b.node], Ranks: s.Participants}, true
		}
	case "ERROR_CLOSED", "ERROR_TIMEOUT", "GRACEFUL_EXIT":
		m.done = answer.Action
	case "SYNC":
		m.action = "sync"
	case "KEEP_ALIVE":
		m.action = "keep alive"
	}
	return m
}
