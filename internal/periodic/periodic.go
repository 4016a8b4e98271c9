// Package periodic calls a function again and again beside something that takes its time.
package periodic

import (
	"sync"
	"time"
)

// Every calls f again and again, with the time since the call, until stop is called.
func Every(pause time.Duration, f func(since time.Duration)) (stop func()) {
	var wg sync.WaitGroup
	began, ended := time.Now(), make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f(time.Since(began))
			case <-ended:
				return
			}
		}
	})
	return func() { close(ended); wg.Wait() }
}
