package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// disksOf returns the disks that contain a spec's files, in the kernel's form "8:0".
func disksOf(s Spec) []string {
	var disks []string
	seen := map[uint64]bool{}
	add := func(st unix.Stat_t) {
		if st.Mode&unix.S_IFMT != unix.S_IFREG || seen[st.Dev] {
			return
		}
		seen[st.Dev] = true
		if disk := diskOf("/sys", unix.Major(st.Dev), unix.Minor(st.Dev)); disk != "" && !slices.Contains(disks, disk) {
			disks = append(disks, disk)
		}
	}
	var st unix.Stat_t
	for _, f := range s.Files {
		if f != nil && unix.Fstat(int(f.Fd()), &st) == nil {
			add(st)
		}
	}
	for _, path := range append([]string{s.Program.Path}, s.Program.Files...) {
		if unix.Stat(path, &st) == nil {
			add(st)
		}
	}
	return disks
}

// diskOf returns the disk of a block device, which may be a partition: only whole disks can be bounded. It returns ""
// for other devices: a file system in memory, or one over others.
func diskOf(sys string, major, minor uint32) string {
	dir, err := filepath.EvalSymlinks(filepath.Join(sys, "dev/block", fmt.Sprintf("%d:%d", major, minor)))
	if err != nil {
		return ""
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
