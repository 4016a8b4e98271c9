// Package job has the data types of a job: what the user asked for (Job), with the rules it consists of, where each
// value came from (Source), and what a node has for it (Preflight). They travel between machines as JSON.
//
// It also says which variables of an environment workers inherit, which of them leave a machine, and which may be
// shown. It knows no file, process or clock.
package job
