package machine

import (
	"math"
	"runtime"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// HostUse is what a host has, and how much of it is free. Values that can't be read are 0.
type HostUse struct {
	Processors  int       `json:"processors"`
	Load        []float64 `json:"load,omitempty"` // of the last 1, 5 and 15 minutes
	MemoryBytes int64     `json:"memoryBytes"`
	MemoryFree  int64     `json:"memoryFreeBytes"`
	DiskBytes   int64     `json:"diskBytes"` // of the disk with the home
	DiskFree    int64     `json:"diskFreeBytes"`
}

// UseOfHost returns the use of this host; dir is a folder on the disk that is meant.
func UseOfHost(dir string) HostUse {
	u := HostUse{Processors: runtime.NumCPU()}
	total, free := HostMemory()
	if total != math.MaxInt64 {
		u.MemoryBytes, u.MemoryFree = total, max(free, 0)
	}
	if proc, err := procfs.NewDefaultFS(); err == nil {
		if load, err := proc.LoadAvg(); err == nil {
			u.Load = []float64{load.Load1, load.Load5, load.Load15}
		}
	}
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil {
		size := int64(fs.Bsize)
		u.DiskBytes, u.DiskFree = int64(fs.Blocks)*size, int64(fs.Bavail)*size
	}
	return u
}
