// Package offspring finds the processes that came from this one. With PR_SET_CHILD_SUBREAPER none of them gets away.
package offspring

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Process is one of those that came from us.
type Process struct {
	PID  int
	Name string
}

// All are all processes that came from us.
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
