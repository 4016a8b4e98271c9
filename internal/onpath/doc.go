// Package onpath is about the programs to which PATH leads: links by which muster runs under a launcher's name (muster
// alias), and other files that are called muster (muster version). It prints nothing.
package onpath
