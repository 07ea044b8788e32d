package main

import (
	"strings"

	"github.com/unitask/unitask/internal/offspring"
)

// memoryOfQEMUs returns the proportional memory of our QEMUs, and that of the largest, in MiB.
func memoryOfQEMUs() (all, most int) {
	for _, p := range offspring.All() {
		if strings.HasPrefix(p.Name, "qemu-system") {
			n := p.Memory()
			all, most = all+n, max(most, n)
		}
	}
	return all, most
}
