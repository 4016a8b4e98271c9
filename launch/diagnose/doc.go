// Package diagnose says who holds up whom in a job, and why, from what was seen of its processes. It is pure: it looks
// at evidence and at nothing else. Where that is not enough, it says between which causes it cannot tell.
package diagnose
