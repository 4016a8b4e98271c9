package policy

import (
	"math"
	"time"
)

// delay returns the pause before the next restart. Its jitter takes away up to half: many nodes that fell over together
// do not come back together.
func (p *Policy) delay() time.Duration {
	return time.Duration(p.due() * (1 - p.chance()/2))
}

// due is the pause before the next restart, in nanoseconds, without its jitter.
func (p *Policy) due() float64 {
	if p.inARow == 0 {
		return 0
	}
	d := float64(p.rules.Delay) * math.Pow(max(p.rules.DelayFactor, 1), float64(p.inARow-1))
	limit := float64(math.MaxInt64 / 2) // 146 years: what a Duration holds, with room for rounding
	if p.rules.DelayMax > 0 {
		limit = float64(p.rules.DelayMax)
	}
	return min(d, limit)
}
