// Package sshexec reaches a machine by ssh and starts our own binary there, which it brings along where it is missing.
// What it starts gets a few constant words as arguments; everything else is for the caller to send over its standard
// input. So nothing a user wrote ever meets a shell, or the list of processes.
//
// It speaks the protocol itself, by the keys, the agent, known_hosts and the configuration of OpenSSH, and never asks a
// person: what cannot be answered from those fails, and says why. Where something else has to be gone through, a
// program that takes ssh's arguments does the same. How many machines are reached at once, and what is retried, is not
// decided here: Transient tells what may be.
package sshexec
