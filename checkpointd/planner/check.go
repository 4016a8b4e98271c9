package planner

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

// Limits of what is believed from another node, though it has the job's token: more than any job has, and too little to
// hurt.
const (
	MaxNodes   = 1 << 16
	MaxShards  = 1 << 16
	maxSets    = 256     // of a node, or known to a leader
	maxCopies  = 1 << 18 // of a set on a node
	maxMoments = 1 << 16 // in a list
	maxLoads   = 1 << 16
	maxText    = 64 << 10 // of an error, in bytes
	maxPath    = 4096
	maxName    = 64 // of an attempt
	maxResult  = 16 << 20
	maxKnown   = 1 << 16 // digests in a list
	maxBad     = 1 << 12
)

// Clean makes text of another node fit for a line of the log: no more than most bytes, and nothing that a terminal
// takes for a command.
func Clean(text string, most int) string {
	cut := len(text) > most
	if cut {
		text = text[:most]
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' &&
			r <= '\u2069' || r == '\ufffd' {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if cut {
		text += "…"
	}
	return text
}

// IsAttempt reports whether a name can be that of a writing: it is part of names of files.
func IsAttempt(name string) bool {
	return name != "" && len(name) <= maxName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// isHead reports whether a text can be what trackers name: an attempt, "step 17", or nothing.
func isHead(head string) bool {
	n, foreign := strings.CutPrefix(head, "step ")
	return head == "" || IsAttempt(head) || foreign && n != "" && len(n) < 20 && strings.Trim(n, "0123456789") == ""
}

// Check returns an error where no moment is like this.
func (m Moment) Check() error {
	if m.Step < -1 || m.Again < 0 || m.Again > math.MaxUint32 {
		return fmt.Errorf("there is no step %d that was saved %d times before", m.Step, m.Again)
	}
	return nil
}

// Check returns an error where no set of checkpoints has such a name.
func (k Key) Check() error {
	switch {
	case k.Shards < 1 || k.Shards > MaxShards:
		return fmt.Errorf("a set of %d shards cannot be", k.Shards)
	case !filepath.IsAbs(k.Dir) || filepath.Clean(k.Dir) != k.Dir || k.Dir == "/" || len(k.Dir) > maxPath ||
		strings.ContainsAny(k.Dir, "\x00\n"):
		return fmt.Errorf("%q is no directory of checkpoints", Clean(k.Dir, 200))
	}
	return nil
}

// checker gathers what is wrong with a message; the first counts.
type checker struct{ err error }

func (c *checker) add(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *checker) number(what string, n, high int64) {
	if n < 0 || n > high {
		c.add(fmt.Errorf("%s is %d, want 0 to %d", what, n, high))
	}
}

func (c *checker) text(what, text string, most int) {
	if len(text) > most {
		c.add(fmt.Errorf("%s has %d bytes, the limit is %d", what, len(text), most))
	}
}

func (c *checker) moments(what string, list ...Moment) {
	c.number("the number of "+what, int64(len(list)), maxMoments)
	for _, m := range list {
		c.add(m.Check())
	}
}

func (c *checker) shards(what string, k Key, list ...int) {
	c.number("the number of "+what, int64(len(list)), int64(k.Shards))
	for _, shard := range list {
		c.number(what, int64(shard), int64(k.Shards)-1)
	}
}

func (c *checker) attempt(what, name string) {
	if name != "" && !IsAttempt(name) {
		c.add(fmt.Errorf("%s is %q, which is no name of a writing", what, Clean(name, 80)))
	}
}

func (c *checker) copies(what string, k Key, list []Copy) {
	c.number("the number of "+what, int64(len(list)), maxCopies)
	for _, of := range list {
		c.shards(what, k, of.Shard)
		c.add(of.At.Check())
	}
}

func (c *checker) sums(k Key, list []Sum) {
	c.number("the number of digests", int64(len(list)), maxKnown)
	for _, s := range list {
		c.shards("the shard of a digest", k, s.Shard)
		c.add(s.At.Check())
	}
}

// Check returns an error where a report is none that a node of a job could send, whatever it may say.
func (r *Report) Check() error {
	c := &checker{}
	c.text("the address", r.Addr, maxText)
	c.number("the number of sets", int64(len(r.Sets)), maxSets)
	for i := range r.Sets {
		s := &r.Sets[i]
		if err := s.Check(); err != nil {
			return err
		}
		c.number("the number of nodes with a copy", int64(s.Replicas), MaxNodes)
		c.number("the number of steps to keep", int64(s.Keep), math.MaxInt32)
		c.number("which steps to keep", s.Every, math.MaxInt64)
		c.copies("copies", s.Key, s.Copies)
		c.shards("the shards that are saved", s.Key, s.Saves...)
		c.shards("the shards that are read", s.Key, s.Reads...)
		c.moments("refused moments", s.Refused...)
		c.moments("moments that were begun", s.Begins...)
		c.moments("moments that are on disk", s.Same...)
		c.moments("compared moments", s.Verified...)
		c.moments("moments", s.Begun, s.Committed, s.NextAt)
		c.number("the number of loads", int64(s.Loads), maxLoads)
		c.number("the number of urgent requests", int64(s.Urgent), math.MaxInt32)
		c.text("a reason", s.Why, maxText)
		c.attempt("an attempt", s.Attempt)
		c.attempt("the next attempt", s.Next)
		c.number("the number of written shards", int64(len(s.Written)), int64(s.Shards))
		for _, w := range s.Written {
			c.shards("a written shard", s.Key, w.Shard)
			c.text("the error of a shard", w.Err, maxText)
			c.text("the result of a shard", string(w.Result), maxResult)
		}
		c.copies("copies that are wanted", s.Key, s.Want)
		c.sums(s.Key, s.Sums)
		c.number("the number of bad copies", int64(len(s.Bad)), maxBad)
		for _, b := range s.Bad {
			c.shards("the shard of a bad copy", s.Key, b.Shard)
			c.add(b.At.Check())
			c.text("the address of a bad copy", b.Addr, maxText)
		}
	}
	return c.err
}

// Check returns an error where a view is none that a leader of a job could show.
func (v *View) Check() error {
	c := &checker{}
	c.number("the number of nodes", int64(len(v.Addrs)), MaxNodes)
	c.number("the number of sets", int64(len(v.Sets)), maxSets)
	for _, addr := range v.Addrs {
		c.text("an address", addr, maxText)
	}
	for i := range v.Sets {
		s := &v.Sets[i]
		if err := s.Check(); err != nil {
			return err
		}
		c.text("an error", s.Err, maxText)
		c.text("an error", s.Failed, 2*maxText)
		c.moments("moments", s.Committed, s.FailedAt, s.NextAt)
		c.moments("complete moments", s.Complete...)
		c.moments("dead moments", s.Dead...)
		c.moments("pinned moments", s.Pin...)
		c.moments("moments to be compared", s.Verify...)
		if !isHead(s.Head) {
			c.add(fmt.Errorf("trackers do not name %q", Clean(s.Head, 80)))
		}
		c.attempt("the next attempt", s.Next)
		c.number("the number of decisions", int64(len(s.Decisions)), maxLoads)
		for i := range s.Decisions {
			c.add(s.Decisions[i].check(s.Key, len(v.Addrs)))
		}
		if o := s.Write; o != nil {
			c.add(o.At.Check())
			c.shards("the shards to be written", s.Key, o.Shards...)
			if !IsAttempt(o.Attempt) {
				c.add(fmt.Errorf("a step is to be written as %q, which is no name of a writing", Clean(o.Attempt, 80)))
			}
		}
		c.number("the number of copies to get", int64(len(s.Fetch)), maxCopies)
		for _, f := range s.Fetch {
			c.shards("a shard to get", s.Key, f.Shard)
			c.add(f.At.Check())
			c.number("the node with a copy", int64(f.From), int64(len(v.Addrs))-1)
		}
		c.copies("copies to be summed", s.Key, s.Sum)
		c.sums(s.Key, s.Sums)
	}
	return c.err
}

func (d *Decision) check(k Key, nodes int) error {
	c := &checker{}
	if !slices.Contains([]string{FromMemory, FromDisk, FromNone}, d.Source) {
		c.add(errors.New("a decision names no source"))
	}
	c.add(d.At.Check())
	c.attempt("a step on disk", d.Attempt)
	c.text("a note", d.Note, 4*maxText)
	c.text("an error", d.Err, 4*maxText)
	c.number("the number of shards in memory", int64(len(d.From)), int64(k.Shards))
	for _, n := range d.From {
		c.number("the node with a shard", int64(n), int64(nodes)-1)
	}
	return c.err
}
