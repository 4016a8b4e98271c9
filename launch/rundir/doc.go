// Package rundir is the run directory of a job: where on this machine it may lie so that no other user can replace it,
// how it is made, locked, found again and removed. Workers take code from it, and the agent's sockets and state are in
// it.
package rundir
