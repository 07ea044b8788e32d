// Limits the number of the code's processes with a control group, which is the root of their control
// group namespace. The kernel lets no process leave that root or change its limits (CGROUP_OPTIONS).
// That includes root of a container's image. It may mount the hierarchy in a new user namespace, and
// then own the hierarchy's files, but can't change the limits.
#define _GNU_SOURCE
#include "container.h"
#include "init.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// These are as in linux/mount.h, which can't be included beside sys/mount.h.
enum { OPEN_CLOEXEC = 1, MOUNT_CLOEXEC = 1, COMMAND_SET_FLAG = 0, COMMAND_CREATE = 6 };

static int group = -1;

static int put_in(int dir, const char *name, const char *text)
{
	int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
	if (fd >= 0)
		close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

void processes_begin(void)
{
	int fs = (int)syscall(SYS_fsopen, "cgroup2", OPEN_CLOEXEC);
	if (fs < 0 || syscall(SYS_fsconfig, fs, COMMAND_SET_FLAG, CGROUP_OPTIONS, NULL, 0) < 0 ||
	    syscall(SYS_fsconfig, fs, COMMAND_CREATE, NULL, NULL, 0) < 0)
		die("cgroup2");
	int root = (int)syscall(SYS_fsmount, fs, MOUNT_CLOEXEC, 0);
	close(fs);
	if (root < 0 || put_in(root, "cgroup.subtree_control", "+pids") < 0 || mkdirat(root, "code", 0755) < 0)
		die("control group");
	group = openat(root, "code", O_PATH | O_DIRECTORY | O_CLOEXEC);
	close(root);
	if (group < 0)
		die("control group");
}

void processes_join(void)
{
	// In a namespace of its own, /proc/self/cgroup looks as if there were no group.
	if (put_in(group, "cgroup.procs", "0") < 0 || unshare(CLONE_NEWCGROUP) < 0)
		die("join the control group");
}

int processes_limit(unsigned most)
{
	char text[16];
	snprintf(text, sizeof text, "%u", most);
	return most > 0 ? put_in(group, "pids.max", text) : -1;
}

unsigned processes_refused(void)
{
	char text[64] = "";
	int fd = openat(group, "pids.events", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	unsigned long refused = n > 4 && strncmp(text, "max ", 4) == 0 ? strtoul(text + 4, NULL, 10) : 0;
	return refused > 1000000 ? 1000000 : (unsigned)refused;
}
