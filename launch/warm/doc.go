// Package warm keeps a template: a process that has imported what a job's workers begin with, and is forked for each of
// them. Warmer makes it beside the training and has it ready for the next start; what workers import late is learned
// for the next job. All trouble with a template costs a line in the log, and a start as usual.
package warm
