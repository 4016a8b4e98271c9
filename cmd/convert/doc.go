// Package convert makes of flags, or of a job file of one kind, the Spec of which cmd/manifest writes a file of another
// kind: what a node starts is read from the command of its pods, and what would be written is read as muster run on the
// nodes would read it, so that nothing is written that they would refuse. Pure.
package convert
