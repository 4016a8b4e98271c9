// Package control is how a job that runs is seen and steered from outside: whoever runs a part of it serves HTTP with
// JSON at a Unix socket in its run directory, and the commands of muster find those directories and ask there. What is
// told and what is done is the matter of a Served; this package knows no agent.
//
// A broken observer never harms the job: only processes of the job's user and of root are heard, what they send is
// bounded in size, time and number, and nobody who serves a job waits for them.
package control
