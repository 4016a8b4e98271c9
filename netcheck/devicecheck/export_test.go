package devicecheck

import "time"

// SetBudget changes the budget of the commands that follow.
func (c *Program) SetBudget(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Budget = d
}

// Fitting is fitting.
var Fitting = fitting
