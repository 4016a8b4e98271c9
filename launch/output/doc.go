// Package output is what workers print and where it goes: their log files, laid out as torchrun does it, and the
// console, on which lines of different workers never mix. Logs belongs to an agent, an Attempt to a worker group, a
// Worker to one worker.
package output
