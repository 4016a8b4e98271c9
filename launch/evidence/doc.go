// Package evidence is what the processes of a job's ranks are seen to do at one moment: their stacks, the states of
// their threads, what they wait for. Its subpackage gather looks; this one is data, how equal stacks are merged, and
// the text and the pictures that are made of them. Names in it come from other processes: who shows them makes them
// fit.
package evidence
