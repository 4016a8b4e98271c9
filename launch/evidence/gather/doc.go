// Package gather looks at the processes of a node's ranks, all at the same moment, within bounds of time and size. It
// harms none of them: what is read is in /proc, and a signal goes to those Python processes alone that answer to it.
package gather
