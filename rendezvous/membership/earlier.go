package membership

import (
	"fmt"

	"muster/rendezvous"
)

// earlier is what is known of a job that this one goes on with: the node that hosted its store was lost, was started
// again, and has begun without the others, who come later.
type earlier struct {
	job                    string // its nonce
	agents                 map[string]bool
	restarts, replacements int
	lostOf                 losses
}

// resumes takes in an agent that was last in another job, at a store whose place this one has taken, which the agent
// host serves. Where this job goes on with that one, what it had used up counts, and so does the loss of its host. An
// agent may as well have outlived a job that was started anew on every node: then more nodes are here that have begun
// without it than that job can have lost.
func (r *roster) resumes(rec joinRecord, host string) {
	if host == "" || rec.Host == host || rec.Host == "" && rec.HostRank == noRank {
		return // no agent serves this store, or none has served the other one
	}
	e := &r.earlier
	if e.job != rec.RoundJob {
		*e = earlier{job: rec.RoundJob, agents: map[string]bool{}, lostOf: losses{}}
	}
	e.agents[rec.Agent] = true
	anew := 0
	for agent := range r.members {
		if !e.agents[agent] {
			anew++
		}
	}
	if anew+len(e.agents) > rec.Agents {
		return
	}
	replacements := rec.Replacements
	lostOf, err := parseLosses(rec.LostOf)
	if err != nil { // which was checked
		return
	}
	if rec.Host != "" { // else it has left by itself
		replacements++
		if r.mustReplace(rec.Size, rec.HostRank) {
			lostOf[rec.HostRank]++
		}
	}
	more := func(known *int, now int) int {
		n := max(now-*known, 0)
		*known += n
		return n
	}
	restarts := more(&e.restarts, rec.Restarts)
	lost := more(&e.replacements, replacements)
	r.restarts, r.added = min(r.restarts+restarts, maxRounds), min(r.added+restarts, maxRounds)
	r.replacements = min(r.replacements+lost, maxRounds)
	for rank, n := range lostOf {
		known := e.lostOf[rank]
		r.lostOf[rank] = min(r.lostOf[rank]+more(&known, n), maxRounds)
		e.lostOf[rank] = known
	}
	if rec.Host == "" || lost == 0 && restarts == 0 {
		return
	}
	m := r.members[host]
	v := rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: reasonNodeLost, Rank: -1, Subject: m.host,
		Message: fmt.Sprintf("node %s, which hosts the store, was lost and has begun again without the others", r.name(host)),
	}
	r.limit(&v, r.restarts, r.replacements)
	if r.mustReplace(rec.Size, rec.HostRank) {
		r.overRank(&v, r.lostOf[rec.HostRank], rec.HostRank)
	}
	if v.Kind == rendezvous.Fail {
		r.spent = &v
	}
}
