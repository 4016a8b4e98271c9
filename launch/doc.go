// Package launch runs a job on one node: it starts the workers of a plan, watches them, applies the restart rules, and
// says at the end what happened and why.
//
// The way through it is straight: a dialect in cmd makes a job.Job; plan.New looks up on this machine what the job left
// open (interpreter, number of workers); Agent takes one rendezvous.Round after the other and starts a WorkerGroup for
// each; every exit goes to the policy.Policy, which knows no clock, socket or process and answers continue, restart or
// stop.
//
// launch reads neither os.Args nor the environment, and starts no process except through internal/proc.
package launch
