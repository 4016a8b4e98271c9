// Package netcheck tests the nodes of a round before its workers start: each by itself, then pairs of them, as long as
// netcheck/blame has something to find out. The agents meet on the round's board. The one with group rank 0 leads: it
// hears what each node knows of itself, says who is tested with whom, and publishes the verdict, which is the same on
// every node.
//
//	member                       board                       leader (group rank 0)
//	hello ──────────────▶ hello/<rank>  ──────────────────▶ who is to be tested
//	      ◀────────────── plan/<n>      ◀────────────────── local, pairs, perf or verdict
//	result ─────────────▶ result/<n>/<rank> ──────────────▶ blame
//	      first of a pair: store/<n>/<rank> ─▶ second: where the pair's processes meet
//
// Nobody waits for a node without a limit: one that says nothing has failed, and one that is lost ends the round, and
// with it the check. What a node knows of itself from earlier checks it brings along, so that any other one may lead
// the next.
package netcheck
