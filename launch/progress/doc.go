// Package progress is what the program of a worker tells of itself: how many steps it has done, how long they took,
// what they came to. It lies in a file of a fixed layout in the job's run directory, which the worker's muster.progress
// (internal/python/checkpoint) has in memory and writes to, and which is read when somebody asks.
//
// What is read is another process's word: any bytes may be there, at any moment. Reading takes no memory for it, waits
// for nobody, and gives numbers within bounds.
package progress
