package devicecheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Pair is two devices of a node, by their indices in the process that tests links.
type Pair [2]int

// String writes a pair as --box-pairs takes it.
func (p Pair) String() string { return fmt.Sprintf("%d:%d", p[0], p[1]) }

// Way is the copies in one direction.
type Way struct {
	MBps     float64 // of 10^6 bytes, that of the faster of two samples
	Corrupt  bool    // what arrived was not what was sent
	Peer     *bool   // the target can read the source's memory directly; nil: nobody knows
	HostMBps float64 // of the slower of the copies from the source to the host, and from the host to the target
}

// ViaHost reports that the copies seem to go through the host's memory: because the devices cannot reach each other,
// or, where nobody knows that, because they are as fast as that way. What is much slower is a slow link.
func (w Way) ViaHost() bool {
	if w.Peer != nil {
		return !*w.Peer
	}
	// Both halves of the way one after the other take twice as long as one.
	return 0.4*w.HostMBps <= w.MBps && w.MBps <= 1.1*w.HostMBps
}

// LinkResult is what became of a pair.
type LinkResult struct {
	Pair Pair
	// There is from the first device to the second, Back the other way.
	There, Back Way
	// Err is why there are no figures: a *DeviceError of Local -1. Its cause is Hung or Died where the process had to
	// be replaced for it.
	Err error
}

// MBps is the bandwidth of the slower direction.
func (r LinkResult) MBps() float64 { return min(r.There.MBps, r.Back.MBps) }

// Corrupt reports that a direction did not carry what was sent.
func (r LinkResult) Corrupt() bool { return r.There.Corrupt || r.Back.Corrupt }

// ViaHost reports that a direction seems to go through the host.
func (r LinkResult) ViaHost() bool { return r.There.ViaHost() || r.Back.ViaHost() }

// npuDevices is how many devices one process can connect to each other by torch_npu.
const npuDevices = 8

// switchboxStage names the stage in errors.
const switchboxStage = "switchbox"

// Switchbox tests the links of pairs of devices, one pair at a time, in a process that sees all devices. A pair that
// hangs or kills the process is one that failed; the others are tested in a fresh process. The results are in the order
// of pairs; the error says that nothing could be tested.
func (c *Program) Switchbox(ctx context.Context, pairs []Pair) ([]LinkResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	t := &linkTest{program: c, deadline: c.deadline(ctx), limit: min(c.cfg.LinkLimit, c.cfg.Budget)}
	for len(t.results) < len(pairs) {
		if err := t.run(ctx, pairs[len(t.results):]); err != nil {
			return nil, err
		}
	}
	return t.results, nil
}

// linkTest is one Switchbox.
type linkTest struct {
	program  *Program
	deadline time.Time     // of all
	limit    time.Duration // of a pair
	results  []LinkResult
	at       *Pair // being tested
	wrong    error // of what was heard
}

