package membership

import (
	"fmt"
	"slices"
	"time"
)

// refuseDoubles ends the wishes of nodes whose rank somebody else has. A node that was restarted comes before its dead
// predecessor is known to be dead, so it is only refused once that one was heard of for as long as a node may be
// silent.
func (r *roster) refuseDoubles(now time.Duration) {
	if !r.fixed {
		return
	}
	claims := r.claims()
	for _, s := range slices.Clone(r.waiting) {
		if holder := claims.holder(s); holder != "" && now-s.since > r.doubt() {
			r.refuse(s, fmt.Sprintf("node rank %d is taken by %s: node %s was started with the same", s.rec.NodeRank, holder, s.rec))
			r.drop(s.rec.Agent)
		}
	}
}

// doubt is how long a node waits for a rank that another one seems to have.
func (r *roster) doubt() time.Duration { return 2 * r.patience }

// claims says who has which rank, where ranks are fixed: living members of the round, and of those that wait the first.
type claims map[int]claim

type claim struct {
	agent, name string
}

func (r *roster) claims() claims {
	c := make(claims, len(r.members)+len(r.waiting))
	for _, s := range r.waiting { // by ticket
		if _, taken := c[s.rec.NodeRank]; !taken {
			c[s.rec.NodeRank] = claim{s.rec.Agent, s.rec.String()}
		}
	}
	for agent, m := range r.members {
		if !m.gone {
			c[m.rank] = claim{agent, m.name}
		}
	}
	return c
}

// holder names the living node other than s that has its rank, "" for none.
func (c claims) holder(s joiner) string {
	if by := c[s.rec.NodeRank]; by.agent != s.rec.Agent {
		return by.name
	}
	return ""
}
