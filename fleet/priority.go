package fleet

import "fmt"

// Priority orders the runs of one tenant. It does not affect other tenants.
type Priority string

const (
	High   Priority = "high"
	Normal Priority = "normal"
	Low    Priority = "low"
)

// Priorities are all of them, the highest first.
var Priorities = []Priority{High, Normal, Low}

// ParsePriority reads a priority; "" is Normal.
func ParsePriority(text string) (Priority, error) {
	switch p := Priority(text); p {
	case "":
		return Normal, nil
	case High, Normal, Low:
		return p, nil
	}
	return "", fmt.Errorf("priority %.40q: use high, normal or low", text)
}

// otherTurn is the interval, in turns, at which a tenant's queues are not read from the highest priority on, so that
// lower priorities don't starve.
const otherTurn = 8

// order returns the order in which a tenant's turn reads the queues of the priorities.
func order(turn int) []int {
	if turn%otherTurn != otherTurn-1 {
		return []int{0, 1, 2}
	}
	if turn/otherTurn%2 == 0 {
		return []int{2, 1, 0}
	}
	return []int{1, 2, 0}
}
