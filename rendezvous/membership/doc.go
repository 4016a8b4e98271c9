// Package membership is the rendezvous of agents that are all ours: event-driven, on any rendezvous.Store.
//
// One agent is the coordinator. The others write one record to join, wait for one answer, and begin; in a round they
// wait for one key, which says how the round ends for everybody: they propose, and the coordinator decides (decide.go).
// Nobody polls for what happens. Liveness is a heartbeat: every agent counts a key of its own up and answers the
// coordinator's, which watches all of them by its own clock and says in its own whom it hears (ledger.go).
//
// Keys, under muster/<run id>/ but for muster/ids, which lists the run ids of a store for people (a term is the time of
// one coordinator):
//
//	term                       number of the term
//	host                       agent id of who serves the store; absent where that is not an agent of ours
//	members                    rollRecord: who is in the last round
//	beat/<agent>               beat: a heartbeat of an agent, or that it has left; the coordinator's says whom it hears
//	left/<agent>               set when an agent leaves
//	elsewhere/<J>              where the job has gone from a store that was given up
//	t<term>/coordinator        who it is, and its nonce Nc; the first one who claims it
//	t<term>.<Nc>/tickets       counter; a ticket is one wish to join
//	t<term>.<Nc>/join/<ticket> joinRecord
//	t<term>.<Nc>/answer/<ticket>/<n>
//	                           answer: an assignment, or why there is none; the last of those to a ticket ends it
//	t<term>.<Nc>/waitlist         who is there and who is waited for, for people
//	t<term>.<Nc>/elsewhere     where the job goes on, for nodes that have begun it again
//	<round>.<Nr>/open          set by rank 0 once the store for workers is empty
//	<round>.<Nr>/verdict       rendezvous.Verdict: the first one that is proposed
//	<round>.<Nr>/decided       rendezvous.Verdict: the one that counts, by the coordinator
//	<round>.<Nr>/settled       settledRecord: what counts of agreed, by the coordinator
//	<round>.<Nr>/ended/<rank>, passed, stopped/<rank>, report/<n>, reported, agreed, heard/<rank>, allheard, board/...
//	                           what Tally, Report, Agree, the leases and Board need
//	move/<term>.<J>/tickets, vote/<n>, elected
//	                           the election of another host, at one of the standbys
//
// J, Nc and Nr are nonces of the job, of a coordinator and of a round. What was written for another of them, in this
// job or in an earlier one of the same run id and token, is not found, and does not verify, under their keys:
// records.go and seal.go, and docs/adr/0035-sealed-records.md. Counters are bare numbers, and hints.
//
// Where the store is served by an agent, it can move when that one dies: see election.go. Agents of torchrun take part
// through a Bridge. Everything that decides is in roster, which is pure.
package membership
