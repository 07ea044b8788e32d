package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/unitask/unitask/internal/offspring"
)

// memoryOfQEMUs returns the proportional memory of our QEMUs, and that of the largest, in MiB.
func memoryOfQEMUs() (all, most int) {
	for _, p := range offspring.All() {
		if !strings.HasPrefix(p.Name, "qemu-system") {
			continue
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.PID))
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				n, _ := strconv.Atoi(f[1])
				all, most = all+n>>10, slices.Max([]int{most, n >> 10})
			}
		}
	}
	return all, most
}
