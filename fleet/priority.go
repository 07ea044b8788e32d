package fleet

import "fmt"

// Priority says which of its tenant's runs go first. It takes nothing from other tenants.
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

// otherTurn is how often a tenant's runs are not looked for from the highest priority on: what is lower
// waits, and does not starve.
const otherTurn = 8

// order is in which order the queues of the priorities are looked into for a tenant's turn.
func order(turn int) []int {
	if turn%otherTurn != otherTurn-1 {
		return []int{0, 1, 2}
	}
	if turn/otherTurn%2 == 0 {
		return []int{2, 1, 0}
	}
	return []int{1, 2, 0}
}
