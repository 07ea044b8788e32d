package machine

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// HostMemory returns the total memory and the memory that is free to use without hurting others, in bytes. Both
// come from the host (MemTotal, MemAvailable), or from this process's cgroup (v2), page cache aside, if that
// allows less. Values that can't be read count as unlimited.
func HostMemory() (total, free int64) {
	total, free = machineMemory()
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return total, free
	}
	_, rest, ok := strings.Cut("\n"+string(self), "\n0::")
	if !ok {
		return total, free
	}
	dir := filepath.Join("/sys/fs/cgroup", strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	limit, errMax := readInt(filepath.Join(dir, "memory.max"))
	used, errUsed := readInt(filepath.Join(dir, "memory.current"))
	if errMax != nil || errUsed != nil {
		return total, free // "max" is not a number: no limit
	}
	if stat, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err == nil {
		for line := range strings.Lines(string(stat)) {
			if n, ok := strings.CutPrefix(line, "inactive_file "); ok {
				if cache, err := strconv.ParseInt(strings.TrimSpace(n), 10, 64); err == nil {
					used -= cache
				}
			}
		}
	}
	return min(total, limit), min(free, limit-used)
}

func readInt(name string) (int64, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// machineMemory returns MemTotal and MemAvailable, in bytes.
func machineMemory() (total, free int64) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return math.MaxInt64, math.MaxInt64
	}
	m, err := proc.Meminfo()
	if err != nil || m.MemTotalBytes == nil || m.MemAvailableBytes == nil {
		return math.MaxInt64, math.MaxInt64
	}
	return int64(*m.MemTotalBytes), int64(*m.MemAvailableBytes)
}

// proportional returns a process's share of the memory it uses (Pss), in bytes, or 0 if it is unknown.
func proportional(pid int) int64 {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	m, err := proc.ProcSMapsRollup()
	if err != nil {
		return 0
	}
	return int64(m.Pss)
}
