package netprobe

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"muster/internal/check"
)

// Limits are what figures are held against; zero means the default, less than zero switches the rule off. What a result
// then means for a node is check.Policy's.
type Limits struct {
	// FailedTries is how many tries to connect may fail before that is a warning, default 3.
	FailedTries int
	// RTT is the largest 99th percentile of round trips within a site, default 2 ms.
	RTT time.Duration
	// RTTFactor is by how much the median of a pair's round trips may exceed that of all pairs, default 4.
	RTTFactor float64
	// ClockWarn and ClockFail are how far clocks may be apart, default 50 ms and 2 s. Beyond the first logs of nodes
	// cannot be put in order, beyond the second leases and certificates go wrong.
	ClockWarn, ClockFail time.Duration
	// Bandwidth is the least of any run, in bytes a second, default 100 MB/s.
	Bandwidth float64
	// BandwidthShare is the least share of the median of all pairs, default 0.5; SpeedShare that of the slower one of
	// the two interfaces, default 0.3, for which none counts with more than 32 Gb/s: that is what Go does on two cores.
	BandwidthShare, SpeedShare float64
	// Retransmitted is the share of segments that may be sent again, default 0.001.
	Retransmitted float64
	// MedianNodes is how many nodes there must be for rules of medians, default 4.
	MedianNodes int
}

func (l Limits) withDefaults() Limits {
	number := func(v *float64, def float64) {
		if *v == 0 {
			*v = def
		}
	}
	whole := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	span := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	whole(&l.FailedTries, 3)
	span(&l.RTT, 2*time.Millisecond)
	number(&l.RTTFactor, 4)
	span(&l.ClockWarn, 50*time.Millisecond)
	span(&l.ClockFail, 2*time.Second)
	number(&l.Bandwidth, 100e6)
	number(&l.BandwidthShare, 0.5)
	number(&l.SpeedShare, 0.3)
	number(&l.Retransmitted, 0.001)
	whole(&l.MedianNodes, 4)
	return l
}

// topSpeed is what streams of Go reach on two cores, in Mb/s (measured, loopback and namespaces).
const topSpeed = 32000

// judgement holds facts of one pair against those of all.
type judgement struct {
	Limits
	f *Facts
	// rtt is the median of all pairs' medians, rates those of all runs by their number of streams; zero for no median.
	rtt   time.Duration
	rates map[int]float64
}

// Judge turns the facts of pairs into results, pair by pair in the order given: for every check one result of each
// pair, or more where it has more to say. The subject's node is the one that asked; check.Policy puts results of
// several nodes into reports. Each value is with its limit, and the reason says what was seen.
func Judge(facts []Facts, limits Limits) []check.Result {
	j := judgement{Limits: limits.withDefaults(), rates: map[int]float64{}}
	j.medians(facts)
	var results []check.Result
	for i := range facts {
		j.f = &facts[i]
		for _, rule := range []func() []check.Result{
			j.reach, j.roundTrips, j.clock, j.sizes, j.bandwidth, j.retransmitted, j.segments,
		} {
			results = append(results, rule()...)
		}
	}
	return results
}

// medians needs enough nodes: of two pairs none is the odd one.
func (j *judgement) medians(facts []Facts) {
	nodes := map[string]bool{}
	var rtts []time.Duration
	rates := map[int][]float64{}
	for i := range facts {
		f := &facts[i]
		nodes[f.From.Name], nodes[f.To.Name] = true, true
		if f.RTT.Count > 0 {
			rtts = append(rtts, f.RTT.P50)
		}
		for _, b := range f.Bulk {
			rates[b.Streams] = append(rates[b.Streams], b.Rate())
		}
	}
	if j.MedianNodes < 0 || len(nodes) < j.MedianNodes {
		return
	}
	j.rtt = median(rtts)
	for n, r := range rates {
		j.rates[n] = median(r)
	}
}

