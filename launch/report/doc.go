// Package report says how a job stands and why it failed: the status file, torchelastic's event records, and the report
// on a failure with its root cause, the evidence, and a hint on what to try. What the nodes of a job tell each other of
// their failures is encoded here, too.
package report
