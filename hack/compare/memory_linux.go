package main

import (
	"time"

	"github.com/unitask/unitask/internal/offspring"
)

// watchMemory samples the proportional memory of our processes, ten times a second. The function that it returns ends
// it, and returns the most that it saw, in MiB. A server or a pool that was there before counts, if we started it.
func watchMemory() (stop func() int) {
	end, most := make(chan struct{}), make(chan int)
	go func() {
		seen := 0
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			seen = max(seen, memory())
			select {
			case <-end:
				most <- seen
				return
			case <-tick.C:
			}
		}
	}()
	return func() int {
		close(end)
		return <-most
	}
}

// memory returns the proportional memory of all our processes, in MiB.
func memory() (all int) {
	for _, p := range offspring.All() {
		all += p.Memory()
	}
	return all
}
