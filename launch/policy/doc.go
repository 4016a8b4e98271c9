// Package policy decides what follows from worker exits, lost nodes, signals and deadlines: whether a job goes on,
// starts its workers again, succeeds, fails or stops. It knows no clock, socket or process. Policy decides for one
// node's agent, Driven for a driver that starts workers one by one.
package policy
