package elastic

import (
	"fmt"
	"time"

	"muster/horovod/discovery"
)

// Rules are what a user asked of an elastic job.
type Rules struct {
	// NP is how many slots there must be before the first world, MinNP before any other. ≥ 1.
	NP, MinNP int
	// MaxNP is how many workers a world may have; 0: as many as there are slots.
	MaxNP int
	// ResetLimit is how many worlds may follow the first one; negative: any number.
	ResetLimit int
	// Judge says what the ends of workers mean for the job, beside Horovod's own rules; nil: nothing.
	Judge Judge
	// Scope is who starts anew after a worker failed.
	Scope Scope
	// Wait leaves the workers that run when the job is decided to end by themselves.
	Wait bool
	// Timeout is how long a world may wait for slots. 0: 600 s.
	Timeout time.Duration
	// Cooldown is for how long hosts with a failed worker are not used.
	Cooldown discovery.Cooldown
}

// Scope is who starts anew after a worker failed.
type Scope int

const (
	// ScopeHost starts workers for the slots of other hosts: the host is not used for its cool-down, and the other
	// workers go on, as Horovod has it.
	ScopeHost Scope = iota
	// ScopeProcess starts that worker anew, at once and on its host, and the others go on. Where none is left that
	// could hand the job's state on, all start anew.
	ScopeProcess
	// ScopeWorld ends all workers and starts them anew.
	ScopeWorld
)

// Judge says what the ends of workers mean for the job.
type Judge interface {
	// World says that a world of size workers has begun.
	World(at time.Time, size int)
	// Exited says that a worker of it has ended by itself, Lost that it was lost with its host, Ended that the world
	// has succeeded, Next that another world is to follow this one.
	Exited(at time.Time, rank, status int) Ruling
	Lost(at time.Time, rank, status int) Ruling
	Ended(at time.Time) Ruling
	Next(at time.Time) Ruling
}

// Ruling is what a Judge says. The zero value leaves everything to Horovod's rules.
type Ruling struct {
	// Over says that the job is decided: with success, after Linger where others may go on for a while, or with the
	// exit status Status of the worker of Rank for Why, the last part of a sentence. Limit says that it is for a limit
	// of restarts.
	Over, Success, Limit bool
	Linger               time.Duration
	Rank, Status         int
	Why                  string
	// Anew says that the world has failed, or is to begin again: the next one may begin after Delay, unless workers
	// hold the job's state meanwhile.
	Anew  bool
	Delay time.Duration
}

// Failure is a worker that ended with a status but 0.
type Failure struct {
	Host            string
	LocalRank, Rank int
	Status          int
	// Lost says why it could not be started on its host, or was lost with it; empty where it has ended by itself.
	Lost string
}

func (f Failure) String() string {
	if f.Lost != "" {
		return fmt.Sprintf("the worker of rank %d on %s (local rank %d) was lost: %s", f.Rank, f.Host, f.LocalRank, f.Lost)
	}
	return fmt.Sprintf("the worker of rank %d on %s (local rank %d) ended with status %d", f.Rank, f.Host, f.LocalRank, f.Status)
}
