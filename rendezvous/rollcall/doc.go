// Package rollcall is the rendezvous of agents that are all ours: event-driven, on any rendezvous.Store.
//
// One agent is the coordinator. The others write one record to join, wait for one answer, and begin; in a round they wait
// for one key, the verdict, which says how the round ends for everybody. Nobody polls for what happens. Liveness is a
// heartbeat: every agent counts a key of its own up, and the coordinator watches all of them by its own clock.
//
// Keys, under muster/<run id>/ but for muster/ids, which lists the run ids of a store for people (a term is the time of one coordinator):
//
//	term                    number of the term
//	host                    agent id of who serves the store; absent where that is not an agent of ours
//	beat/<agent>            heartbeat counter of an agent, or "left"
//	left/<agent>            set when an agent leaves
//	t<term>/coordinator     who it is; the first one who claims it
//	t<term>/tickets         counter; a ticket is one wish to join
//	t<term>/join/<ticket>   joinRecord
//	t<term>/answer/<ticket> answer: an assignment, or why there is none
//	t<term>/lobby           who is there and who is waited for, for people
//	<round>/open            set by rank 0 once the store for workers is empty
//	<round>/verdict         rendezvous.Verdict: the first one counts
//	<round>/ended, stopped, reports, report/<n>, reported, agreed, passed
//	                        what Tally, Report and Agree need
//
// Where the store is served by an agent, it can move when that one dies: see election.go. Agents of torchrun take part
// through a Bridge. Everything that decides is in roster, which is pure.
package rollcall