func median[T cmp.Ordered](values []T) (m T) {
	if len(values) == 0 {
		return m
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// result is one of this pair.
func (j *judgement) result(id string, status check.Status) check.Result {
	return check.Result{
		ID: id, Status: status, Source: "net",
		Subject: check.Subject{Node: j.f.From.Name, Pair: j.f.Name(), Iface: j.f.Local.Iface},
	}
}

func (j *judgement) skip(id, why string) []check.Result {
	r := j.result(id, check.Skip)
	r.Reason = why
	return []check.Result{r}
}

// reach gives a result for each direction that was tried.
func (j *judgement) reach() []check.Result {
	const id = "net-reach"
	var results []check.Result
	for _, way := range []struct {
		tries    *Tries
		from, to string
	}{{&j.f.Reach.Out, j.f.From.Name, j.f.To.Name}, {&j.f.Reach.Back, j.f.To.Name, j.f.From.Name}} {
		t := way.tries
		if t.Skip != "" || t.Done == 0 {
			if t.Skip != "" && way.tries == &j.f.Reach.Back && j.f.Reach.Out.Failed < j.f.Reach.Out.Done {
				results = append(results, j.skip(id, fmt.Sprintf("%s to %s: %s", way.from, way.to, t.Skip))...)
			}
			continue
		}
		r := j.result(id, check.Pass)
		r.Value, r.Limit = fmt.Sprintf("%d of %d tries failed", t.Failed, t.Done), fmt.Sprint(j.FailedTries)
		r.Reason = fmt.Sprintf("%s to %s: %s", way.from, way.to, r.Value)
		if t.Last != "" {
			r.Reason += ", the last with: " + t.Last
		}
		switch {
		case t.Failed == t.Done:
			r.Status, r.Try = check.Fail, j.f.Hint
			if r.Try == "" {
				r.Try = fmt.Sprintf("does a firewall on %s let TCP connections from %s pass?", way.to, way.from)
			}
		case j.FailedTries >= 0 && t.Failed > j.FailedTries:
			r.Status, r.Try = check.Warn, "is a cable, a port or an interface in between unsteady, or the node overloaded?"
		}
		results = append(results, r)
	}
	if j.f.Error != "" && j.f.Reach.Out.Failed < j.f.Reach.Out.Done {
		r := j.result(id, check.Fail)
		r.Reason, r.Try = "it could be connected to, and then: "+j.f.Error, j.f.Hint
		results = append(results, r)
	}
	return results
}

func (j *judgement) roundTrips() []check.Result {
	const id = "net-rtt"
	t := &j.f.RTT
	if t.Count == 0 {
		return j.skip(id, j.why(t.Skip))
	}
	r := j.result(id, check.Pass)
	r.Value = fmt.Sprintf("p50 %v, p99 %v", round(t.P50), round(t.P99))
	r.Reason = fmt.Sprintf("%s, max %v of %d round trips", r.Value, round(t.Max), t.Count)
	if j.RTT > 0 {
		r.Limit = fmt.Sprintf("p99 %v", j.RTT)
	}
	switch {
	case j.RTTFactor > 0 && j.rtt > 0 && float64(t.P50) > j.RTTFactor*float64(j.rtt):
		r.Limit = fmt.Sprintf("p50 %v", round(time.Duration(j.RTTFactor*float64(j.rtt))))
		r.Reason += fmt.Sprintf("; the median of all pairs is %v", round(j.rtt))
		r.Status, r.Try = check.Warn, "is this pair in another rack or site than the others? compare their routes (ip route get)"
	case j.RTT > 0 && t.P99 > j.RTT:
		r.Status, r.Try = check.Warn, "is something else loading this path or one of the nodes? across sites set a higher limit"
	}
	return []check.Result{r}
}

func (j *judgement) clock() []check.Result {
	const id = "clock-offset"
	c := &j.f.Clock
	if j.f.RTT.Count == 0 || c.Skip != "" {
		return j.skip(id, j.why(c.Skip))
	}
	r := j.result(id, check.Pass)
	ahead := "ahead"
	if c.Offset < 0 {
		ahead = "behind"
	}
	off := c.Offset.Abs()
	r.Value = fmt.Sprintf("%v ± %v", round(c.Offset), round(c.Error))
	r.Reason = fmt.Sprintf("the clock of %s is %v (± %v) %s", j.f.To.Name, round(off), round(c.Error), ahead)
	const try = "do both nodes run chrony or another NTP client, with the same servers? (chronyc tracking)"
	// What may be the error of the measurement is nobody's fault.
	least := max(0, off-c.Error)
	switch {
	case j.ClockFail > 0 && least > j.ClockFail:
		r.Status, r.Limit, r.Try = check.Fail, j.ClockFail.String(), try
	case j.ClockWarn > 0 && least > j.ClockWarn:
		r.Status, r.Limit, r.Try = check.Warn, j.ClockWarn.String(), try
	default:
		r.Limit = j.ClockWarn.String()
	}
	return []check.Result{r}
}

// vanished returns the smallest size above the ones that passed of which nothing was heard in one direction, nil for
// none.
func (f *Facts) vanished() *Size {
	for i := range f.MTU.Sizes {
		s := &f.MTU.Sizes[i]
		if s.Bytes > f.MTU.Passes() && (s.Out == Lost || s.Back == Lost) {
			return s
		}
	}
	return nil
}

// sizes gives one result under each of two ids: sizes that vanish, and sizes that are refused in words.
func (j *judgement) sizes() []check.Result {
	m := &j.f.MTU
	if len(m.Sizes) == 0 {
		why := j.why(m.Skip)
		return append(j.skip("mtu-blackhole", why), j.skip("mtu-reduced", why)...)
	}
	passes := m.Passes()
	hole, less := j.result("mtu-blackhole", check.Pass), j.result("mtu-reduced", check.Pass)
	hole.Value, less.Value = fmt.Sprint(passes), fmt.Sprint(passes)
	if mtu := j.f.Local.MTU; mtu > 0 {
		hole.Limit, less.Limit = fmt.Sprint(mtu), fmt.Sprint(mtu)
	}
	hole.Reason = fmt.Sprintf("packets of %d bytes pass in both directions", passes)
	less.Reason = hole.Reason
	if bad := j.f.vanished(); bad != nil {
		from, to := j.f.From.Name, j.f.To.Name
		if bad.Out != Lost {
			from, to = to, from
		}
		hole.Status, hole.Limit = check.Fail, fmt.Sprint(bad.Bytes)
		hole.Reason = fmt.Sprintf("packets of %d bytes from %s to %s vanish, those of %d pass (%s)", bad.Bytes, from, to,
			passes, j.f.mtus())
		hole.Try = fmt.Sprintf("set the same MTU on every switch port and interface of the path, or %d on both interfaces (ip link set "+
			"IFACE mtu %d); let ICMP pass", passes, passes)
	}
	for i := range m.Sizes {
		s := &m.Sizes[i]
		if s.Bytes > passes && (s.Out == TooBig || s.Back == TooBig) && less.Status == check.Pass {
			less.Status, less.Limit = check.Warn, fmt.Sprint(s.Bytes)
			less.Reason = fmt.Sprintf("packets of %d bytes do not pass, and the sender is told; those of %d do (%s)", s.Bytes,
				passes, j.f.mtus())
			less.Try = "raise the MTU of what is in between, or set that of both interfaces to what passes: every new connection has to " +
				"find it out"
		}
	}
	return []check.Result{hole, less}
}

// mtus says what the interfaces are set to.
func (f *Facts) mtus() string {
	side := func(name string, e End) string {
		if e.MTU == 0 {
			return name + " unknown"
		}
		return fmt.Sprintf("%s %s %d", name, e.Iface, e.MTU)
	}
	return "MTU: " + side(f.From.Name, f.Local) + ", " + side(f.To.Name, f.Remote)
}

// slowest is the speed of the slower interface as bytes a second, 0 for unknown.
func (f *Facts) slowest() float64 {
	if f.Local.Speed <= 0 || f.Remote.Speed <= 0 {
		return 0
	}
	return float64(min(f.Local.Speed, f.Remote.Speed, topSpeed)) * 1e6 / 8
}

// bandwidth judges every run. Streams are a floor and tell who is the odd one out; they say nothing about RDMA.
func (j *judgement) bandwidth() []check.Result {
	const id = "net-bandwidth"
	var results []check.Result
	for i := range j.f.Bulk {
		b := &j.f.Bulk[i]
		rate := b.Rate()
		r := j.result(id, check.Pass)
		r.Value = rated(rate)
		r.Reason = fmt.Sprintf("%s in %s", r.Value, b.name(j.f))
		slower := func(least float64, status check.Status, why, try string) {
			if r.Status == check.Pass && rate < least {
				r.Status, r.Limit, r.Try = status, rated(least), try
				r.Reason += "; " + why
			}
		}
		share := func(v, of float64) float64 { return math.Max(0, v) * of }
		slower(math.Max(0, j.Bandwidth), check.Fail, "at least "+rated(j.Bandwidth)+" are wanted",
			"does the path lead over the interface that is meant ("+orUnknown(j.f.Local.Iface)+"), and what speed has it (ethtool)?")
		slower(share(j.BandwidthShare, j.rates[b.Streams]), check.Warn, "the median of all pairs is "+rated(j.rates[b.Streams]),
			"compare the two nodes' interfaces, cables and switch ports with the others'")
		slower(share(j.SpeedShare, j.f.slowest()), check.Warn, fmt.Sprintf("the slower interface has %d Mb/s",
			min(j.f.Local.Speed, j.f.Remote.Speed)), "is the path shared or limited, or are the CPUs of the nodes busy?")
		if r.Limit == "" && j.Bandwidth > 0 {
			r.Limit = rated(j.Bandwidth)
		}
		results = append(results, r)
	}
	if j.f.NoBulk != "" {
		r := j.skip(id, j.f.NoBulk)[0]
		if len(j.f.Bulk) == 0 || j.f.RTT.Count > 0 {
			results = append(results, r)
		}
	}
	if results == nil {
		return j.skip(id, j.why("no runs were asked for"))
	}
	return results
}

// name is a run, for people.
func (b *Bulk) name(f *Facts) string {
	from, to := f.From.Name, f.To.Name
	if b.Direction == Back {
		from, to = to, from
	}
	streams := "1 stream"
	if b.Streams != 1 {
		streams = fmt.Sprintf("%d streams", b.Streams)
	}
	return fmt.Sprintf("%s from %s to %s", streams, from, to)
}

func (j *judgement) retransmitted() []check.Result {
	const id = "net-retrans"
	worst, share := (*Bulk)(nil), -1.0
	for i := range j.f.Bulk {
		b := &j.f.Bulk[i]
		if b.Sent == nil || b.Sent.Segments == 0 {
			continue
		}
		if s := float64(b.Sent.Retransmitted) / float64(b.Sent.Segments); s > share {
			worst, share = b, s
		}
	}
	if worst == nil {
		return j.skip(id, j.why(j.f.noSent()))
	}
	r := j.result(id, check.Pass)
	r.Value = fmt.Sprintf("%.3f %%", 100*share)
	r.Reason = fmt.Sprintf("%d of %d segments were sent again in %s", worst.Sent.Retransmitted, worst.Sent.Segments, worst.name(j.f))
	if j.Retransmitted > 0 {
		r.Limit = fmt.Sprintf("%.3f %%", 100*j.Retransmitted)
		if share > j.Retransmitted {
			r.Status = check.Warn
			r.Try = "look for errors and drops on both interfaces and their switch ports (ethtool -S, ip -s link); a shared or limited " +
				"path drops, too"
		}
	}
	return []check.Result{r}
}

// noSent is why there is nothing of the sender's kernel.
func (f *Facts) noSent() string {
	if f.NoBulk != "" {
		return f.NoBulk
	}
	if len(f.Bulk) > 0 {
		return "the kernel does not tell"
	}
	return "no runs were asked for"
}

// tcpHeaders is what of a packet is not TCP's payload: headers of IP and TCP, and the stamps that Linux sends.
func tcpHeaders(end netip.Addr) int {
	if end.Is4() {
		return 20 + 20 + 12
	}
	return 40 + 20 + 12
}

// segments compares TCP's segments with what the interfaces allow: smaller ones cost CPU, and hint at a tunnel or a
// path that the kernel has found to be narrow.
func (j *judgement) segments() []check.Result {
	const id = "net-mss"
	f := j.f
	var smallest *Bulk
	for i := range f.Bulk {
		b := &f.Bulk[i]
		if b.Sent != nil && b.Sent.MSS > 0 && (smallest == nil || b.Sent.MSS < smallest.Sent.MSS) {
			smallest = b
		}
	}
	switch {
	case smallest == nil:
		return j.skip(id, j.why(f.noSent()))
	case f.Local.MTU == 0 || f.Remote.MTU == 0:
		return j.skip(id, "the MTU of an interface is not known")
	}
	want := min(f.Local.MTU, f.Remote.MTU, largestSize) - tcpHeaders(f.Local.Addr)
	r := j.result(id, check.Pass)
	r.Value, r.Limit = fmt.Sprint(smallest.Sent.MSS), fmt.Sprint(want)
	r.Reason = fmt.Sprintf("segments of %d bytes in %s", smallest.Sent.MSS, smallest.name(f))
	if smallest.Sent.MSS < want {
		r.Status = check.Warn
		r.Reason += fmt.Sprintf("; the interfaces allow %d", want)
		r.Try = "is there a tunnel in between, a route with an MTU of its own (ip route), or a remembered one (ip route flush cache)?"
	}
	return []check.Result{r}
}

// why is the reason for a skip.
func (j *judgement) why(skip string) string {
	if j.f.Error != "" && (skip == "" || j.f.RTT.Count == 0) {
		return j.f.Error
	}
	if skip == "" {
		return "it was not measured"
	}
	return skip
}

func orUnknown(text string) string {
	if strings.TrimSpace(text) == "" {
		return "unknown"
	}
	return text
}

// round leaves three digits or so.
func round(d time.Duration) time.Duration {
	switch a := d.Abs(); {
	case a >= time.Second:
		return d.Round(10 * time.Millisecond)
	case a >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	case a >= time.Microsecond:
		return d.Round(100 * time.Nanosecond)
	}
	return d
}
