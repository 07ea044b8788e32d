package jail

import (
	"os"
	"strings"
)

// Remedy tells what would make a layer or limit hold on this host. It returns "" if nothing would, or if it holds.
func Remedy(h Hold) string {
	if h.Holds {
		return ""
	}
	if strings.Contains(h.Why, ErrNoProgram.Error()) {
		return "QEMU's own program in the place of a script: on PATH, or by UNITASK_QEMU"
	}
	switch h.Name {
	case Network, Processes, IPC, UTS, CgroupSpace, Filesystem, Sealed, User, LimitProcesses:
		return namespaceRemedy(host{})
	case Landlock:
		return "a kernel of 5.13 or later that lists landlock among its security modules (kernel command line: " +
			"lsm=landlock,…)"
	case Groups:
		return "start unitask without supplementary groups (setpriv --clear-groups), or as root"
	case LimitGroupMemory, LimitTasks, LimitCPU, LimitIO:
		return "control groups of version 2 that are delegated: " +
			"Delegate=yes in a systemd unit, systemd-run --user --scope -p Delegate=yes unitask …, " +
			"a writable /sys/fs/cgroup in a container"
	case Seccomp:
		return "a kernel with CONFIG_SECCOMP_FILTER"
	}
	return ""
}

// host reads the files that a remedy depends on.
type host struct{ root string } // "" is this host; another folder in tests

func (h host) read(path string) string {
	text, _ := os.ReadFile(h.root + path)
	return strings.TrimSpace(string(text))
}

func (h host) has(path string) bool {
	_, err := os.Stat(h.root + path)
	return err == nil
}

func namespaceRemedy(h host) string {
	switch {
	case h.has("/.dockerenv") || h.has("/run/.containerenv"):
		return "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined, " +
			"which lets it make user namespaces"
	case h.read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return "sudo sysctl kernel.unprivileged_userns_clone=1"
	case h.read("/proc/sys/user/max_user_namespaces") == "0":
		return "sudo sysctl user.max_user_namespaces=10000"
	case h.read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, " +
			"or an AppArmor profile for the unitask binary with the rule `userns,`"
	}
	return "start unitask as root, or where user namespaces may be made"
}
