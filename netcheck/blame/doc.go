// Package blame decides which pairs of nodes the network check tests in each round, and from the results which nodes
// and links are at fault. It is pure: it knows no clock, network or randomness, so all agents that record the same
// results have the same plan and the same verdict.
//
// A test of a pair fails when one of its nodes is bad, or the link between them. What that allows to say:
//
//   - A node that has passed one test is good.
//   - A node is bad when it passed none and failed with three good nodes: two bad links could not explain that. Where
//     there are only two good nodes it is bad when it failed with both and nobody else is left to try. A healthy node that
//     no healthy node can reach counts as bad: no test of pairs can tell the two apart.
//   - A link between two good nodes is bad when its test failed, and failed again.
//   - What could be a node as well as a link is left open: nobody is blamed, and every explanation is given.
//
// So nobody healthy is blamed while at most two links are bad, however many nodes are; and up to three bad nodes are
// all found where at least two are healthy and no link is bad.
//
// The scheme: two rounds of a round-robin tournament. A node that passed nothing is then paired with good ones until it
// passes or is found out, in four more rounds at most. A node that is slow is judged alike: by its best time, and only
// when it was slow with fast nodes. This is dlrover.md section 2.9 of the design pages, with one more good node asked
// before a node is blamed; DLRover's own rule, which it replaces, stands in blamesim.
package blame