// run tests pairs in a process of its own, until the first one after which that cannot be used.
func (t *linkTest) run(ctx context.Context, pairs []Pair) error {
	c := t.program
	if !time.Now().Before(t.deadline) {
		t.giveUp(pairs,
			&DeviceError{Local: -1, Stage: switchboxStage, Cause: Hung, Text: fmt.Sprintf("not tested within %v", c.cfg.Budget)})
		return nil
	}
	m := c.linker
	c.linker = nil
	old := m != nil
	if !old {
		starting, done := context.WithDeadline(ctx, t.deadline)
		var err error
		m, err = c.start(starting, -1)
		done()
		if err != nil {
			return t.stuck(pairs, &DeviceError{Local: -1, Stage: switchboxStage, Cause: NotStarted, Text: err.Error()})
		}
	}
	var err error
	before := len(t.results)
	t.at, t.wrong = nil, nil
	if err = m.greet(ctx, t.deadline); err == nil {
		if m.hello.Device == "npu" {
			pairs = pairs[:fitting(pairs, npuDevices)]
		}
		o := order{Do: "links", Pairs: pairs, Seconds: c.cfg.Sample.Seconds(), LimitMS: (t.limit * 9 / 10).Milliseconds()}
		_, err = m.carryOut(ctx, t.next(), o, t.heard)
		if err == nil {
			err = t.wrong
		}
	}
	if old && t.at == nil && len(t.results) == before && errors.Is(err, errDied) { // while it was idle: no pair has killed it
		c.drop(ctx, m)
		return nil // another one is started
	}
	var fault *DeviceError
	switch {
	case err != nil:
		fault = c.fault(ctx, m, switchboxStage, err)
	case len(t.results)-before != len(pairs):
		fault = &DeviceError{Local: -1, Stage: switchboxStage, Cause: Garbled, Text: "it did not test all pairs"}
	}
	if fault == nil && m.hello.Device != "npu" && ctx.Err() == nil {
		c.linker = m // who asks again, because pairs failed, does not wait for another import of torch
	} else {
		c.drop(ctx, m)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("cannot finish the %s test: %w", switchboxStage, context.Cause(ctx))
	}
	if why := t.failure(before, fault); m.forked && why != nil {
		c.giveUpForksLocked(ctx, why)
		t.results = t.results[:before] // these are tested again
		return nil
	}
	if fault == nil {
		return nil
	}
	if err != nil && t.at != nil {
		fault.Step = "pair " + t.at.String()
		t.results = append(t.results, LinkResult{Pair: *t.at, Err: fault})
	}
	if len(t.results) == before { // whatever it was, it would be again
		return t.stuck(pairs, fault)
	}
	return nil
}

// failure returns what went wrong in a process: its fault, or that of a pair from the one at index first on; nil for
// nothing.
func (t *linkTest) failure(first int, fault *DeviceError) error {
	if fault != nil {
		return fault
	}
	for _, r := range t.results[first:] {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// stuck is for a fault of no pair: it ends the test, with what was found before it.
func (t *linkTest) stuck(pairs []Pair, fault *DeviceError) error {
	if len(t.results) == 0 {
		return fault
	}
	t.giveUp(pairs, fault)
	return nil
}

func (t *linkTest) giveUp(pairs []Pair, fault *DeviceError) {
	for _, p := range pairs {
		own := *fault
		own.Step = "pair " + p.String()
		t.results = append(t.results, LinkResult{Pair: p, Err: &own})
	}
}

// next is when the pair that is tested next has to be done.
func (t *linkTest) next() time.Time {
	if end := time.Now().Add(t.limit); end.Before(t.deadline) {
		return end
	}
	return t.deadline
}

// heard takes what the process says of a pair.
func (t *linkTest) heard(a answer) time.Time {
	switch {
	case a.Event == "pair":
		t.at = &a.Pair
		if report := t.program.cfg.Progress; report != nil {
			report(-1, "pair "+a.Pair.String())
		}
	case t.at == nil || *t.at != a.Pair || a.Error == "" && len(a.Ways) != 2:
		t.wrong = fmt.Errorf("%w: of the pair %v", errGarbled, a.Pair)
	case a.Error != "":
		t.results = append(t.results, LinkResult{Pair: a.Pair, Err: &DeviceError{
			Local: -1, Stage: switchboxStage, Step: "pair " + a.Pair.String(), Cause: Failed, Text: said(a.Error),
		}})
		t.at = nil
	default:
		t.results = append(t.results, LinkResult{Pair: a.Pair, There: a.Ways[0].way(), Back: a.Ways[1].way()})
		t.at = nil
	}
	return t.next()
}

func (a linkAnswer) way() Way {
	return Way{MBps: a.MBps, Corrupt: a.Wrong != 0, Peer: a.Peer, HostMBps: a.HostMBps}
}

// fitting returns how many of the first pairs have no more than so many devices together; at least one.
func fitting(pairs []Pair, devices int) int {
	var seen []int
	for i, p := range pairs {
		for _, end := range p {
			if !slices.Contains(seen, end) {
				seen = append(seen, end)
			}
		}
		if len(seen) > devices && i > 0 {
			return i
		}
	}
	return len(pairs)
}
