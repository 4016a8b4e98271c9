package devicecheck

import (
	"time"

	"muster/internal/proc"
)

// SetBudget changes the budget of the commands that follow.
func (c *Program) SetBudget(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Budget = d
}

// StartBy has processes that are not forks of a template started in another way.
func (cfg *Config) StartBy(start func(proc.Spec) (*proc.Process, error)) { cfg.start = start }

// Fitting is fitting.
var Fitting = fitting
