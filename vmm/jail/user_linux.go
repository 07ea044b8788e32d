package jail

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// nobody is the user and group to fall back to.
const nobody = 65534

// The range of users for root's machines. No convention assigns it to anybody, and systemd's "Users, Groups, UIDs and
// GIDs" leaves it out. It is above the range of containers and below the ids that some programs treat as negative.
const (
	ownUsers     = 0x70000000
	ownUserCount = 1 << 24
)

// aUser returns a user and group for a machine that root starts, without files or other processes. It is a random one
// from root's subordinate range in /etc/subuid, or else from an unassigned range. It is nobody if such users are not
// available, as in a container with few.
func aUser() int {
	subuid, _ := os.ReadFile("/etc/subuid")
	mapped, _ := os.ReadFile("/proc/self/uid_map")
	groups, _ := os.ReadFile("/proc/self/gid_map")
	begin, count := subordinate(subuid, "root", "0")
	if count == 0 {
		begin, count = ownUsers, ownUserCount
	}
	id := begin + rand.IntN(count)
	if !inMap(mapped, id) || !inMap(groups, id) {
		return nobody
	}
	return id
}

// subordinate returns the first range that /etc/subuid (subuid(5)) assigns to a user, given by any of the user's
// names.
func subordinate(text []byte, names ...string) (begin, count int) {
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		fields := strings.Split(s.Text(), ":")
		if len(fields) != 3 {
			continue
		}
		for _, name := range names {
			begin, err := strconv.ParseUint(fields[1], 10, 31)
			count, errCount := strconv.ParseUint(fields[2], 10, 31)
			if fields[0] == name && err == nil && errCount == nil && count > 0 && begin > 0 {
				return int(begin), int(count)
			}
		}
	}
	return 0, 0
}

// inMap reports whether a uid_map or gid_map (user_namespaces(7)) contains an id of this namespace.
func inMap(text []byte, id int) bool {
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var n [3]uint64
		fields := strings.Fields(s.Text())
		if len(fields) != 3 {
			continue
		}
		for i := range fields {
			n[i], _ = strconv.ParseUint(fields[i], 10, 64)
		}
		if uint64(id) >= n[0] && uint64(id)-n[0] < n[2] {
			return true
		}
	}
	return false
}

// KVMGroup returns the group that gives a process that is not root access to a device like KVM's. It returns none if no
// specific group has access to the device.
func KVMGroup(device string) []uint32 {
	st, err := os.Stat(device)
	if err != nil {
		return nil
	}
	gid := st.Sys().(*syscall.Stat_t).Gid
	if gid == 0 || st.Mode().Perm()&0o060 != 0o060 {
		return nil
	}
	return []uint32{gid}
}
