// Package history keeps what has happened to a job beyond its end: its events and how it stood last, in a directory of
// its own beside the run directories. It is written from the beginning of the job on, so that a muster that is killed
// leaves it, too; later jobs remove what is too old or too much. Nothing of the job waits for it.
package history
