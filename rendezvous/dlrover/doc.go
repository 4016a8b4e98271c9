// Package dlrover is the part that an agent of DLRover plays towards the master of an ElasticJob (dlrover 0.6.1, read
// and run): a Client speaks to the master, a Handler takes its rounds from it, and keeps telling it how this node fares.
//
// The master only says which nodes form a round. All else agents of ours settle by themselves: where all nodes of a
// round are ours they share a store that the first of them serves, as in any job of muster (shared); an agent of DLRover
// in the round knows nothing of that, and each node decides for itself then, as such agents do (local).
//
// What the master sends are pickles. They are read by internal/pickle, which runs nothing of them.
package dlrover
