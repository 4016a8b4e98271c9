// Package plan is a job with everything looked up on one machine: how many workers it has, their interpreter, program,
// environment, devices and CPUs, and how a template for them is started. Making a Plan starts nothing and writes
// nothing. A Preflight is what a node has that must fit the others; ComparePreflight judges it.
package plan
