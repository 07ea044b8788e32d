// Package offspring finds the descendants of this process. With PR_SET_CHILD_SUBREAPER it finds all of them.
package offspring

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Process is a descendant of this process.
type Process struct {
	PID  int
	Name string
}

// All returns all descendants of this process.
func All() (list []Process) {
	parents, names := map[int]int{}, map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		if err != nil || open < 0 || end < open {
			continue
		}
		fields := strings.Fields(string(text[end+1:]))
		if fields[0] == "Z" {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		names[pid] = string(text[open+1 : end])
	}
	for pid := range parents {
		for at := parents[pid]; at > 1; at = parents[at] {
			if at == os.Getpid() {
				list = append(list, Process{pid, names[pid]})
				break
			}
		}
	}
	slices.SortFunc(list, func(a, b Process) int { return a.PID - b.PID })
	return list
}

// Memory returns the process's proportional memory in MiB, 0 if it has ended.
func (p Process) Memory() int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/smaps_rollup")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
			n, _ := strconv.Atoi(f[1])
			return n >> 10
		}
	}
	return 0
}
